"""Made-up studies that several tests of the report read."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from components.reporting.analysis import Analysis
from components.reporting.load import load_results
from tests.unit.reporting.toy_results import COLLAPSED, SMOOTH, SUITE, TWIN, UNIFORM, UNTRAINED, ToyArm, make_results, standard_arms


@pytest.fixture(scope="session")
def standard(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """The three arms of the quick study."""
    folder = tmp_path_factory.mktemp("standard")
    return Analysis(load_results(make_results(folder), folder / "artifacts"))


@pytest.fixture(scope="session")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Everything that goes wrong at once: NLL of 1000, infinite and NaN, an arm without results, costs, documents or history."""
    folder = tmp_path_factory.mktemp("broken")
    arms = {
        "tlm-uniform": ToyArm(UNIFORM, [1000.0, math.inf, math.nan, *SMOOTH[3:]], has_cost=False, has_history=False),
        "mlms": ToyArm(SUITE, COLLAPSED, (8, 12, 16), has_documents=False),
        "twin-full": ToyArm(TWIN, UNTRAINED, (16,)),
        "absent": ToyArm(UNIFORM, SMOOTH, has_evaluation=False),
    }
    return Analysis(load_results(make_results(folder, arms, seeds=(42, 43)), folder / "artifacts"))


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """One arm of one block, one seed, one document."""
    folder = tmp_path_factory.mktemp("single")
    study = make_results(folder, {"only": ToyArm(UNIFORM, [3.0], (1,))}, n_blocks=(1,), n_documents=1)
    return Analysis(load_results(study, folder / "artifacts"))


@pytest.fixture
def standard_folder(tmp_path: Path) -> Path:
    """A folder with the standard results, to spoil."""
    make_results(tmp_path, standard_arms())
    return tmp_path
