"""Brings MLflow up to date with the results files: `python -m tasks.track`. Run twice, it changes nothing the second time."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tasks.command import run_command


def main() -> None:
    """Uploads every recorded arm and says how many runs changed."""
    parser = argparse.ArgumentParser(prog="python -m tasks.track", description=__doc__)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: %(default)s)")
    arguments = parser.parse_args()
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


if __name__ == "__main__":
    run_command(main)
