"""How numbers are written in the report: one rule per kind, and never a blank where a number is missing.

Easy to get wrong: an untrained depth has perplexities of any size (1e190 is real), and a missing one is not zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from components.evaluation.bootstrap import Interval

MISSING = "–"
NOT_FINITE = "not finite"
MINUS = "\N{MINUS SIGN}"


def perplexity_text(ppl: float | None, nll_nats: float | None) -> str:
    """`14.99`, `1,412`, `4.4e190`, or, where only NLL is a number, `e^1000`."""
    if ppl is None:
        return NOT_FINITE if nll_nats is None else f"e^{nll_nats:.0f}"
    if ppl < 1e3:
        return f"{ppl:.2f}"
    return f"{ppl:,.0f}" if ppl < 1e6 else f"{ppl:.1e}".replace("e+", "e")


def number_text(value: float | None, digits: int = 3) -> str:
    """Fixed digits, or a dash for a missing number."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:.{digits}f}".replace("-", MINUS)


def signed_text(value: float | None, digits: int = 3) -> str:
    """As `number_text`, with a sign."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:+.{digits}f}".replace("-", MINUS)


def interval_text(value: Interval, digits: int = 3) -> str:
    """`−0.120 [−0.140, −0.100]`; without bounds when there are none."""
    head = signed_text(value.estimate, digits)
    return f"{head} [{signed_text(value.low, digits)}, {signed_text(value.high, digits)}]" if value.is_known else head


def percent_text(share: float | None) -> str:
    """`+7.2%`."""
    return MISSING if share is None else f"{signed_text(100 * share, 1)}%"


def count_text(value: float) -> str:
    """`512`, `49.5M`, `20.0B`, and powers of ten past that."""
    for limit, divisor, suffix in ((1e3, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (1e12, 1e9, "B")):
        if abs(value) < limit:
            return f"{value / divisor:.1f}{suffix}" if suffix else f"{value:.0f}"
    return f"{value:.2e}".replace("e+", "e")


def bytes_text(value: float) -> str:
    """`512 B`, `1.5 GiB`."""
    if value < 1024:
        return f"{value:.0f} B"
    for suffix in ("KiB", "MiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {suffix}"
    return f"{value / 1024:.1f} GiB"


def hours_text(value: float) -> str:
    """Three significant digits: `0.0123`, `1.23`, `131`."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def depths_text(depths: Sequence[int]) -> str:
    """`1-16`, or `8, 12, 16`."""
    if len(depths) > 2 and list(depths) == list(range(depths[0], depths[-1] + 1)):
        return f"{depths[0]}-{depths[-1]}"
    return ", ".join(map(str, depths))


def join_names(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""
