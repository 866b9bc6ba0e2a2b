"""How well a score tells two groups apart, with intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, expit, logit, ndtri
from scipy.stats import rankdata

from airdistill.arrays import FloatArray

LEVEL = 0.999  # of every interval that a verdict rests on


@dataclass(frozen=True)
class Interval:
    """An estimate and the two ends of its interval at `LEVEL`, unless said otherwise."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Roc:
    """False and true positive rates from (0, 0) to (1, 1), one point for every threshold that matters."""

    false_positive: FloatArray
    true_positive: FloatArray


def roc(positive: FloatArray, negative: FloatArray) -> Roc:
    """Of the rule "positive above a threshold"."""
    thresholds = np.unique(np.concatenate([positive, negative]))[::-1]
    rates = [
        (len(group) - np.searchsorted(np.sort(group), thresholds, side="left")) / len(group)
        for group in (negative, positive)
    ]
    return Roc(*(np.concatenate([[0.0], rate]) for rate in rates))


def auc(positive: FloatArray, negative: FloatArray, level: float = LEVEL) -> Interval:
    """The chance that a positive scores above a negative (ties count half), with DeLong's interval.

    The interval is normal in log(A/(1 − A)): in A itself it is too short on the side of 1/2 when trials are few.
    """
    num_positive, num_negative = len(positive), len(negative)
    together = rankdata(np.concatenate([positive, negative]))
    above = (together[:num_positive] - rankdata(positive)) / num_negative
    below = 1 - (together[num_positive:] - rankdata(negative)) / num_positive
    value = float(above.mean())
    spread = float(above.var(ddof=1) / num_positive + below.var(ddof=1) / num_negative)
    tail = (1 - level) / 2
    if value in (0.0, 1.0):
        # All pairs in order: the normal interval would have no width. Of the smaller group none was out of order.
        width = float(1 - tail ** (1 / min(num_positive, num_negative)))
        return Interval(value, max(0.0, value - width), min(1.0, value + width))
    half = -ndtri(tail) * np.sqrt(spread) / (value * (1 - value))
    low, high = (float(expit(logit(value) + sign * half)) for sign in (-1, 1))
    return Interval(value, low, high)


def proportion(successes: int, trials: int, level: float = LEVEL) -> Interval:
    """Clopper and Pearson's interval."""
    tail = (1 - level) / 2
    low = float(betaincinv(successes, trials - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, trials - successes, 1 - tail)) if successes < trials else 1.0
    return Interval(successes / trials, low, high)


@dataclass(frozen=True)
class RatePoint:
    """A threshold set for a false positive rate of `asked` at most, and both rates at it."""

    asked: float
    false_positive: Interval
    true_positive: Interval


def rate_at(positive: FloatArray, negative: FloatArray, asked: float, level: float = LEVEL) -> RatePoint:
    """The true positive rate where at most a share `asked` of the negatives scores above the threshold."""
    allowed = int(np.floor(asked * len(negative)))
    threshold = np.sort(negative)[::-1][min(allowed, len(negative) - 1)]
    above = [int(np.count_nonzero(group > threshold)) for group in (negative, positive)]
    return RatePoint(asked, proportion(above[0], len(negative), level), proportion(above[1], len(positive), level))
