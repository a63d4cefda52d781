"""The blocks of a model with Hidden Decoding streams over packed tokens: every token has a row per stream.

Which rows a block works on, and what they see, is the model's own rule (`StreamedCascade.rule`) for a pass to the deepest block
that the cache has. What cannot reach a prediction there is not computed, or kept, here either; a token that stops at a shallower
depth has all the rows that it needs to go on.

A mirrored block makes its keys and values from the input of an earlier block. They are made when tokens come through that one, so
that nothing of its input has to be kept.

Shapes: N packed tokens, M = N x rows, D width, W width of a token's rows together, H query heads, G key and value heads, K channels
per head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from components.inference.attention import OWN_ROW, AttentionPlan, Sight
from components.inference.block import Rows, finish_block, keep_keys, make_queries, run_block
from components.inference.cache import Indices, KVCache
from components.inference.trunk import Trunk
from components.models.streams import EVERY_ROW, BlockRule, StreamedCascade


class StreamPlan(AttentionPlan):
    """A plan whose tokens have a row per stream."""

    def __init__(self, cache: KVCache, rows: Indices, positions: Indices, n_streams: int) -> None:
        super().__init__(cache, rows, positions)
        self._n_streams = n_streams
        self._rotations: dict[tuple[range, bool], Tensor] = {}
        self._slots: dict[int, Tensor] = {}

    def rotation(self, streams: range, counts_tokens: bool) -> Tensor:
        """Angles of the rows of these streams, token by token, [M, 1, K / 2]."""
        key = streams, counts_tokens
        if key not in self._rotations:
            stream = torch.tensor([0 if counts_tokens else number for number in streams], device=self.positions_N.device)
            unit = 1 if counts_tokens else self._n_streams
            positions_M = (self.positions_N[:, None] * unit + stream).flatten()
            self._rotations[key] = self._cache.rotation(positions_M)
        return self._rotations[key]

    def slots(self, n_keys: int) -> Tensor:
        """Where a block with so many keys a token puts them."""
        if n_keys not in self._slots:
            self._slots[n_keys] = (self.slots_N[:, None] * n_keys + torch.arange(n_keys, device=self.slots_N.device)).flatten()
        return self._slots[n_keys]


class StreamedTrunk(Trunk):
    """A streamed model's first blocks, with the streams that it runs when this is made."""

    model: StreamedCascade

    def _new_cache(self, n_sequences: int, capacity: int, deepest: int) -> KVCache:
        model, self._n = self.model, self.model.n_running
        self._rules = [model.rule(depth, deepest) for depth in range(1, deepest + 1)]
        sources = ((model.streams.mirror_source(depth), depth) for depth in range(1, deepest + 1))
        self._mirrors = {source: depth for source, depth in sources if source is not None}
        self._plain = {depth for depth, rule in enumerate(self._rules, 1) if self._is_plain(depth, rule)}
        weight = model.exit_at(1).norm.weight
        self._sights = [self._sight(rule) for rule in self._rules]
        rows = [(len(self._streams(rule.read)), sight.keys) for rule, sight in zip(self._rules, self._sights, strict=True)]
        return KVCache(model.settings, n_sequences, capacity, deepest, weight.dtype, weight.device, self._n, rows)

    def plan(self, rows: Indices, positions: Indices) -> StreamPlan:
        return StreamPlan(self.cache, rows, positions, self._n)

    def run(self, depth: int, x_NW: Tensor | None, tokens_N: Tensor, plan: StreamPlan) -> Tensor:  # type: ignore[override]
        x_MD = self._enter(depth, x_NW, tokens_N)
        rule, weights, n_tokens = self._rules[depth - 1], self._weights[depth - 1], tokens_N.shape[0]
        if depth in self._plain:
            sight = self._sights[depth - 1]
            rows = Rows(plan.rotation(self._streams(rule.asking), rule.counts_tokens), plan.slots(sight.keys))
            return run_block(weights, x_MD, plan, self.cache.blocks[depth - 1], rows, sight).view(n_tokens, -1)
        normed_MD = weights.attention_norm(x_MD)
        if self.model.streams.mirror_source(depth) is None:
            self._keep(depth, normed_MD, n_tokens, plan)
        if depth in self._mirrors:
            self._keep(self._mirrors[depth], normed_MD, n_tokens, plan)
        angles_M1P = plan.rotation(self._streams(rule.asking), rule.counts_tokens)
        q_MW = make_queries(weights, _taken(normed_MD, rule.asking, n_tokens), angles_M1P)
        mixed_MW = plan.mix(q_MW, self.cache.blocks[depth - 1], self._sights[depth - 1])
        return finish_block(weights, _taken(x_MD, rule.asking, n_tokens), mixed_MW).view(n_tokens, -1)

    def width_after(self, depth: int) -> int:
        return super().width_after(depth) * len(self._streams(self._rules[depth - 1].asking))

    def read_out(self, x_NW: Tensor, depth: int, plan: AttentionPlan) -> Tensor:
        x_NSD = x_NW.view(len(x_NW), -1, super().width_after(depth))
        return x_NSD.sum(dim=1) if self.model.streams.supervision == "sum" else x_NSD[:, -1]

    def _enter(self, depth: int, x_NW: Tensor | None, tokens_N: Tensor) -> Tensor:
        x_MD = None if x_NW is None else x_NW.view(-1, super().width_after(depth - 1))
        if x_MD is not None and depth not in self._entries:
            return x_MD
        with self.model.running(self._n):
            return _taken(self.model.enter(x_MD, tokens_N, depth), self._rules[depth - 1].entering, tokens_N.shape[0])

    def _is_plain(self, depth: int, rule: BlockRule) -> bool:
        """Whether a block makes queries, keys and values of every row that enters, for itself, as one without streams does."""
        is_mirroring = self.model.streams.mirror_source(depth) is not None or depth in self._mirrors
        return rule.entering == rule.asking == rule.read and not is_mirroring

    def _keep(self, depth: int, normed_MD: Tensor, n_tokens: int, plan: StreamPlan) -> None:
        """Puts the keys and values that block `depth` makes of normed rows into the cache."""
        rule = self._rules[depth - 1]
        angles_M1P = plan.rotation(self._streams(rule.read), rule.counts_tokens)
        slots = plan.slots(self._sights[depth - 1].keys)
        read_MD = _taken(normed_MD, rule.read, n_tokens)
        keep_keys(self._weights[depth - 1], read_MD, angles_M1P, slots, self.cache.blocks[depth - 1])

    def _streams(self, rows: slice) -> range:
        """Numbers of the streams that a choice of rows takes of every token."""
        return range(self._n)[rows]

    def _sight(self, rule: BlockRule) -> Sight:
        asking, read = len(self._streams(rule.asking)), len(self._streams(rule.read))
        if rule.kind == "intra":
            return OWN_ROW if asking == read else Sight(asking, read)
        return Sight(asking, read, rule.window)


def _taken(x_MD: Tensor, rows: slice, n_tokens: int) -> Tensor:
    """A choice of all rows, from all of them or from the last stream's, which it is then."""
    return x_MD if rows == EVERY_ROW or x_MD.shape[0] == n_tokens else x_MD[rows]
