"""What workers agree on before they train."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import components.training.workers as workers
from components.config.problems import CheckpointError
from components.training.run import run_training
from components.training.workers import is_same_everywhere
from tests.toys import telescopic, toy_run

CPU = torch.device("cpu")


def _with_a_peer_that_passes(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def largest(ours: Tensor, op: object) -> None:
        assert op == dist.ReduceOp.MAX
        ours.copy_(torch.maximum(ours, torch.tensor([number, -number])))

    monkeypatch.setattr(workers, "rank_and_workers", lambda: (0, 2))
    monkeypatch.setattr(dist, "all_reduce", largest)


@pytest.mark.parametrize(("theirs", "agreed"), [(3, True), (0, False), (7, False)])
def test_numbers_are_compared_over_workers(theirs: int, agreed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_a_peer_that_passes(theirs, monkeypatch)
    assert is_same_everywhere(3, CPU) is agreed


def test_one_worker_agrees_with_itself() -> None:
    assert is_same_everywhere(3, CPU)


def test_workers_that_see_different_checkpoints_do_not_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.training.run.is_same_everywhere", lambda step, device: False)
    with pytest.raises(CheckpointError, match="storage that the machines share"):
        run_training(toy_run(tmp_path, telescopic("uniform")), lambda _: None)
