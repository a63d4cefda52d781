"""Placeholder: being written."""

from __future__ import annotations

from typing import Literal

from components.config.schema import ObjectiveSettings


class Settings(ObjectiveSettings):
    kind: Literal["fixed_exits"]
    distill_weight: float
    backward: Literal["joint", "per_exit", "separate"]
