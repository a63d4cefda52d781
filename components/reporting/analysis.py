"""What the report derives from the results: samples, intervals, areas, verdicts. Tables and figures only show it.

Easy to get wrong: a twin has no curve; areas are not taken of it, and it is compared at its own depth only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from components.evaluation import frontier
from components.evaluation.bootstrap import FloatArray, Interval, area, clipped, interval, intervals, resampled_nll, subtract
from components.evaluation.findings import ArmEvidence, Claim, Finding, agree_by_seed, judge_claims
from components.evaluation.frontier import OperatingPoint, ThroughputRange
from components.evaluation.hidden_decoding_claims import HIDDEN_DECODING_CLAIMS
from components.evaluation.telescopic_claims import CLAIMS, TWIN, UNIFORM
from components.reporting.load import ArmResults, StudyResults
from components.reporting.throughput import Throughput

# Margins of the sensitivity table, nats better than chance, beside the study's own.
SENSITIVITY_MARGINS = (0.0, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Analysis:
    """The results with everything that is computed from them."""

    results: StudyResults

    @property
    def arms(self) -> tuple[ArmResults, ...]:
        """The evaluated arms."""
        return self.results.arms

    @property
    def curves(self) -> tuple[ArmResults, ...]:
        """The arms that are more than one point."""
        return tuple(arm for arm in self.arms if arm.is_curve)

    @property
    def vocab_size(self) -> int:
        """Chance perplexity; the arms share one validation set, and with it one tokenizer."""
        return self.arms[0].evaluation.vocab_size

    @property
    def confidence(self) -> float:
        """Coverage of the intervals."""
        return self.results.study.evaluation.confidence

    @cached_property
    def reference(self) -> ArmResults:
        """The arm that the others are compared with: uniform TLM, or the first curve, or the first arm."""
        uniform = [arm for arm in self.arms if UNIFORM.is_played_by(arm.arm.objective.model_dump(mode="json"))]
        return next(iter([*uniform, *self.curves, *self.arms]))

    @cached_property
    def twin_full(self) -> ArmResults | None:
        """The twin of the reference's full model."""
        blocks = self.reference.evaluation.n_blocks
        twins = [arm for arm in self.arms if TWIN.is_played_by(arm.arm.objective.model_dump(mode="json"))]
        return next((arm for arm in twins if arm.evaluation.n_blocks == blocks), None)

    @cached_property
    def samples(self) -> Mapping[str, FloatArray]:
        """Mean NLL of the set (row 0) and of each resample, per depth, at each arm's most streams."""
        return {arm.name: self.samples_at(arm, arm.n_streams) for arm in self.arms}

    def samples_at(self, arm: ArmResults, n_streams: int, seed: int | None = None) -> FloatArray:
        """The same at one number of streams, of one seed or all; row 0 alone for an arm without document scores."""
        settings = self.results.study.evaluation
        means = np.array([arm.mean_nll(n_streams, seed)])
        documents = arm.documents_by_streams.get(n_streams)
        if documents is None:
            return means
        if seed is not None:
            documents = documents.of_seed(arm.arm.training.seeds, seed)
        drawn = resampled_nll(documents, settings.bootstrap_resamples, settings.bootstrap_seed)
        return np.concatenate([means, drawn[1:]])

    @cached_property
    def n_documents(self) -> int:
        """Validation documents."""
        return self.arms[0].evaluation.validation.n_documents

    def bands(self, arm: ArmResults) -> list[Interval]:
        """Interval of NLL at each depth."""
        return intervals(self.samples[arm.name], self.confidence, self.n_documents)

    def difference(self, arm: ArmResults, depth: int) -> Interval:
        """NLL of the arm minus the reference's at the same depth."""
        return self.difference_between(arm, self.reference, depth)

    def difference_between(
        self, arm: ArmResults, other: ArmResults, depth: int, n_streams: int | None = None, other_n_streams: int | None = None
    ) -> Interval:
        """NLL of the arm minus the other's at the same depth; at the most streams of each unless said otherwise."""
        first, second = self._pair(arm, other, n_streams, other_n_streams)
        return interval(subtract(first[:, depth - 1], second[:, depth - 1]), self.confidence, self.n_documents)

    def area_difference(
        self, arm: ArmResults, is_clipped: bool, other: ArmResults | None = None, n_streams: int | None = None
    ) -> Interval | None:
        """AULB of the arm minus the other's, or the reference's; None unless both are curves of the same length.

        Args:
            n_streams: of both; the most of each when None.
        """
        against = other or self.reference
        first, second = self._pair(arm, against, n_streams, n_streams)
        if not (arm.is_curve and against.is_curve) or first.shape[1] != second.shape[1]:
            return None
        if is_clipped:
            first, second = clipped(first, self.vocab_size), clipped(second, self.vocab_size)
        return interval(subtract(area(first), area(second)), self.confidence, self.n_documents)

    def compared_depths(self, arm: ArmResults) -> list[int]:
        """Depths at which both the arm and the reference mean something."""
        reference = {depth.depth for depth in self.reference.shown_depths}
        return [depth.depth for depth in arm.shown_depths if depth.depth in reference]

    def operating_points(self, arm: ArmResults, margin_nats: float | None = None) -> list[OperatingPoint]:
        """The arm's depths on the quality-throughput plane, on the axis that all arms share."""
        margin = self.results.study.evaluation.loda_margin_nats if margin_nats is None else margin_nats
        nll = [depth.nll_nats for depth in arm.shown_depths]
        return frontier.perplexity_points(nll, self.throughput.of(arm), self.vocab_size, margin)

    @cached_property
    def throughput(self) -> Throughput:
        """How fast every depth is, measured where everything was."""
        return Throughput(self.results)

    @cached_property
    def throughputs(self) -> ThroughputRange:
        """The axis of LODA: from the slowest to the fastest depth of any arm."""
        return frontier.throughput_range(point for arm in self.arms for point in self.operating_points(arm))

    def loda_ppl(self, arm: ArmResults) -> float:
        """LODA-ppl with the study's margin and axis."""
        return frontier.loda(self.operating_points(arm), self.throughputs, self.results.study.evaluation.loda_axis)

    @cached_property
    def findings(self) -> list[Finding]:
        """The claims of Telescopic Language Models, judged."""
        return self._judge(CLAIMS)

    @cached_property
    def stream_findings(self) -> list[Finding]:
        """The claims of Hidden Decoding, judged."""
        return self._judge(HIDDEN_DECODING_CLAIMS)

    def _judge(self, claims: Sequence[Claim]) -> list[Finding]:
        """Over all seeds, and beside that over each seed alone when every arm has the same several."""
        together = judge_claims(claims, [self._evidence(arm) for arm in self.arms], self.confidence)
        seeds = {arm.arm.training.seeds for arm in self.arms}
        if len(seeds) > 1 or len(self.arms[0].arm.training.seeds) < 2:
            return together
        alone = {
            seed: judge_claims(claims, [self._evidence(arm, seed) for arm in self.arms], self.confidence)
            for seed in self.arms[0].arm.training.seeds
        }
        return agree_by_seed(together, alone)

    def _pair(
        self, arm: ArmResults, other: ArmResults, n_streams: int | None = None, other_n_streams: int | None = None
    ) -> tuple[FloatArray, FloatArray]:
        first = self.samples[arm.name] if n_streams is None else self.samples_at(arm, n_streams)
        second = self.samples[other.name] if other_n_streams is None else self.samples_at(other, other_n_streams)
        rows = min(len(first), len(second))
        return first[:rows], second[:rows]

    def _evidence(self, arm: ArmResults, seed: int | None = None) -> ArmEvidence:
        costs = [one for one in (arm.cost.seeds if arm.cost else ()) if seed in (None, one.seed)]
        units = {cost.unit for cost in costs}
        streams = arm.arm.model.streams
        return ArmEvidence(
            name=arm.name,
            objective=arm.arm.objective.model_dump(mode="json"),
            exits=arm.evaluation.exits,
            trained_depths=arm.evaluation.trained_depths,
            vocab_size=self.vocab_size,
            samples=self.samples[arm.name] if seed is None else self.samples_at(arm, arm.n_streams, seed),
            n_documents=self.n_documents,
            device_hours=_mean([cost.device_hours for cost in costs]) if len(units) == 1 else None,
            cost_unit=units.pop() if len(units) == 1 else None,
            flops=_mean([cost.flops for cost in costs]),
            tokens=_mean([cost.tokens for cost in costs]),
            streams=None if streams is None else streams.model_dump(mode="json"),
            decode_tokens_per_second=self.throughput.full_speeds(arm),
        )


def mean_device_hours(arm: ArmResults) -> float | None:
    """Device-hours of one trained model, mean over seeds; None when not known or in several units."""
    seeds = arm.cost.seeds if arm.cost else ()
    return _mean([seed.device_hours for seed in seeds]) if len({seed.unit for seed in seeds}) == 1 else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
