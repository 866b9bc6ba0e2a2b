"""Lower bounds on the squared error of every receiver, biased or not, on a random process of known law.

The posterior Cramér-Rao bound (van Trees): E(ẑ − z)(ẑ − z)ᵀ ≥ J⁻¹, where J adds the information of the prior to that of
all observations. For the newest state of a Gaussian walk, Tichavský's recursion (IEEE Trans. SP 46(5), 1998) is
J_t = (Q + F J_{t−1}⁻¹ Fᵀ)⁻¹ + E[Hᵀ R⁻¹ H]. A function of the state with derivative H has the bound E[H] J⁻¹ E[H]ᵀ.
For a linear H it is the Kalman filter's variance, and so it is reached.
"""

from __future__ import annotations

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.bench.state_space import StateSpace


def posterior_bound(
    process: StateSpace, noise_var: FloatArray, num_draws: int = 400, rng: np.random.Generator | None = None
) -> FloatArray:
    """Least squared error of a class's vector, `[round, class]`, for noise v `[round, class]`.

    On the simplex the expectations are means over `num_draws` simulated runs; otherwise H is constant.
    """
    states = process.simulate(rng or np.random.default_rng(0), len(noise_var), num_draws if process.on_simplex else 1)
    bound: list[FloatArray] = []
    covariance = process.covariance
    for at_round, noise in zip(states, noise_var, strict=True):
        if bound:
            covariance = process.onward @ covariance @ process.onward.T + process.drift
        derivatives = process.derivatives(at_round)
        information = np.einsum("nkea,nkeb->kab", derivatives, derivatives) / len(derivatives)
        covariance = updated(covariance, information / noise[:, None, None])
        bound.append(_of_class_means(derivatives.mean(axis=0), covariance))
    return np.stack(bound)


def updated(covariance: FloatArray, information: FloatArray) -> FloatArray:
    """(P⁻¹ + D)⁻¹ = (I + P D)⁻¹ P for the information D `[class, coordinate, coordinate]`; P may be singular."""
    num_classes, length, _ = information.shape
    product = np.zeros_like(covariance)
    for klass in range(num_classes):
        own = slice(klass * length, (klass + 1) * length)
        product[:, own] = covariance[:, own] @ information[klass]
    after = np.linalg.solve(np.eye(len(covariance)) + product, covariance)
    return np.asarray((after + after.T) / 2)


def blocks_of_classes(covariance: FloatArray, num_classes: int) -> FloatArray:
    """The covariance of each class's own coordinates, `[class, coordinate, coordinate]`."""
    length = (len(covariance) - 1) // num_classes
    square = covariance[:-1, :-1].reshape(num_classes, length, num_classes, length)
    return np.asarray(np.einsum("kakb->kab", square))


def _of_class_means(derivative: FloatArray, covariance: FloatArray) -> FloatArray:
    """The trace of H P Hᵀ, `[class]`."""
    blocks = blocks_of_classes(covariance, len(derivative))
    return np.asarray(np.einsum("kea,kab,keb->k", derivative, blocks, derivative))
