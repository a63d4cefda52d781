"""The chapter on Hidden Decoding: the right arms beside each other, and the right cells on the frontier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from components.models.stream_sizes import cache_bytes
from components.reporting.analysis import Analysis
from components.reporting.load import load_results
from components.reporting.streams import Cell, _frontier, grid_figure, second_dial_tables, streams_tables
from components.reporting.tables import Table
from tests.unit.reporting.toy_results import SMOOTH, UNIFORM, ToyArm, make_results

LAYERS = ["intra", "cross_full"] * 8
TWO: dict[str, Any] = {
    "kind": "expansion",
    "base": "tlm-uniform",
    "streams": {
        "n_streams": 2,
        "layers": LAYERS,
        "rope_rule": "by_layer",
        "kv": "separate",
        "supervision": "last",
        "n_mirrored": 0,
    },
    "replication": "cyclic",
    "optimizer": "keep",
    "training": {"steps": 100, "warmup_steps": 10},
}
SUM = {**TWO, "streams": {**TWO["streams"], "supervision": "sum"}}
TOKENS, FLOPS = ({"kind": "control", "base": "tlm-uniform", "of": "hd-n2", "equal": equal} for equal in ("tokens", "flops"))

NOISE = 0.02  # the toy results have noise of 0.02 nats per document, on 40 documents


def _lower(nats: float) -> list[float]:
    return [value - nats for value in SMOOTH]


def _estimate(cell: str) -> float:
    return float(cell.split()[0].replace("−", "-"))


def _tables(folder: Path, **missing: bool) -> dict[str, Table]:
    return {table.title: table for table in streams_tables(_analysis(folder, **missing))}


def _analysis(folder: Path, **missing: bool) -> Analysis:
    depths = range(1, 17)
    arms = {
        "tlm-uniform": ToyArm(UNIFORM, SMOOTH, depths),
        "hd-n2": ToyArm(TWO, _lower(0.3), depths, n_streams=2),
        "hd-n2-sum": ToyArm(SUM, _lower(0.4), depths, n_streams=2),
        "hd-n1": ToyArm(TOKENS, _lower(0.1), depths),
        "hd-n1-flops": ToyArm(FLOPS, _lower(0.5), depths, has_evaluation=not missing.get("flops", False)),
    }
    study = make_results(folder, arms)
    return Analysis(load_results(study, folder / "artifacts"))


def test_gains_are_quoted_against_both_controls(tmp_path: Path) -> None:
    rows = _tables(tmp_path)["Gain of streams over their controls"].rows
    assert [row[:3] for row in rows] == [("hd-n2", "2", "hd-n1: equal tokens"), ("hd-n2", "2", "hd-n1-flops: equal flops")]
    assert all(abs(_estimate(cell) + 0.2) < NOISE and cell.endswith("win") for cell in rows[0][3:])
    assert all(abs(_estimate(cell) - 0.2) < NOISE and cell.endswith("loss") for cell in rows[1][3:])


def test_a_control_that_was_not_evaluated_is_a_hole(tmp_path: Path) -> None:
    rows = _tables(tmp_path, flops=True)["Gain of streams over their controls"].rows
    assert set(rows[1][3:]) == {"–"}


def test_ablations_are_compared_with_the_first_of_their_base_and_streams(tmp_path: Path) -> None:
    (row,) = _tables(tmp_path)["Ablations at n = 2: differences to hd-n2"].rows
    assert row[0] == "hd-n2-sum"
    assert all(abs(_estimate(cell) + 0.1) < NOISE and cell.endswith("win") for cell in row[1:])


def test_the_grid_has_a_column_for_every_model_and_number_of_streams(tmp_path: Path) -> None:
    grid = _tables(tmp_path)["Every depth at every number of streams"]
    assert grid.columns[1:3] == ("tlm-uniform, n = 1", "hd-n2, n = 2")
    assert len(grid.rows) == 16
    assert not any("*" in row[1] for row in grid.rows)  # the control of equal FLOPs costs as much per token and is better


def test_the_frontier_keeps_cells_that_no_cheaper_cell_beats() -> None:
    cells = [
        Cell("a", 1, (3.0, 2.0, None), (10, 20, 30)),
        Cell("b", 2, (2.5, 2.1, 1.9), (20, 40, 60)),
        Cell("c", 1, (2.0, 2.0, 2.0), (20, 25, 30)),
    ]
    assert _frontier(cells) == {(0, 0), (0, 1), (1, 2)}


def test_costs_are_relative_to_the_arm_without_streams(tmp_path: Path) -> None:
    row = _tables(tmp_path)["Cost of streams"].rows[0]
    assert row[:3] == ("hd-n2", "2", "2.00")
    # every block keeps two rows a token; the last one too, for it looks across streams
    assert row[6] == "2.00"


def test_one_set_of_weights_is_compared_with_the_model_for_each_n(tmp_path: Path) -> None:
    any_n = {**TWO, "streams": {**TWO["streams"], "sampled": [1, 2]}}
    depths = range(1, 17)
    arms = {
        "tlm-uniform": ToyArm(UNIFORM, SMOOTH, depths),
        "hd-n2": ToyArm(TWO, _lower(0.3), depths, n_streams=2),
        "hd-any": ToyArm(any_n, _lower(0.2), depths, n_streams=2),
        "hd-n1": ToyArm(TOKENS, _lower(0.1), depths),
    }
    study = make_results(tmp_path, arms)
    analysis = Analysis(load_results(study, tmp_path / "artifacts"))
    (table,) = second_dial_tables(analysis, [arm for arm in analysis.arms if arm.name == "hd-any"])
    ((name, n, other, *cells),) = table.rows  # scored with two streams only
    assert (name, n, other) == ("hd-any", "2", "hd-n2")
    assert all(abs(_estimate(cell) - 0.1) < NOISE and cell.endswith("loss") for cell in cells)


def test_decoding_speed_with_streams_is_a_share_of_that_without(tmp_path: Path) -> None:
    depths = range(1, 17)
    arms = {
        "tlm-uniform": ToyArm(UNIFORM, SMOOTH, depths, step_seconds=1e-3),
        "hd-n2": ToyArm(TWO, _lower(0.3), depths, n_streams=2, step_seconds=1e-3),
    }
    study = make_results(tmp_path, arms)
    tables = {one.title: one for one in streams_tables(Analysis(load_results(study, tmp_path / "artifacts")))}
    assert tables["Decoding speed with streams"].rows == (("hd-n2", "2", "50%", "50%"),)
    grid = tables["Milliseconds per decoding step at every number of streams, batch 1, 96 tokens of context"]
    assert grid.columns == ("depth k", "tlm-uniform, n = 1", "hd-n2, n = 2")
    assert grid.rows[0] == ("1", "2 [1.8, 2.2]", "4 [3.6, 4.4]")


def test_the_heat_map_has_the_numbers_of_the_grid(tmp_path: Path) -> None:
    analysis = _analysis(tmp_path)
    figure = grid_figure(analysis)
    assert figure is not None
    header, *lines = figure.data.splitlines()
    assert header == "arm,n_streams,depth,nll_nats,flops_per_token"
    assert len(lines) == 16 * len({tuple(line.split(",")[:2]) for line in lines})
    assert figure.png.startswith(b"\x89PNG")


def test_a_study_without_expansions_has_no_chapter(tmp_path: Path) -> None:
    study = make_results(tmp_path)
    analysis = Analysis(load_results(study, tmp_path / "artifacts"))
    assert streams_tables(analysis) == ()
    assert grid_figure(analysis) is None
    assert cache_bytes(study.model, 16, 10, 2) > 0


def test_an_expansion_of_a_shallower_base_is_shown_at_its_own_depths(tmp_path: Path) -> None:
    layers = {**TWO["streams"], "layers": LAYERS[:8]}
    of_twin = {**TWO, "base": "twin-small", "streams": layers}
    control = {"kind": "control", "base": "twin-small", "of": "hd-twin", "equal": "tokens"}
    arms = {
        "tlm-uniform": ToyArm(UNIFORM, SMOOTH, range(1, 17)),
        "twin-small": ToyArm({"kind": "twin", "exit": 1}, SMOOTH[:8], (8,)),
        "hd-twin": ToyArm(of_twin, _lower(0.3)[:8], (8,), n_streams=2),
        "hd-n1": ToyArm(control, SMOOTH[:8], (8,)),
    }
    study = make_results(tmp_path, arms)
    analysis = Analysis(load_results(study, tmp_path / "artifacts"))
    (row,) = {table.title: table for table in streams_tables(analysis)}["Gain of streams over their controls"].rows
    assert row[:3] == ("hd-twin", "2", "hd-n1: equal tokens")
    assert len(row) == 4
    assert abs(_estimate(row[3]) + 0.3) < NOISE
    assert grid_figure(analysis) is not None
