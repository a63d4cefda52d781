"""`config.json` of a Llama or Qwen3 checkpoint, as the shape of a cascade of one segment, and back. No torch in here.

What the blocks of this project cannot do (biases, sliding windows, other rotary scalings, quantized weights) is refused by name:
a checkpoint that is read gives the logits that `transformers` gives. Keys that change no number are passed over.

Easy to miss: of the rotary scaling there are two spellings, `rope_parameters` (transformers 5) and `rope_scaling` with a separate
`rope_theta`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from components.config.model import LinearRope, Llama3Rope, Model, Segment
from components.config.problems import CheckpointError, Problem
from components.config.validation import validate

CONFIG_FILE = "config.json"
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "rms_norm_eps",
    "max_position_embeddings",
)
COUNTS = (*(key for key in REQUIRED if key != "rms_norm_eps"), "num_key_value_heads", "head_dim")
# What must stand there, if the key does, for the blocks of this project to compute the same.
FIXED: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "attention_dropout": (0, 0.0),
    "use_sliding_window": (False,),
    "pretraining_tp": (1,),
    "partial_rotary_factor": (1, 1.0),
    "quantization_config": (None,),
}
LLAMA3_KEYS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
# Where `config.json` has what the section `model` calls otherwise.
THEIR_KEYS = {
    "segments.0.n_blocks": "num_hidden_layers",
    "segments.0.d_model": "hidden_size",
    "segments.0.n_heads": "num_attention_heads",
    "segments.0.n_kv_heads": "num_key_value_heads",
    "segments.0.d_inner": "intermediate_size",
    "tied_embeddings": "tie_word_embeddings",
    "norm_eps": "rms_norm_eps",
    "init_std": "initializer_range",
    "rope_scaling.original_context": "rope_parameters.original_max_position_embeddings",
}


@dataclass(frozen=True)
class CheckpointShape:
    """What `config.json` says.

    Attributes:
        model: shape of the blocks; `init_std`, `junction_norm` and `document_attention` are not the checkpoint's affair.
        max_tokens: longest sequence it is made for.
    """

    model: Model
    vocab_size: int
    max_tokens: int


def read_config(folder: Path) -> CheckpointShape:
    """The shape of the checkpoint in a folder.

    Raises:
        CheckpointError: no `config.json`, or one that this project's blocks cannot follow; the message lists every problem.
    """
    path = folder / CONFIG_FILE
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; give the folder of a Hugging Face checkpoint") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON ({error}); fetch the checkpoint again") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); fetch the checkpoint again") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: must be a mapping; fetch the checkpoint again")
    problems = _problems(raw)
    model = None if problems else _model(raw, problems)
    if model is None:
        raise CheckpointError("\n".join(f"{path}: {problem}" for problem in problems))
    return CheckpointShape(model, raw["vocab_size"], raw["max_position_embeddings"])


def _problems(raw: Mapping[str, Any]) -> list[Problem]:
    """What keeps a `config.json` from being read as a shape at all."""
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        rule = f"must be one of {', '.join(ARCHITECTURES)}"
        return [Problem("model_type", kind, rule, "only Llama-style (SmolLM2 is one) and Qwen3 dense models are imported")]
    problems = [
        Problem(key, None, "missing key", "add it; the model's other files or its paper say what it is")
        for key in REQUIRED
        if key not in raw
    ]
    for key in COUNTS:
        value = raw.get(key, 1)
        if not (type(value) is int and value >= 1) and not (value is None and key not in REQUIRED):
            problems.append(Problem(key, value, "must be a whole number of at least 1", "fetch the checkpoint again"))
    for key, allowed in FIXED.items():
        if key in raw and raw[key] is not None and raw[key] not in allowed:
            problems.append(
                Problem(key, raw[key], f"must be {allowed[0]!r}", "choose another checkpoint: this one computes otherwise")
            )
    layers = raw.get("layer_types") or []
    if not isinstance(layers, list) or any(layer != "full_attention" for layer in layers):
        problems.append(Problem("layer_types", layers, "must be full_attention in every layer", "choose another checkpoint"))
    return problems + _rope_problems(raw)


def _rope_problems(raw: Mapping[str, Any]) -> list[Problem]:
    found = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(found, dict) or any(isinstance(value, dict) for value in found.values()):
        remedy = "choose a checkpoint with the same rotary positions in every layer"
        return [Problem("rope_parameters", found, "must be one mapping of keys to values", remedy)]
    rope = _rope(raw)
    needed = {"default": (), "linear": ("factor",), "llama3": LLAMA3_KEYS}
    if str(rope["rope_type"]) not in needed:
        remedy = "choose a checkpoint, or a context length, without it"
        return [Problem("rope_parameters.rope_type", rope["rope_type"], "must be default, linear or llama3", remedy)]
    missing = [key for key in needed[rope["rope_type"]] if key not in rope]
    return [Problem(f"rope_parameters.{key}", None, "missing key", "see transformers' rope") for key in missing]


def model_differences(declared: Model, found: Model) -> list[Problem]:
    """Where the shape that the parameter file declares is not that of the checkpoint."""
    stated, actual = _comparable(declared), _comparable(found)
    return [
        Problem(
            key, stated[key], f"the checkpoint has {actual[key]!r}", f"write {'null' if actual[key] is None else repr(actual[key])}"
        )
        for key in stated
        if stated[key] != actual[key]
    ]


def model_yaml(shape: CheckpointShape) -> str:
    """The keys of the section `model` that the checkpoint decides, as YAML."""
    model, (segment,) = shape.model, shape.model.segments
    sizes = ", ".join(f"{key}: {getattr(segment, key)}" for key in Segment.model_fields)
    lines = [f"segments: [{{{sizes}}}]", f"head_dim: {model.head_dim}"]
    lines += [f"{key}: true" for key in ("qk_norm", "tied_embeddings") if getattr(model, key)]
    lines += [f"rope_theta: {model.rope_theta!r}", f"norm_eps: {model.norm_eps!r}"]
    if model.rope_scaling is not None:
        scaling = ", ".join(f"{key}: {value}" for key, value in model.rope_scaling.model_dump().items())
        lines.append(f"rope_scaling: {{{scaling}}}")
    return "\n".join(lines)


def config_of(model: Model, vocab_size: int, max_tokens: int, dtype: str) -> dict[str, Any]:
    """The `config.json`, but for ids of special tokens, of a model of one segment without streams."""
    shape, kind = model.blocks[0], "qwen3" if model.qk_norm else "llama"
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": model.rope_theta}
    if isinstance(model.rope_scaling, LinearRope):
        rope |= {"rope_type": "linear", "factor": model.rope_scaling.factor}
    elif isinstance(model.rope_scaling, Llama3Rope):
        scaling = model.rope_scaling
        values = (scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_context)
        rope |= {"rope_type": "llama3", **dict(zip(LLAMA3_KEYS, values, strict=True))}
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "hidden_act": "silu",
        "hidden_size": shape.d_model,
        "intermediate_size": shape.d_inner,
        "num_hidden_layers": model.n_blocks,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": model.norm_eps,
        "rope_parameters": rope,
        "vocab_size": vocab_size,
        "max_position_embeddings": max_tokens,
        "dtype": dtype,
        "tie_word_embeddings": model.tied_embeddings,
    }


def _model(raw: Mapping[str, Any], problems: list[Problem]) -> Model | None:
    """The shape, by the rules of the section `model`; None, with `problems` extended, when it breaks one."""
    n_heads, d_model, rope = raw["num_attention_heads"], raw["hidden_size"], _rope(raw)
    default_head_dim = 128 if raw["model_type"] == "qwen3" else d_model // n_heads
    segment = {
        "n_blocks": raw["num_hidden_layers"],
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": raw.get("num_key_value_heads") or n_heads,
        "d_inner": raw["intermediate_size"],
    }
    shape = {
        "segments": (segment,),
        "head_dim": raw.get("head_dim") or default_head_dim,
        "qk_norm": raw["model_type"] == "qwen3",
        "tied_embeddings": raw.get("tie_word_embeddings") or False,
        "junction_norm": False,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": _scaling(rope),
        "norm_eps": raw["rms_norm_eps"],
        "init_std": raw.get("initializer_range") or 0.02,
        "document_attention": "leak",
    }
    broken: list[Problem] = []
    model = validate(Model, shape, "", broken)
    for problem in broken:
        key = THEIR_KEYS.get(problem.key, problem.key.replace("rope_scaling.", "rope_parameters."))
        problems.append(replace(problem, key=key, remedy="fetch the checkpoint again, or choose another"))
    return model


def _rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Type, base and scaling of the rotary positions, in the spelling of transformers 5."""
    found = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    kind = found.get("rope_type", found.get("type", "default"))
    theta = found.get("rope_theta", raw.get("rope_theta", 10000.0))
    return {**found, "rope_type": kind, "rope_theta": theta}


def _scaling(rope: Mapping[str, Any]) -> dict[str, Any] | None:
    if rope["rope_type"] == "linear":
        return {"kind": "linear", "factor": rope["factor"]}
    if rope["rope_type"] == "llama3":
        factor, low, high, context = (rope[key] for key in LLAMA3_KEYS)
        return {
            "kind": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_context": context,
        }
    return None


def _comparable(model: Model) -> dict[str, Any]:
    """What two shapes must share to compute the same, whatever they leave to defaults."""
    shape = model.blocks[0]
    return {
        "segments": len(model.segments),
        "segments.0.n_blocks": model.segments[0].n_blocks,
        "segments.0.d_model": shape.d_model,
        "segments.0.n_heads": shape.n_heads,
        "segments.0.n_kv_heads": shape.n_kv_heads,
        "segments.0.d_inner": shape.d_inner,
        "head_dim": shape.head_dim,
        "qk_norm": shape.qk_norm,
        "tied_embeddings": model.tied_embeddings,
        "rope_theta": model.rope_theta,
        "rope_scaling": model.rope_scaling and model.rope_scaling.model_dump(),
        "norm_eps": model.norm_eps,
        "experts": model.experts and model.experts.model_dump(),
    }
