"""One block of the cascade over packed tokens and the cache: the arithmetic of `models/blocks.py`, with nothing around it.

A decoding step of a small model is mostly overhead, so the block's matrices are used directly: no module calls, two dimensions, the
rotation in place, one write to the cache. The tests hold it to the module's own forward pass at every depth.

Shapes: N packed tokens (or rows of them), D width, H query heads, G key and value heads, K channels per head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from components.config.model import BlockShape
from components.inference.attention import AttentionPlan
from components.models.blocks import Block, SwiGLU


class BlockWeights(NamedTuple):
    """The matrices and gains of one block; the same storage as the model's.

    Attributes:
        q_norm, k_norm: gains of the norms of queries and keys; None without.
        gate_up, down: of the SwiGLU; None with a feed-forward of another kind, which is then `ffn`.
    """

    shape: BlockShape
    attention_norm: Tensor
    qkv: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    ffn_norm: Tensor
    gate_up: Tensor | None
    down: Tensor | None
    ffn: nn.Module

    @classmethod
    def of(cls, block: Block) -> BlockWeights:
        attention, ffn = block.attention, block.ffn
        has_norms = attention.shape.qk_norm
        return cls(
            shape=attention.shape,
            attention_norm=block.attention_norm.weight,
            qkv=attention.qkv.weight,
            q_norm=attention.q_norm.weight if has_norms else None,
            k_norm=attention.k_norm.weight if has_norms else None,
            out=attention.out.weight,
            ffn_norm=block.ffn_norm.weight,
            gate_up=ffn.gate_up.weight if isinstance(ffn, SwiGLU) else None,
            down=ffn.down.weight if isinstance(ffn, SwiGLU) else None,
            ffn=ffn,
        )


def run_block(weights: BlockWeights, x_ND: Tensor, plan: AttentionPlan, cached_2SGK: Tensor) -> Tensor:
    """The residual stream after the block; the tokens' keys and values are then in the cache.

    Shapes:
        x_ND: [N, D]. cached_2SGK: keys, then values, of all slots of the cache, [2, R * S, G, K].
    """
    shape = weights.shape
    n_heads, n_rotated = shape.n_heads, shape.n_heads + shape.n_kv_heads
    qkv = F.linear(norm(x_ND, weights.attention_norm, shape.norm_eps), weights.qkv).view(x_ND.shape[0], -1, shape.head_dim)
    if weights.q_norm is not None and weights.k_norm is not None:
        qkv[:, :n_heads] = norm(qkv[:, :n_heads], weights.q_norm, shape.norm_eps)
        qkv[:, n_heads:n_rotated] = norm(qkv[:, n_heads:n_rotated], weights.k_norm, shape.norm_eps)
    turn(qkv[:, :n_rotated], plan.cos, plan.sin)
    cached_2SGK.index_copy_(1, plan.slots_N, qkv[:, n_heads:].view(-1, 2, shape.n_kv_heads, shape.head_dim).transpose(0, 1))
    return finish_block(weights, x_ND, plan.mix(qkv[:, :n_heads], cached_2SGK))


def finish_block(weights: BlockWeights, x_ND: Tensor, mixed_ND: Tensor) -> Tensor:
    """The residual stream after the block, from the values that its attention mixed."""
    x_ND = x_ND + F.linear(mixed_ND, weights.out)
    normed_ND = norm(x_ND, weights.ffn_norm, weights.shape.norm_eps)
    if weights.gate_up is None or weights.down is None:
        out_ND: Tensor = weights.ffn(normed_ND[None])[0]
        return x_ND + out_ND
    gate_NF, up_NF = F.linear(normed_ND, weights.gate_up).chunk(2, dim=-1)
    return torch.add(x_ND, F.linear(F.silu(gate_NF).mul_(up_NF), weights.down))


def keep_keys(weights: BlockWeights, normed_ND: Tensor, cos: Tensor, sin: Tensor, slots_N: Tensor, cached_2SGK: Tensor) -> None:
    """Makes keys and values of a block from its normed input, and puts them into the cache: what `run_block` does, alone."""
    shape = weights.shape
    kv = F.linear(normed_ND, weights.qkv[shape.d_queries :]).view(-1, 2, shape.n_kv_heads, shape.head_dim)
    if weights.k_norm is not None:
        kv[:, 0] = norm(kv[:, 0], weights.k_norm, shape.norm_eps)
    turn(kv[:, 0], cos, sin)
    cached_2SGK.index_copy_(1, slots_N, kv.transpose(0, 1))


def make_queries(weights: BlockWeights, normed_ND: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries of a block from its normed input, [N, H, K]: what `run_block` does, alone."""
    shape = weights.shape
    q_NHK = F.linear(normed_ND, weights.qkv[: shape.d_queries]).view(-1, shape.n_heads, shape.head_dim)
    if weights.q_norm is not None:
        q_NHK = norm(q_NHK, weights.q_norm, shape.norm_eps)
    turn(q_NHK, cos, sin)
    return q_NHK


def turn(x_NHK: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotates in place, by the angles of `KVCache.rotation`."""
    swapped = x_NHK.roll(x_NHK.shape[-1] // 2, -1)
    x_NHK.mul_(cos).addcmul_(swapped, sin)


def norm(x_ND: Tensor, gain_D: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension."""
    return F.rms_norm(x_ND, gain_D.shape, gain_D, eps)
