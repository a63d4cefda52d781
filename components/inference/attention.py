"""Attention of packed new tokens to the cached past of their own sequence.

The new tokens of a batch are packed one after another, whatever their sequence and position, so nothing is computed for padding
outside of attention. What attention then needs depends only on where the tokens stand: an `AttentionPlan` works that out once and
serves every block until the set of tokens changes.

Shapes: N packed tokens, R sequences among them, T most new tokens of one sequence, S cached positions, H heads, K channels a head.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from components.inference.cache import Indices, KVCache


class AttentionPlan:
    """How the packed tokens attend: where their keys go, how they are arranged by sequence, and what each may see.

    Attributes:
        slots_N: where each token's keys and values go.
        cos, sin: what rotates its query and key (`KVCache.rotation`).
    """

    def __init__(self, cache: KVCache, rows: Indices, positions: Indices) -> None:
        """Plans for the tokens at (rows[i], positions[i]); the new positions of one sequence are contiguous."""
        self._cache = cache
        self.slots_N = torch.from_numpy(rows * cache.capacity + positions).to(cache.device)
        self.cos, self.sin = cache.rotation(torch.from_numpy(positions).to(cache.device))
        present, ranks, counts = np.unique(rows, return_inverse=True, return_counts=True)
        first = np.full(len(present), cache.capacity)
        np.minimum.at(first, ranks, positions)
        self._n_rows, self._n_new, self._n_seen = len(present), int(counts.max()), int(positions.max()) + 1
        self._rows: slice | Tensor = torch.from_numpy(present).to(cache.device)
        if present[-1] - present[0] + 1 == len(present):
            self._rows = slice(int(present[0]), int(present[-1]) + 1)  # a view: nothing is copied
        places = ranks * self._n_new + positions - first[ranks]
        in_order = len(places) == self._n_rows * self._n_new and bool((np.diff(places) == 1).all())
        self._places_N = None if in_order else torch.from_numpy(places).to(cache.device)
        is_same = bool((first == first[0]).all() and (counts == counts[0]).all())
        self._is_causal = is_same and int(first[0]) == 0 and self._n_new > 1  # a plain triangle
        sees_all = is_same and self._n_new == 1
        self._mask_R1TS = None if self._is_causal or sees_all else self._mask(first[:1] if is_same else first)

    def _mask(self, first: Indices) -> Tensor:
        """Bool, True where attending is allowed: up to the query's own position."""
        starts = torch.from_numpy(first).to(self._cache.device)
        last_RT = starts[:, None] + torch.arange(self._n_new, device=self._cache.device)
        seen_S = torch.arange(self._n_seen, device=self._cache.device)
        return (seen_S <= last_RT[:, :, None])[:, None]

    def mix(self, q_NHK: Tensor, cached_2SHK: Tensor) -> Tensor:
        """The values that each new token may see, mixed; its own key and value are in the cache already.

        Shapes:
            q_NHK: [N, H, K], as is the result. cached_2SHK: keys, then values, of all slots, [2, R * S, H, K].
        """
        heads = q_NHK.shape[1:]
        if self._places_N is not None:
            padded = q_NHK.new_zeros(self._n_rows * self._n_new, *heads)
            q_NHK = padded.index_copy_(0, self._places_N, q_NHK)
        q_RHTK = q_NHK.view(self._n_rows, self._n_new, *heads).transpose(1, 2)
        cached_2RSHK = cached_2SHK.view(2, self._cache.n_sequences, self._cache.capacity, *heads)
        k_RHSK, v_RHSK = cached_2RSHK[:, self._rows, : self._n_seen].transpose(2, 3).unbind()
        mixed_RHTK = F.scaled_dot_product_attention(q_RHTK, k_RHSK, v_RHSK, attn_mask=self._mask_R1TS, is_causal=self._is_causal)
        mixed_NHK = mixed_RHTK.transpose(1, 2).flatten(0, 1)
        return mixed_NHK if self._places_N is None else mixed_NHK.index_select(0, self._places_N)
