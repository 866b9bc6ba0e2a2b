"""The positions of a slider: round values of a quantity, with whatever the scenario has among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from airdistill.units import with_prefix

Show = Callable[[float], str]


@dataclass(frozen=True)
class Positions:
    """Values in the field's own unit, and how each is shown."""

    values: tuple[float, ...]
    show: Show

    def with_own(self, own: Iterable[float]) -> list[float]:
        """In order, the scenario's own values among them as they are."""
        return sorted({*self.values, *own})


def _per_decade(low: int, high: int, steps: tuple[float, ...]) -> tuple[float, ...]:
    """From 10^low to 10^high, each as the shortest number that a person would write."""
    grid = [float(f"{step}e{power}") for power in range(low, high) for step in steps]
    return (*grid, float(f"1e{high}"))


def _dbm_in_watts(low: int, high: int) -> tuple[float, ...]:
    return tuple(float(f"{10 ** (level / 10 - 3):.12g}") for level in range(low, high + 1))


def _dbm(watts: float) -> str:
    if watts == 0:
        return "0 W"
    return f"{_neat(10 * math.log10(watts) + 30)} dBm ({with_prefix(watts, 'W')})"


def _neat(value: float) -> str:
    return f"{round(value, 2):g}".replace("-", "−")


def _unit(unit: str) -> Show:
    return lambda value: with_prefix(value, unit)


def _count(value: float) -> str:
    return f"{int(value):,}".replace(",", " ")


def _number(value: float) -> str:
    return "∞, no privacy" if math.isinf(value) else f"{value:g}"


_FINE, _COARSE = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 2, 5)

DEVICES = Positions(tuple(value for value in _per_decade(0, 3, _FINE) if value >= 2 and value == int(value)), _count)
SAMPLES = Positions(tuple(value for value in _per_decade(1, 4, _FINE) if value == int(value)), _count)
POWER = Positions(_dbm_in_watts(-30, 30), _dbm)
NOISE_POWER = Positions(_dbm_in_watts(-150, -40), _dbm)
DISTANCE = Positions(_per_decade(1, 4, _FINE), _unit("m"))
EXPONENT = Positions(tuple(2 + step / 10 for step in range(41)), _number)
CARRIER = Positions((433e6, 700e6, 868e6, 915e6, 1.8e9, 2.4e9, 3.5e9, 5.8e9, 28e9), _unit("Hz"))
SLOT = Positions(_per_decade(-7, -3, (1, 1.5, 2, 3, 3.6, 5, 7)), _unit("s"))
OUTAGE = Positions((0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3), lambda share: f"{share:.0%}")
PARTICIPATION = Positions(tuple(step / 20 for step in range(1, 21)), lambda share: f"{share:.0%}")
EPSILON = Positions((*_per_decade(-3, 2, _FINE), math.inf), _number)
DELTA = Positions(_per_decade(-12, -2, (1,)), lambda value: f"{value:.0e}".replace("e-0", "e-").replace("e-", "e−"))
LEARNING_RATE = Positions(_per_decade(-4, 1, _COARSE), _number)
WEIGHT = Positions((0.0, *_per_decade(-2, 2, _COARSE)), _number)
ROUNDS = Positions(tuple(value for value in _per_decade(0, 5, _FINE) if value == int(value)), _count)
CONSTANT = Positions(_per_decade(-2, 3, _FINE), _number)
ALPHA = Positions(_per_decade(-2, 2, _COARSE), _number)
CLASSES = Positions(tuple(float(count) for count in range(1, 11)), _count)
