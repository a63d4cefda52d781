"""Joining quality with latency, and choosing under a budget: the best, ties, nothing that fits, what cannot be compared."""

from __future__ import annotations

from typing import Any

import pytest

from components.config.problems import ConfigError, ResultsError
from components.profiling.operating_points import Budget, at_load, choose, join_points
from tests.unit.profiling.made_up_results import made_up_evaluation as _evaluation
from tests.unit.profiling.made_up_results import made_up_profile as _profile


def _table(**changes: Any) -> Any:
    evaluations = {"a": _evaluation("a", [4.0, 3.0, 2.0]), "b": _evaluation("b", [3.5, 3.0, 2.5])}
    profiles = {"a": _profile("a", [0.001, 0.002, 0.004]), "b": _profile("b", [0.001, 0.003, 0.003], **changes)}
    return join_points(evaluations, profiles)


def test_a_point_joins_quality_latency_and_memory() -> None:
    (point,) = (p for p in _table().points if (p.arm, p.depth, p.batch_size, p.context_tokens) == ("a", 2, 4, 20))
    assert (point.nll_nats, point.bits_per_byte, point.parameters, point.flops_per_token) == (3.0, 1.5, 200, 400)
    assert (point.decode_seconds, point.decode_tokens_per_second, point.memory_bytes) == (0.008, 500.0, 2080)


def test_quality_is_the_mean_over_seeds() -> None:
    table = join_points({"a": _evaluation("a", [4.0], seeds=3)}, {"a": _profile("a", [0.001])})
    assert {point.nll_nats for point in table.points} == {5.0}


def test_the_best_quality_within_the_latency_is_chosen() -> None:
    choice = choose(at_load(_table(), 1, None, None), Budget(latency_seconds=0.003), "nll_nats")
    assert [(p.arm, p.depth) for p in choice.fitting] == [("b", 3), ("a", 2), ("b", 2), ("b", 1), ("a", 1)]
    assert choice.n_tied == 1


def test_of_equal_quality_the_faster_comes_first() -> None:
    choice = choose(at_load(_table(), 1, None, None), Budget(memory_bytes=2500), "nll_nats")
    assert [(p.arm, p.depth) for p in choice.fitting[:2]] == [("a", 2), ("b", 2)]
    assert choice.n_tied == 2


def test_throughput_and_memory_are_limits_too() -> None:
    points = at_load(_table(), 4, 10, "a")
    assert [p.depth for p in choose(points, Budget(tokens_per_second=500), "nll_nats").fitting] == [2, 1]
    assert [p.depth for p in choose(points, Budget(memory_bytes=1040), "bits_per_byte").fitting] == [1]


def test_nothing_that_fits_names_the_closest() -> None:
    choice = choose(at_load(_table(), 1, 20, "a"), Budget(latency_seconds=0.0005, memory_bytes=1500), "nll_nats")
    assert choice.fitting == ()
    assert choice.closest is not None
    assert (choice.closest.arm, choice.closest.depth) == ("a", 1)
    assert Budget(latency_seconds=0.0005).excess(choice.closest) == {"latency": pytest.approx(2.0)}


def test_a_load_that_was_not_profiled_is_refused() -> None:
    with pytest.raises(ConfigError, match="--batch 3: not profiled; choose from 1, 4"):
        at_load(_table(), 3, None, None)
    with pytest.raises(ConfigError, match="--context 11: not profiled; choose from 10, 20"):
        at_load(_table(), 1, 11, None)
    with pytest.raises(ConfigError, match="--arm c: not in the table; there are a, b"):
        at_load(_table(), 1, None, "c")
    assert {point.context_tokens for point in at_load(_table(), 1, None, None)} == {20}


def test_what_is_left_out_is_said() -> None:
    evaluations = {"a": _evaluation("a", [float("inf"), 3.0]), "b": _evaluation("b", [3.0])}
    table = join_points(evaluations, {"a": _profile("a", [0.001, 0.002]), "c": _profile("c", [0.001])})
    assert {(point.arm, point.depth) for point in table.points} == {("a", 2)}
    assert [line.partition(";")[0] for line in table.left_out] == [
        "b: not profiled",
        "c: not evaluated",
        "a, depth 1: no finite score",
    ]


@pytest.mark.parametrize("changes", [{"device": "Another"}, {"threads": 2}, {"dtype": "bfloat16"}])
def test_profiles_of_different_machines_are_not_compared(changes: dict[str, Any]) -> None:
    with pytest.raises(ResultsError, match="different machines or settings"):
        _table(**changes)


def test_different_validation_sets_are_not_compared() -> None:
    profiles = {"a": _profile("a", [0.1]), "b": _profile("b", [0.1])}
    with pytest.raises(ResultsError, match="different validation sets"):
        join_points({"a": _evaluation("a", [1.0]), "b": _evaluation("b", [1.0], "w")}, profiles)


def test_without_any_common_arm_there_is_no_table() -> None:
    with pytest.raises(ResultsError, match="no arm is both evaluated and profiled"):
        join_points({"a": _evaluation("a", [1.0])}, {})
