"""The parts of a Llama-style decoder block: RMSNorm, rotary attention; its feed-forward has files of its own.

Queries may have more heads than keys and values, and norms of their own, so that a block is also one of SmolLM2 or Qwen3.

Shapes: B batch, T tokens, D width of the residual stream, H query heads, G key and value heads, K channels per head.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from components.config.model import BlockShape, LinearRope, RopeScaling
from components.models.experts import ExpertFeedForward
from components.models.feed_forward import SwiGLU as SwiGLU


class Rotary(NamedTuple):
    """cos and signed sin of the rotary angles, shaped to broadcast over q and k: [T, 1, 1, K].

    Channels i and i + K/2 turn together, and have the same angle; sin is negative for the first of them.
    """

    cos: Tensor
    sin: Tensor


def rotary_angles(positions_T: Tensor, head_dim: int, theta: float, scaling: RopeScaling | None = None) -> Rotary:
    """Rotary angles of the given positions, always computed in float32.

    Shapes:
        positions_T: int64 [T]. Returns float32 [T, 1, 1, head_dim], twice.
    """
    frequencies_K = rotary_frequencies(head_dim, theta, scaling, positions_T.device)
    angles_TK = positions_T.float()[:, None] * frequencies_K
    cos_TK, sin_TK = angles_TK.cos(), angles_TK.sin()
    cos, sin = torch.cat((cos_TK, cos_TK), dim=-1), torch.cat((-sin_TK, sin_TK), dim=-1)
    return Rotary(cos[:, None, None], sin[:, None, None])


def rotary_frequencies(
    head_dim: int, theta: float, scaling: RopeScaling | None = None, device: torch.device | str = "cpu"
) -> Tensor:
    """Radians per position of every pair of channels, float32 [head_dim / 2].

    Source:
        Of a model whose context was extended after its training: `linear` and `llama3` as `transformers` defines them.
    """
    channels = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    frequencies_K = theta ** (-channels / head_dim)
    if scaling is None:
        return frequencies_K
    if isinstance(scaling, LinearRope):
        return frequencies_K / scaling.factor
    turns_K = scaling.original_context * frequencies_K / (2 * math.pi)
    kept_K = ((turns_K - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0.0, 1.0)
    return frequencies_K * (kept_K + (1.0 - kept_K) / scaling.factor)


def rotate(x_BTCHK: Tensor, rotary: Rotary) -> Tensor:
    """Turns each pair of channels (i, i + K/2) by its position's angle.

    Shapes:
        x_BTCHK: [B, T, C, H, K], C the tensors that share the rotation (q and k).
    """
    cos, sin = rotary.cos.to(x_BTCHK.dtype), rotary.sin.to(x_BTCHK.dtype)
    return x_BTCHK * cos + x_BTCHK.roll(x_BTCHK.shape[-1] // 2, dims=-1) * sin


class RMSNorm(nn.Module):
    """Divides by the root mean square over the width and multiplies by a learned gain."""

    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        dtype = torch.promote_types(self.weight.dtype, x_BTD.dtype)  # a block may be gathered in less precision than the stream's
        return F.rms_norm(x_BTD, self.weight.shape, self.weight.to(dtype), self.eps)


class Attention(nn.Module):
    """Causal self-attention with rotary positions; q, k and v come from one matrix."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.shape = shape
        self.qkv = nn.Linear(shape.d_model, shape.d_queries + 2 * shape.d_keys, bias=False)
        self.out = nn.Linear(shape.d_queries, shape.d_model, bias=False)
        if shape.qk_norm:
            self.q_norm = RMSNorm(shape.head_dim, shape.norm_eps)
            self.k_norm = RMSNorm(shape.head_dim, shape.norm_eps)

    def forward(self, x_BTD: Tensor, rotary: Rotary, mask_B1TT: Tensor | None) -> Tensor:
        """Attention output before it is added to the residual stream.

        Shapes:
            x_BTD: [B, T, D]. mask_B1TT: bool [B, 1, T, T], True where attending is allowed; None is plain causal.
        """
        q_BHTK, k_BGTK, v_BGTK = (part.transpose(1, 2) for part in self.project(x_BTD, rotary))
        mixed_BHTK = F.scaled_dot_product_attention(
            q_BHTK, k_BGTK, v_BGTK, attn_mask=mask_B1TT, is_causal=mask_B1TT is None, enable_gqa=self.shape.is_grouped
        )
        mixed: Tensor = self.out(mixed_BHTK.transpose(1, 2).flatten(2))
        return mixed

    def project(self, x_BTD: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values: [B, T, H, K], then [B, T, G, K] twice."""
        n_heads, n_kv_heads = self.shape.n_heads, self.shape.n_kv_heads
        qkv = self._by_head(self.qkv(x_BTD))
        qk, v = torch.split(qkv, [n_heads + n_kv_heads, n_kv_heads], dim=-2)  # a slice's backward would fill qkv with zeros
        if self.shape.qk_norm:
            qk = torch.cat((self.q_norm(qk[..., :n_heads, :]), self.k_norm(qk[..., n_heads:, :])), dim=-2)
        q_BTHK, k_BTGK = torch.split(rotate(qk, rotary).squeeze(2), [n_heads, n_kv_heads], dim=2)
        return q_BTHK, k_BTGK, v.squeeze(2)

    def queries(self, x_BTD: Tensor, rotary: Rotary) -> Tensor:
        """The queries of `project`, without the rest."""
        q = self._by_head(F.linear(x_BTD, self.qkv.weight[: self.shape.d_queries]))
        return rotate(self.q_norm(q) if self.shape.qk_norm else q, rotary).squeeze(2)

    def keys_and_values(self, x_BTD: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """The keys and values of `project`, without the rest."""
        kv = self._by_head(F.linear(x_BTD, self.qkv.weight[self.shape.d_queries :]))
        k, v = torch.split(kv, self.shape.n_kv_heads, dim=-2)
        return rotate(self.k_norm(k) if self.shape.qk_norm else k, rotary).squeeze(2), v.squeeze(2)

    def _by_head(self, x_BTC: Tensor) -> Tensor:
        """[B, T, 1, heads, K]: the heads of all that share the rotation, in a row."""
        return x_BTC.view(*x_BTC.shape[:2], 1, -1, self.shape.head_dim)


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream; the feed-forward is a SwiGLU or a mixture of them."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.d_model, shape.norm_eps)
        self.attention = Attention(shape)
        self.ffn_norm = RMSNorm(shape.d_model, shape.norm_eps)
        self.ffn = (
            SwiGLU(shape.d_model, shape.d_inner) if shape.experts is None else ExpertFeedForward(shape.d_model, shape.experts)
        )

    def forward(self, x_BTD: Tensor, rotary: Rotary, mask_B1TT: Tensor | None) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), rotary, mask_B1TT)
        out: Tensor = x_BTD + self.ffn(self.ffn_norm(x_BTD))
        return out
