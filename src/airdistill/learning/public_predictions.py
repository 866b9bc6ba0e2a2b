"""Predictions on the public set: votes and abstention, their sensitivity bound, sharpening, and selectors.

A device sends a row per public sample: its prediction, a one-hot vote, or zeros if it abstains. Its privacy rests on a
bound of these rows: at most an agreed number is nonzero, no entry is negative, and no row has a norm above 1.

Selective-FD (Shao, Wu and Zhang, Nature Communications 15, 349, 2024) selects the public samples that a device
predicts, and the aggregated rows that are certain enough to learn from. A device estimates the ratio of the density p
of its own samples to a uniform density q by KuLSIF (Kanamori, Suzuki and Sugiyama, Machine Learning 86, 2012), and
accepts a public sample if p/q is as high as on most of its own samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from airdistill.arrays import BoolArray, FloatArray, IntArray

_NORM_TOLERANCE = 1e-9
# The minimum number of a class's samples that its density ratio is fitted to. With 8 of 150 samples, a device of the
# MNIST shards accepts 40 % of the images of other classes; with 40 samples 19 %, and about as many of its own.
_MIN_FIT_SAMPLES = 40
# Samples per chunk: their kernels with a few hundred others stay in the processor's cache.
_RATIO_CHUNK = 2048


def votes(predictions: FloatArray, confidence: float) -> FloatArray:
    """A one-hot vote if the largest probability of `[..., sample, class]` reaches `confidence`, else zeros."""
    one_hot = np.eye(predictions.shape[-1])[predictions.argmax(axis=-1)]
    return np.where(predictions.max(axis=-1, keepdims=True) >= confidence, one_hot, 0.0)


def surest_answers(rows: FloatArray, confidence: FloatArray, most: int) -> FloatArray:
    """Keep each device's `most` most confident rows of `[device, sample, class]`, and set the others to zero.

    Confidences are `[device, sample]`; ties are resolved in favour of the first rows. Zero rows are never selected
    before nonzero ones.
    """
    if most >= rows.shape[1]:
        return rows
    nonzero = rows.any(axis=-1)
    order = np.argsort(np.where(nonzero, -confidence, np.inf), axis=1, kind="stable")
    selected = np.zeros(nonzero.shape, dtype=np.bool_)
    np.put_along_axis(selected, order[:, :most], values=True, axis=1)
    return np.where(selected[..., None], rows, 0.0)


def check_answers(rows: FloatArray, most: int) -> None:
    """Raise an error if a device's rows `[device, sample, class]` violate the bound of the sensitivity."""
    counts = rows.any(axis=-1).sum(axis=1)
    if counts.max() > most:
        raise ValueError(f"device {int(counts.argmax())} answers {counts.max()} samples, where {most} were agreed")
    smallest = rows.min(axis=(1, 2))
    if smallest.min() < 0:
        raise ValueError(
            f"device {int(smallest.argmin())} has a prediction with an entry of {smallest.min():.3g}: must be 0 or more"
        )
    norms = np.linalg.norm(rows, axis=-1).max(axis=1)
    if not norms.max() <= 1 + _NORM_TOLERANCE:
        raise ValueError(f"device {int(norms.argmax())} has a prediction of norm {norms.max():.3g}: must be at most 1")


def sharpened(rows: FloatArray, temperature: float) -> FloatArray:
    """softmax(row/temperature), `[row, class]`: entropy reduction aggregation (ERA) of DS-FL."""
    scaled = rows / temperature
    scaled = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return np.asarray(scaled / scaled.sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class DensityRatio:
    """r(x) ≈ p(x)/q(x) from m samples of p, `known`, and n samples of q, `auxiliary`, both `[sample, feature]`.

    r minimises (1/2n)Σ_l r(z_l)² − (1/m)Σ_j r(x_j) + (λ/2)‖r‖² in the reproducing kernel Hilbert space of k. Its
    gradient vanishes if λr = (1/m)Σ_j k(·,x_j) − (1/n)Σ_l r(z_l)k(·,z_l), and so r has the form of `ratio` with
    α_l = −r(z_l)/(nλ). Inserted into r(z_l), this gives the linear system of `fit`. Its matrix must be inverted: the
    authors' published demo multiplies by it instead.
    """

    known: FloatArray
    auxiliary: FloatArray
    weights: FloatArray
    width: float
    regularisation: float

    @classmethod
    def fit(
        cls, known: FloatArray, auxiliary: FloatArray, width: float = 5.0, regularisation: float | None = None
    ) -> DensityRatio:
        """α = (K11/n + λI)⁻¹(−K12·1/(nmλ)), with K11 of auxiliary samples and K12 of auxiliary and known samples.

        λ is n^(−1/2) by default.
        """
        count = len(auxiliary)
        strength = count**-0.5 if regularisation is None else regularisation
        matrix = _kernel(auxiliary, auxiliary, width) / count + strength * np.eye(count)
        cross = _kernel(auxiliary, known, width).mean(axis=1) / (count * strength)
        return cls(known, auxiliary, cho_solve(cho_factor(matrix), -cross), width, strength)

    def ratio(self, samples: FloatArray) -> FloatArray:
        """r(x) = (1/(mλ))Σ_j k(x,x_j) + Σ_l α_l k(x,z_l) for each of `[sample, feature]`; may be slightly
        negative.

        If q's samples are far away, as uniform samples are from images of hundreds of pixels, the second sum is zero
        and r is proportional to the kernel density estimate of p.
        """
        starts = range(0, len(samples), _RATIO_CHUNK)
        return np.concatenate([self._ratio(samples[start : start + _RATIO_CHUNK]) for start in starts])

    def _ratio(self, samples: FloatArray) -> FloatArray:
        from_known = _kernel(samples, self.known, self.width).mean(axis=1) / self.regularisation
        from_auxiliary = _kernel(samples, self.auxiliary, self.width) @ self.weights
        return np.asarray(from_known + from_auxiliary)


def _kernel(left: FloatArray, right: FloatArray, width: float) -> FloatArray:
    """exp(−‖x − z‖²/(2 width²)) for every pair, `[left, right]`."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)
    distances = np.maximum(squares - 2 * left @ right.T, 0.0)
    return np.asarray(np.exp(distances / (-2 * width**2)))


@dataclass(frozen=True)
class ClientSelector:
    """A device's client selector: a density ratio for each of its classes, and the threshold above which it accepts.

    There is one ratio per class, as in the authors' code for devices with two classes, because classes differ in
    density. With one ratio for both, a device with digits 0 and 1 of MNIST accepts half of the zeros, all ones and
    14 % of the rest; with two ratios 68 %, 85 % and 2 %.
    """

    ratios: tuple[DensityRatio, ...]
    thresholds: tuple[float, ...]

    @classmethod
    def for_device(
        cls,
        samples: NDArray[np.generic],
        labels: IntArray,
        rng: np.random.Generator,
        share: float = 0.05,
        num_auxiliary: int = 250,
        width: float = 5.0,
        quantile: float = 0.25,
    ) -> ClientSelector:
        """Fit the selector to a device's `samples` `[sample, ...]` and `labels` `[sample]`; defaults are the authors'.

        Samples are scaled as for the model: the authors' kernel width is for pixels that are centred and scaled by the
        mean and standard deviation of MNIST. For pixels in [0, 1] it would be three times as wide and accept more
        samples of other classes. A fraction `share` of each class fits the ratio, at least 40 samples but at most half
        of them. The others set the threshold, a `quantile` of their ratios. A class with a single sample has no ratio.
        """
        flat = _flattened(samples)
        auxiliary = rng.uniform(flat.min(), flat.max(), (num_auxiliary, flat.shape[1]))
        ratios, thresholds = [], []
        for label in np.unique(labels):
            own = rng.permutation(flat[labels == label])
            num_known = min(max(round(share * len(own)), _MIN_FIT_SAMPLES), len(own) // 2)
            if num_known > 0:
                ratios.append(DensityRatio.fit(own[:num_known], auxiliary, width))
                thresholds.append(float(np.quantile(ratios[-1].ratio(own[num_known:]), quantile)))
        return cls(tuple(ratios), tuple(thresholds))

    def accepts(self, public_samples: NDArray[np.generic]) -> BoolArray:
        """Which public samples `[sample, ...]` resemble one of the device's classes, `[sample]`."""
        flat = _flattened(public_samples)
        accepted = np.zeros(len(flat), dtype=np.bool_)
        for ratio, threshold in zip(self.ratios, self.thresholds, strict=True):
            accepted |= ratio.ratio(flat) > threshold
        return accepted


def _flattened(samples: NDArray[np.generic]) -> FloatArray:
    return samples.reshape(len(samples), -1).astype(np.float64)


def certain_rows(rows: FloatArray, threshold: float) -> BoolArray:
    """The server selector: which rows `[row, class]` have an L1 distance up to `threshold` to their one-hot argmax.

    For a probability vector p the distance is 2(1 − max p). A row that is not finite is not certain.
    """
    one_hot = np.eye(rows.shape[1])[rows.argmax(axis=1)]
    return np.asarray(np.abs(rows - one_hot).sum(axis=1) <= threshold)
