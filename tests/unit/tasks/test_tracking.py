"""MLflow after an upload: benchmarks by depth on the arm's run, one run of their stage below, nothing twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tasks.recorded import recorded_arms
from tasks.tracking import upload_study
from tests.unit.tasks.recorded_study import make_study, write_lock


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write_lock(tmp_path, make_study(tmp_path))
    (tmp_path / "artifacts" / "contamination.json").write_text("{}\n")
    upload_study(tmp_path, "study")
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{tmp_path}/mlruns/mlflow.db")


def _runs(client: Any) -> dict[str, Any]:
    (experiment,) = client.search_experiments(filter_string="name = 'study'")
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def test_models_that_started_from_others_have_all_their_curves(client: Any, tmp_path: Path) -> None:
    runs = _runs(client)
    arms = ("fixed", "hd-n2", "hd-n1")
    assert set(runs) == {name for arm in arms for name in (arm, f"{arm} train", f"{arm} evaluate", f"{arm} benchmark")}
    for arm in arms:
        run_id = runs[arm].info.run_id
        for metric in ("depth/nll", "benchmark/piqa/acc", "corpus/books/bits_per_byte"):
            assert [point.step for point in client.get_metric_history(run_id, metric)] == [1]
        assert [file.path for file in client.list_artifacts(run_id)] == ["contamination.json"]
    assert client.get_metric_history(runs["hd-n2"].info.run_id, "benchmark_n1/piqa/acc")[0].value == 0.1
    again = upload_study(tmp_path, "study")
    assert (again.written, again.unchanged) == (0, 3)


def test_other_benchmark_results_replace_the_run(client: Any, tmp_path: Path) -> None:
    before = _runs(client)["fixed"].info.run_id
    shutil.copyfile(tmp_path / "artifacts/benchmarks/hd-n2.json", tmp_path / "artifacts/benchmarks/fixed.json")
    upload = upload_study(tmp_path, "study", {"fixed": recorded_arms(tmp_path)["fixed"]})
    assert upload.written == 1
    runs = _runs(client)
    assert runs["fixed"].info.run_id != before
    assert len(runs) == 12
