"""Writes one depth of a trained cascade as a model that `transformers` loads.

A prefix that lies in one segment has one width and is an ordinary Llama, or a Qwen3 when queries and keys have norms. With a
junction or experts it comes with its own modelling file (`modeling_telescopic.py`), which `trust_remote_code=True` loads; with
Hidden Decoding streams, those that the model runs, with one more (`export_streams.py`). Either way the folder stands alone: every
tensor it needs, each with storage of its own, the tokenizer, and a card with the numbers measured for that depth.

This file is here and not beside the model files because it decides no trained number: an edit of it must not retrain anything.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from components.config.experts import Experts
from components.config.schema import Segment
from components.data.folders import replaced_folder
from components.data.tokenizer import TOKENIZER_FILE, Tokenizer
from components.huggingface.config import CONFIG_FILE, config_of
from components.huggingface.weights import split_weights
from components.inference.export_folder import check_out
from components.inference.export_streams import MODELING as STREAMS_MODELING
from components.inference.export_streams import stream_config, stream_weights
from components.models.blocks import Block, RMSNorm, rotary_frequencies
from components.models.cascade import Cascade, Exit, TiedHead
from components.models.feed_forward import SwiGLU
from components.models.files import WEIGHTS, ModelCard, save_tensors
from components.models.repaired import Repaired
from components.models.streams import StreamedCascade

MODELING = "modeling_telescopic.py"


@dataclass(frozen=True)
class _Prefix:
    """What depth k consists of, its repair included.

    Attributes:
        blocks: the first k, and a repair block if that reads it out.
        segments: of these blocks.
        affine: an affine map before the norm; None without.
    """

    embeddings: list[nn.Embedding]
    blocks: list[Block]
    segments: list[Segment]
    norm: RMSNorm
    head: nn.Linear | TiedHead
    affine: nn.Linear | None


def export_prefix(model: Cascade, card: ModelCard, depth: int, tokenizer: Tokenizer, readme: str, out: Path) -> str:
    """Writes F_depth to the folder `out`, which appears whole or not at all.

    Args:
        readme: text of the folder's README.md.

    Returns:
        Name of the class that loads it.

    Raises:
        ConfigError: the folder cannot be written, or has something in it.
        ValueError: `depth` outside 1..N.
    """
    prefix = _prefix(model, depth)
    out = out.resolve()
    check_out(out)
    with replaced_folder(out, CONFIG_FILE) as aside:
        kind = _write(model, card, depth, prefix, tokenizer, readme, aside)
        check_out(out)  # again: nothing that came meanwhile is replaced, not even a model
        return kind


def _is_dense(model: Cascade, prefix: _Prefix) -> bool:
    """Whether an architecture of `transformers` computes this; its Llama wants heads that divide the width."""
    shape = prefix.blocks[0].attention.shape
    has_even_heads = shape.qk_norm or shape.d_model % shape.n_heads == 0
    is_ordinary = prefix.affine is None and model.settings.experts is None and not isinstance(model, StreamedCascade)
    return len(prefix.segments) == 1 and is_ordinary and has_even_heads


def _write(model: Cascade, card: ModelCard, depth: int, prefix: _Prefix, tokenizer: Tokenizer, readme: str, aside: Path) -> str:
    """Writes every file to the folder `aside`, and returns the name of the class."""
    has_streams, is_dense = isinstance(model, StreamedCascade), _is_dense(model, prefix)
    weights, config = _as_dense(model, prefix, card.seq_len) if is_dense else _as_cascade(model, prefix)
    if isinstance(model, StreamedCascade):
        weights |= stream_weights(model, len(prefix.segments))
        config |= stream_config(model, depth)
    save_tensors({name: tensor.detach().clone() for name, tensor in weights.items()}, aside / WEIGHTS)
    ids = {"bos_token_id": card.eos_id, "eos_token_id": card.eos_id, "pad_token_id": card.eos_id}
    dtype = str(prefix.head.weight.dtype).removeprefix("torch.")
    shared = {"vocab_size": model.vocab_size, "max_position_embeddings": card.seq_len, "dtype": dtype, "tie_word_embeddings": False}
    _write_json(aside / CONFIG_FILE, {**shared, **config, **ids})
    _write_json(aside / "generation_config.json", {**ids, "do_sample": False})
    tokenizer.raw.save(str(aside / TOKENIZER_FILE))
    _write_json(aside / "tokenizer_config.json", _tokenizer_config(tokenizer, card.seq_len))
    for name in () if is_dense else (MODELING, STREAMS_MODELING) if has_streams else (MODELING,):
        shutil.copyfile(Path(__file__).with_name(name), aside / name)
    (aside / "README.md").write_text(readme, encoding="utf-8")
    return str(config["architectures"][0])


def _prefix(model: Cascade, depth: int) -> _Prefix:
    own, out = None, model.exit_at(depth)
    if isinstance(model, Repaired) and str(depth) in model.repairs:
        own = model.repairs[str(depth)]
    blocks = [block for block in list(model.blocks)[:depth] if isinstance(block, Block)]
    segments = list(model.settings.prefix(depth).segments)
    if isinstance(own, Block):
        blocks.append(own)
        segments[-1] = segments[-1].model_copy(update={"n_blocks": segments[-1].n_blocks + 1})
    return _Prefix(
        embeddings=[table for table in list(model.embeddings)[: len(segments)] if isinstance(table, nn.Embedding)],
        blocks=blocks,
        segments=segments,
        norm=own if isinstance(own, RMSNorm) else own.norm if isinstance(own, Exit) else out.norm,
        head=own.head if isinstance(own, Exit) else out.head,
        affine=own if isinstance(own, nn.Linear) else None,
    )


def _as_dense(model: Cascade, prefix: _Prefix, max_tokens: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    is_tied = isinstance(prefix.head, TiedHead)
    settings = model.settings.model_copy(update={"segments": tuple(prefix.segments), "tied_embeddings": is_tied})
    weights = {"embeddings.0.weight": prefix.embeddings[0].weight, "exits.0.norm.weight": prefix.norm.weight}
    if not is_tied:
        weights["exits.0.head.weight"] = prefix.head.weight
    for i, block in enumerate(prefix.blocks):
        weights |= {f"blocks.{i}.{name}": weight for name, weight in block.named_parameters()}
    dtype = str(prefix.head.weight.dtype).removeprefix("torch.")
    return split_weights(weights, settings), config_of(settings, model.vocab_size, max_tokens, dtype)


def _as_cascade(model: Cascade, prefix: _Prefix) -> tuple[dict[str, Tensor], dict[str, Any]]:
    settings = model.settings.model_copy(update={"segments": tuple(prefix.segments)})
    shapes = [settings.blocks[depth - 1] for depth in settings.exits]
    rope = {}
    if settings.rope_scaling is not None:
        rope["rope_frequencies"] = rotary_frequencies(settings.head_dim, settings.rope_theta, settings.rope_scaling).tolist()
    weights = {f"embeddings.{i}.weight": table.weight for i, table in enumerate(prefix.embeddings)}
    for i, block in enumerate(prefix.blocks):
        weights |= {f"blocks.{i}.{name}": weight for name, weight in (*block.named_parameters(), *block.named_buffers())}
    weights |= {"norm.weight": prefix.norm.weight, "head.weight": prefix.head.weight}
    if prefix.affine is not None:
        weights |= {"affine.weight": prefix.affine.weight, "affine.bias": prefix.affine.bias}
    config = {
        "architectures": ["TelescopicForCausalLM"],
        "model_type": "telescopic-cascade",
        "auto_map": {
            "AutoConfig": f"{Path(MODELING).stem}.TelescopicConfig",
            "AutoModelForCausalLM": f"{Path(MODELING).stem}.TelescopicForCausalLM",
        },
        "segments": [[segment.n_blocks, segment.d_model] for segment in prefix.segments],
        "heads": [[shape.n_heads, shape.n_kv_heads] for shape in shapes],
        "inner_widths": [shape.d_inner for shape in shapes],
        "head_dim": settings.head_dim,
        "qk_norm": settings.qk_norm,
        "junction_norm": settings.junction_norm,
        "affine_read_out": prefix.affine is not None,
        "rope_theta": settings.rope_theta,
        "norm_eps": settings.norm_eps,
        **rope,
    }
    if settings.experts is not None:
        config |= _expert_config(settings.experts, is_dense_last=isinstance(prefix.blocks[-1].ffn, SwiGLU))
    return weights, config


def _expert_config(experts: Experts, is_dense_last: bool) -> dict[str, Any]:
    named = {key: getattr(experts, key) for key in ("n_experts", "top_k", "d_inner", "n_shared", "gate")}
    return {"experts": {**named, "has_bias": experts.balance == "bias"}, "dense_last": is_dense_last}


def _tokenizer_config(tokenizer: Tokenizer, seq_len: int) -> dict[str, Any]:
    eos = tokenizer.eos_token
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": eos,
        "eos_token": eos,
        "pad_token": eos,
        "model_max_length": seq_len,
        "clean_up_tokenization_spaces": False,
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
