"""Runs a cascade token by token: new tokens of many sequences, each to its own depth, over the cached past.

`Engine.advance` is the one way forward. It appends tokens to sequences and brings each named sequence, as a whole, to a depth: its
new tokens start at block 1, older tokens that rested at a shallower depth go on from there, in the same pass, and tokens that have
been that deep already cost nothing. Prefill, decoding, changing depth in the middle of a text, verifying a draft: all are this one
operation. Every block runs once per call, over the tokens of all sequences that need it.

With Hidden Decoding, an engine runs the streams that its model runs when the engine is made (`Cascade.running`), and everything
said of tokens holds: a token's rows come and go together.

Shapes: N packed tokens, D width of the residual stream, W width of all rows of a token, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from components.inference.attention import AttentionPlan
from components.inference.cache import Indices
from components.inference.repair_blocks import RepairedTrunk
from components.inference.streams import StreamedTrunk
from components.inference.trunk import Trunk
from components.models.cascade import Cascade
from components.models.repaired import Repaired
from components.models.streams import StreamedCascade


class Feed(NamedTuple):
    """Tokens to append to the sequence `row` (none: only go deeper), and the depth it is brought to."""

    row: int
    tokens: Sequence[int]
    depth: int


class Arrival(NamedTuple):
    """The tokens of one sequence that came to its depth in one call, in order, ready to be read out there.

    Attributes:
        x_ND: residual stream after `depth` blocks, the rows that predict, of all tokens that came through that block in the call.
        places: the sequence's tokens among them.
    """

    depth: int
    x_ND: Tensor
    places: Indices


@dataclass
class _Packed:
    """The tokens on their way through the blocks."""

    rows: Indices
    positions: Indices
    tokens_N: Tensor
    x_NW: Tensor | None  # None before block 1


class Engine:
    """A model and the cache of one batch of sequences.

    Attributes:
        work: (block, token) pairs computed so far.
    """

    def __init__(self, model: Cascade, n_sequences: int, capacity: int, deepest: int | None = None) -> None:
        """Allocates the cache; `deepest` is the deepest that any sequence will run, N unless given.

        Raises:
            ValueError: a size is out of range.
        """
        self.model = model
        self._trunk = build_trunk(model, n_sequences, capacity, model.n_blocks if deepest is None else deepest)
        self.cache = self._trunk.cache
        self.work = 0

    def kv_bytes(self, n_tokens: int) -> int:
        """Bytes of the keys and values kept of `n_tokens` tokens of every sequence.

        All are kept, also those that a block with a local window does not see any more: a sequence can be cropped to any length.
        """
        return sum(block.n_bytes for block in self._trunk.caches) // self.cache.capacity * n_tokens

    @torch.inference_mode()
    def advance(self, feeds: Sequence[Feed]) -> list[Arrival]:
        """Appends tokens and brings every named sequence to its depth; one arrival per feed.

        Raises:
            ValueError: a sequence would overflow, is named twice, has nothing new at its depth, gets a token outside the
                vocabulary or a depth that the cache does not have. Nothing is changed.
        """
        self._check(feeds)
        self.cache.extend({feed.row: feed.tokens for feed in feeds})
        ends: dict[int, list[int]] = {}
        for feed in feeds:
            ends.setdefault(feed.depth, []).append(feed.row)
        starts = self.cache.starts([feed.row for feed in feeds])
        arrivals: dict[int, Arrival] = {}
        packed: _Packed | None = None
        plan: AttentionPlan | None = None
        for depth in range(1, max(ends) + 1):
            if depth in starts:
                joining = self._joining([row for end, rows in ends.items() if end >= depth for row in rows], depth)
                packed, plan = (joining if packed is None else _merge(joining, packed)), None
            if packed is None:
                continue
            plan = plan or self._trunk.plan(packed.rows, packed.positions)
            packed.x_NW = x_NW = self._trunk.run(depth, packed.x_NW, packed.tokens_N, plan)
            self.work += len(packed.rows)
            if depth in ends:
                x_ND = self._trunk.read_out(x_NW, depth, plan)
                places = _places(packed.rows, ends[depth])
                arrivals |= {row: Arrival(depth, x_ND, mine) for row, mine in zip(ends[depth], places, strict=True)}
                if depth < self.cache.deepest:
                    self._rest(plan, x_NW, np.concatenate(places))
                packed, plan = (_without(packed, ends[depth]), None) if depth < max(ends) else (None, None)
        for depth, rows in ends.items():
            self.cache.mark_passed(rows, depth)
        return [arrivals[feed.row] for feed in feeds]

    @torch.inference_mode()
    def logits(self, arrivals: Sequence[Arrival], last_only: bool = True) -> list[Tensor]:
        """Logits of each arrival's last token, [1, V], or of all its tokens, [N, V]."""
        places = [arrival.places[-1:] if last_only else arrival.places for arrival in arrivals]
        logits: dict[int, Tensor] = {}
        for members, read_NV in self._read_out(arrivals, places):
            parts = torch.split(read_NV, [len(places[i]) for i in members])
            logits |= dict(zip(members, parts, strict=True))
        return [logits[i] for i in range(len(arrivals))]

    @torch.inference_mode()
    def next_logits(self, arrivals: Sequence[Arrival]) -> Tensor:
        """Logits of each arrival's last token, [arrivals, V]."""
        read = list(self._read_out(arrivals, [arrival.places[-1:] for arrival in arrivals]))
        if len(read) == 1:
            return read[0][1]
        order = np.argsort(np.concatenate([members for members, _ in read]))
        logits_NV = torch.cat([read_NV for _, read_NV in read])
        return logits_NV[torch.from_numpy(order).to(logits_NV.device)]

    def _read_out(self, arrivals: Sequence[Arrival], places: Sequence[Indices]) -> Iterator[tuple[list[int], Tensor]]:
        """One read-out for all arrivals of a call at one depth: which they are, and the logits at their places."""
        together: dict[int, list[int]] = {}
        for i, arrival in enumerate(arrivals):
            together.setdefault(id(arrival.x_ND), []).append(i)
        for members in together.values():
            first = arrivals[members[0]]
            wanted = np.concatenate([places[i] for i in members])
            is_all = len(wanted) == len(first.x_ND) and wanted.tolist() == list(range(len(wanted)))
            x_ND = first.x_ND if is_all else first.x_ND[torch.from_numpy(wanted).to(first.x_ND.device)]
            yield members, self._trunk.logits(x_ND, first.depth)

    def _joining(self, rows: Sequence[int], depth: int) -> _Packed:
        """The tokens of these sequences that go on, or start, at block `depth`."""
        packed_rows, positions = self.cache.waiting(rows, depth)
        slots = packed_rows * self.cache.capacity + positions
        tokens_N = torch.from_numpy(self.cache.tokens[slots]).to(self.cache.device)
        x_NW = None
        if depth > 1:
            x_NW = self.cache.take_up(torch.from_numpy(slots).to(self.cache.device), self._trunk.width_after(depth - 1))
        return _Packed(packed_rows, positions, tokens_N, x_NW)

    def _rest(self, plan: AttentionPlan, x_NW: Tensor, places: Indices) -> None:
        """Keeps the residual streams of tokens that end here, above the last cached block."""
        if len(places) == len(x_NW):
            self.cache.rest(plan.slots_N, x_NW)
        else:
            kept = torch.from_numpy(places).to(x_NW.device)
            self.cache.rest(plan.slots_N[kept], x_NW[kept])

    def _check(self, feeds: Sequence[Feed]) -> None:
        if not feeds:
            raise ValueError("nothing to feed")
        if len({feed.row for feed in feeds}) != len(feeds):
            raise ValueError("a sequence is fed twice in one call")
        for feed in feeds:
            if not 1 <= feed.depth <= self.cache.deepest:
                raise ValueError(f"depth {feed.depth} outside 1..{self.cache.deepest}, what this engine has a cache for")
            if feed.tokens and not 0 <= min(feed.tokens) <= max(feed.tokens) < self.model.vocab_size:
                raise ValueError(f"sequence {feed.row}: a token outside 0..{self.model.vocab_size - 1}")
            length = self.cache.length(feed.row)
            if not feed.tokens and self.cache.passed(feed.row, feed.depth) == length:
                raise ValueError(f"sequence {feed.row}: all its {length} tokens have come to depth {feed.depth} already")


def build_trunk(model: Cascade, n_sequences: int, capacity: int, deepest: int) -> Trunk:
    """The trunk of a model, of its kind."""
    if isinstance(model, StreamedCascade):
        return StreamedTrunk(model, n_sequences, capacity, deepest)
    if isinstance(model, Repaired):
        return RepairedTrunk(model, n_sequences, capacity, deepest)
    return Trunk(model, n_sequences, capacity, deepest)


def _merge(joining: _Packed, packed: _Packed) -> _Packed:
    if packed.x_NW is None or joining.x_NW is None:
        raise ValueError("tokens join a pass only after its first block")
    return _Packed(
        np.concatenate((joining.rows, packed.rows)),  # tokens that rested come before the new ones of their sequence
        np.concatenate((joining.positions, packed.positions)),
        torch.cat((joining.tokens_N, packed.tokens_N)),
        torch.cat((joining.x_NW, packed.x_NW)),
    )


def _places(packed_rows: Indices, rows: Sequence[int]) -> list[Indices]:
    """Where the tokens of each sequence are among the packed ones."""
    if packed_rows.tolist() == rows:  # a token of each
        return list(np.arange(len(rows))[:, None])
    return [np.flatnonzero(packed_rows == row) for row in rows]


def _without(packed: _Packed, rows: Sequence[int]) -> _Packed | None:
    """The tokens of all other sequences."""
    stay = np.flatnonzero(~np.isin(packed.rows, rows))
    if packed.x_NW is None or not len(stay):
        return None
    kept = torch.from_numpy(stay).to(packed.x_NW.device)
    return _Packed(packed.rows[stay], packed.positions[stay], packed.tokens_N[kept], packed.x_NW[kept])
