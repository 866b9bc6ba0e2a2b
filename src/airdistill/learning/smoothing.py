"""Noisy rows pooled over samples that look alike, without labels: theory section 8.

Rows of like samples are alike; the noise in them is not. The samples' own neighbourhood graph says which are like, and
its slow modes carry what the rows have in common. How slow is read off the rows themselves, for their noise is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.sparse.linalg import eigsh

from airdistill.arrays import FloatArray, IntArray

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
