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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from components.inference.attention import AttentionPlan
from components.inference.cache import Indices
from components.inference.streams import build_trunk
from components.models.cascade import Cascade
from components.models.repaired import Repaired

Chosen = npt.NDArray[np.bool_]  # which of the packed tokens


@dataclass(frozen=True)
class Feed:
    """Tokens to append to the sequence `row` (none: only go deeper), and the depth it is brought to."""

    row: int
    tokens: Sequence[int]
    depth: int


@dataclass(frozen=True)
class Arrival:
    """The tokens of one sequence that came to its depth in this call, in order, ready to be read out there.

    Shapes:
        x_ND: residual stream after `depth` blocks, of the rows that predict.
    """

    depth: int
    x_ND: Tensor


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

    @torch.inference_mode()
    def advance(self, feeds: Sequence[Feed]) -> list[Arrival]:
        """Appends tokens and brings every named sequence to its depth; one arrival per feed.

        Raises:
            ValueError: a sequence would overflow, is named twice, has nothing new at its depth, gets a token outside the
                vocabulary or a depth that the cache does not have, or a depth that a repair block reads out. Nothing is changed.
        """
        self._check(feeds)
        self.cache.extend({feed.row: feed.tokens for feed in feeds})
        arrivals: dict[int, Arrival] = {}
        packed: _Packed | None = None
        plan: AttentionPlan | None = None
        starts = self.cache.starts([feed.row for feed in feeds])
        for depth in range(1, max(feed.depth for feed in feeds) + 1):
            joining = self._joining([feed.row for feed in feeds if feed.depth >= depth], depth) if depth in starts else None
            if joining is not None:
                packed, plan = joining if packed is None else _merge(packed, joining), None
            if packed is None:
                continue
            plan = plan or self._trunk.plan(packed.rows, packed.positions)
            packed.x_NW = x_NW = self._trunk.run(depth, packed.x_NW, packed.tokens_N, plan)
            self.work += len(packed.rows)
            done = {feed.row for feed in feeds if feed.depth == depth}
            if done:
                groups = {row: packed.rows == row for row in done}
                if depth < self.cache.deepest:
                    self._rest(plan, x_NW, groups)
                read_ND = self._trunk.read_out(x_NW, depth)
                for row, chosen in groups.items():
                    arrivals[row] = Arrival(depth, read_ND if chosen.all() else read_ND[_indices(chosen, read_ND)])
                packed, plan = _without(packed, groups), None
        for feed in feeds:
            self.cache.mark_passed(feed.row, feed.depth)
        return [arrivals[feed.row] for feed in feeds]

    @torch.inference_mode()
    def logits(self, arrivals: Sequence[Arrival], last_only: bool = True) -> list[Tensor]:
        """Logits of each arrival's last token, [1, V], or of all its tokens, [N, V]; one read-out per depth."""
        kept = [arrival.x_ND[-1:] if last_only else arrival.x_ND for arrival in arrivals]
        logits: dict[int, Tensor] = {}
        for depth in {arrival.depth for arrival in arrivals}:
            members = [i for i, arrival in enumerate(arrivals) if arrival.depth == depth]
            hidden_ND, head_VD = self.model.read_residual(torch.cat([kept[i] for i in members])[None], depth)
            parts = torch.split(hidden_ND @ head_VD.T, [len(kept[i]) for i in members])
            logits |= dict(zip(members, parts, strict=True))
        return [logits[i] for i in range(len(arrivals))]

    def _joining(self, rows: Sequence[int], depth: int) -> _Packed | None:
        """The tokens of these sequences that go on, or start, at block `depth`."""
        waiting = {row: self.cache.waiting(row, depth) for row in rows}
        positions = np.concatenate(list(waiting.values()))
        if not len(positions):
            return None
        packed_rows = np.repeat(list(waiting), [len(part) for part in waiting.values()])
        slots_N = torch.from_numpy(packed_rows * self.cache.capacity + positions).to(self.cache.device)
        tokens_N = self.cache.tokens.index_select(0, slots_N)
        x_NW = self.cache.take_up(slots_N, self._trunk.width_after(depth - 1)) if depth > 1 else None
        return _Packed(packed_rows, positions, tokens_N, x_NW)

    def _rest(self, plan: AttentionPlan, x_NW: Tensor, groups: dict[int, Chosen]) -> None:
        """Keeps the residual streams of sequences that end here, above the last cached block."""
        chosen = np.logical_or.reduce(list(groups.values()))
        if chosen.all():
            self.cache.rest(plan.slots_N, x_NW)
        else:
            kept = _indices(chosen, x_NW)
            self.cache.rest(plan.slots_N[kept], x_NW[kept])

    def _check(self, feeds: Sequence[Feed]) -> None:
        if not feeds:
            raise ValueError("nothing to feed")
        if len({feed.row for feed in feeds}) != len(feeds):
            raise ValueError("a sequence is fed twice in one call")
        for feed in feeds:
            if not 1 <= feed.depth <= self.cache.deepest:
                raise ValueError(f"depth {feed.depth} outside 1..{self.cache.deepest}, what this engine has a cache for")
            check_depth(self.model, feed.depth)
            if any(not 0 <= token < self.model.vocab_size for token in feed.tokens):
                raise ValueError(f"sequence {feed.row}: a token outside 0..{self.model.vocab_size - 1}")
            length = self.cache.length(feed.row)
            if not feed.tokens and self.cache.passed(feed.row, feed.depth) == length:
                raise ValueError(f"sequence {feed.row}: all its {length} tokens have come to depth {feed.depth} already")


def decodable_depths(model: Cascade) -> list[int]:
    """Depths that can be decoded token by token: all but those that a repair block reads out, whose attention has no cache."""
    depths = range(1, model.n_blocks + 1)
    if isinstance(model, Repaired) and model.part == "block":
        return [depth for depth in depths if str(depth) not in model.repairs]
    return list(depths)


def check_depth(model: Cascade, depth: int) -> None:
    """Refuses a depth that cannot be decoded token by token.

    Raises:
        ValueError: outside 1..N, or not one of the decodable depths.
    """
    model.segment_at(depth)
    depths = decodable_depths(model)
    if depth not in depths:
        raise ValueError(
            f"depth {depth} is read out by a repair block, which cannot decode token by token; "
            f"use one of the depths {', '.join(map(str, depths))}"
        )


def _merge(packed: _Packed, joining: _Packed) -> _Packed:
    if packed.x_NW is None or joining.x_NW is None:
        raise ValueError("tokens join a pass only after its first block")
    return _Packed(
        np.concatenate((joining.rows, packed.rows)),  # tokens that rested come before the new ones of their sequence
        np.concatenate((joining.positions, packed.positions)),
        torch.cat((joining.tokens_N, packed.tokens_N)),
        torch.cat((joining.x_NW, packed.x_NW)),
    )


def _without(packed: _Packed, groups: dict[int, Chosen]) -> _Packed | None:
    stay = ~np.logical_or.reduce(list(groups.values()))
    if packed.x_NW is None or not stay.any():
        return None
    kept = _indices(stay, packed.x_NW)
    return _Packed(packed.rows[stay], packed.positions[stay], packed.tokens_N[kept], packed.x_NW[kept])


def _indices(chosen: Chosen, like: Tensor) -> Tensor:
    return torch.from_numpy(np.flatnonzero(chosen)).to(like.device)
