"""Stages that time something run alone, after all that they do not hold up."""

from __future__ import annotations

from flows.running import _before_during_after_timing
from tasks.graph import StudyGraph

NEEDS = {
    "train@a": frozenset[str](),
    "evaluate@a": frozenset({"train@a"}),
    "profile@a": frozenset({"train@a"}),
    "report": frozenset({"evaluate@a", "profile@a"}),
}


def test_what_needs_a_profile_runs_after_it() -> None:
    graph = StudyGraph(NEEDS, frozenset(NEEDS), has_remote=False)
    assert _before_during_after_timing(graph, NEEDS) == (["train@a", "evaluate@a"], ["profile@a"], ["report"])
