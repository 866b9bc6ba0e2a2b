"""What a ledger has charged for rounds whose coins the server does not see, device by device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from airdistill.arrays import FloatArray, IntArray
from airdistill.privacy.hidden_rounds import HiddenCoin, rung_of
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
    def accountant(self) -> str: ...

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
        kinds: dict[int, int] = {}
        for rungs, count in self._runs[trust]:
            kinds[int(rungs[device])] = kinds.get(int(rungs[device]), 0) + count
        return self.coin.epsilon(tuple(sorted(kinds.items())), float(delta), float(np.sqrt(earlier_squared_mu)))

    def epsilon(self, trust: str, delta: FloatArray, earlier_squared_mu: FloatArray) -> FloatArray:
        """Of every device so far, `[device]`."""
        paid = enumerate(zip(delta, earlier_squared_mu, strict=True))
        return np.array([self.epsilon_of(device, trust, *of_device) for device, of_device in paid])

    def worst_off(self, trust: str, delta: FloatArray, earlier_squared_mu: FloatArray) -> list[int]:
        """Devices one of whom has the largest ε: those whom nobody exceeds in all that they have paid."""
        paid = np.stack([*(rungs for rungs, _ in self._runs[trust]), earlier_squared_mu, -delta])
        found: list[int] = []
        for device in np.lexsort(paid)[::-1]:
            if not any((paid[:, device] <= paid[:, other]).all() for other in found):
                found.append(int(device))
        return found

    def over_budget(self, promised: Budget, earlier_squared_mu: FloatArray) -> tuple[int, float] | None:
        """The device that is furthest over what it was promised, and its ε; None if all can pay.

        No more rounds than were planned by the exact accountant, none dearer than planned, cost no more than the
        plan: that need not be composed again.
        """
        runs, planned = self._runs[promised.trust], int(promised.terms["planned_rounds"])
        highest = np.max([rungs for rungs, _ in runs], axis=0)
        may_pay = highest <= rung_of(promised.mu / np.sqrt(planned))
        if promised.accountant == "exact" and sum(count for _, count in runs) <= planned and may_pay.all():
            return None
        epsilon, asked = self.epsilon(promised.trust, promised.delta, earlier_squared_mu), np.isfinite(promised.epsilon)
        times = np.where(asked, epsilon / np.where(asked, promised.epsilon, 1.0), 0.0)
        device = int(np.argmax(times))
        return (device, float(epsilon[device])) if times[device] > 1 + _TOLERANCE else None
