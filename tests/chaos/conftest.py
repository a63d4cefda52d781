"""Random moments from a seed: a short part always, the long rehearsals with `pytest tests/chaos --chaos-seed N`."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.workspace import Workspace, tiny_study

SHORT_SEED = 7


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--chaos-seed") is None:
        for item in items:
            if item.get_closest_marker("chaos"):
                item.add_marker(pytest.mark.skip(reason="a rehearsal of many minutes: pytest tests/chaos --chaos-seed N"))


@pytest.fixture
def moments(request: pytest.FixtureRequest) -> random.Random:
    """What the moments of a rehearsal are drawn from."""
    seed = request.config.getoption("--chaos-seed")
    return random.Random(SHORT_SEED if seed is None else seed)


@pytest.fixture(autouse=True)
def run_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment of every process that a test starts: nobody else's is ever signalled."""
    monkeypatch.setenv("PYTEST_RUN_MARK", uuid.uuid4().hex)


@pytest.fixture
def make_workspace(repository: Path, tmp_path: Path) -> Callable[[str], Workspace]:
    return lambda name: tiny_study(repository, tmp_path / f"a {name}")
