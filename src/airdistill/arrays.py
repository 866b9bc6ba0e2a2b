"""Array types for signatures. Docstrings give shapes as `[device, class]`; names give units as `_w`, `_s`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
ComplexArray: TypeAlias = NDArray[np.complex128]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]


def fields_of(given: Any, kind: type) -> dict[str, Any]:
    """Return the fields of the dataclass `kind` that `given` has, as keys of a mapping or attributes of an object."""
    names = [field.name for field in fields(kind)]
    if isinstance(given, Mapping):
        return {name: given[name] for name in names if name in given}
    return {name: getattr(given, name) for name in names if hasattr(given, name)}


def largest(array: FloatArray) -> FloatArray:
    """Return the largest value of all devices, `[..., row]`, from `[..., device, row]`.

    NumPy's own reduction over the devices takes ten times as long for short rows: blocks of devices are compared first.
    """
    devices, rows = array.shape[-2:]
    block = 64
    if array.ndim != 2 or devices < 16 * block or not array.flags.c_contiguous:
        return np.asarray(array.max(axis=-2))
    whole = devices // block * block
    blocks = array[:whole].reshape(-1, block * rows).max(axis=0).reshape(block, rows)
    return np.asarray(np.concatenate([blocks, array[whole:]]).max(axis=0))


def divide_or(numerator: FloatArray, denominator: FloatArray, otherwise: float) -> FloatArray:
    """Return the quotient, with `otherwise` in place of divisions by zero."""
    shape = np.broadcast_shapes(np.shape(numerator), np.shape(denominator))
    quotient = np.full(shape, otherwise)
    np.divide(numerator, denominator, out=quotient, where=np.asarray(denominator) != 0)
    return quotient
