"""A training run: the same weights however often it is stopped, and nobody else's checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import components.training.run as run_module
from components.config.problems import CheckpointError
from components.models.files import load_model, load_tensors
from components.training.checkpoint import only_writer
from components.training.interruption import STOP, OutOfMemoryError, StoppedError
from components.training.run import Progress, TrainingRun, run_training
from tests.toys import ROOT, telescopic, toy_run

UNIFORM = telescopic("uniform")
NO_ANCHOR = telescopic("loguniform", anchor_weight=0.0)


class _StopHereError(Exception):
    pass


def _stop_at(step: int) -> Callable[[Progress], None]:
    def on_progress(progress: Progress) -> None:
        if progress.step == step:
            raise _StopHereError

    return on_progress


def _ignore(_: Progress) -> None:
    pass


def _stopped(run: TrainingRun, step: int) -> None:
    with pytest.raises(_StopHereError):
        run_training(run, _stop_at(step))


def _files(run: TrainingRun) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.output_dir.iterdir())}


@pytest.mark.parametrize("objective", [UNIFORM, NO_ANCHOR], ids=["anchor", "no-anchor"])
def test_stopped_runs_end_with_the_same_files_bit_for_bit(tmp_path: Path, objective: dict[str, object]) -> None:
    straight, stopped = toy_run(tmp_path / "a", objective), toy_run(tmp_path / "b", objective)
    cost = run_training(straight, _ignore)
    for step in (2, 5, 7):
        _stopped(stopped, step)
    resumed = run_training(stopped, _ignore)
    assert _files(straight) == _files(stopped)
    assert resumed.stream_fingerprint == cost.stream_fingerprint
    assert resumed.flops == cost.flops


def test_a_resumed_run_starts_from_its_last_checkpoint(tmp_path: Path) -> None:
    run, seen = toy_run(tmp_path, UNIFORM), list[Progress]()
    _stopped(run, 8)
    run_training(run, seen.append)
    assert [progress.step for progress in seen] == [7, 8, 9, 10]
    assert seen[0].resumed_from == 6


def test_a_finished_run_only_writes_its_model_again(tmp_path: Path) -> None:
    run, seen = toy_run(tmp_path, UNIFORM), list[Progress]()
    run_training(run, _ignore)
    before = _files(run)
    for path in run.output_dir.iterdir():
        path.unlink()
    run_training(run, seen.append)
    assert not seen
    assert _files(run) == before


def _newest(run: TrainingRun) -> Path:
    return max(run.run_dir.glob("*/step-*"), key=lambda path: int(path.name.removeprefix("step-")))


def _truncate(checkpoint: Path) -> None:
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def _flip_a_bit(checkpoint: Path) -> None:
    weights = checkpoint / "optimizer.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-7] ^= 1
    weights.write_bytes(raw)


def _flip_a_bit_of_the_history(checkpoint: Path) -> None:
    state = checkpoint / "state.json"
    text = state.read_text()
    at = text.index('"loss_nats": ') + len('"loss_nats": 3.')
    state.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])


def _remove_marker(checkpoint: Path) -> None:
    (checkpoint / "complete").unlink()


@pytest.mark.parametrize("damage", [_truncate, _flip_a_bit, _flip_a_bit_of_the_history, _remove_marker])
def test_a_damaged_checkpoint_is_passed_over_and_named(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    straight, run, seen = toy_run(tmp_path / "a", UNIFORM), toy_run(tmp_path / "b", UNIFORM), list[Progress]()
    run_training(straight, _ignore)
    _stopped(run, 8)
    damage(_newest(run))
    run_training(run, seen.append)
    assert seen[0].resumed_from == 3
    assert "passing over checkpoint step-6" in caplog.text
    assert _files(run) == _files(straight)


KILLED_IN_SAVE = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import components.training.checkpoint as checkpoint
from components.training.run import run_training
from tests.toys import telescopic, toy_run

at = sys.argv[3]
original = getattr(checkpoint, at)
calls = []
def killing(*args, **kwargs):
    calls.append(1)
    if len(calls) == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(checkpoint, at, killing)
run_training(toy_run(Path(sys.argv[1]), telescopic("uniform")), lambda _: None)
"""


@pytest.mark.parametrize(("function", "call"), [("save_tensors", 3), ("save_tensors", 4), ("_write_flushed", 4)])
def test_sigkill_inside_a_save_loses_nothing_but_steps(tmp_path: Path, function: str, call: int) -> None:
    straight, run = toy_run(tmp_path / "a", UNIFORM), toy_run(tmp_path / "b", UNIFORM)
    run_training(straight, _ignore)
    command = [sys.executable, "-c", KILLED_IN_SAVE, str(tmp_path / "b"), str(ROOT), function, str(call)]
    killed = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert killed.returncode == -signal.SIGKILL
    run_training(run, _ignore)
    assert _files(run) == _files(straight)


def test_another_setting_seed_or_code_never_resumes_from_these_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Progress]()
    _stopped(toy_run(tmp_path, UNIFORM), 8)
    run_training(toy_run(tmp_path, telescopic("uniform", prefix_weight=0.5)), seen.append)
    assert seen[0].step == 1
    run_training(toy_run(tmp_path, UNIFORM, seed=1), seen.append)
    assert seen[10].step == 1
    monkeypatch.setattr(run_module, "code_fingerprint", lambda: "edited")
    run_training(toy_run(tmp_path, UNIFORM), seen.append)
    assert seen[20].step == 1


def test_settings_that_change_no_result_resume_from_these_checkpoints(tmp_path: Path) -> None:
    seen = list[Progress]()
    _stopped(toy_run(tmp_path, UNIFORM), 8)
    run_training(toy_run(tmp_path, UNIFORM, keep_checkpoints=5, log_every_steps=2, checkpoint_every_steps=4), seen.append)
    assert seen[0].resumed_from == 6


def test_all_objectives_see_the_same_batches_and_keep_their_depth_trace(tmp_path: Path) -> None:
    settings = [
        UNIFORM,
        telescopic("exitgrid"),
        {"kind": "fixed_exits", "distill_weight": 0.3, "backward": "per_exit"},
        {"kind": "twin", "exit": 3},
    ]
    fingerprints = set()
    for objective in settings:
        run = toy_run(tmp_path, objective)
        fingerprints.add(run_training(run, _ignore).stream_fingerprint)
        lines = [json.loads(line) for line in (run.output_dir / "history.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, 11))
        assert all(line["depths"] for line in lines)
        assert json.loads((run.output_dir / "depths.json").read_text()) == [line["depths"] for line in lines]
    assert len(fingerprints) == 1


@pytest.mark.parametrize("asked_at", [1, 4, 6])
def test_a_run_that_is_asked_to_stop_ends_its_step_saves_and_goes_on_from_there(tmp_path: Path, asked_at: int) -> None:
    straight, run, seen = toy_run(tmp_path / "a", UNIFORM), toy_run(tmp_path / "b", UNIFORM), list[Progress]()
    run_training(straight, _ignore)

    def ask(progress: Progress) -> None:
        if progress.step == asked_at:
            (run.run_dir / STOP).touch()

    with pytest.raises(StoppedError, match=f"stopped after step {asked_at} of 10"):
        run_training(run, ask)
    (run.run_dir / STOP).unlink()
    run_training(run, seen.append)
    assert seen[0].resumed_from == asked_at
    assert _files(run) == _files(straight)


def test_a_run_asked_to_stop_in_its_last_step_is_finished(tmp_path: Path) -> None:
    run = toy_run(tmp_path, UNIFORM)
    run_training(run, lambda progress: (run.run_dir / STOP).touch() if progress.step == 10 else None)
    assert (run.output_dir / "model.safetensors").exists()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")])
def test_want_of_memory_names_the_step_and_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def too_large(*args: object) -> dict[str, float]:
        raise error

    monkeypatch.setattr(run_module, "train_step", too_large)
    with pytest.raises(OutOfMemoryError, match=r"step 0: out of memory with runtime\.micro_batch_rows 4 .*lower runtime\.micro"):
        run_training(toy_run(tmp_path, UNIFORM), _ignore)


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight, run, seen = toy_run(tmp_path / "a", UNIFORM), toy_run(tmp_path / "b", UNIFORM), list[Progress]()
    run_training(straight, _ignore)
    _stopped(run, 8)
    for age, path in enumerate(sorted(run.run_dir.glob("*/step-*"))):  # the older the checkpoint, the later its time
        os.utime(path, (4e9 - 1e9 * age, 4e9 - 1e9 * age))
    clock = iter(range(10**9, 0, -(10**6)))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    cost = run_training(run, seen.append)
    assert seen[0].resumed_from == 6
    assert _files(run) == _files(straight)
    assert 0 < cost.seconds < 600


def test_two_processes_never_train_the_same_run_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "runs" / "identity"
    entered = threading.Event()

    def second() -> None:
        with only_writer(folder):
            entered.set()

    with only_writer(folder):
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(0.3)
    thread.join(timeout=10)
    assert entered.is_set()
    assert "another process still trains this run" in caplog.text


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    run = toy_run(tmp_path, UNIFORM)
    run_training(run, _ignore)
    assert sorted(path.name for path in run.run_dir.glob("*/*")) == ["step-10", "step-9"]


def test_a_copy_that_a_user_made_of_a_checkpoint_is_passed_over(tmp_path: Path) -> None:
    run = toy_run(tmp_path, UNIFORM)
    run_training(run, _ignore)
    newest = _newest(run)
    shutil.copytree(newest, newest.with_name("step-10.bak"))
    run_training(run, _ignore)
    assert sorted(path.name for path in run.run_dir.glob("*/*")) == ["step-10", "step-10.bak", "step-9"]


def test_the_finished_model_loads_and_says_where_it_came_from(tmp_path: Path) -> None:
    run = toy_run(tmp_path, UNIFORM)
    cost = run_training(run, _ignore)
    model, card = load_model(run.output_dir)
    saved = load_tensors(_newest(run) / "model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in model.state_dict().items())
    assert (card.arm, card.steps, card.trained_depths) == ("toy", 10, (1, 2, 3, 4, 5))
    assert (card.seed, card.data_fingerprint, card.stream_fingerprint) == (0, "toy-40", cost.stream_fingerprint)
    assert cost.tokens == card.steps * card.tokens_per_step == 10 * 4 * 12
    assert cost.unit == "core-hours"


def test_a_missing_or_damaged_model_is_a_clean_error(tmp_path: Path) -> None:
    run = toy_run(tmp_path, UNIFORM)
    run_training(run, _ignore)
    _truncate(run.output_dir)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged: it does not have its checksum; run `chmod"):
        load_model(run.output_dir)
    (run.output_dir / "model.sha256").unlink()
    with pytest.raises(CheckpointError, match=r"model\.sha256: missing"):
        load_model(run.output_dir)
    with pytest.raises(CheckpointError, match="dvc repro"):
        load_model(tmp_path / "nowhere")
