"""Attention of packed new tokens to the cached past of their own sequence.

The new tokens of a batch are packed one after another, whatever their sequence and position, so nothing is computed for padding
outside of attention. What attention then needs depends only on where the tokens stand: an `AttentionPlan` works that out once and
serves every block until the set of tokens changes.

Shapes: N packed tokens, R sequences among them, T most new tokens of one sequence, S cached positions, H query heads, G key and
value heads, K channels a head; A queries and C keys a token (`Sight`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from components.inference.cache import BlockCache, Indices, KVCache
from components.models.stream_attention import Window


class Sight(NamedTuple):
    """What a token's queries see: keys up to their own row, within the window if there is one.

    Attributes:
        queries: A, queries of a token that look at the same heads. Streams that keep to themselves count as heads instead.
        keys: C, keys of a token: A, or more when only the last rows ask, or one that all its queries share.
    """

    queries: int = 1
    keys: int = 1
    window: Window | None = None


OWN_ROW = Sight()


class _Seen(NamedTuple):
    """A sight over the tokens of a plan: the range of keys that any of them sees, and what is masked of it."""

    low: int
    n_keys: int
    mask_R1QS: Tensor | None
    is_causal: bool


class AttentionPlan:
    """How the packed tokens attend: where their keys go, how they are arranged by sequence, and what each may see.

    Attributes:
        slots_N: where each token's keys and values go.
        positions_N: where it stands in its sequence.
        angles_N1P: what rotates its query and key (`KVCache.rotation`).
    """

    def __init__(self, cache: KVCache, rows: Indices, positions: Indices) -> None:
        """Plans for the tokens at (rows[i], positions[i]); the new positions of one sequence are contiguous."""
        self._cache = cache
        self.slots_N = torch.from_numpy(rows * cache.capacity + positions).to(cache.device)
        self.positions_N = torch.from_numpy(positions).to(cache.device)
        self.angles_N1P = cache.rotation(self.positions_N)
        if (rows[1:] > rows[:-1]).all():  # a token of each, as in decoding
            present, first, n_new, places = rows, positions, np.ones(1, dtype=np.int64), None
        else:
            present, first, n_new, places = _arrange(rows, positions)
        self._n_rows, self._n_new, self._n_seen = len(present), int(n_new.max()), int(positions.max()) + 1
        self._places_N = None if places is None else torch.from_numpy(places).to(cache.device)
        self._rows: slice | Tensor | None = None  # all of them
        if present[-1] - present[0] + 1 != len(present):
            self._rows = torch.from_numpy(present).to(cache.device)
        elif len(present) < cache.n_sequences:
            self._rows = slice(int(present[0]), int(present[-1]) + 1)  # a view: nothing is copied
        self._is_same = bool((first == first[0]).all() and (n_new == n_new[0]).all())
        self._first = first[:1] if self._is_same else first
        self._seen: dict[Sight, _Seen] = {}

    def mix(self, q_MW: Tensor, cached: BlockCache, sight: Sight = OWN_ROW) -> Tensor:
        """The values that each query may see, mixed; the keys and values of the new tokens are in the cache already.

        Shapes:
            q_MW: [N x rows that ask, H K]. Returns the same.
        """
        n_asking, n_queries = q_MW.shape[0], self._n_new * sight.queries  # `len` of a tensor is a slow call
        if self._places_N is not None:
            q_NW = q_MW.reshape(len(self._places_N), -1)
            q_MW = q_NW.new_zeros(self._n_rows * self._n_new, q_NW.shape[1]).index_copy_(0, self._places_N, q_NW)
        if n_queries == 1:
            q_RHQK = q_MW.reshape(self._n_rows, -1, 1, cached.head_dim)
        else:
            q_RHQK = q_MW.reshape(self._n_rows, n_queries, -1, cached.head_dim).transpose(1, 2)
        seen = self._seen.get(sight) or self._see(sight)
        k_RGSK, v_RGSK = cached.keys.narrow(2, seen.low, seen.n_keys), cached.values.narrow(2, seen.low, seen.n_keys)
        if self._rows is not None:
            k_RGSK, v_RGSK = k_RGSK[self._rows], v_RGSK[self._rows]
        mixed_RHQK = F.scaled_dot_product_attention(
            q_RHQK,
            k_RGSK,
            v_RGSK,
            attn_mask=seen.mask_R1QS,
            is_causal=seen.is_causal,
            enable_gqa=q_RHQK.shape[1] != k_RGSK.shape[1],
        )
        if n_queries > 1:
            mixed_RHQK = mixed_RHQK.transpose(1, 2)
        if self._places_N is None:
            return mixed_RHQK.reshape(n_asking, -1)
        mixed_NW = mixed_RHQK.reshape(self._n_rows * self._n_new, -1)
        return mixed_NW.index_select(0, self._places_N).view(n_asking, -1)

    def _see(self, sight: Sight) -> _Seen:
        """Works the sight out, for all blocks that have it."""
        if self._is_same and self._n_new == sight.queries == 1 and sight.window is None:  # one query each, that sees all
            self._seen[sight] = _Seen(0, self._n_seen * sight.keys, None, False)
            return self._seen[sight]
        own_A = np.maximum(np.arange(sight.queries) + sight.keys - sight.queries, 0)  # rows that ask are a token's last ones
        tokens_RT = self._first[:, None] + np.arange(self._n_new)
        last_RQ = (tokens_RT[:, :, None] * sight.keys + own_A).reshape(len(self._first), -1)
        high = self._n_seen * sight.keys
        group, size = (sight.window.group_rows, sight.window.size) if sight.window else (1, high)
        oldest_RQ = np.maximum((last_RQ // group - size + 1) * group, 0)
        low = int(oldest_RQ.min())
        sees_all = bool(oldest_RQ.max() == low and last_RQ.min() == high - 1)
        is_triangle = self._is_same and last_RQ.shape[1] == high > 1 and not last_RQ[0, 0] and not oldest_RQ.any()
        mask_R1QS = None
        if not sees_all and not is_triangle:
            key_S = np.arange(low, high)
            mask_RQS = (key_S <= last_RQ[:, :, None]) & (key_S >= oldest_RQ[:, :, None])
            sees_R1QS = torch.from_numpy(mask_RQS[:, None]).to(self._cache.device)
            mask_R1QS = torch.zeros_like(sees_R1QS, dtype=self._cache.dtype).masked_fill_(~sees_R1QS, -torch.inf)  # added to scores
        self._seen[sight] = _Seen(low, high - low, mask_R1QS, is_triangle)
        return self._seen[sight]


def _arrange(rows: Indices, positions: Indices) -> tuple[Indices, Indices, Indices, Indices | None]:
    """By sequence: its number, its first new position, how many are new. And each token's place in an array with as many places for
    every sequence; None when the tokens fill it in order."""
    present, ranks, n_new = np.unique(rows, return_inverse=True, return_counts=True)
    first = np.full(len(present), positions.max())
    np.minimum.at(first, ranks, positions)
    places = ranks * n_new.max() + positions - first[ranks]
    is_filled = len(places) == len(present) * n_new.max() and bool((np.diff(places) == 1).all())
    return present, first, n_new, None if is_filled else places
