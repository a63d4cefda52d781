"""Placeholder: being written."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from components.config.schema import ObjectiveSettings, Section


class Uniform(Section):
    kind: Literal["uniform"]


class Settings(ObjectiveSettings):
    kind: Literal["telescopic"]
    sampler: Annotated[Uniform, Field()]
    prefix_weight: float
    anchor_weight: float
    distill_weight: float
    exclude_full: bool
