"""From a model with few streams to one with more: which embedding table every new stream starts from.

Works on named tensors, so the optimizer's moments of a table move as the table does. Nothing but the tables changes. With cyclic
replication to a multiple of the streams, the last table stays the last, and the larger model gives the smaller one's predictions
exactly when all blocks are `intra` and positions logical, or when exactly one block is `cross_full` and all positions are logical.

Source:
    Hidden Decoding at Scale (arXiv 2607.08186), progressive expansion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from torch import Tensor

Replication = Literal["cyclic", "block"]

_OTHER_TABLE = re.compile(r"stream_embeddings\.(\d+)\.(.+)")
_FIRST_TABLE = re.compile(r"embeddings\.(.+)")


def table_sources(n_from: int, n_to: int, replication: Replication) -> tuple[int, ...]:
    """Number (from 1) of the old table that each of the `n_to` tables copies: (1, 2, 1, 2) or, in blocks, (1, 1, 2, 2).

    Raises:
        ValueError: fewer streams than before.
    """
    if not 1 <= n_from <= n_to:
        raise ValueError(f"cannot expand {n_from} streams to {n_to}")
    if replication == "cyclic":
        return tuple(stream % n_from + 1 for stream in range(n_to))
    return tuple(stream * n_from // n_to + 1 for stream in range(n_to))


def expand_weights(weights: Mapping[str, Tensor], sources: tuple[int, ...]) -> dict[str, Tensor]:
    """The weights of the model with `len(sources)` streams."""
    return _expand(weights, dict(enumerate(sources, 1)))


def untied(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model whose head is its embedding table, with a head of its own that starts as a copy."""
    return {**weights, "exits.0.head.weight": weights["embeddings.0.weight"].clone()}


def expand_moments(moments: Mapping[str, Tensor], sources: tuple[int, ...]) -> dict[str, Tensor]:
    """The optimizer's state after the expansion: kept, but of each old table's copies only the first has one; others start at 0."""
    first_copies = {sources.index(old) + 1: old for old in sources}
    return _expand(moments, first_copies)


def _expand(tensors: Mapping[str, Tensor], copies: Mapping[int, int]) -> dict[str, Tensor]:
    expanded: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stream, rest = _table_of(name)
        if stream is None:
            expanded[name] = tensor
        for new, old in copies.items():
            if old == stream:
                expanded[_name_in(new, rest)] = tensor.clone()
    return expanded


def _table_of(name: str) -> tuple[int | None, str]:
    """(number of the table from 1, name within it) of a tensor; None for what belongs to no table."""
    if match := _OTHER_TABLE.fullmatch(name):
        return int(match[1]) + 2, match[2]
    if match := _FIRST_TABLE.fullmatch(name):
        return 1, match[1]
    return None, name


def _name_in(stream: int, rest: str) -> str:
    return f"embeddings.{rest}" if stream == 1 else f"stream_embeddings.{stream - 2}.{rest}"
