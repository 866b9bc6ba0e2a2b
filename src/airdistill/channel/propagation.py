"""Large-scale path loss as a power gain: |h|² on average.

Small-scale fading of unit mean power, new in every round.

Sionna's power conventions become ours: the only place where they meet.
"""

from __future__ import annotations

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray

SPEED_OF_LIGHT_M_S = 3e8  # the paper's own figure


def path_gain(distance_m: FloatArray, carrier_hz: float, exponent: float) -> FloatArray:
    """(c / (4π f d))^exponent, `[device]`.

    The paper multiplies "the small-scale fading coefficient on the path loss" and leaves open whether that is an
    amplitude; here it is a power, so that h = √path_gain · fading.
    """
    return (SPEED_OF_LIGHT_M_S / (4 * np.pi * carrier_hz * np.asarray(distance_m, dtype=np.float64))) ** exponent


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


def narrowband_gains(path_coefficients: ComplexArray, path_gain: FloatArray | float = 1.0) -> ComplexArray:
    """The h of every round and device, `[round, device]`, from Sionna's coefficients `[round, device, path]`.

    * Sionna's coefficients a are amplitudes. UMi, UMa and RMa carry their path loss and shadowing in them, as
      10^(−PL/20)·√SF, so that |Σa|² is a power gain already: leave `path_gain` at 1.
    * TDL coefficients have E Σ|a|² = 1, the direct path included, and no path loss: `path_gain` `[device]`, a power,
      becomes an amplitude here.
    * A slot is one tone at the carrier: of Σ a exp(−j2πfτ) with f = 0 the plain sum is left.
    * Sionna's noise variance N0 counts both axes of complex noise, as `radio.noise_power` does: nothing to convert.
    """
    return np.asarray(np.sqrt(path_gain) * path_coefficients.sum(axis=-1))
