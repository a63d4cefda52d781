"""Which stages run, and in which order."""

from __future__ import annotations

import pytest

from components.config.problems import ConfigError
from tasks.graph import StudyGraph

NEEDS = {
    "pack": frozenset[str](),
    "train@a": frozenset({"pack"}),
    "train@b": frozenset({"pack"}),
    "evaluate@a": frozenset({"pack", "train@a"}),
    "evaluate@b": frozenset({"pack", "train@b"}),
    "report": frozenset({"evaluate@a", "evaluate@b"}),
}


def graph(*stale: str) -> StudyGraph:
    return StudyGraph(NEEDS, frozenset(stale))


def test_nothing_asked_for_is_everything() -> None:
    assert graph().select() == tuple(NEEDS)


def test_arm_brings_what_it_needs_and_no_other_arm() -> None:
    assert graph().select(arms=["b"]) == ("pack", "train@b", "evaluate@b")


def test_kind_and_arm_narrow_each_other() -> None:
    assert graph().select(arms=["a"], stages=["train"]) == ("pack", "train@a")


def test_stage_can_be_named_whole() -> None:
    assert graph().select(stages=["evaluate@a"]) == ("pack", "train@a", "evaluate@a")


@pytest.mark.parametrize(("arms", "stages", "said"), [(["c"], [], "arms: no c"), ([], ["trian"], "stages: no trian")])
def test_unknown_name_is_a_config_error_that_lists_the_known(arms: list[str], stages: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=f"{said} in dvc.yaml; there are a|{said} in dvc.yaml; there are evaluate"):
        graph().select(arms, stages)


def test_stale_stages_run_with_what_follows_from_them() -> None:
    assert graph("train@b").to_run(NEEDS) == ("train@b", "evaluate@b", "report")


def test_nothing_stale_runs_nothing() -> None:
    assert graph().to_run(NEEDS) == ()


def test_ready_stages_need_nothing_unfinished_and_long_chains_come_first() -> None:
    needs = {
        **NEEDS,
        "expand@c": frozenset({"train@a"}),
        "expand@d": frozenset({"expand@c"}),
        "evaluate@d": frozenset({"expand@d"}),
    }
    chained = StudyGraph(needs, frozenset())
    unfinished = {"train@b", *needs} - {"pack", "train@a"}
    assert chained.ready(unfinished - {"train@b"}, unfinished) == ["expand@c", "evaluate@a"]
    assert chained.ready(unfinished, unfinished) == ["train@b", "expand@c", "evaluate@a"]
    assert chained.ready(["report"], ["evaluate@b", "report"]) == []
