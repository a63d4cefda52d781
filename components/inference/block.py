"""One block of the cascade over packed tokens and the cache: the arithmetic of `models/blocks.py`, with nothing around it.

A decoding step of a small model is mostly overhead, so the block's matrices are used directly: no module calls, two dimensions,
memory and views that are made once, the rotation one product of complex numbers in place, one write to the cache. The tests hold it
to the module's own forward pass at every depth.

Shapes: N packed tokens (or rows of them), D width, F inner width, H query heads, G key and value heads, K channels per head, in
P pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from components.config.model import BlockShape
from components.inference.attention import OWN_ROW, AttentionPlan, Sight
from components.inference.cache import BlockCache
from components.models.blocks import Block, SwiGLU
from components.models.onednn import least_rows, product, sum_of


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


class Rows(NamedTuple):
    """Rows of packed tokens: what rotates them, [N, 1, P], and where their keys go."""

    angles_N1P: Tensor
    slots_N: Tensor


class _Pad(NamedTuple):
    """What a block makes of N rows on its way, and parts of it."""

    qkv_NW: Tensor
    qk_NHK: Tensor  # heads of queries, then of keys
    qk_NHP: Tensor
    q_NW: Tensor
    kv_NW: Tensor
    gate_up_NF: Tensor
    gate_NF: Tensor
    up_NF: Tensor


class ScratchPad:
    """Memory that blocks of one shape work in, one after another; nothing of it outlives a block."""

    def __init__(self, shape: BlockShape, like: Tensor) -> None:
        self._shape, self._like, self._n_rows = shape, like, -1

    def of(self, n_rows: int) -> _Pad:
        """The memory for so many rows; that for another number is given up."""
        if n_rows != self._n_rows:
            self._n_rows, self._pad = n_rows, self._make(n_rows)
        return self._pad

    def _make(self, n_rows: int) -> _Pad:
        shape = self._shape
        n_rotated, width, n_inner = shape.n_heads + shape.n_kv_heads, shape.d_queries + 2 * shape.d_keys, shape.d_inner
        qkv_NW, gate_up_NF = self._like.new_empty(n_rows, width), self._like.new_empty(n_rows, 2 * n_inner)
        qk_NHK = qkv_NW.as_strided((n_rows, n_rotated, shape.head_dim), (width, shape.head_dim, 1))  # the heads before the values
        q_NW, kv_NW = qkv_NW.split_with_sizes((shape.d_queries, 2 * shape.d_keys), 1)
        return _Pad(qkv_NW, qk_NHK, as_pairs(qk_NHK), q_NW, kv_NW, gate_up_NF, *gate_up_NF.split_with_sizes((n_inner, n_inner), 1))


class BlockWeights(NamedTuple):
    """The norms and matrices of one block; the same storage as the model's, but for `qkv` and the norms' gains.

    Attributes:
        qkv, queries, keys_values, out, gate_up, down: matrices [from, to]; the second and third are the parts of the first, with
            channels of queries and keys in the order of `paired`.
        q_norm, k_norm: norms of queries and keys, in that order too; None without.
        gate_up, down: of the SwiGLU; None with a feed-forward of another kind, which is then `ffn`.
        many: rows from which products run in oneDNN.
        pad: shared with other blocks of the shape.
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
    many: float
    pad: ScratchPad

    @classmethod
    def of(cls, block: Block, pads: dict[BlockShape, ScratchPad]) -> BlockWeights:
        """The weights of a block, which works in the pad of its shape; `pads` gets one for a new shape."""
        attention, ffn = block.attention, block.ffn
        shape, has_norms = attention.shape, attention.shape.qk_norm
        qkv = paired(attention.qkv.weight.detach(), shape.n_heads + shape.n_kv_heads, shape.head_dim).t()
        out = attention.out.weight.detach().t()
        return cls(
            shape=shape,
            attention_norm=Norm(block.attention_norm.weight, shape.norm_eps),
            qkv=qkv,
            queries=qkv[:, : shape.d_queries],
            keys_values=qkv[:, shape.d_queries :],
            q_norm=Norm(paired(attention.q_norm.weight, 1, shape.head_dim), shape.norm_eps) if has_norms else None,
            k_norm=Norm(paired(attention.k_norm.weight, 1, shape.head_dim), shape.norm_eps) if has_norms else None,
            out=out,
            ffn_norm=Norm(block.ffn_norm.weight, shape.norm_eps),
            gate_up=ffn.gate_up.weight.detach().t() if isinstance(ffn, SwiGLU) else None,
            down=ffn.down.weight.detach().t() if isinstance(ffn, SwiGLU) else None,
            ffn=ffn,
            many=least_rows(out),
            pad=pads.setdefault(shape, ScratchPad(shape, qkv)),
        )


def run_block(
    weights: BlockWeights, x_ND: Tensor, plan: AttentionPlan, cached: BlockCache, rows: Rows | None = None, sight: Sight = OWN_ROW
) -> Tensor:
    """The residual stream after the block; the tokens' keys and values are then in the cache.

    Args:
        rows: of the tokens, when these have several; the plan's by default.
        sight: what each sees.
    """
    angles_N1P, slots_N = rows or (plan.angles_N1P, plan.slots_N)
    n_rows, n_heads = x_ND.shape[0], weights.shape.n_heads
    pad = weights.pad.of(n_rows)
    multiply = torch.mm if n_rows < weights.many else product
    multiply(weights.attention_norm(x_ND), weights.qkv, out=pad.qkv_NW)
    if weights.q_norm is not None and weights.k_norm is not None:
        pad.qk_NHK[:, :n_heads] = weights.q_norm(pad.qk_NHK[:, :n_heads])
        pad.qk_NHK[:, n_heads:] = weights.k_norm(pad.qk_NHK[:, n_heads:])
    turn(pad.qk_NHP, angles_N1P)
    cached.put(slots_N, pad.kv_NW)
    return finish_block(weights, x_ND, plan.mix(pad.q_NW, cached, sight))


def finish_block(weights: BlockWeights, x_ND: Tensor, mixed_NW: Tensor) -> Tensor:
    """The residual stream after the block, from the values that its attention mixed."""
    n_rows = x_ND.shape[0]
    multiply, add_product = (torch.mm, torch.addmm) if n_rows < weights.many else (product, sum_of)
    x_ND = add_product(x_ND, mixed_NW, weights.out)
    normed_ND = weights.ffn_norm(x_ND)
    if weights.gate_up is None or weights.down is None:
        out_ND: Tensor = weights.ffn(normed_ND[None])[0]
        return x_ND + out_ND
    pad = weights.pad.of(n_rows)
    multiply(normed_ND, weights.gate_up, out=pad.gate_up_NF)
    return add_product(x_ND, F.silu(pad.gate_NF, inplace=True).mul_(pad.up_NF), weights.down)


def keep_keys(weights: BlockWeights, normed_MD: Tensor, angles_M1P: Tensor, slots_N: Tensor, cached: BlockCache) -> None:
    """Makes keys and values of a block from its normed input, and puts them into the cache: what `run_block` does, alone."""
    shape = weights.shape
    multiply = torch.mm if normed_MD.shape[0] < weights.many else product
    kv_MW = multiply(normed_MD, weights.keys_values)
    k_MGK = kv_MW.view(len(kv_MW), -1, shape.head_dim).narrow(1, 0, shape.n_kv_heads)
    if weights.k_norm is not None:
        k_MGK.copy_(weights.k_norm(k_MGK))
    turn(as_pairs(k_MGK), angles_M1P)
    cached.put(slots_N, kv_MW)


def make_queries(weights: BlockWeights, normed_ND: Tensor, angles_N1P: Tensor) -> Tensor:
    """Queries of a block from its normed input, [N, H K]: what `run_block` does, alone."""
    multiply = torch.mm if normed_ND.shape[0] < weights.many else product
    q_NW = multiply(normed_ND, weights.queries)
    q_NHK = q_NW.view(len(q_NW), -1, weights.shape.head_dim)
    if weights.q_norm is not None:
        q_NHK.copy_(weights.q_norm(q_NHK))
    turn(as_pairs(q_NHK), angles_N1P)
    return q_NW


def paired(weight: Tensor, n_heads: int, head_dim: int) -> Tensor:
    """A copy with the first rows, those of so many heads, in an order in which channels that turn together are neighbours.

    Queries times keys stays what it is, as both have the order. What follows the heads stays in place.
    """
    n_rows = n_heads * head_dim
    halves = weight[:n_rows].view(n_heads, 2, head_dim // 2, -1)
    return torch.cat((halves.transpose(1, 2).reshape(n_rows, *weight.shape[1:]), weight[n_rows:]))


def as_pairs(x_NHK: Tensor) -> Tensor:
    """A view in which neighbours make a complex number, [N, H, P]; in half precision, which has none, [N, H, P, 2]."""
    pairs = x_NHK.view(*x_NHK.shape[:2], -1, 2)
    return torch.view_as_complex(pairs) if x_NHK.dtype in (torch.float32, torch.float64) else pairs


def turn(x_NHP: Tensor, angles_N1P: Tensor) -> None:
    """Rotates pairs of channels in place, by the angles of `KVCache.rotation`."""
    if x_NHP.is_complex():
        x_NHP.mul_(angles_N1P)
    else:
        x_NHP.copy_(torch.view_as_real(torch.view_as_complex(x_NHP.float()) * angles_N1P))
