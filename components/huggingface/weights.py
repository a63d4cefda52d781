"""The tensors of a Llama or Qwen3 checkpoint under this project's names, and back.

q, k and v are one matrix here, and so are gate and up; all else only has another name. Files are read one tensor at a time, so that
the peak of memory is the model itself. Pickled weights are never opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from components.config.model import Model
from components.config.problems import CheckpointError
from components.huggingface.checkpoint import INDEX, SINGLE, read_index

HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"


def tensor_parts(model: Model) -> dict[str, dict[str, int]]:
    """Of every tensor of the model: the checkpoint's tensors that it is made of, in order, and the rows of each."""
    parts: dict[str, dict[str, int]] = {"embeddings.0.weight": {TABLE: -1}, "exits.0.norm.weight": {"model.norm.weight": -1}}
    if not model.tied_embeddings:
        parts["exits.0.head.weight"] = {HEAD: -1}
    for i, shape in enumerate(model.blocks):
        ours, theirs = f"blocks.{i}", f"model.layers.{i}"
        attention, ffn = f"{theirs}.self_attn", f"{theirs}.mlp"
        parts |= {
            f"{ours}.attention.qkv.weight": {
                f"{attention}.q_proj.weight": shape.d_queries,
                f"{attention}.k_proj.weight": shape.d_keys,
                f"{attention}.v_proj.weight": shape.d_keys,
            },
            f"{ours}.ffn.gate_up.weight": {f"{ffn}.gate_proj.weight": shape.d_inner, f"{ffn}.up_proj.weight": shape.d_inner},
            f"{ours}.attention.out.weight": {f"{attention}.o_proj.weight": -1},
            f"{ours}.ffn.down.weight": {f"{ffn}.down_proj.weight": -1},
            f"{ours}.attention_norm.weight": {f"{theirs}.input_layernorm.weight": -1},
            f"{ours}.ffn_norm.weight": {f"{theirs}.post_attention_layernorm.weight": -1},
        }
        if shape.qk_norm:
            parts |= {f"{ours}.attention.{name}.weight": {f"{attention}.{name}.weight": -1} for name in ("q_norm", "k_norm")}
    return parts


def read_weights(folder: Path, model: Model) -> Iterator[tuple[str, Tensor]]:
    """The model's tensors by name, one at a time, in the dtype of the file.

    Raises:
        CheckpointError: pickled weights, a shard or tensor that is missing, damaged, of integers, or too many.
    """
    where = _files(folder)
    parts = tensor_parts(model)
    wanted = {name for sources in parts.values() for name in sources}
    odd = sorted(name for name in where if name not in wanted and name != HEAD and not name.endswith("rotary_emb.inv_freq"))
    missing = sorted(wanted - set(where))
    if odd or missing:
        said = f"lacks {', '.join(missing[:3])}" if missing else f"has {', '.join(odd[:3])}, which config.json gives no place"
        raise CheckpointError(f"{folder}: {said}; the weights do not belong to this config.json")
    reader = _Reader(where)
    for name, sources in parts.items():
        tensors = [reader.tensor(source) for source in sources]
        yield name, tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    if model.tied_embeddings and HEAD in where and not torch.equal(reader.tensor(HEAD), reader.tensor(TABLE)):
        raise CheckpointError(
            f"{folder}: config.json ties the head to the embedding table, but the file has another head; set "
            "tie_word_embeddings to false"
        )


def split_weights(weights: Mapping[str, Tensor], model: Model) -> dict[str, Tensor]:
    """The model's tensors under the checkpoint's names, each with storage of its own."""
    split: dict[str, Tensor] = {}
    for name, sources in tensor_parts(model).items():
        if len(sources) == 1:
            split[next(iter(sources))] = weights[name].detach().clone()
        else:
            pieces = torch.split(weights[name].detach(), list(sources.values()))
            split |= {source: piece.clone() for source, piece in zip(sources, pieces, strict=True)}
    return split


class _Reader:
    """Tensors out of several files; the file last read stays open."""

    def __init__(self, where: Mapping[str, Path]) -> None:
        self._where = where
        self._path: Path | None = None

    def tensor(self, name: str) -> Tensor:
        path = self._where[name]
        try:
            if path != self._path:
                self._file, self._path = safe_open(path, "pt"), path
            tensor: Tensor = self._file.get_tensor(name)  # type: ignore[no-untyped-call]
        except FileNotFoundError:
            raise CheckpointError(f"{path}: no such file, but the index names it; fetch the checkpoint again") from None
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: {name} cannot be read ({error}); fetch the checkpoint again") from None
        if not tensor.dtype.is_floating_point or tensor.element_size() < 2:
            raise CheckpointError(f"{path}: {name} is {tensor.dtype}: quantized; choose the checkpoint in bfloat16 or float32")
        return tensor


def _files(folder: Path) -> dict[str, Path]:
    """The file that each tensor is in."""
    single, index = folder / SINGLE, folder / INDEX
    if index.exists():
        return {name: folder / file for name, file in read_index(index).items()}
    if not single.exists():
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        said = f"only pickled weights ({pickled[0]}), which run code when they are read" if pickled else "no weights"
        raise CheckpointError(f"{folder}: {said}; needs {SINGLE} or {INDEX}, convert with `safetensors` or choose another revision")
    try:
        with safe_open(single, "pt") as file:
            return dict.fromkeys(file.keys(), single)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{single}: not a whole safetensors file ({error}); fetch the checkpoint again") from None
