"""The table a deployer chooses from: quality of every (arm, depth, streams) with latency and memory, and the choice under limits.

Only what can be compared is joined: one validation set, one machine, one number of threads and one dtype. No torch in here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from components.config.problems import ConfigError, ResultsError
from components.results import ArmEvaluation, ArmProfile, DepthScore, LatencyCell, OperatingPoint, OperatingPoints, perplexity

Metric = Literal["nll_nats", "bits_per_byte"]


@dataclass(frozen=True)
class Budget:
    """What a point must keep to; None is no limit.

    Attributes:
        latency_seconds: one decoding step, at most.
        tokens_per_second: decoding throughput of the batch, at least.
        memory_bytes: weights of the prefix and cache, at most.
    """

    latency_seconds: float | None = None
    tokens_per_second: float | None = None
    memory_bytes: float | None = None

    def excess(self, point: OperatingPoint) -> dict[str, float]:
        """How many times over each limit the point is, for those that it breaks."""
        ratios = {
            "latency": point.decode_seconds / self.latency_seconds if self.latency_seconds else 0.0,
            "throughput": self.tokens_per_second / point.decode_tokens_per_second if self.tokens_per_second else 0.0,
            "memory": point.memory_bytes / self.memory_bytes if self.memory_bytes else 0.0,
        }
        return {name: ratio for name, ratio in ratios.items() if ratio > 1.0}


@dataclass(frozen=True)
class Choice:
    """The answer to a budget.

    Attributes:
        fitting: points within the budget, the best first; of equal quality the faster first, then the smaller.
        n_tied: how many of them have the best quality.
        closest: the point least over its limits, when none fits.
    """

    fitting: tuple[OperatingPoint, ...]
    n_tied: int
    closest: OperatingPoint | None


def join_points(evaluations: Mapping[str, ArmEvaluation], profiles: Mapping[str, ArmProfile]) -> OperatingPoints:
    """Every profiled point of every evaluated arm, the best quality first.

    Raises:
        ResultsError: no arm has both, or they were measured on different validation sets or machines.
    """
    arms = [name for name in evaluations if name in profiles]
    left_out = [f"{name}: not profiled; run `dvc repro`" for name in evaluations if name not in profiles]
    left_out += [f"{name}: not evaluated; run `dvc repro`" for name in profiles if name not in evaluations]
    if not arms:
        raise ResultsError("no arm is both evaluated and profiled; run `dvc repro`" + "".join(f"\n  {line}" for line in left_out))
    _check_same({name: evaluations[name].validation.fingerprint for name in arms}, "scored on different validation sets")
    where = {name: (p.device, f"{p.threads} threads", p.dtype) for name, p in profiles.items() if name in arms}
    _check_same({name: ", ".join(parts) for name, parts in where.items()}, "profiled on different machines or settings")
    points: list[OperatingPoint] = []
    for name in arms:
        scores = _scores(evaluations[name])
        for cell in profiles[name].cells:
            of_seeds = scores.get((cell.depth, cell.n_streams), [])
            point = _point(name, cell, of_seeds)
            if point is not None:
                points.append(point)
            elif (line := f"{name}, {place_text(cell)}: no finite score") not in left_out:
                left_out.append(line)
    first = arms[0]
    return OperatingPoints(
        version=1,
        device=profiles[first].device,
        threads=profiles[first].threads,
        validation_fingerprint=evaluations[first].validation.fingerprint,
        points=tuple(sorted(points, key=lambda point: _rank(point, "nll_nats"))),
        left_out=tuple(left_out),
    )


def place_text(place: LatencyCell | OperatingPoint) -> str:
    """Depth, and streams where there are several."""
    return f"depth {place.depth}" + (f", {place.n_streams} streams" if place.n_streams > 1 else "")


def at_load(table: OperatingPoints, batch_size: int, context_tokens: int | None, arm: str | None) -> list[OperatingPoint]:
    """The points of one batch size and context, by default the longest that was profiled, and of one arm or all.

    Raises:
        ConfigError: nothing was profiled so; the message says what was.
    """
    of_arm = [point for point in table.points if arm is None or point.arm == arm]
    if not of_arm:
        raise ConfigError(f"--arm {arm}: not in the table; there are {', '.join(sorted({point.arm for point in table.points}))}")
    of_batch = [point for point in of_arm if point.batch_size == batch_size]
    if not of_batch:
        known = ", ".join(map(str, sorted({point.batch_size for point in of_arm})))
        raise ConfigError(f"--batch {batch_size}: not profiled; choose from {known}, or add it to profile.batch_sizes")
    contexts = sorted({point.context_tokens for point in of_batch})
    wanted = contexts[-1] if context_tokens is None else context_tokens
    if wanted not in contexts:
        known = ", ".join(map(str, contexts))
        raise ConfigError(f"--context {wanted}: not profiled; choose from {known}, or add it to profile.context_tokens")
    return [point for point in of_batch if point.context_tokens == wanted]


def choose(points: Sequence[OperatingPoint], budget: Budget, metric: Metric) -> Choice:
    """The points within the budget, ranked; or the one that comes closest."""
    fitting = sorted((point for point in points if not budget.excess(point)), key=lambda point: _rank(point, metric))
    if fitting:
        best = getattr(fitting[0], metric)
        return Choice(tuple(fitting), sum(getattr(point, metric) == best for point in fitting), None)
    return Choice((), 0, min(points, key=lambda point: (max(budget.excess(point).values()), *_rank(point, metric)), default=None))


def _rank(point: OperatingPoint, metric: Metric) -> tuple[float, float, int]:
    return getattr(point, metric), point.decode_seconds, point.memory_bytes


def _scores(evaluation: ArmEvaluation) -> dict[tuple[int, int], list[DepthScore]]:
    """The scores of every seed by (depth, streams)."""
    scores: dict[tuple[int, int], list[DepthScore]] = {}
    for seed in evaluation.seeds:
        for score in seed.depths:
            scores.setdefault((score.depth, score.n_streams), []).append(score)
    return scores


def _point(arm: str, cell: LatencyCell, scores: Sequence[DepthScore]) -> OperatingPoint | None:
    """The joined point; None when a seed has no finite score."""
    nll = [score.nll_nats for score in scores if score.nll_nats is not None]
    bits = [score.bits_per_byte for score in scores if score.bits_per_byte is not None]
    if not scores or len(nll) < len(scores) or len(bits) < len(scores):
        return None
    return OperatingPoint(
        arm=arm,
        depth=cell.depth,
        n_streams=cell.n_streams,
        batch_size=cell.batch_size,
        context_tokens=cell.context_tokens,
        nll_nats=mean(nll),
        ppl=perplexity(mean(nll)),
        bits_per_byte=mean(bits),
        parameters=scores[0].parameters,
        flops_per_token=scores[0].flops_per_token,
        prefill_seconds=cell.prefill.median_seconds,
        decode_seconds=cell.decode.median_seconds,
        decode_high_seconds=cell.decode.high_seconds,
        decode_tokens_per_second=cell.decode_tokens_per_second,
        memory_bytes=cell.weight_bytes + cell.kv_bytes,
    )


def _check_same(values: Mapping[str, str], what: str) -> None:
    if len(set(values.values())) > 1:
        listed = "".join(f"\n  {name}: {value}" for name, value in values.items())
        raise ResultsError(f"the arms were {what} and cannot be compared; run `dvc repro -f` for the odd ones{listed}")
