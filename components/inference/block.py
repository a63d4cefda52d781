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
from components.inference.cache import BlockCache
from components.models.blocks import Block, SwiGLU


class Norm:
    """RMSNorm over the last dimension: x gain sqrt(D) / hypot(|x|, sqrt(D eps)), half the operations of `F.rms_norm` on a CPU.

    In less precision than float32, and on a GPU, where it is one operation, it is left to `F.rms_norm`.
    """

    def __init__(self, gain_D: Tensor, eps: float) -> None:
        self._gain_D, self._eps = gain_D.detach(), eps
        self._is_own = gain_D.device.type == "cpu" and gain_D.dtype == torch.float32
        root = len(gain_D) ** 0.5
        self._scaled_D, self._floor = self._gain_D * root, torch.tensor(root * eps**0.5)

    def __call__(self, x_ND: Tensor) -> Tensor:
        """The normed rows."""
        if not self._is_own:
            return F.rms_norm(x_ND, self._gain_D.shape, self._gain_D, self._eps)
        return x_ND.mul(self._scaled_D).div_(torch.linalg.vector_norm(x_ND, dim=-1, keepdim=True).hypot_(self._floor))


class BlockWeights(NamedTuple):
    """The norms and matrices of one block; the same storage as the model's, but for the norms' gains.

    Attributes:
        qkv, queries, keys_values, out, gate_up, down: matrices [from, to]; the second and third are the parts of the first.
        q_norm, k_norm: norms of queries and keys; None without.
        gate_up, down: of the SwiGLU; None with a feed-forward of another kind, which is then `ffn`.
    """

    shape: BlockShape
    attention_norm: Norm
    qkv: Tensor
    queries: Tensor
    keys_values: Tensor
    q_norm: Norm | None
    k_norm: Norm | None
    out: Tensor
    ffn_norm: Norm
    gate_up: Tensor | None
    down: Tensor | None
    ffn: nn.Module

    @classmethod
    def of(cls, block: Block) -> BlockWeights:
        attention, ffn = block.attention, block.ffn
        shape, has_norms = attention.shape, attention.shape.qk_norm
        qkv = attention.qkv.weight.detach().t()
        return cls(
            shape=shape,
            attention_norm=Norm(block.attention_norm.weight, shape.norm_eps),
            qkv=qkv,
            queries=qkv[:, : shape.d_queries],
            keys_values=qkv[:, shape.d_queries :],
            q_norm=Norm(attention.q_norm.weight, shape.norm_eps) if has_norms else None,
            k_norm=Norm(attention.k_norm.weight, shape.norm_eps) if has_norms else None,
            out=attention.out.weight.detach().t(),
            ffn_norm=Norm(block.ffn_norm.weight, shape.norm_eps),
            gate_up=ffn.gate_up.weight.detach().t() if isinstance(ffn, SwiGLU) else None,
            down=ffn.down.weight.detach().t() if isinstance(ffn, SwiGLU) else None,
            ffn=ffn,
        )


def run_block(weights: BlockWeights, x_ND: Tensor, plan: AttentionPlan, cached: BlockCache) -> Tensor:
    """The residual stream after the block; the tokens' keys and values are then in the cache."""
    shape = weights.shape
    n_heads, n_rotated = shape.n_heads, shape.n_heads + shape.n_kv_heads
    qkv_NW = torch.mm(weights.attention_norm(x_ND), weights.qkv)
    n_tokens, width = qkv_NW.shape
    qk_NHK = qkv_NW.as_strided((n_tokens, n_rotated, shape.head_dim), (width, shape.head_dim, 1))  # the heads before the values
    if weights.q_norm is not None and weights.k_norm is not None:
        qk_NHK[:, :n_heads] = weights.q_norm(qk_NHK[:, :n_heads])
        qk_NHK[:, n_heads:] = weights.k_norm(qk_NHK[:, n_heads:])
    turn(qk_NHK, plan.cos, plan.sin)
    q_NW, kv_NW = qkv_NW.split_with_sizes((shape.d_queries, 2 * shape.d_keys), 1)
    cached.put(plan.slots_N, kv_NW)
    return finish_block(weights, x_ND, plan.mix(q_NW, cached))


def finish_block(weights: BlockWeights, x_ND: Tensor, mixed_NW: Tensor) -> Tensor:
    """The residual stream after the block, from the values that its attention mixed."""
    x_ND = torch.addmm(x_ND, mixed_NW, weights.out)
    normed_ND = weights.ffn_norm(x_ND)
    if weights.gate_up is None or weights.down is None:
        out_ND: Tensor = weights.ffn(normed_ND[None])[0]
        return x_ND + out_ND
    gate_NF, up_NF = torch.mm(normed_ND, weights.gate_up).split_with_sizes((weights.shape.d_inner, weights.shape.d_inner), 1)
    return torch.addmm(x_ND, F.silu(gate_NF, inplace=True).mul_(up_NF), weights.down)


def keep_keys(weights: BlockWeights, normed_MD: Tensor, cos: Tensor, sin: Tensor, slots_N: Tensor, cached: BlockCache) -> None:
    """Makes keys and values of a block from its normed input, and puts them into the cache: what `run_block` does, alone."""
    shape = weights.shape
    kv_MW = torch.mm(normed_MD, weights.keys_values)
    k_MGK = kv_MW.view(len(kv_MW), -1, shape.head_dim).narrow(1, 0, shape.n_kv_heads)
    if weights.k_norm is not None:
        k_MGK.copy_(weights.k_norm(k_MGK))
    turn(k_MGK, cos, sin)
    cached.put(slots_N, kv_MW)


def make_queries(weights: BlockWeights, normed_ND: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries of a block from its normed input, [N, H K]: what `run_block` does, alone."""
    q_NW = torch.mm(normed_ND, weights.queries)
    q_NHK = q_NW.view(len(q_NW), -1, weights.shape.head_dim)
    if weights.q_norm is not None:
        q_NHK.copy_(weights.q_norm(q_NHK))
    turn(q_NHK, cos, sin)
    return q_NW


def turn(x_NHK: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotates in place, by the angles of `KVCache.rotation`."""
    swapped = x_NHK.roll(x_NHK.shape[-1] // 2, -1)
    x_NHK.mul_(cos).addcmul_(swapped, sin)
