"""What the report derives from the results: samples, intervals, areas, verdicts. Tables and figures only show it.

Easy to get wrong: a twin has no curve; areas are not taken of it, and it is compared at its own depth only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from components.evaluation import frontier
from components.evaluation.bootstrap import FloatArray, Interval, area, clipped, interval, intervals, resampled_nll, subtract
from components.evaluation.findings import ArmEvidence, Finding, judge_claims
from components.evaluation.frontier import OperatingPoint, ThroughputRange
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
        """Mean NLL of the set (row 0) and of each resample, per depth; row 0 alone for an arm without document scores."""
        settings = self.results.study.evaluation
        found = {}
        for arm in self.arms:
            means = np.array([[math.nan if depth.nll_nats is None else depth.nll_nats for depth in arm.depths]])
            if arm.documents is not None:
                drawn = resampled_nll(arm.documents, settings.bootstrap_resamples, settings.bootstrap_seed)
                means = np.concatenate([means, drawn[1:]])
            found[arm.name] = means
        return found

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

    def difference_between(self, arm: ArmResults, other: ArmResults, depth: int) -> Interval:
        """NLL of the arm minus the other's at the same depth."""
        first, second = self._pair(arm, other)
        return interval(subtract(first[:, depth - 1], second[:, depth - 1]), self.confidence, self.n_documents)

    def area_difference(self, arm: ArmResults, is_clipped: bool) -> Interval | None:
        """AULB of the arm minus the reference's; None unless both are curves of the same length."""
        first, second = self._pair(arm, self.reference)
        if not (arm.is_curve and self.reference.is_curve) or first.shape[1] != second.shape[1]:
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
        """The papers' claims, judged."""
        return judge_claims(CLAIMS, [self._evidence(arm) for arm in self.arms], self.confidence)

    def _pair(self, arm: ArmResults, other: ArmResults) -> tuple[FloatArray, FloatArray]:
        first, second = self.samples[arm.name], self.samples[other.name]
        rows = min(len(first), len(second))
        return first[:rows], second[:rows]

    def _evidence(self, arm: ArmResults) -> ArmEvidence:
        seeds = arm.cost.seeds if arm.cost else ()
        units = {seed.unit for seed in seeds}
        return ArmEvidence(
            name=arm.name,
            objective=arm.arm.objective.model_dump(mode="json"),
            exits=arm.evaluation.exits,
            trained_depths=arm.evaluation.trained_depths,
            vocab_size=self.vocab_size,
            samples=self.samples[arm.name],
            n_documents=self.n_documents,
            device_hours=mean_device_hours(arm),
            cost_unit=units.pop() if len(units) == 1 else None,
            flops=sum(seed.flops for seed in seeds) / len(seeds) if seeds else None,
        )


def mean_device_hours(arm: ArmResults) -> float | None:
    """Device-hours of one trained model, mean over seeds; None when not known or in several units."""
    seeds = arm.cost.seeds if arm.cost else ()
    if not seeds or len({seed.unit for seed in seeds}) > 1:
        return None
    return sum(seed.device_hours for seed in seeds) / len(seeds)
