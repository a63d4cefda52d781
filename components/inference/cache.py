"""Keys, values and resting residual streams of past tokens, preallocated for a batch of sequences of different lengths and depths.

Tokens need not all have come equally deep: a sequence that was decoded at depth 4 after a prompt at depth 8 has keys and values of
blocks 5-8 for its prompt only. Per sequence the cache therefore counts, block by block, how many tokens have come through it. Those
counts never grow with depth, because the engine brings every token at least as deep as it runs. A token that has not come to the
last cached block leaves its residual stream behind ("rests"), so that it can go on later without starting over.

Everything is counted in tokens. With n hidden-decoding streams a token has n rows, of which each block keeps those that it reads:
they lie next to each other, and so do the rows that rest.

Shapes: R sequences, S positions (tokens), C keys a token, G key and value heads, K channels per head, W width of a token's resting
rows together, N tokens packed one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from components.config.model import BlockShape
from components.config.schema import Model
from components.models.blocks import rotary_angles

Indices = npt.NDArray[np.int64]


class BlockCache:
    """Keys and values of one block.

    A row's keys and values lie next to each other, so that they are written by one copy of what the block's matrix gave. Rows of a
    token that see only their own kind count as heads of one key.

    Attributes:
        keys, values: [R, heads, S * C, K], views; position p of sequence r is at [r, :, p * C : (p + 1) * C].
        head_dim: K.
    """

    def __init__(self, kept: Tensor, n_sequences: int, shape: BlockShape) -> None:
        """Takes the memory, [R * S * C, 2, rows that count as heads, G * K]."""
        self._apart, self.head_dim = kept.shape[2], shape.head_dim
        self._kept = kept if self._apart > 1 else kept.flatten(1)
        by_head = kept.view(n_sequences, -1, 2, self._apart * shape.n_kv_heads, shape.head_dim)
        self.keys, self.values = by_head.permute(2, 0, 3, 1, 4).unbind()

    @property
    def n_bytes(self) -> int:
        """Bytes of keys and values, used or not."""
        return self._kept.numel() * self._kept.element_size()

    def put(self, slots_N: Tensor, kv_MW: Tensor) -> None:
        """Writes rows, the keys of all heads and then the values in each, to the slots of their keys.

        Shapes:
            slots_N: slot of position p of sequence r is r * S + p, times C. kv_MW: [N * rows that count as heads, 2 * G * K].
        """
        if self._apart > 1:
            kv_MW = kv_MW.view(len(slots_N), self._apart, 2, -1).transpose(1, 2)
        self._kept.index_copy_(0, slots_N, kv_MW)


class KVCache:
    """The cache of one batch.

    Attributes:
        capacity: positions that each sequence can hold.
        deepest: blocks that have a cache; no sequence can run deeper.
        blocks: keys and values of each.
        tokens: int64 [R * S], on the host; position p of sequence r is slot r * S + p.
        device, dtype: of the blocks.
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
        rows: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """Allocates everything at once; nothing grows later.

        Args:
            n_streams: rows of a token.
            rows: of these, how many each block keeps, and how many keys they make: as many, or one with the rows as heads, which is
                the default.

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
        self.tokens = np.zeros(n_slots, dtype=np.int64)
        self.device, self.dtype = torch.device(device), dtype
        self.blocks = [
            self.new_block(shape, n_rows, n_keys)
            for shape, (n_rows, n_keys) in zip(shapes, rows or [(n_streams, 1)] * deepest, strict=True)
        ]
        # a token that has come to the last block never rests
        resting_width = n_streams * shapes[-2].d_model if deepest > 1 else 0
        self._resting = torch.zeros(n_slots, resting_width, dtype=dtype, device=device)
        self._counts = np.zeros((n_sequences, deepest + 1), dtype=np.int64)
        positions = torch.arange(n_streams * capacity, device=device)
        turned = rotary_angles(positions, model.head_dim, model.rope_theta, model.rope_scaling)
        half = model.head_dim // 2
        self._angles = torch.complex(turned.cos[:, 0, :, :half], turned.sin[:, 0, :, half:])

    def new_block(self, shape: BlockShape, n_rows: int = 1, n_keys: int = 1) -> BlockCache:
        """Room for the keys and values of one more block."""
        kept = torch.zeros(len(self.tokens) * n_keys, 2, n_rows // n_keys, shape.d_keys, dtype=self.dtype, device=self.device)
        return BlockCache(kept, self.n_sequences, shape)

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
        for row, tokens in new_tokens.items():
            first = row * self.capacity + self.length(row)
            self.tokens[first : first + len(tokens)] = tokens
            self._counts[row, 0] += len(tokens)

    def crop(self, row: int, n_tokens: int) -> None:
        """Keeps exactly the first `n_tokens` tokens of a sequence.

        Raises:
            ValueError: it has fewer.
        """
        if not 0 <= n_tokens <= self.length(row):
            raise ValueError(f"cannot keep {n_tokens} tokens of sequence {row}: it has {self.length(row)}")
        np.minimum(self._counts[row], n_tokens, out=self._counts[row])

    def waiting(self, rows: Sequence[int], depth: int) -> tuple[Indices, Indices]:
        """Sequence and position of every token, of these sequences, that has come through block `depth - 1` and no further."""
        counts = self._counts[rows]
        first = counts[:, depth]
        n_waiting = counts[:, depth - 1] - first
        ends = n_waiting.cumsum()
        return np.repeat(rows, n_waiting), np.arange(ends[-1]) + np.repeat(first - ends + n_waiting, n_waiting)

    def starts(self, rows: Sequence[int]) -> set[int]:
        """Depths of the blocks that tokens of these sequences are waiting for."""
        counts = self._counts[rows]
        return set(((counts[:, :-1] > counts[:, 1:]).nonzero()[1] + 1).tolist())

    def mark_passed(self, rows: Sequence[int], depth: int) -> None:
        """Records that all tokens of these sequences have come through block `depth`."""
        self._counts[rows, 1 : depth + 1] = self._counts[rows, :1]

    def rest(self, slots_N: Tensor, x_NW: Tensor) -> None:
        """Keeps the residual streams of tokens that stop before the last cached block."""
        self._resting[:, : x_NW.shape[1]].index_copy_(0, slots_N, x_NW)

    def take_up(self, slots_N: Tensor, width: int) -> Tensor:
        """The residual streams of resting tokens, [N, width]."""
        return self._resting[:, :width].index_select(0, slots_N)

    def rotation(self, positions_N: Tensor) -> Tensor:
        """The complex numbers that turn pairs of channels by the angles of the given positions, [N, 1, K / 2]."""
        return self._angles.index_select(0, positions_N)
