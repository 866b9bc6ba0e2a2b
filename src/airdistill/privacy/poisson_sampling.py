"""Privacy amplification by secret Poisson sampling: one round, many rounds, and the published bound.

Each device participates in a round with probability p, independently of the others, and the server does not learn
which devices participate.

**Neighbours** differ in one device's data; participation is not data. Given the participation of all other devices, and
in units of the noise, the server observes p·N(a) + (1−p)·N(0) for one neighbour and p·N(b) + (1−p)·N(0) for the other.
This is the replace relation, not add or remove: with either dataset the device participates with probability p. For
α = e^ε ≥ 1 and c = (1−p)(α−1)/p

    δ(ε) = p·E_{x~N(0)} (e^(a·x − ‖a‖²/2) − α e^(b·x − ‖b‖²/2) − c)₊.

δ depends on ‖a‖, ‖b‖ and a·b alone, and decreases in a·b: the derivative is E ∂²f/∂(a·x)∂(b·x) (Plackett), and f is the
positive part of a function that increases in one argument and decreases in the other. The worst pair therefore has the
smallest possible a·b:

* `OPPOSITE`, arbitrary vectors of norm m: b = −a, dp_accounting's REPLACE_ONE. The best test is a half line, and so
  δ = p·max_τ (Φ(τ+m) − αΦ(τ−m) − cΦ(τ)), which increases in either norm;
* `ORTHOGONAL`, vectors without negative entries (knowledge): a·b = 0. Longer vectors reveal more: each lies on its own
  axis, where noise and scaling turn a longer vector into a shorter one. The expectation over one axis is closed-form.

Both curves are symmetric in the two neighbours. At p = 1 they are those of the Gaussian mechanism with μ = ‖a − b‖, and
a round is described by this μ: 2m for opposite vectors, √2 m for orthogonal ones.

The noise must not depend on whether the device participates. **If only participating devices add noise**, its strength
reveals their number n. The server is then assumed to know n, and only the identity of the participants is secret
(`delta_with_participants_noise`).

**Many rounds** are composed as privacy loss distributions (`privacy/pld.py`). The μ of a round is rounded up to a grid
of 128 points per octave. Rounds and devices then fall into few composition groups, and each group is composed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr, ndtr

from airdistill.arrays import FloatArray, IntArray
from airdistill.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu, paper_mu
from airdistill.privacy.pld import Composed, compose
from airdistill.privacy.targets import paper_epsilon

OPPOSITE, ORTHOGONAL = "opposite", "orthogonal"
_TAIL, _NODES = 10.0, 101  # of the trapezoidal rule, in standard deviations
_LARGEST_NORM = 30.0  # over the noise; beyond it the signal reveals participation and sampling amplifies nothing
_LEAST_MASS = 1e-25  # of a number of participants: rarer ones are charged as non-private
_STEPS_PER_OCTAVE = 128
_GRID_ROUNDING = 1e-6  # of a grid step: a μ planned on the grid stays on its grid point
_ZERO_INDEX, _INFINITE_INDEX = -(2**13), 1280  # grid indices of μ = 0 and of μ = ∞, which begins at 2^10
_MOST_GROUPS, _MOST_GROUPS_OF_FLEET = 8, 800
_LARGEST_DELTA_0 = 0.5  # in the published bound

CompositionGroups = tuple[tuple[int, int], ...]
"""(grid index of μ, number of rounds), by increasing grid index."""


def delta_of_round(epsilon: ArrayLike, probability: float, mu: float, geometry: str) -> FloatArray:
    """δ of one round at each ε ≥ 0, `[ε]`, for the worst pair, if the noise does not depend on participation.

    `mu` is the largest distance between the vectors of two neighbours, over the noise.
    """
    _check(probability)
    if geometry not in (OPPOSITE, ORTHOGONAL):
        raise ValueError(f"geometry = {geometry!r}: must be {OPPOSITE} or {ORTHOGONAL}")
    eps = np.atleast_1d(np.asarray(epsilon, dtype=np.float64))
    if probability == 1 or mu in (0, np.inf):
        return np.asarray(probability * np.broadcast_to(gaussian_delta(eps, mu), eps.shape))
    rule = _opposite if geometry == OPPOSITE else _orthogonal
    return np.asarray(probability * np.clip(rule(eps, probability, mu), 0.0, 1.0))


def _opposite(epsilon: FloatArray, probability: float, mu: float) -> FloatArray:
    """max_τ Φ(τ+m) − αΦ(τ−m) − cΦ(τ), m = μ/2, `[ε]`."""
    norm = mu / 2
    if norm > _LARGEST_NORM:
        # As if participation were known: an upper bound by joint convexity.
        return np.asarray(gaussian_delta(epsilon, mu))
    # At the best τ densities are equal: e^(−mτ−m²/2) = αe^(mτ−m²/2) + c, a quadratic in z = e^(mτ), divided by α.
    share = (1 - probability) / probability * -np.expm1(-epsilon) * np.exp(norm**2 / 2)  # (c/α)e^(m²/2)
    tau = (np.log(2) - epsilon - np.log(share + np.hypot(share, 2 * np.exp(-epsilon / 2)))) / norm  # ln z/m
    log_alpha, log_c = epsilon, epsilon + _log(-np.expm1(-epsilon)) + np.log((1 - probability) / probability)
    subtracted = np.exp(log_alpha + log_ndtr(tau - norm)) + np.exp(log_c + log_ndtr(tau))
    return np.asarray(ndtr(tau + norm) - subtracted)


def _orthogonal(epsilon: FloatArray, probability: float, mu: float) -> FloatArray:
    """E_v (Φ(m − τ(v)) − γ(v)Φ(−τ(v))), m = μ/√2, γ = αe^(mv−m²/2) + c, τ = (ln γ + m²/2)/m, `[ε]`."""
    norm = mu / np.sqrt(2)
    if norm > _LARGEST_NORM:
        return np.asarray(gaussian_delta(epsilon, mu))  # as in `_opposite`
    # The integrand is analytic except for the branch points of ln γ, π/m off the axis, and has Gaussian tails. With
    # step h the error of the trapezoidal rule is about e^(−2π²/(m h)), which these nodes keep below e^−49.
    v = np.linspace(-_TAIL, _TAIL, int(_NODES * max(1.0, norm / 2)))
    weight = np.exp(-v * v / 2)
    log_c = epsilon + _log(-np.expm1(-epsilon)) + np.log((1 - probability) / probability)
    gamma = np.logaddexp(epsilon[:, None] + norm * v - norm**2 / 2, log_c[:, None])  # ln γ, `[ε, v]`
    tau = gamma / norm + norm / 2
    inner = ndtr(norm - tau) - np.exp(gamma + log_ndtr(-tau))
    return np.asarray(np.maximum(inner, 0.0) @ (weight / weight.sum()))


def _log(values: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.log(values)


def delta_with_participants_noise(
    epsilon: ArrayLike, num_devices: int, probability: float, mu_alone: float
) -> FloatArray:
    """δ of one round at each ε ≥ 0, `[ε]`, if only participating devices add noise, all of the same variance.

    Given their number n, the set of participants is uniform, and a participant can be exchanged for a device outside
    the set: the two contributions differ by at most `mu_alone`/√n in units of the noise of n devices, for either
    neighbour. Advanced joint convexity (Balle, Barthe and Gaboardi 2018) gives δ_n(ε) ≤ (n/M)·δ(ε_n, μ/√n) with
    e^ε_n = 1 + (e^ε − 1)M/n. The server knows n, and so δ is Σ_n P(n)·δ_n.
    """
    from scipy.stats import binom

    _check(probability)
    eps = np.atleast_1d(np.asarray(epsilon, dtype=np.float64))
    counts = np.arange(1, num_devices + 1)
    chance = binom.pmf(counts, num_devices, probability)
    kept = chance > _LEAST_MASS
    total = np.full(eps.shape, float(chance[~kept].sum()))
    for count, weight in zip(counts[kept], chance[kept], strict=True):
        share = count / num_devices
        before = np.maximum(eps - np.log(share) + np.log1p(-(1 - share) * np.exp(-eps)), 0.0)  # ε_n; e^ε may overflow
        total += weight * share * gaussian_delta(before, mu_alone / np.sqrt(count))
    return total


def grid_index(mu: FloatArray) -> IntArray:
    """Index of the smallest μ on the grid that is not below `mu`, `[device]`."""
    with np.errstate(divide="ignore"):
        place = np.ceil(_STEPS_PER_OCTAVE * np.log2(mu) - _GRID_ROUNDING)
    # The lower limit is above the index of μ = 0: every transmission has a cost.
    return np.where(mu > 0, np.clip(place, _ZERO_INDEX + 1, _INFINITE_INDEX), _ZERO_INDEX).astype(np.int64)


def quantised_mu(index: int) -> float:
    """The μ at a grid index."""
    if index in (_ZERO_INDEX, _INFINITE_INDEX):
        return 0.0 if index == _ZERO_INDEX else float("inf")
    return float(2.0 ** (index / _STEPS_PER_OCTAVE))


def composition_groups(counts: Mapping[int, int], num_devices: int = 1) -> CompositionGroups:
    """Group rounds by quantised μ, from the number of rounds at each grid index.

    Under fading no two rounds have the same μ, and composing each group of each device takes time. If there are too
    many groups, lower grid indices are raised, never above the highest. The more devices, the fewer groups each may
    have.
    """
    highest, width = max(counts, default=0), 1
    most = min(_MOST_GROUPS, max(1, _MOST_GROUPS_OF_FLEET // num_devices))
    while True:
        groups: dict[int, int] = {}
        for index, count in counts.items():
            raised = highest - (highest - index) // width * width if index > _ZERO_INDEX or most == 1 else _ZERO_INDEX
            groups[raised] = groups.get(raised, 0) + count
        if len(groups) <= most:
            return tuple(sorted(groups.items()))
        width *= 2


@dataclass(frozen=True)
class SubsampledGaussian:
    """Rounds in which a device transmits with this probability, in noise that does not depend on participation.

    `geometry` states what two neighbours' vectors can be: opposite (gradients) or orthogonal (knowledge, which has no
    negative entries).
    """

    probability: float
    geometry: str

    def epsilon(self, groups: CompositionGroups, delta: float, earlier_mu: float = 0.0) -> float:
        """ε of these rounds, composed with earlier Gaussian releases whose participants the server knew."""
        earlier = int(grid_index(np.array(earlier_mu)))
        if _INFINITE_INDEX in (earlier, *(index for index, _ in groups)):
            return float("inf")
        return _epsilon(self, groups, earlier, delta)

    def largest_round_mu(
        self, num_rounds: int, epsilon: FloatArray, delta: FloatArray, earlier_squared_mu: FloatArray
    ) -> FloatArray:
        """The largest quantised μ of a round with which T rounds meet each device's (ε, δ), `[device]`; 0 if none."""
        targets = zip(epsilon, delta, earlier_squared_mu, strict=True)
        return np.array([quantised_mu(self._highest_index(num_rounds, *map(float, target))) for target in targets])

    def _highest_index(self, num_rounds: int, epsilon: float, delta: float, earlier_squared_mu: float) -> int:
        """Search from the limit of many rounds with small μ, in which sampling multiplies the allowed μ by 1/p."""
        if np.isinf(epsilon):
            return _INFINITE_INDEX
        earlier_mu = float(np.sqrt(earlier_squared_mu))

        def fits(index: int) -> bool:
            return self.epsilon(((index, num_rounds),), delta, earlier_mu) <= epsilon

        left = float(gaussian_mu(epsilon, delta)) ** 2 - earlier_squared_mu
        if left <= 0:
            return _ZERO_INDEX
        guess = int(grid_index(np.sqrt(np.array(left) / num_rounds) / self.probability))
        low, high, step = guess - 1, guess, 1
        while high < _INFINITE_INDEX and fits(high):
            low, high, step = high, high + step, 2 * step
        while not fits(low):
            if low <= _ZERO_INDEX:
                return _ZERO_INDEX
            low, high, step = max(low - step, _ZERO_INDEX), low, 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low


@dataclass(frozen=True)
class _Round:
    """δ of one round as a function of ε; hashable, and so equal rounds share cached values."""

    mechanism: SubsampledGaussian
    index: int

    def __call__(self, epsilon: FloatArray) -> FloatArray:
        return delta_of_round(epsilon, self.mechanism.probability, quantised_mu(self.index), self.mechanism.geometry)


@lru_cache(maxsize=2**16)
def _epsilon(mechanism: SubsampledGaussian, groups: CompositionGroups, earlier: int, delta: float) -> float:
    """ε at δ; cached as well as the distributions, because a ledger asks for every device in every round."""
    return _composed(mechanism, groups, earlier).epsilon(delta)


@lru_cache(maxsize=4096)
def _composed(mechanism: SubsampledGaussian, groups: CompositionGroups, earlier: int) -> Composed:
    rounds = [(_Round(mechanism, index), count) for index, count in groups if index != _ZERO_INDEX]
    if earlier != _ZERO_INDEX:
        rounds.append((_Round(SubsampledGaussian(1.0, mechanism.geometry), earlier), 1))
    return compose(rounds)


def min_participants(num_devices: int, probability: float, failure: float, num_rounds: int = 1) -> int:
    """The largest κ such that at least κ devices participate in **each** of T rounds with probability 1 − δ'.

    Exact by the binomial distribution. Each round may fail with probability δ'/T (union bound).
    """
    _check(probability, failure)
    if num_rounds < 1:
        raise ValueError(f"num_rounds = {num_rounds}: must be at least 1")
    from scipy.stats import binom  # imported here because it takes a third of a second and is rarely needed

    # P(n < κ) ≤ δ'/T: ppf is the smallest n with P(≤ n) ≥ δ'/T, and so P(< ppf) is below δ'/T.
    return int(binom.ppf(failure / num_rounds, num_devices, probability))


@dataclass(frozen=True)
class PublishedBound:
    """(ε, δ) of one round by the published bound, and the κ (`min_participants`) on which it rests."""

    epsilon: float
    delta: float
    min_participants: float


def published_min_participants(num_devices: int, probability: float, failure: float) -> float:
    """κ = pM − √(M ln(1/δ')/2) (Hoeffding): at least κ devices participate with probability 1 − δ'. May be negative."""
    _check(probability, failure)
    return float(probability * num_devices - np.sqrt(num_devices * np.log(1 / failure) / 2))


def published_round(
    num_devices: int,
    probability: float,
    mu_alone: float,
    delta_0: float,
    failure: float,
    accountant: str = "exact",
) -> PublishedBound:
    """The published bound (Mohamed, Chang and Tandon 2021) for one round; ε is infinite if κ ≤ 0.

    `mu_alone` is the shift over the noise of one device; the noise of κ participating devices is counted. ε_0 is by the
    exact Gaussian curve, or by Theorem 2 with the `paper` accountant; ε = ln(1 + (p/(1−δ'))(e^ε_0 − 1)) and
    δ = δ' + pδ_0/(1−δ'). The bound holds for a single round and a server that learns neither which devices participate
    nor how many.
    """
    fewest = published_min_participants(num_devices, probability, failure)
    delta = failure + probability * delta_0 / (1 - failure)
    if fewest <= 0:
        return PublishedBound(float("inf"), delta, fewest)
    if accountant not in ("exact", "paper"):
        raise ValueError(f"accountant = {accountant!r}: must be one of exact, paper")
    mu = mu_alone / np.sqrt(fewest)
    epsilon_0 = gaussian_epsilon(mu, delta_0) if accountant == "exact" else paper_epsilon(mu, delta_0)[0]
    share = min(1.0, probability / (1 - failure))
    return PublishedBound(float(_amplified(float(epsilon_0), share)), delta, fewest)


def published_mu(epsilon: FloatArray, delta: FloatArray, probability: float, num_noises: int | None) -> FloatArray:
    """The μ of all rounds together that the published bound allows for (ε, δ), `[device]`: as printed, not sound.

    Half of δ is the probability δ' of fewer than κ participants; the noise of κ out of `num_noises` devices is counted.
    `num_noises` is None if the noise does not come from the devices. ε_0 is by Theorem 2 for all rounds together, which
    are amplified once. The result is zero if κ ≤ 0, and infinite without a target (ε = ∞).
    """
    failure, counted = np.zeros(len(delta)), np.ones(len(delta))
    if num_noises is not None:
        failure = delta / 2
        fewest = np.array([published_min_participants(num_noises, probability, float(each)) for each in failure])
        counted = np.maximum(fewest, 0.0) / num_noises
    share = np.minimum(1.0, probability / (1 - failure))
    epsilon_0 = epsilon + np.log((1 - (1 - share) * np.exp(-epsilon)) / share)  # ln(1 + (e^ε − 1)/share)
    delta_0 = np.minimum((delta - failure) * (1 - failure) / probability, _LARGEST_DELTA_0)
    # 0 · inf is NaN: without a target no noise needs to be counted.
    return np.asarray(paper_mu(epsilon_0, delta_0) * np.where(np.isinf(epsilon), 1.0, np.sqrt(counted)))


def _amplified(epsilon_0: float, share: float) -> float:
    """ln(1 + share·(e^ε_0 − 1)), computed without overflow in e^ε_0."""
    return float(epsilon_0 + np.log(share + (1 - share) * np.exp(-epsilon_0)))


def _check(probability: float, failure: float = 0.5) -> None:
    if not 0 < probability <= 1:
        raise ValueError(f"probability = {probability}: must be above 0 and at most 1")
    if not 0 < failure < 1:
        raise ValueError(f"failure = {failure}: must lie strictly between 0 and 1")
