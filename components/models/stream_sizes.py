"""FLOPs, parameters and cache bytes of Hidden Decoding, from the settings alone (no torch).

They follow what the model does: blocks whose other streams reach no prediction run for the last stream, and a window is as cheap as
it is narrow. `sizes.py` uses them for models that have streams.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from components.config.schema import Model
from components.config.streams import LocalWindow, Streams


class BlockRows(NamedTuple):
    """Rows per token that one block works on: through the block, and into its K and V."""

    asking: int
    read: int


def block_rows(streams: Streams, depth: int, deepest: int) -> BlockRows:
    """The rows of block `depth` in a pass that ends after block `deepest`."""
    n = streams.n_streams
    is_last_only = streams.supervision == "last" and depth >= streams.mixing_depth(deepest)
    asking = 1 if is_last_only else n
    if streams.layers[depth - 1] == "intra":
        return BlockRows(asking, 1 if is_last_only or streams.kv == "shared" else n)
    return BlockRows(asking, n)


@lru_cache(maxsize=1024)
def visible_keys(kind: str, n_streams: int, asking: int, seq_len: int, window: LocalWindow | None) -> int:
    """Keys that all asking rows of a sequence see together: what attention's scores and mixing are counted by."""
    if kind == "intra":
        return asking * seq_len * (seq_len + 1) // 2
    first = n_streams - 1 if asking == 1 else 0
    row = np.arange(first, n_streams * seq_len, n_streams if asking == 1 else 1, dtype=np.int64)
    seen = row + 1
    if kind == "cross_local" and window is not None:
        if window.unit == "rows":
            seen = np.minimum(seen, window.size)
        else:
            seen = np.minimum(seen, row % n_streams + 1 + (window.size - 1) * n_streams)
    return int(seen.sum())


def streamed_block_flops(model: Model, streams: Streams, depth: int, deepest: int, seq_len: int) -> int:
    """Forward FLOPs per token of block `depth` in a pass that ends after block `deepest`."""
    shape, rows = model.blocks[depth - 1], block_rows(streams, depth, deepest)
    per_asking, per_read = 2 * shape.d_queries + shape.ffn_columns, 2 * shape.d_keys
    matrices = 2 * shape.d_model * (rows.asking * per_asking + rows.read * per_read)
    keys = visible_keys(streams.layers[depth - 1], streams.n_streams, rows.asking, seq_len, streams.local)
    return matrices + 4 * shape.d_queries * keys // seq_len


def streamed_trunk_flops(model: Model, streams: Streams, depth: int, seq_len: int) -> int:
    """Forward FLOPs per token (all its rows together) of the first `depth` blocks."""
    return sum(streamed_block_flops(model, streams, block, depth, seq_len) for block in range(1, depth + 1))


def cache_bytes(model: Model, depth: int, context_tokens: int, bytes_per_value: int) -> int:
    """Bytes of all keys and values that F_depth keeps of `context_tokens` tokens while it decodes, for one sequence.

    A block keeps what it reads: every row of every token; one row a token within streams when K and V are shared or only the last
    stream runs; of a local block, the rows that later rows can still see.
    """
    total = 0
    for block, shape in enumerate(model.blocks[:depth], 1):
        total += 2 * shape.d_keys * bytes_per_value * _cached_rows(model.streams, block, depth, context_tokens)
    return total


def _cached_rows(streams: Streams | None, block: int, deepest: int, context_tokens: int) -> int:
    if streams is None:
        return context_tokens
    rows = block_rows(streams, block, deepest).read * context_tokens
    if streams.layers[block - 1] != "cross_local" or streams.local is None:
        return rows
    per_group = streams.n_streams if streams.local.unit == "tokens" else 1
    return min(rows, streams.local.size * per_group)
