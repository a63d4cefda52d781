"""Checkpoints that survive a kill at any moment.

A checkpoint is a folder `step-<n>`: weights and optimizer state as safetensors, `state.json` with their checksums, and an empty
file `complete`. It is written aside, flushed, renamed; the marker comes last. A folder without a marker, or whose files do not
have their checksums, is passed over in favour of the one before. The folder above is named after the run's identity, so a run
with other settings, data or code never resumes from it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from components.config.problems import CheckpointError
from components.models.files import OPTIMIZER, WEIGHTS, file_sha256, load_tensors, load_weights, save_tensors
from components.training.optimizer import load_optimizer_tensors, optimizer_tensors
from components.training.step import TrainState

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


def save_checkpoint(state: TrainState, resume: Resume, folder: Path, keep: int) -> None:
    """Writes `folder/step-<n>` and then removes all but the newest `keep` checkpoints."""
    aside, final = folder / f".writing-{resume.step}", folder / f"step-{resume.step}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    sums = {
        WEIGHTS: save_tensors(state.model.state_dict(), aside / WEIGHTS),
        OPTIMIZER: save_tensors(optimizer_tensors(state.model, state.optimizer), aside / OPTIMIZER),
    }
    _write_flushed(aside / STATE, json.dumps({"resume": asdict(resume), "sha256": sums}))
    shutil.rmtree(final, ignore_errors=True)
    aside.replace(final)
    _write_flushed(final / COMPLETE, "")
    _flush_folder(folder)
    for _, old in _by_step(folder)[:-keep]:
        shutil.rmtree(old)


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
    try:
        saved = json.loads((path / STATE).read_text(encoding="utf-8"))
        resume, sums = Resume(**saved["resume"]), saved["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / STATE}: damaged ({error})") from None
    for name in (WEIGHTS, OPTIMIZER):
        if file_sha256(path / name) != sums[name]:
            raise CheckpointError(f"{path / name}: checksum differs from {STATE}: the file is damaged")
    weights, moments = load_tensors(path / WEIGHTS), load_tensors(path / OPTIMIZER)
    load_weights(state.model, weights, path / WEIGHTS)
    load_optimizer_tensors(state.model, state.optimizer, moments)
    return resume


def _by_step(folder: Path) -> list[tuple[int, Path]]:
    return sorted((int(path.name.removeprefix("step-")), path) for path in folder.glob("step-*"))


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
