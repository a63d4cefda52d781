"""The claims of Hidden Decoding on made-up models with a known answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from components.evaluation.findings import ArmEvidence, Finding, agree_by_seed, judge_claims
from components.evaluation.hidden_decoding_claims import HIDDEN_DECODING_CLAIMS

N = 6
THREE = ["intra", "cross_full", "intra", "intra", "cross_full", "intra"]
ONE = ["intra", "cross_full", "intra", "intra", "intra", "intra"]
ALL = ["cross_full"] * N


def evidence(name: str, objective: dict[str, Any], full: float, noise: float = 0.002, **changes: Any) -> ArmEvidence:
    generator = np.random.default_rng(len(name))
    samples = full + noise * generator.standard_normal((201, N))
    samples[0] = full
    samples[:, :-1] += len(name)  # whoever looks at another depth than the full one sees another order
    fields = {"device_hours": 1.0, "cost_unit": "core-hours", "flops": 1.0, "tokens": 100.0, "streams": None, **changes}
    return ArmEvidence(name, objective, (N,), (N,), 100, samples, 100, **fields)


def expansion(name: str, full: float, n: int = 2, base: str = "tlm", replication: str = "cyclic", **changes: Any) -> ArmEvidence:
    given = {key: changes.pop(key) for key in list(changes) if key in ("device_hours", "flops", "tokens", "noise", "decode")}
    if "decode" in given:
        given["decode_tokens_per_second"] = given.pop("decode")
    streams = {
        "n_streams": n, "layers": THREE, "rope_rule": "by_layer", "kv": "separate", "supervision": "last", "n_mirrored": 0,
        "sampled": None, "local": None, **changes,
    }  # fmt: skip
    objective = {
        "kind": "hidden_decoding", "base": base, "inner": {"kind": "twin"}, "replication": replication, "optimizer": "keep",
        "control": None,
    }  # fmt: skip
    return evidence(name, objective, full, streams=streams, **given)


def control(name: str, full: float, of: str, equal: str = "tokens", **changes: Any) -> ArmEvidence:
    objective = {
        "kind": "hidden_decoding",
        "base": "tlm",
        "inner": {"kind": "twin"},
        "control": {"base": "tlm", "of": of, "equal": equal},
    }
    return evidence(name, objective, full, **changes)


def judged(word: str, *arms: ArmEvidence) -> Finding:
    [finding] = [finding for finding in judge_claims(HIDDEN_DECODING_CLAIMS, arms, 0.95) if word in finding.statement]
    return finding


def test_without_results_no_claim_was_run() -> None:
    assert {finding.verdict for finding in judge_claims(HIDDEN_DECODING_CLAIMS, [], 0.95)} == {"not run"}


@pytest.mark.parametrize(("full", "verdict"), [(2.9, "reproduced"), (3.1, "not reproduced"), (3.0, "inconclusive")])
def test_a_gain_is_over_the_control_of_equal_tokens(full: float, verdict: str) -> None:
    arms = expansion("hd-n2", full), control("hd-n1", 3.0, "hd-n2"), expansion("tlm-n2-other", 0.1, kv="shared")
    finding = judged("Two streams", *arms)
    assert finding.verdict == verdict
    assert "hd-n2 minus hd-n1" in finding.evidence
    assert judged("Four streams are", *arms).verdict == "not run"


def test_the_gain_grows_when_that_of_four_is_larger_than_that_of_two() -> None:
    two = expansion("hd-n2", 2.9), control("hd-n1", 3.0, "hd-n2")
    four = [expansion("hd-n4", full, 4, base="hd-n2", tokens=200.0) for full in (2.7, 2.85)]
    other = control("hd-n1-of-n4", 2.9, "hd-n4", tokens=200.0)
    grown = judged("gain grows", *two, four[0], other)
    assert grown.verdict == "reproduced"
    assert grown.evidence.startswith("gain of hd-n4 minus gain of hd-n2: +0.100 nats")
    assert judged("gain grows", *two, four[1], other).verdict == "not reproduced"
    elsewhere = replace(other, objective={**other.objective, "base": "backbone"})
    assert judged("gain grows", *two, four[0], elsewhere).verdict == "not run"  # of another base: nothing grew


def test_a_control_of_another_objective_is_none_of_the_few_cross_layers() -> None:
    few, dense, own = expansion("hd-n2", 2.9), expansion("dense", 2.85, layers=ALL), control("hd-n1", 3.0, "hd-n2")
    other = replace(control("telescopic", 9.0, "hd-telescopic"), objective={**own.objective, "inner": {"kind": "telescopic"}})
    assert "gain of hd-n2 +0.100 nats" in judged("A few cross", few, dense, other, own).evidence
    assert judged("A few cross", few, dense, other).verdict == "not run"


def test_where_there_is_no_gain_none_grows_and_none_is_shared() -> None:
    two = expansion("hd-n2", 3.05), control("hd-n1", 3.0, "hd-n2")
    four = expansion("hd-n4", 3.01, 4, base="hd-n2", tokens=200.0), control("hd-n1-of-n4", 3.0, "hd-n4", tokens=200.0)
    assert judged("gain grows", *two, *four).verdict == "not reproduced"
    few, dense = expansion("hd-n2", 3.01), expansion("dense", 3.05, layers=ALL)
    shared = judged("A few cross", few, dense, control("hd-n1", 3.0, "hd-n2"))
    assert shared.verdict == "inconclusive"
    assert shared.evidence.startswith("no gain to share: that of dense, with all cross layers, is \N{MINUS SIGN}0.050 nats")


def test_equal_flops_has_to_hold_for_every_number_of_streams() -> None:
    two = expansion("hd-n2", 2.9), control("hd-n1-flops", 3.0, "hd-n2", "flops")
    four = expansion("hd-n4", 2.9, 4, base="hd-n2"), control("hd-n1-flops-of-n4", 2.8, "hd-n4", "flops")
    assert judged("as many FLOPs", *two).verdict == "reproduced"
    finding = judged("as many FLOPs", *two, *four)
    assert finding.verdict == "not reproduced"
    assert "hd-n2: " in finding.evidence


def test_cross_layers_are_compared_by_their_number() -> None:
    few, one = expansion("hd-n2", 2.9), expansion("one", 2.95, layers=ONE)
    dense = expansion("dense", 2.85, layers=ALL, rope_rule="physical")
    local = expansion("local", 1.0, layers=["cross_local", *THREE[1:]], local={"size": 4, "unit": "rows"})
    finding = judged("More layers", few, one, dense, local)
    assert finding.verdict == "reproduced"
    assert finding.evidence.startswith("1 of 6 < 2 of 6 < 6 of 6 cross layers; hd-n2 minus one")
    assert judged("More layers", few, dense, expansion("one", 2.8, layers=ONE)).verdict == "not reproduced"
    assert judged("A few cross", few, dense, control("hd-n1", 3.0, "hd-n2")).verdict == "reproduced"
    assert judged("A few cross", few, dense, control("hd-n1", 2.91, "hd-n2")).verdict == "not reproduced"
    told = judged("A few cross", few, dense, control("hd-n1", 3.0, "hd-n2")).evidence
    assert told.startswith("gain of hd-n2 +0.100 nats, of dense +0.150; more than half: +0.025 nats")
    assert judged("A few cross", few, one, control("hd-n1", 3.0, "hd-n2")).verdict == "not run"
    half = expansion("half", 2.9, layers=["intra", "cross_full"] * 3)
    assert judged("A few cross", half, dense, control("hd-n1", 3.0, "half")).verdict == "not run"


def test_cross_layers_are_compared_where_nothing_else_differs() -> None:
    few, one, shared = expansion("hd-n2", 2.9), expansion("one", 2.95, layers=ONE), expansion("shared", 2.0, kv="shared")
    assert judged("More layers", shared, few, one).verdict == "reproduced"
    assert judged("More layers", few, expansion("one", 2.95, layers=ONE, rope_rule="physical")).verdict == "not run"
    assert judged("More layers", few, shared).verdict == "not run"


@pytest.mark.parametrize(
    ("word", "changes"),
    [
        ("than all streams", {"supervision": "all"}),
        ("than the sum", {"supervision": "sum"}),
        ("shared ones", {"kv": "shared"}),
        ("by blocks", {"replication": "block"}),
    ],
)
def test_one_setting_alone_is_compared(word: str, changes: dict[str, Any]) -> None:
    ours = expansion("hd-n2", 2.9)
    assert judged(word, ours, expansion("other", 3.0, **changes)).verdict == "reproduced"
    assert judged(word, ours, expansion("other", 2.8, **changes)).verdict == "not reproduced"
    assert judged(word, ours, expansion("other", 3.0, n_mirrored=2, **changes)).verdict == "not run"
    assert judged(word, ours, expansion("other", 3.0, tokens=90.0, **changes)).verdict == "not run"


@pytest.mark.parametrize(
    ("hours", "flops", "verdict"),
    [(4.5, 4.1, "reproduced"), (6.0, 4.1, "inconclusive"), (16.0, 9.0, "not reproduced"), (None, 4.1, "inconclusive")],
)
def test_training_time_is_per_token_of_the_control(hours: float | None, flops: float, verdict: str) -> None:
    base = control("hd-n1", 3.0, "hd-n4", device_hours=0.5, flops=0.5, tokens=50.0)
    finding = judged("not sixteen", expansion("hd-n4", 2.9, 4, device_hours=hours, flops=flops), base)
    assert finding.verdict == verdict
    told = "no cost recorded in one unit" if hours is None else f"per token: {hours:.2f} in core-hours, {flops:.2f} in FLOPs"
    assert finding.evidence.endswith(told)


def test_mirror_saves_when_time_and_flops_fall() -> None:
    plain = expansion("hd-n2", 2.9)
    assert judged("KV-Mirror", plain).verdict == "not run"
    few = expansion("few", 2.9, n_mirrored=1), expansion("mirror", 2.9, n_mirrored=2)
    assert judged("KV-Mirror", *few).verdict == "not run"  # neither is without
    saving = judged("KV-Mirror", plain, expansion("mirror", 2.9, n_mirrored=2, device_hours=0.8, flops=0.9))
    assert saving.verdict == "reproduced"
    assert "-20.0% in core-hours, -10.0% in FLOPs" in saving.evidence
    assert judged("KV-Mirror", plain, expansion("mirror", 2.9, n_mirrored=2, device_hours=1.2, flops=0.9)).verdict == "inconclusive"
    assert judged("KV-Mirror", plain, expansion("mirror", 2.9, n_mirrored=2, device_hours=0.8)).verdict == "not run"  # same rows


def test_decoding_is_judged_at_batch_one_and_needs_profiles() -> None:
    base = control("hd-n1", 3.0, "hd-n4", decode_tokens_per_second={1: 100.0, 8: 400.0})
    assert judged("decode one text", expansion("hd-n4", 2.9, 4, decode={1: 85.0, 8: 200.0}), base).verdict == "reproduced"
    finding = judged("decode one text", expansion("hd-n4", 2.9, 4, decode={1: 50.0, 8: 200.0}), base)
    assert finding.verdict == "not reproduced"
    assert finding.evidence.endswith("batch 1 50%, batch 8 50%")
    assert judged("decode one text", expansion("hd-n4", 2.9, 4), base).verdict == "not run"


def test_a_model_that_draws_its_number_of_streams_stands_in_no_comparison() -> None:
    drawn = expansion("hd-any", 2.0, sampled=[1, 2])
    assert judged("Two streams", drawn, control("hd-n1", 3.0, "hd-any")).verdict == "not run"
    assert judged("More layers", drawn, expansion("one", 2.9, layers=ONE)).verdict == "not run"


def test_each_seed_alone_is_told_beside_the_verdict_of_all() -> None:
    arms = expansion("hd-n2", 2.9), control("hd-n1", 3.0, "hd-n2")
    worse = expansion("hd-n2", 3.1), arms[1]
    together = judge_claims(HIDDEN_DECODING_CLAIMS, arms, 0.95)
    alone = {42: together, 43: judge_claims(HIDDEN_DECODING_CLAIMS, worse, 0.95)}
    first, *_, last = agree_by_seed(together, alone)
    assert first.agreement == "1 of 2 (43: not reproduced)"
    assert last.agreement == ""  # not run
    assert together[0].agreement == ""
