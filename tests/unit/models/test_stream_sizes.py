"""Formulas of streams against counted runs, counted keys and real caches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from components.config.streams import LocalWindow
from components.models.sizes import head_flops, prefix_flops, prefix_parameters, trunk_flops
from components.models.stream_sizes import block_rows, cache_bytes, visible_keys
from tests.toys import VOCAB, toy_model, toy_tokens
from tests.unit.models.stream_reference import visible_rows
from tests.unit.models.test_streams import LAYOUTS, toy_streamed, toy_streams
from tests.unit.models.test_streams_mirror import DENSE, KINDS


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize(
    ("kind", "window"), [("intra", None), ("cross_full", None), ("cross_local", (4, "rows")), ("cross_local", (3, "tokens"))]
)
def test_visible_keys_are_those_of_the_mask(kind: str, window: tuple[int, str] | None, last_only: bool, n: int) -> None:
    seen = visible_rows(kind, n, 11, window)
    asking = seen[n - 1 :: n] if last_only else seen
    local = None if window is None else LocalWindow.model_validate({"size": window[0], "unit": window[1]})
    assert visible_keys(kind, n, 1 if last_only else n, 11, local) == int(asking.sum())


@pytest.mark.parametrize("depth", range(1, 6))
def test_one_stream_costs_what_the_base_costs(depth: int) -> None:
    base, streamed = toy_model(), toy_model(streams=toy_streams(n_streams=1, layers=("intra",) * 5))
    assert prefix_flops(streamed, VOCAB, depth, 32) == prefix_flops(base, VOCAB, depth, 32)
    assert prefix_parameters(streamed, VOCAB, depth) == prefix_parameters(base, VOCAB, depth)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("depth", [1, 3, 5])
def test_matrix_flops_equal_a_counted_run(layout: str, depth: int) -> None:
    model = toy_streamed(dtype=torch.float32, **LAYOUTS[layout])
    with FlopCounterMode(display=False) as counter:
        model(toy_tokens(1, 12), depth)
    counts = counter.get_flop_counts()["Global"]
    products = sum(flops for op, flops in counts.items() if str(op) in ("aten.mm", "aten.addmm"))
    settings, streams = model.settings, model.streams
    attention = 0
    for block in range(1, depth + 1):
        asking = block_rows(streams, block, depth).asking
        width = settings.prefix(block).segments[-1].d_model
        attention += 4 * width * visible_keys(streams.layers[block - 1], streams.n_streams, asking, 12, streams.local) // 12
    assert prefix_flops(settings, VOCAB, depth, 12) - attention == products / 12


def test_mirrored_blocks_cost_one_stream_and_all_supervision_one_head_per_stream() -> None:
    shape: dict[str, Any] = {"model": {"segments": DENSE}, "layers": KINDS}
    plain, mirrored = (toy_streamed(**shape, n_mirrored=m).settings for m in (0, 3))
    d_model, ratio = 24, plain.ffn_ratio
    # without, the last block across streams, 5, and all deeper ones run for one stream; with, 3, whose input is mirrored last, too:
    # it loses two of three streams; 4 their queries, outputs and SwiGLUs, but makes keys of all
    saved = trunk_flops(plain, 6, 32) - trunk_flops(mirrored, 6, 32)
    keys = sum(visible_keys(KINDS[block], 3, 3, 32, plain.streams.local) for block in (2, 3))
    kept = sum(visible_keys(KINDS[block], 3, 1, 32, plain.streams.local) for block in (2, 3))
    assert saved == pytest.approx(2 * 2 * 2 * d_model**2 * (3 + 3 * ratio) + 4 * d_model * (keys - kept) / 32, abs=4)
    every = toy_streamed(**shape, supervision="all").settings
    assert head_flops(every, VOCAB, 6) == 3 * head_flops(plain, VOCAB, 6)


def test_parameters_count_a_table_per_stream() -> None:
    model = toy_streamed(n_streams=4)
    unused = sum(p.numel() for out in list(model.exits)[:-1] for p in out.parameters())
    assert prefix_parameters(model.settings, VOCAB, 5) == sum(p.numel() for p in model.parameters()) - unused


@pytest.mark.parametrize("depth", [2, 5])
def test_cache_bytes_are_the_rows_that_keys_are_made_of(depth: int) -> None:
    """K and V of a real pass, less those that no later row can see."""
    window = {"size": 4, "unit": "tokens"}
    model = toy_streamed(
        n_streams=3, kv="shared", layers=("intra", "cross_full", "cross_local", "intra", "cross_full"), local=window
    )
    values = 0
    for block in range(1, depth + 1):
        read = model.rule(block, depth).read
        rows = len(range(60)[read])
        if model.streams.layers[block - 1] == "cross_local":
            rows = 4 * 3
        values += 2 * rows * model.blocks[block - 1].attention.qkv.in_features
    assert cache_bytes(model.settings, depth, 20, 2) == 2 * values


def test_cache_bytes_by_hand() -> None:
    base = toy_model()
    # blocks of 16, 16, 24, 24, 32 channels, K and V, 10 tokens, 4 bytes
    assert cache_bytes(base, 5, 10, 4) == 2 * (16 + 16 + 24 + 24 + 32) * 10 * 4
    dense = toy_model(streams=toy_streams(n_streams=4, layers=("cross_full",) * 5))
    assert cache_bytes(dense, 5, 10, 4) == 4 * cache_bytes(base, 5, 10, 4)
