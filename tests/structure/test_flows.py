"""`prefect.yaml` and `flows.serve` against the flows that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from components.config.loader import read_yaml

ROOT = Path(__file__).resolve().parents[2]
NO_FLOW = {"__init__", "launch", "parameters", "remains", "results", "running", "serve"}
FLOWS = {path.stem for path in (ROOT / "flows").glob("*.py")} - NO_FLOW


def deployments() -> list[dict[str, Any]]:
    return list(read_yaml(ROOT / "prefect.yaml")["deployments"])


def test_every_flow_has_a_deployment_named_local() -> None:
    entrypoints = {deployment["entrypoint"] for deployment in deployments() if deployment["name"] == "local"}
    assert entrypoints == {f"flows/{flow}.py:{flow}" for flow in FLOWS}


def test_every_flow_is_served() -> None:
    served = set(re.findall(r"from flows\.(\w+) import \1", (ROOT / "flows" / "serve.py").read_text(encoding="utf-8")))
    assert served == FLOWS


def test_no_schedule_is_on_and_no_two_runs_work_on_the_same_files() -> None:
    schedules = [schedule for deployment in deployments() for schedule in deployment.get("schedules", ())]
    assert [schedule["active"] for schedule in schedules] == [False]
    assert {deployment["concurrency_limit"]["limit"] for deployment in deployments()} == {1}
