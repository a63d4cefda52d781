"""What all results files share: strict, immutable records, and the state of a number that may not be finite."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict

RESULTS_VERSION = 1

State = Literal["ok", "inf", "nan"]


class Record(BaseModel):
    """Base of all results: immutable, strict, unknown keys refused, NaN and infinities never written."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def finite(value: float) -> tuple[State, float | None]:
    """The state of a number and the number itself when it is finite."""
    if math.isnan(value):
        return "nan", None
    return ("inf", None) if math.isinf(value) else ("ok", value)


def perplexity(nll_nats: float | None) -> float | None:
    """exp(NLL), or None when there is no finite one."""
    if nll_nats is None or nll_nats > 700.0:  # exp overflows float64 past 709
        return None
    return math.exp(nll_nats)
