"""The arms of the paper that this study is about, recognised by an objective's settings, and what the paper says they cost.

Arms are found by what they do, never by their name. Facts to stand beside this study's numbers; no number here is a result.

Source:
    Telescopic Language Models (arXiv 2609.35769): GPU-hours at 200M parameters and 20B tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Objective = Mapping[str, Any]  # settings as in `params.yaml`


@dataclass(frozen=True)
class PaperArm:
    """One arm of the paper.

    Attributes:
        is_it: whether an objective with these settings is that arm.
        gpu_hours: the paper's; of three models together for the twins.
    """

    title: str
    is_it: Callable[[Objective], bool]
    gpu_hours: float

    @property
    def relative_cost(self) -> float:
        """GPU-hours over those of the uniform sampler."""
        return self.gpu_hours / UNIFORM_ARM.gpu_hours


def telescopic_with(sampler: str, has_anchor: bool = True) -> Callable[[Objective], bool]:
    """Predicate: a telescopic objective with that sampler, without distillation, that may draw every depth."""

    def is_it(objective: Objective) -> bool:
        drawn = objective.get("sampler")
        kind = drawn.get("kind") if isinstance(drawn, Mapping) else None
        return (
            objective.get("kind") == "telescopic"
            and kind == sampler
            and (objective.get("anchor_weight") != 0.0) == has_anchor
            and objective.get("distill_weight") == 0.0
            and not objective.get("exclude_full")
        )

    return is_it


def is_twin(objective: Objective) -> bool:
    """A stand-alone model of one size."""
    return objective.get("kind") == "twin"


def is_suite(objective: Objective) -> bool:
    """A Matryoshka suite, whatever its distillation and backward."""
    return objective.get("kind") == "fixed_exits"


def _is_plain_suite(objective: Objective) -> bool:
    return is_suite(objective) and objective.get("distill_weight") == 0.0 and objective.get("backward") == "per_exit"


UNIFORM_ARM = PaperArm("TLM, uniform sampler", telescopic_with("uniform"), 131.0)
LOG_UNIFORM_ARM = PaperArm("TLM, log-uniform sampler", telescopic_with("loguniform"), 120.0)
EXIT_GRID_ARM = PaperArm("TLM, exit-grid sampler", telescopic_with("exitgrid"), 147.0)
SUITE_ARM = PaperArm("MLMS suite without distillation, one backward per exit", _is_plain_suite, 149.0)
TWIN_ARMS = PaperArm("twins", is_twin, 216.0)
SINGLE_ARMS = (UNIFORM_ARM, LOG_UNIFORM_ARM, EXIT_GRID_ARM, SUITE_ARM)


def paper_cost(objective: Objective) -> float | None:
    """The paper's GPU-hours of that arm relative to the uniform sampler; None for what it has no hours of, or only in a sum."""
    return next((arm.relative_cost for arm in SINGLE_ARMS if arm.is_it(objective)), None)
