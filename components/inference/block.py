"""One block of the cascade over packed tokens and the cache: the arithmetic of `models/blocks.py`, with nothing around it.

A decoding step of a small model is mostly overhead, so the block's matrices are used directly: no module calls, two dimensions, the
rotation in place, one write to the cache. The tests hold it to the module's own forward pass at every depth.

Shapes: N packed tokens, D width, H heads, K channels per head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from components.inference.attention import AttentionPlan
from components.models.blocks import Block


class BlockWeights(NamedTuple):
    """The matrices and gains of one block; the same storage as the model's."""

    attention_norm: Tensor
    qkv: Tensor
    out: Tensor
    ffn_norm: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def of(cls, block: Block) -> BlockWeights:
        attention, ffn = block.attention, block.ffn
        return cls(
            block.attention_norm.weight,
            attention.qkv.weight,
            attention.out.weight,
            block.ffn_norm.weight,
            ffn.gate_up.weight,
            ffn.down.weight,
        )


def run_block(weights: BlockWeights, x_ND: Tensor, plan: AttentionPlan, cached_2SHK: Tensor, norm_eps: float) -> Tensor:
    """The residual stream after the block; the tokens' keys and values are then in the cache.

    Shapes:
        x_ND: [N, D]. cached_2SHK: keys, then values, of all slots of the cache, [2, R * S, H, K].
    """
    n_tokens, width = x_ND.shape
    heads = cached_2SHK.shape[2:]
    qkv = F.linear(F.rms_norm(x_ND, (width,), weights.attention_norm, norm_eps), weights.qkv).view(n_tokens, 3, *heads)
    qk = qkv[:, :2]
    swapped = qk.roll(heads[1] // 2, -1)
    qk.mul_(plan.cos).addcmul_(swapped, plan.sin)
    cached_2SHK.index_copy_(1, plan.slots_N, qkv[:, 1:].transpose(0, 1))
    mixed_NHK = plan.mix(qkv[:, 0], cached_2SHK)
    x_ND = x_ND + F.linear(mixed_NHK.reshape(n_tokens, width), weights.out)
    gate_NF, up_NF = F.linear(F.rms_norm(x_ND, (width,), weights.ffn_norm, norm_eps), weights.gate_up).chunk(2, dim=-1)
    return torch.add(x_ND, F.linear(F.silu(gate_NF).mul_(up_NF), weights.down))
