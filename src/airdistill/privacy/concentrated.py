"""Accounting for noise that is a sum of discrete Gaussians, by zero-concentrated differential privacy (zCDP).

Discrete Gaussian noise protects an integer shift of size Δ as well as continuous noise of the same σ in every Rényi
divergence: D_α ≤ αρ with ρ = μ²/2 and μ = Δ/σ. The exact Gaussian curve of `privacy/gaussian.py` does not hold for it.
The bound is therefore converted by

    ε = inf over α > 1 of  ρα + [ln(1/(αδ)) + (α−1) ln(1 − 1/α)]/(α−1)

(Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", 2020, arXiv 2004.00010). A sum of
discrete Gaussians is only nearly a discrete Gaussian; the closeness τ below bounds the difference (Kairouz, Liu and
Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation", 2021, arXiv
2102.06387).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import FloatArray
from airdistill.privacy.gaussian import checked, increasing_root, unwrap

_LEAST_VARIANCE = 0.5  # of a summand, in squared grid units: the lemma does not apply below it
_ROUNDING = 16 * np.finfo(np.float64).eps  # covers the dozen rounding errors of the conversion


def concentrated_epsilon(mu: ArrayLike, delta: ArrayLike) -> Any:
    """The smallest ε ≥ 0 that ρ = μ²/2 gives at δ; a float for numbers. μ = 0 gives 0, μ = inf gives inf.

    It is never below the true ε: every α gives a valid bound, and the result is rounded up.
    """
    mu, delta = checked(mu, delta, "mu", zero_allowed=True)
    ordinary = (mu > 0) & np.isfinite(mu)
    epsilon, _ = _converted(np.where(ordinary, mu, 1.0), delta)
    return unwrap(np.where(ordinary, np.maximum(epsilon, 0.0), np.where(mu > 0, np.inf, 0.0)))


def concentrated_mu(epsilon: ArrayLike, delta: ArrayLike) -> Any:
    """The largest μ with `concentrated_epsilon(μ, δ)` ≤ ε; a float for numbers, an array for arrays. inf gives inf."""
    epsilon, delta = checked(epsilon, delta, "epsilon")
    finite = np.isfinite(epsilon)
    eps = np.where(finite, epsilon, 1.0)

    def excess(log_mu: FloatArray) -> tuple[FloatArray, FloatArray]:
        mu = np.exp(log_mu)
        reached, order = _converted(mu, delta)
        # At the optimal α the bound depends on ρ alone: ∂ε/∂ρ = α, and ρ = μ²/2.
        return reached - eps, mu * mu * order

    # ε = ρ + 2√(ρ ln 1/δ) is always enough; solved for μ without cancellation.
    root = np.sqrt(2 * -np.log(delta))
    low = np.log(2 * eps / (np.sqrt(root * root + 2 * eps) + root))
    # Take the bracket's lower end: its ε was verified not to exceed the target.
    return unwrap(np.where(finite, np.exp(increasing_root(excess, low, low + 1.0)), np.inf))


def sum_closeness(deviations: ArrayLike) -> Any:
    """τ of a sum of discrete Gaussians with these standard deviations in grid units, `[device, ...]` → `[...]`.

    With Z the discrete Gaussian of the same total variance, |ln P(sum = z)/P(Z = z)| ≤ τ/2 for every z, and so the
    privacy loss of each entry changes by at most τ. A device with deviation 0 adds nothing; one summand gives 0. For n
    equal σ, τ is 10 Σ_{k<n} exp(−2π²σ²k/(k+1)).
    """
    # Largest first: the variance accumulated before each further summand is then as large as possible, and τ smallest.
    variances = -np.sort(-(np.asarray(deviations, dtype=np.float64) ** 2), axis=0)
    if not np.all((variances == 0) | (variances >= _LEAST_VARIANCE)) or np.isinf(variances).any():
        raise ValueError("deviations: must be 0, or at least √½ grid units and finite")
    before, added = np.cumsum(variances, axis=0)[:-1], variances[1:]
    present = added > 0
    # Kairouz, Liu and Steinke, lemma on the convolution of two discrete Gaussians of variances a, b ≥ ½:
    # |ln ratio| ≤ 5 exp(−2π²/(1/a + 1/b)); and 1/(1/a + 1/b) = ab/(a + b).
    together = added * (before / np.where(present, before + added, 1.0))
    terms = np.where(present, 5 * np.exp(-2 * np.pi**2 * together), 0.0)
    # Once for the shifted and once for the unshifted sum.
    return unwrap(np.asarray(2 * terms.sum(axis=0)))


def _converted(mu: FloatArray, delta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The bound at the optimal α, which may be negative, and that α; for finite μ > 0.

    With β = α − 1 and L = ln(1/δ) it is ρ(1+β) + (L − ln(1+β))/β − ln(1+1/β), and its derivative is
    ρ − (L − ln(1+β))/β²: the optimal β solves ρβ² + ln(1+β) = L, whose left side increases.
    """
    log_inverse, log_mu = -np.log(delta), np.log(mu)

    def excess(log_beta: FloatArray) -> tuple[FloatArray, FloatArray]:
        beta = np.exp(log_beta)
        quadratic = 0.5 * np.exp(2 * (log_mu + log_beta))
        return quadratic + np.log1p(beta) - log_inverse, 2 * quadratic + beta / (1 + beta)

    # At the root one of the two terms is at least L/2, and neither exceeds L.
    half = log_inverse / 2
    low = np.minimum(0.5 * np.log(log_inverse) - log_mu, half + np.log(-np.expm1(-half)))
    high = np.minimum(0.5 * np.log(2 * log_inverse) - log_mu, log_inverse + np.log(-np.expm1(-log_inverse)))
    with np.errstate(over="ignore"):
        beta = np.minimum(np.exp(increasing_root(excess, low, high)), 1e300)
    rho, log_order, beyond = 0.5 * mu * mu, np.log1p(beta), np.log1p(1 / beta)
    bound = rho * (1 + beta) + (log_inverse - log_order) / beta - beyond
    sizes = rho * (1 + beta) + (log_inverse + log_order) / beta + beyond
    return bound + _ROUNDING * sizes, 1 + beta
