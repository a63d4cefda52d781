"""Numbers that sum up one curve of NLL over depth: areas, gaps between exits, and the quality-throughput area (LODA).

Pure functions on plain sequences. A depth whose NLL is not a finite number (None, infinite or NaN, say of an untrained exit) never
slips into a sum: each function says what it makes of it. Easy to get wrong: LODA's absolute values are ours, the paper's formula is
not public, so only values with the same axis, margin and set of arms compare.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Axis = Literal["linear", "log"]
Nll = float | None


@dataclass(frozen=True)
class OperatingPoint:
    """One way to serve a model.

    Attributes:
        throughput: tokens per second, or any unit proportional to it; above 0.
        quality: 0 is worthless, 1 perfect; not used when the point is not valid.
        is_valid: better than chance by the study's threshold.
    """

    throughput: float
    quality: float
    is_valid: bool


@dataclass(frozen=True)
class ThroughputRange:
    """Slowest and fastest operating point, valid or not, of all the arms that are compared."""

    slowest: float
    fastest: float


def aulb(nll_nats: Sequence[Nll]) -> float | None:
    """Area under the NLL curve: trapezoid over k = 1..N, divided by N - 1.

    Units: nats per token.

    Returns:
        None for a single depth, or when any depth is not finite: then only the clipped area exists.

    Source:
        Telescopic Language Models (arXiv 2609.35769), AULB.
    """
    values = [value for value in nll_nats if value is not None and math.isfinite(value)]
    if len(values) < len(nll_nats) or len(values) < 2:
        return None
    return (sum(values) - 0.5 * (values[0] + values[-1])) / (len(values) - 1)


def clip_at_chance(nll_nats: Sequence[Nll], vocab_size: int) -> list[float]:
    """NLL of each depth, at most ln V: a model that is worse than chance is replaced by chance, as is one that is not finite."""
    chance = math.log(vocab_size)
    return [min(value, chance) if value is not None and math.isfinite(value) else chance for value in nll_nats]


def aulb_clipped(nll_nats: Sequence[Nll], vocab_size: int) -> float | None:
    """AULB with every NLL clipped at ln V; None only for a single depth."""
    return aulb(clip_at_chance(nll_nats, vocab_size))


def off_exit_gaps(nll_nats: Sequence[Nll], exits: Sequence[int]) -> list[float | None]:
    """How much worse each depth is than the exits around it, in nats; 0 at the exits themselves.

    Between two exits the comparison is the straight line between their NLLs; before the first exit it is the first exit's NLL. None
    where the depth or one of its exits is not finite.

    Raises:
        ValueError: exits that do not rise to the last depth, or lie outside 1..N.
    """
    if list(exits) != sorted(set(exits)) or not exits or exits[0] < 1 or exits[-1] != len(nll_nats):
        raise ValueError(f"exits {list(exits)} must rise strictly and end at the last depth {len(nll_nats)}")
    gaps: list[float | None] = []
    for depth, own in enumerate(nll_nats, start=1):
        above = next(exit_depth for exit_depth in exits if exit_depth >= depth)
        below = max((exit_depth for exit_depth in exits if exit_depth <= depth), default=above)
        low, high = nll_nats[below - 1], nll_nats[above - 1]
        if own is None or low is None or high is None or not all(map(math.isfinite, (own, low, high))):
            gaps.append(None)
            continue
        share = (depth - below) / (above - below) if above != below else 0.0
        gaps.append(own - (low + share * (high - low)))
    return gaps


def delta_full(nll_full: Nll, nll_twin: Nll) -> float | None:
    """ppl(F_N) / ppl(twin-full) - 1: what the full-size model pays for its prefixes; None when not finite."""
    if nll_full is None or nll_twin is None or not (math.isfinite(nll_full) and math.isfinite(nll_twin)):
        return None
    return math.expm1(nll_full - nll_twin) if nll_full - nll_twin < 700.0 else None


def perplexity_points(
    nll_nats: Sequence[Nll], throughputs: Sequence[float], vocab_size: int, margin_nats: float
) -> list[OperatingPoint]:
    """Operating points of LODA-ppl: quality 1 - NLL / ln V, valid when NLL < ln V - margin; not finite is never valid."""
    chance = math.log(vocab_size)
    points = []
    for value, throughput in zip(nll_nats, throughputs, strict=True):
        if value is None or not math.isfinite(value):
            points.append(OperatingPoint(throughput, 0.0, False))
        else:
            points.append(OperatingPoint(throughput, 1.0 - value / chance, value < chance - margin_nats))
    return points


def accuracy_points(
    accuracies: Sequence[float], standard_errors: Sequence[float], chance: float, throughputs: Sequence[float]
) -> list[OperatingPoint]:
    """Operating points of LODA-acc: quality is the mean accuracy, valid when above chance by its own standard error."""
    return [
        OperatingPoint(throughput, accuracy, accuracy - error > chance)
        for accuracy, error, throughput in zip(accuracies, standard_errors, throughputs, strict=True)
    ]


def analytic_throughput(flops_per_token: int) -> float:
    """Tokens per FLOP: proportional to tokens per second where arithmetic is the bound; the axis where nothing was measured."""
    return 1.0 / flops_per_token


def throughput_range(points: Iterable[OperatingPoint]) -> ThroughputRange:
    """The throughput axis shared by the arms that the points come from.

    Raises:
        ValueError: no point at all.
    """
    throughputs = [point.throughput for point in points]
    return ThroughputRange(min(throughputs), max(throughputs))


def loda(points: Sequence[OperatingPoint], shared: ThroughputRange, axis: Axis) -> float:
    """Area under the best quality that a demanded throughput leaves, 0 to 100.

    At demand t the quality is the best among valid points with throughput >= t, and 0 past the fastest valid one. The linear axis
    runs over [0, fastest], the log axis over [slowest, fastest]; the area is divided by the axis' length.

    Source:
        The paper's formula is not public; this is the definition of this study.
    """
    valid = sorted((point for point in points if point.is_valid), key=lambda point: point.throughput)
    start = 0.0 if axis == "linear" else shared.slowest
    if axis == "log" and shared.fastest == shared.slowest:
        return 100.0 * max((point.quality for point in valid), default=0.0)
    area, reached = 0.0, start
    for i, point in enumerate(valid):
        best = max(later.quality for later in valid[i:])
        area += best * _length(reached, point.throughput, axis)
        reached = point.throughput
    return 100.0 * area / _length(start, shared.fastest, axis)


def loda_sensitivity(
    nll_nats: Sequence[Nll],
    throughputs: Sequence[float],
    vocab_size: int,
    shared: ThroughputRange,
    margins_nats: Sequence[float],
) -> dict[tuple[Axis, float], float]:
    """LODA-ppl for every axis and validity margin: how far a ranking hangs on our choice of the two."""
    axes: tuple[Axis, Axis] = ("linear", "log")
    return {
        (axis, margin): loda(perplexity_points(nll_nats, throughputs, vocab_size, margin), shared, axis)
        for axis in axes
        for margin in margins_nats
    }


def _length(start: float, end: float, axis: Axis) -> float:
    return end - start if axis == "linear" else math.log(end / start)
