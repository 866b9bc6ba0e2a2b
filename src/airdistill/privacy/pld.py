"""Composition of rounds by privacy loss distributions: ε of many rounds from the privacy curve δ(ε) of each.

dp_accounting composes the distributions. No other module in `privacy/` uses it. It is imported on first use, because it
takes a second to load and only secret Poisson sampling needs it: mixtures of Gaussians do not compose in closed form.
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
"""δ of one round at each ε ≥ 0, `[ε]`, symmetric in the two neighbours. Equal (hashable) curves are evaluated once."""

_NEGLIGIBLE = 1e-18  # δ of one round below which the remaining loss counts as infinite
# Steps of a round's loss grid on either side of zero. ε is then at most 2e-4 too large for p ≥ 0.1 and 0.02 for
# p = 0.001. If rounds differ in size, the widest gets up to _MOST_STEPS, so that the grid still resolves the narrowest.
_STEPS, _MOST_STEPS = 1000, 20_000
ROUNDING = 2e-16  # of δ, for every round: ten times the largest error measured in the library's transforms
_FINEST = 1e-7  # smallest grid interval; smaller losses are rounded up to it


@dataclass(frozen=True)
class Composed:
    """A composition of rounds, discretised upwards and with a reserve for rounding: ε is never below the true one."""

    distribution: Any  # dp_accounting's; None without rounds
    reserve: float = 0.0  # of δ

    @np.errstate(over="ignore")  # e^ε in the library, which handles infinity
    def epsilon(self, delta: float) -> float:
        if self.distribution is None:
            return 0.0
        if delta <= self.reserve:
            return float("inf")
        return float(self.distribution.get_epsilon_for_delta(delta - self.reserve))


@np.errstate(over="ignore")
def compose(rounds: Iterable[tuple[Curve, int]]) -> Composed:
    """Compose rounds, given as curves with the number of rounds of each."""
    groups = [(curve, count) for curve, count in rounds if count > 0]
    if not groups:
        return Composed(None)
    reaches = [_reach(curve) for curve, _ in groups]
    interval = max(max(reaches) / _MOST_STEPS, min(reaches) / _STEPS)
    whole: Any = None
    for curve, count in groups:
        part = _distribution(curve, interval).self_compose(count)
        whole = part if whole is None else whole.compose(part)
    return Composed(whole, ROUNDING * sum(count for _, count in groups))


def composed_epsilon(rounds: Iterable[tuple[Curve, int]], delta: float) -> float:
    """ε at δ of rounds, given as curves with the number of rounds of each."""
    return compose(rounds).epsilon(delta)


@lru_cache(maxsize=1024)
def _reach(curve: Curve) -> float:
    """An ε at which a round's δ is negligible; about 1e6 if there is none."""
    reach = _FINEST * _STEPS
    while float(curve(np.array([reach]))[0]) > _NEGLIGIBLE and reach < 1e6:
        reach *= 1.5
    return reach


@lru_cache(maxsize=256)
def _distribution(curve: Curve, interval: float) -> Any:
    """A distribution of dp_accounting whose privacy curve lies on or above this one ("connect the dots")."""
    losses, pmf = _library()
    steps = np.arange(1, int(np.ceil(_reach(curve) / interval)) + 1)
    epsilon = np.concatenate([[0.0], interval * steps])
    above = np.minimum(curve(epsilon), 1.0)
    # δ(−ε) = 1 − e^−ε + e^−ε δ(ε) with the neighbours exchanged, for which the same curve holds.
    below = -np.expm1(-epsilon[:0:-1]) + np.exp(-epsilon[:0:-1]) * above[:0:-1]
    grid = np.concatenate([-steps[::-1], [0], steps])
    delta = np.concatenate([below, above])
    falling = np.maximum.accumulate(delta[::-1])[::-1]  # removes rounding errors upwards: it remains a bound
    dots = pmf.create_pmf_pessimistic_connect_dots(interval, grid, falling)
    return losses.PrivacyLossDistribution(dots)


def _library() -> tuple[Any, Any]:
    try:
        from dp_accounting.pld import pld_pmf, privacy_loss_distribution
    except ImportError as error:
        raise AirDistillError(
            "secret participation needs the accountant of dp-accounting: pip install 'airdistill[accounting]'"
        ) from error
    return privacy_loss_distribution, pld_pmf
