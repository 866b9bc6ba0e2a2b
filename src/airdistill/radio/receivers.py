"""How the server estimates the knowledge from what it received: as it is, on the simplex, or filtered over rounds.

All of it is computed from what was released already, so that it costs no privacy (theory section 3).

Rows of answers on a public set, one for each of its samples, gathered over rounds. All rows of a round have the same
noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from airdistill.arrays import BoolArray, FloatArray, IntArray
from airdistill.planning.convergence.receiver_error import Part, Parts, filter_step

_ON_SIMPLEX = 1e-12  # a sum this close to one is one but for rounding
_MEMORY = 0.98  # what a round's evidence on the drift is worth a round later
_LEAST_DRIFT = 1e-12
_TELLS = 1e-6


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
    """A Kalman filter for the parts of the knowledge (`Parts`), and projection of what it broadcasts.

    What is known to be on the simplex has no error along the sum of its entries, so that noise there is dropped.
    """

    def __init__(self, num_classes: int, parts: Parts) -> None:
        towards = np.eye(num_classes) - 1.0 / num_classes
        self._towards = towards / np.maximum(np.linalg.norm(towards, axis=1, keepdims=True), 1e-300)
        self._sureness = _Sureness(parts, num_classes)
        self._rest = _Rest(parts.rest, num_classes)

    @property
    def drifts(self) -> tuple[float, float, float]:
        """By how much a coordinate of each part is thought to move in a round, as a variance."""
        return self._sureness.common.value, self._sureness.own.value, self._rest.drift.value

    def estimate(self, received: FloatArray, noise_var: FloatArray) -> Estimate:
        heard = np.isfinite(received).all(axis=1) & np.isfinite(noise_var)
        noise = np.where(heard, noise_var, np.inf)
        centred = np.where(heard[:, None], received, 0.0)
        centred = centred - centred.mean(axis=1, keepdims=True)
        sureness = (centred * self._towards).sum(axis=1)
        self._sureness.follow(sureness, noise, heard)
        self._rest.follow(centred - sureness[:, None] * self._towards, noise, heard)
        # What is known exactly is broadcast as it came: the same sum of parts could be another float.
        known = np.where((noise == 0)[:, None], received, self.before_projection())
        known = np.where(self._rest.heard[:, None] > 0, known, np.nan)
        return Estimate(project_on_simplex(known), self._expected_error())

    def _expected_error(self) -> FloatArray:
        """Per entry, `[class]`; not a number for a class that was never heard."""
        num_classes = len(self._towards)
        error = self._sureness.variance + max(num_classes - 2, 0) * self._rest.variance
        return np.where(self._rest.heard > 0, error / num_classes, np.nan)

    def before_projection(self) -> FloatArray:
        """The estimate of every class, `[class, entry]`, which may lie off the simplex."""
        return np.asarray(1.0 / len(self._towards) + self._sureness.level[:, None] * self._towards + self._rest.mean)

    def state(self) -> dict[str, FloatArray]:
        return {**self._sureness.state(), **self._rest.state()}

    def restore(self, state: dict[str, FloatArray]) -> None:
        self._sureness.restore(state)
        self._rest.restore(state)


class _Drift:
    """The drift of a part, learned from its innovations.

    A squared innovation is on average the variance that was expected of it and the drift, and varies by twice the
    square of that. So much each one's excess counts; the first guess counts as if it were known up to its own size; and
    what rounds have shown is slowly forgotten, for knowledge moves less and less. Where noise is loud the first guess
    stays: so small a drift could not be told from it.
    """

    def __init__(self, first: float) -> None:
        self._first = first
        self.evidence = np.zeros(2)  # Σ information · excess, Σ information

    @property
    def value(self) -> float:
        weighed, information = self.evidence
        prior = self._first**-2
        return float(max((prior * self._first + weighed) / (prior + information), _LEAST_DRIFT))

    def learn(self, squares: FloatArray, expected: FloatArray, dimensions: int = 1) -> None:
        """From mean squares of so many dimensions each, `[row]`, and what was expected of them without any drift."""
        information = dimensions / (2 * (expected + self.value) ** 2)
        found = np.array([np.sum(information * (squares - expected)), np.sum(information)])
        self.evidence = _MEMORY * self.evidence + found


class _Sureness:
    """s_k = c + d_k of every class and the trend g of c, together: a Kalman filter of K + 1 numbers.

    s ← s + g and P ← F P Fᵀ + Q, which has drift_c in all entries of s, drift_d on its diagonal and the trend's own;
    G = P S⁻¹ with S = P + diag(v) of what is heard; (s, g) ← (s, g) + G(y − s); P ← P − G P. So a class that is heard
    much better than the others, or alone, tells of them what it can, and no more.
    """

    def __init__(self, parts: Parts, num_classes: int) -> None:
        self.common, self.own = _Drift(parts.common.drift), _Drift(parts.own.drift)
        self.mean, self._trend_drift = np.zeros(num_classes + 1), parts.trend.drift
        self.covariance = self._of_parts(*(part.initial_variance for part in (parts.common, parts.own, parts.trend)))
        self.heard = np.zeros(num_classes)

    @property
    def level(self) -> FloatArray:
        """s, `[class]`."""
        return self.mean[:-1]

    @property
    def variance(self) -> FloatArray:
        """Of s, `[class]`."""
        return np.diag(self.covariance)[:-1]

    def _of_parts(self, common: float, own: float, trend: float) -> FloatArray:
        """The covariance of (s, g) that has these variances of its parts."""
        together = np.diag(np.append(np.full(len(self.mean) - 1, own), trend))
        together[:-1, :-1] += common
        return together

    def follow(self, observed: FloatArray, noise_var: FloatArray, heard: BoolArray) -> None:
        """One round's sureness `[class]` and its noise; what was not heard only grows more uncertain."""
        places = np.flatnonzero(heard)
        if len(places):
            # A round of which nothing is heard may have been one in which nothing was learned.
            onward = np.eye(len(self.mean))
            onward[:-1, -1] = 1.0
            self.mean, self.covariance = onward @ self.mean, onward @ self.covariance @ onward.T
        self._learn_drifts(observed, noise_var, np.flatnonzero(heard & (self.heard > 0)))
        prior = self.covariance + self._of_parts(self.common.value, self.own.value, self._trend_drift)
        total = prior[np.ix_(places, places)] + np.diag(noise_var[places])
        gain = np.linalg.solve(total, prior[places]).T
        self.mean = self.mean + gain @ (observed - self.level)[places]
        after = prior - gain @ prior[places]
        self.covariance = (after + after.T) / 2
        self.heard = np.maximum(self.heard, heard)

    def _learn_drifts(self, observed: FloatArray, noise_var: FloatArray, places: IntArray) -> None:
        """From the innovations' weighted mean, and from what they differ from it by.

        A class's first innovation says how good the first guess was, and nothing of how knowledge moves.
        """
        if not len(places):
            return
        innovation, noise = (observed - self.level)[places], noise_var[places]
        expected = self.covariance[np.ix_(places, places)] + np.diag(noise)
        weights = 1 / np.maximum(np.diag(expected), 1e-300)
        weights = weights / weights.sum()
        mean = float(weights @ innovation)
        of_mean = float(weights @ expected @ weights + self.own.value * (weights**2).sum())
        self.common.learn(np.array([mean**2]), np.array([of_mean]))
        if len(places) > 1:
            apart = np.eye(len(places)) - weights
            # What a difference has of a class's own drift; nothing where that class is all of the mean.
            left = 1 - 2 * weights + (weights**2).sum()
            told = left > _TELLS
            squares, of_each = (innovation - mean) ** 2, np.diag(apart @ expected @ apart.T)
            self.own.learn(squares[told] / left[told], of_each[told] / left[told])

    def state(self) -> dict[str, FloatArray]:
        return {
            "sureness": self.mean,
            "covariance": self.covariance,
            "sureness_heard": self.heard,
            "drift_of_common": self.common.evidence,
            "drift_of_own": self.own.evidence,
        }

    def restore(self, state: dict[str, FloatArray]) -> None:
        self.mean, self.covariance, self.heard = state["sureness"], state["covariance"], state["sureness_heard"]
        self.common.evidence, self.own.evidence = state["drift_of_common"], state["drift_of_own"]


class _Rest:
    """w of every class by itself, in K − 2 dimensions: p ← p + drift; g = p/(p + v); w ← w + g(y − w); p ← (1 − g)p."""

    def __init__(self, part: Part, num_classes: int) -> None:
        self.drift = _Drift(part.drift)
        self.mean = np.zeros((num_classes, num_classes))
        self.variance = np.full(num_classes, part.initial_variance)
        self.heard = np.zeros(num_classes)

    def follow(self, observed: FloatArray, noise_var: FloatArray, heard: BoolArray) -> None:
        innovation = np.where(heard[:, None], observed - self.mean, 0.0)
        counted, dimensions = heard & (self.heard > 0), len(self.mean) - 2
        if dimensions > 0:
            squares = (innovation[counted] ** 2).sum(axis=1) / dimensions
            self.drift.learn(squares, (self.variance + noise_var)[counted], dimensions)
        gain, self.variance = filter_step(self.variance, noise_var, self.drift.value)
        self.mean = self.mean + gain[:, None] * innovation
        self.heard = np.maximum(self.heard, heard)

    def state(self) -> dict[str, FloatArray]:
        return {"rest": self.mean, "variance": self.variance, "heard": self.heard, "drift": self.drift.evidence}

    def restore(self, state: dict[str, FloatArray]) -> None:
        self.mean, self.variance, self.heard = state["rest"], state["variance"], state["heard"]
        self.drift.evidence = state["drift"]


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


class PooledRows:
    """Rows received over several rounds, each round weighed by what its noise leaves of it.

    The mean of a row is Σ_t r_t/v_t over Σ_t 1/v_t, and its variance 1/Σ_t 1/v_t; a row that was never received is no
    number. What is received without noise stands alone, as there is nothing to weigh it against.
    """

    def __init__(self, num_rows: int, num_classes: int) -> None:
        self._weighed, self._information = np.zeros((num_rows, num_classes)), np.zeros(num_rows)

    def add(self, places: IntArray, received: FloatArray, noise_var: float) -> None:
        """Rows `[row, class]` at these places; a row that is no number was not received."""
        heard = np.isfinite(received).all(axis=1)
        information = 1.0 / max(noise_var, _LEAST_NOISE)
        self._weighed[places[heard]] += information * received[heard]
        self._information[places[heard]] += information

    @property
    def mean(self) -> FloatArray:
        """`[row, class]`."""
        known = self._information > 0
        divided = self._weighed / np.where(known, self._information, 1.0)[:, None]
        return np.where(known[:, None], divided, np.nan)

    @property
    def noise_var(self) -> FloatArray:
        """Per entry, `[row]`; infinite where nothing was received."""
        known = self._information > 0
        return np.where(known, 1.0 / np.where(known, self._information, 1.0), np.inf)

    def state(self) -> dict[str, FloatArray]:
        return {"weighed": self._weighed, "information": self._information}

    def restore(self, state: dict[str, FloatArray]) -> None:
        self._weighed, self._information = state["weighed"].copy(), state["information"].copy()


_LEAST_NOISE = 1e-30  # a noiseless row counts for so much more than any other that it stands alone


class TrackedRows:
    """A Kalman filter for every row by itself: a row starts at the mean of all, as far off as rows are found to differ.

    How much rows differ is read off the first ones: their mean square about their mean, less the noise. Between rounds
    a row moves by `drift`, a variance per entry.
    """

    def __init__(self, num_rows: int, num_classes: int, drift: float) -> None:
        self._mean, self._variance = np.zeros((num_rows, num_classes)), np.full(num_rows, np.inf)
        self._drift = drift

    def add(self, places: IntArray, received: FloatArray, noise_var: float) -> None:
        """Rows `[row, class]` at these places; a row that is no number was not received."""
        self._variance += self._drift
        heard = np.isfinite(received).all(axis=1)
        places, rows = places[heard], received[heard]
        if not len(places):
            return
        new = np.isinf(self._variance[places])
        if new.any():
            middle = rows[new].mean(axis=0)
            self._mean[places[new]] = middle
            self._variance[places[new]] = max(float(((rows[new] - middle) ** 2).mean()) - noise_var, 0.0)
        gain, variance = filter_step(self._variance[places], np.full(len(places), noise_var), 0.0)
        self._mean[places] += gain[:, None] * (rows - self._mean[places])
        self._variance[places] = variance

    @property
    def mean(self) -> FloatArray:
        """`[row, class]`; not a number where nothing was received."""
        return np.where(np.isfinite(self._variance)[:, None], self._mean, np.nan)

    @property
    def noise_var(self) -> FloatArray:
        """The filter's own idea of its squared error per entry, `[row]`."""
        return self._variance

    def state(self) -> dict[str, FloatArray]:
        return {"mean": self._mean, "variance": self._variance}

    def restore(self, state: dict[str, FloatArray]) -> None:
        self._mean, self._variance = state["mean"].copy(), state["variance"].copy()
