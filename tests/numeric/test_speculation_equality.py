"""Self-speculative decoding against plain decoding: token for token when greedy, in distribution when sampled."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch

from components.config.schema import Segment
from components.inference.generate import Completion, Request, generate
from components.inference.sampling import Sampling, probabilities
from components.inference.speculative import Speculation, SpeculationCounts, speculate
from components.models.cascade import Cascade
from tests.toys import toy_cascade, toy_model, toy_tokens

NEW_TOKENS = 8
SEGMENTS = (Segment(n_blocks=2, d_model=16), Segment(n_blocks=1, d_model=24), Segment(n_blocks=1, d_model=32))


@pytest.fixture(scope="module")
def model() -> Cascade:
    return toy_cascade(dtype=torch.float32, segments=SEGMENTS)


@pytest.fixture(scope="module")
def prompts() -> list[tuple[int, ...]]:
    return [tuple(toy_tokens(1, 1 + seed % 9, seed)[0].tolist()) for seed in range(50)]


@pytest.fixture(scope="module")
def plain(model: Cascade, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    return [completion.tokens for completion in generate(model, [Request(prompt, 4, NEW_TOKENS) for prompt in prompts])]


@pytest.mark.parametrize(("depth", "length"), list(product((1, 2, 3), (1, 2, 5))))
def test_greedy_text_is_token_for_token_the_plain_one(
    model: Cascade, prompts: list[tuple[int, ...]], plain: list[list[int]], depth: int, length: int
) -> None:
    for prompt, wanted in zip(prompts, plain, strict=True):
        completion, counts = Completion([], None), SpeculationCounts()
        tokens = speculate(model, Request(prompt, 4, NEW_TOKENS), Speculation(depth, length), completion, counts)
        assert list(tokens) == completion.tokens == wanted
        assert counts.accepted + counts.rounds == NEW_TOKENS


@pytest.mark.parametrize("settings", [{"temperature": 1.0}, {"temperature": 0.7, "top_k": 5, "top_p": 0.9}])
def test_sampled_text_has_the_distribution_of_the_deep_model(settings: dict[str, Any]) -> None:
    """Chi-square of pairs of tokens over a vocabulary of six, against probabilities from full forward passes."""
    model = Cascade(toy_model(segments=SEGMENTS, init_std=0.2), 6)
    model.init_weights(1)
    n_texts, prompt = 500, (2,)
    drawn: Counter[tuple[int, ...]] = Counter()
    counts = SpeculationCounts()
    for seed in range(n_texts):
        request = Request(prompt, 4, 3, Sampling(seed=seed, **settings))
        completion = Completion([], None)
        list(speculate(model, request, Speculation(2, 2), completion, counts))
        drawn[tuple(completion.tokens[:2])] += 1
    assert counts.acceptance is not None
    assert 0.1 < counts.acceptance < 0.9  # both ways of choosing a token are taken often
    wanted = _pairs(model, prompt, Sampling(**settings))
    assert set(drawn) <= set(wanted)
    often = [pair for pair, chance in wanted.items() if chance * n_texts >= 5]
    cells = [(drawn[pair], wanted[pair] * n_texts) for pair in often]
    rest = (n_texts - sum(drawn[pair] for pair in often), n_texts * (1 - sum(wanted[pair] for pair in often)))
    cells += [rest] if rest[1] >= 5 else []
    chi_square = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    freedom = len(cells) - 1
    # mean + 3.5 standard deviations of a chi-square: p below 0.001
    assert chi_square < freedom + 3.5 * (2 * freedom) ** 0.5


@torch.no_grad()
def _pairs(model: Cascade, prompt: tuple[int, ...], sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Probability of every pair of next tokens under the whole model."""
    first = probabilities(model(torch.tensor([prompt]), 4)[0, -1:], sampling)[0]
    pairs: dict[tuple[int, ...], float] = {}
    for a in first.nonzero().flatten().tolist():
        second = probabilities(model(torch.tensor([[*prompt, a]]), 4)[0, -1:], sampling)[0]
        pairs |= {(a, b): float(first[a] * second[b]) for b in second.nonzero().flatten().tolist()}
    return pairs
