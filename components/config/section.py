"""What every section of the parameter file is built from."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

ArmName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Base of every section: immutable, strict, no unknown keys, no infinities."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def broken_rule(key: str, value: object, rule: str, remedy: str) -> PydanticCustomError:
    """An error of a rule that spans several keys; the loader turns it into a `Problem` at `key`."""
    return PydanticCustomError("rule", "{rule}", {"key": key, "value": value, "rule": rule, "remedy": remedy})
