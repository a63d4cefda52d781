"""The engine with Hidden Decoding streams against the full forward pass: every kind of block, depth and number of streams."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from components.config.schema import Segment
from components.inference.engine import Engine, Feed
from components.inference.generate import Completion, Request, generate
from components.inference.speculative import Speculation, SpeculationCounts, speculate
from components.models.stream_sizes import cache_bytes
from components.models.streams import StreamedCascade
from tests.toys import toy_tokens
from tests.unit.models.test_streams import toy_streamed

TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}  # float32: the same sums in another order
DEPTHS = range(1, 6)
MIXED = ("intra", "cross_full", "intra", "cross_local", "intra")
IN_TWO: dict[str, Any] = {"model": {"segments": (Segment(n_blocks=1, d_model=16), Segment(n_blocks=4, d_model=24))}}
GROUPED_SEGMENTS = (
    Segment(n_blocks=2, d_model=16, n_heads=4, n_kv_heads=2),
    Segment(n_blocks=3, d_model=24, n_heads=6, n_kv_heads=2),
)
GROUPED: dict[str, Any] = {"model": {"segments": GROUPED_SEGMENTS, "head_dim": 4, "qk_norm": True}}
LAYOUTS: dict[str, dict[str, Any]] = {
    "by layer": {},
    "all cross, physical": {"rope_rule": "physical", "layers": ("cross_full",) * 5},
    "logical": {"rope_rule": "logical"},
    "all intra, physical": {"layers": ("intra",) * 5, "rope_rule": "physical"},
    "window of tokens": {"layers": ("cross_local",) * 5, "local": {"size": 3, "unit": "tokens"}},
    "window of rows": {"layers": ("cross_local",) * 5, "local": {"size": 5, "unit": "rows"}},
    "one row": {"layers": ("cross_local", "intra", "cross_local", "intra", "cross_local"), "local": {"size": 1, "unit": "rows"}},
    "shared": {"kv": "shared"},
    "sum": {"supervision": "sum"},
    "all predict": {"supervision": "all", "layers": ("cross_full", "intra", "cross_full", "intra", "intra")},
    "junction norm": {"model": {"junction_norm": True}},
    "mirrored": {**IN_TWO, "layers": ("intra", "cross_full", "intra", "intra", "cross_full"), "n_mirrored": 2},
    "mirrored local": {**IN_TWO, "layers": ("intra", "intra", "cross_local", "cross_local", "intra"), "n_mirrored": 2},
    "mirrored shared": {**IN_TWO, "layers": ("intra",) * 5, "n_mirrored": 2, "kv": "shared"},
    "grouped heads": GROUPED,
    "grouped heads, mirrored": {**GROUPED, "layers": (*MIXED[:3], "cross_full", "cross_full"), "n_mirrored": 1},
}  # fmt: skip


def _model(layout: str, seed: int = 0) -> StreamedCascade:
    """Weights small enough that a logit's rounding, on any CPU, is well below the tolerance."""
    changes = {"layers": MIXED, **LAYOUTS[layout]}
    shape = {"init_std": 0.1, **changes.pop("model", {})}
    return toy_streamed(seed, dtype=torch.float32, model=shape, n_streams=4, **changes).eval()


def _feed(engine: Engine, row: int, tokens: torch.Tensor, depth: int) -> torch.Tensor:
    """Logits of all tokens that came to `depth`."""
    arrivals = engine.advance([Feed(row, tokens.tolist(), depth)])
    return engine.logits(arrivals, last_only=False)[0]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_decoding_token_by_token_equals_the_full_forward(layout: str, n: int) -> None:
    """With a cache of the whole model, and with one that ends at the depth, where other streams are left out."""
    model, tokens = _model(layout), toy_tokens(1, 14)
    with model.running(n), torch.no_grad():
        for depth in DEPTHS:
            wanted = model(tokens, depth)[0]
            for deepest in {depth, 5}:
                engine = Engine(model, 1, 14, deepest)
                decoded = torch.cat([_feed(engine, 0, token[None], depth) for token in tokens[0]])
                torch.testing.assert_close(decoded, wanted, **TOLERANCE)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_prompt_may_be_cut_anywhere(layout: str, n: int) -> None:
    model, tokens = _model(layout), toy_tokens(1, 9)
    with model.running(n), torch.no_grad():
        for depth in (2, 5):
            wanted = model(tokens, depth)[0]
            for cut in range(1, 9):
                engine = Engine(model, 1, 9, depth)
                parts = [_feed(engine, 0, part, depth) for part in (tokens[0, :cut], tokens[0, cut:])]
                torch.testing.assert_close(torch.cat(parts), wanted, **TOLERANCE)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ragged_batch_with_a_depth_per_request_and_token(layout: str, n: int) -> None:
    """Rows of random lengths, chunks and depths that wander, some idle in some calls; cropped now and then."""
    model, chance = _model(layout), random.Random(n)
    lengths = [chance.randint(6, 16) for _ in range(4)]
    texts = [toy_tokens(1, length, i)[0] for i, length in enumerate(lengths)]
    with model.running(n), torch.no_grad():
        cold = [{depth: model(text[None], depth)[0] for depth in DEPTHS} for text in texts]
        engine = Engine(model, 4, 16)
    done = [0] * 4
    while any(done[i] < lengths[i] for i in range(4)):
        chosen = [i for i in range(4) if done[i] < lengths[i] and chance.random() < 0.8]
        chance.shuffle(chosen)
        if not chosen:
            continue
        for i in chosen:
            if done[i] > 4 and chance.random() < 0.2:
                done[i] -= 2
                engine.cache.crop(i, done[i])
        ends = {i: min(lengths[i], done[i] + chance.randint(1, 4)) for i in chosen}
        depths = {i: chance.choice(DEPTHS) for i in chosen}
        arrivals = engine.advance([Feed(i, texts[i][done[i] : ends[i]].tolist(), depths[i]) for i in chosen])
        for i, logits in zip(chosen, engine.logits(arrivals, last_only=False), strict=True):
            torch.testing.assert_close(logits, cold[i][depths[i]][ends[i] - len(logits) : ends[i]], **TOLERANCE)
            done[i] = ends[i]


@pytest.mark.parametrize("layout", ["by layer", "shared", "mirrored", "sum"])
def test_going_deeper_computes_only_the_missing_blocks_of_past_tokens(layout: str) -> None:
    model, tokens = _model(layout), toy_tokens(1, 10)
    for shallow, deep in ((1, 3), (2, 5), (4, 5)):
        engine = Engine(model, 1, 10)
        _feed(engine, 0, tokens[0], shallow)
        deepened = _feed(engine, 0, tokens[0, :0], deep)
        assert engine.work == 10 * deep
        with torch.no_grad():
            torch.testing.assert_close(deepened, model(tokens, deep)[0], **TOLERANCE)


@pytest.mark.parametrize("layout", ["by layer", "mirrored", "window of tokens", "sum"])
@pytest.mark.parametrize("n", [2, 4])
def test_speculative_text_is_token_for_token_the_plain_one(layout: str, n: int) -> None:
    model = _model(layout)
    requests = [Request(tuple(toy_tokens(1, 1 + seed % 5, seed)[0].tolist()), 5, 8) for seed in range(4)]
    with model.running(n):
        plain = generate(model, requests)
        for draft in (1, 2, 4):
            for request, wanted in zip(requests, plain, strict=True):
                completion = Completion([], None)
                list(speculate(model, request, Speculation(draft, 3), completion, SpeculationCounts()))
                assert completion == wanted


def test_an_engine_keeps_the_streams_that_its_model_ran_when_it_was_made() -> None:
    model, tokens = _model("by layer"), toy_tokens(1, 6)
    with model.running(2), torch.no_grad():
        engine, wanted = Engine(model, 1, 6), model(tokens, 5)[0]
    torch.testing.assert_close(_feed(engine, 0, tokens[0], 5), wanted, **TOLERANCE)


@pytest.mark.parametrize("layout", ["by layer", "all cross, physical", "shared", "mirrored", "sum", "grouped heads"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_cache_takes_the_bytes_that_planning_counts(layout: str, n: int) -> None:
    model = _model(layout)
    for depth in DEPTHS:
        with model.running(n):
            taken = Engine(model, 3, 9, depth).kv_bytes(1)  # a token that every window sees
        assert taken == 3 * cache_bytes(model.settings.serving(n), depth, 1, 4)


@pytest.mark.parametrize("layout", ["window of tokens", "window of rows"])
def test_a_local_block_keeps_the_rows_that_have_left_its_window_and_counts_them(layout: str) -> None:
    """The engine can be cropped to any length, so it keeps what a server that never goes back would drop."""
    model, whole = _model(layout), _model("all cross, physical")
    taken = Engine(model, 3, 9).kv_bytes(7)
    assert taken == 3 * cache_bytes(whole.settings.serving(4), 5, 7, 4)
    assert taken > 3 * cache_bytes(model.settings.serving(4), 5, 7, 4)
