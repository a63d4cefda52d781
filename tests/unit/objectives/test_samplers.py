"""Depth samplers against their closed forms."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from components.config.problems import Problem
from components.config.schema import Model, Segment
from components.objectives.samplers import DepthDraw
from components.objectives.telescopic import Settings
from tests.toys import telescopic, toy_model

N_DRAWS = 20_000


def _paper_shape() -> Model:
    return toy_model(segments=tuple(Segment(n_blocks=n, d_model=d) for n, d in ((11, 16), (5, 24), (4, 32))))


def _draw(sampler: dict[str, Any] | str, seed: int = 0, **changes: Any) -> DepthDraw:
    settings = Settings.model_validate(telescopic(sampler, **changes))
    return DepthDraw(settings.sampler, _paper_shape(), seed, settings.exclude_full)


def _closed_form(name: str, k: int) -> float:
    if name == "loguniform":
        return math.log(k / (k - 1), 20) if k > 1 else 0.0
    if name == "exitgrid":
        return 1 / 3 if k in (11, 16, 20) else 0.0
    return 1 / 20


@pytest.mark.parametrize("name", ["uniform", "loguniform", "exitgrid"])
def test_frequencies_follow_the_closed_form(name: str) -> None:
    draw = _draw(name)
    counts = Counter(draw.depths(step)[0] for step in range(N_DRAWS))
    expected = {k: N_DRAWS * p for k in range(1, 21) if (p := _closed_form(name, k)) > 0}
    assert set(counts) == set(expected)
    chi_square = sum((counts[k] - e) ** 2 / e for k, e in expected.items())
    free = len(expected) - 1
    # 99.9 % quantile by Wilson and Hilferty; the seed is fixed, so this never flickers
    assert chi_square < free * (1 - 2 / (9 * free) + 3.09 * math.sqrt(2 / (9 * free))) ** 3


def test_log_uniform_has_the_papers_mean_depth() -> None:
    assert sum(k * p for k, p in enumerate(_draw("loguniform").expected_counts(), 1)) == pytest.approx(6.87, abs=0.005)


def test_log_uniform_is_the_ceiling_of_n_to_a_uniform_power() -> None:
    u = np.random.default_rng(1).random(200_000)
    counts = np.bincount(np.ceil(20**u).astype(int), minlength=21)[1:] / len(u)
    np.testing.assert_allclose(counts, _draw("loguniform").expected_counts(), atol=0.005)


def test_round_robin_cycles_through_all_depths() -> None:
    assert [_draw("roundrobin").depths(step) for step in range(22)] == [(k,) for k in [*range(1, 21), 1, 2]]
    excluded = _draw("roundrobin", exclude_full=True)
    assert [excluded.depths(step)[0] for step in range(20)] == [*range(1, 20), 1]


def test_sandwich_always_trains_the_smallest() -> None:
    draws = [_draw("sandwich").depths(step) for step in range(200)]
    assert {first for first, _ in draws} == {1}
    assert len({drawn for _, drawn in draws}) == 20
    assert _draw("sandwich").expected_counts()[0] == pytest.approx(1.05)


def test_explicit_weights_are_drawn_and_zeros_never() -> None:
    weights = tuple(0.5 if k in (3, 20) else 0.0 for k in range(1, 21))
    draws = Counter(_draw({"kind": "explicit", "weights": weights}).depths(step)[0] for step in range(2000))
    assert set(draws) == {3, 20}
    assert abs(draws[3] - 1000) < 4 * math.sqrt(500)


def test_excluded_full_depth_is_never_drawn() -> None:
    assert 20 not in {_draw("uniform", exclude_full=True).depths(step)[0] for step in range(2000)}


def test_the_depth_of_a_step_depends_on_seed_and_step_alone() -> None:
    straight = [_draw("uniform", 7).depths(step) for step in range(50)]
    resumed = [_draw("uniform", 7).depths(step) for step in range(30, 50)]
    assert straight[30:] == resumed
    assert straight != [_draw("uniform", 8).depths(step) for step in range(50)]


@pytest.mark.parametrize(
    ("sampler", "exclude_full", "key"),
    [
        ({"kind": "explicit", "weights": (0.5, 0.5)}, False, "sampler.weights"),
        ({"kind": "explicit", "weights": (0.1,) * 20}, False, "sampler.weights"),
        ({"kind": "explicit", "weights": (0.0,) * 19 + (1.0,)}, True, "exclude_full"),
    ],
)
def test_impossible_samplers_are_refused(sampler: dict[str, Any], exclude_full: bool, key: str) -> None:
    settings = Settings.model_validate(telescopic(sampler, exclude_full=exclude_full))
    (problem,) = settings.problems(_paper_shape())
    assert problem[0] == key
    assert str(Problem(*problem))
