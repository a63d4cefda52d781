"""Every process that these tests start carries a mark, so that other users' Rays on the machine are not taken for leftovers."""

from __future__ import annotations

import uuid

import pytest


@pytest.fixture(autouse=True)
def run_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_RUN_MARK", uuid.uuid4().hex)
