"""Stage `report`: reads every results file under `artifacts/` and writes `artifacts/report/`.

`--summary` writes nothing: it prints the table of arms and where the report is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from components.config.loader import load_study
from components.reporting.analysis import Analysis
from components.reporting.load import load_results
from components.reporting.render import render_text
from components.reporting.tables import arms_table
from components.reporting.write import PAGE, write_report
from tasks.command import run_command

ARTIFACTS = Path("artifacts")
REPORT = ARTIFACTS / "report"


def main() -> None:
    """Writes the report, or prints its summary."""
    parser = argparse.ArgumentParser(prog="python -m tasks.report", description="write the report of the study")
    parser.add_argument("--summary", action="store_true", help="print the table of arms and the report's path; write nothing")
    arguments = parser.parse_args()
    analysis = Analysis(load_results(load_study(), ARTIFACTS))
    if arguments.summary:
        print(render_text(arms_table(analysis)))
        print(
            f"\nreport: {(REPORT / PAGE).resolve()}"
            if (REPORT / PAGE).exists()
            else "\nreport: not written yet; `dvc repro report`"
        )
        return
    page = write_report(analysis, REPORT)
    print(f"report: {page.resolve()}")


if __name__ == "__main__":
    run_command(main)
