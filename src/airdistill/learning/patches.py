"""Features that say which images look alike, from the images alone: how strongly each of a few typical patches is
found in each part of an image (Coates, Lee and Ng, 2011).

Noisy rows pooled over samples that look alike, without labels: theory section 8.

Rows of like samples are alike; the noise in them is not. The samples' own neighbourhood graph says which are like, and
its slow modes carry what the rows have in common. How slow is read off the rows themselves, for their noise is known.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.sparse.linalg import eigsh

from airdistill.arrays import FloatArray, IntArray

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


_NEIGHBOURS = 6
_MOST_AT_ONCE = 5000  # samples of which all modes are found; of more, the slowest
_SLOWEST = 300
_AT_ONCE = 2000  # samples whose distances to all others are computed together
# Of α: the closer to 1, the farther rows are alike.
_REACHES = (0.9, 0.95, 0.98, 0.99, 0.995, 0.998)
_SIGNALS = np.geomspace(1e-3, 1e3, 49)  # variance of a mode over that of the noise


@dataclass(frozen=True)
class Modes:
    """Of a graph of N samples, all or the slowest: orthonormal vectors `[sample, mode]`, eigenvalues of S `[mode]`."""

    vectors: FloatArray
    eigenvalues: FloatArray

    @classmethod
    def of(cls, features: FloatArray) -> Modes:
        """Of the nearest neighbours by angle of features `[sample, feature]`."""
        graph = neighbour_graph(features, min(_NEIGHBOURS, len(features) - 1))
        if len(features) <= _MOST_AT_ONCE:
            eigenvalues, vectors = eigh(graph.toarray(), overwrite_a=True, check_finite=False)
            return cls(vectors, eigenvalues)
        # A start vector of its own would make the last bits a matter of chance.
        start = np.random.default_rng(0).standard_normal(len(features))
        eigenvalues, vectors = eigsh(graph, k=_SLOWEST, which="LA", v0=start)
        return cls(vectors, eigenvalues)


def neighbour_graph(features: FloatArray, neighbours: int) -> csr_array:
    """S = D^-½ W D^-½ with W = exp(−(1 − cos)/mean distance to the last neighbour), and W_ij if either is the other's.

    Cosines are of features `[sample, feature]`.
    """
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    nearest, cosines = _nearest(unit, neighbours)
    scale = max(float((1 - cosines[:, -1]).mean()), 1e-12)
    rows = np.repeat(np.arange(len(unit)), neighbours)
    one_way = csr_array((np.exp((cosines - 1) / scale).ravel(), (rows, nearest.ravel())), shape=(len(unit),) * 2)
    weights = one_way.maximum(one_way.T)
    inverse_root = 1 / np.sqrt(np.maximum(np.asarray(weights.sum(axis=1)).ravel(), 1e-12))
    return csr_array(weights.multiply(inverse_root[:, None]).multiply(inverse_root[None, :]))


def _nearest(unit: FloatArray, neighbours: int) -> tuple[IntArray, FloatArray]:
    """The nearest others of every sample, nearest first: their places and cosines, `[sample, neighbour]`."""
    places, cosines = [], []
    for start in range(0, len(unit), _AT_ONCE):
        block = unit[start : start + _AT_ONCE] @ unit.T
        block[np.arange(len(block)), start + np.arange(len(block))] = -np.inf
        found = np.argpartition(-block, neighbours - 1, axis=1)[:, :neighbours]
        values = np.take_along_axis(block, found, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        places.append(np.take_along_axis(found, order, axis=1))
        cosines.append(np.take_along_axis(values, order, axis=1))
    return np.concatenate(places), np.concatenate(cosines)


def smoothed(rows: FloatArray, noise_var: float, modes: Modes) -> FloatArray:
    """How rows `[sample, class]` with so much noise per entry differ from their mean, each mode kept by the share of it
    that is signal.

    The signal is taken to have variance c·g(λ) in a mode of eigenvalue λ, with g ∝ (1 − αλ)^-2: α and c are those
    under which the rows are likeliest. The mean is left out: beside what is shrunk, its own noise would favour the
    classes that it happens to favour.
    """
    strength = modes.vectors.T @ (rows - rows.mean(axis=0))  # [mode, class]
    squares = (strength**2).mean(axis=1)
    signal = likeliest_signal(squares, noise_var, modes.eigenvalues)
    kept = signal / (signal + noise_var) if noise_var > 0 else np.ones_like(signal)
    return np.asarray(modes.vectors @ (kept[:, None] * strength))


def likeliest_signal(squares: FloatArray, noise_var: float, eigenvalues: FloatArray) -> FloatArray:
    """The variances `[mode]` under which these mean squares `[mode]` of signal and noise are likeliest."""
    best, found = -np.inf, np.zeros_like(squares)
    floor = max(noise_var, 1e-30)
    for reach in _REACHES:
        shape = (1 - reach * eigenvalues) ** -2.0
        shape = shape / shape.mean()
        for size in _SIGNALS:
            signal = size * floor * shape
            total = signal + noise_var
            likelihood = -float((np.log(total) + squares / total).sum())
            if likelihood > best:
                best, found = likelihood, signal
    return found
