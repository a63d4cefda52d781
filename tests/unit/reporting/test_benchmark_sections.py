"""Benchmarks, other corpora and contamination in the report: what is compared, what is a hole, and what is said without them."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest

from components.config.problems import ResultsError
from components.evaluation import frontier
from components.reporting.accuracy import compare_benchmarks, compare_corpora, loda_acc, mean_accuracy
from components.reporting.analysis import Analysis
from components.reporting.benchmarks import accuracy_table, benchmark_paragraphs
from components.reporting.load import load_results
from components.reporting.multiples import benchmark_figures, corpora_figures
from components.reporting.render import render_markdown
from components.reporting.sections import build_sections
from components.reporting.tables import frontier_table
from components.reporting.write import headline_metrics
from components.results import ArmBenchmarks, Contamination, read_record, write_record
from tests.unit.reporting.toy_benchmarks import STDERR, make_scored_results
from tests.unit.reporting.toy_results import SMOOTH, TWIN, UNIFORM, UNTRAINED, ToyArm


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    folder = tmp_path_factory.mktemp("scored")
    return Analysis(load_results(make_scored_results(folder), folder / "artifacts"))


def test_mean_accuracy_is_over_benchmarks_with_the_error_of_a_mean(scored: Analysis) -> None:
    curve = mean_accuracy(compare_benchmarks(scored), "tlm-uniform")
    assert curve[7].value == pytest.approx(0.36)
    assert curve[7].stderr == pytest.approx(STDERR / math.sqrt(2))
    assert curve[0].value is None  # one of the two is not finite


def test_a_twin_has_accuracy_at_its_own_depth_only(scored: Analysis) -> None:
    assert [score.depth for score in mean_accuracy(compare_benchmarks(scored), "twin-full")] == [16]


def test_loda_acc_is_the_area_under_accuracy_of_depths_above_guessing(scored: Analysis) -> None:
    arm = scored.arms[0]
    compared = compare_benchmarks(scored)
    # chance is (0.25 + 0) / 2; depth 1 is not finite, all others are above it
    points = [frontier.OperatingPoint(1 / depth.flops_per_token, 0.2 + 0.02 * depth.depth, depth.depth > 1) for depth in arm.depths]
    assert loda_acc(scored, compared, arm) == pytest.approx(frontier.loda(points, scored.throughputs, "linear"))
    metrics = headline_metrics(scored)["tlm-uniform"]
    assert metrics["loda_acc"] == pytest.approx(loda_acc(scored, compared, arm))
    assert metrics["accuracy_full"] == pytest.approx(0.52)


def test_arms_scored_on_other_documents_are_named_and_not_compared(tmp_path: Path) -> None:
    study = make_scored_results(tmp_path, fingerprints={"mlms": "other"})
    analysis = Analysis(load_results(study, tmp_path / "artifacts"))
    for one in (*compare_benchmarks(analysis), *compare_corpora(analysis)):
        assert set(one.arms) == {"tlm-uniform", "twin-full"}
        assert one.left_out == ("mlms",)
    assert "Not compared on hellaswag, scored on other documents or by another version: mlms." in benchmark_paragraphs(analysis)
    cells = next(row for row in accuracy_table(analysis, compare_benchmarks(analysis)).rows if row[0] == "mlms")
    assert set(cells[1:]) == {"–"}
    assert "mlms" not in benchmark_figures(analysis, compare_benchmarks(analysis))[0].data


def test_accuracies_that_do_not_beat_guessing_are_starred(tmp_path: Path) -> None:
    study = make_scored_results(tmp_path)
    path = tmp_path / "artifacts/benchmarks/mlms.json"
    raw = json.loads(path.read_text())
    for benchmark in raw["seeds"][0]["benchmarks"]:
        for metric in benchmark["depths"][7]["metrics"]:
            metric["value"] = 0.12
    path.write_text(json.dumps(raw))
    analysis = Analysis(load_results(study, tmp_path / "artifacts"))
    row = next(row for row in accuracy_table(analysis, compare_benchmarks(analysis)).rows if row[0] == "mlms")
    assert row[1] == "0.120 ± 0.007 *"
    assert row[2] == "0.450 ± 0.007"


def test_the_figures_have_every_number_beside_them(scored: Analysis) -> None:
    (figure,) = benchmark_figures(scored, compare_benchmarks(scored))
    rows = list(csv.DictReader(io.StringIO(figure.data)))
    assert len(rows) == 3 * 2 * 2 * 16  # arms, benchmarks, metrics, depths
    assert {row["normalised_by"] for row in rows if row["metric"] == "acc_norm"} == {"characters"}
    assert "acc_norm, per character" in figure.caption
    (corpora,) = corpora_figures(scored, compare_corpora(scored))
    assert len(list(csv.DictReader(io.StringIO(corpora.data)))) == 3 * 16
    assert figure.png.startswith(b"\x89PNG")
    assert corpora.svg.startswith("<svg")


def test_the_report_holds_the_sections(scored: Analysis) -> None:
    text = render_markdown(build_sections(scored))
    for part in (
        "## Benchmarks",
        "## Out of domain",
        "## Contamination",
        "0.360 ± 0.007",
        "| hellaswag | acc_norm | characters | 100 | 0.250 |",
        "| books | 8 | 3.200 |",
        "| hellaswag | 100 | 50 | 1 | 2.0% | yes |",
        "scored in pieces: hellaswag 1% and lambada_openai 1%",
    ):
        assert part in text, part


def test_without_benchmarks_each_section_says_so(standard: Analysis) -> None:
    sections = {section.title: section for section in build_sections(standard)}
    for title in ("Benchmarks", "Out of domain", "Contamination"):
        assert sections[title].paragraphs[0].startswith("Not run: ")
        assert not sections[title].figures
        assert not sections[title].tables
    assert all(row[4] == "–" for row in frontier_table(standard).rows)
    assert "loda_acc" not in headline_metrics(standard)["tlm-uniform"]


def test_an_arm_without_a_record_is_a_hole(tmp_path: Path) -> None:
    study = make_scored_results(tmp_path)
    (tmp_path / "artifacts/benchmarks/twin-full.json").unlink()
    analysis = Analysis(load_results(study, tmp_path / "artifacts"))
    assert "Not scored yet: twin-full." in benchmark_paragraphs(analysis)
    assert render_markdown(build_sections(analysis))


@pytest.mark.parametrize(("key", "value"), [("limit", 50), ("exits", (8, 16)), ("arm", "mlms"), ("status", "not_run")])
def test_a_record_of_other_parameters_is_an_error(tmp_path: Path, key: str, value: object) -> None:
    study = make_scored_results(tmp_path)
    path = tmp_path / "artifacts/benchmarks/tlm-uniform.json"
    write_record(read_record(ArmBenchmarks, path).model_copy(update={key: value}), path)
    with pytest.raises(ResultsError, match=key):
        load_results(study, tmp_path / "artifacts")


def test_contamination_of_other_benchmarks_is_an_error(tmp_path: Path) -> None:
    study = make_scored_results(tmp_path)
    path = tmp_path / "artifacts/contamination.json"
    record = read_record(Contamination, path)
    write_record(record.model_copy(update={"benchmarks": record.benchmarks[:1]}), path)
    with pytest.raises(ResultsError, match=r"benchmarks\.tasks"):
        load_results(study, tmp_path / "artifacts")


def test_a_model_with_streams_is_shown_at_its_most_streams(tmp_path: Path) -> None:
    arms = {"tlm-uniform": ToyArm(UNIFORM, SMOOTH, n_streams=2), "twin-full": ToyArm(TWIN, UNTRAINED, (16,))}
    study = make_scored_results(tmp_path, arms)
    analysis = Analysis(load_results(study, tmp_path / "artifacts"))
    assert len(mean_accuracy(compare_benchmarks(analysis), "tlm-uniform")) == 16
