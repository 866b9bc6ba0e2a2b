"""What random participation hides: every device takes part in a round with probability p, by its own coin.

**Neighbours** differ in what one device holds; coins are nobody's data. With the others' coins known, the server sees
p·N(a) + (1−p)·N(0) of a device in one world and p·N(b) + (1−p)·N(0) in the other, in units of the noise: replace, not
add or remove, for in both worlds the device is there with probability p. For α = e^ε ≥ 1 and c = (1−p)(α−1)/p

    δ(ε) = p·E_{x~N(0)} (e^(a·x − ‖a‖²/2) − α e^(b·x − ‖b‖²/2) − c)₊.

Only ‖a‖, ‖b‖ and a·b count, and δ falls as a·b rises: the derivative is E ∂²f/∂(a·x)∂(b·x) (Plackett), and f is the
positive part of something that rises in one and falls in the other. So the worst pair has the least a·b that can be:

* `OPPOSITE`, any vectors of norm m: b = −a, dp_accounting's REPLACE_ONE. The best test is a half line, so that
  δ = p·max_τ (Φ(τ+m) − αΦ(τ−m) − cΦ(τ)), which rises with either norm;
* `ORTHOGONAL`, vectors without negative entries (knowledge): a·b = 0. Longer ones tell more, for each lies on an axis
  of its own, which noise and scaling make shorter; the expectation over one axis is in closed form.

Both are the same with the worlds exchanged, and at p = 1 the Gaussian mechanism of μ = ‖a − b‖, by which rounds are
told here: 2m for opposite vectors, √2 m for orthogonal ones. Rounds compose (`privacy/pld.py`).

The noise must be the same whether the device is there or not. **Noise of those who are there alone** tells by its
strength how many they are: the server is then taken to know the number n, and who they are is all that is hidden
(`delta_with_noise_of_those_there`).

What rounds cost a device whose coin the server does not see: ε of many rounds, and the μ that they may have.

A round's μ is rounded up to a ladder of 128 rungs an octave, so that rounds and devices fall into few kinds, and each
kind is composed once. `privacy/poisson_sampling.py` says what one round tells.
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
_LOUDEST = 30.0  # norm over noise up to which a coin is looked at: beyond, presence shows
_HALF = 0.5  # what a δ_0 of the published form never goes beyond
_LEAST_MASS = 1e-25  # of a count: rarer ones are charged as if they hid nothing


@dataclass(frozen=True)
class Amplified:
    """(ε, δ) of one round as published; `fewest` is the κ that it rests on."""

    epsilon: float
    delta: float
    fewest: float


def published_fewest(num_devices: int, probability: float, failure: float) -> float:
    """κ = pM − √(M ln(1/δ')/2), by Hoeffding: with probability 1 − δ' at least so many take part. May be below 0."""
    _check(probability, failure)
    return float(probability * num_devices - np.sqrt(num_devices * np.log(1 / failure) / 2))


def published_round(
    num_devices: int,
    probability: float,
    mu_alone: float,
    delta_0: float,
    failure: float,
    accountant: str = "exact",
) -> Amplified:
    """The published form (Mohamed, Chang and Tandon 2021) of one round, ε infinite where κ ≤ 0 says nothing.

    `mu_alone` is the shift over one device's own noise; those who take part add κ such noises. ε_0 is by the exact
    Gaussian curve, or by Theorem 2 with the `paper` accountant; ε = ln(1 + (p/(1−δ'))(e^ε_0 − 1)) and
    δ = δ' + pδ_0/(1−δ'). It is about one round and about a server that can tell neither who is there nor how many.
    """
    fewest = published_fewest(num_devices, probability, failure)
    delta = failure + probability * delta_0 / (1 - failure)
    if fewest <= 0:
        return Amplified(float("inf"), delta, fewest)
    if accountant not in ("exact", "paper"):
        raise ValueError(f"accountant = {accountant!r}: must be one of exact, paper")
    mu = mu_alone / np.sqrt(fewest)
    epsilon_0 = gaussian_epsilon(mu, delta_0) if accountant == "exact" else paper_epsilon(mu, delta_0)[0]
    share = min(1.0, probability / (1 - failure))
    return Amplified(float(_amplified(float(epsilon_0), share)), delta, fewest)


def published_mu(epsilon: FloatArray, delta: FloatArray, probability: float, num_noises: int | None) -> FloatArray:
    """The μ of all rounds together that the published form grants for (ε, δ), `[device]`: as printed, and not sound.

    Half of δ is the chance δ' that fewer than κ take part, whose noises alone are counted of `num_noises`; None where
    the noise is not the devices'. ε_0 is by Theorem 2 for all rounds at once, which are amplified once. Zero where
    κ ≤ 0 says nothing.
    """
    failure, counted = np.zeros(len(delta)), np.ones(len(delta))
    if num_noises is not None:
        failure = delta / 2
        fewest = np.array([published_fewest(num_noises, probability, float(each)) for each in failure])
        counted = np.maximum(fewest, 0.0) / num_noises
    share = np.minimum(1.0, probability / (1 - failure))
    epsilon_0 = epsilon + np.log((1 - (1 - share) * np.exp(-epsilon)) / share)  # ln(1 + (e^ε − 1)/share)
    delta_0 = np.minimum((delta - failure) * (1 - failure) / probability, _HALF)
    return np.asarray(paper_mu(epsilon_0, delta_0) * np.sqrt(counted))


def fewest_participants(num_devices: int, probability: float, failure: float, num_rounds: int = 1) -> int:
    """The largest κ such that, but for a chance of δ', at least κ take part in **each** of T rounds: exact binomial.

    A round may fail with δ'/T: rounds are independent, and the sum of their chances is never too small.
    """
    _check(probability, failure)
    if num_rounds < 1:
        raise ValueError(f"num_rounds = {num_rounds}: must be at least 1")
    from scipy.stats import binom  # a third of a second to load, which few need

    # P(n < κ) ≤ δ'/T; ppf is the least n with P(≤ n) ≥ δ'/T, so that P(< ppf) is below it.
    return int(binom.ppf(failure / num_rounds, num_devices, probability))


def delta_of_round(epsilon: ArrayLike, probability: float, mu: float, geometry: str) -> FloatArray:
    """δ of one round at each ε ≥ 0, `[ε]`, with noise that does not depend on who is there: the worst pair above.

    `mu` is how far apart two neighbours' vectors can be, over the noise.
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
    if norm > _LOUDEST:
        return np.asarray(gaussian_delta(epsilon, mu))  # as if presence were seen: joint convexity, and always a bound
    # At the best τ densities are equal: e^(−mτ−m²/2) = αe^(mτ−m²/2) + c, a quadratic in z = e^(mτ), divided by α.
    share = (1 - probability) / probability * -np.expm1(-epsilon) * np.exp(norm**2 / 2)  # (c/α)e^(m²/2)
    tau = (np.log(2) - epsilon - np.log(share + np.hypot(share, 2 * np.exp(-epsilon / 2)))) / norm  # ln z/m
    log_alpha, log_c = epsilon, epsilon + _log(-np.expm1(-epsilon)) + np.log((1 - probability) / probability)
    taken = np.exp(log_alpha + log_ndtr(tau - norm)) + np.exp(log_c + log_ndtr(tau))
    return np.asarray(ndtr(tau + norm) - taken)


def _orthogonal(epsilon: FloatArray, probability: float, mu: float) -> FloatArray:
    """E_v (Φ(m − τ(v)) − γ(v)Φ(−τ(v))), m = μ/√2, γ = αe^(mv−m²/2) + c, τ = (ln γ + m²/2)/m, `[ε]`."""
    norm = mu / np.sqrt(2)
    if norm > _LOUDEST:
        return np.asarray(gaussian_delta(epsilon, mu))  # as above
    # Analytic but for ln γ's branch points, π/m off the axis, and Gaussian in its tails: with steps h the trapezoidal
    # rule is off by about e^(−2π²/(m h)), which these nodes keep below e^−49.
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


def delta_with_noise_of_those_there(
    epsilon: ArrayLike, num_devices: int, probability: float, mu_alone: float
) -> FloatArray:
    """δ of one round at each ε ≥ 0, `[ε]`, where only those who are there add noise, each as much as the others.

    Given their number n, the set is uniform, and a device in it can be exchanged for one that is not: two contributions
    `mu_alone`/√n apart at most, in the noise of n, and so is it in the other world: by advanced joint convexity (Balle,
    Barthe and Gaboardi 2018) δ_n(ε) ≤ (n/M)·δ(ε_n, μ/√n), e^ε_n = 1 + (e^ε − 1)M/n. The server is told n: Σ_n P(n)·δ_n.
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


def _amplified(epsilon_0: float, share: float) -> float:
    """ln(1 + share·(e^ε_0 − 1)), without an e^ε_0 to overflow."""
    return float(epsilon_0 + np.log(share + (1 - share) * np.exp(-epsilon_0)))


def _check(probability: float, failure: float = 0.5) -> None:
    if not 0 < probability <= 1:
        raise ValueError(f"probability = {probability}: must be above 0 and at most 1")
    if not 0 < failure < 1:
        raise ValueError(f"failure = {failure}: must lie strictly between 0 and 1")


_STEPS_PER_OCTAVE = 128
_MOST_GROUPS, _MOST_OF_ALL = 8, 800
_ROUNDING = 1e-6  # of a rung: what is planned for a rung stays on it
_ZERO_INDEX, _INFINITE_INDEX = -(2**13), 1280  # the rungs of μ = 0 and μ = ∞, or as good as that: 2^10

CompositionGroups = tuple[tuple[int, int], ...]
"""(rung, how many rounds), by rising rung."""


def grid_index(mu: FloatArray) -> IntArray:
    """The lowest rung whose μ is not below, `[device]`."""
    with np.errstate(divide="ignore"):
        place = np.ceil(_STEPS_PER_OCTAVE * np.log2(mu) - _ROUNDING)
    # Nothing that is sent is so quiet as to cost nothing.
    return np.where(mu > 0, np.clip(place, _ZERO_INDEX + 1, _INFINITE_INDEX), _ZERO_INDEX).astype(np.int64)


def mu_of(rung: int) -> float:
    if rung in (_ZERO_INDEX, _INFINITE_INDEX):
        return 0.0 if rung == _ZERO_INDEX else float("inf")
    return float(2.0 ** (rung / _STEPS_PER_OCTAVE))


@dataclass(frozen=True)
class SubsampledGaussian:
    """A device sends what it has with this probability in a round, in noise that is there in any case.

    `geometry` says what two neighbours' vectors can be like: opposite (gradients), or orthogonal (knowledge, which has
    no entry below zero).
    """

    probability: float
    geometry: str

    @classmethod
    def for_payload(cls, probability: float, payload: str) -> SubsampledGaussian:
        return cls(probability, OPPOSITE if payload == "gradient" else ORTHOGONAL)

    def epsilon(self, kinds: CompositionGroups, delta: float, earlier_mu: float = 0.0) -> float:
        """Of so many rounds on each rung, and of Gaussian releases before of which the server knew who took part."""
        earlier = int(grid_index(np.array(earlier_mu)))
        if _INFINITE_INDEX in (earlier, *(rung for rung, _ in kinds)):
            return float("inf")
        return _epsilon(self, kinds, earlier, delta)

    def largest_round_mu(
        self, num_rounds: int, epsilon: FloatArray, delta: FloatArray, earlier_squared_mu: FloatArray
    ) -> FloatArray:
        """The μ of the highest rung that T rounds may have of each device's (ε, δ), `[device]`; 0 if none is left."""
        targets = zip(epsilon, delta, earlier_squared_mu, strict=True)
        return np.array([mu_of(self._highest_index(num_rounds, *map(float, target))) for target in targets])

    def _highest_index(self, num_rounds: int, epsilon: float, delta: float, earlier_squared_mu: float) -> int:
        """Looked for from where many quiet rounds would have it: there a coin is worth 1/p of μ."""
        if np.isinf(epsilon):
            return _INFINITE_INDEX
        earlier_mu = float(np.sqrt(earlier_squared_mu))

        def fits(rung: int) -> bool:
            return self.epsilon(((rung, num_rounds),), delta, earlier_mu) <= epsilon

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
    """δ of one round as a function of ε that is the same object to a cache whenever it is the same."""

    coin: SubsampledGaussian
    rung: int

    def __call__(self, epsilon: FloatArray) -> FloatArray:
        return delta_of_round(epsilon, self.coin.probability, mu_of(self.rung), self.coin.geometry)


@lru_cache(maxsize=2**16)
def _epsilon(coin: SubsampledGaussian, kinds: CompositionGroups, earlier: int, delta: float) -> float:
    """Kept beside the distributions: a ledger asks for every device's in every round."""
    return _composed(coin, kinds, earlier).epsilon(delta)


@lru_cache(maxsize=4096)
def _composed(coin: SubsampledGaussian, kinds: CompositionGroups, earlier: int) -> Composed:
    rounds = [(_Round(coin, rung), count) for rung, count in kinds if rung != _ZERO_INDEX]
    if earlier != _ZERO_INDEX:
        rounds.append((_Round(SubsampledGaussian(1.0, coin.geometry), earlier), 1))
    return compose(rounds)


def composition_groups(counts: Mapping[int, int], num_devices: int = 1) -> CompositionGroups:
    """Rounds by rung, and how many; where there are many rungs, lower ones are raised, and never above the highest.

    Where a channel decides how loud rounds are no two are alike, and each kind of each device takes its time to
    compose: the more devices there are the fewer kinds each may have.
    """
    highest, width, most = max(counts, default=0), 1, min(_MOST_GROUPS, max(1, _MOST_OF_ALL // num_devices))
    while True:
        found: dict[int, int] = {}
        for rung, count in counts.items():
            raised = highest - (highest - rung) // width * width if rung > _ZERO_INDEX or most == 1 else _ZERO_INDEX
            found[raised] = found.get(raised, 0) + count
        if len(found) <= most:
            return tuple(sorted(found.items()))
        width *= 2
