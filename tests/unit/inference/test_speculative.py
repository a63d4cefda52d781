"""Self-speculative decoding: draft lengths, ends of a text, work done, honest counts (`numeric` has the equality of texts)."""

from __future__ import annotations

import pytest
import torch

from components.inference.generate import Completion, Request, generate
from components.inference.speculative import Speculation, SpeculationCounts, expected_speedup, speculate
from components.models.cascade import Cascade
from tests.toys import toy_cascade, toy_tokens

NEW_TOKENS = 10


@pytest.fixture(scope="module")
def model() -> Cascade:
    return toy_cascade(dtype=torch.float32)


@pytest.fixture(scope="module")
def prompts() -> list[tuple[int, ...]]:
    return [tuple(toy_tokens(1, 1 + seed % 9, seed)[0].tolist()) for seed in range(12)]


@pytest.fixture(scope="module")
def plain(model: Cascade, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    return [completion.tokens for completion in generate(model, [Request(prompt, 5, NEW_TOKENS) for prompt in prompts])]


def _speculate(model: Cascade, request: Request, speculation: Speculation) -> tuple[Completion, SpeculationCounts]:
    completion, counts = Completion([], None), SpeculationCounts()
    assert list(speculate(model, request, speculation, completion, counts)) == completion.tokens
    return completion, counts


def test_adaptive_length_gives_the_same_text(model: Cascade, prompts: list[tuple[int, ...]], plain: list[list[int]]) -> None:
    for prompt, wanted in zip(prompts, plain, strict=True):
        completion, _ = _speculate(model, Request(prompt, 5, NEW_TOKENS), Speculation(4, 6, is_adaptive=True, cost_ratio=0.2))
        assert completion.tokens == wanted


def _always_agrees(model: Cascade) -> Cascade:
    """Blocks past the second add nothing, and the deeper exits read the same channels as the first."""
    with torch.no_grad():
        for block in list(model.blocks)[2:]:
            block.attention.out.weight.zero_()
            block.ffn.down.weight.zero_()
        for i in (1, 2):
            out = model.exits[i]
            out.head.weight.zero_()
            out.head.weight[:, :16] = model.exits[0].head.weight * model.exits[0].norm.weight / out.norm.weight[:16]
    return model


def test_a_perfect_drafter_is_always_accepted_and_adapts_to_the_longest_draft(prompts: list[tuple[int, ...]]) -> None:
    model = _always_agrees(toy_cascade(dtype=torch.float32))
    _, counts = _speculate(model, Request(prompts[3], 5, 30), Speculation(2, 4))
    assert counts.acceptance == 1.0
    assert counts.rounds == 6  # five tokens each
    _, adaptive = _speculate(model, Request(prompts[3], 5, 60), Speculation(2, 8, is_adaptive=True, cost_ratio=0.2))
    assert adaptive.rounds < 60 / 5


def test_a_poor_drafter_makes_the_adaptive_length_short(model: Cascade, prompts: list[tuple[int, ...]]) -> None:
    request = Request(prompts[5], 5, 40)
    _, fixed = _speculate(model, request, Speculation(1, 8))
    _, adaptive = _speculate(model, request, Speculation(1, 8, is_adaptive=True))
    assert adaptive.drafted < fixed.drafted / 2


def test_the_check_computes_only_blocks_that_the_draft_left_out(model: Cascade, prompts: list[tuple[int, ...]]) -> None:
    from components.inference.speculative import _Speculator

    decoder = _Speculator(model, Request(prompts[8], 5, 20), Speculation(3, 4), SpeculationCounts())
    before = decoder.engine.work
    decoder.round(20)
    assert decoder.engine.work - before == 5 * 5  # five tokens through five blocks, each pair once


def test_stop_tokens_and_length_end_the_text_as_they_do_without(
    model: Cascade, prompts: list[tuple[int, ...]], plain: list[list[int]]
) -> None:
    for prompt, wanted in zip(prompts[:6], plain, strict=False):
        for max_tokens in (1, 2, 5):
            completion, _ = _speculate(model, Request(prompt, 5, max_tokens), Speculation(2, 4))
            assert completion == Completion(wanted[:max_tokens], "length")
        stop = wanted[4]
        request = Request(prompt, 5, NEW_TOKENS, stop_tokens=frozenset({stop}))
        assert _speculate(model, request, Speculation(2, 4))[0] == generate(model, [request])[0]


@pytest.mark.parametrize(
    ("acceptance", "length", "cost_ratio", "speedup"),
    [(0.8, 4, 0.1, (1 - 0.8**5) / (0.2 * 1.4)), (0.0, 3, 0.2, 1 / 1.6), (1.0, 3, 0.5, 4 / 2.5), (0.02, 5, 0.4, 1.0204 / 3)],
)
def test_expected_speedup_is_the_formula(acceptance: float, length: int, cost_ratio: float, speedup: float) -> None:
    assert expected_speedup(acceptance, length, cost_ratio) == pytest.approx(speedup, rel=1e-4)


def test_drafts_must_be_shallower(model: Cascade) -> None:
    with pytest.raises(ValueError, match="must be below the depth of the text, 3"):
        _speculate(model, Request((1, 2), 3, 4), Speculation(3, 2))
    with pytest.raises(ValueError, match="draft_tokens"):
        Speculation(1, 0)
    with pytest.raises(ValueError, match="cost_ratio"):
        Speculation(1, 1, cost_ratio=0.0)
