"""Noise that really protects: exact discrete Gaussians from the operating system's randomness, by OpenDP.

Nothing here can be seeded or replayed. Seeded noise, for simulation, is in `exchange`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from airdistill.air.grid import LARGEST_SIGNAL, SecureGrid
from airdistill.arrays import ComplexArray, FloatArray, IntArray
from airdistill.codesign.transceiver import RoundDesign
from airdistill.errors import AirDistillError

_EXACT = 2**53  # up to here a float holds every integer
_SATURATED = np.iinfo(np.int64)


def discrete_gaussian(deviation: float, shape: int | tuple[int, ...]) -> IntArray:
    """Fresh draws of N_Z(0, deviation²), the deviation in grid units: P(z) ∝ exp(−z²/(2 deviation²)).

    OpenDP samples without approximation, in whole and rational numbers (Canonne, Kamath and Steinke 2020, algorithm 3).
    """
    if not 0 <= deviation < np.inf:
        raise ValueError(f"deviation = {deviation}: must be finite and not negative")
    if deviation == 0:
        return np.zeros(shape, dtype=np.int64)
    count = int(np.prod(shape))
    drawn = np.array(_mechanism()(float(deviation))([0] * count), dtype=np.int64)
    # OpenDP cuts off what does not fit into 64 bits: that would be another distribution.
    if ((drawn == _SATURATED.max) | (drawn == _SATURATED.min)).any():
        raise AirDistillError(f"secure noise of {deviation:.3g} grid units does not fit into 64 bits")
    return drawn.reshape(shape)


@dataclass(frozen=True)
class SecureNoise:
    """One round's noise: the devices' is drawn when they transmit, n `[class, slot]` is the receiver's own."""

    grid: SecureGrid
    receiver: ComplexArray

    def transmit(self, design: RoundDesign, vectors: FloatArray, energy_slots: float) -> ComplexArray:  # noqa: ARG002
        return transmit_on_grid(self.grid, vectors)


def transmit_on_grid(grid: SecureGrid, vectors: FloatArray) -> ComplexArray:
    """x = unit·g·(round(amplitude·q/g) + Z), Z ~ N_Z(0, (deviation/g)²), from q `[device, row, entry]`, same shape.

    A device sends nothing of a row in which its amplitude is 0, but may still add noise to it.
    """
    if vectors.shape[2] != grid.vector_length or vectors.shape[:2] != grid.amplitude.shape:
        raise ValueError(f"vectors of shape {vectors.shape}: must be {(*grid.amplitude.shape, grid.vector_length)}")
    whole = rounded_on_grid(grid, vectors) + _drawn(grid)
    if not ((whole > -_EXACT) & (whole < _EXACT)).all():
        raise AirDistillError("secure noise: signal and noise exceed 2^53 grid units, where the grid is not exact")
    # g is a power of two, so that this is exact still; only the last product, a public factor, rounds.
    on_grid = whole * grid.spacing[:, None]
    return np.asarray(grid.unit[:, :, None] * on_grid)


def rounded_on_grid(grid: SecureGrid, vectors: FloatArray) -> IntArray:
    """round(amplitude·q/g), `[device, row, entry]`, and 0 where a device has nothing to say."""
    amplitude = grid.amplitude[:, :, None]
    share = amplitude * np.where(amplitude != 0, vectors, 0.0) / grid.spacing[:, None]
    # Written so that what is no number is refused as well.
    if not (np.abs(share) <= LARGEST_SIGNAL).all():
        raise AirDistillError(f"secure noise: what is sent must be numbers of at most {LARGEST_SIGNAL:.3g} grid units")
    return np.asarray(np.rint(share).astype(np.int64))


def _drawn(grid: SecureGrid) -> IntArray:
    noise = np.zeros((*grid.deviation.shape, grid.vector_length), dtype=np.int64)
    units = grid.deviation / grid.spacing
    for device, row in np.argwhere(units > 0):
        noise[device, row] = discrete_gaussian(float(units[device, row]), grid.vector_length)
    return noise


@cache
def _mechanism() -> Callable[[float], Any]:
    """From a deviation to what adds that noise to a list of integers."""
    try:
        import opendp.prelude as dp
    except ImportError as error:
        raise AirDistillError("secure noise needs OpenDP: pip install 'airdistill[secure]'") from error
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="i64")
    return lambda deviation: dp.m.make_gaussian(*space, scale=deviation)
