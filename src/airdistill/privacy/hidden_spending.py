"""What a ledger has charged for rounds whose coins the server does not see, device by device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from airdistill.arrays import FloatArray, IntArray
from airdistill.privacy.hidden_rounds import HiddenCoin, in_few_kinds, rung_of
from airdistill.privacy.release import TRUST_MODELS, Release

_TOLERANCE = 1e-8  # relative, of ε

Runs = tuple[tuple[IntArray, int], ...]
"""Rungs of a round `[device]`, and how many such rounds there were in turn."""


class Budget(Protocol):
    """Of a ledger's opening, what every device was promised and for how many rounds."""

    @property
    def epsilon(self) -> FloatArray: ...

    @property
    def delta(self) -> FloatArray: ...

    @property
    def mu(self) -> FloatArray: ...

    @property
    def trust(self) -> str: ...

    @property
    def terms(self) -> Mapping[str, Any]: ...


class HiddenSpending:
    """Every device's rounds so far under each trust model, for neighbours that differ in a whole device's data."""

    def __init__(self, coin: HiddenCoin, runs: Mapping[str, Runs] | None = None) -> None:
        self.coin = coin
        self._runs: dict[str, Runs] = dict.fromkeys(TRUST_MODELS, ()) if runs is None else dict(runs)

    @classmethod
    def promised_by(cls, payload: str, terms: Mapping[str, Any]) -> HiddenSpending | None:
        """None where the terms of a run do not say that its coins are hidden."""
        if not terms.get("participation_hidden", False):
            return None
        return cls(HiddenCoin.for_payload(float(terms["participation"]), payload))

    def after(self, release: Release) -> HiddenSpending:
        """With one more round."""
        return HiddenSpending(self.coin, {trust: self._with(release, trust) for trust in TRUST_MODELS})

    def _with(self, release: Release, trust: str) -> Runs:
        runs, rungs = self._runs[trust], rung_of(np.sqrt(release.cost("device", trust).sum(axis=1)))
        if runs and np.array_equal(runs[-1][0], rungs):
            return (*runs[:-1], (rungs, runs[-1][1] + 1))
        return (*runs, (rungs, 1))

    def epsilon_of(self, device: int, trust: str, delta: float, earlier_squared_mu: float) -> float:
        kinds, num_devices = Counter[int](), 1
        for rungs, count in self._runs[trust]:
            kinds[int(rungs[device])] += count
            num_devices = len(rungs)
        return self.coin.epsilon(in_few_kinds(kinds, num_devices), float(delta), float(np.sqrt(earlier_squared_mu)))

    def epsilon(self, trust: str, delta: FloatArray, earlier_squared_mu: FloatArray) -> FloatArray:
        """Of every device so far, `[device]`."""
        paid = enumerate(zip(delta, earlier_squared_mu, strict=True))
        return np.array([self.epsilon_of(device, trust, *of_device) for device, of_device in paid])

    def highest_epsilon(self, trust: str, delta: FloatArray, earlier_squared_mu: FloatArray) -> float:
        """An ε that no device has exceeded, from one composition and not one for each.

        In which order rounds came does not matter. So among devices of the same δ the dearest rounds of any are put
        together, then the next, and so on: nobody has paid more than whoever had all of them.
        """
        rounds = [np.broadcast_to(rungs, (count, len(delta))) for rungs, count in self._runs[trust]]
        by_price = np.sort(np.concatenate(rounds), axis=0)
        terms, group = np.unique(np.stack([delta, earlier_squared_mu]), axis=1, return_inverse=True)
        dearest = np.stack([by_price[:, group == each].max(axis=1) for each in range(terms.shape[1])], axis=1)
        paid = np.vstack([dearest, terms[1], -terms[0]])
        compared: list[int] = []
        for each in np.lexsort(paid)[::-1]:
            if not any((paid[:, each] <= paid[:, other]).all() for other in compared):
                compared.append(int(each))
        return max(
            self.coin.epsilon(in_few_kinds(Counter(dearest[:, each].tolist())), *_delta_and_mu(terms[:, each]))
            for each in compared
        )

    def over_budget(self, promised: Budget, earlier_squared_mu: FloatArray) -> tuple[int, float] | None:
        """The device that is furthest over what it was promised, and its ε; None if all can pay.

        No more rounds than were planned, none dearer than planned, cost no more than the plan: if all can pay for that
        they need not be composed.
        """
        runs, planned = self._runs[promised.trust], int(promised.terms["planned_rounds"])
        rungs = rung_of(promised.mu / np.sqrt(planned))
        if sum(count for _, count in runs) <= planned and (np.max([each for each, _ in runs], axis=0) <= rungs).all():
            as_planned = HiddenSpending(self.coin, {promised.trust: ((rungs, planned),)})
            if as_planned._furthest_over(promised, earlier_squared_mu) is None:
                return None
        return self._furthest_over(promised, earlier_squared_mu)

    def _furthest_over(self, promised: Budget, earlier_squared_mu: FloatArray) -> tuple[int, float] | None:
        epsilon, asked = self.epsilon(promised.trust, promised.delta, earlier_squared_mu), np.isfinite(promised.epsilon)
        times = np.where(asked, epsilon / np.where(asked, promised.epsilon, 1.0), 0.0)
        device = int(np.argmax(times))
        return (device, float(epsilon[device])) if times[device] > 1 + _TOLERANCE else None


def _delta_and_mu(terms: FloatArray) -> tuple[float, float]:
    return float(terms[0]), float(np.sqrt(terms[1]))
