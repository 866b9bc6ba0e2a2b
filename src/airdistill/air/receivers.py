"""How the server estimates the knowledge from what it received: as it is, on the simplex, or filtered over rounds.

All of it is computed from what was released already, so that it costs no privacy (theory section 3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from airdistill.arrays import BoolArray, FloatArray
from airdistill.codesign.tracking import Part, Parts, filter_step, noise_of_parts, squared_error

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
    """Kalman filters for the parts of the knowledge (`Parts`), and projection of what it broadcasts.

    Per coordinate: p ← p + drift; g = p/(p + v); x ← x + g(y − x); p ← (1 − g)p. What is known to be on the simplex has
    no error along the sum of its entries, so that noise there is dropped.
    """

    def __init__(self, num_classes: int, parts: Parts) -> None:
        towards = np.eye(num_classes) - 1.0 / num_classes
        self._towards = towards / np.maximum(np.linalg.norm(towards, axis=1, keepdims=True), 1e-300)
        self._common = _Filter(parts.common, 1, 1)
        self._own = _Filter(parts.own, num_classes, 1)
        self._rest = _Filter(parts.rest, num_classes, num_classes, dimensions=max(num_classes - 2, 0))

    @property
    def drifts(self) -> tuple[float, float, float]:
        """By how much a coordinate of each part is thought to move in a round, as a variance."""
        return self._common.drift, self._own.drift, self._rest.drift

    def estimate(self, received: FloatArray, noise_var: FloatArray) -> Estimate:
        heard = np.isfinite(received).all(axis=1) & np.isfinite(noise_var)
        noise = np.where(heard, noise_var, np.inf)
        sureness, rest = self._coordinates(np.where(heard[:, None], received, 0.0), heard)
        self._follow_sureness(sureness, noise, heard)
        self._rest.follow(rest, noise)
        # What is known exactly is broadcast as it came: the same sum of parts could be another float.
        known = np.where((noise == 0)[:, None], received, self.before_projection())
        known = np.where(self._rest.heard[:, None] > 0, known, np.nan)
        error = squared_error(self._common.variance, self._own.variance, self._rest.variance, len(received)) / len(
            received
        )
        return Estimate(project_on_simplex(known), np.where(self._rest.heard > 0, error, np.nan))

    def before_projection(self) -> FloatArray:
        """The estimate of every class, `[class, entry]`, which may lie off the simplex."""
        sureness = self._common.value + self._own.value
        return np.asarray(1.0 / len(self._towards) + sureness * self._towards + self._rest.value)

    def _coordinates(self, received: FloatArray, heard: BoolArray) -> tuple[FloatArray, FloatArray]:
        """c + d `[class]` and w `[class, entry]` of what was heard; zero of what was not."""
        centred = received - received.mean(axis=1, keepdims=True)
        sureness = np.where(heard, (centred * self._towards).sum(axis=1), 0.0)
        return sureness, np.where(heard[:, None], centred - sureness[:, None] * self._towards, 0.0)

    def _follow_sureness(self, sureness: FloatArray, noise_var: FloatArray, heard: BoolArray) -> None:
        common_noise, own_noise = noise_of_parts(noise_var)
        if heard.sum() == 1:
            # Nothing to compare a lone class with: what is known of one part tells of the other.
            common, own = self._common, self._own
            seen_own = sureness - common.value[0, 0]
            seen_common = float(sureness[heard][0] - own.value[heard][0, 0])
            own_noise = noise_var + common.variance[0] + common.drift
            common_noise = noise_var[heard] + own.variance[heard] + own.drift
        else:
            exact = noise_var == 0
            weights = exact.astype(np.float64) if exact.any() else np.where(heard, 1 / noise_var, 0.0)
            seen_common = float(weights @ sureness / max(weights.sum(), 1e-300))
            seen_own = sureness - seen_common
        self._common.follow(np.array([[seen_common]]), common_noise)
        self._own.follow(np.where(heard, seen_own, 0.0)[:, None], own_noise)

    def state(self) -> dict[str, FloatArray]:
        return {
            f"{name}.{key}": value for name, part in self._filters().items() for key, value in vars(part.state).items()
        }

    def restore(self, state: dict[str, FloatArray]) -> None:
        for name, part in self._filters().items():
            part.state = _State(**{key: state[f"{name}.{key}"] for key in vars(part.state)})

    def _filters(self) -> dict[str, _Filter]:
        return {"common": self._common, "own": self._own, "rest": self._rest}


@dataclass
class _State:
    """x `[row, coordinate]`, p `[row]`, which rows were heard `[row]`, and what is known of the drift."""

    value: FloatArray
    variance: FloatArray
    heard: FloatArray
    evidence: FloatArray


class _Filter:
    """Rows of coordinates of one part. Their drift is common, and learned from the innovations.

    The mean of a row's squared innovations is p + drift + v on average, with a variance of 2(p + drift + v)² over the
    number of its dimensions. That much each row's excess counts, the first guess counts as if it were known up to its
    own size, and what rounds have shown is slowly forgotten, for knowledge moves less and less. Where noise is loud the
    first guess stays: so small a drift could not be told from it.
    """

    def __init__(self, part: Part, num_rows: int, num_coordinates: int, dimensions: int | None = None) -> None:
        self._first_drift = part.drift
        self._dimensions = num_coordinates if dimensions is None else dimensions
        self.state = _State(
            np.zeros((num_rows, num_coordinates)),
            np.full(num_rows, part.initial_variance),
            np.zeros(num_rows),
            np.zeros(2),  # Σ information · excess, Σ information
        )

    @property
    def value(self) -> FloatArray:
        return self.state.value

    @property
    def variance(self) -> FloatArray:
        return self.state.variance

    @property
    def heard(self) -> FloatArray:
        return self.state.heard

    @property
    def drift(self) -> float:
        weighed, information = self.state.evidence
        prior = self._first_drift**-2
        return float(max((prior * self._first_drift + weighed) / (prior + information), _LEAST_DRIFT))

    def follow(self, observed: FloatArray, noise_var: FloatArray) -> None:
        """One round's observation `[row, coordinate]` of this noise `[row]`, infinite where nothing was heard."""
        before, heard = self.state, np.isfinite(noise_var)
        innovation = np.where(heard[:, None], observed - before.value, 0.0)
        evidence = self._evidence_after(innovation, noise_var, heard)
        self.state = replace(before, evidence=evidence)
        gain, variance = filter_step(before.variance, noise_var, self.drift)
        value = before.value + gain[:, None] * innovation
        self.state = _State(value, variance, np.maximum(before.heard, heard), evidence)

    def _evidence_after(self, innovation: FloatArray, noise_var: FloatArray, heard: BoolArray) -> FloatArray:
        """A row's first innovation says how good the first guess was, and nothing of how knowledge moves."""
        counted = np.logical_and(heard, self.heard > 0)
        if self._dimensions == 0:
            return self.state.evidence
        variance, noise = self.variance[counted], noise_var[counted]
        excess = (innovation[counted] ** 2).sum(axis=1) / self._dimensions - noise - variance
        information = self._dimensions / (2 * (variance + self.drift + noise) ** 2)
        found = np.array([np.sum(information * excess), np.sum(information)])
        return np.asarray(_MEMORY * self.state.evidence + found)


def make_receiver(name: str, num_classes: int, drift: float) -> Receiver | None:
    """The receiver of that name; none for `linear`, which takes what was received as it is."""
    if name == "tracking":
        return Tracking(num_classes, Parts.for_drift(drift))
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
    # Moved along (1, …, 1) first, which changes nothing: beside a huge entry the 1 would be lost.
    moved = vectors - vectors.max(axis=-1, keepdims=True)
    falling = -np.sort(-moved, axis=-1)
    means = (np.cumsum(falling, axis=-1) - 1) / np.arange(1, vectors.shape[-1] + 1)
    projected = np.maximum(moved - means.max(axis=-1, keepdims=True), 0.0)
    already = (vectors >= 0).all(axis=-1) & (np.abs(vectors.sum(axis=-1) - 1) <= _ON_SIMPLEX)
    return np.where(already[..., None], vectors, projected)
