"""A thousand ways to get `params.yaml` wrong: each is a plan that works or one clean ConfigError, never a traceback."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from components.config.loader import load_study
from components.config.problems import ConfigError
from components.profiling.plan import plan_study
from tests.toys import ROOT

SCALES = ("quick", "tiny", "hidden-decoding")
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**6),
    st.floats(allow_nan=True),
    st.sampled_from(["", "uniform", "tlm-uniform", "hd-n2", "../../etc/passwd", "1e-3", "kind", "a.b", "@", "\N{SNOWMAN}"]),
    st.just([]),
    st.just({}),
    st.lists(st.integers(-1, 40), max_size=20),
    st.dictionaries(st.sampled_from(["kind", "base", "seeds", "n_streams"]), st.integers(0, 3), max_size=2),
)


def _paths(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key and list index of the tree."""
    items = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    return [path for key, value in items for path in [(*at, key), *_paths(value, (*at, key))]]


def _mutate(tree: dict[str, Any], draw: st.DrawFn) -> None:
    path = draw(st.sampled_from(_paths(tree)))
    parent = tree
    for part in path[:-1]:
        parent = parent[part]
    action = draw(st.sampled_from(["set", "delete", "rename", "copy"]))
    if action == "set":
        parent[path[-1]] = draw(VALUES)
    elif action == "delete":
        del parent[path[-1]]
    elif isinstance(parent, dict):
        value = parent[path[-1]] if action == "copy" else parent.pop(path[-1])
        parent[f"{path[-1]}{draw(st.sampled_from(['x', '-2', '.', ' ']))}"] = copy.deepcopy(value)


@st.composite
def _mutated(draw: st.DrawFn) -> dict[str, Any]:
    text = (ROOT / "scales" / f"{draw(st.sampled_from(SCALES))}.yaml").read_text(encoding="utf-8")
    tree: dict[str, Any] = copy.deepcopy(YAML(typ="safe", pure=True).load(text))
    for _ in range(draw(st.integers(1, 3))):
        if _paths(tree):
            _mutate(tree, draw)
    return tree


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(tree=_mutated())
def test_a_mutated_file_is_a_plan_or_a_clean_error(tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = Path(tmp_path_factory.getbasetemp()) / "mutated.yaml"
    with path.open("w", encoding="utf-8") as file:
        YAML().dump(tree, file)
    try:
        study = load_study(path)
    except ConfigError as error:
        message = str(error)
    else:
        assert all(plan.flops > 0 for plan in plan_study(study))
        return
    assert message.startswith(str(path))
    assert len(message.splitlines()) < 200
