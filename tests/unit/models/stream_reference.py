"""A slow, plain Hidden Decoding cascade: whole masks of all rows by all rows, every row computed, one head at a time.

Written from the definitions, with nothing of the code under test but the names of the weights.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from components.config.schema import Model


def visible_rows(kind: str, n: int, length: int, window: tuple[int, str] | None, kv: str = "separate") -> Tensor:
    """Bool [nL, nL]: True where the row of the first index sees the row of the second."""
    seen = torch.zeros(n * length, n * length, dtype=torch.bool)
    for q in range(n * length):
        for k in range(q + 1):
            if kind == "intra":
                seen[q, k] = k % n == (q % n if kv == "separate" else 0)
            elif kind == "cross_full":
                seen[q, k] = True
            elif window is not None and window[1] == "rows":
                seen[q, k] = q - k < window[0]
            elif window is not None:
                seen[q, k] = q // n - k // n < window[0]
    return seen


def plain_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Softmax attention [B, Q, H, K] under a mask [Q, R] or [B, Q, R]; query head h reads key head h // (H / G)."""
    ratio = q.shape[2] // k.shape[2]
    mixed = []
    for head in range(q.shape[2]):
        scores = q[:, :, head] @ k[:, :, head // ratio].transpose(1, 2) / math.sqrt(q.shape[3])
        mixed.append(torch.softmax(scores.masked_fill(~seen, -math.inf), -1) @ v[:, :, head // ratio])
    return torch.stack(mixed, dim=2)


def reference_residual(w: dict[str, Tensor], settings: Model, tokens: Tensor, depth: int, n: int) -> Tensor:
    """Residual stream [B, L, n, D] after `depth` blocks, all streams, tables the last `n` of those there are."""
    streams = settings.streams
    assert streams is not None
    batch, length = tokens.shape
    segment_of = [i for i, segment in enumerate(settings.segments) for _ in range(segment.n_blocks)]
    last_table = streams.n_streams
    tables = range(last_table - n + 1, last_table + 1)  # numbered from 1
    first_mirrored = len(streams.layers) - streams.n_mirrored + 1
    normed_inputs: dict[int, Tensor] = {}
    x = torch.zeros(batch, length, n, 0, dtype=w["exits.0.norm.weight"].dtype)
    for block in range(1, depth + 1):
        segment = segment_of[block - 1]
        if block == 1 or segment_of[block - 2] != segment:
            names = [f"embeddings.{segment}" if t == 1 else f"stream_embeddings.{t - 2}.{segment}" for t in tables]
            fresh = torch.stack([w[f"{name}.weight"][tokens] for name in names], dim=2)
            if settings.junction_norm and block > 1:
                x = x / x.norm(dim=-1, keepdim=True) * fresh.norm(dim=-1, keepdim=True)
            x = torch.cat((x, fresh), dim=-1)
        at = f"blocks.{block - 1}"
        width = x.shape[-1]
        own = normed_inputs[block] = rms(x, w[f"{at}.attention_norm.weight"], settings.norm_eps).reshape(batch, length * n, width)
        source = own if block < first_mirrored else normed_inputs[2 * first_mirrored - 1 - block]
        kind = streams.layers[block - 1]
        qw, kw, vw = w[f"{at}.attention.qkv.weight"].split(width)
        q, k, v = own @ qw.T, source @ kw.T, source @ vw.T
        heads = [batch, length * n, width // settings.head_dim, settings.head_dim]
        rows = torch.arange(n * length)
        by_token = streams.rope_rule == "logical" or (streams.rope_rule == "by_layer" and kind == "intra")
        positions = rows // n if by_token else rows
        q, k, v = (
            turn(q.view(heads), positions, settings.rope_theta),
            turn(k.view(heads), positions, settings.rope_theta),
            v.view(heads),
        )
        window = None if streams.local is None else (streams.local.size, streams.local.unit)
        mixed = plain_attention(q, k, v, visible_rows(kind, n, length, window, streams.kv))
        x = x + (mixed.reshape(batch, length * n, width) @ w[f"{at}.attention.out.weight"].T).view(x.shape)
        x = x + feed_forward(w, f"{at}.ffn", settings, rms(x, w[f"{at}.ffn_norm.weight"], settings.norm_eps))
    return x


def feed_forward(w: dict[str, Tensor], at: str, settings: Model, x: Tensor) -> Tensor:
    """The SwiGLU, or the mixture of them, one row and one expert at a time."""
    experts = settings.experts
    if experts is None:
        return swiglu(x, w[f"{at}.gate_up.weight"], w[f"{at}.down.weight"])
    outputs = []
    for row in x.flatten(0, -2):
        logits = w[f"{at}.router.weight"] @ row
        scores = torch.softmax(logits, 0) if experts.gate == "softmax" else torch.sigmoid(logits)
        ranked = scores.detach() + w.get(f"{at}.router.bias", torch.zeros_like(scores))
        chosen = sorted(range(experts.n_experts), key=lambda e: (-float(ranked[e]), e))[: experts.top_k]
        total = sum(scores[e] for e in chosen)
        parts = [scores[e] / total * swiglu(row, w[f"{at}.gate_up.weight"][e], w[f"{at}.down.weight"][e]) for e in chosen]
        if experts.n_shared:
            parts.append(swiglu(row, w[f"{at}.shared.gate_up.weight"], w[f"{at}.shared.down.weight"]))
        outputs.append(torch.stack(parts).sum(dim=0))
    return torch.stack(outputs).view_as(x)


def swiglu(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (x @ gate_up.T).chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up) @ down.T


def reference_logits(w: dict[str, Tensor], settings: Model, tokens: Tensor, depth: int, n: int, reads: str = "last") -> Tensor:
    """Logits [B, L, V] of the last stream or of the sum of the streams, or [B, L, n, V] of `all`."""
    x = reference_residual(w, settings, tokens, depth, n)
    x = x[:, :, -1] if reads == "last" else x.sum(dim=2) if reads == "sum" else x
    segment = [i for i, s in enumerate(settings.segments) for _ in range(s.n_blocks)][depth - 1]
    return rms(x, w[f"exits.{segment}.norm.weight"], settings.norm_eps) @ w[f"exits.{segment}.head.weight"].T


def rms(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x**2).mean(dim=-1, keepdim=True) + eps) * gain


def turn(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding of [B, R, H, K], pairs (i, i + K/2), as complex numbers; angles in float32 as everywhere."""
    half = x.shape[-1] // 2
    angles = positions.float()[:, None] * theta ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float32) / x.shape[-1])
    pairs = torch.complex(x[..., :half], x[..., half:])
    # cos and sin are taken in float32, then widened, as the model does
    turned = pairs * torch.complex(angles.cos().to(x.dtype), angles.sin().to(x.dtype))[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1)
