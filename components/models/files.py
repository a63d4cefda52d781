"""A finished model on disk: `model.safetensors`, its checksum, and `model.json`. Weights are never read from pickles.

`model.json` says everything needed to use the weights: the shape, the vocabulary, and where the model came from. The checksum is
what `sha256sum --check` reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from components.config.problems import CheckpointError
from components.config.schema import Model
from components.models.cascade import Cascade
from components.models.repaired import Repaired
from components.models.streams import build_cascade
from components.results import Record

WEIGHTS, CHECKSUM, CARD = "model.safetensors", "model.sha256", "model.json"
OPTIMIZER = "optimizer.safetensors"  # what a further training goes on from


class Repair(Record):
    """The read-outs that a repaired model has beside the exits of its segments."""

    part: Literal["norm", "affine", "head", "block"]
    depths: tuple[int, ...]


class ModelCard(Record):
    """What a model file says about itself.

    Attributes:
        objective: kind and settings, as in `params.yaml`.
        trained_depths: depths that ever got a loss.
        repair: set for a repaired model.
        steps: optimizer steps of the training run.
        tokens: tokens per step, seq_len included: steps x tokens_per_step were seen.
        data_fingerprint: of the packed training rows; `stream_fingerprint` of the batches consumed, in order.
        tokenizer_hash: of the tokenizer whose ids the model reads.
    """

    version: Literal[1]
    arm: str
    seed: int
    model: Model
    vocab_size: int
    eos_id: int
    objective: dict[str, Any]
    trained_depths: tuple[int, ...]
    repair: Repair | None
    steps: int
    tokens_per_step: int
    seq_len: int
    data_fingerprint: str
    stream_fingerprint: str
    tokenizer_hash: str


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes tensors to a safetensors file, flushed to disk.

    Raises:
        OSError: it cannot be written, as when the disk is full.
    """
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        raise _os_error(error, path) from None
    path.chmod(0o666 & ~_umask())  # safetensors lets nobody else read it
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _umask() -> int:
    """Of this process; it can only be asked for by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _os_error(error: SafetensorError, path: Path) -> Exception:
    """The operating system's error, which safetensors gives in its text only."""
    number = re.search(r"os error (\d+)", str(error))
    return error if number is None else OSError(int(number[1]), os.strerror(int(number[1])), str(path))


def file_sha256(path: Path) -> str:
    """SHA-256 of a file.

    Raises:
        CheckpointError: no such file.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU.

    Raises:
        CheckpointError: no such file, or it is truncated or not safetensors.
    """
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file ({error})") from None
    return tensors


def save_model(model: Cascade, card: ModelCard, folder: Path, weights: Path | None = None) -> None:
    """Writes the model's files aside and renames the folder, so that it is whole whenever it is there.

    Args:
        weights: a file that has the model's weights, to be copied; None: they are the model's tensors.
    """
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    if weights is None:
        save_tensors(model.state_dict(), aside / WEIGHTS)
    else:
        shutil.copyfile(weights, aside / WEIGHTS)
    write_card(card, aside)
    shutil.rmtree(folder, ignore_errors=True)
    aside.replace(folder)


def write_card(card: ModelCard, folder: Path) -> None:
    """Writes the card of a model folder, and the checksum of the weights that are there."""
    (folder / CHECKSUM).write_text(f"{file_sha256(folder / WEIGHTS)}  {WEIGHTS}\n", encoding="utf-8")
    (folder / CARD).write_text(json.dumps(card.model_dump(mode="json"), indent=2) + "\n", encoding="utf-8")


def read_card(folder: Path) -> ModelCard:
    """The card of a model folder.

    Raises:
        CheckpointError: the file is missing or is not such a card.
    """
    path = folder / CARD
    try:
        return ModelCard.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; run `dvc repro` to train the arm") from None
    except ValidationError as error:
        raise CheckpointError(
            f"{path}: not a model card of this version ({error.error_count()} problems); re-train the arm"
        ) from None


def load_model(
    folder: Path, device: torch.device | str = "cpu", dtype: torch.dtype | None = torch.float32
) -> tuple[Cascade, ModelCard]:
    """A finished model, ready to be evaluated.

    Args:
        dtype: of the weights; None leaves that of the file, which an imported checkpoint brings along.

    Raises:
        CheckpointError: a file is missing or damaged, or the weights do not fit the card.
    """
    card = read_card(folder)
    with torch.device("meta"):
        model = (
            build_cascade(card.model, card.vocab_size)
            if card.repair is None
            else Repaired(card.model, card.vocab_size, card.repair.part, card.repair.depths)
        )
    _check(folder / WEIGHTS)
    tensors = load_tensors(folder / WEIGHTS)
    load_weights(model, {**_absent_exits(model, card, tensors), **tensors}, folder / WEIGHTS)
    return model.to(device, dtype).eval(), card


def _check(path: Path) -> None:
    """Compares weights with the checksum beside them. DVC trusts a file of the same time, and a read-only copy of it."""
    found = file_sha256(path)
    try:
        expected = path.with_name(CHECKSUM).read_text(encoding="utf-8").split()[0]
    except (OSError, UnicodeError, IndexError):
        raise CheckpointError(f"{path.with_name(CHECKSUM)}: missing or damaged; run `dvc repro` to train the arm again") from None
    if found != expected:
        file = shlex.quote(str(path))
        raise CheckpointError(
            f"{path}: damaged: it does not have its checksum; run `chmod u+w {file} && touch {file} && dvc repro`"
        )


def _absent_exits(model: Cascade, card: ModelCard, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The read-outs that a twin's file leaves out, as nothing trains them: they give every token the same probability."""
    trained = {model.segment_at(depth) for depth in card.trained_depths}
    absent = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if name.startswith("exits.") and int(name.split(".")[1]) not in trained and name not in tensors
    }
    return {name: torch.ones(tensor.shape) if tensor.ndim == 1 else torch.zeros(tensor.shape) for name, tensor in absent.items()}


def load_weights(model: Cascade, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Puts weights into the model; names and shapes must match exactly.

    Raises:
        CheckpointError: they do not.
    """
    expected = model.state_dict()
    odd = sorted(set(expected) ^ set(tensors)) or sorted(n for n, t in tensors.items() if t.shape != expected[n].shape)
    if odd:
        raise CheckpointError(f"{path}: does not fit the model at {', '.join(odd[:3])}; it belongs to another shape")
    model.load_state_dict(dict(tensors), assign=any(tensor.is_meta for tensor in expected.values()))
