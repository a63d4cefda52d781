"""What all measurements share: sides that take turns, ratios with their spread, and the row each adds to `make bench`'s table.

A ratio is taken round by round, so that a busy machine slows both sides of it alike, and in CPU seconds: of a single thread on an
idle machine they are those of the clock. Easy to get wrong: a median of ratios is quoted, never a ratio of the best times.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from components.config.loader import load_study
from components.config.schema import Model, Segment, Study

Size = Literal["smoke", "short", "full"]
SIZES: tuple[Size, ...] = ("smoke", "short", "full")
SCALES = Path(__file__).parents[1] / "scales"


@dataclass(frozen=True)
class Spread:
    """Median of a measurement, and the smallest and largest round."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def plus(self, offset: float) -> Spread:
        """Shifted."""
        return Spread(self.median + offset, self.low + offset, self.high + offset)


@dataclass(frozen=True)
class Goal:
    """A bound on the median."""

    bound: float
    is_lower: bool
    unit: str = ""

    def __str__(self) -> str:
        return f"{'>=' if self.is_lower else '<='} {self.bound:.3g}{self.unit}"

    def is_met(self, value: float) -> bool:
        """Whether the median keeps to the bound."""
        return value >= self.bound if self.is_lower else value <= self.bound


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        spread: None when it was not measured; `note` says why.
    """

    number: int
    measure: str
    against: str
    goal: Goal
    spread: Spread | None
    note: str = ""

    @property
    def verdict(self) -> str:
        """met, not met, or not measured."""
        if self.spread is None:
            return "not measured"
        return "met" if self.goal.is_met(self.spread.median) else "NOT MET"


def at_least(bound: float, unit: str = "") -> Goal:
    """A floor."""
    return Goal(bound, True, unit)


def at_most(bound: float, unit: str = "") -> Goal:
    """A ceiling."""
    return Goal(bound, False, unit)


def take_turns(
    sides: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Seconds of each side in each round, of this process' CPU unless another clock is given; one round before is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, run in sides.items():
            started = clock()
            run()
            if number:
                seconds[name].append(clock() - started)
    return seconds


def quotients(own: Sequence[float], other: Sequence[float]) -> Spread:
    """Own over other, round by round."""
    return Spread.of([a / b for a, b in zip(own, other, strict=True)])


def print_rows(rows: Sequence[Row]) -> None:
    """The table, aligned."""
    header = ("#", "measure", "against", "median", "spread", "goal", "")
    lines = [header, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def bench_parser(description: str | None) -> argparse.ArgumentParser:
    """The parser of the module that runs as a command."""
    module = sys.modules["__main__"].__spec__
    command = f"python -m {module.name}" if module else None
    return argparse.ArgumentParser(prog=command, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def run_alone(rows: Callable[[Size], list[Row]], description: str | None) -> None:
    """Command line of a measurement that has only a size."""
    parser = bench_parser(description)
    parser.add_argument("--size", choices=SIZES, default="full", help="how long it measures (default: %(default)s)")
    print_rows(rows(parser.parse_args().size))


def quick_study() -> Study:
    """The quick scale, whatever `params.yaml` is now."""
    return load_study(SCALES / "quick.yaml")


def dense_model(n_blocks: int, d_model: int, head_dim: int) -> Model:
    """A model of one width, otherwise as the quick scale's."""
    shape = {"segments": (Segment(n_blocks=n_blocks, d_model=d_model),), "head_dim": head_dim}
    return quick_study().model.model_copy(update=shape)


def _cells(row: Row) -> tuple[str, ...]:
    spread = row.spread
    numbers = ("-", "-") if spread is None else (f"{spread.median:.3g}", f"{spread.low:.3g}-{spread.high:.3g}")
    verdict = f"{row.verdict}: {row.note}" if row.note else row.verdict
    return (str(row.number), row.measure, row.against, *numbers, str(row.goal), verdict)
