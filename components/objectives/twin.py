"""Placeholder: being written."""

from __future__ import annotations

from typing import Literal

from components.config.schema import ObjectiveSettings


class Settings(ObjectiveSettings):
    kind: Literal["twin"]
    exit: int
