"""What a device says of the public samples: its predictions, or votes on what it knows and nothing on the rest.

However it comes to them, its answers keep to the bound that its privacy rests on: no more of them than was agreed, no
entry below zero, and none of a norm above 1.

Selective-FD's selectors (Shao, Wu and Zhang, Nature Communications 15, 349, 2024): which public samples a device
knows enough of to speak about, and which of the server's rows are certain enough to learn from.

A device compares the density p of its own samples with a uniform density q by KuLSIF (Kanamori, Suzuki and Sugiyama,
Machine Learning 86, 2012), and accepts a public sample where p/q is as high as on most of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from airdistill.arrays import BoolArray, FloatArray, IntArray

_ROUNDING = 1e-9


def votes(predictions: FloatArray, confidence: float) -> FloatArray:
    """One-hot where the largest probability `[..., sample, class]` reaches `confidence`, zeros elsewhere."""
    surest = predictions.argmax(axis=-1)
    chosen = np.eye(predictions.shape[-1])[surest]
    return np.where(predictions.max(axis=-1, keepdims=True) >= confidence, chosen, 0.0)


def surest_answers(answers: FloatArray, sureness: FloatArray, most: int) -> FloatArray:
    """Of each device's answers `[device, sample, class]` the `most` with the largest sureness `[device, sample]`; the
    others are zeros. Of equally sure ones the first are kept."""
    if most >= answers.shape[1]:
        return answers
    said = answers.any(axis=-1)
    order = np.argsort(np.where(said, -sureness, np.inf), axis=1, kind="stable")
    kept = np.zeros(said.shape, dtype=np.bool_)
    np.put_along_axis(kept, order[:, :most], values=True, axis=1)
    return np.where(kept[..., None], answers, 0.0)


def check_answers(answers: FloatArray, most: int) -> None:
    """Raises if a device's answers `[device, sample, class]` break the bound that hides them."""
    said = answers.any(axis=-1).sum(axis=1)
    if said.max() > most:
        raise ValueError(f"device {int(said.argmax())} answers {said.max()} samples, where {most} were agreed")
    least = answers.min(axis=(1, 2))
    if least.min() < 0:
        raise ValueError(
            f"device {int(least.argmin())} has an answer with an entry of {least.min():.3g}: must be 0 or more"
        )
    norms = np.linalg.norm(answers, axis=-1).max(axis=1)
    if not norms.max() <= 1 + _ROUNDING:
        raise ValueError(f"device {int(norms.argmax())} has an answer of norm {norms.max():.3g}: must be 1 at most")


def sharpened(rows: FloatArray, temperature: float) -> FloatArray:
    """softmax(row/temperature), `[row, class]`: a row of any numbers becomes a surer prediction (DS-FL's ERA)."""
    scaled = rows / temperature
    scaled = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return np.asarray(scaled / scaled.sum(axis=-1, keepdims=True))


# Of a class with few samples more than its share is known: with 8 known samples out of 150 a device of MNIST's shards
# accepts 40 % of the images of other classes, with 40 of them 19 %, and about as many of its own.
_FEWEST_KNOWN = 40
# Samples whose kernels with a few hundred others stay in the processor's cache.
_RATIOS_AT_ONCE = 2048


@dataclass(frozen=True)
class DensityRatio:
    """r(x) ≈ p(x)/q(x) from m samples of p, `known`, and n samples of q, `auxiliary`, both `[sample, feature]`.

    r minimises (1/2n)Σ_l r(z_l)² − (1/m)Σ_j r(x_j) + (λ/2)‖r‖² in the space of the kernel k. Its gradient vanishes
    where λr = (1/m)Σ_j k(·,x_j) − (1/n)Σ_l r(z_l)k(·,z_l), so r has the form of `ratio` with α_l = −r(z_l)/(nλ); put
    into r(z_l), that is the linear system of `fit`. Its matrix must be inverted: the authors' published demo
    multiplies by it instead.
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
        """α = (K11/n + λI)⁻¹(−K12·1/(nmλ)), with K11 of auxiliaries and K12 of auxiliaries and known samples.

        λ is n^(−1/2) unless it is given.
        """
        count = len(auxiliary)
        strength = count**-0.5 if regularisation is None else regularisation
        matrix = _kernel(auxiliary, auxiliary, width) / count + strength * np.eye(count)
        pull = _kernel(auxiliary, known, width).mean(axis=1) / (count * strength)
        return cls(known, auxiliary, cho_solve(cho_factor(matrix), -pull), width, strength)

    def ratio(self, samples: FloatArray) -> FloatArray:
        """r(x) = (1/(mλ))Σ_j k(x,x_j) + Σ_l α_l k(x,z_l) for each of `[sample, feature]`; may be a little below 0.

        Where q's samples are far away, as uniform ones are from images of hundreds of pixels, the second sum is zero
        and r is p's kernel density but for a factor.
        """
        starts = range(0, len(samples), _RATIOS_AT_ONCE)
        return np.concatenate([self._ratio(samples[start : start + _RATIOS_AT_ONCE]) for start in starts])

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
    """What a device knows: for each of its classes a density ratio, and the ratio from which on a sample is like it.

    One ratio for each class, as the authors do it where devices have two: classes are unequally dense. With one ratio
    for both, a device with 0 and 1 of MNIST accepts half of the zeros, all ones and 14 % of the rest; with two 68 %,
    85 % and 2 %.
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
        """From the device's own `samples` `[sample, ...]` and `labels` `[sample]`; the defaults are the authors'.

        Samples are taken as a model sees them: the authors' width is for pixels that are centred and scaled by MNIST's
        mean and standard deviation; in pixels between 0 and 1 it would be three times as wide, and more of the other
        classes pass. A `share` of each class is known to its ratio, forty samples at least but half of them at most;
        the others set the threshold, a `quantile` of their ratios. A class with a single sample is not known.
        """
        flat = _flattened(samples)
        auxiliary = rng.uniform(flat.min(), flat.max(), (num_auxiliary, flat.shape[1]))
        ratios, thresholds = [], []
        for label in np.unique(labels):
            own = rng.permutation(flat[labels == label])
            num_known = min(max(round(share * len(own)), _FEWEST_KNOWN), len(own) // 2)
            if num_known > 0:
                ratios.append(DensityRatio.fit(own[:num_known], auxiliary, width))
                thresholds.append(float(np.quantile(ratios[-1].ratio(own[num_known:]), quantile)))
        return cls(tuple(ratios), tuple(thresholds))

    def accepts(self, public_samples: NDArray[np.generic]) -> BoolArray:
        """Which public samples `[sample, ...]` are like those of one of the device's classes, `[sample]`."""
        flat = _flattened(public_samples)
        accepted = np.zeros(len(flat), dtype=np.bool_)
        for ratio, threshold in zip(self.ratios, self.thresholds, strict=True):
            accepted |= ratio.ratio(flat) > threshold
        return accepted


def _flattened(samples: NDArray[np.generic]) -> FloatArray:
    return samples.reshape(len(samples), -1).astype(np.float64)


def certain_rows(rows: FloatArray, threshold: float) -> BoolArray:
    """The server's selector: which rows `[row, class]` lie within `threshold`, in L1, of their own one-hot, `[row]`.

    The distance of probabilities is 2(1 − the largest). A row that is no finite vector is not certain.
    """
    one_hot = np.eye(rows.shape[1])[rows.argmax(axis=1)]
    return np.asarray(np.abs(rows - one_hot).sum(axis=1) <= threshold)
