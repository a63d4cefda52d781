"""Copies of the repository with the tiny scale, and a mark on every process that these tests start.

The mark keeps other users' Rays on the machine from being taken for leftovers.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pipeline.processes import end_marked
from tests.pipeline.workspace import Workspace, tiny_study


@pytest.fixture(autouse=True)
def run_mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTEST_RUN_MARK", uuid.uuid4().hex)
    yield
    end_marked()


@pytest.fixture(scope="session")
def make_workspace(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Workspace]:
    """A study that was never run."""

    def make(name: str) -> Workspace:
        return tiny_study(repository, tmp_path_factory.mktemp(name) / "a study")  # a path with a space, as users have them

    return make


@pytest.fixture(scope="session")
def make_packed(make_workspace: Callable[[str], Workspace], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Workspace]:
    """A study that has packed its data and trained nothing."""
    first = make_workspace("packed")
    first.run("dvc", "repro", "pack")

    def make(name: str) -> Workspace:
        root = tmp_path_factory.mktemp(name) / "a study"
        shutil.copytree(first.root, root, symlinks=True)
        return Workspace(root)

    return make


@pytest.fixture(scope="session")
def study(make_workspace: Callable[[str], Workspace]) -> Workspace:
    """A finished study, run by `dvc repro`; tests that change it leave it finished."""
    workspace = make_workspace("study")
    workspace.run("dvc", "repro")
    return workspace
