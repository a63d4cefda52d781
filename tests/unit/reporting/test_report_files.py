"""The report's folder: complete, self-contained, the same bytes for the same results, and never a crash."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from components.config.loader import read_yaml
from components.config.problems import ConfigError
from components.evaluation.hidden_decoding_claims import HIDDEN_DECODING_CLAIMS
from components.evaluation.telescopic_claims import CLAIMS
from components.reporting.analysis import Analysis
from components.reporting.curves import depth_curves_csv, depth_figures, heat_map, panels
from components.reporting.figures import PALETTE, looks
from components.reporting.load import load_results
from components.reporting.plots import cost_figure, frontier_figures, training_figure
from components.reporting.render import render_markdown, split_verdict
from components.reporting.sections import Section
from components.reporting.tables import Table
from components.reporting.write import headline_metrics, write_report
from tests.unit.reporting.toy_results import ROOT, SMOOTH, SUITE, UNIFORM, ToyArm, make_results, standard_arms


@pytest.fixture(scope="module")
def folder(standard: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("written") / "report"
    write_report(standard, target)
    return target


class Tags(HTMLParser):
    """Collects ids, addresses, and tags left open."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.addresses += [values[key] or "" for key in ("src", "href", "xlink:href") if key in values]
        if tag not in ("meta", "link", "br", "hr", "img", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_one_self_contained_well_formed_file(folder: Path) -> None:
    page = (folder / "index.html").read_text()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert len(tags.ids) == len(set(tags.ids))
    inner = {address for address in tags.addresses if not address.startswith("data:image/png;base64,")}
    assert inner <= {f"#{name}" for name in tags.ids}
    assert "<script" not in page
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_every_figure_has_png_and_csv_and_a_text_alternative(folder: Path) -> None:
    names = {path.stem for path in (folder / "figures").glob("*.png")}
    assert names == {"depth_curves_ppl", "depth_curves_bits", "heat_map", "frontier", "cost", "training_loss"}
    assert {path.stem for path in (folder / "figures").glob("*.csv")} == names | {"depth_curves"}
    page = (folder / "index.html").read_text()
    assert page.count('<svg role="img" aria-label="') == len(names)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (folder / "figures").glob("*.png"))


def test_markdown_links_the_figures_and_has_every_section(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    for link in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (folder / link).exists()
    page = (folder / "index.html").read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == re.findall(r"<h2>(.+)</h2>", page)
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert tables
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_depth_curves_hold_every_seed_and_depth_for_dvc_plots(folder: Path) -> None:
    with (folder / "figures/depth_curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["arm", "seed", "depth", "nll_nats", "ppl", "bits_per_byte"]
    assert len(rows) == 16 + 16 + 1


def test_the_same_results_give_the_same_bytes(standard: Analysis) -> None:
    first, second = heat_map(standard), heat_map(standard)
    assert first.svg == second.svg
    assert first.png == second.png


def test_colours_follow_the_page_and_arms_differ_beyond_colour(standard: Analysis) -> None:
    svg = heat_map(standard).svg
    assert "var(--ink" in svg
    many = looks([str(i) for i in range(60)])
    assert len({(look.color, look.marker) for look in many.values()}) == 60
    assert many["0"].dash != many[str(len(PALETTE))].dash


def test_metrics_are_flat_numbers_per_arm(folder: Path) -> None:
    metrics = {path.stem: json.loads(path.read_text()) for path in (folder / "metrics").iterdir()}
    assert set(metrics) == {"tlm-uniform", "mlms", "twin-full"}
    assert "aulb_nats" not in metrics["twin-full"]
    assert all(isinstance(value, int | float) for values in metrics.values() for value in values.values())
    counts = json.loads((folder / "findings.json").read_text())
    assert sum(counts["telescopic"].values()) == len(CLAIMS)
    assert counts["hidden_decoding"] == {"not_run": len(HIDDEN_DECODING_CLAIMS)}


def test_dvc_finds_its_metrics_and_plots_in_the_report(folder: Path) -> None:
    graph = read_yaml(ROOT / "dvc.yaml")
    plotted = [path for plot in graph["plots"] for body in plot.values() for path in body["y"]]
    for path in (*graph["metrics"], *plotted):
        assert (folder / Path(path).relative_to("artifacts/report")).exists(), path


def test_a_new_report_replaces_the_old_one_whole(standard: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.reporting.write.build_sections", lambda _: [Section("Only", "only")])
    write_report(standard, tmp_path / "report")
    (tmp_path / "report/figures/of_an_arm_that_is_gone.png").touch()
    write_report(standard, tmp_path / "report")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report"]
    assert not (tmp_path / "report/figures/of_an_arm_that_is_gone.png").exists()


def test_a_report_takes_no_folder_with_other_files(standard: Analysis, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"has files in it, but no findings\.json"):
        write_report(standard, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize("fixture", ["broken", "single"])
@pytest.mark.parametrize("draw", [depth_figures, frontier_figures])
def test_curves_of_impossible_numbers_are_drawn(fixture: str, draw: object, request: pytest.FixtureRequest) -> None:
    figures = draw(request.getfixturevalue(fixture))  # type: ignore[operator]
    assert all("<svg" in figure.svg and figure.png for figure in figures)


@pytest.mark.parametrize("fixture", ["broken", "single"])
def test_other_figures_of_impossible_numbers_are_drawn(fixture: str, request: pytest.FixtureRequest) -> None:
    analysis = request.getfixturevalue(fixture)
    assert heat_map(analysis).svg
    assert cost_figure(analysis) is not None
    assert training_figure(analysis) is not None


@pytest.mark.parametrize("fixture", ["broken", "single"])
def test_headline_numbers_and_curves_of_impossible_numbers_stay_valid(fixture: str, request: pytest.FixtureRequest) -> None:
    analysis = request.getfixturevalue(fixture)
    json.dumps(headline_metrics(analysis), allow_nan=False)
    text = depth_curves_csv(analysis, analysis.arms)
    assert "nan" not in text
    assert "inf" not in text


@pytest.mark.parametrize("fixture", ["broken", "single"])
def test_a_whole_report_of_impossible_numbers_is_written(
    fixture: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("depth_figures", "frontier_figures"):  # drawn by the tests above
        monkeypatch.setattr(f"components.reporting.sections.{name}", lambda _: [])
    page = write_report(request.getfixturevalue(fixture), tmp_path / "report").read_text()
    assert "<h2>Limits</h2>" in page


def test_a_report_is_written_of_arms_with_segments_of_their_own(tmp_path: Path) -> None:
    model = {"segments": [{"n_blocks": 8, "d_model": 48}, {"n_blocks": 12, "d_model": 64}]}
    arms = {**standard_arms(), "mlms-deep": ToyArm(SUITE, [3.0] * 20, (8, 20), model=model)}
    analysis = Analysis(load_results(make_results(tmp_path, arms), tmp_path / "artifacts"))
    page = write_report(analysis, tmp_path / "report").read_text()
    assert "(of another shape: mlms-deep)" in page


def test_without_costs_and_histories_their_sections_say_so(tmp_path: Path) -> None:
    study = make_results(tmp_path, {"only": ToyArm(UNIFORM, SMOOTH, has_cost=False, has_history=False)})
    analysis = Analysis(load_results(study, tmp_path / "artifacts"))
    assert cost_figure(analysis) is None
    assert training_figure(analysis) is None
    assert analysis.reference.name == "only"


def test_many_arms_are_split_into_panels_by_objective(tmp_path: Path) -> None:
    arms = {**standard_arms(), **{f"tlm-{i}": ToyArm(UNIFORM, SMOOTH) for i in range(5)}}
    study = make_results(tmp_path, arms)
    found = panels(Analysis(load_results(study, tmp_path / "artifacts")))
    assert [panel.suffix for panel in found] == ["_telescopic", "_fixed_exits"]
    assert [arm.name for arm in found[1].arms] == ["tlm-uniform", "mlms", "twin-full"]


def test_verdicts_are_split_off_for_colour() -> None:
    assert split_verdict("+0.1 [+0.0, +0.2] no difference") == ("+0.1 [+0.0, +0.2] ", "no difference", "open")
    assert split_verdict("not reproduced") == ("", "not reproduced", "bad")
    assert split_verdict("twin") == ("twin", "", "")


def test_markdown_escapes_what_would_break_a_table() -> None:
    text = render_markdown([Section("S", "s", tables=(Table("T", ("a", "b"), (("x|y", "[1] *"),)),))])
    assert r"| x\|y | \[1\] \* |" in text
