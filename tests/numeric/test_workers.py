"""Two gloo workers, accumulation and random depths: equal to each other, and to one process on the joined batch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from components.models.files import load_tensors
from components.training.run import run_training
from tests.toys import ROOT, telescopic, toy_run

WORKER = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
import torch
import torch.distributed as dist
from components.models.files import save_tensors
import components.training.run as run_module
from components.training.run import run_training
from tests.toys import toy_run

root, rank, port = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
reductions, original = [], dist.all_reduce
def counting(tensor, *args, **kwargs):
    reductions.append(tensor.numel())
    return original(tensor, *args, **kwargs)
dist.all_reduce = counting
models, build = [], run_module.build_objective
def keeping(*args):
    objective = build(*args)
    new_model = objective.new_model
    objective.new_model = lambda: models.append(new_model()) or models[-1]
    return objective
run_module.build_objective = keeping
run = toy_run(root, json.loads(sys.argv[5]), micro_batch_rows=1, workers=2)
run_training(run, lambda _: None)
save_tensors(models[0].state_dict(), root / f"rank-{rank}.safetensors")
(root / f"reductions-{rank}.json").write_text(json.dumps(reductions))
dist.destroy_process_group()
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("anchor", [1.0, 0.0])
def test_two_workers_stay_identical_and_equal_one_process(tmp_path: Path, anchor: float) -> None:
    import json

    objective = telescopic("uniform", anchor_weight=anchor)
    alone = toy_run(tmp_path / "alone", objective)
    run_training(alone, lambda _: None)
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "data").symlink_to(tmp_path / "alone" / "data")
    port = _free_port()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(shared), str(rank), str(port), str(ROOT), json.dumps(objective)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(2)
    ]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    first, second = (load_tensors(shared / f"rank-{rank}.safetensors") for rank in range(2))
    one = load_tensors(alone.output_dir / "model.safetensors")
    for name in one:
        assert torch.equal(first[name], second[name]), name
        # float32: the same sums in another order, over ten steps at lr 1.5e-3
        torch.testing.assert_close(first[name], one[name], atol=2e-5, rtol=1e-4)
    # first the step they resume from; then per step all gradients (they fit one bucket), the losses, and the wish to stop
    resumed, *reductions = json.loads((shared / "reductions-0.json").read_text())
    assert resumed == 2
    assert len(reductions) == 10 * 3
    assert all(gradients > 1000 for gradients in reductions[::3])
    assert all(losses <= 3 for losses in reductions[1::3])
    assert set(reductions[2::3]) == {1}
