"""Between a device's (ε, δ) and the μ of its releases, for each accountant and each kind of noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import FloatArray
from airdistill.privacy.accountant import gaussian_epsilon, gaussian_mu, paper_mu
from airdistill.privacy.concentrated import concentrated_epsilon, concentrated_mu

# Secure noise lives on a grid; rounding to it raises a device's shift by at most this share, which plans leave free.
ROUNDING = 1e-6


def target_mu(epsilon: ArrayLike, delta: ArrayLike, accountant: str, noise: str = "seeded") -> FloatArray:
    """The μ that an accountant grants for the target (ε, δ), `[device]`."""
    exact = concentrated_mu if noise == "secure" else gaussian_mu
    rules: dict[str, Callable[[ArrayLike, ArrayLike], Any]] = {"exact": exact, "paper": paper_mu}
    if accountant not in rules:
        raise ValueError(f"accountant = {accountant!r}: must be one of {', '.join(rules)}")
    return np.atleast_1d(np.asarray(rules[accountant](epsilon, delta), dtype=np.float64))


def epsilon_of_mu(mu: ArrayLike, delta: ArrayLike, noise: str = "seeded") -> FloatArray:
    """The smallest sound ε, `[device]`: exact for Gaussian noise, by concentrated DP for sums of discrete Gaussians."""
    convert = concentrated_epsilon if noise == "secure" else gaussian_epsilon
    return np.atleast_1d(np.asarray(convert(mu, delta), dtype=np.float64))


def paper_epsilon(mu: ArrayLike, delta: ArrayLike) -> FloatArray:
    """What Theorem 2 would say of this μ: ε = μ√(2 ln(1/δ)), `[device]`."""
    return np.atleast_1d(np.asarray(mu, dtype=np.float64) * np.sqrt(2 * np.log(1 / np.asarray(delta))))
