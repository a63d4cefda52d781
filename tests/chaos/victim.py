"""A training run to be killed: a module of its own, so that a fork server loads torch once for many short lives."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import components.training.run as run_module
from components.data.stream import Batch, BatchStream
from components.training.run import TrainingRun, run_training
from tests.toys import telescopic, toy_run, toy_training

STEPS = 90  # six epochs


class WatchedStream(BatchStream):
    """Writes down which rows every step trained on."""

    file: Path

    def batch(self, step: int, rank: int = 0, workers: int = 1) -> Batch:
        with self.file.open("a") as file:
            file.write(json.dumps({"step": step, "rows": self.global_rows(step).tolist()}) + "\n")
        return super().batch(step, rank, workers)


def victim_run(root: Path) -> TrainingRun:
    run = toy_run(root, telescopic("uniform"), checkpoint_every_steps=2)
    return dataclasses.replace(run, arm=run.arm.model_copy(update={"training": toy_training(steps=STEPS)}))


def train(root: Path) -> None:
    WatchedStream.file = root / "batches.jsonl"
    run_module.BatchStream = WatchedStream
    run_training(victim_run(root), lambda _: None)
