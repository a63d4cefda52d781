"""The throughput axis of the frontier and of LODA: measured tokens per second, or tokens per FLOP where nothing was measured.

Easy to get wrong: all arms of one comparison share one axis. It is measured only when every evaluated arm has a profile of the same
machine at every depth that it shows; one arm without makes it analytic for all, and the report says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from components.evaluation import frontier
from components.reporting import formats
from components.reporting.load import ArmResults, StudyResults
from components.reporting.load_profiles import machine_text
from components.results import ArmProfile, LatencyCell


@dataclass(frozen=True, order=True)
class Load:
    """What is served at once: sequences, and tokens in the cache of each."""

    batch_size: int
    context_tokens: int

    def __str__(self) -> str:
        return f"batch {self.batch_size}, {self.context_tokens} tokens of context"


@dataclass(frozen=True)
class Throughput:
    """How fast each depth of each arm is."""

    results: StudyResults

    @property
    def profiles(self) -> Mapping[str, ArmProfile]:
        """Of one machine."""
        return self.results.profiles.by_arm

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Everything that was profiled, the smallest batch first."""
        some = next(iter(self.profiles.values()), None)
        return () if some is None else tuple(sorted({Load(cell.batch_size, cell.context_tokens) for cell in some.cells}))

    @property
    def served(self) -> Load | None:
        """The load of the axis: the largest batch with the longest context, where throughput is what counts."""
        return self.loads[-1] if self.loads else None

    @cached_property
    def is_measured(self) -> bool:
        """Whether the axis is in measured tokens per second."""
        return bool(self.profiles) and not self.unmeasured

    @cached_property
    def unmeasured(self) -> dict[str, str]:
        """Evaluated arms that have no measured throughput at some depth that they show, and why."""
        found = dict(self.results.profiles.left_out)
        for arm in self.results.arms:
            if arm.name not in found and self.served is not None and self.measured(arm, self.served) is None:
                found[arm.name] = "not profiled at every depth"
        return found

    def of(self, arm: ArmResults) -> list[float]:
        """Throughput of the arm's shown depths on the axis that all arms share."""
        if self.is_measured and self.served is not None and (known := self.measured(arm, self.served)) is not None:
            return known
        return self.analytic(arm)

    def analytic(self, arm: ArmResults) -> list[float]:
        """Tokens per FLOP of the arm's shown depths."""
        return [frontier.analytic_throughput(depth.flops_per_token) for depth in arm.shown_depths]

    def measured(self, arm: ArmResults, load: Load) -> list[float] | None:
        """Decoded tokens per second of the arm's shown depths under a load; None unless all of them were measured."""
        cells = [self.cell(arm.name, depth.depth, arm.n_streams, load) for depth in arm.shown_depths]
        known = [cell.decode_tokens_per_second for cell in cells if cell is not None]
        return known if len(known) == len(cells) else None

    def cell(self, arm: str, depth: int, n_streams: int, load: Load) -> LatencyCell | None:
        """One profiled cell."""
        return self._cells.get((arm, depth, n_streams, load))

    def full_speeds(self, arm: ArmResults) -> dict[int, float]:
        """Decoded tokens per second of the arm's full model by batch size, at the longest context; empty without a profile."""
        cells = {load.batch_size: self.cell(arm.name, arm.full.depth, arm.n_streams, load) for load in self.loads}
        return {batch: cell.decode_tokens_per_second for batch, cell in cells.items() if cell is not None}

    @property
    def name(self) -> str:
        """Of the axis, for figures and notes."""
        return "decoded tokens/s" if self.is_measured else "analytic throughput"

    @cached_property
    def description(self) -> str:
        """Which axis it is and why, in one sentence or two."""
        some = next(iter(self.profiles.values()), None)
        if self.is_measured and some is not None:
            return f"Throughput is measured: decoded tokens per second, {self.served}, on {machine_text(some)}."
        if not self.profiles:
            return "Throughput is analytic, tokens per FLOP: no arm has a latency profile (artifacts/profile)."
        return f"Throughput is analytic, tokens per FLOP, because it is not measured for {self.unmeasured_text}."

    @property
    def unmeasured_text(self) -> str:
        """`hd-n2 (not profiled) and mlms (profiled on ...)`."""
        return formats.join_names([f"{name} ({why})" for name, why in self.unmeasured.items()])

    @cached_property
    def _cells(self) -> dict[tuple[str, int, int, Load], LatencyCell]:
        return {
            (name, cell.depth, cell.n_streams, Load(cell.batch_size, cell.context_tokens)): cell
            for name, profile in self.profiles.items()
            for cell in profile.cells
        }
