"""Mean and standard deviation of public samples, by which all samples are normalised."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import FloatArray

_ROWS_AT_ONCE = 4096  # in double precision; bounds the memory
_COLOURS = (1, 3, 4)
_SINGLE = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation, of a shape that samples `[sample, ...]` can be divided by."""

    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]

    @classmethod
    def of(cls, samples: NDArray[np.generic]) -> Normalization:
        """Fit each channel of images, each feature of vectors, or all numbers together.

        Sums run over samples first and are rounded once at their end: every type of processor finds the same numbers,
        and so the digest of the normalised data is the same everywhere.
        """
        mean = _mean_of_channels(sum(chunk.sum(axis=0) for chunk in _chunks(samples)), samples)
        squares = sum(np.square(chunk - mean).sum(axis=0) for chunk in _chunks(samples))
        deviation = np.sqrt(_mean_of_channels(squares, samples))
        varies = deviation > _SINGLE * np.abs(mean)  # what is constant in single precision is only centred
        return cls(mean.astype(np.float32), np.where(varies, deviation, 1.0).astype(np.float32))

    def __call__(self, samples: NDArray[np.generic]) -> NDArray[np.float32]:
        """The samples with mean 0 and variance 1, as far as they are distributed like the public ones."""
        return np.asarray((samples.astype(np.float32) - self.mean) / self.deviation)


def _chunks(samples: NDArray[np.generic]) -> Iterator[FloatArray]:
    for first in range(0, len(samples), _ROWS_AT_ONCE):
        yield np.ascontiguousarray(samples[first : first + _ROWS_AT_ONCE], dtype=np.float64)


def _mean_of_channels(sums: FloatArray | int, samples: NDArray[np.generic]) -> FloatArray:
    """The mean of every channel from sums over the samples `[...]`, of a shape that broadcasts to them."""
    totals, axis = np.asarray(sums), _channel_axis(samples.shape)
    groups = totals.reshape(1, -1) if axis is None else np.moveaxis(totals, axis, 0).reshape(totals.shape[axis], -1)
    means = np.array([math.fsum(group) for group in groups]) / (len(samples) * groups.shape[1])
    return means.reshape([len(means) if place == axis else 1 for place in range(totals.ndim)])


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """The axis of channels or features in one sample; coloured images may have it first or last."""
    if len(shape) == 4:
        return 2 if shape[3] in _COLOURS and shape[1] not in _COLOURS else 0
    return 0 if len(shape) == 2 else None
