"""Stage `import`: a pretrained checkpoint becomes a model like any other, which can be evaluated, served and gone on from."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import torch

from components.config.problems import Problem, config_error
from components.config.schema import Arm
from components.data.folders import replaced_folder
from components.data.tokenizer import TOKENIZER_FILE, Tokenizer, read_tokenizer
from components.huggingface.checkpoint import find_checkpoint
from components.huggingface.config import CheckpointShape, model_differences, read_config
from components.huggingface.weights import read_weights
from components.models.cascade import Cascade
from components.models.files import CARD, WEIGHTS, ModelCard, load_weights, save_model, write_card


def import_backbone(arm: Arm, path: str, tokenizer: Tokenizer, seq_len: int, out: Path) -> None:
    """Writes the checkpoint as a model of this project, once for each seed (the files are shared).

    Args:
        path: folder or hub id.
        tokenizer: the study's.
        seq_len: tokens of the study's rows.
        out: folder of the arm's models.

    Raises:
        CheckpointError, DataError: the checkpoint cannot be found or read, or is not one that the blocks of this project compute.
        ConfigError: the arm's shape, the tokenizer or the length of the rows is not the checkpoint's.
    """
    folder = find_checkpoint(path, f"backbones.{arm.name}.path")
    shape = read_config(folder)
    check_fits(arm, shape, folder, tokenizer, seq_len)
    with torch.device("meta"):
        model = Cascade(arm.model, shape.vocab_size)
    load_weights(model, dict(read_weights(folder, arm.model)), folder)
    first, *others = arm.training.seeds
    save_model(model, _card(arm, first, shape, tokenizer), out / f"seed-{first}")
    for seed in others:
        _copy(out / f"seed-{first}", _card(arm, seed, shape, tokenizer), out / f"seed-{seed}")


def check_fits(arm: Arm, shape: CheckpointShape, folder: Path, tokenizer: Tokenizer, seq_len: int) -> None:
    """Whether the parameter file says of the checkpoint what is true.

    Raises:
        ConfigError: it does not; every difference is named.
    """
    problems = model_differences(arm.model, shape.model)
    problems = [replace(problem, key=f"backbones.{arm.name}.model.{problem.key}") for problem in problems]
    if tokenizer.vocab_size != shape.vocab_size:
        rule = f"must have the {shape.vocab_size} ids of the checkpoint's table"
        remedy = "use the checkpoint's tokenizer, and data.tokenizer.padding when the table has spare rows"
        problems.append(Problem("data.tokenizer.vocab_size", tokenizer.vocab_size, rule, remedy))
    own = folder / TOKENIZER_FILE
    if own.exists() and Tokenizer(read_tokenizer(own), tokenizer.eos_token, str(own), tokenizer.padding).hash != tokenizer.hash:
        problems.append(Problem("data.tokenizer", None, f"must be the checkpoint's own, {own}", f"set its path to {folder}"))
    if seq_len > shape.max_tokens:
        problems.append(Problem("data.seq_len", seq_len, f"must be at most {shape.max_tokens}, the checkpoint's", "lower it"))
    if problems:
        raise config_error(f"{folder} is not what params.yaml says", problems)


def _card(arm: Arm, seed: int, shape: CheckpointShape, tokenizer: Tokenizer) -> ModelCard:
    return ModelCard(
        version=1,
        arm=arm.name,
        seed=seed,
        model=arm.model,
        vocab_size=shape.vocab_size,
        eos_id=tokenizer.eos_id,
        objective=arm.objective.model_dump(mode="json"),
        trained_depths=arm.objective.trained_depths(arm.model),
        repair=None,
        steps=0,
        tokens_per_step=0,
        seq_len=shape.max_tokens,
        data_fingerprint="",
        stream_fingerprint="",
        tokenizer_hash=tokenizer.hash,
    )


def _copy(first: Path, card: ModelCard, target: Path) -> None:
    """The same weights under another seed, as a second name of the file where the disk allows that."""
    with replaced_folder(target, CARD) as aside:
        try:
            os.link(first / WEIGHTS, aside / WEIGHTS)
        except OSError:
            shutil.copyfile(first / WEIGHTS, aside / WEIGHTS)
        write_card(card, aside)
