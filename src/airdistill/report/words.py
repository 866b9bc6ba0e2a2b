"""Numbers in words, the same on the terminal and on a page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airdistill.units import with_prefix

if TYPE_CHECKING:
    from airdistill.runs.results import Interval


def number(value: float | None, form: str = ".3g") -> str:
    """None stands for infinity, as in JSON."""
    return "∞" if value is None or math.isinf(value) else format(value, form).replace("-", "−")


def percent(interval: Interval) -> str:
    """A share with its interval: 89.1 ± 0.2 %."""
    return f"{_hundredths(interval, '')} %"


def points(interval: Interval | None) -> str:
    """A difference of shares in percentage points."""
    return "" if interval is None else _hundredths(interval, "+").replace("-", "−")


def _hundredths(interval: Interval, sign: str) -> str:
    if interval.half is None:
        return f"{100 * interval.mean:{sign}.2f}"
    return f"{100 * interval.mean:{sign}.1f} ± {100 * interval.half:.1f}"


def quantity(interval: Interval, unit: str) -> str:
    """A mean with its unit; nothing where it is zero."""
    return "" if interval.mean == 0 else with_prefix(interval.mean, unit)


def antennas_in_words(link: Mapping[str, Any] | None) -> str:
    """Of a run's summary; nothing where nothing is sent."""
    return "" if link is None else str(link["antennas"])


def taking_part_in_words(link: Mapping[str, Any] | None) -> str:
    """Who sends in a round: all, so many draws, or each with a probability that the server sees or does not."""
    if link is None:
        return ""
    if link["draws"] is not None:
        return f"{link['draws']} draws"
    if link["participation"] == 1:
        return "all"
    return f"{link['participation']:g}, {'hidden' if link['participation_hidden'] else 'seen'}"


def span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}–{high}"
