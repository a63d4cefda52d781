"""Keys, values and resting residual streams of past tokens, preallocated for a batch of sequences of different lengths and depths.

Tokens need not all have come equally deep: a sequence that was decoded at depth 4 after a prompt at depth 8 has keys and values of
blocks 5-8 for its prompt only. Per sequence the cache therefore counts, block by block, how many tokens have come through it. Those
counts never grow with depth, because the engine brings every token at least as deep as it runs. A token that has not come to the
last cached block leaves its residual stream behind ("rests"), so that it can go on later without starting over.

Everything is counted in tokens. With n hidden-decoding streams a token has n rows, of which each block keeps those that it reads:
they lie next to each other, and so do the rows that rest.

Shapes: R sequences, S positions (tokens), G key and value heads, K channels per head, W width of a token's resting rows together,
N tokens packed one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from components.config.schema import Model
from components.models.blocks import rotary_angles

Indices = npt.NDArray[np.int64]


class KVCache:
    """The cache of one batch.

    Attributes:
        capacity: positions that each sequence can hold.
        deepest: blocks that have a cache; no sequence can run deeper.
        blocks: keys, then values, of each block, [2, R * S * rows, G, K]; position p of sequence r is slot r * capacity + p.
        tokens: int64 [R * S], in the same slots.
    """

    def __init__(
        self,
        model: Model,
        n_sequences: int,
        capacity: int,
        deepest: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        n_streams: int = 1,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Allocates everything at once; nothing grows later.

        Args:
            n_streams: rows of a token.
            rows: of these, how many each block keeps; all by default.

        Raises:
            ValueError: no sequence, no position, or `deepest` outside the model.
        """
        if n_sequences < 1 or capacity < 1 or not 1 <= deepest <= model.n_blocks:
            raise ValueError(
                f"a cache needs a sequence, a position and a depth in 1..{model.n_blocks}; got {n_sequences} sequences, "
                f"{capacity} positions, depth {deepest}"
            )
        self.n_sequences, self.capacity, self.deepest = n_sequences, capacity, deepest
        shapes, n_slots = model.blocks[:deepest], n_sequences * capacity
        self.blocks = [
            torch.zeros(2, n_slots * n_rows, shape.n_kv_heads, shape.head_dim, dtype=dtype, device=device)
            for shape, n_rows in zip(shapes, rows or [n_streams] * deepest, strict=True)
        ]
        self.tokens = torch.zeros(n_slots, dtype=torch.int64, device=device)
        # a token that has come to the last block never rests
        resting_width = n_streams * shapes[-2].d_model if deepest > 1 else 0
        self._resting = torch.zeros(n_slots, resting_width, dtype=dtype, device=device)
        self._counts = np.zeros((n_sequences, deepest + 1), dtype=np.int64)
        positions = torch.arange(n_streams * capacity, device=device)
        angles = rotary_angles(positions, model.head_dim, model.rope_theta, model.rope_scaling)
        self._cos = torch.cat((angles.cos, angles.cos), -1).to(dtype)[:, 0]
        self._sin = torch.cat((-angles.sin, angles.sin), -1).to(dtype)[:, 0]

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    @property
    def n_bytes(self) -> int:
        """Bytes of keys and values, used or not."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.blocks)

    def length(self, row: int) -> int:
        """Tokens of a sequence."""
        return int(self._counts[row, 0])

    def passed(self, row: int, depth: int) -> int:
        """Tokens of a sequence that have come through block `depth`, whose keys and values are therefore here."""
        return int(self._counts[row, depth])

    def extend(self, new_tokens: Mapping[int, Sequence[int]]) -> None:
        """Appends tokens, by sequence, that have not come through any block yet.

        Raises:
            ValueError: a sequence would overflow; nothing is changed.
        """
        for row, tokens in new_tokens.items():
            start = self.length(row)
            if start + len(tokens) > self.capacity:
                raise ValueError(f"sequence {row} is full: {start} + {len(tokens)} tokens, capacity {self.capacity}")
        slots, flat = list[int](), list[int]()
        for row, tokens in new_tokens.items():
            first = row * self.capacity + self.length(row)
            slots.extend(range(first, first + len(tokens)))
            flat.extend(tokens)
            self._counts[row, 0] += len(tokens)
        if flat:
            self.tokens.index_copy_(0, torch.tensor(slots, device=self.device), torch.tensor(flat, device=self.device))

    def crop(self, row: int, n_tokens: int) -> None:
        """Keeps exactly the first `n_tokens` tokens of a sequence.

        Raises:
            ValueError: it has fewer.
        """
        if not 0 <= n_tokens <= self.length(row):
            raise ValueError(f"cannot keep {n_tokens} tokens of sequence {row}: it has {self.length(row)}")
        np.minimum(self._counts[row], n_tokens, out=self._counts[row])

    def waiting(self, row: int, depth: int) -> Indices:
        """Positions of the tokens that have come through block `depth - 1` and no further, in order."""
        return np.arange(self._counts[row, depth], self._counts[row, depth - 1])

    def starts(self, rows: Sequence[int]) -> set[int]:
        """Depths of the blocks that tokens of these sequences are waiting for."""
        counts = self._counts[list(rows)]
        return set((np.flatnonzero((counts[:, :-1] > counts[:, 1:]).any(axis=0)) + 1).tolist())

    def mark_passed(self, row: int, depth: int) -> None:
        """Records that all tokens of a sequence have come through block `depth`."""
        self._counts[row, 1 : depth + 1] = self._counts[row, 0]

    def rest(self, slots_N: Tensor, x_NW: Tensor) -> None:
        """Keeps the residual streams of tokens that stop before the last cached block."""
        self._resting[:, : x_NW.shape[1]].index_copy_(0, slots_N, x_NW)

    def take_up(self, slots_N: Tensor, width: int) -> Tensor:
        """The residual streams of resting tokens, [N, width]."""
        return self._resting[:, :width].index_select(0, slots_N)

    def rotation(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin of the given positions: x cos + (x with its halves swapped) sin turns x by its position's angle.

        Shapes:
            [N, 1, K] each.
        """
        return self._cos.index_select(0, positions_N), self._sin.index_select(0, positions_N)
