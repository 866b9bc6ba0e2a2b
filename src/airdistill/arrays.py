"""The array types of signatures. Shapes stand in docstrings as `[device, class]`, units in names as `_w`, `_s`."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
ComplexArray: TypeAlias = NDArray[np.complex128]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]


def divide_or(numerator: FloatArray, denominator: FloatArray, otherwise: float) -> FloatArray:
    """The quotient, and `otherwise` wherever the denominator is zero."""
    shape = np.broadcast_shapes(np.shape(numerator), np.shape(denominator))
    quotient = np.full(shape, otherwise)
    np.divide(numerator, denominator, out=quotient, where=np.asarray(denominator) != 0)
    return quotient
