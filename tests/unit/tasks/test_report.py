"""The report command: writes the report, or prints the table of arms and where the report is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks import report
from tests.unit.reporting.toy_results import SMOOTH, UNIFORM, ToyArm, make_results


@pytest.fixture
def study_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_results(tmp_path, {"only": ToyArm(UNIFORM, SMOOTH, has_cost=False, has_history=False)})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_summary_prints_the_arms_and_writes_nothing(
    study_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["report", "--summary"])
    report.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("arm ")
    assert lines[2].startswith("only ")
    assert "not written yet" in lines[-1]
    assert not (study_folder / "artifacts/report").exists()


def test_report_is_written_without_costs_and_histories(
    study_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["report"])
    for name in ("depth_figures", "frontier_figures"):  # drawn by the tests of the report
        monkeypatch.setattr(f"components.reporting.sections.{name}", lambda _: [])
    report.main()
    assert (study_folder / "artifacts/report/index.html").exists()
    monkeypatch.setattr("sys.argv", ["report", "--summary"])
    report.main()
    assert capsys.readouterr().out.rstrip().endswith("artifacts/report/index.html")
