"""How long the commands take that a user waits for with nothing running: help, the plan, and the report of a wrong parameter.

Whole processes, interpreter and imports included.

    python -m bench.startup [--size full]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.turns import SCALES, Row, Size, Spread, at_most, run_alone, take_turns

ROUNDS = {"smoke": 1, "short": 3, "full": 9}


def rows(size: Size) -> list[Row]:
    """Seconds of each command."""
    quick = SCALES / "quick.yaml"
    with tempfile.TemporaryDirectory() as folder:
        wrong = Path(folder) / "params.yaml"
        wrong.write_text(quick.read_text(encoding="utf-8").replace("seq_len:", "seq_length:", 1), encoding="utf-8")
        sides = {
            "tasks.train --help": _command(0, "tasks.train", "--help"),
            "flows.full_study --help": _command(0, "flows.full_study", "--help"),
            "tasks.plan": _command(0, "tasks.plan", "--params", str(quick)),
            "a wrong parameter": _command(2, "tasks.plan", "--params", str(wrong)),
            "a wrong arm for a flow": _command(2, "flows.train_arm", "--arm", "no-such-arm"),
        }
        seconds = take_turns(sides, ROUNDS[size], time.perf_counter)
    return [Row(9, f"start-up, {name}", "-", at_most(1.0, " s"), Spread.of(taken)) for name, taken in seconds.items()]


def _command(status: int, *words: str) -> Callable[[], object]:
    def run() -> None:
        done = subprocess.run([sys.executable, "-m", *words], cwd=SCALES.parent, capture_output=True, text=True, check=False)
        if done.returncode != status:
            raise RuntimeError(f"{' '.join(words)}: exit status {done.returncode}, expected {status}\n{done.stderr}")

    return run


if __name__ == "__main__":
    run_alone(rows, __doc__)
