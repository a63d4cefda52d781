"""A copy of the repository with the tiny scale, and a mark on every process that these tests start.

The mark keeps other users' Rays on the machine from being taken for leftovers.
"""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from workspace import Workspace, write_corpus

COPIED = (
    "components",
    "tasks",
    "flows",
    "scales",
    ".dvc",
    "dvc.yaml",
    ".dvcignore",
    ".gitignore",
    "pyproject.toml",
    "prefect.toml",
)


@pytest.fixture(autouse=True)
def run_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_RUN_MARK", uuid.uuid4().hex)


@pytest.fixture(scope="session")
def make_workspace(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Workspace]:
    def make(name: str) -> Workspace:
        root = tmp_path_factory.mktemp(name) / "a study"  # a path with a space, as users have them
        root.mkdir()
        for part in COPIED:
            source = repository / part
            if source.is_dir():
                shutil.copytree(source, root / part, ignore=shutil.ignore_patterns("__pycache__", "tmp", "cache", "config.local"))
            else:
                shutil.copyfile(source, root / part)
        write_corpus(root / "corpus")
        workspace = Workspace(root)
        shutil.copyfile(root / "scales" / "tiny.yaml", root / "params.yaml")
        workspace.edit("    kind: sotu ", "    kind: files\n    paths: ['corpus/*.txt']\n    text_column: text ")
        subprocess.run(["git", "init", "--quiet", "."], cwd=root, check=True)
        return workspace

    return make


@pytest.fixture(scope="session")
def study(make_workspace: Callable[[str], Workspace]) -> Workspace:
    """A finished study, run by `dvc repro`; tests that change it leave it finished."""
    workspace = make_workspace("study")
    workspace.run("dvc", "repro")
    return workspace
