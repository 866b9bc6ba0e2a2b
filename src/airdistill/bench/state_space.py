"""Random processes that move like class means: the state model of the tracking receiver, fitted to recorded runs.

The state z holds, for every class k, coordinates of a zero-sum vector (c + d_k) a_k + w_k as in
`planning.convergence.receiver_error.Parts`, and the trend g of c. It is a Gaussian random walk:
c ← c + g + N(0, drift_c), g ← g + N(0, drift_g), d_k and w_k likewise without a trend. Class means are linear in it,
1/K + Bz, or on the simplex, softmax(Bz): a logistic-normal process.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import softmax

from airdistill.arrays import FloatArray
from airdistill.planning.convergence.receiver_error import Part, Parts

_LAG = 10  # rounds over which movement is measured: jitter from round to round is not drift
_LEAST_DRIFT = 1e-12
_LEAST_PROBABILITY = 1e-9  # of a recorded class mean, before its logarithm is taken


def class_bases(num_classes: int) -> FloatArray:
    """Orthonormal bases of the zero-sum vectors, `[class, entry, coordinate]`; the first vector is a_k."""
    towards = np.eye(num_classes) - 1.0 / num_classes
    bases = []
    for klass in range(num_classes):
        columns = np.column_stack([np.full(num_classes, num_classes**-0.5), towards[klass]])
        full = np.linalg.qr(np.column_stack([columns, np.eye(num_classes)]))[0]
        bases.append(full[:, 1:num_classes] * np.where(np.arange(1, num_classes) == 1, np.sign(full[klass, 1]), 1.0))
    return np.stack(bases)


@dataclass(frozen=True)
class StateSpace:
    """A fitted process. `start` and `trend` are the means of c and g in the first round."""

    parts: Parts
    num_classes: int
    on_simplex: bool
    start: float = 0.0
    trend: float = 0.0

    @cached_property
    def bases(self) -> FloatArray:
        return class_bases(self.num_classes)

    @property
    def size(self) -> int:
        """K(K − 1) coordinates and the trend, which is the last number of the state."""
        return self.num_classes * (self.num_classes - 1) + 1

    @cached_property
    def mean(self) -> FloatArray:
        """Of the first round's state, `[state]`."""
        vectors = np.zeros((self.num_classes, self.num_classes - 1))
        vectors[:, 0] = self.start
        return np.append(vectors.ravel(), self.trend)

    @cached_property
    def onward(self) -> FloatArray:
        """F: the trend is added to the confidence of every class, `[state, state]`."""
        matrix = np.eye(self.size)
        matrix[: -1 : self.num_classes - 1, -1] = 1.0
        return matrix

    @cached_property
    def covariance(self) -> FloatArray:
        """Of the first round's state, `[state, state]`."""
        return self._of_parts(*(part.initial_variance for part in self._parts))

    @cached_property
    def drift(self) -> FloatArray:
        """Q: the covariance of one round's movement, `[state, state]`."""
        return self._of_parts(*(part.drift for part in self._parts))

    @property
    def _parts(self) -> tuple[Part, ...]:
        return self.parts.common, self.parts.own, self.parts.rest, self.parts.trend

    def _of_parts(self, common: float, own: float, rest: float, trend: float) -> FloatArray:
        diagonal = np.full((self.num_classes, self.num_classes - 1), rest)
        diagonal[:, 0] = own
        matrix = np.diag(np.append(diagonal.ravel(), trend))
        confidence = np.arange(0, self.size - 1, self.num_classes - 1)
        matrix[np.ix_(confidence, confidence)] += common
        return matrix

    def simulate(self, rng: np.random.Generator, num_rounds: int, num_paths: int) -> FloatArray:
        """States of independent runs, `[round, path, state]`."""
        states = [self.mean + self._drawn(rng, num_paths, [part.initial_variance for part in self._parts])]
        for _ in range(num_rounds - 1):
            states.append(states[-1] @ self.onward.T + self._drawn(rng, num_paths, [p.drift for p in self._parts]))
        return np.stack(states)

    def _drawn(self, rng: np.random.Generator, num_paths: int, variances: list[float]) -> FloatArray:
        common, own, rest, trend = np.sqrt(variances)
        vectors = rng.standard_normal((num_paths, self.num_classes, self.num_classes - 1))
        vectors *= np.append(own, np.full(self.num_classes - 2, rest))
        vectors[..., 0] += common * rng.standard_normal((num_paths, 1))
        return np.column_stack([vectors.reshape(num_paths, -1), trend * rng.standard_normal(num_paths)])

    def class_means(self, states: FloatArray) -> FloatArray:
        """`[..., class, entry]` of states `[..., state]`."""
        vectors = self._vectors(states)
        return np.asarray(softmax(vectors, axis=-1) if self.on_simplex else vectors + 1.0 / self.num_classes)

    def _vectors(self, states: FloatArray) -> FloatArray:
        coordinates = states[..., :-1].reshape(*states.shape[:-1], self.num_classes, self.num_classes - 1)
        return np.asarray(np.einsum("kec,...kc->...ke", self.bases, coordinates))

    def derivatives(self, states: FloatArray) -> FloatArray:
        """Of the class means by their own coordinates, `[..., class, entry, coordinate]`."""
        if not self.on_simplex:
            return np.broadcast_to(self.bases, (*states.shape[:-1], *self.bases.shape))
        means = self.class_means(states)
        inner = np.einsum("...ke,kec->...kc", means, self.bases)
        return np.asarray(means[..., None] * (self.bases - inner[..., None, :]))


def fit_process(paths: FloatArray, on_simplex: bool) -> StateSpace:
    """The process whose moments are those of recorded class means `[run, round, class, entry]`.

    A drift is the mean square of the movement over several rounds, divided by their number. c and its trend are
    separated by second differences over one round and over several.
    """
    num_rounds, num_classes = paths.shape[1:3]
    lag = max(1, min(_LAG, num_rounds // 4))
    vectors = np.log(np.maximum(paths, _LEAST_PROBABILITY)) if on_simplex else paths
    coordinates = np.einsum("kec,rtke->rtkc", class_bases(num_classes), vectors)
    common = coordinates[..., 0].mean(axis=-1)
    # d_k deviates from the mean over classes by (K − 1)/K of its variance, and that mean holds the other 1/K.
    own = _walk((coordinates[..., 0] - common[..., None]) * (num_classes / (num_classes - 1)) ** 0.5, lag)
    drift_of_mean, drift_of_trend = _drifts_with_trend(common, lag)
    first_trend = (common[:, lag] - common[:, 0]) / lag
    parts = Parts(
        common=Part(
            max(_variance(common[:, 0]) - own.initial_variance / num_classes, 0.0),
            max(drift_of_mean - own.drift / num_classes, _LEAST_DRIFT),
        ),
        own=own,
        rest=_walk(coordinates[..., 1:], lag),
        trend=Part(_variance(first_trend) + lag * drift_of_trend, drift_of_trend),
    )
    return StateSpace(parts, num_classes, on_simplex, float(common[:, 0].mean()), float(first_trend.mean()))


def _walk(coordinates: FloatArray, lag: int) -> Part:
    """First variance and drift of coordinates of mean zero, `[run, round, ...]`."""
    if coordinates.size == 0:  # two classes have no further dimension
        return Part(0.0, 0.0)
    moved = coordinates[:, lag:] - coordinates[:, :-lag]
    return Part(float((coordinates[:, 0] ** 2).mean()), max(float((moved**2).mean()) / lag, _LEAST_DRIFT))


def _drifts_with_trend(common: FloatArray, lag: int) -> tuple[float, float]:
    """Drifts of the mean confidence and of its trend, at least zero; at lag 1 alone, all movement is without a trend.

    A second difference over L rounds has the variance 2L drift + L(2L² + 1)/3 drift_g.
    """
    squares = [float(((common[:, 2 * n :] - 2 * common[:, n:-n] + common[:, : -2 * n]) ** 2).mean()) for n in (1, lag)]
    weights = np.array([[2.0 * n, n * (2 * n**2 + 1) / 3] for n in (1, lag)])
    if lag == 1:
        return max(squares[0] / 2, _LEAST_DRIFT), _LEAST_DRIFT
    of_common, of_trend = np.linalg.solve(weights, squares)
    if of_common <= 0:
        of_trend = squares[1] / weights[1, 1]
    elif of_trend <= 0:
        of_common = squares[1] / weights[1, 0]
    return max(float(of_common), _LEAST_DRIFT), max(float(of_trend), _LEAST_DRIFT)


def _variance(values: FloatArray) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0
