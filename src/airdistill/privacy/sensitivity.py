"""L2 sensitivity of what a device sends, and the noise that T rounds require.

| model        | L2 sensitivity of a class mean | classes moved | valid if                                      |
|--------------|--------------------------------|---------------|-----------------------------------------------|
| `paper`      | √2/B_i                         | 1             | never in general: eq. (2) divides by B_i^k    |
| `class_mean` | √2/B_i^k                       | 1             | the local model does not depend on the record |
| `trajectory` | min(√2, √2/B_i^k + L2·D_t)     | held classes  | Assumptions 1–3, per-sample clipping at S     |
| `device`     | √2                             | held classes  | always: the diameter of the simplex           |

Neighbours have the same class counts, which are public. With `relabel` the record may also change its label, between
classes that the device holds before and after: two classes move. The last two models include this case.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import FloatArray, divide_or, fields_of

SENSITIVITY_MODELS = ("paper", "class_mean", "trajectory", "device")
JOINT_MODELS = ("trajectory", "device")
SIMPLEX_DIAMETER = np.sqrt(2.0)


@dataclass(frozen=True)
class TrajectoryDynamics:
    """Parameters of local training for the `trajectory` model; `local_epochs` = 0 is one full-batch step per round."""

    initial_lr: float
    grad_lipschitz: float
    model_lipschitz: float
    grad_norm_bound: float
    local_epochs: int = 0
    batch_size: int = 1
    schedule: str = "inverse_sqrt"
    optimizer: str = "sgd"

    @classmethod
    def of(cls, given: Any) -> TrajectoryDynamics:
        """Read the fields from a mapping or from an object with these attributes."""
        return given if isinstance(given, cls) else cls(**fields_of(given, cls))

    def parameter_drift(self, samples_per_device: FloatArray) -> Iterator[FloatArray]:
        """D_1, D_2, …: the largest distance between two neighbours' parameters when round t starts, `[device]`.

        In an epoch of n steps the record is in one batch of b samples: D ← (1+ηL1)^n D + (1+ηL1)^(n−1)·2ηS/b. In a last
        batch of only r samples a record weighs more, but no step follows: 2ηS/r. D may be infinite, and is for other
        optimisers: the bound is that of plain gradient steps. All schedules stay below η0.
        """
        full_batch = self.local_epochs == 0
        batch = samples_per_device if full_batch else np.minimum(float(self.batch_size), samples_per_device)
        num_steps = np.ceil(samples_per_device / batch)
        last_batch = samples_per_device - (num_steps - 1) * batch
        drift = np.zeros(len(samples_per_device))
        for round_index in itertools.count(1):
            yield drift
            if self.optimizer != "sgd":
                drift = np.full(len(samples_per_device), np.inf)
                continue
            lr = self.initial_lr / (np.sqrt(round_index) if self.schedule == "inverse_sqrt" else 1.0)
            with np.errstate(over="ignore", invalid="ignore"):
                growth = (1 + lr * self.grad_lipschitz) ** num_steps
                early = growth / (1 + lr * self.grad_lipschitz) / batch
                kick = 2 * lr * self.grad_norm_bound * np.maximum(early, 1 / last_batch)
                for _ in range(max(1, self.local_epochs)):
                    # Zero drift stays zero, even if the growth factor overflows.
                    drift = np.where(drift > 0, growth * drift, 0.0) + kick


def aggregation_weights(class_counts: ArrayLike) -> FloatArray:
    """w_i^k = B_i^k/B^k, eq. (3), `[device, class]`; zero in a class that no device holds."""
    counts = _checked_counts(class_counts)
    return divide_or(counts, counts.sum(axis=0), 0.0)


def knowledge_sensitivity(
    class_counts: ArrayLike,
    model: str,
    parameter_drift: FloatArray | None = None,
    model_lipschitz: float = 0.0,
) -> FloatArray:
    """L2 sensitivity of every class mean, `[device, class]`; zero if a device does not hold the class.

    `trajectory` needs the drift D_t `[device]` of the round and L2; the default is the first round, D_1 = 0. The record
    may belong to any class, and so every class includes the record's own share √2/B_i^k.
    """
    counts = _checked_counts(class_counts)
    if model == "paper":
        # Lemma 1 as printed.
        per_class = np.broadcast_to(SIMPLEX_DIAMETER / counts.sum(axis=1, keepdims=True), counts.shape)
    elif model == "class_mean":
        per_class = divide_or(np.array(SIMPLEX_DIAMETER), counts, 0.0)
    elif model == "trajectory":
        own_share = divide_or(np.array(SIMPLEX_DIAMETER), counts, 0.0)
        drift = np.zeros(len(counts)) if parameter_drift is None else np.asarray(parameter_drift)
        with np.errstate(over="ignore"):
            moved = own_share + model_lipschitz * drift[:, None]
        per_class = np.minimum(SIMPLEX_DIAMETER, moved)
    elif model == "device":
        per_class = np.full(counts.shape, SIMPLEX_DIAMETER)
    else:
        raise ValueError(f"sensitivity = {model!r}: must be one of {', '.join(SENSITIVITY_MODELS)}")
    return np.where(counts > 0, per_class, 0.0)


def classes_moved(class_counts: ArrayLike, model: str, relabel: bool) -> FloatArray:
    """n_i, the number of classes that differ between two neighbours, `[device]`."""
    counts = _checked_counts(class_counts)
    if model in JOINT_MODELS:
        return np.asarray(np.count_nonzero(counts, axis=1), dtype=np.float64)
    return np.full(len(counts), 2.0 if relabel else 1.0)


def gradient_sensitivity(samples_per_device: ArrayLike, model: str, clip_norm: float) -> FloatArray:
    """L2 sensitivity of a mean of per-sample gradients clipped at C, `[device]`: 2C for a whole device, else 2C/B_i.

    The model is public, and so the bound for one record holds in every round for any training: the three record-level
    models coincide.
    """
    if model not in SENSITIVITY_MODELS:
        raise ValueError(f"sensitivity = {model!r}: must be one of {', '.join(SENSITIVITY_MODELS)}")
    samples = np.asarray(samples_per_device, dtype=np.float64)
    return np.asarray(2 * clip_norm / (np.ones_like(samples) if model == "device" else samples))


def public_rows_sensitivity(most_answers: int) -> float:
    """L2 sensitivity of a whole device's predictions on a public set of which it answers at most V samples: √(2V).

    Let a samples be answered by both neighbours, and b and c by one of them alone: a + b ≤ V and a + c ≤ V. Answers
    have no negative entries and norm at most 1, and so the distance of two answers is at most √2: ‖Q − Q'‖² ≤
    2a + b + c ≤ 2V for any training.
    """
    if most_answers < 1 or most_answers != int(most_answers):
        raise ValueError(f"most_answers = {most_answers}: must be a whole number of at least 1")
    return float(np.sqrt(2.0 * most_answers))


def feature_means_sensitivity(
    class_counts: ArrayLike,
    model: str,
    norm_bound: float,
    sample_bound: float,
    count_norm: float = 0.0,
    unit_distance: float = 2.0,
) -> FloatArray:
    """L2 sensitivity of class means of public features, theory section 10, `[device]`.

    The whole vector is clipped to ρ = `norm_bound` and every sample's features to ρ_s = `sample_bound`. A device:
    2ρ. A record, with declared counts n: its features change within class k, 2ρ_s/√(n_k n), or it moves from k to l,
    (ρ_s/√n)√(1/n_k + 1/n_l), which is never more than the former for the smallest class.

    With private counts the weights τ√(n_k/n), τ = `count_norm`, are sent along, and all n are those that a device
    holds. Two devices' weights have no negative entry and norm τ: they add 2τ². A record that stays in its class moves
    the features by 2ρ_s/√n at most, for a class of one. One that leaves a class and enters another moves each class by
    ρ_s/√n at most, and the weight of each by τ/√n at most.

    `unit_distance` is how far apart two vectors of norm 1 can be: 2, or √2 without negative entries. It takes the place
    of the 2 wherever features are replaced. A record that changes its class is in one sum of D and in another one of
    D', which the sign of its features does not bring closer.
    """
    if model not in SENSITIVITY_MODELS:
        raise ValueError(f"sensitivity = {model!r}: must be one of {', '.join(SENSITIVITY_MODELS)}")
    counts = _checked_counts(class_counts)
    samples, widest = counts.sum(axis=1), unit_distance * norm_bound
    if model == "device":
        return np.full(len(counts), np.sqrt(widest**2 + 2 * count_norm**2))
    if count_norm == 0:
        smallest = np.where(counts > 0, counts, np.inf).min(axis=1)
        return np.asarray(np.minimum(widest, unit_distance * sample_bound / np.sqrt(smallest * samples)))
    same = np.minimum(widest**2, (unit_distance * sample_bound) ** 2 / samples)
    moved = np.minimum(widest**2, 2 * sample_bound**2 / samples) + 2 * count_norm**2 / samples
    return np.asarray(np.sqrt(np.maximum(same, moved)))


class Shift(Protocol):
    """Σ_{t≤T} (w_i s_i,t)² as a function of T."""

    def after(self, num_rounds: int) -> FloatArray:
        """The sum after T rounds, `[device, row]`."""

    def at(self, round_index: int) -> FloatArray:
        """The term of round t, `[device, row]`."""

    def linear_from(self, most: int) -> int:
        """The round from which the sum grows linearly, at most `most`."""


@dataclass(frozen=True)
class ConstantShift:
    """The same squared shift `[device, row]` in every round."""

    squared: FloatArray

    def after(self, num_rounds: int) -> FloatArray:
        _check_rounds(num_rounds)
        return num_rounds * self.squared

    def at(self, round_index: int) -> FloatArray:
        _check_rounds(round_index)
        return self.squared

    def linear_from(self, most: int) -> int:
        return min(1, most)


class AccumulatedShift:
    """Σ_{t≤T} (w_i^k s_ik,t)² as a function of T: the squared shift that the noise of T rounds must protect.

    The sum grows linearly in T. Under `trajectory` the sensitivity increases from round to round until it reaches the
    diameter of the simplex; the sum is linear from then on.
    """

    def __init__(self, class_counts: ArrayLike, model: str, dynamics: Any = None) -> None:
        self._counts = _checked_counts(class_counts)
        self._weights = aggregation_weights(self._counts)
        self._model, self._dynamics = model, None if dynamics is None else TrajectoryDynamics.of(dynamics)
        if model == "trajectory" and self._dynamics is None:
            raise ValueError("sensitivity = trajectory: needs the training dynamics")
        self._restart()

    def after(self, num_rounds: int) -> FloatArray:
        """The sum after T rounds, `[device, class]`; fastest if called with increasing T."""
        _check_rounds(num_rounds)
        if num_rounds < self._round:
            self._restart()
        while self._round < num_rounds and not self._linear:
            self._advance()
        return self._total + (num_rounds - self._round) * self._step

    def at(self, round_index: int) -> FloatArray:
        """(w_i^k s_ik,t)² of round t, `[device, class]`."""
        self.after(round_index)
        return self._step

    def linear_from(self, most: int) -> int:
        """The round from which the sum grows linearly, at most `most`."""
        while self._round < most and not self._linear:
            self._advance()
        return min(self._round, most)

    def _restart(self) -> None:
        self._round = 1
        if self._model == "trajectory":
            assert self._dynamics is not None  # checked in __init__
            self._drifts = self._dynamics.parameter_drift(self._counts.sum(axis=1))
            self._step = self._squared_shift(next(self._drifts))
            self._linear = False
        else:
            self._step = self._squared_shift(None)
            self._linear = True
        self._total = self._step

    def _advance(self) -> None:
        self._step = self._squared_shift(next(self._drifts))
        self._total = self._total + self._step
        self._round += 1
        widest = (self._weights * SIMPLEX_DIAMETER) ** 2
        self._linear = bool((self._step >= widest).all())

    def _squared_shift(self, drift: FloatArray | None) -> FloatArray:
        lipschitz = 0.0 if self._dynamics is None else self._dynamics.model_lipschitz
        sensitivity = knowledge_sensitivity(self._counts, self._model, drift, lipschitz)
        return np.asarray((self._weights * sensitivity) ** 2)


def required_noise_var(
    class_counts: ArrayLike,
    mu: ArrayLike,
    num_rounds: int,
    model: str,
    relabel: bool = False,
    dynamics: Any = None,
) -> FloatArray:
    """req_ik = n_i Σ_t (w_i^k s_ik)²/μ_i², the counted noise per entry that each round needs, `[device, class]`.

    With `paper` and the paper's μ this is the right side of eq. (17) over λ²: 4T (w_i^k)² ρ_i.
    """
    counts = _checked_counts(class_counts)
    shift = AccumulatedShift(counts, model, dynamics).after(num_rounds)
    return required_for_shift(shift, counts, mu, model, relabel)


def required_for_shift(
    squared_shift: FloatArray, class_counts: ArrayLike, mu: ArrayLike, model: str, relabel: bool
) -> FloatArray:
    """The noise that an accumulated squared shift `[device, class]` requires for the μ of each device."""
    share = classes_moved(class_counts, model, relabel)
    target = np.broadcast_to(np.asarray(mu, dtype=np.float64), share.shape)
    if not np.all(target > 0):
        raise ValueError(f"mu = {target[~(target > 0)][0]}: must be greater than 0")
    return np.asarray(squared_shift * (share / target**2)[:, None], dtype=np.float64)


def _check_rounds(num_rounds: int) -> None:
    if num_rounds < 1 or num_rounds != int(num_rounds):
        raise ValueError(f"num_rounds = {num_rounds}: must be a whole number of at least 1")


def _checked_counts(class_counts: ArrayLike) -> FloatArray:
    counts = np.asarray(class_counts, dtype=np.float64)
    if counts.ndim != 2 or counts.size == 0:
        raise ValueError(f"class_counts of shape {counts.shape}: must be [device, class]")
    if not np.all(counts >= 0):
        raise ValueError("class_counts: must not be negative")
    if not np.all(counts.sum(axis=1) > 0):
        raise ValueError(f"class_counts: device {int(np.argmin(counts.sum(axis=1)))} has no data")
    return counts
