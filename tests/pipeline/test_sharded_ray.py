"""A sharded run through Ray Train: two workers, each with half of the model, end with the history of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from components.training.run import run_training
from tests.numeric.sharded_run import sharded_run
from tests.pipeline.test_ray import run_script
from tests.toys import telescopic

pytestmark = pytest.mark.slow


def test_two_ray_workers_share_one_model(tmp_path: Path) -> None:
    alone, shared = sharded_run(tmp_path / "alone", telescopic(), workers=1), tmp_path / "shared"
    run_training(alone, lambda _: None)
    done = run_script(
        """
        sys.path.insert(0, os.getcwd())
        from functools import partial
        from tasks.train import run_on_worker
        from tests.numeric.sharded_run import sharded_run
        from tests.toys import telescopic
        run = sharded_run(folder, telescopic())
        with ray_session(Resources(workers=2, threads=1, device="cpu")) as session:
            result = session.run(partial(run_on_worker, run), run.run_dir, print)
        assert result["steps"] == 10 and result["devices"] == 2, result
        """,
        shared,
        seconds=600,
    )
    assert done.returncode == 0, done.stderr
    ours, theirs = (
        [json.loads(line) for line in (folder / "model" / "history.jsonl").read_text().splitlines()]
        for folder in (shared, tmp_path / "alone")
    )
    # float32: the same sums in another order
    assert [line["loss_nats"] for line in ours] == pytest.approx([line["loss_nats"] for line in theirs], rel=1e-4)
