"""What an export with Hidden Decoding streams has beyond that of a cascade: a table per stream, and how blocks attend."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from components.models.streams import StreamedCascade

MODELING = "modeling_hidden_decoding.py"


def stream_weights(model: StreamedCascade, n_segments: int) -> dict[str, Tensor]:
    """The tables of the running streams under their exported names; the first is the first of those that run."""
    names = ["embeddings", *(f"stream_embeddings.{i}" for i in range(model.n_running - 1))]
    return {
        f"{name}.{segment}.weight": cast(nn.Embedding, table[segment]).weight
        for name, table in zip(names, model.running_tables, strict=True)
        for segment in range(n_segments)
    }


def stream_config(model: StreamedCascade, depth: int) -> dict[str, Any]:
    """`config.json` of the first `depth` blocks with the streams that run, beyond what a cascade says."""
    streams, stem = model.streams, MODELING.removesuffix(".py")
    return {
        "architectures": ["HiddenDecodingForCausalLM"],
        "model_type": "telescopic-hidden-decoding",
        "auto_map": {
            "AutoConfig": f"{stem}.HiddenDecodingConfig",
            "AutoModelForCausalLM": f"{stem}.HiddenDecodingForCausalLM",
        },
        "n_streams": model.n_running,
        "layers": list(streams.layers[:depth]),
        "window": [1, "rows"] if streams.local is None else [streams.local.size, streams.local.unit],
        "rope_rule": streams.rope_rule,
        "shares_kv": streams.kv == "shared",
        "is_summed": streams.supervision == "sum",
        "mirror_sources": [streams.mirror_source(block) or 0 for block in range(1, depth + 1)],
    }
