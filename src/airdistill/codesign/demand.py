"""The counted noise that privacy demands of shared knowledge: for all rounds alike, or from what is left to spend."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.codesign.class_budget import noise_for_budget, own_noise_for_budget
from airdistill.codesign.convergence import class_shares
from airdistill.codesign.fleet import RealisedFleet
from airdistill.privacy.ledger import BudgetExceeded
from airdistill.privacy.sensitivity import (
    JOINT_MODELS,
    AccumulatedShift,
    ConstantShift,
    Shift,
    TrajectoryDynamics,
    classes_moved,
    required_for_shift,
)


class Demand(Protocol):
    """Noise that privacy asks for, `[device, row]`, at every device's usual weight."""

    @property
    def shift(self) -> Shift: ...

    @property
    def is_linear(self) -> bool:
        """Whether T rounds ask for T times what one asks for."""

    def of_rounds(self, num_rounds: int) -> FloatArray:
        """The same in each of T rounds."""

    def of_rest(self, num_rounds: int, round_index: int, spent: FloatArray) -> FloatArray:
        """In round t of T, when the rounds before have cost `spent` `[device, row]`."""


@dataclass(frozen=True)
class OneVectorDemand:
    """Of one vector a round, whose squared shift is always the same: T·shift/μ² in each."""

    shift: ConstantShift
    mu: FloatArray
    is_linear = True

    def of_rounds(self, num_rounds: int) -> FloatArray:
        return np.asarray(self.shift.after(num_rounds) / self.mu[:, None] ** 2)

    def of_rest(self, num_rounds: int, round_index: int, spent: FloatArray) -> FloatArray:
        squared_mu = self.mu[:, None] ** 2
        # Who asked for no privacy may have spent without limit, and has no less left.
        left = squared_mu - np.where(np.isinf(squared_mu), 0.0, spent)
        _check_left(left[:, 0])
        return np.asarray(self.shift.after(num_rounds - round_index + 1) / left)


@dataclass
class ClassDemand:
    """What a sensitivity model demands of a fleet, `[device, class]`, at every device's usual weight.

    `split` says that a joint model's budget is shared out over the classes to make Σ_k α_k v_k least, and not equally.
    With `alone` each device counts on noise of its own. `floor` `[class]` is noise that is there anyway.
    """

    fleet: RealisedFleet
    model: str
    relabel: bool
    dynamics: TrajectoryDynamics
    split: bool = False
    alone: bool = False
    floor: FloatArray | None = None
    _latest: tuple[tuple[int, int], FloatArray, FloatArray] | None = field(default=None, init=False, compare=False)

    @cached_property
    def shift(self) -> AccumulatedShift:
        return AccumulatedShift(self.fleet.class_counts, self.model, self.dynamics)

    @cached_property
    def _shift_so_far(self) -> AccumulatedShift:
        # One of its own: going back and forth between early and late rounds would start over each time.
        return AccumulatedShift(self.fleet.class_counts, self.model, self.dynamics)

    def of_rounds(self, num_rounds: int) -> FloatArray:
        """The same in each of T rounds."""
        shift, fleet = self.shift.after(num_rounds), self.fleet
        if self.split and self.model in JOINT_MODELS:
            if self.is_linear:
                return num_rounds * self._split_of_one_round
            return self._split(shift, fleet.mu**2)
        return required_for_shift(shift, fleet.class_counts, fleet.mu, self.model, self.relabel)

    @property
    def is_linear(self) -> bool:
        """Whether T rounds ask for T times what one asks for."""
        return self.floor is None and self.shift.linear_from(2) == 1

    @cached_property
    def _split_of_one_round(self) -> FloatArray:
        return self._split(self.shift.after(1), self.fleet.mu**2)

    def of_rest(self, num_rounds: int, round_index: int, spent: FloatArray) -> FloatArray:
        """In round t of T, when the rounds before have cost `spent` `[device, class]`: the carry-over.

        req_ik(t) = n_i Σ_{τ≥t}(w s)²/(μ_i² − spent), spent per class, or pooled for joint models. If every later round
        then spends its share at most, no device ever spends more than μ_i².
        """
        asked_for = (num_rounds, round_index)
        if self._latest is None or self._latest[0] != asked_for or self._latest[1] is not spent:
            # A round's forecast and its design ask the same, and sharing a budget out takes milliseconds.
            self._latest = (asked_for, spent, self._of_rest(num_rounds, round_index, spent))
        return self._latest[2]

    def _of_rest(self, num_rounds: int, round_index: int, spent: FloatArray) -> FloatArray:
        rest = self.shift.after(num_rounds)
        if round_index > 1:
            rest = rest - self._shift_so_far.after(round_index - 1)
        # Who asked for no privacy may have spent without limit, and has no less left.
        squared_mu = self.fleet.mu[:, None] ** 2
        counted = np.where(np.isinf(squared_mu), 0.0, spent)
        share = classes_moved(self.fleet.class_counts, self.model, self.relabel)[:, None]
        if self.model not in JOINT_MODELS:
            left = squared_mu / share - counted
            _check_left(left.min(axis=1))
            return np.asarray(rest / left)
        left = squared_mu - counted.sum(axis=1, keepdims=True)
        _check_left(left[:, 0])
        return self._split(rest, left[:, 0]) if self.split else np.asarray(rest * (share / left))

    def _split(self, shift: FloatArray, budget: FloatArray) -> FloatArray:
        importance = class_shares(self.fleet.class_counts).sum(axis=0)
        if self.alone:
            return own_noise_for_budget(shift, budget, importance)
        needed = noise_for_budget(shift, budget, importance, self.floor)
        return np.where(shift > 0, needed, 0.0)


def _check_left(left: FloatArray) -> None:
    if not (left > 0).all():
        device = int(np.argmin(left))
        raise BudgetExceeded(f"device {device} has nothing left of its privacy budget: it can pay for no more rounds")
