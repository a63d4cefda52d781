"""Exports in MLflow's model registry: what a version has, what is not registered twice, and a study that MLflow does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.registry import register_export, run_of
from tasks.tracking import TrackingError, upload_study
from tests.unit.tasks.recorded_study import make_study, write_lock

NAME = "fixed-depth-1"
FILES = {"README.md": "# fixed, depth 1 of 4", "config.json": "{}", "model.safetensors": "weights"}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results of three arms in a new store."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write_lock(tmp_path, make_study(tmp_path))
    upload_study(tmp_path, "study")
    return tmp_path


@pytest.fixture
def export(tmp_path: Path) -> Path:
    folder = tmp_path / "export"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def _client(study: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{study}/mlruns/mlflow.db")


def test_a_version_has_the_files_the_readme_and_its_place_in_the_study(study: Path, export: Path, tmp_path: Path) -> None:
    run_id = run_of(study, "study", "fixed/seed-42")
    assert register_export(study, run_id, NAME, export, {"depth": "1"}) == f"models:/{NAME}/1"
    client = _client(study)
    version = client.get_model_version(NAME, "1")
    assert (version.run_id, version.tags["depth"], version.description) == (run_id, "1", FILES["README.md"])
    assert client.get_run(run_id).data.tags["study.unit"] == "fixed/seed-42"
    place = version.source.removeprefix(f"runs:/{run_id}/")
    fetched = Path(client.download_artifacts(run_id, place, str(tmp_path)))
    assert {path.name: path.read_text() for path in fetched.iterdir()} == FILES


def test_the_same_files_are_registered_once_and_other_files_are_the_next_version(study: Path, export: Path) -> None:
    run_id = run_of(study, "study", "fixed/seed-42")
    first = register_export(study, run_id, NAME, export, {})
    assert register_export(study, run_id, NAME, export, {}) == first
    (export / "model.safetensors").write_text("others")
    assert register_export(study, run_id, NAME, export, {}) == f"models:/{NAME}/2"
    assert sorted(version.version for version in _client(study).search_model_versions(f"name = '{NAME}'")) == [1, 2]
    assert upload_study(study, "study").unchanged == 3  # a registered version is no change of the results


@pytest.mark.parametrize(("experiment", "unit"), [("study", "fixed/seed-7"), ("another", "fixed/seed-42")])
def test_a_model_that_mlflow_has_no_run_of_is_told_before_anything_is_written(study: Path, experiment: str, unit: str) -> None:
    with pytest.raises(TrackingError, match=f"MLflow has no run of {unit}, .*; run `python -m tasks.track` first"):
        run_of(study, experiment, unit)
    assert _client(study).search_registered_models() == []
