"""Sionna's power conventions become ours: the only place where they meet."""

from __future__ import annotations

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray


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
