"""ε of many rounds from the curve of one, by privacy loss distributions: dp_accounting composes them.

The only place in `privacy/` that knows dp_accounting, and imported only when participation is hidden: it takes a second
to load, and no closed form composes rounds of a mixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy.optimize import brentq

from airdistill.arrays import FloatArray
from airdistill.errors import AirDistillError
from airdistill.privacy.accountant import gaussian_mu

Curve = Callable[[FloatArray], FloatArray]
"""δ of one round at each ε ≥ 0, `[ε]`, the same with the two worlds exchanged."""

_NEGLIGIBLE = 1e-18  # δ of one round beyond which its loss counts as infinite
_STEPS = 4000  # of a round's grid of losses, on either side of zero
_MARGIN = 1e-3  # relative, by which a calibrated μ stays below the largest
_FINEST = 1e-7  # a grid's interval; a loss below it is rounded up to it


def composed_epsilon(rounds: Iterable[tuple[Curve, int]], delta: float) -> float:
    """The ε at δ of rounds of several kinds, each with its number. Discretised upwards: never below the truth."""
    kinds = [(curve, count) for curve, count in rounds if count > 0]
    if not kinds:
        return 0.0
    interval = max(_reach(curve) for curve, _ in kinds) / _STEPS
    whole: Any = None
    for curve, count in kinds:
        part = _distribution(curve, interval).self_compose(count)
        whole = part if whole is None else whole.compose(part)
    return float(whole.get_epsilon_for_delta(delta))


def largest_mu_of_round(curve_of: Callable[[float], Curve], num_rounds: int, epsilon: float, delta: float) -> float:
    """The largest μ of a round, to a thousandth and never more, such that T rounds of `curve_of(μ)` are (ε, δ)-DP.

    A coin never costs privacy, so that the share μ/√T of the Gaussian mechanism is where to begin.
    """
    if np.isinf(epsilon):
        return float("inf")

    def excess(mu: float) -> float:
        return composed_epsilon([(curve_of(mu), num_rounds)], delta) - epsilon

    low = high = float(gaussian_mu(epsilon, delta)) / np.sqrt(num_rounds)
    while excess(high) <= 0:
        low, high = high, 2 * high
    if low == high:  # nothing is amplified, and the distribution is rounded up
        return float(low) * (1 - _MARGIN)
    return float(brentq(excess, low, high, rtol=_MARGIN / 4)) * (1 - _MARGIN)


def _reach(curve: Curve) -> float:
    """An ε at which a round's δ is negligible, or has stopped falling."""
    reach = _FINEST * _STEPS
    while float(curve(np.array([reach]))[0]) > _NEGLIGIBLE and reach < 1e6:
        reach *= 1.5
    return reach


def _distribution(curve: Curve, interval: float) -> Any:
    """dp_accounting's distribution whose curve lies on or above this one: "connect the dots" of its values."""
    losses, pmf = _library()
    steps = np.arange(1, int(np.ceil(_reach(curve) / interval)) + 1)
    epsilon = np.concatenate([[0.0], interval * steps])
    above = np.minimum(curve(epsilon), 1.0)
    # δ(−ε) = 1 − e^−ε + e^−ε δ(ε) with the worlds exchanged, for which the same curve holds.
    below = -np.expm1(-epsilon[:0:-1]) + np.exp(-epsilon[:0:-1]) * above[:0:-1]
    grid = np.concatenate([-steps[::-1], [0], steps])
    dots = pmf.create_pmf_pessimistic_connect_dots(interval, grid, np.concatenate([below, above]))
    return losses.PrivacyLossDistribution(dots)


def _library() -> tuple[Any, Any]:
    try:
        from dp_accounting.pld import pld_pmf, privacy_loss_distribution
    except ImportError as error:
        raise AirDistillError(
            "hidden participation is accounted by dp-accounting: pip install 'airdistill[accounting]'"
        ) from error
    return privacy_loss_distribution, pld_pmf
