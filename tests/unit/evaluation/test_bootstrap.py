"""The paired document bootstrap: equal to a slow reference, honest on ties, sharp on a real shift."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from components.config.problems import ResultsError
from components.evaluation import bootstrap
from components.evaluation.bootstrap import (
    DocumentScores,
    area,
    clipped,
    group_by_seed,
    interval,
    intervals,
    resampled_nll,
    subtract,
    tail_share,
    verdict,
)
from components.evaluation.frontier import aulb


def make_scores(generator: np.random.Generator, n_documents: int = 60, shift: float = 0.0, noise: float = 0.1) -> DocumentScores:
    n_tokens = generator.integers(20, 200, n_documents)
    per_token = 3.0 + shift + noise * generator.standard_normal((n_documents, 2))
    return DocumentScores(np.arange(n_documents), n_tokens, (per_token * n_tokens[:, None])[None])


def test_equals_a_slow_reference() -> None:
    scores = make_scores(np.random.default_rng(1), n_documents=7)
    fast = resampled_nll(scores, n_resamples=5, seed=3)
    drawn = np.random.default_rng(3).integers(7, size=(5, 7))
    for row, chosen in zip(fast, [range(7), *drawn], strict=True):
        for depth in range(2):
            total = sum(float(scores.nll_nats[0, i, depth]) for i in chosen)
            tokens = sum(int(scores.n_tokens[i]) for i in chosen)
            assert row[depth] == pytest.approx(total / tokens, rel=1e-12)  # order of summation only


def test_blocks_do_not_change_the_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = make_scores(np.random.default_rng(1), n_documents=10)
    whole = resampled_nll(scores, 9, seed=0)
    monkeypatch.setattr(bootstrap, "_BLOCK_CELLS", 20)
    np.testing.assert_allclose(resampled_nll(scores, 9, seed=0), whole, rtol=1e-12)  # matrix products of other sizes


def test_arms_share_their_resamples() -> None:
    first = make_scores(np.random.default_rng(1))
    second = DocumentScores(first.document, first.n_tokens, first.nll_nats + 0.25 * first.n_tokens[:, None])
    difference = subtract(resampled_nll(second, 50, 0), resampled_nll(first, 50, 0))
    np.testing.assert_allclose(difference, 0.25, rtol=1e-12)  # a constant shift has no spread when pairing works


@pytest.mark.parametrize("n_documents", [8, 60])
def test_ties_are_called_no_difference_at_the_nominal_rate(n_documents: int) -> None:
    generator = np.random.default_rng(5)
    calls = []
    for repeat in range(300):
        base = make_scores(generator, n_documents)
        samples = []
        for _ in range(2):
            noise = generator.standard_normal(base.nll_nats.shape) * base.n_tokens[:, None] * 0.2
            samples.append(resampled_nll(DocumentScores(base.document, base.n_tokens, base.nll_nats + noise), 300, repeat))
        calls.append(verdict(interval(subtract(*samples)[:, 0], 0.95, n_documents)))
    # Nominal 95%; 300 repeats have a standard error of 1.3%, three of which are allowed.
    assert abs(calls.count("no difference") / len(calls) - 0.95) <= 0.038


@pytest.mark.parametrize(("n_documents", "t"), [(6, 2.5706), (10, 2.2622), (1000, 1.9623)])
def test_tails_move_out_as_students_t_does(n_documents: int, t: float) -> None:
    expected = NormalDist().cdf(-t * math.sqrt(n_documents / (n_documents - 1)))
    assert tail_share(0.95, n_documents) == pytest.approx(expected, rel=0.02)  # the series is short by 0.1% of t at 5 degrees


@pytest.mark.parametrize(("shift", "expected"), [(-0.05, "win"), (0.05, "loss")])
def test_a_known_shift_is_detected(shift: float, expected: str) -> None:
    base = make_scores(np.random.default_rng(2), noise=1.0)
    wobble = np.random.default_rng(3).standard_normal(base.nll_nats.shape) * 0.05
    moved = DocumentScores(base.document, base.n_tokens, base.nll_nats + (shift + wobble) * base.n_tokens[:, None])
    difference = subtract(resampled_nll(moved, 500, 0), resampled_nll(base, 500, 0))
    found = interval(difference[:, 0], 0.95, 60)
    assert verdict(found) == expected
    assert found.low < shift < found.high


def test_area_matches_the_frontier_metric_row_by_row() -> None:
    samples = np.array([[4.0, 3.0, 1.0], [5.0, 5.0, 2.0]])
    assert area(samples).tolist() == [aulb(row) for row in samples.tolist()]
    assert np.isnan(area(samples[:, :1])).all()


def test_rows_are_grouped_by_seed_whatever_the_order() -> None:
    scores = group_by_seed(
        seed=np.array([43, 42, 42, 43]),
        document=np.array([0, 1, 0, 1]),
        n_tokens=np.array([5, 7, 5, 7]),
        nll_nats=np.array([[3.0], [4.0], [1.0], [8.0]]),
        where="arm",
    )
    assert scores.n_tokens.tolist() == [5, 7]
    assert scores.nll_nats.tolist() == [[[1.0], [4.0]], [[3.0], [8.0]]]


def test_seeds_are_resampled_as_in_a_slow_reference() -> None:
    one, two = make_scores(np.random.default_rng(1), 7), make_scores(np.random.default_rng(2), 7, shift=1.0)
    both = DocumentScores(one.document, one.n_tokens, np.concatenate([one.nll_nats, two.nll_nats]))
    fast = resampled_nll(both, n_resamples=5, seed=3)
    documents = np.random.default_rng(3).integers(7, size=(5, 7))
    seeds = np.random.default_rng((3, 2)).integers(2, size=(5, 2))
    for row, chosen, drawn in zip(fast, [range(7), *documents], [range(2), *seeds], strict=True):
        tokens = sum(int(both.n_tokens[i]) for i in chosen)
        total = sum(float(both.nll_nats[s, i, 0]) for s in drawn for i in chosen) / 2
        assert row[0] == pytest.approx(total / tokens, rel=1e-12)  # order of summation only


def test_seeds_that_disagree_on_the_sign_are_no_difference_and_seeds_that_agree_are() -> None:
    base = make_scores(np.random.default_rng(2))
    first = DocumentScores(base.document, base.n_tokens, np.repeat(base.nll_nats, 2, axis=0))
    for shifts, expected in (((-0.3, 0.1), "no difference"), ((-0.3, -0.1), "win")):
        moved = first.nll_nats + np.array(shifts)[:, None, None] * base.n_tokens[:, None]
        second = DocumentScores(base.document, base.n_tokens, moved)
        difference = subtract(resampled_nll(second, 200, 0), resampled_nll(first, 200, 0))
        assert verdict(interval(difference[:, 0], 0.95, 60)) == expected


@pytest.mark.parametrize(
    ("seed", "document", "n_tokens"),
    [
        ([42, 42, 43], [0, 1, 0], [5, 7, 5]),
        ([42, 42, 43, 43], [0, 1, 0, 2], [5, 7, 5, 7]),
        ([42, 42, 43, 43], [0, 1, 0, 1], [5, 7, 5, 8]),
        ([42, 42], [1, 1], [5, 5]),
        ([], [], []),
    ],
)
def test_seeds_with_other_documents_are_refused(seed: list[int], document: list[int], n_tokens: list[int]) -> None:
    columns = [np.array(values, dtype=np.int64) for values in (seed, document, n_tokens)]
    with pytest.raises(ResultsError, match=r"arm\.parquet"):
        group_by_seed(*columns, np.ones((len(seed), 1)), where="arm.parquet")


def test_a_depth_that_is_not_finite_has_no_interval_and_leaves_the_others_alone() -> None:
    base = make_scores(np.random.default_rng(2))
    broken = base.nll_nats.copy()
    broken[0, 3, 0] = math.inf
    samples = resampled_nll(DocumentScores(base.document, base.n_tokens, broken), 100, 0)
    found = intervals(subtract(samples, resampled_nll(base, 100, 0)), 0.95, 60)
    assert [verdict(one) for one in found] == ["no interval", "no difference"]
    assert np.isfinite(area(clipped(samples, 100))).all()


@pytest.mark.parametrize("n_documents", [1, 5])
def test_too_few_documents_have_an_estimate_but_no_interval(n_documents: int) -> None:
    n_tokens = np.full(n_documents, 10)
    scores = DocumentScores(np.arange(n_documents), n_tokens, np.full((1, n_documents, 1), 20.0))
    found = interval(resampled_nll(scores, 100, 0)[:, 0], 0.95, n_documents)
    assert found.estimate == 2.0
    assert verdict(found) == "no interval"


def test_no_resamples_means_no_interval() -> None:
    assert verdict(interval(np.array([0.5]), 0.95, 60)) == "no interval"
