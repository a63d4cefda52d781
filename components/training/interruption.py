"""How a run is asked to stop, and what it says when it must: a file in the run's folder, and clean errors for want of memory.

A file, because whoever asks may be another process on another machine: the folder is on storage that all of them share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from components.config.problems import StudyError
from components.training.step import TrainState
from components.training.workers import sum_over_workers

STOP = "stop"
NO_MEMORY = ("can't allocate memory", "not enough memory", "bad_alloc")


class StoppedError(StudyError):
    """The run was asked to stop: it ended its step and saved a checkpoint."""


class OutOfMemoryError(StudyError):
    """A step needs more memory than the device has."""


def is_stop_asked(run_dir: Path) -> bool:
    """Does the file `stop` exist? All workers get the same answer, so that all stop after the same step.

    They agree on CPUs (the group of GPU workers has gloo, too): nobody waits for a device.
    """
    asked = torch.tensor(float((run_dir / STOP).exists()))
    sum_over_workers([asked])
    return bool(asked)


@contextmanager
def memory_trouble(state: TrainState, micro_batch_rows: int) -> Iterator[None]:
    """Inside the block, memory that runs out is an `OutOfMemoryError` with a remedy."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch on a CPU has no class of its own for it
        is_known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not is_known and not any(words in str(error) for words in NO_MEMORY):
            raise
        remedy = "lower runtime.micro_batch_rows" if micro_batch_rows > 1 else "lower data.seq_len, or take a smaller model"
        raise OutOfMemoryError(
            f"step {state.step}: out of memory with runtime.micro_batch_rows {micro_batch_rows} "
            f"({' '.join(str(error).split())[:160] or type(error).__name__}); {remedy}, or run on a machine with more memory; "
            "the run goes on from its newest checkpoint"
        ) from None
