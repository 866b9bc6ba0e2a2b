"""Synthetic samples in place of data that must not be used: of every class a smooth random pattern, in smooth noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike, NDArray

from airdistill.arrays import FloatArray, IntArray

_NOISE_FRACTION = 0.5  # of a sample's variance; devices then need a few rounds to learn, as on MNIST
_BLUR = 1 / 12  # relative to an axis; for 28 pixels about the width of a stroke
_MIN_SMOOTH_AXIS = 8  # shorter axes are colours, or features without an order
_BRIGHT_ABOVE, _EDGE = 1.1, 0.2  # standard deviations


def synthetic_samples(
    labels: IntArray, patterns: FloatArray, dtype: DTypeLike, rng: np.random.Generator
) -> NDArray[np.generic]:
    """Draw a sample for every label, `[sample, ...]`, from patterns `[class, ...]` of `class_patterns`.

    Synthetic samples replace data that must not be used, for instance to measure constants without a privacy cost: only
    shape, type and labels are taken from the data. Every sample is a mixture of its class's smooth random pattern and
    smooth noise. Bytes have the brightness of MNIST, and so `learning` scales them as it does real images. Floats have
    mean 0 and variance 1.
    """
    noise = _smooth(len(labels), patterns.shape[1:], rng)
    field = np.sqrt(1 - _NOISE_FRACTION) * patterns[labels] + np.sqrt(_NOISE_FRACTION) * noise
    if np.dtype(dtype) != np.uint8:
        return np.asarray(field, dtype=np.float32)
    brightness = 1 / (1 + np.exp((_BRIGHT_ABOVE - field) / _EDGE))
    return np.asarray(np.rint(255 * brightness), dtype=np.uint8)


def class_patterns(num_classes: int, shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    """A smooth random pattern for each class, `[class, ...]`."""
    return _smooth(num_classes, shape, rng)


def _smooth(count: int, shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    """Gaussian random fields `[field, ...]` of mean 0 and variance 1, smooth along long axes."""
    from scipy.ndimage import gaussian_filter

    noise = rng.standard_normal((count, *shape))
    # A single long axis is a list of features without spatial order.
    images = sum(length >= _MIN_SMOOTH_AXIS for length in shape) > 1
    blur = [0.0, *(_BLUR * length if images and length >= _MIN_SMOOTH_AXIS else 0.0 for length in shape)]
    smoothed = gaussian_filter(noise, sigma=blur, mode="wrap")
    return np.asarray(smoothed / smoothed.std())
