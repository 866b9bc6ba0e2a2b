"""Membership inference: was a record in the fleet's training data?

With class means the attacker has the broadcasts alone. The score is fixed in advance: the log-likelihood ratio of the
broadcast mean of the record's class, over all rounds, between two Gaussians. Without the record the mean is that of the
shadow devices that did not train on it; with the record, one device of the fleet is like the shadow devices that did.
The variance is that of a mean over the fleet, plus the noise of the broadcast. `public_membership.py` has the scores
for answers on a public set. The file begins with the statistics of a score: ROC, AUC and rates with intervals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import betaincinv, expit, logit, ndtr, ndtri
from scipy.stats import rankdata

from airdistill.arrays import BoolArray, FloatArray, IntArray
from airdistill.audit.context import AuditContext
from airdistill.audit.exact import certified_mu
from airdistill.audit.options import AuditOptions, OnProgress
from airdistill.audit.public_membership import NEAREST, device_scores, sum_scores
from airdistill.audit.shadows import (
    WANTED_NON_MEMBERS,
    Pool,
    ShadowKnowledge,
    own_pool,
    pool_of,
    train_own_shadows,
    train_shadows,
)
from airdistill.errors import InputError
from airdistill.privacy.targets import epsilon_of_mu

LEVEL = 0.999  # confidence level of every interval used in a verdict


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval, at `LEVEL` unless stated otherwise."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Roc:
    """False and true positive rates from (0, 0) to (1, 1), one point for each distinct threshold."""

    false_positive: FloatArray
    true_positive: FloatArray


def roc(positive: FloatArray, negative: FloatArray) -> Roc:
    """ROC curve of the test "positive at or above a threshold"."""
    thresholds = np.unique(np.concatenate([positive, negative]))[::-1]
    rates = [
        (len(group) - np.searchsorted(np.sort(group), thresholds, side="left")) / len(group)
        for group in (negative, positive)
    ]
    return Roc(*(np.concatenate([[0.0], rate]) for rate in rates))


def auc(positive: FloatArray, negative: FloatArray, level: float = LEVEL) -> Interval:
    """The probability that a positive scores above a negative (ties count half), with DeLong's interval.

    The interval is normal in log(A/(1 − A)): in A itself it is too short on the side of 1/2 for few trials.
    """
    num_positive, num_negative = len(positive), len(negative)
    together = rankdata(np.concatenate([positive, negative]))
    above = (together[:num_positive] - rankdata(positive)) / num_negative
    below = 1 - (together[num_positive:] - rankdata(negative)) / num_positive
    value = float(above.mean())
    spread = float(above.var(ddof=1) / num_positive + below.var(ddof=1) / num_negative)
    tail = (1 - level) / 2
    if value in (0.0, 1.0):
        # All pairs are in order, and the normal interval would have no width: use the size of the smaller group.
        width = float(1 - tail ** (1 / min(num_positive, num_negative)))
        return Interval(value, max(0.0, value - width), min(1.0, value + width))
    half = -ndtri(tail) * np.sqrt(spread) / (value * (1 - value))
    low, high = (float(expit(logit(value) + sign * half)) for sign in (-1, 1))
    return Interval(value, low, high)


def proportion(successes: int, trials: int, level: float = LEVEL) -> Interval:
    """A proportion with the interval of Clopper and Pearson."""
    tail = (1 - level) / 2
    low = float(betaincinv(successes, trials - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, trials - successes, 1 - tail)) if successes < trials else 1.0
    return Interval(successes / trials, low, high)


@dataclass(frozen=True)
class RatePoint:
    """Both rates at a threshold whose false positive rate is at most `asked`."""

    asked: float
    false_positive: Interval
    true_positive: Interval


def rate_at(positive: FloatArray, negative: FloatArray, asked: float, level: float = LEVEL) -> RatePoint:
    """The rates at the lowest threshold that at most a fraction `asked` of the negatives exceeds."""
    allowed = int(np.floor(asked * len(negative)))
    threshold = np.sort(negative)[::-1][min(allowed, len(negative) - 1)]
    above = [int(np.count_nonzero(group > threshold)) for group in (negative, positive)]
    return RatePoint(asked, proportion(above[0], len(negative), level), proportion(above[1], len(positive), level))


FALSE_POSITIVE_RATES = (0.001, 0.01)
_MOST_POINTS = 600


@dataclass(frozen=True)
class MembershipAudit:
    """`num_members` of the fleet's `num_held` records were scored; ε and δ are those of the least protected device.

    With a public set, `one_device` is the attack on the audited device alone by an attacker who knows the answers of
    the others: its records are the members, and ε and δ are its own. `mu` is the largest certified μ of these devices,
    which bounds rates more closely than ε does; infinite if the noise is discrete.
    """

    num_held: int
    num_members: int
    num_non_members: int
    num_shadows: int
    num_shadow_devices: int
    auc: Interval
    points: tuple[RatePoint, ...]
    roc: Roc
    epsilon: float
    delta: float
    mu: float = float("inf")
    one_device: MembershipAudit | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        found = ["All records are scored on the same broadcasts, and so the intervals hold for these broadcasts only."]
        if self.one_device is not None:
            found.append(
                f"Membership is inferred from the answers on the {NEAREST} public samples nearest to a record; the "
                "certified ε is that of a whole device, which covers each of its records."
            )
        if self.num_members < self.num_held:
            found.append(f"Of the fleet's {self.num_held} records, {self.num_members} drawn at random were scored.")
        if self.num_non_members < WANTED_NON_MEMBERS:
            found.append(
                f"The data has only {self.num_non_members} records that the fleet did not train on; rates of 0.1 % "
                f"need {WANTED_NON_MEMBERS}."
            )
        return tuple(found)

    def allowed(self, point: RatePoint) -> float:
        """The largest true positive rate at the upper end of the FPR."""
        return float(self.allowed_rates(np.array(point.false_positive.high)))

    def allowed_rates(self, false_positive: FloatArray) -> FloatArray:
        """The largest true positive rates of any test: e^ε·FPR + δ and Φ(Φ⁻¹(FPR) + μ), whichever is less."""
        if np.isinf(self.epsilon):
            return np.ones_like(false_positive)
        by_epsilon = np.exp(min(self.epsilon, 700.0)) * false_positive + self.delta
        return np.asarray(np.minimum(1.0, np.minimum(by_epsilon, ndtr(ndtri(false_positive) + self.mu))))

    @property
    def allowed_auc(self) -> float:
        """The largest AUC of any test: 1 − (1 − δ)²/(1 + e^ε) and Φ(μ/√2), whichever is less."""
        return float(min(1 - (1 - self.delta) ** 2 * expit(-self.epsilon), ndtr(self.mu / np.sqrt(2))))

    @property
    def violations(self) -> tuple[str, ...]:
        found = tuple(
            f"Membership inference finds at least {point.true_positive.low:.2%} of the members at a false positive "
            f"rate of at most {point.false_positive.high:.2%}; ε = {self.epsilon:.3g} allows {self.allowed(point):.2%}."
            for point in self.points
            if point.true_positive.low > self.allowed(point)
        )
        if self.auc.low > self.allowed_auc:
            found += (
                f"Membership inference has an AUC of {self.auc.value:.4f}, at least {self.auc.low:.4f}; "
                f"ε = {self.epsilon:.3g} allows {self.allowed_auc:.4f}.",
            )
        return found if self.one_device is None else (*found, *self.one_device.violations)

    def to_dict(self) -> dict[str, Any]:
        return {
            "held": self.num_held,
            "members": self.num_members,
            "non_members": self.num_non_members,
            "shadows": self.num_shadows,
            "shadow_devices": self.num_shadow_devices,
            "level": LEVEL,
            "auc": vars(self.auc),
            "auc_interval": "DeLong",
            "allowed_auc": self.allowed_auc,
            "rates": [_point_to_dict(point) | {"allowed": self.allowed(point)} for point in self.points],
            "rate_intervals": "Clopper-Pearson",
            "roc": vars(self.roc),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "mu": self.mu,
            "notes": list(self.notes),
            "one_device": None if self.one_device is None else self.one_device.to_dict(),
        }


def _point_to_dict(point: RatePoint) -> dict[str, Any]:
    rates = {"false_positive": vars(point.false_positive), "true_positive": vars(point.true_positive)}
    return {"asked": point.asked, **rates}


def audit_membership(context: AuditContext, options: AuditOptions, on_progress: OnProgress) -> MembershipAudit:
    """Train the shadow fleets and score every record of the pool."""
    if context.scenario.data.resample:
        raise InputError("data.resample", True, "the attack needs records of one device each, and some are on several")
    pool = pool_of(context, options.seed)
    if pool.is_member.all():
        rule = "the fleet trained on all records of some class; membership inference needs others of every class"
        raise InputError("data.dataset", context.scenario.data.dataset, rule)
    shadows = train_shadows(context, pool, options, on_progress)
    limit, groups = _limit_of(context, slice(None)), (pool.is_member, ~pool.is_member)
    num_held = sum(map(len, context.indices))
    if not context.plan.uplink.payload.answers_public_set:
        return _measured(_scores(context, pool, shadows), *groups, num_held, shadows, limit)
    whole = _measured(sum_scores(context, pool, shadows), *groups, num_held, shadows, limit)
    pool = own_pool(context, pool)
    shadows = train_own_shadows(context, pool, options, on_progress)
    scores, limit = device_scores(context, pool, shadows), _limit_of(context, slice(context.device, context.device + 1))
    one = _measured(scores, pool.is_own, ~pool.is_own, len(context.own_labels), shadows, limit)
    return replace(whole, one_device=one)


def _limit_of(context: AuditContext, devices: slice) -> tuple[float, float, float]:
    """The largest certified ε of these devices and its δ, and their largest μ, infinite for discrete noise."""
    privacy, delta = context.scenario.privacy, context.plan.fleet.delta[devices]
    mu = certified_mu(context, privacy.sensitivity)[-1, devices]
    epsilon = epsilon_of_mu(mu, delta, privacy.noise)
    weakest = int(np.argmax(epsilon))
    largest = float("inf") if privacy.noise == "secure" else float(mu.max())
    return float(epsilon[weakest]), float(delta[weakest]), largest


def _measured(
    scores: FloatArray,
    is_member: BoolArray,
    is_other: BoolArray,
    num_held: int,
    shadows: ShadowKnowledge,
    limit: tuple[float, float, float],
) -> MembershipAudit:
    """How well scores `[record]` tell members from others; `limit` is (ε, δ, μ)."""
    members, others = scores[is_member], scores[is_other]
    return MembershipAudit(
        num_held=num_held,
        num_members=len(members),
        num_non_members=len(others),
        num_shadows=len(shadows.vectors) // shadows.num_devices,
        num_shadow_devices=shadows.num_devices,
        auc=auc(members, others),
        points=tuple(rate_at(members, others, asked) for asked in FALSE_POSITIVE_RATES),
        roc=_log_thinned(roc(members, others)),
        epsilon=limit[0],
        delta=limit[1],
        mu=limit[2],
    )


def _scores(context: AuditContext, pool: Pool, shadows: ShadowKnowledge) -> FloatArray:
    broadcasts = np.stack(context.received)
    noise_var = np.stack([this.design.effective_noise_var for this in context.rounds])
    share = 1 / context.plan.fleet.num_devices
    return membership_scores(pool.labels, shadows.holds, shadows.vectors, broadcasts, noise_var, share)


def membership_scores(
    labels: IntArray,
    holds: BoolArray,
    knowledge: FloatArray,
    broadcasts: FloatArray,
    noise_var: FloatArray,
    share: float,
) -> FloatArray:
    """Λ of every record, `[record]`; zero for a record that no shadow device held.

    `holds` is `[record, shadow device]`, `knowledge` `[shadow device, round, class, entry]`, `broadcasts` `[round,
    class, entry]` and `noise_var` v `[round, class]`. A broadcast is the mean of 1/`share` devices: without the record
    its expectation is the mean of the shadow devices that did not train on it; with the record, one device of the fleet
    is like those that did. Classes that were not broadcast do not contribute.
    """
    scores = np.zeros(len(labels))
    for klass in np.unique(labels):
        records, known_to = labels == klass, np.isfinite(knowledge[:, :, klass]).all(axis=(1, 2))
        known = knowledge[known_to, :, klass].reshape(np.count_nonzero(known_to), -1)
        received = broadcasts[:, klass].reshape(-1)
        if len(known) < 2:
            continue
        variance = share * known.var(axis=0, ddof=1) + np.repeat(noise_var[:, klass], broadcasts.shape[-1])
        usable = np.isfinite(received) & np.isfinite(variance) & (variance > 0)
        own = holds[np.ix_(records, known_to)]
        both = own.any(axis=1) & ~own.all(axis=1)  # some shadow devices held the record, and some did not
        without = _mean_over(~own, known[:, usable])
        with_it = without + share * (_mean_over(own, known[:, usable]) - without)
        distance = [((received[usable] - mean) ** 2 / variance[usable]).sum(axis=1) for mean in (with_it, without)]
        scores[records] = np.where(both, (distance[1] - distance[0]) / 2, 0.0)
    return scores


def _mean_over(group: BoolArray, known: FloatArray) -> FloatArray:
    """Mean over the shadow devices in each record's group, `[record, entry]`."""
    return np.asarray(group.astype(np.float64) @ known / np.maximum(group.sum(axis=1, keepdims=True), 1))


def _log_thinned(curve: Roc) -> Roc:
    """About `_MOST_POINTS` points, densest at low false positive rates."""
    size = len(curve.false_positive)
    places = np.concatenate([np.arange(min(size, 100)), np.geomspace(1, size, _MOST_POINTS) - 1, [size - 1]])
    chosen = np.unique(places.round().astype(np.int64))
    return Roc(curve.false_positive[chosen], curve.true_positive[chosen])
