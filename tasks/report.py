"""Stage `report`: reads every results file under `artifacts/` and writes `artifacts/report/`.

`--summary` writes nothing: it prints the table of arms and where the report is.
"""

from __future__ import annotations

import argparse

from components.config.loader import load_study
from components.reporting.analysis import Analysis
from components.reporting.load import load_results
from components.reporting.render import render_text
from components.reporting.tables import arms_table
from components.reporting.write import PAGE, write_report
from tasks.command import add_path, command_parser, run_command

EXAMPLES = """
python -m tasks.report                               everything under artifacts/, into artifacts/report
python -m tasks.report --summary                     the table of arms alone
"""


def main() -> None:
    """Writes the report, or prints its summary."""
    arguments = _arguments()
    page = arguments.out / PAGE
    analysis = Analysis(load_results(load_study(arguments.params), arguments.artifacts))
    if arguments.summary:
        print(render_text(arms_table(analysis)))
        print(f"\nreport: {page.resolve()}" if page.exists() else "\nreport: not written yet; run `dvc repro report`")
        return
    print(f"report: {write_report(analysis, arguments.out).resolve()}")


def _arguments() -> argparse.Namespace:
    parser = command_parser("tasks.report", __doc__, EXAMPLES)
    parser.add_argument("--summary", action="store_true", help="print the table of arms and the report's path; write nothing")
    add_path(parser, "--params", "params.yaml", "parameter file")
    add_path(parser, "--artifacts", "artifacts", "folder of the results")
    add_path(parser, "--out", "artifacts/report", "folder of the report")
    return parser.parse_args()


if __name__ == "__main__":
    run_command(main)
