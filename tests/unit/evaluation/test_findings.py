"""Findings are read from numbers: each verdict of each claim on made-up curves with a known answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from components.evaluation.bootstrap import Interval
from components.evaluation.findings import ArmEvidence, Finding, Judgement, above, below, combine, conclude, judge_claims, spell
from components.evaluation.telescopic_claims import CLAIMS

V = 100
EXITS = (3, 5, 6)
UNIFORM = {"kind": "telescopic", "sampler": {"kind": "uniform"}, "anchor_weight": 1.0, "distill_weight": 0.0, "exclude_full": False}
GRID = {**UNIFORM, "sampler": {"kind": "exitgrid"}}
LOG = {**UNIFORM, "sampler": {"kind": "loguniform"}}
BARE = {**UNIFORM, "anchor_weight": 0.0}
SUITE = {"kind": "fixed_exits", "distill_weight": 0.0, "backward": "per_exit"}
TWIN = {"kind": "twin", "exit": 3}
REPAIR = {"kind": "repair", "part": "head", "base": "mlms"}

SMOOTH = [3.6, 3.3, 3.0, 2.9, 2.7, 2.5]
COLLAPSED = [9.0, 6.0, 2.9, 4.0, 2.5, 2.5]


def make_arm(
    name: str,
    objective: Mapping[str, Any],
    nll: Sequence[float],
    noise: float = 0.01,
    hours: float | None = 1.0,
    flops: float | None = 1.0,
    exits: tuple[int, ...] | None = None,
) -> ArmEvidence:
    generator = np.random.default_rng(len(name))
    samples = np.array(nll) + noise * generator.standard_normal((201, len(nll)))
    samples[0] = nll
    exits = exits or (EXITS if len(nll) == EXITS[-1] else (len(nll),))
    return ArmEvidence(name, objective, exits, exits, V, samples, 100, hours, "core-hours", flops)


def judged(word: str, *arms: ArmEvidence) -> Finding:
    [finding] = [finding for finding in judge_claims(CLAIMS, arms, 0.95) if word in finding.statement]
    return finding


def test_without_results_every_claim_is_not_run_and_says_what_is_absent() -> None:
    findings = judge_claims(CLAIMS, [], 0.95)
    assert {finding.verdict for finding in findings} == {"not run"}
    assert all(finding.evidence.startswith("no results of: ") for finding in findings)


@pytest.mark.parametrize(
    ("curve", "noise", "verdict"),
    [
        (SMOOTH, 0.01, "reproduced"),
        ([3.0, 2.9, 2.8, 2.88, 2.7, 2.5], 0.002, "reproduced"),  # rises by less than 0.1
        ([3.0, 2.9, 2.5, 2.9, 2.7, 2.5], 0.01, "not reproduced"),  # rises by 0.4 past the exit
        ([4.7, 3.3, 3.0, 2.9, 2.7, 2.5], 0.01, "not reproduced"),  # worse than ln 100 at k = 1
        ([math.inf, 3.3, 3.0, 2.9, 2.7, 2.5], 0.01, "not reproduced"),
        ([3.0, 2.9, 2.8, 2.88, 2.7, 2.5], 0.2, "inconclusive"),
    ],
)
def test_valid_and_smooth(curve: list[float], noise: float, verdict: str) -> None:
    assert judged("valid and smooth", make_arm("tlm", UNIFORM, curve, noise)).verdict == verdict


def test_off_exit_claims_of_a_collapsed_and_of_a_smooth_suite() -> None:
    collapsed, smooth = make_arm("mlms", SUITE, COLLAPSED), make_arm("mlms", SUITE, SMOOTH)
    assert judged("past an exit", collapsed).verdict == "reproduced"
    assert "k = 4 minus its shallower exit k = 3: +1.100" in judged("past an exit", collapsed).evidence
    assert judged("worse than chance", collapsed).verdict == "reproduced"
    assert judged("past an exit", smooth).verdict == "not reproduced"
    assert judged("worse than chance", smooth).verdict == "not reproduced"


def test_the_worst_depth_past_an_exit_is_told_against_the_exit_right_before_it() -> None:
    suite = make_arm("mlms", SUITE, [2.0, 3.5, 2.9, 4.0, 3.1, 2.5], exits=(1, 3, 6))
    assert "k = 2 minus its shallower exit k = 1: +1.500" in judged("past an exit", suite).evidence


def test_a_claim_about_suites_has_to_hold_for_every_suite() -> None:
    finding = judged("worse than chance", make_arm("mlms", SUITE, COLLAPSED), make_arm("mlms-norm", SUITE, SMOOTH))
    assert finding.verdict == "not reproduced"
    assert "mlms: " in finding.evidence
    assert "mlms-norm: " in finding.evidence


@pytest.mark.parametrize(
    ("n_blocks", "exits"), [(8, (3, 5, 8)), (4, (2, 4)), (1, (1,)), (6, (2, 6))], ids=["deeper", "shallower", "one", "other exits"]
)
def test_arms_of_another_shape_than_the_uniform_arm_are_not_compared_with_it(n_blocks: int, exits: tuple[int, ...]) -> None:
    uniform = make_arm("tlm", UNIFORM, SMOOTH)
    others = {"mlms": SUITE, "log": LOG, "bare": BARE, "grid": GRID, "repair": REPAIR}
    odd = [make_arm(name, settings, [3.0] * n_blocks, exits=exits) for name, settings in others.items()]
    findings = [claim for claim in judge_claims(CLAIMS, [uniform, *odd], 0.95) if "another shape" in claim.evidence]
    assert len(findings) == 10  # of 15: three are about one role alone, two about twins
    assert {finding.verdict for finding in findings} == {"not run"}
    assert judged("lower area", uniform, *odd).evidence == "no results of the shape of tlm; of another shape: mlms"
    assert judged("Repairing only", uniform, *odd).evidence == "no results of the shape of tlm; of another shape: mlms, repair"
    assert judged("worse than chance", uniform, *odd).evidence.startswith("mlms: ")


def test_suites_of_the_uniform_arms_shape_are_judged_beside_one_of_another() -> None:
    arms = make_arm("tlm", UNIFORM, SMOOTH), make_arm("mlms-deep", SUITE, [9.0] * 8), make_arm("mlms", SUITE, COLLAPSED)
    for claim in ("lower area", "at the exits before the last"):
        finding = judged(claim, *arms)
        assert finding.verdict == "reproduced"
        assert finding.evidence.startswith("mlms: ")
        assert finding.evidence.endswith(" (of another shape: mlms-deep)")


def test_areas_and_exits_of_tlm_against_mlms() -> None:
    arms = make_arm("tlm", UNIFORM, SMOOTH), make_arm("mlms", SUITE, COLLAPSED)
    assert judged("lower area", *arms).verdict == "reproduced"
    assert judged("at the exits before the last", *arms).verdict == "reproduced"
    swapped = make_arm("tlm", UNIFORM, COLLAPSED), make_arm("mlms", SUITE, SMOOTH)
    assert judged("lower area", *swapped).verdict == "not reproduced"


def test_a_tie_is_inconclusive() -> None:
    arms = make_arm("tlm", UNIFORM, SMOOTH, noise=0.05), make_arm("grid", GRID, SMOOTH, noise=0.05)
    assert judged("best full-size", *arms).verdict == "inconclusive"


def test_exit_grid_claims() -> None:
    grid = make_arm("grid", GRID, [9.0, 6.0, 2.9, 4.0, 2.6, 2.4])
    assert judged("best full-size", make_arm("tlm", UNIFORM, SMOOTH), grid).verdict == "reproduced"
    assert judged("loses continuity", make_arm("tlm", UNIFORM, SMOOTH), grid).verdict == "reproduced"


def test_no_anchor_needs_the_full_model_to_lose_more_than_the_area() -> None:
    uniform = make_arm("tlm", UNIFORM, SMOOTH)
    assert judged("anchor", uniform, make_arm("bare", BARE, [*SMOOTH[:5], 2.9])).verdict == "reproduced"
    assert judged("anchor", uniform, make_arm("bare", BARE, [x + 0.4 for x in SMOOTH], 0.001)).verdict != "reproduced"
    assert judged("anchor", uniform, make_arm("bare", BARE, [*SMOOTH[:5], 2.3])).verdict == "not reproduced"


def test_log_uniform_trades_the_first_depth_for_the_second() -> None:
    uniform = make_arm("tlm", UNIFORM, SMOOTH)
    assert judged("log-uniform sampler", uniform, make_arm("log", LOG, [8.0, 3.1, *SMOOTH[2:]])).verdict == "reproduced"
    assert judged("log-uniform sampler", uniform, make_arm("log", LOG, [8.0, 3.6, *SMOOTH[2:]])).verdict == "not reproduced"


def test_head_repair_lies_between_its_trunk_and_tlm() -> None:
    arms = make_arm("tlm", UNIFORM, SMOOTH), make_arm("mlms", SUITE, COLLAPSED)
    assert judged("head", *arms).verdict == "not run"
    assert judged("head", *arms, make_arm("repair", REPAIR, [5.0, 4.5, 2.9, 3.5, 2.5, 2.5])).verdict == "reproduced"
    assert judged("head", *arms, make_arm("norm", {**REPAIR, "part": "norm"}, SMOOTH)).verdict == "not run"
    # depths 1, 2 and 4: 13 / 3 nats repaired, 19 / 3 of the suite, 9.8 / 3 of TLM
    evidence = judged("head", *arms, make_arm("repair", REPAIR, [5.0, 4.5, 2.9, 3.5, 2.5, 2.5])).evidence
    assert "repaired minus mlms \N{MINUS SIGN}2.000" in evidence
    assert "repaired minus tlm +1.067" in evidence
    assert judged("head", *arms, make_arm("repair", REPAIR, [3.0, 3.0, 2.9, 2.7, 2.5, 2.5])).verdict == "not reproduced"


@pytest.mark.parametrize(
    ("twin_nll", "verdict"), [(2.45, "reproduced"), (2.2, "not reproduced"), (2.6, "not reproduced"), (2.5, "inconclusive")]
)
def test_price_against_the_twin(twin_nll: float, verdict: str) -> None:
    twin = make_arm("twin-full", TWIN, [9.0] * 5 + [twin_nll])
    assert judged("small price", make_arm("tlm", UNIFORM, SMOOTH), twin).verdict == verdict


@pytest.mark.parametrize(
    ("hours", "flops", "verdict"),
    [(1.10, 1.15, "reproduced"), (1.5, 1.15, "inconclusive"), (1.5, 1.6, "not reproduced"), (None, 1.15, "inconclusive")],
)
def test_cost_ratio_needs_hours_and_flops(hours: float | None, flops: float, verdict: str) -> None:
    suite = make_arm("mlms", SUITE, COLLAPSED, hours=hours, flops=flops)
    assert judged("MLMS costs", make_arm("tlm", UNIFORM, SMOOTH), suite).verdict == verdict


def test_costs_are_told_as_multiples_of_the_uniform_arms() -> None:
    suite = make_arm("mlms", SUITE, COLLAPSED, hours=2.2, flops=4.6)
    finding = judged("MLMS costs", make_arm("tlm", UNIFORM, SMOOTH, hours=2.0, flops=4.0), suite)
    assert (finding.verdict, finding.evidence) == ("reproduced", "mlms over tlm: 1.100 in core-hours, 1.150 in FLOPs")
    for hours, flops in ((None, 4.0), (2.0, None)):
        unpriced = judged("MLMS costs", make_arm("tlm", UNIFORM, SMOOTH, hours=hours, flops=flops), suite)
        assert (unpriced.verdict, unpriced.evidence) == ("inconclusive", "mlms: no cost recorded")


def test_cost_of_the_twins_is_their_sum_and_needs_one_for_each_exit() -> None:
    uniform = make_arm("tlm", UNIFORM, SMOOTH)
    twins = [make_arm(f"twin-{n}", TWIN, SMOOTH[:n], hours=0.55, flops=0.55) for n in EXITS]
    assert judged("twins cost", uniform, *twins).verdict == "reproduced"
    assert judged("twins cost", uniform, *twins[1:]).verdict == "not run"
    other_lr, other_depth = (make_arm(f"twin-{n}-again", TWIN, SMOOTH[:n], hours=0.55, flops=0.55) for n in (EXITS[-1], 4))
    finding = judged("twins cost", uniform, *twins, other_lr, other_depth)
    assert (finding.verdict, finding.evidence.split(" over ")[0]) == ("reproduced", "twin-3 + twin-5 + twin-6")


def test_without_documents_only_estimates_are_told_and_nothing_is_decided() -> None:
    arms = [
        ArmEvidence("tlm", UNIFORM, EXITS, EXITS, V, np.array([SMOOTH]), 0, None, None, None),
        ArmEvidence("mlms", SUITE, EXITS, EXITS, V, np.array([COLLAPSED]), 0, None, None, None),
    ]
    findings = [finding for finding in judge_claims(CLAIMS, arms, 0.95) if finding.verdict != "not run"]
    assert {finding.verdict for finding in findings} == {"inconclusive"}


def test_a_single_depth_is_judged_without_failing() -> None:
    arms = [
        ArmEvidence(name, settings, (1,), (1,), V, np.array([[3.0]]), 0, None, None, None)
        for name, settings in {"tlm": UNIFORM, "mlms": SUITE, "log": LOG, "bare": BARE, "grid": GRID, "repair": REPAIR}.items()
    ]
    assert len(judge_claims(CLAIMS, arms, 0.95)) == len(CLAIMS)


def test_thresholds_and_conclusions() -> None:
    inside, unknown = Interval(1.0, 0.5, 1.5), Interval(1.0, math.nan, math.nan)
    assert [above(inside, at) for at in (0.0, 1.0, 2.0)] == [True, None, False]
    assert [below(inside, at) for at in (0.0, 1.0, 2.0)] == [False, None, True]
    assert above(unknown, 0.0) is None
    assert conclude([]) == "inconclusive"
    assert conclude([True, None]) == "inconclusive"
    assert conclude([True, None, False]) == "not reproduced"
    assert combine([("a", Judgement("reproduced", "x")), ("b", Judgement("not run", "y"))]) == Judgement("reproduced", "a: x; b: y")


def test_spelling_shows_sign_unit_and_bounds() -> None:
    assert spell(Interval(0.12, 0.1, 0.14)) == "+0.120 nats [+0.100, +0.140]"
    assert spell(Interval(-0.12, math.nan, math.nan)) == "\N{MINUS SIGN}0.120 nats (no interval)"
