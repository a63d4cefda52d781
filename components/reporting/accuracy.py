"""Accuracies on benchmarks and bits per byte of other corpora, ready to compare: means over seeds and over benchmarks, LODA-acc.

Easy to get wrong: only arms that were scored on the same documents stand in one comparison; the others are named, never shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from components.evaluation import frontier
from components.evaluation.frontier import OperatingPoint
from components.reporting.analysis import Analysis
from components.reporting.load import ArmResults
from components.results import ArmBenchmarks, BenchmarkScores, CorpusScores, MetricScore, SeedBenchmarks

LENGTH_NORMALISED = ("arc_challenge", "hellaswag", "openbookqa")  # the papers quote acc_norm for these, acc for the others


@dataclass(frozen=True)
class Score:
    """A number of one depth, mean over seeds.

    Attributes:
        value: None when it is not finite for some seed.
        stderr: over documents. Seeds share those, so it is the mean of the seeds' own, not smaller.
    """

    depth: int
    is_trained: bool
    value: float | None
    stderr: float | None


Curve = tuple[Score, ...]


@dataclass(frozen=True)
class Comparison:
    """One metric of one benchmark, or bits per byte of one corpus, of the arms that were scored on the same documents.

    Attributes:
        unit: what log-likelihoods are divided by; none for plain accuracy.
        n: documents.
        chance: what guessing gives, in the metric's unit.
        arms: depths that mean something, at each arm's most streams.
        left_out: arms that were scored on other documents.
    """

    name: str
    metric: str
    unit: str
    n: int
    chance: float
    arms: Mapping[str, Curve]
    left_out: tuple[str, ...]


def compare_benchmarks(analysis: Analysis) -> tuple[Comparison, ...]:
    """Each benchmark by the metric that is quoted for it."""
    return tuple(
        compare_benchmark(analysis, name, "acc_norm" if name in LENGTH_NORMALISED else "acc")
        for name in (analysis.results.study.benchmarks.tasks if analysis.results.benchmarks else ())
    )


def compare_benchmark(analysis: Analysis, name: str, metric: str) -> Comparison:
    """One metric of one benchmark."""
    records = analysis.results.benchmarks
    scores = {arm: _benchmark(record.seeds[0], name) for arm, record in records.items()}
    chosen, left_out = _same_documents(
        {arm: (one.fingerprint, one.task_version, str(records[arm].harness)) for arm, one in scores.items()}
    )

    def measure(seed: SeedBenchmarks, n_streams: int) -> dict[int, tuple[float | None, float | None]]:
        cells = [cell for cell in _benchmark(seed, name).depths if cell.n_streams == n_streams]
        found = {cell.depth: find_metric(cell.metrics, metric) for cell in cells}
        return {depth: (score.value, score.stderr) for depth, score in found.items()}

    first = scores[chosen[0]]
    unit = find_metric(first.depths[0].metrics, metric).normalised_by
    return Comparison(name, metric, unit, first.n, first.chance, _curves(analysis, chosen, measure), left_out)


def compare_corpora(analysis: Analysis) -> tuple[Comparison, ...]:
    """Bits per byte of each corpus; chance is that of uniform guessing over the vocabulary."""
    records = analysis.results.benchmarks
    found = []
    for name in analysis.results.study.benchmarks.corpora if records else ():
        scores = {arm: _corpus(record.seeds[0], name) for arm, record in records.items()}
        chosen, left_out = _same_documents({arm: (one.fingerprint,) for arm, one in scores.items()})

        def measure(seed: SeedBenchmarks, n_streams: int, name: str = name) -> dict[int, tuple[float | None, float | None]]:
            cells = [cell for cell in _corpus(seed, name).depths if cell.n_streams == n_streams]
            return {cell.depth: (cell.bits_per_byte, None) for cell in cells}

        first = scores[chosen[0]]
        chance = first.n_tokens / first.n_bytes * math.log2(analysis.vocab_size)
        curves = _curves(analysis, chosen, measure)
        found.append(Comparison(name, "bits per byte", "bytes", first.n_documents, chance, curves, left_out))
    return tuple(found)


def mean_chance(comparisons: Sequence[Comparison]) -> float:
    """Accuracy of guessing, mean over benchmarks."""
    return sum(one.chance for one in comparisons) / len(comparisons)


def mean_accuracy(comparisons: Sequence[Comparison], arm: str) -> Curve:
    """Mean over benchmarks at every depth; empty when the arm was not scored on all of them like the others.

    The standard error takes the benchmarks as independent; without one of a benchmark there is none of the mean.
    """
    if not comparisons or any(arm not in one.arms for one in comparisons):
        return ()
    means = []
    for scores in zip(*(one.arms[arm] for one in comparisons), strict=True):
        values = [score.value for score in scores if score.value is not None]
        errors = [score.stderr for score in scores if score.stderr is not None]
        value = sum(values) / len(values) if len(values) == len(scores) else None
        error = math.hypot(*errors) / len(errors) if len(errors) == len(scores) else None
        means.append(Score(scores[0].depth, scores[0].is_trained, value, error))
    return tuple(means)


def accuracy_points(analysis: Analysis, comparisons: Sequence[Comparison], arm: ArmResults) -> list[OperatingPoint]:
    """The arm's depths by mean accuracy and throughput; one whose accuracy or its error is unknown is never valid."""
    curve = mean_accuracy(comparisons, arm.name)
    if not curve:
        return []
    known = [(score.value, score.stderr) if score.value is not None and score.stderr is not None else (0.0, 0.0) for score in curve]
    values, errors = [one[0] for one in known], [one[1] for one in known]
    return frontier.accuracy_points(values, errors, mean_chance(comparisons), analysis.throughput.of(arm))


def loda_acc(analysis: Analysis, comparisons: Sequence[Comparison], arm: ArmResults) -> float | None:
    """LODA-acc on the throughput axis of LODA-ppl; None without accuracies."""
    points = accuracy_points(analysis, comparisons, arm)
    return frontier.loda(points, analysis.throughputs, analysis.results.study.evaluation.loda_axis) if points else None


def metric_text(comparison: Comparison) -> str:
    """`hellaswag (acc_norm, per character)`."""
    unit = {"none": "", "characters": ", per character", "bytes": ", per byte"}[comparison.unit]
    return f"{comparison.name} ({comparison.metric}{unit})"


def find_metric(metrics: Sequence[MetricScore], name: str) -> MetricScore:
    """The metric of that name."""
    return next(metric for metric in metrics if metric.metric == name)


def _benchmark(seed: SeedBenchmarks, name: str) -> BenchmarkScores:
    return next(scores for scores in seed.benchmarks if scores.benchmark == name)


def _corpus(seed: SeedBenchmarks, name: str) -> CorpusScores:
    return next(scores for scores in seed.corpora if scores.corpus == name)


def _same_documents(keys: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(arms that were scored on what most arms were scored on, the others)."""
    most = Counter(keys.values()).most_common(1)[0][0]
    chosen = tuple(arm for arm, key in keys.items() if key == most)
    return chosen, tuple(arm for arm in keys if arm not in chosen)


def _curves(
    analysis: Analysis,
    chosen: Sequence[str],
    measure: Callable[[SeedBenchmarks, int], Mapping[int, tuple[float | None, float | None]]],
) -> dict[str, Curve]:
    records = analysis.results.benchmarks
    return {arm.name: _curve(arm, records[arm.name], measure) for arm in analysis.arms if arm.name in chosen}


def _curve(
    arm: ArmResults,
    record: ArmBenchmarks,
    measure: Callable[[SeedBenchmarks, int], Mapping[int, tuple[float | None, float | None]]],
) -> Curve:
    by_seed = [measure(seed, arm.n_streams) for seed in record.seeds]
    scores = []
    for depth in arm.shown_depths:
        values = [own[depth.depth][0] for own in by_seed]
        errors = [own[depth.depth][1] for own in by_seed]
        scores.append(Score(depth.depth, depth.is_trained, _mean(values), _mean(errors)))
    return tuple(scores)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
