"""Features that say which images look alike, from the images alone: how strongly each of a few typical patches is
found in each part of an image (Coates, Lee and Ng, 2011)."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from airdistill.arrays import FloatArray

_NUM_PATTERNS, _SIZE, _PARTS = 64, 6, 4
_DRAWN = 30_000  # patches that the typical ones are found among
_PASSES = 15
_LEAST_CONTRAST = 0.1  # of a drawn patch: most of an image is often empty
_SOFTENING = 0.5  # added to a patch's norm, so that empty ones do not become loud
_THRESHOLD = 0.25
_NUMBERS_AT_ONCE = 1 << 23  # of all patches of some images


def features_of(samples: NDArray[np.generic]) -> FloatArray:
    """`[sample, feature]` of images `[sample, channel, row, column]`; samples that are no images are their own."""
    scaled = samples.astype(np.float64)
    low, high = scaled.min(), scaled.max()
    scaled = (scaled - low) / max(high - low, 1e-12)
    if scaled.ndim != 4 or min(scaled.shape[2:]) < _SIZE + _PARTS:
        return np.asarray(scaled.reshape(len(scaled), -1))
    patterns = _typical_patches(scaled, np.random.default_rng(0))
    at_once = max(1, _NUMBERS_AT_ONCE // (scaled[0].size * _SIZE**2))
    chunks = [_strengths(scaled[start : start + at_once], patterns) for start in range(0, len(scaled), at_once)]
    # A root makes room for the weak ones beside the strong.
    return np.asarray(np.sqrt(np.concatenate(chunks)))


def _typical_patches(images: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Unit vectors `[pattern, number]` by k-means on directions."""
    patches = sliding_window_view(images, (_SIZE, _SIZE), axis=(2, 3))  # [image, channel, row, column, ., .]
    image, row, column = (rng.integers(size, size=_DRAWN) for size in (len(images), *patches.shape[2:4]))
    drawn = patches[image, :, row, column].reshape(_DRAWN, -1)
    drawn = drawn[drawn.std(axis=1) > _LEAST_CONTRAST]
    if len(drawn) < _NUM_PATTERNS:  # images without structure: any patterns will do
        drawn = rng.standard_normal((_NUM_PATTERNS, drawn.shape[1]))
    directions = _normalised(drawn)
    directions = directions - directions.mean(axis=0)
    centres = _unit(directions[rng.permutation(len(directions))[:_NUM_PATTERNS]])
    for _ in range(_PASSES):
        cosines = directions @ centres.T
        nearest = cosines.argmax(axis=1)
        weighed = directions * np.take_along_axis(cosines, nearest[:, None], axis=1)
        centres = _unit(np.eye(_NUM_PATTERNS)[nearest].T @ weighed)
    return centres


def _strengths(images: FloatArray, patterns: FloatArray) -> FloatArray:
    """How strongly every pattern is found in each of 4 × 4 parts of an image, `[image, pattern · part]`."""
    patches = np.moveaxis(sliding_window_view(images, (_SIZE, _SIZE), axis=(2, 3)), 1, 3)
    rows, columns = patches.shape[1:3]
    found = _normalised(patches.reshape(len(images), rows, columns, -1)) @ patterns.T
    found = np.maximum(found - _THRESHOLD, 0.0)
    parts = [
        found[:, top:bottom, left:right].mean(axis=(1, 2))
        for top, bottom in _cuts(rows)
        for left, right in _cuts(columns)
    ]
    return np.concatenate(parts, axis=1)


def _cuts(length: int) -> list[tuple[int, int]]:
    edges = np.linspace(0, length, _PARTS + 1).round().astype(int).tolist()
    return list(itertools.pairwise(edges))


def _normalised(patches: FloatArray) -> FloatArray:
    """Without mean and, but for the fainter ones, of about the same norm."""
    centred = patches - patches.mean(axis=-1, keepdims=True)
    return np.asarray(centred / (np.linalg.norm(centred, axis=-1, keepdims=True) + _SOFTENING))


def _unit(vectors: FloatArray) -> FloatArray:
    return np.asarray(vectors / (np.linalg.norm(vectors, axis=-1, keepdims=True) + 1e-6))
