"""Small-scale fading of unit mean power, new in every round."""

from __future__ import annotations

import numpy as np

from airdistill.arrays import ComplexArray


def draw_fading(kind: str, num_devices: int, rng: np.random.Generator, rician_k_db: float = 0.0) -> ComplexArray:
    """One coefficient for every device, `[device]`, with E|·|² = 1.

    `real_gaussian` is the paper's wording ("i.i.d. standard Gaussian") taken at its word.
    """
    if kind == "none":
        return np.ones(num_devices, dtype=np.complex128)
    if kind == "real_gaussian":
        return rng.standard_normal(num_devices).astype(np.complex128)
    scattered: ComplexArray = np.sqrt(0.5) * (rng.standard_normal(num_devices) + 1j * rng.standard_normal(num_devices))
    if kind == "rayleigh":
        return scattered
    if kind == "rician":
        k_factor = 10.0 ** (rician_k_db / 10.0)
        direct, rest = np.sqrt(k_factor / (k_factor + 1)), np.sqrt(1 / (k_factor + 1))
        return np.asarray(direct + rest * scattered)
    raise ValueError(f"fading = {kind!r}: must be rayleigh, rician, real_gaussian or none")
