"""All measurements, short, as one table: `make bench`.

What is measured is a ratio of two sides that took turns on this machine, so that the table says the same of a slow and a fast one.
A measurement that fails says so in its line and stops no other. `--size full` takes longer and is steadier; `smoke` only proves
that the scripts run.

    python -m bench.all [--size short] [--only 1 3 10]
"""

from __future__ import annotations

import importlib
import os
import sys
import time

from bench.turns import SIZES, Row, Size, at_most, bench_parser, print_rows
from components.models.devices import cpu_name

SCRIPTS = {
    1: "train_speed",
    2: "arm_cost",
    3: "evaluation_cost",
    4: "stream_cost",
    5: "tokenize_pack",
    6: "benchmark_cost",
    7: "decode",
    8: "study_time",
    9: "startup",
    10: "loss_memory",
}


def main() -> None:
    parser = bench_parser(__doc__)
    parser.add_argument("--size", choices=SIZES, default="short", help="how long each measures (default: %(default)s)")
    parser.add_argument("--only", type=int, nargs="+", choices=sorted(SCRIPTS), default=sorted(SCRIPTS), help="rows to measure")
    arguments = parser.parse_args()
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(f"{cpu_name()}, one thread, size {arguments.size}{load}")
    rows: list[Row] = []
    for number in arguments.only:
        started = time.perf_counter()
        rows += measure(number, arguments.size)
        print(f"  {SCRIPTS[number]}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    print_rows(rows)


def measure(number: int, size: Size) -> list[Row]:
    """The rows of one script; one that says why when it fails."""
    try:
        found: list[Row] = importlib.import_module(f"bench.{SCRIPTS[number]}").rows(size)
    except Exception as error:  # a boundary: one broken measurement must not hide the others
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return [Row(number, SCRIPTS[number], "-", at_most(0.0), None, f"failed: {reason}")]
    return found


if __name__ == "__main__":
    main()
