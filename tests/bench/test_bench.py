"""The measurements run: each script at its smallest size, and the table they make. What they measure is not judged here."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from bench import study_time
from bench.all import SCRIPTS, measure
from bench.turns import Goal, Row, Spread, at_least, at_most, print_rows, quotients, take_turns


@pytest.mark.slow
@pytest.mark.parametrize("number", sorted(set(SCRIPTS) - {8}))
def test_every_script_runs_and_measures(number: int) -> None:
    rows = measure(number, "smoke")
    assert rows
    for row in rows:
        assert row.number == number
        assert row.spread is not None, row.note
        assert 0 < row.spread.low <= row.spread.median <= row.spread.high


def test_a_script_that_fails_says_so_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCRIPTS, 1, "no_such_script")
    (row,) = measure(1, "smoke")
    assert row.verdict == "not measured"
    assert "no_such_script" in row.note


def test_sides_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []
    ticks = iter(range(100))
    sides = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    seconds = take_turns(sides, 2, lambda: float(next(ticks)))
    assert order == ["a", "b"] * 3
    assert {name: len(taken) for name, taken in seconds.items()} == {"a": 2, "b": 2}


def test_ratios_are_taken_round_by_round() -> None:
    assert quotients([1.0, 4.0, 3.0], [1.0, 2.0, 1.0]) == Spread(2.0, 1.0, 3.0)


@pytest.mark.parametrize(("goal", "met", "missed"), [(at_most(1.05), 1.0, 1.1), (at_least(2.0, "x"), 2.0, 1.9)])
def test_goals_are_bounds(goal: Goal, met: float, missed: float) -> None:
    assert goal.is_met(met)
    assert not goal.is_met(missed)


def test_the_table_says_what_is_met(capsys: pytest.CaptureFixture[str]) -> None:
    spread = Spread(1.2, 1.1, 1.3)
    print_rows([Row(1, "speed", "peer", at_least(1.0), spread), Row(2, "time", "peer", at_most(1.0), spread, "why")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[-1] == "met"
    assert lines[2].endswith("NOT MET: why")


def _records(folder: Path, state: str = "COMPLETED") -> Path:
    """Prefect's tables as far as they are read: one run of two minutes with two stages of 90 seconds."""
    path = folder / "prefect.db"
    with sqlite3.connect(path) as database:
        database.execute("create table flow (id, name)")
        database.execute("create table flow_run (id, flow_id, state_type, start_time, end_time)")
        database.execute("create table task_run (flow_run_id, start_time, end_time)")
        database.execute("insert into flow values (1, 'full-study')")
        day = "2026-01-01 10:0"
        database.execute("insert into flow_run values (7, 1, ?, ?, ?)", (state, f"{day}0:00.000000", f"{day}2:00.000000"))
        for _ in range(2):
            database.execute("insert into task_run values (7, ?, ?)", (f"{day}0:10.000000", f"{day}1:40.000000"))
    database.close()
    return path


def test_the_last_study_is_read_from_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_time, "RECORDS", _records(tmp_path))
    monkeypatch.setattr(study_time, "_trained_seconds", lambda _: 144.0)
    minutes, share, busy = (row.spread.median for row in study_time.rows("smoke") if row.spread is not None)
    assert minutes == pytest.approx(2.0)
    assert share == pytest.approx(1 - 144 / 180)
    assert busy == pytest.approx(180 / 240)


@pytest.mark.parametrize(("state", "trained"), [("RUNNING", 144.0), ("COMPLETED", 0.0), ("COMPLETED", 1000.0)])
def test_a_study_that_is_not_whole_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, trained: float
) -> None:
    monkeypatch.setattr(study_time, "RECORDS", _records(tmp_path, state))
    monkeypatch.setattr(study_time, "_trained_seconds", lambda _: trained)
    assert {row.verdict for row in study_time.rows("smoke")} == {"not measured"}
