"""Fixtures that several folders of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--chaos-seed", type=int, default=None, help="runs the long rehearsals of tests/chaos, at moments drawn from it"
    )


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora that lie beside the repository on a developer's machine; a test that wants them is skipped without."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no shared corpora beside the repository")
    return folder
