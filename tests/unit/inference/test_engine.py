"""The engine against the full forward pass: any depth, ragged batches, any cut, any switch of depth."""

from __future__ import annotations

import random

import pytest
import torch

from components.config.schema import Segment
from components.inference.engine import Engine, Feed
from components.models.cascade import Cascade
from components.models.repaired import Repaired, RepairPart
from components.models.stream_sizes import cache_bytes
from tests.toys import VOCAB, toy_cascade, toy_model, toy_tokens

DEPTHS = range(1, 6)
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}  # float32: the same sums in another order


def _cascade(junction_norm: bool = False) -> Cascade:
    return toy_cascade(dtype=torch.float32, junction_norm=junction_norm)


def _feed(engine: Engine, row: int, tokens: torch.Tensor, depth: int) -> torch.Tensor:
    """Logits of all tokens that came to `depth`."""
    arrivals = engine.advance([Feed(row, tokens.tolist(), depth)])
    return engine.logits(arrivals, last_only=False)[0]


@pytest.mark.parametrize("junction_norm", [False, True])
@pytest.mark.parametrize("depth", DEPTHS)
def test_decoding_token_by_token_equals_the_full_forward(depth: int, junction_norm: bool) -> None:
    model, tokens = _cascade(junction_norm), toy_tokens(1, 20)
    engine = Engine(model, 1, 20)
    decoded = torch.cat([_feed(engine, 0, token[None], depth) for token in tokens[0]])
    torch.testing.assert_close(decoded, model(tokens, depth)[0], **TOLERANCE)


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_prompt_may_be_cut_anywhere(depth: int) -> None:
    model, tokens = _cascade(), toy_tokens(1, 12)
    whole = model(tokens, depth)[0]
    for cut in range(1, 12):
        engine = Engine(model, 1, 12)
        parts = [_feed(engine, 0, part, depth) for part in (tokens[0, :cut], tokens[0, cut:])]
        torch.testing.assert_close(torch.cat(parts), whole, **TOLERANCE)


@pytest.mark.parametrize("seed", range(8))
def test_ragged_batch_with_a_depth_per_request_equals_single_forwards(seed: int) -> None:
    """Rows of random lengths, depths and chunks, some of them idle in some calls."""
    model, chance = _cascade(seed % 2 == 1), random.Random(seed)
    lengths = [chance.randint(3, 20) for _ in range(5)]
    depths = [chance.choice(DEPTHS) for _ in lengths]
    texts = [toy_tokens(1, length, seed + i)[0] for i, length in enumerate(lengths)]
    engine = Engine(model, 5, 20)
    done, got = [0] * 5, [[] for _ in lengths]
    while any(done[i] < lengths[i] for i in range(5)):
        chosen = [i for i in range(5) if done[i] < lengths[i] and chance.random() < 0.8]
        chance.shuffle(chosen)
        if not chosen:
            continue
        ends = {i: min(lengths[i], done[i] + chance.randint(1, 4)) for i in chosen}
        arrivals = engine.advance([Feed(i, texts[i][done[i] : ends[i]].tolist(), depths[i]) for i in chosen])
        for i, logits in zip(chosen, engine.logits(arrivals, last_only=False), strict=True):
            got[i].append(logits)
            done[i] = ends[i]
    for i, text in enumerate(texts):
        torch.testing.assert_close(torch.cat(got[i]), model(text[None], depths[i])[0], **TOLERANCE)


@pytest.mark.parametrize("seed", range(20))
def test_depth_may_change_at_every_token(seed: int) -> None:
    """Two sequences that wander through depths: every logit is that of a cold forward at its depth."""
    model, chance, tokens = _cascade(seed % 2 == 1), random.Random(seed), toy_tokens(2, 16, seed)
    cold = {depth: model(tokens, depth) for depth in DEPTHS}
    engine = Engine(model, 2, 16)
    for at in range(16):
        depths = [chance.choice(DEPTHS) for _ in range(2)]
        arrivals = engine.advance([Feed(row, [int(tokens[row, at])], depths[row]) for row in range(2)])
        for row, logits in enumerate(engine.logits(arrivals)):
            torch.testing.assert_close(logits[0], cold[depths[row]][row, at], **TOLERANCE)


@pytest.mark.parametrize(("shallow", "deep"), [(s, d) for s in DEPTHS for d in DEPTHS if s < d])
def test_going_deeper_computes_only_the_missing_blocks_of_past_tokens(shallow: int, deep: int) -> None:
    model, tokens = _cascade(), toy_tokens(1, 10)
    engine = Engine(model, 1, 10)
    _feed(engine, 0, tokens[0], shallow)
    assert engine.work == 10 * shallow
    deepened = _feed(engine, 0, tokens[0, :0], deep)
    assert engine.work == 10 * deep
    torch.testing.assert_close(deepened, model(tokens, deep)[0], **TOLERANCE)
    assert engine.cache.passed(0, deep) == 10


def test_going_shallower_keeps_deep_entries_for_the_way_back() -> None:
    model, tokens = _cascade(), toy_tokens(1, 12)
    engine = Engine(model, 1, 12)
    _feed(engine, 0, tokens[0, :8], 5)
    _feed(engine, 0, tokens[0, 8:11], 2)
    before = engine.work
    back = _feed(engine, 0, tokens[0, 11:], 5)
    assert engine.work - before == 3 * 3 + 5  # three resting tokens through blocks 3-5, one new one through all
    torch.testing.assert_close(back, model(tokens, 5)[0, 8:], **TOLERANCE)


@pytest.mark.parametrize("depth", [2, 5])
def test_cropping_forgets_exactly_the_tokens_after(depth: int) -> None:
    model, tokens, other = _cascade(), toy_tokens(1, 10), toy_tokens(1, 4, 7)
    engine = Engine(model, 1, 10)
    _feed(engine, 0, tokens[0], depth)
    engine.cache.crop(0, 6)
    assert engine.cache.length(0) == 6
    again = _feed(engine, 0, other[0], depth)
    torch.testing.assert_close(again, model(torch.cat((tokens[:, :6], other), 1), depth)[0, 6:], **TOLERANCE)


@pytest.mark.parametrize("n_tokens", [-1, 5])
def test_cropping_to_more_than_there_is_raises(n_tokens: int) -> None:
    engine = Engine(_cascade(), 1, 8)
    _feed(engine, 0, toy_tokens(1, 4)[0], 3)
    with pytest.raises(ValueError, match=f"cannot keep {n_tokens} tokens of sequence 0: it has 4"):
        engine.cache.crop(0, n_tokens)
    assert engine.cache.length(0) == 4


def test_the_cache_refuses_to_overflow_and_changes_nothing() -> None:
    model, tokens = _cascade(), toy_tokens(1, 9)
    engine = Engine(model, 2, 8)
    _feed(engine, 0, tokens[0, :6], 5)
    with pytest.raises(ValueError, match=r"sequence 0 is full: 6 \+ 3 tokens, capacity 8"):
        engine.advance([Feed(1, [1, 2], 5), Feed(0, tokens[0, 6:].tolist(), 5)])
    assert (engine.cache.length(0), engine.cache.length(1)) == (6, 0)
    torch.testing.assert_close(_feed(engine, 0, tokens[0, 6:8], 5), model(tokens[:, :8], 5)[0, 6:], **TOLERANCE)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ([], "nothing to feed"),
        ([Feed(0, [1], 0)], "depth 0 outside 1..5"),
        ([Feed(0, [1], 6)], "depth 6 outside 1..5"),
        ([Feed(0, [1], 2), Feed(0, [1], 2)], "fed twice"),
        ([Feed(0, [VOCAB], 2)], f"a token outside 0..{VOCAB - 1}"),
        ([Feed(0, [], 2)], "all its 0 tokens have come to depth 2 already"),
    ],
)
def test_feeds_that_make_no_sense_are_refused(feeds: list[Feed], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Engine(_cascade(), 1, 8).advance(feeds)


@pytest.mark.parametrize("part", ["norm", "affine", "head", "block"])
def test_repaired_depths_decode_through_their_repair(part: RepairPart) -> None:
    model = Repaired(toy_model(), VOCAB, part, [1, 3])
    model.init_weights(0)
    for parameter in model.repairs.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    tokens = toy_tokens(1, 8)
    for depth in (1, 2, 3):
        engine = Engine(model, 1, 8)
        with torch.no_grad():
            torch.testing.assert_close(_feed(engine, 0, tokens[0], depth), model(tokens, depth)[0], **TOLERANCE)


@pytest.mark.parametrize("seed", range(4))
def test_a_repair_block_attends_to_tokens_that_were_read_out_elsewhere(seed: int) -> None:
    model, chance = Repaired(toy_model(init_std=0.2), VOCAB, "block", [1, 2, 3]), random.Random(seed)
    model.init_weights(seed)
    tokens = toy_tokens(2, 12, seed)
    with torch.no_grad():
        cold = {depth: model(tokens, depth) for depth in DEPTHS}
    engine = Engine(model, 2, 12)
    for at in range(12):
        depths = [chance.choice(DEPTHS) for _ in range(2)]
        arrivals = engine.advance([Feed(row, [int(tokens[row, at])], depths[row]) for row in range(2)])
        for row, logits in enumerate(engine.next_logits(arrivals)):
            torch.testing.assert_close(logits, cold[depths[row]][row, at], **TOLERANCE)


def test_the_cache_takes_the_bytes_that_planning_counts() -> None:
    shape = toy_model(segments=(Segment(n_blocks=2, d_model=16), Segment(n_blocks=1, d_model=24)))
    engine = Engine(Cascade(shape, VOCAB), 3, 7)
    assert engine.kv_bytes(7) == sum(block.n_bytes for block in engine.cache.blocks)
    assert engine.kv_bytes(5) == 3 * cache_bytes(shape, 3, 5, 4) == 3 * 5 * 2 * 4 * (16 + 16 + 24)


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_bfloat16_weights_run_with_a_bfloat16_cache(depth: int) -> None:
    model, tokens = _cascade(junction_norm=True).to(torch.bfloat16), toy_tokens(1, 12)
    engine = Engine(model, 1, 12)
    decoded = torch.cat([_feed(engine, 0, token[None], depth) for token in tokens[0]])
    assert decoded.dtype == engine.cache.blocks[0].keys.dtype == torch.bfloat16
    wanted = model.float()(tokens, depth)[0].detach()
    # bfloat16 keeps 8 bits: a few roundings of 0.4 % each, of logits up to about 5
    assert float((decoded.float() - wanted).abs().max()) < 0.03 * float(wanted.abs().max())
