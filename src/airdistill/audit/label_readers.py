"""Linear readings of a device's answers: a likelihood ratio between two label distributions, and class shares.

Both use the covariances of the shadow devices' answers, of the noise, and, if the attacker has only the sum, of the
other devices' answers. A covariance has a low rank plus a multiple of the identity, and so its inverse needs no more
than the inner products of the shadow devices' answers (Woodbury).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.audit.label_shadows import LabelShadows
from airdistill.radio.receivers import project_on_simplex

_REGULARISATION = 0.01  # of every entry: this share of the shadow devices' variance is added to that of the noise


@dataclass(frozen=True)
class Others:
    """The other devices, for an attacker who has only the sum: what shadow devices in their place answer.

    `answers` is `[shadow device, round, entry]`; `weight` `[round]` is that of a device in units of the audited one's.
    """

    count: int
    answers: FloatArray
    weight: FloatArray

    @property
    def contributions(self) -> FloatArray:
        """What one device adds to the answers of the audited one, `[shadow device, round, entry]`."""
        return self.answers * self.weight[:, None]

    @property
    def mean(self) -> FloatArray:
        """The mean of all devices' contributions, `[round, entry]`."""
        return np.asarray(self.count * self.contributions.mean(axis=0))

    @property
    def factors(self) -> FloatArray:
        """Half of the covariance of their sum, FᵀF, `[factor, round, entry]`: few shadow devices show only a part."""
        return np.asarray(np.sqrt(self._times / 2) * _factors(self.contributions))

    @property
    def variance(self) -> FloatArray:
        """The other half, spread evenly over entries, `[round]`."""
        return self._times / 2 * _mean_variance(self.contributions)

    @property
    def _times(self) -> float:
        """The variance of the sum in units of one device's, with the error of the mean that shadow devices give."""
        return self.count * (1 + self.count / len(self.answers))


@dataclass(frozen=True)
class Reader:
    """Readings of answers `[round, entry]`: Λ, positive if they look like those of D', and the class shares.

    `readings` is `[reading, round and entry]`, Λ first, and `offset` `[reading]`.
    """

    readings: FloatArray
    offset: FloatArray

    @classmethod
    def of(cls, shadows: LabelShadows, noise_var: FloatArray, others: Others | None) -> Reader:
        """The readings for noise of this variance `[round]`; without `others` their answers are known."""
        variance = noise_var + _REGULARISATION * _mean_variance(np.concatenate(list(shadows.answers.values())))
        if others is not None:
            variance = variance + others.variance
        scale = 1 / np.sqrt(np.where(variance > 0, variance, 1.0))[:, None]
        unknown = [] if others is None else [others.factors * scale]
        parts = [_likelihood_ratio(shadows, scale, unknown), _class_shares(shadows, scale, unknown)]
        # Λ is zero, and the shares are the prior, for the mean answers.
        at_mean = [np.zeros(1), shadows.any_shares.mean(axis=0)]
        offsets = []
        for (rows, mean), value in zip(parts, at_mean, strict=True):
            whole = mean if others is None else mean + others.mean
            offsets.append(value - rows @ whole.reshape(-1))
        return cls(np.concatenate([rows for rows, _ in parts]), np.concatenate(offsets))

    def linear(self, answers: FloatArray) -> FloatArray:
        """The linear part of all readings of `[..., round, entry]`, `[..., reading]`."""
        return np.asarray(answers.reshape(*answers.shape[:-2], -1) @ self.readings.T)

    def read(self, linear: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Λ `[...]` and the class shares `[..., class]`."""
        whole = linear + self.offset
        return whole[..., 0], project_on_simplex(whole[..., 1:])


def _likelihood_ratio(
    shadows: LabelShadows, scale: FloatArray, unknown: list[FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """The row of Λ, `[1, round and entry]`, and the answers halfway between D and D', `[round, entry]`."""
    own, other = shadows.answers["own"], shadows.answers["other"]
    means = own.mean(axis=0), other.mean(axis=0)
    within = [np.sqrt(0.5) * _factors(each) * scale for each in (own, other)]
    row = _times_inverse(_flat((means[1] - means[0])[None] * scale), _flat(np.concatenate([*within, *unknown])))
    return row * _flat(np.broadcast_to(scale, means[0].shape)[None]), (means[0] + means[1]) / 2


def _class_shares(shadows: LabelShadows, scale: FloatArray, unknown: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """The rows of the class shares, `[class, round and entry]`, and the mean answers, `[round, entry]`.

    From all entries, or from the sum over public samples of every class's entries. The choice is made by
    the expected error for shadow devices that were held out; it depends on the noise alone.
    """
    answers, shares = shadows.answers["any"], shadows.any_shares
    flat, hidden = _flat(answers * scale), _flat(np.concatenate([answers[:0], *unknown]))
    sums = np.tile(np.eye(shares.shape[1]), answers.shape[2] // shares.shape[1])[:, None] * scale
    summed = _flat(sums)
    kept = -(-len(flat) * 3 // 4)

    def from_all(chosen: slice) -> FloatArray:
        spread = _factors(flat[chosen])
        return _times_inverse(_factors(shares[chosen]).T @ spread, np.concatenate([spread, hidden]))

    def from_sums(chosen: slice) -> FloatArray:
        spread, others = _factors(flat[chosen] @ summed.T), hidden @ summed.T
        covariance = spread.T @ spread
        ridge = _REGULARISATION * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        whole = covariance + ridge + summed @ summed.T + others.T @ others
        return np.asarray(np.linalg.solve(whole, spread.T @ _factors(shares[chosen])).T @ summed)

    def expected_error(rows: FloatArray) -> float:
        left, prior = flat[kept:] - flat[:kept].mean(axis=0), shares[:kept].mean(axis=0)
        misses = ((prior + left @ rows.T - shares[kept:]) ** 2).sum(axis=1).mean()
        return float(misses + (rows**2).sum() + ((rows @ hidden.T) ** 2).sum())

    best = min((from_all, from_sums), key=lambda fit: expected_error(fit(slice(kept))))
    rows = best(slice(None))
    return rows * _flat(np.broadcast_to(scale, answers.shape[1:])[None]), answers.mean(axis=0)


def _flat(answers: FloatArray) -> FloatArray:
    """`[row, round, entry]` as `[row, round and entry]`."""
    return answers.reshape(len(answers), answers.shape[1] * answers.shape[2])


def _factors(values: FloatArray) -> FloatArray:
    """F whose FᵀF is the covariance over the first axis, in the shape of the values."""
    return np.asarray((values - values.mean(axis=0)) / np.sqrt(len(values) - 1))


def _mean_variance(answers: FloatArray) -> FloatArray:
    """The variance over devices, averaged over entries, `[round]`."""
    return np.asarray(answers.var(axis=0).mean(axis=-1))


def _times_inverse(rows: FloatArray, factors: FloatArray) -> FloatArray:
    """rows·(I + FᵀF)⁻¹ for F `[factor, entry]`."""
    inner = np.eye(len(factors)) + factors @ factors.T
    return np.asarray(rows - np.linalg.solve(inner, factors @ rows.T).T @ factors)
