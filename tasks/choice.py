"""What the commands that use trained models share: which arm, seed and depth, checked before torch is imported."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from components.config.loader import find_arm, load_study
from components.config.problems import CheckpointError, ConfigError
from components.config.schema import Arm, Runtime, Study
from tasks.command import add_path

if TYPE_CHECKING:
    from components.models.cascade import Cascade
    from components.models.files import ModelCard


@dataclass(frozen=True)
class ChosenModel:
    """One trained model: its arm, seed and folder."""

    study: Study
    arm: Arm
    seed: int
    folder: Path


def add_arm_arguments(parser: argparse.ArgumentParser) -> None:
    """`--arm`, all of whose models are meant, and where things lie."""
    parser.add_argument("--arm", required=True, help="an arm of the parameter file, e.g. tlm-uniform")
    add_path(parser, "--params", "params.yaml", "parameter file")
    add_path(parser, "--models", "artifacts/models", "folder of the models")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """`--arm` and `--seed`, which of its models is meant, and where things lie."""
    add_arm_arguments(parser)
    parser.add_argument("--seed", type=int, help="which of its models (default: the arm's first seed)")


def choose_model(arguments: argparse.Namespace) -> ChosenModel:
    """The model that the arguments name.

    Raises:
        ConfigError: no such arm, or no such seed of it.
        CheckpointError: it has not been trained yet.
    """
    study = load_study(arguments.params)
    arm = find_arm(study, arguments.arm)
    seeds = arm.training.seeds
    seed = seeds[0] if arguments.seed is None else arguments.seed
    if seed not in seeds:
        raise ConfigError(f"--seed {seed}: {arm.name} is trained with the seeds {', '.join(map(str, seeds))}; choose one of these")
    folder = arguments.models / arm.name / f"seed-{seed}"
    if not (folder / "model.json").is_file():
        raise CheckpointError(f"{folder}: no trained model here; run `dvc repro` first")
    return ChosenModel(study, arm, seed, folder)


def add_streams_argument(parser: argparse.ArgumentParser) -> None:
    """`--streams`."""
    parser.add_argument("--streams", type=int, help="n, Hidden Decoding streams to run (default: as many as the model has)")


def check_streams(streams: int | None, arm: Arm) -> int:
    """The number of streams that was asked for, or the most.

    Raises:
        ConfigError: the model is not trained with so many.
    """
    counts = (1,) if arm.model.streams is None else arm.model.streams.counts
    if streams is not None and streams not in counts:
        trained = " or ".join(map(str, counts))
        raise ConfigError(f"--streams {streams}: {arm.name} is trained with {trained} per token; choose one of these")
    return counts[-1] if streams is None else streams


def load_seeds(arm: Arm, models: Path, runtime: Runtime) -> Iterator[tuple[int, Cascade, ModelCard]]:
    """(seed, model, card) of each of the arm's models, on the device and with the threads of `runtime`.

    Raises:
        CheckpointError: a model is not there or cannot be read.
    """
    import torch

    from components.models.devices import keep_freed_memory, pick_device
    from components.models.files import load_model

    torch.set_num_threads(runtime.threads_per_worker)
    keep_freed_memory()
    device = pick_device(runtime.device)
    for seed in arm.training.seeds:
        yield seed, *load_model(models / arm.name / f"seed-{seed}", device)


def check_option(name: str, depth: int, deepest: int) -> int:
    """The depth that was asked for.

    Raises:
        ConfigError: the model has no such depth.
    """
    if not 1 <= depth <= deepest:
        raise ConfigError(f"{name} {depth}: must be in 1..{deepest}, the number of blocks")
    return depth
