"""Measured throughput: used when every arm has it, named when not, and refused when it is not of these parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.config.problems import ResultsError
from components.reporting.analysis import Analysis
from components.reporting.differences import limits
from components.reporting.latency import latency_figures, latency_paragraphs, latency_tables
from components.reporting.load import load_results
from components.reporting.plots import frontier_figures
from components.reporting.tables import Table, frontier_table
from components.reporting.throughput import Load
from components.results import ArmProfile, read_record, write_record
from tests.unit.reporting.toy_results import ToyArm, make_results, standard_arms

SECONDS = {"tlm-uniform": 1e-3, "mlms": 2e-3, "twin-full": 1e-3}


def analysed(folder: Path, unprofiled: tuple[str, ...] = ()) -> Analysis:
    arms = standard_arms()
    for name, toy in arms.items():
        toy.step_seconds = None if name in unprofiled else SECONDS[name]
    return Analysis(load_results(make_results(folder, arms), folder / "artifacts"))


def change_profile(folder: Path, arm: str, **changes: object) -> None:
    path = folder / "artifacts" / "profile" / f"{arm}.json"
    write_record(read_record(ArmProfile, path).model_copy(update=changes), path)


def table(analysis: Analysis, title: str) -> Table:
    return next(one for one in latency_tables(analysis) if one.title == title)


def test_the_axis_is_measured_when_every_arm_has_a_profile(tmp_path: Path) -> None:
    analysis = analysed(tmp_path)
    assert analysis.throughput.is_measured
    assert analysis.throughput.served == Load(8, 96)
    uniform, suite = analysis.arms[0], analysis.arms[1]
    assert analysis.throughput.of(uniform)[0] == pytest.approx(8 / 2e-3)
    assert analysis.throughput.of(suite)[-1] == pytest.approx(8 / (17 * 2e-3))
    assert analysis.throughputs.fastest == pytest.approx(8 / 2e-3)
    text = "Throughput is measured: decoded tokens per second, batch 8, 96 tokens of context, on Example CPU, threads: 1, float32."
    assert text in frontier_table(analysis).note
    assert text in limits(analysis)
    (figure,) = frontier_figures(analysis)
    assert text in figure.caption
    rows = [line.split(",") for line in figure.data.splitlines()[1:]]
    assert float(next(row[2] for row in rows if row[:2] == ["tlm-uniform", "1"])) == pytest.approx(17 / 2)


def test_one_arm_without_a_profile_makes_the_axis_analytic_for_all(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, unprofiled=("mlms",))
    assert not analysis.throughput.is_measured
    uniform = analysis.arms[0]
    assert analysis.throughput.of(uniform) == analysis.throughput.analytic(uniform)
    assert "because it is not measured for mlms (not profiled)." in frontier_table(analysis).note
    assert latency_paragraphs(analysis)[1] == "Without: mlms (not profiled)."
    row = next(row for row in table(analysis, "LODA-ppl by throughput axis").rows if row[0] == "mlms")
    assert row[1] != "–"
    assert row[2:] == ("–", "–")


def test_profiles_of_another_machine_are_named_and_left_out(tmp_path: Path) -> None:
    analysed(tmp_path)
    change_profile(tmp_path, "mlms", threads=2)
    study = make_results_again(tmp_path)
    assert study.results.profiles.left_out == {"mlms": "profiled on Example CPU, threads: 2, float32"}


def make_results_again(folder: Path) -> Analysis:
    from components.config.loader import load_study

    return Analysis(load_results(load_study(folder / "params.yaml"), folder / "artifacts"))


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"dtype": "bfloat16"}, "dtype"), ({"seed": 7}, "seed 7"), ({"n_blocks": 3}, "blocks"), ({"cells": ()}, "batch sizes")],
)
def test_a_profile_of_other_parameters_is_an_error(tmp_path: Path, changes: dict[str, object], what: str) -> None:
    analysed(tmp_path)
    change_profile(tmp_path, "mlms", **changes)
    with pytest.raises(ResultsError, match=what):
        make_results_again(tmp_path)


def test_latency_is_shown_per_depth_and_load(tmp_path: Path) -> None:
    analysis = analysed(tmp_path)
    first = table(analysis, "Milliseconds per decoding step, batch 1, 96 tokens of context")
    assert first.columns == ("depth k", "tlm-uniform", "mlms", "twin-full")
    assert first.rows[0] == ("1", "2 [1.8, 2.2]", "4 [3.6, 4.4]", "–")
    assert first.rows[15][3] == "17 [15.3, 18.7]"
    detail = table(analysis, "What a depth of tlm-uniform costs to serve")
    assert detail.rows[0][2] == f"{2 / 17:.2f}"
    latency, speculation = latency_figures(analysis)
    assert len(latency.data.splitlines()) == 1 + 3 * 2 * 16
    assert len(speculation.data.splitlines()) == 1 + 3 * 2


def test_speculation_is_recommended_or_not(tmp_path: Path) -> None:
    analysed(tmp_path)
    change_profile(tmp_path, "mlms", recommended=None)
    rows = table(make_results_again(tmp_path), "Self-speculative decoding").rows
    assert rows[0][-2:] == ("1.50 [1.40, 1.60]", "draft 2 tokens with depth 1")
    assert rows[1][-1] == "none"


def test_without_profiles_the_chapter_says_so(standard: Analysis) -> None:
    assert latency_tables(standard) == ()
    assert latency_figures(standard) == ()
    assert "run `dvc repro`" in latency_paragraphs(standard)[0]
    assert "no arm has a latency profile" in standard.throughput.description


def test_depths_that_were_not_profiled_are_named(tmp_path: Path) -> None:
    analysed(tmp_path)
    profile = read_record(ArmProfile, tmp_path / "artifacts/profile/mlms.json")
    change_profile(tmp_path, "mlms", cells=tuple(cell for cell in profile.cells if cell.depth != 5))
    analysis = make_results_again(tmp_path)
    assert analysis.throughput.unmeasured == {"mlms": "not profiled at every depth"}
    assert table(analysis, "Milliseconds per decoding step, batch 1, 96 tokens of context").rows[4][2] == "–"


def test_an_arm_shown_at_its_most_streams_is_timed_there(tmp_path: Path) -> None:
    arms = {"tlm-uniform": ToyArm(standard_arms()["tlm-uniform"].objective, standard_arms()["tlm-uniform"].nll, step_seconds=1e-3)}
    arms["tlm-uniform"].n_streams = 2
    analysis = Analysis(load_results(make_results(tmp_path, arms), tmp_path / "artifacts"))
    assert analysis.throughput.of(analysis.arms[0])[-1] == pytest.approx(8 / (2 * 17e-3))
