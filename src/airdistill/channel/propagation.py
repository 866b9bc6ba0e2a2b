"""Path loss as a power gain, small-scale fading of unit mean power, and the conversion of Sionna's coefficients."""

from __future__ import annotations

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray

SPEED_OF_LIGHT_M_S = 3e8  # the paper's value


def path_gain(distance_m: FloatArray, carrier_hz: float, exponent: float) -> FloatArray:
    """(c / (4π f d))^exponent, `[device]`.

    The paper multiplies "the small-scale fading coefficient on the path loss" and does not say whether the path loss is
    an amplitude. Here it is a power, and so h = √path_gain · fading.
    """
    return (SPEED_OF_LIGHT_M_S / (4 * np.pi * carrier_hz * np.asarray(distance_m, dtype=np.float64))) ** exponent


def draw_fading(kind: str, num_devices: int, rng: np.random.Generator, rician_k_db: float = 0.0) -> ComplexArray:
    """Draw one coefficient per device, `[device]`, with E|·|² = 1.

    `real_gaussian` follows the paper's wording ("i.i.d. standard Gaussian") literally.
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
    """h of every round and device, `[round, device]`, from Sionna's path coefficients `[round, device, path]`.

    * Sionna's coefficients a are amplitudes. Those of cells include path loss and shadowing as 10^(−PL/20)·√SF,
      and so |Σa|² is already a power gain: `path_gain` has antennas and losses only.
    * TDL coefficients have E Σ|a|² = 1, including the line-of-sight path, and do not include path loss: `path_gain`
      `[device]` is a power and is converted to an amplitude here.
    * A slot is one tone at the carrier: Σ a exp(−j2πfτ) with f = 0 is the sum of the coefficients.
    * Sionna's noise variance N0 is the total of both axes, as is the receiver noise of a link budget.
    """
    return np.asarray(np.sqrt(path_gain) * path_coefficients.sum(axis=-1))
