"""Numbers, tables and generated text say what the results hold, and say when they hold nothing."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from components.evaluation.bootstrap import Interval
from components.reporting import formats
from components.reporting.analysis import Analysis
from components.reporting.differences import limits, open_choices, override_table, recipe_table
from components.reporting.load import load_results
from components.reporting.render import render_text
from components.reporting.schedules import schedule_tables
from components.reporting.sections import build_sections, summary
from components.reporting.tables import (
    Table,
    arms_table,
    cost_table,
    depth_difference_table,
    depth_table,
    describe_objective,
    difference_table,
    frontier_table,
    objective_table,
    sensitivity_table,
)
from tests.unit.reporting.toy_results import UNIFORM, make_results, standard_arms


def row_of(table: Table, name: str) -> dict[str, str]:
    [row] = [row for row in table.rows if row[0] == name]
    return dict(zip(table.columns, row, strict=True))


@pytest.mark.parametrize(
    ("ppl", "nll", "text"),
    [
        (14.987, 2.707, "14.99"),
        (1412.4, 7.25, "1,412"),
        (438_883.0, 12.99, "438,883"),
        (1.2e190, 437.97, "1.2e190"),
        (None, 1000.0, "e^1000"),
        (None, None, "not finite"),
    ],
)
def test_perplexities_of_any_size(ppl: float | None, nll: float | None, text: str) -> None:
    assert formats.perplexity_text(ppl, nll) == text


def test_small_formats() -> None:
    assert formats.count_text(197_900_000) == "197.9M"
    assert formats.count_text(3.2e15) == "3.20e15"
    assert formats.bytes_text(1536 * 2**20) == "1.5 GiB"
    assert formats.bytes_text(100) == "100 B"
    assert formats.hours_text(131.4) == "131"
    assert formats.hours_text(0.01234) == "0.0123"
    assert formats.percent_text(0.0722) == "+7.2%"
    assert formats.number_text(math.nan) == formats.number_text(None) == formats.MISSING
    assert formats.interval_text(Interval(-0.1, -0.2, math.nan)) == "\N{MINUS SIGN}0.100"
    assert formats.depths_text((1, 2, 3)) == "1-3"
    assert formats.depths_text((8, 12, 16)) == "8, 12, 16"
    assert formats.join_names(["a", "b", "c"]) == "a, b and c"


def test_an_objective_in_one_cell_leaves_out_switches_that_are_off() -> None:
    kept = describe_objective({"kind": "hidden_decoding", "base": "a", "inner": UNIFORM, "control": None})
    assert kept == f"hidden_decoding: base a, inner ({describe_objective(UNIFORM)})"
    text = describe_objective(UNIFORM)
    assert text == "telescopic: sampler uniform, prefix_weight 1, anchor_weight 1, distill_weight 0"


def test_arms_table_has_a_row_for_every_arm_and_a_hole_for_the_missing_one(broken: Analysis) -> None:
    table = arms_table(broken)
    assert [row[0] for row in table.rows] == ["tlm-uniform", "mlms", "twin-full", "absent"]
    assert row_of(table, "absent")["seeds"] == "not evaluated"
    assert row_of(table, "absent")["ppl at N"] == formats.MISSING
    assert row_of(table, "mlms")["seeds"] == "42, 43"
    assert row_of(table, "tlm-uniform")["AULB"] == formats.MISSING
    assert row_of(table, "tlm-uniform")["cost per model"] == formats.MISSING
    assert row_of(table, "mlms")["cost per model"] == "0.0500 core-hours"
    assert row_of(objective_table(broken), "absent")["trained depths"] == formats.MISSING


def test_depth_table_marks_untrained_depths_and_those_worse_than_chance(standard: Analysis) -> None:
    table = depth_table(standard)
    assert table.columns == ("depth k", "tlm-uniform", "mlms", "twin-full")
    first, ninth = table.rows[0], table.rows[8]
    assert first[2].startswith("[")
    assert first[2].endswith("] *")
    assert ninth[2].startswith("[")
    assert "*" not in ninth[2]
    assert first[3] == formats.MISSING
    assert table.rows[7][0] == "8 (exit)"
    assert "[" not in table.rows[7][2]


def test_depth_table_shows_the_spread_of_several_seeds(tmp_path: Path) -> None:
    study = make_results(tmp_path, standard_arms(), seeds=(42, 43))
    table = depth_table(Analysis(load_results(study, tmp_path / "artifacts")))
    mean, low, high = map(float, re.fullmatch(r"(\S+) \((\S+) to (\S+)\)", table.rows[15][1]).groups())
    assert low < mean < high
    assert high / low == pytest.approx(math.exp(0.01), rel=2e-3)
    assert "single seeds" in table.note


def test_findings_say_what_each_seed_alone_gives(tmp_path: Path) -> None:
    study = make_results(tmp_path, standard_arms(), seeds=(42, 43))
    analysis = Analysis(load_results(study, tmp_path / "artifacts"))
    smooth = analysis.findings[0]
    assert (smooth.verdict, smooth.agreement) == ("reproduced", "2 of 2")
    columns = next(table for section in build_sections(analysis) for table in section.tables if table.is_cards).columns
    assert "each seed alone" in columns


def test_depth_table_of_numbers_that_are_none(broken: Analysis) -> None:
    column = [row[1] for row in depth_table(broken).rows[:3]]
    assert column == ["e^1000 *", "not finite *", "not finite *"]


def test_frontier_table_keeps_areas_explicit(broken: Analysis, standard: Analysis) -> None:
    row = row_of(frontier_table(broken), "tlm-uniform")
    assert row["AULB"] == formats.MISSING
    assert float(row["AULB clipped"]) > 0
    assert row["valid depths"] == "13 of 16"
    assert row_of(frontier_table(standard), "mlms")["worst off-exit gap"].endswith("at k = 1")
    assert row_of(frontier_table(standard), "twin-full")["ppl against full twin"] == formats.MISSING
    assert row_of(frontier_table(standard), "mlms")["ppl against full twin"].startswith("+10")


def test_sensitivity_has_a_column_for_every_axis_and_margin(standard: Analysis) -> None:
    table = sensitivity_table(standard)
    assert len(table.columns) == 1 + 2 * 4
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_differences_carry_intervals_and_verdicts(standard: Analysis) -> None:
    row = row_of(difference_table(standard), "mlms")
    assert row["AULB"].endswith("] loss")
    assert row["NLL at k = 12"].endswith("] win")
    assert row_of(difference_table(standard), "twin-full")["NLL at k = 8"] == formats.MISSING
    assert len(depth_difference_table(standard).rows) == 16


def test_differences_without_documents_have_no_interval(broken: Analysis) -> None:
    assert row_of(difference_table(broken), "mlms")["NLL at k = 16"].endswith("no interval")
    assert row_of(difference_table(broken), "mlms")["AULB"] == f"{formats.MISSING} no interval"


def test_costs_are_named_as_what_they_are_and_relative_to_the_reference(standard: Analysis) -> None:
    row = row_of(cost_table(standard), "mlms")
    assert row["cost"] == "0.0600 core-hours"
    assert row["of tlm-uniform"] == "1.200"
    assert row["devices"] == "1 x Example CPU"


def test_schedules_are_costed_and_measured_where_an_arm_has_them(standard: Analysis) -> None:
    (table,) = schedule_tables(standard)
    rows = {row[0]: row for row in table.rows}
    assert list(rows) == ["joint", "per_exit", "separate"]
    assert float(rows["joint"][2]) < float(rows["per_exit"][2]) < float(rows["separate"][2])
    assert rows["per_exit"][3:] == ("mlms 1.200", "1.137")
    assert rows["joint"][3:] == (formats.MISSING, formats.MISSING)
    assert row_of(cost_table(standard), "mlms")["paper's"] == "1.137"
    assert row_of(cost_table(standard), "twin-full")["paper's"] == formats.MISSING


def test_cost_table_says_where_nothing_was_recorded(broken: Analysis) -> None:
    assert row_of(cost_table(broken), "tlm-uniform")["devices"] == "no cost recorded"
    assert row_of(cost_table(broken), "mlms")["of tlm-uniform"] == formats.MISSING


def test_recipe_is_generated_from_the_parameters(standard: Analysis) -> None:
    table = recipe_table(standard)
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["training tokens"] == ("20.0B", "1.0M", "differs")
    assert rows["gradient clip"] == ("1", "1", "same")
    assert rows["exits"][1] == "8, 12, 16"


def test_overrides_of_single_arms_are_listed(standard: Analysis) -> None:
    assert override_table(standard) is None


def test_open_choices_state_the_values_in_force(standard: Analysis) -> None:
    text = " ".join(open_choices(standard))
    assert "RoPE theta 10000" in text
    assert "linear throughput axis" in text
    assert "200 resamples" in text


def test_limits_name_every_hole(broken: Analysis, single: Analysis) -> None:
    text = " ".join(limits(broken))
    assert "Not evaluated: absent." in text
    assert "no intervals: mlms." in text
    assert "No cost recorded: tlm-uniform." in text
    assert "not finite at some depth of tlm-uniform" in text
    assert "One seed only" not in text
    assert "1 validation documents are few" in " ".join(limits(single))


def test_summary_counts_arms_and_verdicts(broken: Analysis) -> None:
    run, outcome = summary(broken)
    assert run.startswith("3 of 4 arms are evaluated.")
    assert "15 claims" in outcome


def test_text_tables_align_words_left_and_numbers_right() -> None:
    table = Table("t", ("arm", "ppl"), (("a", "9.5"), ("longer", "120.0")))
    assert render_text(table).splitlines() == ["arm       ppl", "------  -----", "a         9.5", "longer  120.0"]
