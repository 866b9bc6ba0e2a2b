"""Numbers in words, the same on the terminal and on a page."""

from __future__ import annotations

import math

from airdistill.runs.results import Interval
from airdistill.units import with_prefix


def number(value: float | None, form: str = ".3g") -> str:
    """None stands for infinity, as in JSON."""
    return "∞" if value is None or math.isinf(value) else format(value, form).replace("-", "−")


def percent(interval: Interval, digits: int = 2) -> str:
    """A share with its interval: 89.1 ± 0.2 %."""
    half = "" if interval.half is None else f" ± {100 * interval.half:.{digits}f}"
    return f"{100 * interval.mean:.{digits}f}{half} %"


def points(interval: Interval | None, digits: int = 2) -> str:
    """A difference of shares in percentage points."""
    if interval is None:
        return ""
    half = "" if interval.half is None else f" ± {100 * interval.half:.{digits}f}"
    return f"{100 * interval.mean:+.{digits}f}{half}".replace("-", "−")


def quantity(interval: Interval, unit: str) -> str:
    """A mean with its unit; nothing where it is zero."""
    return "" if interval.mean == 0 else with_prefix(interval.mean, unit)


def span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}–{high}"
