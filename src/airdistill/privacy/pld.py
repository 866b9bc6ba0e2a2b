"""ε of many rounds from the curve of one, by privacy loss distributions: dp_accounting composes them.

The only place in `privacy/` that knows dp_accounting, and imported only when participation is hidden: it takes a second
to load, and no closed form composes rounds of a mixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.errors import AirDistillError

Curve = Callable[[FloatArray], FloatArray]
"""δ of one round at each ε ≥ 0, `[ε]`, the same with the two worlds exchanged; what is equal is looked at once."""

_NEGLIGIBLE = 1e-18  # δ of one round beyond which its loss counts as infinite
# Of a round's grid of losses, on either side of zero. ε is then at most 2e-4 too large for p ≥ 0.1 and 0.02 for
# p = 0.001; where kinds of rounds differ in size, the widest has up to so many that the others are told from nothing.
_STEPS, _MOST_STEPS = 1000, 20_000
ROUNDING = 2e-16  # of δ, for every round: ten times what the library's transforms were seen to lose
_FINEST = 1e-7  # a grid's interval; a loss below it is rounded up to it


@dataclass(frozen=True)
class Composed:
    """Many rounds, discretised upwards and with a reserve for rounding: ε is never below the truth."""

    distribution: Any  # dp_accounting's; None of no rounds
    reserve: float = 0.0  # of δ

    @np.errstate(over="ignore")  # of e^ε in the library, which compares with infinity
    def epsilon(self, delta: float) -> float:
        if self.distribution is None:
            return 0.0
        if delta <= self.reserve:
            return float("inf")
        return float(self.distribution.get_epsilon_for_delta(delta - self.reserve))


@np.errstate(over="ignore")
def compose(rounds: Iterable[tuple[Curve, int]]) -> Composed:
    """Rounds of several kinds, each with its number."""
    kinds = [(curve, count) for curve, count in rounds if count > 0]
    if not kinds:
        return Composed(None)
    reaches = [_reach(curve) for curve, _ in kinds]
    interval = max(max(reaches) / _MOST_STEPS, min(reaches) / _STEPS)
    whole: Any = None
    for curve, count in kinds:
        part = _distribution(curve, interval).self_compose(count)
        whole = part if whole is None else whole.compose(part)
    return Composed(whole, ROUNDING * sum(count for _, count in kinds))


def composed_epsilon(rounds: Iterable[tuple[Curve, int]], delta: float) -> float:
    """The ε at δ of rounds of several kinds, each with its number."""
    return compose(rounds).epsilon(delta)


@lru_cache(maxsize=1024)
def _reach(curve: Curve) -> float:
    """An ε at which a round's δ is negligible, or has stopped falling."""
    reach = _FINEST * _STEPS
    while float(curve(np.array([reach]))[0]) > _NEGLIGIBLE and reach < 1e6:
        reach *= 1.5
    return reach


@lru_cache(maxsize=256)
def _distribution(curve: Curve, interval: float) -> Any:
    """dp_accounting's distribution whose curve lies on or above this one: "connect the dots" of its values."""
    losses, pmf = _library()
    steps = np.arange(1, int(np.ceil(_reach(curve) / interval)) + 1)
    epsilon = np.concatenate([[0.0], interval * steps])
    above = np.minimum(curve(epsilon), 1.0)
    # δ(−ε) = 1 − e^−ε + e^−ε δ(ε) with the worlds exchanged, for which the same curve holds.
    below = -np.expm1(-epsilon[:0:-1]) + np.exp(-epsilon[:0:-1]) * above[:0:-1]
    grid = np.concatenate([-steps[::-1], [0], steps])
    delta = np.concatenate([below, above])
    falling = np.maximum.accumulate(delta[::-1])[::-1]  # but for rounding it is, and raised it stays a bound
    dots = pmf.create_pmf_pessimistic_connect_dots(interval, grid, falling)
    return losses.PrivacyLossDistribution(dots)


def _library() -> tuple[Any, Any]:
    try:
        from dp_accounting.pld import pld_pmf, privacy_loss_distribution
    except ImportError as error:
        raise AirDistillError(
            "hidden participation is accounted by dp-accounting: pip install 'airdistill[accounting]'"
        ) from error
    return privacy_loss_distribution, pld_pmf
