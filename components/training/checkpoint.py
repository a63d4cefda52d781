"""Checkpoints that survive a kill at any moment.

A checkpoint is a folder `step-<n>`: weights and optimizer state as safetensors, `state.json` with their checksums, and a file
`complete` with the checksum of `state.json`. It is written aside, flushed, renamed; the marker comes last. A folder without a
marker, or whose files do not have their checksums, is passed over in favour of the one before. The folder above is named after
the run's identity, so a run with other settings, data or code never resumes from it. The order is that of the steps, never that
of clocks or file times.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from components.config.problems import CheckpointError, disk_trouble
from components.models.files import OPTIMIZER, WEIGHTS, file_sha256, load_tensors, load_weights, save_tensors
from components.models.parts import put_all, save_whole
from components.training.optimizer import load_optimizer_tensors, optimizer_tensors
from components.training.sharding import is_sharded
from components.training.step import TrainState
from components.training.workers import rank_and_workers

STATE, COMPLETE = "state.json", "complete"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resume:
    """What a checkpoint remembers beside the tensors.

    Attributes:
        step: optimizer steps done.
        seconds: wall-clock of those steps, over all sessions.
        peak_memory_bytes: the largest so far.
        stream_fingerprint: of the batches consumed.
        history: the lines of the training history up to here.
    """

    step: int
    seconds: float
    peak_memory_bytes: int
    stream_fingerprint: str
    history: list[dict[str, object]]


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a folder of checkpoints: a worker that outlived its killed driver may still write there.

    The lock ends with the process that holds it, however that ends. A file system without locks goes without.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("%s: another process still trains this run; waiting until it ends", folder)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            log.warning("%s: cannot be locked (%s); see that no other process trains this run", folder, error)
        yield


def save_checkpoint(state: TrainState, resume: Resume, folder: Path, keep: int) -> None:
    """Writes `folder/step-<n>` and then removes all but the newest `keep` checkpoints.

    Called by the first worker; with a sharded model by all, the others to give their parts.

    Raises:
        StorageError: the disk is full; the earlier checkpoints are untouched.
    """
    if rank_and_workers()[0] > 0:
        _write_tensors(state, None)
        return
    aside, final = folder / f".writing-{resume.step}", folder / f"step-{resume.step}"
    earlier = [step for step, _ in _by_step(folder)]
    kept = f"the checkpoint of step {earlier[-1]} is kept" if earlier else "there is no earlier checkpoint"
    try:
        with disk_trouble(final, kept):
            _write(state, resume, aside, final)
    finally:
        for unfinished in folder.glob(".writing-*"):  # a killed run's too
            shutil.rmtree(unfinished, ignore_errors=True)
    for _, old in _by_step(folder)[:-keep]:
        shutil.rmtree(old)


def _write(state: TrainState, resume: Resume, aside: Path, final: Path) -> None:
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    _write_tensors(state, aside)
    sums = {name: file_sha256(aside / name) for name in (WEIGHTS, OPTIMIZER)}
    _write_flushed(aside / STATE, json.dumps({"resume": asdict(resume), "sha256": sums}))
    sum_of_state = file_sha256(aside / STATE)
    shutil.rmtree(final, ignore_errors=True)
    aside.replace(final)
    _write_flushed(final / COMPLETE, sum_of_state)
    _flush_folder(final)
    _flush_folder(final.parent)


def _write_tensors(state: TrainState, folder: Path | None) -> None:
    """Weights and moments, whole; workers without a folder only give their parts."""
    tensors = {WEIGHTS: state.model.state_dict(), OPTIMIZER: optimizer_tensors(state.model, state.optimizer)}
    for name, named in tensors.items():
        if is_sharded(state.model):
            save_whole(named, folder and folder / name)
        elif folder is not None:
            save_tensors(named, folder / name)


def load_newest(state: TrainState, folder: Path) -> Resume | None:
    """Puts the newest good checkpoint into `state` and returns what it remembers; None when there is no good one.

    Damaged or unfinished checkpoints are named in a warning and passed over.
    """
    for step, path in reversed(_by_step(folder)):
        try:
            resume = _load(state, path)
        except CheckpointError as error:
            log.warning("passing over checkpoint step-%d: %s", step, error)
            continue
        state.step = resume.step
        return resume
    return None


def _load(state: TrainState, path: Path) -> Resume:
    if not (path / COMPLETE).exists():
        raise CheckpointError(f"{path}: unfinished, its save was interrupted")
    if file_sha256(path / STATE) != (path / COMPLETE).read_text(encoding="utf-8", errors="replace"):
        raise CheckpointError(f"{path / STATE}: checksum differs from {COMPLETE}: the file is damaged")
    try:
        saved = json.loads((path / STATE).read_text(encoding="utf-8"))
        resume, sums = Resume(**saved["resume"]), saved["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / STATE}: damaged ({error})") from None
    for name in (WEIGHTS, OPTIMIZER):
        if file_sha256(path / name) != sums[name]:
            raise CheckpointError(f"{path / name}: checksum differs from {STATE}: the file is damaged")
    weights, moments = load_tensors(path / WEIGHTS), load_tensors(path / OPTIMIZER)
    if is_sharded(state.model):
        put_all(state.model, weights)
    else:
        load_weights(state.model, weights, path / WEIGHTS)
    load_optimizer_tensors(state.model, state.optimizer, moments)
    return resume


def _by_step(folder: Path) -> list[tuple[int, Path]]:
    numbers = ((path.name.removeprefix("step-"), path) for path in folder.glob("step-*"))
    return sorted((int(number), path) for number, path in numbers if number.isdecimal())


def _write_flushed(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
