"""Receivers of class means from the literature and from first principles, to compare with those of the product.

They need constants that a running federation does not have: those are fitted to other runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.bench.bounds import blocks_of_classes, updated
from airdistill.bench.state_space import StateSpace, class_bases
from airdistill.planning.convergence.receiver_error import filter_gain
from airdistill.radio.receivers import project_on_simplex

_NEWTON_STEPS = 5
_SMALL_STEP = 1e-3  # of a log-odds
_DRAWS = 64  # of the posterior, half of them mirrored


class Estimator(Protocol):
    def __call__(self, received: FloatArray, noise_var: FloatArray) -> FloatArray:
        """Class means `[class, entry]` from r̂ `[class, entry]` and its noise v `[class]`, round by round."""


def linear(received: FloatArray, noise_var: FloatArray) -> FloatArray:  # noqa: ARG001
    """r̂ itself: squared error K v."""
    return received


def best_unbiased(received: FloatArray, noise_var: FloatArray) -> FloatArray:  # noqa: ARG001
    """The nearest vector of sum one: squared error (K − 1) v.

    This is the constrained Cramér-Rao bound of one round: no estimator that is unbiased for all class means of sum one
    has a smaller error, and earlier rounds do not help it if class means may move in any way.
    """
    return np.asarray(received + (1 - received.sum(axis=1, keepdims=True)) / received.shape[1])


def projected(received: FloatArray, noise_var: FloatArray) -> FloatArray:  # noqa: ARG001
    return project_on_simplex(received)


@dataclass(frozen=True)
class SingleRound:
    """Linear minimum mean square error from one round (Shao, Gündüz, Liew, arXiv 2109.03780, for aligned signals).

    The prior is Gaussian: `mean` `[class, entry]`, and a common, an own and a remaining variance as in `Parts`.
    """

    mean: FloatArray
    common: float
    own: float
    rest: float

    @classmethod
    def fitted(cls, paths: FloatArray) -> SingleRound:
        """Moments of all rounds of recorded class means `[run, round, class, entry]`."""
        num_classes = paths.shape[2]
        mean = paths.mean(axis=(0, 1))
        coordinates = np.einsum("kec,rtke->rtkc", class_bases(num_classes), paths - mean)
        common = coordinates[..., 0].mean(axis=-1)
        # Deviations from the mean over classes have (K − 1)/K of the own variance; that mean holds the other 1/K.
        own = float(((coordinates[..., 0] - common[..., None]) ** 2).mean()) * num_classes / (num_classes - 1)
        rest = float((coordinates[..., 1:] ** 2).mean()) if num_classes > 2 else 0.0
        return cls(mean, max(float((common**2).mean()) - own / num_classes, 0.0), own, rest)

    def __call__(self, received: FloatArray, noise_var: FloatArray) -> FloatArray:
        bases = class_bases(len(self.mean))
        coordinates = np.einsum("kec,ke->kc", bases, received - self.mean)
        prior = self.common + self.own * np.eye(len(self.mean))
        confidence = prior @ np.linalg.solve(prior + np.diag(noise_var), coordinates[:, 0])
        gain = filter_gain(np.full(len(noise_var), self.rest), noise_var)
        found = np.column_stack([confidence, gain[:, None] * coordinates[:, 1:]])
        return project_on_simplex(self.mean + np.einsum("kec,kc->ke", bases, found))


class Kalman:
    """The Kalman filter of a linear process: the least mean squared error, if the process is that one."""

    def __init__(self, process: StateSpace, project: bool) -> None:
        self._process, self._project = process, project
        self._mean, self._covariance, self._started = process.mean, process.covariance, False

    def __call__(self, received: FloatArray, noise_var: FloatArray) -> FloatArray:
        process = self._process
        if self._started:
            self._mean = process.onward @ self._mean
            self._covariance = process.onward @ self._covariance @ process.onward.T + process.drift
        self._started = True
        precision = 1.0 / noise_var
        innovation = received - process.class_means(self._mean)
        length = process.num_classes - 1
        self._covariance = updated(self._covariance, precision[:, None, None] * np.eye(length))
        score = precision[:, None] * np.einsum("kec,ke->kc", process.bases, innovation)
        self._mean = self._mean + self._covariance[:, :-1] @ score.ravel()
        estimate = process.class_means(self._mean)
        return project_on_simplex(estimate) if self._project else estimate


class LogisticNormal:
    """The posterior mean on the simplex, for class means softmax(Bz) of a Gaussian walk z.

    The posterior of z is approximated by a Gaussian at its maximum, found by Gauss-Newton steps from the prediction,
    and the mean of softmax(Bz) by draws from it. It is the Bayesian estimator but for these two approximations.
    """

    def __init__(self, process: StateSpace) -> None:
        self._process = process
        self._mean, self._covariance, self._started = process.mean, process.covariance, False
        half = np.random.default_rng(0).standard_normal((_DRAWS // 2, process.num_classes, process.num_classes - 1))
        self._draws = np.concatenate([half, -half])

    def __call__(self, received: FloatArray, noise_var: FloatArray) -> FloatArray:
        process = self._process
        if self._started:
            self._mean = process.onward @ self._mean
            self._covariance = process.onward @ self._covariance @ process.onward.T + process.drift
        self._started = True
        self._mean, self._covariance = self._posterior(received, noise_var)
        return self._mean_on_simplex()

    def _posterior(self, received: FloatArray, noise_var: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and covariance: z ← m + C Hᵀ R⁻¹ (y − h(z) + H(z − m)) with C = (P⁻¹ + Hᵀ R⁻¹ H)⁻¹, H at z."""
        process, precision = self._process, 1.0 / noise_var
        state, num_classes = self._mean, process.num_classes
        for _ in range(_NEWTON_STEPS):
            derivatives = process.derivatives(state)
            information = precision[:, None, None] * np.einsum("kea,keb->kab", derivatives, derivatives)
            covariance = updated(self._covariance, information)
            moved = (state - self._mean)[:-1].reshape(num_classes, -1)
            missing = received - process.class_means(state) + np.einsum("kec,kc->ke", derivatives, moved)
            score = precision[:, None] * np.einsum("kec,ke->kc", derivatives, missing)
            found = self._mean + covariance[:, :-1] @ score.ravel()
            step, state = np.abs(found - state).max(), found
            if step < _SMALL_STEP:
                break
        return state, covariance

    def _mean_on_simplex(self) -> FloatArray:
        blocks = blocks_of_classes(self._covariance, self._process.num_classes)
        values, vectors = np.linalg.eigh(blocks)
        roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        drawn = np.einsum("kab,nkb->nka", roots, self._draws)
        states = self._mean + np.column_stack([drawn.reshape(len(drawn), -1), np.zeros(len(drawn))])
        return np.asarray(self._process.class_means(states).mean(axis=0))
