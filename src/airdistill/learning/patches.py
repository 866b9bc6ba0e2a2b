"""Smoothing of noisy rows over similar samples, without labels (theory section 8).

1. `patch_features`: unsupervised features of images, the activation of k-means patches in each region of an image
   (Coates, Lee and Ng, 2011).
2. `GraphSpectrum`: eigenvectors of the nearest-neighbour graph of these features.
3. `smoothed`: rows of similar samples are similar, and their noise is independent. The signal lies in the eigenvectors
   that vary slowly over the graph. How slowly is estimated from the rows themselves, because their noise is known.
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

_NUM_CENTRES, _SIZE, _REGIONS = 64, 6, 4  # of k-means; pixels along a patch; regions along an axis
_NUM_PATCHES = 30_000  # drawn for k-means
_ITERATIONS = 15  # of k-means
_MIN_CONTRAST = 0.1  # standard deviation of a drawn patch: large parts of an image are often empty
_NORM_OFFSET = 0.5  # added to a patch's norm, so that normalisation does not amplify empty patches
_THRESHOLD = 0.25  # of an activation
_MAX_ELEMENTS = 1 << 23  # of the unfolded patches in memory at once

_NEIGHBOURS = 6
_MAX_DENSE = 5000  # samples up to which all eigenvectors are computed, beyond that the leading ones
_NUM_LEADING = 300
_CHUNK = 2000  # samples whose distances to all others are computed together
# Candidates for α: the closer to 1, the longer the correlation length of the signal on the graph.
_ALPHAS = (0.9, 0.95, 0.98, 0.99, 0.995, 0.998)
_SIGNAL_TO_NOISE = np.geomspace(1e-3, 1e3, 49)  # candidates for the mean signal variance over the noise variance


def patch_features(samples: NDArray[np.generic]) -> FloatArray:
    """Features `[sample, feature]` of images `[sample, channel, row, column]`; other samples are flattened."""
    scaled = samples.astype(np.float64)
    low, high = scaled.min(), scaled.max()
    scaled = (scaled - low) / max(high - low, 1e-12)
    if scaled.ndim != 4 or min(scaled.shape[2:]) < _SIZE + _REGIONS:
        return np.asarray(scaled.reshape(len(scaled), -1))
    centres = _patch_centres(scaled, np.random.default_rng(0))
    chunk = max(1, _MAX_ELEMENTS // (scaled[0].size * _SIZE**2))
    chunks = [_activations(scaled[start : start + chunk], centres) for start in range(0, len(scaled), chunk)]
    # The square root reduces the dominance of strong activations.
    return np.asarray(np.sqrt(np.concatenate(chunks)))


def _patch_centres(images: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Unit vectors `[centre, pixel]` by spherical k-means on random patches."""
    patches = sliding_window_view(images, (_SIZE, _SIZE), axis=(2, 3))  # [image, channel, row, column, ., .]
    image, row, column = (rng.integers(size, size=_NUM_PATCHES) for size in (len(images), *patches.shape[2:4]))
    drawn = patches[image, :, row, column].reshape(_NUM_PATCHES, -1)
    drawn = drawn[drawn.std(axis=1) > _MIN_CONTRAST]
    if len(drawn) < _NUM_CENTRES:  # images without structure: any centres serve
        drawn = rng.standard_normal((_NUM_CENTRES, drawn.shape[1]))
    directions = _normalised(drawn)
    directions = directions - directions.mean(axis=0)
    centres = _unit(directions[rng.permutation(len(directions))[:_NUM_CENTRES]])
    for _ in range(_ITERATIONS):
        cosines = directions @ centres.T
        nearest = cosines.argmax(axis=1)
        weighted = directions * np.take_along_axis(cosines, nearest[:, None], axis=1)
        centres = _unit(np.eye(_NUM_CENTRES)[nearest].T @ weighted)
    return centres


def _activations(images: FloatArray, centres: FloatArray) -> FloatArray:
    """The mean activation of every centre in each of 4 × 4 regions of an image, `[image, centre · region]`."""
    patches = np.moveaxis(sliding_window_view(images, (_SIZE, _SIZE), axis=(2, 3)), 1, 3)
    rows, columns = patches.shape[1:3]
    active = _normalised(patches.reshape(len(images), rows, columns, -1)) @ centres.T
    active = np.maximum(active - _THRESHOLD, 0.0)
    regions = [
        active[:, top:bottom, left:right].mean(axis=(1, 2))
        for top, bottom in _intervals(rows)
        for left, right in _intervals(columns)
    ]
    return np.concatenate(regions, axis=1)


def _intervals(length: int) -> list[tuple[int, int]]:
    edges = np.linspace(0, length, _REGIONS + 1).round().astype(int).tolist()
    return list(itertools.pairwise(edges))


def _normalised(patches: FloatArray) -> FloatArray:
    """Patches without their mean and of norm about 1; faint patches stay smaller."""
    centred = patches - patches.mean(axis=-1, keepdims=True)
    return np.asarray(centred / (np.linalg.norm(centred, axis=-1, keepdims=True) + _NORM_OFFSET))


def _unit(vectors: FloatArray) -> FloatArray:
    return np.asarray(vectors / (np.linalg.norm(vectors, axis=-1, keepdims=True) + 1e-6))


@dataclass(frozen=True)
class GraphSpectrum:
    """Eigenvectors `[sample, mode]` and eigenvalues `[mode]` of a graph's matrix S, all or the leading ones."""

    vectors: FloatArray
    eigenvalues: FloatArray

    @classmethod
    def of(cls, features: FloatArray) -> GraphSpectrum:
        """The spectrum of the nearest-neighbour graph, by cosine, of features `[sample, feature]`."""
        graph = neighbour_graph(features, min(_NEIGHBOURS, len(features) - 1))
        if len(features) <= _MAX_DENSE:
            eigenvalues, vectors = eigh(graph.toarray(), overwrite_a=True, check_finite=False)
            return cls(vectors, eigenvalues)
        # A fixed start vector: the solver's random one would make the rounding irreproducible.
        start = np.random.default_rng(0).standard_normal(len(features))
        eigenvalues, vectors = eigsh(graph, k=_NUM_LEADING, which="LA", v0=start)
        return cls(vectors, eigenvalues)


def neighbour_graph(features: FloatArray, neighbours: int) -> csr_array:
    """S = D^-½ W D^-½ with W_ij = exp(−(1 − cos_ij)/s) if i or j is among the other's nearest neighbours, else 0.

    s is the mean distance 1 − cos to the last neighbour; features are `[sample, feature]`.
    """
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    nearest, cosines = _nearest(unit, neighbours)
    scale = max(float((1 - cosines[:, -1]).mean()), 1e-12)
    rows = np.repeat(np.arange(len(unit)), neighbours)
    directed = csr_array((np.exp((cosines - 1) / scale).ravel(), (rows, nearest.ravel())), shape=(len(unit),) * 2)
    weights = directed.maximum(directed.T)
    inverse_root = 1 / np.sqrt(np.maximum(np.asarray(weights.sum(axis=1)).ravel(), 1e-12))
    return csr_array(weights.multiply(inverse_root[:, None]).multiply(inverse_root[None, :]))


def _nearest(unit: FloatArray, neighbours: int) -> tuple[IntArray, FloatArray]:
    """Indices and cosines of every sample's nearest neighbours, nearest first, `[sample, neighbour]`."""
    indices, cosines = [], []
    for start in range(0, len(unit), _CHUNK):
        block = unit[start : start + _CHUNK] @ unit.T
        block[np.arange(len(block)), start + np.arange(len(block))] = -np.inf
        found = np.argpartition(-block, neighbours - 1, axis=1)[:, :neighbours]
        values = np.take_along_axis(block, found, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        indices.append(np.take_along_axis(found, order, axis=1))
        cosines.append(np.take_along_axis(values, order, axis=1))
    return np.concatenate(indices), np.concatenate(cosines)


def smoothed(rows: FloatArray, noise_var: float, spectrum: GraphSpectrum) -> FloatArray:
    """Wiener-filter the deviations of rows `[sample, class]` from their mean, mode by mode.

    The noise has variance `noise_var` per entry. The signal is modelled with variance c·g(λ) in a mode of eigenvalue λ,
    g ∝ (1 − αλ)^-2, and α and c are their maximum-likelihood estimates. The mean is left out, because its noise is not
    shrunk and would bias all rows towards the same classes.
    """
    coefficients = spectrum.vectors.T @ (rows - rows.mean(axis=0))  # [mode, class]
    squares = (coefficients**2).mean(axis=1)
    signal = maximum_likelihood_signal(squares, noise_var, spectrum.eigenvalues)
    gain = signal / (signal + noise_var) if noise_var > 0 else np.ones_like(signal)
    return np.asarray(spectrum.vectors @ (gain[:, None] * coefficients))


def maximum_likelihood_signal(squares: FloatArray, noise_var: float, eigenvalues: FloatArray) -> FloatArray:
    """The signal variances `[mode]` that maximise the likelihood of mean squares `[mode]` of signal plus noise."""
    best, best_signal = -np.inf, np.zeros_like(squares)
    floor = max(noise_var, 1e-30)
    for alpha in _ALPHAS:
        shape = (1 - alpha * eigenvalues) ** -2.0
        shape = shape / shape.mean()
        for ratio in _SIGNAL_TO_NOISE:
            signal = ratio * floor * shape
            total = signal + noise_var
            likelihood = -float((np.log(total) + squares / total).sum())
            if likelihood > best:
                best, best_signal = likelihood, signal
    return best_signal
