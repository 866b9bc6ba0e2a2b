"""How the server estimates the knowledge from what it received: as it is, on the simplex, or filtered over rounds.

All of it is computed from what was released already, so that it costs no privacy (theory section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from airdistill.arrays import BoolArray, FloatArray
from airdistill.codesign.tracking import INITIAL_VARIANCE, filter_step

_ON_SIMPLEX = 1e-12  # a sum this close to one is one but for rounding
_MEMORY = 0.98  # what a round's evidence on the drift is worth a round later
_LEAST_DRIFT = 1e-12


@dataclass(frozen=True)
class Estimate:
    """Knowledge `[class, entry]` to broadcast; not a number for a class that was never heard.

    `expected_error` `[class]` is the receiver's own idea of its squared error per entry before projection, if any.
    """

    knowledge: FloatArray
    expected_error: FloatArray | None = None


class Receiver(Protocol):
    """A receiver of your own needs these; what it remembers between rounds is its state, as arrays by name."""

    def estimate(self, received: FloatArray, noise_var: FloatArray) -> Estimate:
        """From r̂ `[class, entry]`, not a number where a class was not sent, and its noise variance v `[class]`."""

    def state(self) -> dict[str, FloatArray]: ...

    def restore(self, state: dict[str, FloatArray]) -> None: ...


class Projected:
    """The nearest point of the simplex."""

    def estimate(self, received: FloatArray, noise_var: FloatArray) -> Estimate:  # noqa: ARG002
        return Estimate(project_on_simplex(received))

    def state(self) -> dict[str, FloatArray]:
        return {}

    def restore(self, state: dict[str, FloatArray]) -> None:
        pass


class Tracking:
    """A Kalman filter for each class, with a variance for all its entries, and projection of what it broadcasts.

    Per class: p ← p + drift; g = p/(p + v); estimate ← estimate + g(r̂ − estimate); p ← (1 − g)p. The drift is common to
    all classes, and learned from the innovations: ‖r̂ − estimate‖²/K is p + drift + v on average, with a variance of
    2(p + drift + v)²/K. That much each class's excess counts, the first guess counts as if it were known up to its own
    size, and what rounds have shown is slowly forgotten, for knowledge moves less and less.
    """

    def __init__(self, num_classes: int, length: int, drift: float) -> None:
        self._first_drift = drift
        self._estimate = np.full((num_classes, length), 1.0 / length)
        self._variance = np.full(num_classes, INITIAL_VARIANCE)
        self._heard = np.zeros(num_classes)
        self._evidence = np.zeros(2)  # Σ information · excess, Σ information

    @property
    def drift(self) -> float:
        """The variance per entry by which knowledge is thought to move in a round."""
        weighed, information = self._evidence
        prior = self._first_drift**-2
        return float(max((prior * self._first_drift + weighed) / (prior + information), _LEAST_DRIFT))

    def estimate(self, received: FloatArray, noise_var: FloatArray) -> Estimate:
        heard = np.isfinite(received).all(axis=1) & np.isfinite(noise_var)
        innovation = np.where(heard[:, None], received - self._estimate, 0.0)
        self._learn_drift(innovation, noise_var, heard)
        gain, self._variance = filter_step(self._variance, np.where(heard, noise_var, np.inf), self.drift)
        # What is known exactly is taken as it is: estimate + (r̂ − estimate) could be another float.
        exact = (gain == 1)[:, None]
        self._estimate = np.where(exact, np.where(exact, received, 0.0), self._estimate + gain[:, None] * innovation)
        self._heard = np.maximum(self._heard, heard)
        known = np.where(self._heard[:, None] > 0, self._estimate, np.nan)
        return Estimate(project_on_simplex(known), np.where(self._heard > 0, self._variance, np.nan))

    def _learn_drift(self, innovation: FloatArray, noise_var: FloatArray, heard: BoolArray) -> None:
        """A class's first innovation says how good the first guess was, and nothing of how knowledge moves."""
        counted = np.logical_and(heard, self._heard > 0)
        length = innovation.shape[1]
        variance, noise = self._variance[counted], noise_var[counted]
        excess = (innovation[counted] ** 2).mean(axis=1) - noise - variance
        information = length / (2 * (variance + self.drift + noise) ** 2)
        self._evidence = _MEMORY * self._evidence + [np.sum(information * excess), np.sum(information)]

    def state(self) -> dict[str, FloatArray]:
        return {
            "estimate": self._estimate,
            "variance": self._variance,
            "heard": self._heard,
            "evidence": self._evidence,
        }

    def restore(self, state: dict[str, FloatArray]) -> None:
        self._estimate, self._variance = state["estimate"], state["variance"]
        self._heard, self._evidence = state["heard"], state["evidence"]


def make_receiver(name: str, num_classes: int, length: int, drift: float) -> Receiver | None:
    """The receiver of that name; none for `linear`, which takes what was received as it is."""
    if name == "tracking":
        return Tracking(num_classes, length, drift)
    if name == "projected":
        return Projected()
    if name != "linear":
        raise ValueError(f"receiver = {name!r}: must be linear, projected or tracking")
    return None


def project_on_simplex(vectors: FloatArray) -> FloatArray:
    """The nearest probability vector to each, `[..., entry]`, in Euclidean distance; one that is one stays as it is.

    max(x − θ, 0) with θ such that it sums to one: with the entries in falling order u_1 ≥ u_2 ≥ …, θ is the largest of
    (u_1 + … + u_n − 1)/n. What is not a number stays so.
    """
    falling = -np.sort(-vectors, axis=-1)
    means = (np.cumsum(falling, axis=-1) - 1) / np.arange(1, vectors.shape[-1] + 1)
    projected = np.maximum(vectors - means.max(axis=-1, keepdims=True), 0.0)
    already = (vectors >= 0).all(axis=-1) & (np.abs(vectors.sum(axis=-1) - 1) <= _ON_SIMPLEX)
    return np.where(already[..., None], vectors, projected)
