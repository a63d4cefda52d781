"""The Ray adapter on a real Ray: results, mistakes, lost workers, two workers of one model, a head for several jobs, no remains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from components.training.run import run_training
from tests.numeric.sharded_run import sharded_run
from tests.pipeline.processes import PATIENCE_SECONDS, leftovers
from tests.toys import telescopic

pytestmark = pytest.mark.slow

PREAMBLE = """
import json, os, signal, sys, time
from pathlib import Path
from components.config.problems import DataError, StudyError
from tasks.ray_head import ray_head
from tasks.ray_resources import Resources
from tasks.ray_train import ray_session
folder = Path(sys.argv[1])
"""


def run_script(body: str, folder: Path, seconds: float = PATIENCE_SECONDS) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own: Ray leaves settings behind in the process that used it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", PREAMBLE + textwrap.dedent(body), str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)


def test_task_returns_result_progress_and_mistakes_and_survives_a_lost_worker(tmp_path: Path) -> None:
    done = run_script(
        """
        def good(report):
            report({"step": 1}); report({"step": 2})
            return {"threads": os.environ["OMP_NUM_THREADS"], "pid": os.getpid()}
        def wrong(report):
            raise DataError("rows.arrow: truncated")
        def killed_once(report):
            mark = folder / "mark"
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return {"again": True}
        resources = Resources(workers=1, threads=1, device="auto")
        seen = []
        with ray_session(resources) as session:
            result = session.run(good, folder, seen.append)
            assert result["threads"] == "1" and result["pid"] != os.getpid(), result
            assert [line["step"] for line in seen] == [1, 2], seen
            try:
                session.run(wrong, folder, print)
            except StudyError as error:
                assert type(error) is DataError and str(error) == "rows.arrow: truncated", repr(error)
            else:
                raise SystemExit("the mistake was lost")
            assert session.run(killed_once, folder, print) == {"again": True}
        print("all good")
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "all good" in done.stdout
    assert "worker was lost" in done.stderr
    assert not leftovers("ray")


def test_group_of_two_restarts_after_a_lost_rank_and_shares_one_model(tmp_path: Path) -> None:
    alone, shared = sharded_run(tmp_path / "alone", telescopic(), workers=1), tmp_path / "shared"
    run_training(alone, lambda _: None)
    done = run_script(
        """
        sys.path.insert(0, os.getcwd())
        from tasks.train import run_on_worker
        from tests.numeric.sharded_run import sharded_run
        from tests.toys import telescopic
        run = sharded_run(folder, telescopic())
        def train(report):
            import torch.distributed as dist
            mark = folder / "mark"
            if dist.get_rank() == 1 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()
            return run_on_worker(run, report)
        def wrong(report):
            raise DataError("rows.arrow: truncated")
        resources = Resources(workers=2, threads=1, device="cpu")
        seen = []
        with ray_session(resources) as session:
            result = session.run(train, run.run_dir, seen.append)
            assert result["steps"] == 10 and result["devices"] == 2, result
            assert [line["step"] for line in seen if "step" in line] == list(range(1, 11)), seen  # of rank 0 alone
            try:
                session.run(wrong, folder, print)
            except StudyError as error:
                assert str(error) == "rows.arrow: truncated", repr(error)
            else:
                raise SystemExit("the mistake was lost")
        print("all good")
        """,
        shared,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all good" in done.stdout
    assert "worker" in done.stderr
    assert "was lost" in done.stderr
    ours, theirs = (
        [json.loads(line)["loss_nats"] for line in (folder / "model" / "history.jsonl").read_text().splitlines()]
        for folder in (shared, tmp_path / "alone")
    )
    assert ours == pytest.approx(theirs, rel=1e-4)  # float32: the same sums in another order
    assert not leftovers("ray")


def test_one_head_on_loopback_serves_several_sessions_and_ends_with_its_block(tmp_path: Path) -> None:
    done = run_script(
        """
        from tests.pipeline.processes import listening
        resources = Resources(workers=1, threads=1, device="auto")
        with ray_head():
            address = os.environ["RAY_ADDRESS"]
            for turn in range(2):
                with ray_session(resources) as session:
                    assert session.run(lambda report: {"turn": turn}, folder, print) == {"turn": turn}
                    assert listening() == {"127.0.0.1"}
        assert "RAY_ADDRESS" not in os.environ
        print(address)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("127.0.0.1:")
    assert not leftovers("ray")


def test_interrupted_driver_leaves_no_process(tmp_path: Path) -> None:
    body = PREAMBLE + textwrap.dedent(
        """
        from tasks.command import run_command
        def sleepy(report):
            report({"pid": os.getpid()})
            time.sleep(3600)
        resources = Resources(workers=1, threads=1, device="auto")
        def main():
            with ray_session(resources) as session:
                session.run(sleepy, folder, lambda line: print(line["pid"], flush=True))
        run_command(main)
        """
    )
    driver = subprocess.Popen([sys.executable, "-c", body, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert int(driver.stdout.readline())
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(timeout=PATIENCE_SECONDS) == 130
    assert not leftovers("ray")
