"""Findings: does a claim of a paper hold in this study's results? Generated from the numbers, never written by hand.

A claim names the roles it needs (an arm is found by its objective's settings, not by its name) and a rule that turns the arms'
numbers into a verdict. Easy to get wrong: "not reproduced" needs an interval that contradicts the claim; one that merely fails to
support it is "inconclusive", and an absent arm is "not run".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from components.evaluation.bootstrap import FloatArray, Interval, area, interval

FindingVerdict = Literal["reproduced", "not reproduced", "inconclusive", "not run"]

# Stands for an NLL that is not finite: worse than any vocabulary's chance, and still a number that can be ordered.
UNUSABLE_NATS = 1000.0


@dataclass(frozen=True)
class ArmEvidence:
    """What the findings may know of one arm.

    Attributes:
        objective: its settings as in `params.yaml`.
        samples: mean NLL per depth of the validation set (row 0) and of each bootstrap resample; row 0 alone without documents.
        device_hours: mean over seeds, in `cost_unit`; None when the cost is not known.
        flops: analytic training FLOPs, mean over seeds.
        tokens: trained on, mean over seeds.
        streams: settings of Hidden Decoding; None without.
        decode_tokens_per_second: of the full model by batch size; empty when it was not measured.
    """

    name: str
    objective: Mapping[str, Any]
    exits: tuple[int, ...]
    trained_depths: tuple[int, ...]
    vocab_size: int
    samples: FloatArray
    n_documents: int
    device_hours: float | None
    cost_unit: str | None
    flops: float | None
    tokens: float | None = None
    streams: Mapping[str, Any] | None = None
    decode_tokens_per_second: Mapping[int, float] = field(default_factory=dict)

    @property
    def n_blocks(self) -> int:
        """N, depths that were scored."""
        return int(self.samples.shape[1])

    @property
    def shape(self) -> tuple[int, tuple[int, ...]]:
        """Depth and exits: arms that have both in common are alike at every depth."""
        return self.n_blocks, self.exits

    @property
    def ordered(self) -> FloatArray:
        """The samples with `UNUSABLE_NATS` where an NLL is not finite."""
        return np.where(np.isfinite(self.samples), self.samples, UNUSABLE_NATS)


@dataclass(frozen=True)
class Role:
    """A part that an arm can play in a claim.

    Attributes:
        title: how the report calls it when no arm plays it.
        is_played_by: of an objective's settings.
        has_any_shape: whether an arm of any shape plays it beside another role; else only one of that role's first arm's shape.
    """

    title: str
    is_played_by: Callable[[Mapping[str, Any]], bool]
    has_any_shape: bool = False


@dataclass(frozen=True)
class Judgement:
    verdict: FindingVerdict
    evidence: str


@dataclass(frozen=True)
class Claim:
    """One claim of a paper.

    Attributes:
        statement: what is claimed, in one sentence.
        paper: the paper's own numbers.
        rule: when this study calls it reproduced.
        roles: the arms it needs; `judge` gets one tuple of arms for each, never an empty one, best match first.
    """

    statement: str
    paper: str
    rule: str
    roles: tuple[Role, ...]
    judge: Callable[..., Judgement]


@dataclass(frozen=True)
class Finding:
    """A claim and what became of it here.

    Attributes:
        by_seed: the verdict from each training seed alone; empty when there is one seed.
    """

    statement: str
    paper: str
    rule: str
    verdict: FindingVerdict
    evidence: str
    by_seed: Mapping[int, FindingVerdict] = field(default_factory=dict)

    @property
    def agreement(self) -> str:
        """`2 of 2`, or what single seeds say instead; empty when there is one seed, or nothing was run."""
        if not self.by_seed or self.verdict == "not run":
            return ""
        n_agreeing = sum(verdict == self.verdict for verdict in self.by_seed.values())
        others = [f"{seed}: {verdict}" for seed, verdict in self.by_seed.items() if verdict != self.verdict]
        return f"{n_agreeing} of {len(self.by_seed)}" + (f" ({', '.join(others)})" if others else "")


@dataclass(frozen=True)
class Bench:
    """Takes intervals of statistics of the arms, all at one confidence."""

    confidence: float

    def of(self, samples: FloatArray, n_documents: int) -> Interval:
        """The interval of one statistic: float64 [1 + resamples]."""
        return interval(samples, self.confidence, n_documents)

    def at(self, arm: ArmEvidence, depth: int) -> Interval:
        """NLL at one depth."""
        return self.of(arm.ordered[:, depth - 1], arm.n_documents)

    def difference(self, first: ArmEvidence, second: ArmEvidence, depth: int, second_depth: int | None = None) -> Interval:
        """NLL of the first minus that of the second, paired; at the same depth unless `second_depth` says otherwise."""
        other = second.ordered[:, (second_depth or depth) - 1]
        return self.of(paired(first.ordered[:, depth - 1], other), first.n_documents)

    def area_difference(self, first: ArmEvidence, second: ArmEvidence) -> Interval:
        """AULB of the first minus that of the second, paired."""
        return self.of(paired(area(first.ordered), area(second.ordered)), first.n_documents)


def judge_claims(claims: Sequence[Claim], arms: Sequence[ArmEvidence], confidence: float) -> list[Finding]:
    """One finding for each claim, in order."""
    return [_finding(claim, arms, confidence) for claim in claims]


def agree_by_seed(together: Sequence[Finding], alone: Mapping[int, Sequence[Finding]]) -> list[Finding]:
    """The findings of all seeds with the verdicts that each seed alone gives."""
    return [
        replace(finding, by_seed={seed: findings[i].verdict for seed, findings in alone.items()})
        for i, finding in enumerate(together)
    ]


def above(value: Interval, threshold: float) -> bool | None:
    """Whether the value lies above the threshold: True or False when its whole interval does or does not, else None."""
    if not value.is_known:
        return None
    if value.low > threshold:
        return True
    return False if value.high < threshold else None


def below(value: Interval, threshold: float) -> bool | None:
    """Whether the value lies below the threshold, decided as in `above`."""
    is_above = above(value, threshold)
    return None if is_above is None else not is_above


def conclude(conditions: Iterable[bool | None]) -> FindingVerdict:
    """Reproduced when every condition holds, not reproduced when one is contradicted, else inconclusive."""
    known = list(conditions)
    if any(condition is False for condition in known):
        return "not reproduced"
    return "reproduced" if known and all(known) else "inconclusive"


def agreed(holds: Sequence[bool], text: str) -> Judgement:
    """Of two ways to measure the same thing: reproduced when both say so, inconclusive when one does."""
    return Judgement("inconclusive" if any(holds) and not all(holds) else conclude(holds), text)


def combine(judgements: Sequence[tuple[str, Judgement]]) -> Judgement:
    """One judgement over several arms of the same role: the claim has to hold for each that could be judged."""
    verdicts = [judgement.verdict for _, judgement in judgements]
    order: tuple[FindingVerdict, ...] = ("not reproduced", "inconclusive", "reproduced", "not run")
    worst = next(verdict for verdict in order if verdict in verdicts)
    return Judgement(worst, "; ".join(f"{name}: {judgement.evidence}" for name, judgement in judgements))


def spell(value: Interval, unit: str = "nats") -> str:
    """`+0.120 nats [+0.100, +0.140]`; the bounds are left out when unknown."""
    head = f"{_signed(value.estimate)} {unit}".rstrip()
    return f"{head} [{_signed(value.low)}, {_signed(value.high)}]" if value.is_known else f"{head} (no interval)"


def _finding(claim: Claim, arms: Sequence[ArmEvidence], confidence: float) -> Finding:
    cast = [tuple(arm for arm in arms if role.is_played_by(arm.objective)) for role in claim.roles]
    absent = [role.title for role, found in zip(claim.roles, cast, strict=True) if not found]
    if absent:
        judgement = Judgement("not run", f"no results of: {', '.join(absent)}")
    else:
        judgement = _judged(claim, cast, Bench(confidence))
    return Finding(claim.statement, claim.paper, claim.rule, judgement.verdict, judgement.evidence)


def _judged(claim: Claim, cast: Sequence[tuple[ArmEvidence, ...]], bench: Bench) -> Judgement:
    """The judgement of the arms that compare, and the names of those that do not."""
    lead, beside = cast[0][0], zip(claim.roles[1:], cast[1:], strict=True)
    odd = [arm.name for role, found in beside if not role.has_any_shape for arm in found if arm.shape != lead.shape]
    alike = [tuple(arm for arm in found if arm.name not in odd) for found in cast]
    if not all(alike):
        return Judgement("not run", f"no results of the shape of {lead.name}; of another shape: {', '.join(odd)}")
    judgement = claim.judge(bench, *alike)
    note = f" (of another shape: {', '.join(odd)})" if odd else ""
    return replace(judgement, evidence=judgement.evidence + _not_finite_note([arm for found in alike for arm in found]) + note)


def _not_finite_note(arms: Sequence[ArmEvidence]) -> str:
    """Says where the numbers stand for something that is none; a model of one trained depth has no curve to speak of."""
    names = [arm.name for arm in arms if len(arm.trained_depths) > 1 and not np.isfinite(arm.samples[0]).all()]
    return f" (a depth of {', '.join(names)} is not finite: counted as {UNUSABLE_NATS:,.0f} nats)" if names else ""


def paired(first: FloatArray, second: FloatArray) -> FloatArray:
    """The difference where both have the same resamples; of the estimates alone when one has none."""
    rows = min(len(first), len(second))
    return first[:rows] - second[:rows]


def _signed(value: float) -> str:
    if math.isnan(value):
        return "n/a"
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")
