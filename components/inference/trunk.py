"""The blocks of a cascade over packed tokens, one row a token, and the cache that they work on.

`streams.py` has the same for models that run several rows a token, and `repair_blocks.py` for those that read out depths through a
block more: the engine sees only what is here.

Shapes: N packed tokens, D width of the residual stream, W width of a token's rows together (D with one row).
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor

from components.config.model import BlockShape
from components.inference.attention import AttentionPlan
from components.inference.block import BlockWeights, Norm, ScratchPad, run_block
from components.inference.cache import BlockCache, Indices, KVCache
from components.models.blocks import Block
from components.models.cascade import Cascade, Exit
from components.models.onednn import least_rows, product


class _ExitWeights(NamedTuple):
    """What reads out a segment; from `many` rows on, in oneDNN."""

    norm: Norm
    head_DV: Tensor
    many: float

    @classmethod
    def of(cls, out: Exit) -> _ExitWeights:
        head_DV = out.head.weight.detach().t()
        return cls(Norm(out.norm.weight, out.norm.eps), head_DV, least_rows(head_DV))


class Trunk:
    """A model's first blocks.

    Attributes:
        cache: of one batch of sequences.
    """

    def __init__(self, model: Cascade, n_sequences: int, capacity: int, deepest: int) -> None:
        """Allocates the cache.

        Raises:
            ValueError: a size is out of range.
        """
        self.model = model
        self.cache = self._new_cache(n_sequences, capacity, deepest)
        self._pads: dict[BlockShape, ScratchPad] = {}
        self._weights = [BlockWeights.of(cast(Block, block), self._pads) for block in list(model.blocks)[:deepest]]
        self._exits = [_ExitWeights.of(out) for out in cast(list[Exit], list(model.exits))]
        self._entries = {1, *(depth + 1 for depth in model.settings.exits)}

    @property
    def caches(self) -> list[BlockCache]:
        """Keys and values of all blocks."""
        return self.cache.blocks

    def _new_cache(self, n_sequences: int, capacity: int, deepest: int) -> KVCache:
        weight = self.model.exit_at(1).norm.weight
        return KVCache(self.model.settings, n_sequences, capacity, deepest, weight.dtype, weight.device)

    def plan(self, rows: Indices, positions: Indices) -> AttentionPlan:
        """How tokens at these places attend."""
        return AttentionPlan(self.cache, rows, positions)

    def run(self, depth: int, x_NW: Tensor | None, tokens_N: Tensor, plan: AttentionPlan) -> Tensor:
        """The tokens' rows after block `depth`; None before block 1."""
        if depth in self._entries:
            x_NW = self.model.enter(x_NW, tokens_N, depth)
        return run_block(self._weights[depth - 1], cast(Tensor, x_NW), plan, self.cache.blocks[depth - 1])

    def width_after(self, depth: int) -> int:
        """W after block `depth`."""
        return self._weights[depth - 1].shape.d_model

    def read_out(self, x_NW: Tensor, depth: int, plan: AttentionPlan) -> Tensor:
        """What predicts after block `depth`, [N, D]."""
        return x_NW

    def logits(self, x_ND: Tensor, depth: int) -> Tensor:
        """Logits [N, V] of what predicts after block `depth`."""
        norm, head_DV, many = self._exits[self.model.segment_at(depth)]
        multiply = torch.mm if x_ND.shape[0] < many else product
        return multiply(norm(x_ND), head_DV)
