"""Receivers: how the server estimates what devices sent from what it received.

For class means the received sum is broadcast as it is, projected onto the simplex, or filtered over rounds. Predictions
on a public set are accumulated over rounds, row by row. A receiver computes only on what was released already, and so
it costs no privacy (theory section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from airdistill.arrays import BoolArray, FloatArray, IntArray
from airdistill.planning.convergence.receiver_error import Part, Parts, filter_step

_ON_SIMPLEX = 1e-12  # a sum this close to one differs from one by rounding only
_MEMORY = 0.98  # weight of a round's evidence on the drift one round later
_LEAST_DRIFT = 1e-12
_LEAST_SHARE = 1e-6  # of a class's own drift in a difference, below which the difference shows nothing of it
_LEAST_NOISE = 1e-30  # a noiseless row outweighs every other row


@dataclass(frozen=True)
class Estimate:
    """Class means `[class, entry]` to broadcast; NaN for a class that was never received.

    `expected_error` `[class]` is the receiver's own estimate of its squared error per entry before projection, if it
    has one. For the record of a round, a receiver of feature means adds the class probabilities of the public samples
    that it read, `labels` `[sample, class]`, how it read them, `facts`, and what its model predicts, `predictions`.
    """

    knowledge: FloatArray
    expected_error: FloatArray | None = None
    predictions: FloatArray | None = None
    labels: FloatArray | None = None
    facts: dict[str, str | int | float] | None = None


class Receiver(Protocol):
    """A receiver of your own has these methods; `state` is all that it keeps between rounds, as arrays by name."""

    def estimate(self, received: FloatArray, noise_var: FloatArray) -> Estimate:
        """From r̂ `[class, entry]`, NaN for a class that was not sent, and its noise variance v `[class]`."""

    def state(self) -> dict[str, FloatArray]: ...

    def restore(self, state: dict[str, FloatArray]) -> None: ...


@runtime_checkable
class WeightedReceiver(Protocol):
    """A receiver that looks at the weights `[device, row]` with which a round's devices were received."""

    def estimate_weighted(self, received: FloatArray, noise_var: FloatArray, weights: FloatArray) -> Estimate: ...


def estimate_by(receiver: Receiver, received: FloatArray, noise_var: FloatArray, weights: FloatArray) -> Estimate:
    """A receiver's estimate from what was received, and from the weights of the round if it looks at them."""
    if isinstance(receiver, WeightedReceiver):
        return receiver.estimate_weighted(received, noise_var, weights)
    return receiver.estimate(received, noise_var)


def make_receiver(name: str, num_classes: int, drift: float) -> Receiver | None:
    """The receiver of class means of that name; None for `linear`, which broadcasts the received sum."""
    if name == "tracking":
        return Tracking(num_classes, Parts.for_drift(drift))
    if name == "projected":
        return Projected()
    if name != "linear":
        raise ValueError(f"receiver = {name!r}: must be linear, projected or tracking")
    return None


class Projected:
    """The nearest point of the simplex."""

    def estimate(self, received: FloatArray, noise_var: FloatArray) -> Estimate:  # noqa: ARG002
        return Estimate(project_on_simplex(received))

    def state(self) -> dict[str, FloatArray]:
        return {}

    def restore(self, state: dict[str, FloatArray]) -> None:
        pass


def project_on_simplex(vectors: FloatArray) -> FloatArray:
    """The nearest probability vector in Euclidean distance, `[..., entry]`; probability vectors stay unchanged.

    max(x − θ, 0) with θ such that it sums to one: with the entries in falling order u_1 ≥ u_2 ≥ …, θ is the largest of
    (u_1 + … + u_n − 1)/n. NaN stays NaN.
    """
    # A common shift does not change the projection. Without it the 1 would be lost in rounding next to a huge entry.
    moved = vectors - vectors.max(axis=-1, keepdims=True)
    falling = -np.sort(-moved, axis=-1)
    means = (np.cumsum(falling, axis=-1) - 1) / np.arange(1, vectors.shape[-1] + 1)
    projected = np.maximum(moved - means.max(axis=-1, keepdims=True), 0.0)
    already = (vectors >= 0).all(axis=-1) & (np.abs(vectors.sum(axis=-1) - 1) <= _ON_SIMPLEX)
    return np.where(already[..., None], vectors, projected)


class Tracking:
    """A Kalman filter for the parts of the class means (`Parts`), whose estimate is projected before broadcast.

    Class means lie on the simplex, and so all noise along the sum of their entries is removed.
    """

    def __init__(self, num_classes: int, parts: Parts) -> None:
        towards = np.eye(num_classes) - 1.0 / num_classes
        self._towards = towards / np.maximum(np.linalg.norm(towards, axis=1, keepdims=True), 1e-300)
        self._confidence = _Confidence(parts, num_classes)
        self._rest = _Rest(parts.rest, num_classes)

    @property
    def drifts(self) -> tuple[float, float, float]:
        """The learned drift of each part, a variance of one coordinate per round: common, own, rest."""
        return self._confidence.common.value, self._confidence.own.value, self._rest.drift.value

    def estimate(self, received: FloatArray, noise_var: FloatArray) -> Estimate:
        was_received = np.isfinite(received).all(axis=1) & np.isfinite(noise_var)
        noise = np.where(was_received, noise_var, np.inf)
        centred = np.where(was_received[:, None], received, 0.0)
        centred = centred - centred.mean(axis=1, keepdims=True)
        confidence = (centred * self._towards).sum(axis=1)
        self._confidence.update(confidence, noise, was_received)
        self._rest.update(centred - confidence[:, None] * self._towards, noise, was_received)
        # Noiseless class means are broadcast as received: the sum of their parts could be rounded differently.
        known = np.where((noise == 0)[:, None], received, self.before_projection())
        known = np.where(self._rest.ever_received[:, None] > 0, known, np.nan)
        return Estimate(project_on_simplex(known), self._expected_error())

    def _expected_error(self) -> FloatArray:
        """Per entry, `[class]`; NaN for a class that was never received."""
        num_classes = len(self._towards)
        error = self._confidence.variance + max(num_classes - 2, 0) * self._rest.variance
        return np.where(self._rest.ever_received > 0, error / num_classes, np.nan)

    def before_projection(self) -> FloatArray:
        """The estimate of every class, `[class, entry]`, which may lie outside the simplex."""
        return np.asarray(1.0 / len(self._towards) + self._confidence.level[:, None] * self._towards + self._rest.mean)

    def state(self) -> dict[str, FloatArray]:
        return {**self._confidence.state(), **self._rest.state()}

    def restore(self, state: dict[str, FloatArray]) -> None:
        self._confidence.restore(state)
        self._rest.restore(state)


class _Confidence:
    """s_k = c + d_k of every class and the trend g of c in one Kalman filter of K + 1 numbers.

    s ← s + g and P ← F P Fᵀ + Q. Q has drift_c in all entries of s, drift_d on its diagonal, and the trend's drift.
    G = P S⁻¹ with S = P + diag(v) over the received classes; (s, g) ← (s, g) + G(y − s); P ← P − G P. A class that is
    received alone, or with much less noise than the others, updates them through the covariance P.
    """

    def __init__(self, parts: Parts, num_classes: int) -> None:
        self.common, self.own = _Drift(parts.common.drift), _Drift(parts.own.drift)
        self.mean, self._trend_drift = np.zeros(num_classes + 1), parts.trend.drift
        self.covariance = self._of_parts(*(part.initial_variance for part in (parts.common, parts.own, parts.trend)))
        self.ever_received = np.zeros(num_classes)

    @property
    def level(self) -> FloatArray:
        """s, `[class]`."""
        return self.mean[:-1]

    @property
    def variance(self) -> FloatArray:
        """Of s, `[class]`."""
        return np.diag(self.covariance)[:-1]

    def _of_parts(self, common: float, own: float, trend: float) -> FloatArray:
        """The covariance of (s, g) from the variances of its parts."""
        together = np.diag(np.append(np.full(len(self.mean) - 1, own), trend))
        together[:-1, :-1] += common
        return together

    def update(self, observed: FloatArray, noise_var: FloatArray, was_received: BoolArray) -> None:
        """Filter one round's confidence `[class]`; the variance of classes that were not received only grows."""
        places = np.flatnonzero(was_received)
        if len(places):
            # Devices may not have learned anything in a round of which nothing is received: no trend is applied then.
            onward = np.eye(len(self.mean))
            onward[:-1, -1] = 1.0
            self.mean, self.covariance = onward @ self.mean, onward @ self.covariance @ onward.T
        self._learn_drifts(observed, noise_var, np.flatnonzero(was_received & (self.ever_received > 0)))
        prior = self.covariance + self._of_parts(self.common.value, self.own.value, self._trend_drift)
        total = prior[np.ix_(places, places)] + np.diag(noise_var[places])
        gain = np.linalg.solve(total, prior[places]).T
        self.mean = self.mean + gain @ (observed - self.level)[places]
        after = prior - gain @ prior[places]
        self.covariance = (after + after.T) / 2
        self.ever_received = np.maximum(self.ever_received, was_received)

    def _learn_drifts(self, observed: FloatArray, noise_var: FloatArray, places: IntArray) -> None:
        """Learn from the innovations: the common drift from their weighted mean, own drifts from deviations from it.

        The first innovation of a class is left out: it shows the error of the initial mean, not a drift.
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
            deviation = np.eye(len(places)) - weights
            # The share of own drift in a deviation: almost nothing if one class has almost all of the weight.
            share = 1 - 2 * weights + (weights**2).sum()
            enough = share > _LEAST_SHARE
            squares, of_each = (innovation - mean) ** 2, np.diag(deviation @ expected @ deviation.T)
            self.own.learn(squares[enough] / share[enough], of_each[enough] / share[enough])

    def state(self) -> dict[str, FloatArray]:
        """Checkpoints keep these names."""
        return {
            "sureness": self.mean,
            "covariance": self.covariance,
            "sureness_heard": self.ever_received,
            "drift_of_common": self.common.evidence,
            "drift_of_own": self.own.evidence,
        }

    def restore(self, state: dict[str, FloatArray]) -> None:
        self.mean, self.covariance, self.ever_received = state["sureness"], state["covariance"], state["sureness_heard"]
        self.common.evidence, self.own.evidence = state["drift_of_common"], state["drift_of_own"]


class _Rest:
    """w of each class separately, in K − 2 dimensions: p ← p + drift; g = p/(p + v); w ← w + g(y − w); p ← (1 − g)p."""

    def __init__(self, part: Part, num_classes: int) -> None:
        self.drift = _Drift(part.drift)
        self.mean = np.zeros((num_classes, num_classes))
        self.variance = np.full(num_classes, part.initial_variance)
        self.ever_received = np.zeros(num_classes)

    def update(self, observed: FloatArray, noise_var: FloatArray, was_received: BoolArray) -> None:
        innovation = np.where(was_received[:, None], observed - self.mean, 0.0)
        counted, dimensions = was_received & (self.ever_received > 0), len(self.mean) - 2
        if dimensions > 0:
            squares = (innovation[counted] ** 2).sum(axis=1) / dimensions
            self.drift.learn(squares, (self.variance + noise_var)[counted], dimensions)
        gain, self.variance = filter_step(self.variance, noise_var, self.drift.value)
        self.mean = self.mean + gain[:, None] * innovation
        self.ever_received = np.maximum(self.ever_received, was_received)

    def state(self) -> dict[str, FloatArray]:
        """Checkpoints keep these names."""
        return {
            "rest": self.mean,
            "variance": self.variance,
            "heard": self.ever_received,
            "drift": self.drift.evidence,
        }

    def restore(self, state: dict[str, FloatArray]) -> None:
        self.mean, self.variance, self.ever_received = state["rest"], state["variance"], state["heard"]
        self.drift.evidence = state["drift"]


class _Drift:
    """The drift of a part, learned from its innovations.

    The mean of a squared innovation is its expected variance plus the drift, and its variance is twice the square of
    that mean: the inverse is its information. The initial drift counts as if its standard error were its own size. Old
    evidence is slowly forgotten, because class means move less and less. At high noise the drift keeps its initial
    value: the noise hides it.
    """

    def __init__(self, initial: float) -> None:
        self._initial = initial
        self.evidence = np.zeros(2)  # Σ information · excess, Σ information

    @property
    def value(self) -> float:
        weighted, information = self.evidence
        prior = self._initial**-2
        return float(max((prior * self._initial + weighted) / (prior + information), _LEAST_DRIFT))

    def learn(self, squares: FloatArray, expected: FloatArray, dimensions: int = 1) -> None:
        """Learn from mean squares over `dimensions`, `[row]`, and the means expected of them without drift."""
        information = dimensions / (2 * (expected + self.value) ** 2)
        found = np.array([np.sum(information * (squares - expected)), np.sum(information)])
        self.evidence = _MEMORY * self.evidence + found


class PooledRows:
    """Predictions on public samples pooled over rounds, weighted by the inverse of each round's noise variance.

    The mean of a row is Σ_t r_t/v_t over Σ_t 1/v_t, and its variance is 1/Σ_t 1/v_t. A noiseless row replaces the mean,
    up to rounding.
    """

    def __init__(self, num_rows: int, num_classes: int) -> None:
        self._weighted, self._information = np.zeros((num_rows, num_classes)), np.zeros(num_rows)

    def add(self, places: IntArray, received: FloatArray, noise_var: float) -> None:
        """Add rows `[row, class]` at these places; a NaN row was not received."""
        was_received = np.isfinite(received).all(axis=1)
        information = 1.0 / max(noise_var, _LEAST_NOISE)
        self._weighted[places[was_received]] += information * received[was_received]
        self._information[places[was_received]] += information

    @property
    def mean(self) -> FloatArray:
        """`[row, class]`; NaN for a row that was never received."""
        known = self._information > 0
        divided = self._weighted / np.where(known, self._information, 1.0)[:, None]
        return np.where(known[:, None], divided, np.nan)

    @property
    def noise_var(self) -> FloatArray:
        """Per entry, `[row]`; infinite for a row that was never received."""
        known = self._information > 0
        return np.where(known, 1.0 / np.where(known, self._information, 1.0), np.inf)

    def state(self) -> dict[str, FloatArray]:
        """Checkpoints keep these names."""
        return {"weighed": self._weighted, "information": self._information}

    def restore(self, state: dict[str, FloatArray]) -> None:
        self._weighted, self._information = state["weighed"].copy(), state["information"].copy()


class TrackedRows:
    """A Kalman filter for every row separately. A row starts at the mean of all rows received with it.

    Its initial variance is the mean square of these rows about their mean, less the noise. Between rounds a row moves
    by `drift`, a variance per entry.
    """

    def __init__(self, num_rows: int, num_classes: int, drift: float) -> None:
        self._mean, self._variance = np.zeros((num_rows, num_classes)), np.full(num_rows, np.inf)
        self._drift = drift

    def add(self, places: IntArray, received: FloatArray, noise_var: float) -> None:
        """Add rows `[row, class]` at these places; a NaN row was not received."""
        self._variance += self._drift
        was_received = np.isfinite(received).all(axis=1)
        places, rows = places[was_received], received[was_received]
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
        """`[row, class]`; NaN for a row that was never received."""
        return np.where(np.isfinite(self._variance)[:, None], self._mean, np.nan)

    @property
    def noise_var(self) -> FloatArray:
        """The filter's own estimate of its squared error per entry, `[row]`."""
        return self._variance

    def state(self) -> dict[str, FloatArray]:
        return {"mean": self._mean, "variance": self._variance}

    def restore(self, state: dict[str, FloatArray]) -> None:
        self._mean, self._variance = state["mean"].copy(), state["variance"].copy()
