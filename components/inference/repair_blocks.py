"""The blocks of a model that some depths read out through a repair block, over packed tokens.

A repair block attends to what its own depth gave for all tokens before. So its keys and values are made whenever tokens come
through that depth, wherever they go on to: it can then be read out at any time.

Shapes: N packed tokens, D width of the residual stream.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from components.inference.attention import AttentionPlan
from components.inference.block import BlockWeights, finish_block, keep_keys, make_queries, norm
from components.inference.trunk import Trunk
from components.models.blocks import Block
from components.models.repaired import Repaired


class RepairedTrunk(Trunk):
    """A model's first blocks, and the repair blocks of their depths."""

    model: Repaired

    def __init__(self, model: Repaired, n_sequences: int, capacity: int, deepest: int) -> None:
        super().__init__(model, n_sequences, capacity, deepest)
        depths = [int(depth) for depth in model.repairs if int(depth) <= deepest]
        self._repairs = {depth: BlockWeights.of(cast(Block, model.repairs[str(depth)])) for depth in depths}
        self._repair_caches = {depth: torch.zeros_like(self.cache.blocks[depth - 1]) for depth in depths}

    def run(self, depth: int, x_NW: Tensor | None, tokens_N: Tensor, plan: AttentionPlan) -> Tensor:
        x_ND = super().run(depth, x_NW, tokens_N, plan)
        if depth in self._repairs:
            normed_ND = self._normed(x_ND, depth)
            keep_keys(self._repairs[depth], normed_ND, plan.cos, plan.sin, plan.slots_N, self._repair_caches[depth])
        return x_ND

    def read_out(self, x_NW: Tensor, depth: int, plan: AttentionPlan) -> Tensor:
        if depth not in self._repairs:
            return x_NW
        q_NHK = make_queries(self._repairs[depth], self._normed(x_NW, depth), plan.cos, plan.sin)
        return finish_block(self._repairs[depth], x_NW, plan.mix(q_NHK, self._repair_caches[depth]))

    def logits(self, x_ND: Tensor, depth: int) -> Tensor:
        out = self.model.exit_at(depth)  # the repair has run already
        return cast(Tensor, out.norm(x_ND) @ out.head.weight.T)

    def _normed(self, x_ND: Tensor, depth: int) -> Tensor:
        weights = self._repairs[depth]
        return norm(x_ND, weights.attention_norm, weights.shape.norm_eps)
