"""Files of weights that are refused, each with what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from components.config.model import Model
from components.config.problems import CheckpointError
from components.huggingface.config import read_config
from components.huggingface.weights import read_weights, split_weights
from components.models.cascade import Cascade
from tests.unit.huggingface.test_config import LLAMA


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[Path, Model]:
    """A checkpoint in one file, made from a cascade, and its shape."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    shape = read_config(tmp_path)
    model = Cascade(shape.model, shape.vocab_size)
    model.init_weights(0)
    save_file(split_weights(model.state_dict(), shape.model), tmp_path / "model.safetensors")
    return tmp_path, shape.model


def _change(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def _shard(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in files.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_are_read_as_one_file_is(checkpoint: tuple[Path, Model]) -> None:
    folder, model = checkpoint
    whole = dict(read_weights(folder, model))
    _shard(folder)
    sharded = dict(read_weights(folder, model))
    assert sharded.keys() == whole.keys()
    assert all(torch.equal(sharded[name], whole[name]) for name in whole)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), "pickled weights"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x08" * 30), "not a whole safetensors file"),
        (lambda folder: _change(folder, lambda t: t.pop("model.norm.weight")), "lacks model.norm.weight"),
        (lambda folder: _change(folder, lambda t: t.update({"model.layers.0.mlp.up_proj.bias": torch.ones(40)})), "no place"),
        (lambda folder: _change(folder, lambda t: t.update({"lm_head.weight": torch.ones(48, 16).char()})), "quantized"),
        (lambda folder: (_shard(folder), (folder / "b.safetensors").unlink()), "b.safetensors: no such file"),
        (lambda folder: (_shard(folder), (folder / "b.safetensors").write_bytes(b"")), "cannot be read"),
        (lambda folder: (_shard(folder), (folder / "model.safetensors.index.json").write_text("{}")), "not an index"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(checkpoint: tuple[Path, Model], damage: Callable[[Path], object], says: str) -> None:
    folder, model = checkpoint
    damage(folder)
    with pytest.raises(CheckpointError, match=says):
        dict(read_weights(folder, model))


def test_rotary_buffers_of_old_files_are_passed_over(checkpoint: tuple[Path, Model]) -> None:
    folder, model = checkpoint
    _change(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}))
    assert len(dict(read_weights(folder, model))) == 2 * 6 + 3


def test_a_head_beside_the_table_it_is_tied_to_must_be_the_same(checkpoint: tuple[Path, Model]) -> None:
    folder, model = checkpoint
    tied = model.model_copy(update={"tied_embeddings": True})
    with pytest.raises(CheckpointError, match="tie_word_embeddings"):
        dict(read_weights(folder, tied))
    _change(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    assert "exits.0.head.weight" not in dict(read_weights(folder, tied))
