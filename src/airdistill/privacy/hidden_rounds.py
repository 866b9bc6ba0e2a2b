"""What rounds cost a device whose coin the server does not see: ε of many rounds, and the μ that they may have.

A round's μ is rounded up to a ladder of 128 rungs an octave, so that rounds and devices fall into few kinds, and each
kind is composed once. `privacy/subsampling.py` says what one round tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from airdistill.arrays import FloatArray, IntArray
from airdistill.privacy.accountant import gaussian_mu
from airdistill.privacy.loss_distribution import Composed, compose
from airdistill.privacy.subsampling import OPPOSITE, ORTHOGONAL, delta_of_round

_RUNGS_PER_OCTAVE = 128
_MOST_KINDS, _MOST_OF_ALL = 8, 800
_ROUNDING = 1e-6  # of a rung: what is planned for a rung stays on it
_SILENT, _UNHIDDEN = -(2**13), 1280  # the rungs of μ = 0 and μ = ∞, or as good as that: 2^10

Kinds = tuple[tuple[int, int], ...]
"""(rung, how many rounds), by rising rung."""


def rung_of(mu: FloatArray) -> IntArray:
    """The lowest rung whose μ is not below, `[device]`."""
    with np.errstate(divide="ignore"):
        place = np.ceil(_RUNGS_PER_OCTAVE * np.log2(mu) - _ROUNDING)
    # Nothing that is sent is so quiet as to cost nothing.
    return np.where(mu > 0, np.clip(place, _SILENT + 1, _UNHIDDEN), _SILENT).astype(np.int64)


def mu_of(rung: int) -> float:
    if rung in (_SILENT, _UNHIDDEN):
        return 0.0 if rung == _SILENT else float("inf")
    return float(2.0 ** (rung / _RUNGS_PER_OCTAVE))


@dataclass(frozen=True)
class HiddenCoin:
    """A device sends what it has with this probability in a round, in noise that is there in any case.

    `geometry` says what two neighbours' vectors can be like: opposite (gradients), or orthogonal (knowledge, which has
    no entry below zero).
    """

    probability: float
    geometry: str

    @classmethod
    def for_payload(cls, probability: float, payload: str) -> HiddenCoin:
        return cls(probability, OPPOSITE if payload == "gradient" else ORTHOGONAL)

    def epsilon(self, kinds: Kinds, delta: float, earlier_mu: float = 0.0) -> float:
        """Of so many rounds on each rung, and of Gaussian releases before of which the server knew who took part."""
        earlier = int(rung_of(np.array(earlier_mu)))
        if _UNHIDDEN in (earlier, *(rung for rung, _ in kinds)):
            return float("inf")
        return _epsilon(self, kinds, earlier, delta)

    def largest_round_mu(
        self, num_rounds: int, epsilon: FloatArray, delta: FloatArray, earlier_squared_mu: FloatArray
    ) -> FloatArray:
        """The μ of the highest rung that T rounds may have of each device's (ε, δ), `[device]`; 0 if none is left."""
        targets = zip(epsilon, delta, earlier_squared_mu, strict=True)
        return np.array([mu_of(self._highest_rung(num_rounds, *map(float, target))) for target in targets])

    def _highest_rung(self, num_rounds: int, epsilon: float, delta: float, earlier_squared_mu: float) -> int:
        """Looked for from where many quiet rounds would have it: there a coin is worth 1/p of μ."""
        if np.isinf(epsilon):
            return _UNHIDDEN
        earlier_mu = float(np.sqrt(earlier_squared_mu))

        def fits(rung: int) -> bool:
            return self.epsilon(((rung, num_rounds),), delta, earlier_mu) <= epsilon

        left = float(gaussian_mu(epsilon, delta)) ** 2 - earlier_squared_mu
        if left <= 0:
            return _SILENT
        guess = int(rung_of(np.sqrt(np.array(left) / num_rounds) / self.probability))
        low, high, step = guess - 1, guess, 1
        while high < _UNHIDDEN and fits(high):
            low, high, step = high, high + step, 2 * step
        while not fits(low):
            if low <= _SILENT:
                return _SILENT
            low, high, step = max(low - step, _SILENT), low, 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low


@dataclass(frozen=True)
class _Round:
    """δ of one round as a function of ε that is the same object to a cache whenever it is the same."""

    coin: HiddenCoin
    rung: int

    def __call__(self, epsilon: FloatArray) -> FloatArray:
        return delta_of_round(epsilon, self.coin.probability, mu_of(self.rung), self.coin.geometry)


@lru_cache(maxsize=2**16)
def _epsilon(coin: HiddenCoin, kinds: Kinds, earlier: int, delta: float) -> float:
    """Kept beside the distributions: a ledger asks for every device's in every round."""
    return _composed(coin, kinds, earlier).epsilon(delta)


@lru_cache(maxsize=4096)
def _composed(coin: HiddenCoin, kinds: Kinds, earlier: int) -> Composed:
    rounds = [(_Round(coin, rung), count) for rung, count in kinds if rung != _SILENT]
    if earlier != _SILENT:
        rounds.append((_Round(HiddenCoin(1.0, coin.geometry), earlier), 1))
    return compose(rounds)


def in_few_kinds(counts: Mapping[int, int], num_devices: int = 1) -> Kinds:
    """Rounds by rung, and how many; where there are many rungs, lower ones are raised, and never above the highest.

    Where a channel decides how loud rounds are no two are alike, and each kind of each device takes its time to
    compose: the more devices there are the fewer kinds each may have.
    """
    highest, width, most = max(counts, default=0), 1, min(_MOST_KINDS, max(1, _MOST_OF_ALL // num_devices))
    while True:
        found: dict[int, int] = {}
        for rung, count in counts.items():
            raised = highest - (highest - rung) // width * width if rung > _SILENT or most == 1 else _SILENT
            found[raised] = found.get(raised, 0) + count
        if len(found) <= most:
            return tuple(sorted(found.items()))
        width *= 2
