"""One training run: an arm with one seed, from the first step or from where it was stopped.

Runs in any process; with a `torch.distributed` process group it is one worker of several. Killed at any moment and started
again, it ends with the same weights, bit for bit (on a CPU, with the same workers). A file `stop` in its folder asks it to end
the step at hand, save a checkpoint and leave.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

import components
from components.config.problems import CheckpointError, disk_trouble
from components.config.schema import Arm, Runtime
from components.data.stream import BatchStream, PackedRows
from components.models.cascade import Cascade
from components.models.devices import device_name, peak_memory_bytes, pick_device
from components.models.files import OPTIMIZER, WEIGHTS, ModelCard, Repair, file_sha256, save_model, save_tensors
from components.models.repaired import Repaired
from components.objectives.base import Objective, build_objective
from components.results import SeedCost
from components.training.checkpoint import Resume, load_newest, only_writer, save_checkpoint
from components.training.interruption import StoppedError, is_stop_asked, memory_trouble
from components.training.optimizer import load_optimizer_tensors, optimizer_tensors
from components.training.sharding import is_sharded, shard_model
from components.training.step import TrainState, train_step
from components.training.step_report import read_all
from components.training.workers import is_same_everywhere, rank_and_workers, wait_for_all

CODE_OF_A_RUN = (
    "config/expansions.py",
    "config/experts.py",
    "config/model.py",
    "config/schema.py",
    "config/streams.py",
    "data/manifest.py",
    "data/stream.py",
    "models",
    "objectives",
    "training",
)
HISTORY, TRACE = "history.jsonl", "depths.json"
UNITLESS = ("grad_norm", "expert_load")


@dataclass(frozen=True)
class TrainingRun:
    """What to train and where its files are; `base_dir` holds the trained model an arm with a `base` starts from."""

    arm: Arm
    seed: int
    data_dir: Path
    run_dir: Path
    output_dir: Path
    base_dir: Path | None
    runtime: Runtime
    stream_seed: int


@dataclass(frozen=True)
class Progress:
    """A sign of life: steps done of all, the latest loss, the speed, and the step this session started from."""

    step: int
    steps: int
    loss_nats: float
    tokens_per_second: float
    resumed_from: int


def run_training(run: TrainingRun, on_progress: Callable[[Progress], None]) -> SeedCost:
    """Trains the run to its end, writes the model to `output_dir` and returns what it cost.

    A finished run only writes its model again.

    Raises:
        CheckpointError: the workers do not see the same checkpoints.
        DataError: the packed data cannot be used.
        NonFiniteLossError: the run diverged; its last checkpoint is kept.
        OutOfMemoryError: a step needs more memory than there is.
        StorageError: the disk is full; the last checkpoint is kept.
        StoppedError: the file `stop` asked for it; everything up to this step is saved.
    """
    device = pick_device(run.runtime.device)
    rows = PackedRows.open(run.data_dir / "train")
    training = run.arm.training
    stream = BatchStream(rows, run.stream_seed, training.batch_rows)
    objective = build_objective(run.arm, rows.vocab_size, run.seed)
    state = TrainState.fresh(_start_model(run, objective, device), training)
    load_optimizer_tensors(state.model, state.optimizer, objective.moments(run.base_dir))
    folder = run.run_dir / identity(run, rows)
    is_first = rank_and_workers()[0] == 0
    with only_writer(folder) if is_first else contextlib.nullcontext():
        wait_for_all()  # nobody reads a checkpoint before the folder is ours
        resume = load_newest(state, folder) or Resume(0, 0.0, 0, "", [])
        if not is_same_everywhere(resume.step, device):
            raise CheckpointError(
                f"{folder}: workers found different newest checkpoints (this one: step {resume.step}); all of them must see the "
                "same files. Put runs/ on storage that the machines share, and start again"
            )
        with memory_trouble(state, run.runtime.micro_batch_rows):
            resume = _train(run, state, stream, objective, folder, resume, on_progress)
        if is_first:
            with disk_trouble(run.output_dir, f"the checkpoint of step {resume.step} is kept"):
                _write_output(run, state, rows, objective, resume, folder)
        wait_for_all()
    return _cost(run, rows, objective, resume, device)


def _start_model(run: TrainingRun, objective: Objective, device: torch.device) -> Cascade:
    """The model with the weights of step 0, on the device; a sharded one is never whole there."""
    if run.runtime.sharding == "fsdp" and rank_and_workers()[1] > 1:
        with torch.device("meta"):
            model = objective.new_model()
        shard_model(model, device, run.arm.training.precision)
        objective.start(model, run.base_dir)
        return model
    model = objective.new_model()
    objective.start(model, run.base_dir)
    if run.runtime.compile:
        from components.training.compiled import compile_blocks  # only here: its imports take a second

        compile_blocks(model)
    return model.to(device)


def _train(
    run: TrainingRun,
    state: TrainState,
    stream: BatchStream,
    objective: Objective,
    folder: Path,
    resume: Resume,
    on_progress: Callable[[Progress], None],
) -> Resume:
    training, runtime = run.arm.training, run.runtime
    rank, workers = rank_and_workers()
    first = run.arm.first_step
    begun, begun_at = resume.step, time.perf_counter()
    saved_at, history = begun_at, list(resume.history)
    unread: list[Mapping[str, float]] = []  # a GPU computes them while the next steps are queued
    device = next(state.model.parameters()).device
    while state.step < training.steps:
        batch = stream.batch(first + state.step, rank, workers)
        losses = train_step(state, batch, objective, training, runtime.micro_batch_rows, stream.rows.eos_id)
        unread.append(losses)
        last = state.step == training.steps
        if state.step % runtime.log_every_steps == 0 or last:
            read_all(unread)
            unread.clear()
            history.append(history_line(state, objective, losses))
            speed = (state.step - begun) * training.batch_rows * stream.rows.seq_len / (time.perf_counter() - begun_at)
            on_progress(Progress(state.step, training.steps, losses["loss"], speed, begun))
        stops = is_stop_asked(run.run_dir)
        if state.step % runtime.checkpoint_every_steps == 0 or last or stops:
            read_all(unread)  # never keeps a step that was not finite
            known = (first + resume.step, resume.stream_fingerprint) if resume.step else (0, "")
            resume = Resume(
                step=state.step,
                seconds=resume.seconds + time.perf_counter() - saved_at,
                peak_memory_bytes=max(resume.peak_memory_bytes, peak_memory_bytes(device)),
                stream_fingerprint=stream.fingerprint(first + state.step, known),
                history=list(history),
            )
            saved_at = time.perf_counter()
            if rank == 0 or is_sharded(state.model):
                save_checkpoint(state, resume, folder, runtime.keep_checkpoints)
            wait_for_all()
        if stops and not last:
            raise StoppedError(f"stopped after step {state.step} of {training.steps}, as asked; its checkpoint is saved")
    return resume


def history_line(state: TrainState, objective: Objective, losses: Mapping[str, float]) -> dict[str, object]:
    """One line of the training history: the step just done, its losses (nats per token), learning rate, sampled depths, streams."""
    done = state.step - 1
    named = {name if name in UNITLESS else f"{name}_nats": value for name, value in losses.items()}
    lr = state.optimizer.param_groups[0]["lr"]
    sampled = {"depths": list(objective.depths_at(done)), "n_streams": objective.streams_at(done)}
    return {"step": state.step, **named, "lr": lr, **sampled}


def identity(run: TrainingRun, rows: PackedRows) -> str:
    """Names everything that determines the trained weights: arm, seed, data, and the code that trains."""
    settings = {
        "model": run.arm.model.model_dump(mode="json"),
        "training": {**run.arm.training.model_dump(mode="json"), "seeds": None},
        "objective": run.arm.objective.model_dump(mode="json"),
        "seed": run.seed,
        "stream_seed": run.stream_seed,
        "first_step": run.arm.first_step,
        "data": rows.fingerprint,
        "base": None if run.base_dir is None else file_sha256(run.base_dir / WEIGHTS),
        "code": code_fingerprint(),
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def code_fingerprint() -> str:
    """Hash of the source files that determine the weights: the same ones `dvc.yaml` lists for the stage."""
    root = Path(components.__file__).parent
    digest = hashlib.sha256()
    for part in CODE_OF_A_RUN:
        path = root / part
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return digest.hexdigest()


def _write_output(
    run: TrainingRun, state: TrainState, rows: PackedRows, objective: Objective, resume: Resume, folder: Path
) -> None:
    card = ModelCard(
        version=1,
        arm=run.arm.name,
        seed=run.seed,
        model=run.arm.model,
        vocab_size=rows.vocab_size,
        eos_id=rows.eos_id,
        objective=run.arm.objective.model_dump(mode="json"),
        trained_depths=run.arm.objective.trained_depths(run.arm.model),
        repair=Repair(part=state.model.part, depths=tuple(map(int, state.model.repairs)))
        if isinstance(state.model, Repaired)
        else None,
        steps=resume.step,
        tokens_per_step=run.arm.training.batch_rows * rows.seq_len,
        seq_len=rows.seq_len,
        data_fingerprint=rows.fingerprint,
        stream_fingerprint=resume.stream_fingerprint,
        tokenizer_hash=rows.header.tokenizer_hash,
    )
    if is_sharded(state.model):  # this worker has a part of it only, and the last checkpoint has it whole
        saved = folder / f"step-{resume.step}"
        save_model(state.model, card, run.output_dir, saved / WEIGHTS)
        shutil.copyfile(saved / OPTIMIZER, run.output_dir / OPTIMIZER)
    else:
        save_model(state.model, card, run.output_dir)
        save_tensors(optimizer_tensors(state.model, state.optimizer), run.output_dir / OPTIMIZER)
    lines = "".join(json.dumps(line) + "\n" for line in resume.history)
    (run.output_dir / HISTORY).write_text(lines, encoding="utf-8")
    trace = [list(objective.depths_at(step)) for step in range(resume.step)]
    (run.output_dir / TRACE).write_text(json.dumps(trace) + "\n", encoding="utf-8")


def _cost(run: TrainingRun, rows: PackedRows, objective: Objective, resume: Resume, device: torch.device) -> SeedCost:
    training, workers = run.arm.training, rank_and_workers()[1]
    on_gpu = device.type == "cuda"
    devices = workers if on_gpu else workers * run.runtime.threads_per_worker
    tokens_per_step = training.batch_rows * rows.seq_len
    per_token = sum(objective.step_flops(step, rows.seq_len) for step in range(training.steps))
    return SeedCost(
        seed=run.seed,
        seconds=resume.seconds,
        devices=devices,
        device=device_name(device),
        device_hours=resume.seconds * devices / 3600,
        unit="GPU-hours" if on_gpu else "core-hours",
        steps=training.steps,
        tokens=training.steps * tokens_per_step,
        tokens_per_second=training.steps * tokens_per_step / max(resume.seconds, 1e-9),
        flops=per_token * tokens_per_step,
        peak_memory_bytes=resume.peak_memory_bytes,
        stream_fingerprint=resume.stream_fingerprint,
    )
