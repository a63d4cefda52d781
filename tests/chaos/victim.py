"""A training run to be killed: a module of its own, so that a fork server loads torch once for many short lives."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path

import components.training.run as run_module
from components.data.stream import Batch, BatchStream
from components.training.run import TrainingRun, run_training
from tests.toys import telescopic, toy_run, toy_training

STEPS = 120  # eight epochs


class WatchedStream(BatchStream):
    """Writes down which rows every step trained on, and waits to be killed once so many steps are written down."""

    file: Path
    last: int | None

    def batch(self, step: int, rank: int = 0, workers: int = 1) -> Batch:
        with self.file.open("a") as file:
            file.write(json.dumps({"step": step, "rows": self.global_rows(step).tolist()}) + "\n")
        if self.last is not None and n_batches(self.file.parent) >= self.last:
            signal.pause()
        return super().batch(step, rank, workers)


def n_batches(root: Path) -> int:
    """Steps that were begun so far, those done again included."""
    file = root / "batches.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def victim_run(root: Path) -> TrainingRun:
    run = toy_run(root, telescopic("uniform"), checkpoint_every_steps=2)
    return dataclasses.replace(run, arm=run.arm.model_copy(update={"training": toy_training(steps=STEPS)}))


def train(root: Path, last: int | None = None) -> None:
    WatchedStream.file, WatchedStream.last = root / "batches.jsonl", last
    run_module.BatchStream = WatchedStream
    run_training(victim_run(root), lambda _: None)
