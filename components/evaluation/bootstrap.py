"""Paired document bootstrap: intervals for one arm's curve and for the difference between two arms.

Documents are resampled, not tokens, and every arm sees the same resamples, so what makes a document hard cancels in a difference.
An arm with several seeds has its seeds resampled too, so that an interval holds 0 when its seeds disagree on the sign. Easy to get
wrong: row 0 of every array of samples is the original set, not a resample; `interval` reads it as the estimate. And the intervals
of an arm with one seed hold the trained model fixed: how much another training seed would move it is not in them.

Percentile intervals of few documents are too short, so their tails are taken further out, as for Student's t (the expanded
percentile interval; Hesterberg, What Teachers Should Know About the Bootstrap, 2015, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from components.config.problems import ResultsError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Verdict = Literal["win", "loss", "no difference", "no interval"]

# Below six documents, all of them agreeing by chance has a probability above 5%: no interval is honest.
MINIMUM_DOCUMENTS = 6

_BLOCK_CELLS = 1 << 22  # (resample, document) counts held at once: 32 MiB


@dataclass(frozen=True)
class DocumentScores:
    """NLL sums of one arm on the validation documents.

    Shapes:
        document, n_tokens: int64 [documents].
        nll_nats: float64 [seeds, documents, N], the sum over a document's tokens at depth k = column + 1.
    """

    document: IntArray
    n_tokens: IntArray
    nll_nats: FloatArray

    def of_seed(self, seeds: Sequence[int], seed: int) -> DocumentScores:
        """The scores of one of the seeds."""
        row = sorted(seeds).index(seed)  # as `group_by_seed` sorts them
        return DocumentScores(self.document, self.n_tokens, self.nll_nats[row : row + 1])


@dataclass(frozen=True)
class Interval:
    """An estimate with the bounds of its bootstrap interval; bounds are NaN when there is none."""

    estimate: float
    low: float
    high: float

    @property
    def is_known(self) -> bool:
        """Whether all three numbers are finite."""
        return all(map(math.isfinite, (self.estimate, self.low, self.high)))


def group_by_seed(seed: IntArray, document: IntArray, n_tokens: IntArray, nll_nats: FloatArray, where: str) -> DocumentScores:
    """The rows of a file of document scores, sorted by seed and document.

    Shapes:
        seed, document, n_tokens: int64 [seeds * documents], any order; nll_nats: float64 [seeds * documents, N].

    Raises:
        ResultsError: a seed lacks a document or has it twice, or a document's length differs between seeds; `where` names the file.
    """
    seeds = np.unique(seed)
    order = np.lexsort((document, seed))
    n_documents = len(order) // max(1, len(seeds))
    shape = (len(seeds), n_documents)
    if len(order) != math.prod(shape) or n_documents == 0:
        raise ResultsError(f"{where}: seeds do not have the same documents; re-run the arm's evaluation")
    by_seed, tokens = document[order].reshape(shape), n_tokens[order].reshape(shape)
    is_same = (by_seed == by_seed[0]).all() and (tokens == tokens[0]).all() and (seed[order].reshape(shape) == seeds[:, None]).all()
    if not is_same or (np.diff(by_seed[0]) == 0).any():
        raise ResultsError(f"{where}: seeds do not have the same documents; re-run the arm's evaluation")
    return DocumentScores(by_seed[0], tokens[0], nll_nats[order].reshape(*shape, -1))


def resampled_nll(scores: DocumentScores, n_resamples: int, seed: int) -> FloatArray:
    """Mean NLL per token of the original set (row 0) and of each resample, per depth; the mean over seeds.

    The resamples are a function of (seed, number of documents, number of seeds) alone: arms with the same ones get the same.

    Shapes:
        float64 [1 + n_resamples, N], nats per token: resampled NLL sums over resampled token counts; row 0 alone below
        `MINIMUM_DOCUMENTS`.
    """
    n_seeds, n_documents, _ = scores.nll_nats.shape
    if n_documents < MINIMUM_DOCUMENTS:
        n_resamples = 0
    seed_draws = np.random.default_rng((seed, n_seeds)).integers(n_seeds, size=(n_resamples, n_seeds))
    with np.errstate(invalid="ignore", over="ignore"):
        rows = [scores.nll_nats.sum(axis=1).mean(axis=0, keepdims=True) / scores.n_tokens.sum()]
        start = 0
        for counts in _draw_counts(n_documents, n_resamples, seed):
            weights = counts.astype(np.float64)
            sums = weights @ scores.nll_nats  # [seeds, block, N]
            drawn = seed_draws[start : start + len(counts)]
            mean = sums[drawn, np.arange(len(counts))[:, None]].mean(axis=1)
            rows.append(mean / (weights @ scores.n_tokens)[:, None])
            start += len(counts)
    return np.concatenate(rows)


def area(samples: FloatArray) -> FloatArray:
    """AULB of each row: trapezoid over depth / (N - 1); NaN for a single depth.

    Shapes:
        samples: float64 [rows, N] -> float64 [rows].
    """
    n_depths = samples.shape[1]
    if n_depths < 2:
        return np.full(len(samples), np.nan)
    with np.errstate(invalid="ignore"):
        mean: FloatArray = (samples.sum(axis=1) - 0.5 * (samples[:, 0] + samples[:, -1])) / (n_depths - 1)
    return mean


def clipped(samples: FloatArray, vocab_size: int) -> FloatArray:
    """The samples with every NLL at most ln V; not finite counts as ln V."""
    chance = math.log(vocab_size)
    return np.where(np.isfinite(samples), np.minimum(samples, chance), chance)


def tail_share(confidence: float, n_documents: int) -> float:
    """Share of resamples outside each bound of an interval, smaller than (1 - confidence) / 2 when documents are few.

    Source:
        Hesterberg (2015), section 3.2; quantile of Student's t by Abramowitz & Stegun 26.7.5.
    """
    normal, freedom = NormalDist(), n_documents - 1
    z = normal.inv_cdf(0.5 * (1.0 + confidence))
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return normal.cdf(-t * math.sqrt(n_documents / freedom))


def interval(samples: FloatArray, confidence: float, n_documents: int) -> Interval:
    """Expanded percentile interval of one statistic; unknown when any sample is not finite or there are no resamples.

    Shapes:
        samples: float64 [1 + resamples]; the first is the estimate.
    """
    if len(samples) < 2 or not np.isfinite(samples).all():
        return Interval(float(samples[0]), math.nan, math.nan)
    tail = tail_share(confidence, n_documents)
    low, high = np.quantile(samples[1:], (tail, 1.0 - tail))
    return Interval(float(samples[0]), float(low), float(high))


def intervals(samples: FloatArray, confidence: float, n_documents: int) -> list[Interval]:
    """One interval for each column of [1 + resamples, columns]."""
    return [interval(column, confidence, n_documents) for column in samples.T]


def subtract(first: FloatArray, second: FloatArray) -> FloatArray:
    """Paired difference, sample by sample; NaN where either is not finite."""
    with np.errstate(invalid="ignore"):
        difference: FloatArray = first - second
    return difference


def verdict(difference: Interval) -> Verdict:
    """What a difference in NLL says of the first arm: lower is better, and an interval that holds 0 decides nothing."""
    if not difference.is_known:
        return "no interval"
    if difference.high < 0.0:
        return "win"
    return "loss" if difference.low > 0.0 else "no difference"


def _draw_counts(n_documents: int, n_resamples: int, seed: int) -> Iterator[NDArray[Any]]:
    """How often each resample holds each document, in blocks of resamples: int64 [block, documents]."""
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK_CELLS // n_documents)
    for start in range(0, n_resamples, block):
        size = min(block, n_resamples - start)
        drawn = generator.integers(n_documents, size=(size, n_documents))
        drawn += np.arange(size)[:, None] * n_documents
        yield np.bincount(drawn.ravel(), minlength=size * n_documents).reshape(size, n_documents)
