"""The chapter on Hidden Decoding: the right arms beside each other, and the right cells on the frontier."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from components.config.loader import load_study
from components.models.stream_sizes import cache_bytes
from components.reporting.analysis import Analysis
from components.reporting.layouts import changes_text, layout_text
from components.reporting.load import load_results
from components.reporting.streams import second_dial_tables, streams_tables
from components.reporting.streams_grid import Cell, frontier_of, grid_figure
from components.reporting.tables import Table
from tests.toys import ROOT
from tests.unit.reporting.toy_results import FEWER_NATS, SMOOTH, SUITE, UNIFORM, ToyArm, make_results

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


def _tables_of(arms: dict[str, ToyArm], folder: Path) -> dict[str, Table]:
    study = make_results(folder, arms)
    return {table.title: table for table in streams_tables(Analysis(load_results(study, folder / "artifacts")))}


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


def test_every_n_stands_beside_its_controls_with_intervals(tmp_path: Path) -> None:
    base, two = _tables(tmp_path)["NLL at every number of streams"].rows
    assert (base[:2], base[3:]) == (("tlm-uniform", "1"), ("–", "–"))
    assert two[:2] == ("hd-n2", "2")  # and not its ablation
    named = [two[2], two[3].removeprefix("hd-n1: "), two[4].removeprefix("hd-n1-flops: ")]
    for text, level in zip([base[2], *named], (0.0, 0.3, 0.1, 0.5), strict=True):
        estimate, low, high = map(float, re.fullmatch(r"(\S+) \[(\S+), (\S+)\]", text).groups())
        # 0.2 nats of noise that all arms share, on 40 documents: a standard error of 0.04
        assert abs(estimate - (SMOOTH[-1] - level)) < 0.12
        assert low < estimate < high < low + 0.3


def test_a_number_of_streams_without_controls_has_holes_beside_it(tmp_path: Path) -> None:
    rows = _tables(tmp_path, flops=True)["NLL at every number of streams"].rows
    assert rows[1][4] == "–"
    assert rows[1][3].startswith("hd-n1: ")


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
    assert row[:2] == ("hd-n2-sum", "supervision sum")
    assert all(abs(_estimate(cell) + 0.1) < NOISE and cell.endswith("win") for cell in row[2:])


def test_the_grid_has_a_column_for_every_model_and_number_of_streams(tmp_path: Path) -> None:
    grid = _tables(tmp_path)["Every depth at every number of streams"]
    assert grid.columns[1:3] == ("tlm-uniform, n = 1", "hd-n2, n = 2")
    assert len(grid.rows) == 16
    assert not any("*" in row[1] for row in grid.rows)  # the control of equal FLOPs costs as much per token and is better


def test_the_frontier_keeps_cells_that_no_cheaper_cell_beats() -> None:
    cells = [
        Cell("a", 1, (3.0, 2.0, None), (None,) * 3, (10, 20, 30)),
        Cell("b", 2, (2.5, 2.1, 1.9), (None,) * 3, (20, 40, 60)),
        Cell("c", 1, (2.0, 2.0, 2.0), (None,) * 3, (20, 25, 30)),
    ]
    assert frontier_of(cells, 3.5) == {(0, 0), (0, 1), (1, 2)}
    assert frontier_of(cells, 2.8) == {(0, 1), (1, 2)}  # the cheapest one knows nothing


def test_costs_are_relative_to_the_arm_without_streams(tmp_path: Path) -> None:
    table = _tables(tmp_path)["Cost of streams"]
    base, two, _ = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert (base["model"], base["blocks across streams"]) == ("tlm-uniform", "no streams")
    assert (two["model"], two["n"], two["blocks across streams"]) == ("hd-n2", "2", "8 of 16 cross_full at 2/4/6/8/10/12/14/16")
    assert (base["forward FLOPs"], two["forward FLOPs"]) == ("1.00", "2.00")
    # every block keeps two rows a token; the last one too, for it looks across streams
    assert (base["KV"], two["KV"]) == ("1.00", "2.00")
    assert float(two["KV bytes per token"].replace(",", "")) == 2 * float(base["KV bytes per token"].replace(",", ""))
    assert (two["ms per step"], two["time per token"], two["peak memory"]) == ("360", "1.00", "512.0 MiB")


def test_a_cache_is_that_of_serving_where_every_stream_was_trained_to_predict(tmp_path: Path) -> None:
    """Of the blocks after the last that looks across streams, two here, only the last stream is kept then."""
    within = {**TWO["streams"], "layers": [*LAYERS[:15], "intra"]}
    last, every, total = ({**TWO, "streams": {**within, "supervision": one}} for one in ("last", "all", "sum"))
    arms = {"tlm-uniform": ToyArm(UNIFORM, SMOOTH)} | {
        name: ToyArm(one, SMOOTH, n_streams=2) for name, one in (("last", last), ("every", every), ("total", total))
    }
    table = {row[0]: row[-1] for row in _tables_of(arms, tmp_path)["Cost of streams"].rows}
    assert table["last"] == table["every"] == f"{2 - 2 * 80 / (8 * 48 + 4 * 64 + 4 * 80):.2f}"
    assert table["total"] == "2.00"


def test_layouts_and_ablations_are_named_by_what_they_do() -> None:
    models = load_study(ROOT / "scales" / "hidden-decoding.yaml").models
    layouts = {name: layout_text(models[name].model.streams) for name in ("hd-n1", "hd-n2", "hd-n2-local", "hd-n2-mirror")}
    assert list(layouts.values()) == [
        "no streams", "3 of 16 cross_full at 4/9/14", "3 of 16 cross_local (32 tokens) at 4/9/14",
        "3 of 16 cross_full at 4/10/16, 2 mirrored",
    ]  # fmt: skip
    changes = {name: changes_text(models[name], models["hd-n2"]) for name in models if name.startswith("hd-n2-")}
    assert changes == {
        "hd-n2-all": "supervision all",
        "hd-n2-sum": "supervision sum",
        "hd-n2-shared-kv": "kv shared",
        "hd-n2-fresh": "optimizer fresh",
        "hd-n2-one-cross": "layers 1 of 16 cross_full at 4",
        "hd-n2-cross-last": "layers 3 of 16 cross_full at 4/10/16",
        "hd-n2-mirror": "layers 3 of 16 cross_full at 4/10/16, n_mirrored 2",
        "hd-n2-local": "layers 3 of 16 cross_local (32 tokens) at 4/9/14",
        "hd-n2-dense-physical": "layers 16 of 16 cross_full, rope_rule physical",
    }
    assert changes_text(models["hd-n4-block"], models["hd-n4"]) == "replication block"


def test_one_set_of_weights_is_compared_with_the_model_for_each_n(tmp_path: Path) -> None:
    """Not with an ablation or another objective, though they stand first with as many tokens, nor with equal FLOPs."""
    any_n = {**TWO, "streams": {**TWO["streams"], "sampled": [1, 2]}, "training": {"steps": 200, "warmup_steps": 10}}
    longer_sum = {**SUM, "training": {"steps": 200, "warmup_steps": 10}}
    suite = {"kind": "expansion", "base": "tlm-uniform", "objective": SUITE, "optimizer": "keep", "training": any_n["training"]}
    depths = range(1, 17)
    arms = {
        "tlm-uniform": ToyArm(UNIFORM, SMOOTH, depths),
        "suite": ToyArm(suite, _lower(0.6), depths),
        "hd-n2-sum": ToyArm(longer_sum, _lower(0.4), depths, n_streams=2),
        "hd-n2": ToyArm(TWO, _lower(0.3), depths, n_streams=2),
        "hd-any": ToyArm(any_n, _lower(0.2), depths, n_streams=2, fewer_streams=(1,)),
        "hd-n1-flops": ToyArm({**FLOPS, "of": "hd-any"}, _lower(0.5), depths),
        "hd-n1": ToyArm(TOKENS, _lower(0.1), depths),
    }
    study = make_results(tmp_path, arms)
    analysis = Analysis(load_results(study, tmp_path / "artifacts"))
    (table,) = second_dial_tables(analysis, [arm for arm in analysis.arms if arm.name == "hd-any"])
    one, two = table.rows
    assert one[:4] == ("hd-any", "1", "hd-n1", "204.8k and 102.4k")
    assert two[:4] == ("hd-any", "2", "hd-n2", "204.8k and 102.4k")
    assert table.columns[4] == "AULB"
    assert all(abs(_estimate(cell) - (FEWER_NATS - 0.1)) < NOISE for cell in one[4:])
    assert all(abs(_estimate(cell) - 0.1) < NOISE and cell.endswith("loss") for cell in two[4:])


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
    assert header == "arm,n_streams,depth,nll_nats,bits_per_byte,flops_per_token"
    nll, bits = map(float, lines[0].split(",")[3:5])
    assert bits == pytest.approx(nll / math.log(2) / 3)  # three bytes a token
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
