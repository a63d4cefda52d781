"""Brings MLflow up to date with the results files. Run twice, it changes nothing the second time."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tasks.command import add_path, command_parser, run_command

EXAMPLES = """
python -m tasks.track                                into mlruns/
MLFLOW_TRACKING_URI=http://mlflow.example:5000 python -m tasks.track
"""


def main() -> None:
    """Uploads every recorded arm and says how many runs changed."""
    arguments = _arguments()
    from components.config.loader import load_study

    experiment = load_study(arguments.params).runtime.experiment
    from tasks.recorded import recorded_arms

    records = recorded_arms(Path.cwd())
    if not records:
        print("MLflow: no arm has been trained yet, nothing to upload")
        return
    from tasks.tracking import LINKS, STORE, upload_study

    upload = upload_study(Path.cwd(), experiment, records)
    (STORE / LINKS).write_text(json.dumps(upload.links, indent=2) + "\n", encoding="utf-8")
    print(f"MLflow ({upload.address}), experiment {experiment}: {upload.written} runs written, {upload.unchanged} unchanged")


def _arguments() -> argparse.Namespace:
    parser = command_parser("tasks.track", __doc__, EXAMPLES)
    add_path(parser, "--params", "params.yaml", "parameter file")
    return parser.parse_args()


if __name__ == "__main__":
    run_command(main)
