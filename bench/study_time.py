"""How long the last `make study` took, how much of it was not training, and how busy both places of the flow were.

Nothing is run: Prefect's local records say when the flow and its stages began and ended, `artifacts/cost` how long was trained.
Only of a run that did everything anew do the two belong together; a run that found most of it done is named and left out.

    python -m bench.study_time
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from bench.turns import Row, Size, Spread, at_least, at_most, run_alone
from components.config.loader import PARAMS_FILE, load_study
from components.results import ArmCost, read_record

RECORDS = Path(".prefect/prefect.db")
COSTS = Path("artifacts/cost")
LATEST_FLOW = """
    select flow_run.id, flow_run.start_time, flow_run.end_time from flow_run join flow on flow.id = flow_run.flow_id
    where flow.name = ? and flow_run.state_type = 'COMPLETED' order by flow_run.end_time desc limit 1
"""
ITS_TASKS = "select start_time, end_time from task_run where flow_run_id = ? and start_time is not null and end_time is not null"
MEASURES = ("make study, minutes", "share not training", "both places busy")


class FlowRun(NamedTuple):
    """The newest finished run of the whole study: seconds in all, and of each of its tasks."""

    seconds: float
    tasks: tuple[float, ...]


def rows(size: Size) -> list[Row]:
    """Minutes, share of the run that was not training, and share of both places' time that a task was running."""
    goals = (at_most(15.0, " min"), at_most(0.25), at_least(0.85))
    run, trained = _latest_run(RECORDS), _trained_seconds(COSTS)
    places = load_study(PARAMS_FILE).runtime.parallel_stages
    if run is None or not trained:
        return _unmeasured(goals, "no record of a study here; run `make study`")
    if trained > run.seconds * places:
        return _unmeasured(goals, "the newest run found models trained before it")
    busy = sum(run.tasks) / (places * run.seconds)
    values = (run.seconds / 60, 1.0 - trained / sum(run.tasks), busy)
    return [
        Row(8, measure, "-", goal, Spread.of([value]), "read from its records")
        for measure, goal, value in zip(MEASURES, goals, values, strict=True)
    ]


def _unmeasured(goals: Sequence, why: str) -> list[Row]:
    return [Row(8, measure, "-", goal, None, why) for measure, goal in zip(MEASURES, goals, strict=True)]


def _trained_seconds(folder: Path) -> float:
    """Of all models whose cost is there."""
    return sum(seed.seconds for path in sorted(folder.glob("*.json")) for seed in read_record(ArmCost, path).seeds)


def _latest_run(records: Path) -> FlowRun | None:
    if not records.exists():
        return None
    with closing(sqlite3.connect(f"file:{records}?mode=ro", uri=True)) as database:
        found = database.execute(LATEST_FLOW, ("full-study",)).fetchone()
        if found is None:
            return None
        name, started, ended = found
        tasks = database.execute(ITS_TASKS, (name,)).fetchall()
    return FlowRun(_seconds(started, ended), tuple(_seconds(begin, end) for begin, end in tasks))


def _seconds(started: str, ended: str) -> float:
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds()


if __name__ == "__main__":
    run_alone(rows, __doc__)
