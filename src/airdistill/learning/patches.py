"""Smoothing of noisy rows over similar samples, without labels (theory section 8).

1. `patch_features`: unsupervised features of images, the activation of k-means patches in each region of an image
   (Coates, Lee and Ng, 2011).
2. `GraphSpectrum`: the spectrum of the nearest-neighbour graph of these features.
3. `smoothed`: rows of similar samples are similar, and their noise is independent. The signal lies in the eigenvectors
   that vary slowly over the graph. How slowly is estimated from the rows themselves, because their noise is known.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.fft import dct
from scipy.sparse import csr_array
from scipy.sparse.linalg import eigsh
from torch import Tensor

from airdistill.arrays import FloatArray, IntArray

CPU = torch.device("cpu")
_NUM_CENTRES, _SIZE, _REGIONS = 64, 6, 4  # of k-means; pixels along a patch; regions along an axis
_NUM_PATCHES = 30_000  # drawn for k-means
_ITERATIONS = 15  # of k-means
_MIN_CONTRAST = 0.1  # standard deviation of a drawn patch: large parts of an image are often empty
_NORM_OFFSET = 0.5  # added to a patch's norm, so that normalisation does not amplify empty patches
_THRESHOLD = 0.25  # of an activation
_UNFOLDED = {"cpu": 1 << 18, "cuda": 1 << 26}  # pixels of patches at once; on a CPU they stay in its cache

_NEIGHBOURS = 6
_MAX_DENSE = 5000  # samples up to which all eigenvalues are computed, beyond that the leading ones
_NUM_LEADING = 300
_DEGREES = 1024  # of Chebyshev polynomials of the graph's matrix
_POINTS = np.cos(np.pi * (np.arange(_DEGREES) + 0.5) / _DEGREES)  # zeros of the next one
_CHUNK = 2000  # samples whose distances to all others are computed together
# Candidates for α: the closer to 1, the longer the correlation length of the signal on the graph.
_ALPHAS = (0.9, 0.95, 0.98, 0.99, 0.995, 0.998)
_SIGNAL_TO_NOISE = np.geomspace(1e-3, 1e3, 49)  # candidates for the mean signal variance over the noise variance


def patch_features(samples: NDArray[np.generic], device: torch.device = CPU) -> FloatArray:
    """Features `[sample, feature]` of images `[sample, channel, row, column]`; other samples are flattened."""
    scaled = samples.astype(np.float64)
    low, high = scaled.min(), scaled.max()
    scaled = (scaled - low) / max(high - low, 1e-12)
    if scaled.ndim != 4 or min(scaled.shape[2:]) < _SIZE + _REGIONS:
        return np.asarray(scaled.reshape(len(scaled), -1))
    centres = torch.from_numpy(_patch_centres(scaled, np.random.default_rng(0))).to(device)
    chunk = max(1, _UNFOLDED[device.type] // (scaled[0].size * _SIZE**2))
    chunks = [_activations(images.to(device), centres) for images in torch.split(torch.from_numpy(scaled), chunk)]
    # The square root reduces the dominance of strong activations.
    return torch.cat(chunks).sqrt().cpu().numpy()


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


def _activations(images: Tensor, centres: Tensor) -> Tensor:
    """The mean activation of every centre in each of 4 × 4 regions of an image, `[image, centre · region]`."""
    patches = images.unfold(2, _SIZE, 1).unfold(3, _SIZE, 1).movedim(1, 3).flatten(3)  # [image, row, column, pixel]
    patches = patches - patches.mean(dim=-1, keepdim=True)
    patches /= torch.linalg.vector_norm(patches, dim=-1, keepdim=True) + _NORM_OFFSET
    active = (patches @ centres.T - _THRESHOLD).relu_()
    regions = [
        active[:, top:bottom, left:right].mean(dim=(1, 2))
        for top, bottom in _intervals(active.shape[1])
        for left, right in _intervals(active.shape[2])
    ]
    return torch.cat(regions, dim=1)


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
    """The spectrum of a graph's symmetric matrix S: all eigenvalues, or the leading ones with their eigenvectors.

    Functions of S are applied to rows as Chebyshev polynomials: eigenvectors of thousands of samples take ten times as
    long as eigenvalues. `eigenvalues` `[mode]`; `vectors` `[sample, mode]` are None if all eigenvalues are known.
    """

    graph: csr_array
    eigenvalues: FloatArray
    vectors: FloatArray | None = None

    @classmethod
    def of(cls, features: FloatArray, device: torch.device = CPU) -> GraphSpectrum:
        """The spectrum of the nearest-neighbour graph, by cosine, of features `[sample, feature]`."""
        graph = neighbour_graph(features, min(_NEIGHBOURS, len(features) - 1))
        if len(features) <= _MAX_DENSE:
            return cls(graph, torch.linalg.eigvalsh(torch.from_numpy(graph.toarray()).to(device)).cpu().numpy())
        # A fixed start vector: the solver's random one would make the rounding irreproducible.
        start = np.random.default_rng(0).standard_normal(len(features))
        eigenvalues, vectors = eigsh(graph, k=_NUM_LEADING, which="LA", v0=start)
        return cls(graph, eigenvalues, vectors)

    def squares(self, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Points x and weights w with Σ_i w_i f(x_i) = Σ_m f(λ_m) s_m, s_m the mean square of the rows in mode m.

        The points are the known eigenvalues, or Chebyshev's: exact for f up to degree 1023, and in effect for all f
        that are smooth beyond [−1, 1], as those of `smoothed` are: their poles are at least 0.002 away.
        """
        if self.vectors is not None:
            return self.eigenvalues, ((self.vectors.T @ rows) ** 2).mean(axis=1)
        moments = np.empty(_DEGREES)
        for degree, (before, term) in enumerate(itertools.pairwise(self._chebyshev(rows, _DEGREES // 2 + 1))):
            # 2 T_m T_n = T_(m+n) + T_|m−n|
            moments[2 * degree] = 2 * (before**2).sum() - (rows**2).sum()
            moments[2 * degree + 1] = 2 * (before * term).sum() - moments[1] if degree else (before * term).sum()
        return _POINTS, dct(moments, type=3) / (_DEGREES * rows.shape[1])

    def filtered(self, rows: FloatArray, gain: FloatArray) -> FloatArray:
        """Rows `[sample, class]` with mode m multiplied by its gain, which is given at the points of `squares`."""
        if self.vectors is not None:
            return np.asarray(self.vectors @ (gain[:, None] * (self.vectors.T @ rows)))
        coefficients = dct(gain, type=2) / _DEGREES
        coefficients[0] /= 2
        total = np.zeros_like(rows)
        for coefficient, term in zip(coefficients, self._chebyshev(rows, _DEGREES), strict=True):
            total += coefficient * term
        return total

    def _chebyshev(self, rows: FloatArray, count: int) -> Iterator[FloatArray]:
        """T_0(S) rows, T_1(S) rows, …: `count` terms, by T_(k+1) = 2 S T_k − T_(k−1)."""
        before, term = rows, self.graph @ rows
        for _ in range(count):
            yield before
            before, term = term, 2 * (self.graph @ term) - before


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
    centred = rows - rows.mean(axis=0)
    points, squares = spectrum.squares(centred)
    signal = maximum_likelihood_signal(squares, noise_var, spectrum.eigenvalues, points)
    gain = signal / (signal + noise_var) if noise_var > 0 else np.ones_like(signal)
    return spectrum.filtered(centred, gain)


def maximum_likelihood_signal(
    squares: FloatArray, noise_var: float, eigenvalues: FloatArray, points: FloatArray | None = None
) -> FloatArray:
    """The signal variances `[point]` that maximise the likelihood of mean squares `[point]` of signal plus noise.

    The points are the eigenvalues `[mode]` of the modes, unless `GraphSpectrum.squares` gives others.
    """
    points = eigenvalues if points is None else points
    best, best_signal = -np.inf, np.zeros_like(squares)
    floor = max(noise_var, 1e-30)
    for alpha in _ALPHAS:
        shape, at_points = (1 - alpha * eigenvalues) ** -2.0, (1 - alpha * points) ** -2.0
        mean = shape.mean()
        for ratio in _SIGNAL_TO_NOISE:
            level = ratio * floor / mean
            signal = level * at_points
            likelihood = -float(np.log(level * shape + noise_var).sum() + (squares / (signal + noise_var)).sum())
            if likelihood > best:
                best, best_signal = likelihood, signal
    return best_signal
