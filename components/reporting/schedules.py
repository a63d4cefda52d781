"""What the three backward schedules of a Matryoshka suite cost: the same gradients by three walks through the graph.

Easy to get wrong: hours of arms that trained side by side are rough; `python -m bench.arm_cost` times the schedules by turns.
"""

from __future__ import annotations

from components.config.paper_arms import SUITE_ARM, is_suite
from components.profiling.plan import schedule_costs
from components.reporting import formats
from components.reporting.analysis import Analysis, mean_device_hours
from components.reporting.load import ArmResults
from components.reporting.tables import Table, cost_unit

WALKS = {
    "joint": "one shared forward, one backward of the sum",
    "per_exit": "one shared forward, one backward per exit",
    "separate": "one forward and backward per exit",
}


def schedule_tables(analysis: Analysis) -> tuple[Table, ...]:
    """FLOPs of each schedule and the hours of the arms that use it, relative to the reference; none without a suite."""
    costs = schedule_costs(analysis.results.study)
    base = analysis.reference
    rows = []
    for name, flops in costs.items():
        arms = [arm for arm in analysis.arms if _schedule(arm) == name]
        measured = [f"{arm.name} {ratio:.3f}" for arm in arms if (ratio := _hours_per_token(arm, base)) is not None]
        paper = formats.number_text(SUITE_ARM.relative_cost) if name == "per_exit" else formats.MISSING
        rows.append((name, WALKS[name], f"{flops:.3f}", ", ".join(measured) or formats.MISSING, paper))
    if not rows:
        return ()
    columns = ("backward", "walk", "FLOPs", "measured hours", "paper's")
    note = (
        f"Per token, relative to {base.name}; FLOPs without distillation, attention included. Measured: arms of this study with "
        "that schedule, distillation and all."
    )
    return (Table("Backward schedules of the Matryoshka suites", columns, tuple(rows), note, (0, 1, 3)),)


def _schedule(arm: ArmResults) -> str | None:
    objective = arm.arm.objective.model_dump(mode="json")
    return str(objective["backward"]) if is_suite(objective) else None


def _hours_per_token(arm: ArmResults, base: ArmResults) -> float | None:
    own, other = mean_device_hours(arm), mean_device_hours(base)
    if own is None or other is None or arm.cost is None or base.cost is None or cost_unit(arm) != cost_unit(base):
        return None
    return (own / arm.cost.seeds[0].tokens) / (other / base.cost.seeds[0].tokens)
