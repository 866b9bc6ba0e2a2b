"""Large-scale path loss as a power gain: |h|² on average."""

from __future__ import annotations

import numpy as np

from airdistill.arrays import FloatArray

SPEED_OF_LIGHT_M_S = 3e8  # the paper's own figure


def path_gain(distance_m: FloatArray, carrier_hz: float, exponent: float) -> FloatArray:
    """(c / (4π f d))^exponent, `[device]`.

    The paper multiplies "the small-scale fading coefficient on the path loss" and leaves open whether that is an
    amplitude; here it is a power, so that h = √path_gain · fading.
    """
    return (SPEED_OF_LIGHT_M_S / (4 * np.pi * carrier_hz * np.asarray(distance_m, dtype=np.float64))) ** exponent
