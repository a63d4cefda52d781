"""Where a command's time goes: named stretches of the clock, left for the flow beside the command's exit code."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

COMMAND = "command"  # the whole of it; what no other phase covers is start-up, imports, reading and writing
COMPUTE = "training or evaluating"
RAY = "Ray"  # finding or starting it, and waiting for workers
MLFLOW = "MLflow"


@dataclass(frozen=True)
class Phase:
    """A stretch of the clock; `start` and `end` in seconds since the epoch."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class StageTime:
    """What became of the time that one stage took in a flow."""

    stage: str
    start: float
    end: float
    phases: tuple[Phase, ...]

    @property
    def seconds(self) -> float:
        """From the start of DVC to its end, retries of the wait for others included."""
        return self.end - self.start

    def of(self, name: str) -> float:
        """Seconds of one phase."""
        return sum(phase.end - phase.start for phase in self.phases if phase.name == name)

    def shares(self) -> dict[str, float]:
        """Seconds by what they went into; they add up to `seconds`."""
        named = {name: self.of(name) for name in (COMPUTE, RAY, MLFLOW)}
        command = self.of(COMMAND)
        return {**named, "start-up, reading, writing": command - sum(named.values()), "DVC": self.seconds - command}


_phases: list[Phase] = []


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Records the time of the block."""
    start = time.time()
    try:
        yield
    finally:
        add_phase(name, start, time.time())


def add_phase(name: str, start: float, end: float) -> None:
    """Records a stretch that was measured elsewhere, such as in a worker."""
    _phases.append(Phase(name, start, max(start, end)))


def recorded_phases() -> list[dict[str, Any]]:
    """All phases of this process so far, as plain data."""
    return [asdict(one) for one in _phases]


def read_phases(recorded: Iterable[Mapping[str, Any]]) -> tuple[Phase, ...]:
    """The phases that another process recorded."""
    return tuple(Phase(**one) for one in recorded)


def covered_seconds(phases: Iterable[Phase]) -> float:
    """Seconds of the clock during which at least one of the phases was on."""
    total, until = 0.0, float("-inf")
    for one in sorted(phases, key=lambda one: one.start):
        total += max(0.0, one.end - max(one.start, until))
        until = max(until, one.end)
    return total
