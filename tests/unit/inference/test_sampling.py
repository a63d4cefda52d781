"""Choosing the next token: what can be drawn, how often, and that a seed repeats it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from components.inference.sampling import Sampler, Sampling, probabilities

LOGITS = torch.tensor([[0.0, 2.0, 1.0, -1.0, 0.5]])


def test_greedy_takes_the_likeliest_and_draws_nothing() -> None:
    sampler = Sampler(Sampling())
    before = sampler.generator.get_state()
    assert sampler.choose(LOGITS[0]) == 1
    assert torch.equal(before, sampler.generator.get_state())
    assert probabilities(LOGITS, Sampling()).tolist() == [[0.0, 1.0, 0.0, 0.0, 0.0]]


def test_temperature_divides_the_logits() -> None:
    torch.testing.assert_close(probabilities(LOGITS, Sampling(0.5)), (LOGITS.double() * 2).softmax(1))


def test_top_k_keeps_the_k_likeliest() -> None:
    kept = probabilities(LOGITS, Sampling(1.0, top_k=2))
    torch.testing.assert_close(kept[0, [1, 2]], torch.tensor([2.0, 1.0], dtype=torch.float64).softmax(0))
    assert float(kept[0, [0, 3, 4]].sum()) == 0.0


@pytest.mark.parametrize(("top_p", "n_kept"), [(1e-6, 1), (0.5, 1), (0.75, 2), (0.9, 4), (1.0, 5)])
def test_top_p_keeps_the_fewest_that_reach_it(top_p: float, n_kept: int) -> None:
    # softmax of the logits, sorted: 0.563, 0.207, 0.126, 0.076, 0.028
    kept = probabilities(LOGITS, Sampling(1.0, top_p=top_p))
    assert int((kept > 0).sum()) == n_kept
    assert float(kept.sum()) == pytest.approx(1.0)


def test_draws_follow_the_distribution() -> None:
    sampler, wanted = Sampler(Sampling(1.0, seed=3)), probabilities(LOGITS, Sampling(1.0))[0]
    counts = torch.bincount(torch.tensor([sampler.choose(LOGITS[0]) for _ in range(4000)]), minlength=5)
    chi_square = float(((counts - 4000 * wanted) ** 2 / (4000 * wanted)).sum())
    assert chi_square < 18.47  # 4 degrees of freedom, p = 0.001


def test_a_seed_repeats_its_draws_and_another_does_not() -> None:
    first, again, other = (
        [sampler.choose(LOGITS[0]) for _ in range(50)] for sampler in map(Sampler, (Sampling(1.0, seed=s) for s in (1, 1, 2)))
    )
    assert first == again != other


def test_a_token_without_probability_is_never_drawn() -> None:
    sampler = Sampler(Sampling(1.0))
    sampler.uniform = lambda: 1.0 - 2**-53  # type: ignore[method-assign]  # the largest that can be drawn
    assert sampler.draw(torch.tensor([0.1, 0.2, 0.3, 0.0], dtype=torch.float64)) == 2


@pytest.mark.parametrize(
    ("settings", "key"),
    [({"temperature": -1.0}, "temperature"), ({"temperature": float("nan")}, "temperature"), ({"top_k": 0}, "top_k"),
     ({"top_p": 0.0}, "top_p"), ({"top_p": 1.1}, "top_p")],
)  # fmt: skip
def test_values_out_of_range_are_refused(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        Sampling(**settings)


def test_the_smallest_temperature_draws_the_likeliest() -> None:
    logits = torch.tensor([[3.0, 700.0, -5.0]])
    assert probabilities(logits, Sampling(temperature=1e-308)).tolist() == [[0.0, 1.0, 0.0]]
