"""Two gloo workers that each hold half of the model: equal to one process, in training, checkpoints and what is saved."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from components.models.files import load_tensors
from components.training.run import run_training
from tests.numeric.sharded_run import expert_streams, in_bfloat16, sharded_run
from tests.toys import ROOT, telescopic

pytestmark = pytest.mark.slow

WORKER = ROOT / "tests" / "numeric" / "sharded_run.py"
CASES: dict[str, dict[str, Any]] = {
    "random depths": telescopic("uniform"),
    "no anchor": telescopic("uniform", anchor_weight=0.0),
    "per-exit backward": {"kind": "fixed_exits", "distill_weight": 0.3, "backward": "per_exit"},
    "dropped blocks": {"kind": "layerdrop", "drop_probability": 0.4},
}  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_workers(root: Path, objective: dict[str, Any], *flags: str) -> list[int]:
    """Exit codes of two workers that train the run under `root`."""
    port = str(_free_port())
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(root), str(rank), port, json.dumps(objective), *flags], cwd=ROOT, env=environment
        )
        for rank in range(2)
    ]
    return [worker.wait(timeout=300) for worker in workers]


def history(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "model" / "history.jsonl").read_text().splitlines()]


def assert_same_training(shared: Path, alone: Path) -> None:
    for ours, theirs in zip(history(shared), history(alone), strict=True):
        assert {key: ours[key] for key in ("step", "depths", "lr")} == {key: theirs[key] for key in ("step", "depths", "lr")}
        for name in set(ours) - {"step", "depths", "lr"}:
            # float32: the same sums in another order
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4), (ours["step"], name)
    for file in ("model.safetensors", "optimizer.safetensors"):
        split, one = load_tensors(shared / "model" / file), load_tensors(alone / "model" / file)
        assert split.keys() == one.keys()
        for name in one:
            # over ten steps at lr 1.5e-3; AdamW divides by gradients of which some are tiny
            torch.testing.assert_close(split[name], one[name], atol=2e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("case", CASES)
def test_two_shards_train_as_one_process(tmp_path: Path, case: str) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    run_training(sharded_run(alone, CASES[case], workers=1), lambda _: None)
    assert run_workers(shared, CASES[case]) == [0, 0]
    assert_same_training(shared, alone)
    parts = [json.loads((shared / f"parts-{rank}.json").read_text()) for rank in range(2)]
    stored = sum(tensor.numel() for tensor in load_tensors(shared / "model" / "model.safetensors").values())
    assert sum(parts) == stored
    assert max(parts) < 0.6 * stored


def test_experts_streams_and_mirrored_blocks_train_as_one_process(tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    run_training(expert_streams(sharded_run(alone, telescopic(), workers=1)), lambda _: None)
    assert run_workers(shared, telescopic(), "--experts") == [0, 0]
    assert_same_training(shared, alone)


def test_blocks_gathered_in_bfloat16_train_as_one_process_in_bfloat16(tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    run_training(in_bfloat16(expert_streams(sharded_run(alone, telescopic(), workers=1))), lambda _: None)
    assert run_workers(shared, telescopic(), "--experts", "--bfloat16") == [0, 0]
    for ours, theirs in zip(history(shared), history(alone), strict=True):
        assert ours["loss_nats"] == pytest.approx(theirs["loss_nats"], rel=0.01)  # 8 bits, norms' gains among them
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.05)
    assert {tensor.dtype for tensor in load_tensors(shared / "model" / "optimizer.safetensors").values()} == {torch.float32}


def test_a_killed_run_goes_on_from_its_parts_with_the_same_bytes(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert run_workers(whole, telescopic()) == [0, 0]
    assert run_workers(cut, telescopic(), "--killed-at", "5") != [0, 0]
    assert [path.name for path in cut.glob("runs/*/step-*")] == ["step-3"]
    assert run_workers(cut, telescopic()) == [0, 0]
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (whole / "model" / file).read_bytes() == (cut / "model" / file).read_bytes()
