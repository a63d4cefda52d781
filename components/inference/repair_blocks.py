"""The blocks of a model that reads some depths out through a repair, over packed tokens.

A repair block attends to what its own depth gave for all tokens before. So its keys and values are made whenever tokens come
through that depth, wherever they go on to: it can then be read out at any time.

Shapes: N packed tokens, D width of the residual stream.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor

from components.inference.attention import AttentionPlan
from components.inference.block import BlockWeights, finish_block, keep_keys, make_queries
from components.inference.cache import BlockCache
from components.inference.trunk import Trunk
from components.models.blocks import Block
from components.models.repaired import Repaired


class RepairedTrunk(Trunk):
    """A model's first blocks, and the repairs of their depths, of any kind."""

    model: Repaired

    def __init__(self, model: Repaired, n_sequences: int, capacity: int, deepest: int) -> None:
        super().__init__(model, n_sequences, capacity, deepest)
        depths = [int(depth) for depth in model.repairs if model.part == "block" and int(depth) <= deepest]
        self._repairs = {depth: BlockWeights.of(cast(Block, model.repairs[str(depth)]), self._pads) for depth in depths}
        self._repair_caches = {depth: self.cache.new_block(self._repairs[depth].shape) for depth in depths}

    @property
    def caches(self) -> list[BlockCache]:
        return [*self.cache.blocks, *self._repair_caches.values()]

    def run(self, depth: int, x_NW: Tensor | None, tokens_N: Tensor, plan: AttentionPlan) -> Tensor:
        x_ND = super().run(depth, x_NW, tokens_N, plan)
        if depth in self._repairs:
            weights = self._repairs[depth]
            keep_keys(weights, weights.attention_norm(x_ND), plan.angles_N1P, plan.slots_N, self._repair_caches[depth])
        return x_ND

    def read_out(self, x_NW: Tensor, depth: int, plan: AttentionPlan) -> Tensor:
        if depth not in self._repairs:
            return x_NW
        weights = self._repairs[depth]
        q_NW = make_queries(weights, weights.attention_norm(x_NW), plan.angles_N1P)
        return finish_block(weights, x_NW, plan.mix(q_NW, self._repair_caches[depth]))

    def logits(self, x_ND: Tensor, depth: int) -> Tensor:
        if self.model.part == "block":  # it has run already
            return super().logits(x_ND, depth)
        hidden_ND, head_VD = self.model.read_residual(x_ND[None], depth)
        return hidden_ND @ head_VD.T
