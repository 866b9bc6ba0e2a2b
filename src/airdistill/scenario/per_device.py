"""Values per device: one for all devices, a range to draw from, or a list."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from airdistill.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class PerDevice:
    """`same`: one number for all devices; `range`: drawn uniformly from [low, high]; `list`: one number per device."""

    kind: Literal["same", "range", "list"]
    numbers: tuple[float, ...]

    def draw(self, num_devices: int, rng: np.random.Generator) -> FloatArray:
        """Return the value of every device, `[device]`."""
        if self.kind == "range":
            return rng.uniform(self.numbers[0], self.numbers[1], size=num_devices)
        return np.broadcast_to(np.array(self.numbers, dtype=np.float64), (num_devices,)).copy()

    def draw_integers(self, num_devices: int, rng: np.random.Generator) -> IntArray:
        """Return a count for every device, `[device]`; a range includes both ends."""
        if self.kind == "range":
            low, high = (int(number) for number in self.numbers)
            return rng.integers(low, high, size=num_devices, endpoint=True)
        return self.draw(num_devices, rng).astype(np.int64)

    def as_given(self) -> Any:
        """Return the value as in a scenario file; infinity is the text "inf", because JSON has no infinity."""
        written = ["inf" if math.isinf(number) else number for number in self.numbers]
        if self.kind == "same":
            return written[0]
        return {"values": written} if self.kind == "list" else written


def parse_per_device(value: Any, parse_one: Callable[[Any], float]) -> PerDevice:
    """Parse `5`, `[1, 5]` (two numbers are always a range), `[1, 2, 5]` or `{values = [1, 5]}` (a list).

    Raises ValueError with the rule that the value breaks.
    """
    if isinstance(value, PerDevice):
        return value
    if isinstance(value, dict):
        if set(value) != {"values"} or not isinstance(value["values"], list):
            raise ValueError("must have one key, `values`, with a list of one entry per device")
        return PerDevice("list", _parse_entries(value["values"], parse_one))
    if not isinstance(value, (list, tuple)):
        return PerDevice("same", (parse_one(value),))
    numbers = _parse_entries(value, parse_one)
    if len(numbers) != 2:
        return PerDevice("list", numbers)
    if not numbers[0] <= numbers[1] < math.inf:
        raise ValueError(
            "two entries are a range [low, high] with low ≤ high, both finite; "
            "for a fleet of two write {values = [first, second]}"
        )
    return PerDevice("range", numbers)


def _parse_entries(entries: Any, parse_one: Callable[[Any], float]) -> tuple[float, ...]:
    if not entries:
        raise ValueError("must not be an empty list")
    numbers = []
    for position, entry in enumerate(entries):
        try:
            numbers.append(parse_one(entry))
        except ValueError as error:
            raise ValueError(f"entry {position} ({entry}): {error}") from None
    return tuple(numbers)
