"""Samples made from public facts alone: their shape, their kind of number and their labels.

They stand in for data that nobody may look at. Each class has a smooth random pattern, and every sample is its class's
pattern mixed with a smooth one of its own. Bytes look like handwriting from afar: dark, with about as much bright area
as MNIST, so that `learning` scales them as it does real images. Floats have mean 0 and variance 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike, NDArray

from airdistill.arrays import FloatArray, IntArray

_OWN_SHARE = 0.5  # of a sample's variance; devices then learn in a few rounds and not at once, as on MNIST
_BLUR = 1 / 12  # of an axis; on 28 pixels, about the width of a stroke
_SHORTEST_AXIS = 8  # shorter ones are colours, or features with no order
_BRIGHT_ABOVE, _EDGE = 1.1, 0.2  # standard deviations


def synthetic_samples(
    labels: IntArray, patterns: FloatArray, dtype: DTypeLike, rng: np.random.Generator
) -> NDArray[np.generic]:
    """A sample for every label `[sample, ...]`, from the patterns `[class, ...]` that `class_patterns` draws."""
    own = _smooth(len(labels), patterns.shape[1:], rng)
    field = np.sqrt(1 - _OWN_SHARE) * patterns[labels] + np.sqrt(_OWN_SHARE) * own
    if np.dtype(dtype) != np.uint8:
        return np.asarray(field, dtype=np.float32)
    brightness = 1 / (1 + np.exp((_BRIGHT_ABOVE - field) / _EDGE))
    return np.asarray(np.rint(255 * brightness), dtype=np.uint8)


def class_patterns(num_classes: int, shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    """A smooth random pattern for each class, `[class, ...]`."""
    return _smooth(num_classes, shape, rng)


def _smooth(count: int, shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    """Gaussian fields of mean 0 and variance 1, smooth along long axes, `[field, ...]`."""
    from scipy.ndimage import gaussian_filter

    noise = rng.standard_normal((count, *shape))
    # A single long axis is a list of features, which have no neighbours.
    images = sum(length >= _SHORTEST_AXIS for length in shape) > 1
    blur = [0.0, *(_BLUR * length if images and length >= _SHORTEST_AXIS else 0.0 for length in shape)]
    smoothed = gaussian_filter(noise, sigma=blur, mode="wrap")
    return np.asarray(smoothed / smoothed.std())
