"""Numbers and phrases that the terminal and the pages share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.planning.forecast import LIMITING_FACTORS
from airdistill.units import rounded_up, with_prefix

if TYPE_CHECKING:
    from airdistill.runs.results import Interval

MOST_ROWS = 12  # a table of more devices or classes than this shows a summary
SUMMARIES: dict[str, Callable[[FloatArray], float]] = {
    "least": lambda values: float(np.min(values)),
    "median": lambda values: float(np.median(values)),
    "most": lambda values: float(np.max(values)),
}


def number(value: float | None, form: str = ".3g") -> str:
    """Format a number with a true minus sign. None means infinity, as in JSON."""
    return "∞" if value is None or math.isinf(value) else format(value, form).replace("-", "−")


def percent(interval: Interval) -> str:
    """Format a share with its interval: 89.1 ± 0.2 %."""
    return f"{_hundredths(interval, '')} %"


def points(interval: Interval | None) -> str:
    """Format a difference of shares in percentage points."""
    return "" if interval is None else _hundredths(interval, "+").replace("-", "−")


def _hundredths(interval: Interval, sign: str) -> str:
    if interval.half is None:
        return f"{100 * interval.mean:{sign}.2f}"
    return f"{100 * interval.mean:{sign}.1f} ± {100 * interval.half:.1f}"


def quantity(interval: Interval, unit: str) -> str:
    """Format a mean with its unit; zero is left empty."""
    return "" if interval.mean == 0 else with_prefix(interval.mean, unit)


def span(low: int, high: int) -> str:
    """Format a range of whole numbers, or the number itself if both ends agree."""
    return str(low) if low == high else f"{low}–{high}"


def extent(values: FloatArray, show: Callable[[float], str]) -> str:
    """Format the range from the smallest to the largest value, or the value itself if all agree."""
    low, high = values.min(), values.max()
    return show(low) if low == high else f"{show(low)}–{show(high)}"


def starred(name: str, declared: str) -> str:
    """Mark the name that the scenario declares with a star."""
    return f"{name}*" if name == declared else name


def device_rows(columns: Sequence[FloatArray], all_devices: bool) -> tuple[tuple[str, ...], ...]:
    """Return a row for each device from columns `[device]` of ε and δ, rounded up.

    Large fleets are summarised unless `all_devices` is set.
    """
    if all_devices or len(columns[0]) <= MOST_ROWS:
        rows = zip(*columns, strict=True)
        return tuple((str(device), *map(rounded_up, row)) for device, row in enumerate(rows))
    return tuple((name, *(rounded_up(pick(column)) for column in columns)) for name, pick in SUMMARIES.items())


def limiting_factor(regime: str) -> str:
    """Say what sets the noise of a plan: privacy, the channel, or both in different rounds."""
    return LIMITING_FACTORS[regime]


def accuracy_in_words(accuracy: Mapping[str, Any]) -> str:
    """The mean over devices, with its interval if it was measured on a sample."""
    half = accuracy.get("sample", {}).get("half_width")
    return f"{accuracy['mean']:.2%}" + ("" if half is None else f" ± {100 * half:.2f} points")


def sample_in_words(accuracy: Mapping[str, Any]) -> str | None:
    """The devices and test samples on which accuracy was measured; None if these are all."""
    sample = accuracy.get("sample")
    if sample is None:
        return None
    parts = [
        f"all {of:,} {what}" if some == of else f"{some:,} of {of:,} {what}"
        for some, of, what in (
            (sample["devices"], sample["of_devices"], "devices"),
            (sample["test_samples"], sample["of_test_samples"], "test samples"),
        )
    ]
    interval = "no interval, because one is too few" if sample["half_width"] is None else "± is the 95 % interval"
    return f"{parts[0]}, {parts[1]}, drawn at random; {interval}"


def antennas_in_words(link: Mapping[str, Any] | None) -> str:
    """Return the number of antennas in a run's summary; empty if the scheme does not transmit."""
    return "" if link is None else str(link["antennas"])


def participation_in_words(link: Mapping[str, Any] | None) -> str:
    """Say which devices send in a round: all, a number of draws, each with a probability, or a user's own model."""
    if link is None:
        return ""
    if own := link.get("own_participation"):
        return str(own)
    if cycle := link.get("cycle"):
        return f"one round in {cycle}"
    if link["draws"] is not None:
        return f"{link['draws']} draws"
    if link["participation"] == 1:
        return "all"
    return f"{link['participation']:g}, {'secret' if link['participation_hidden'] else 'known'}"
