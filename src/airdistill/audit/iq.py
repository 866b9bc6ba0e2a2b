"""The best attack on the samples that a server receives in one round of a waveform.

The server knows every channel, every other device's vector, and two vectors of which one device sent either. It
subtracts what it knows. What is left is noise, or noise plus a known shift, and the likelihood ratio is the best test.
For Gaussian noise it is linear in the samples,

    Λ = Re(shiftᴴ Σ⁺ z)/v − μ²/2,   μ² = shiftᴴ Σ⁺ shift/v,

with covariance v Σ on each axis, and is N(∓μ²/2, μ²): the round leaks exactly μ. If a certificate states less, too much
noise was counted. Noise that is not Gaussian (clipped) is attacked with the same statistic, which then need not be the
best, but is an attack: its hits and false alarms must obey the certificate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri

from airdistill.arrays import BoolArray, ComplexArray, FloatArray
from airdistill.privacy.waveform import (
    FleetChannels,
    prediction,
    prefix_ramp,
    received_energy,
    received_shares,
    residual_maps,
    residual_noise,
    whitening,
)
from airdistill.radio.iq import demodulate, modulate

_NOTHING = 1e-11  # relative amplitude: directions with less noise are rounding error
_THRESHOLDS = (-0.5, 0.0, 0.5)  # of Λ, in standard deviations from the middle


@dataclass(frozen=True)
class LinearAttack:
    """Λ = Re(weightsᴴ z) − μ²/2 of observations z `[..., observation]`."""

    weights: ComplexArray | FloatArray
    mu: float

    def scores(self, observations: ComplexArray | FloatArray) -> FloatArray:
        return np.asarray((observations @ self.weights.conj()).real - self.mu**2 / 2)


def attack_on(shift: ComplexArray | FloatArray, noise: ComplexArray | FloatArray, noise_var: float) -> LinearAttack:
    """The attack on a shift of observations, with noise v·F Fᴴ on each axis: F `[observation, source]`."""
    left, values, _ = np.linalg.svd(noise, full_matrices=False)
    kept = values > _NOTHING * values[0]
    basis = left[:, kept]
    weights = basis @ ((basis.conj().T @ shift) / values[kept] ** 2) / noise_var
    return LinearAttack(weights, float(np.sqrt((shift.conj() @ weights).real)))


@dataclass(frozen=True)
class PrefixAttack:
    """The attack on all samples of a round with many devices: on its elements, and on what its prefixes add to them."""

    channels: FleetChannels
    predicted: ComplexArray  # K [sample, tone]
    attack: LinearAttack

    @classmethod
    def on(
        cls, channels: FleetChannels, shares: FloatArray, noise_var: float, device: int, shift: ComplexArray
    ) -> PrefixAttack:
        """Against a shift `[symbol, tone]` of one device's elements, under noise of variance S on each axis of each."""
        maps, num_symbols, memory = residual_maps(channels, shares), len(shift), channels.memory
        one = residual_noise(channels, maps, shares)
        total = np.zeros(((num_symbols + 1) * memory,) * 2, dtype=np.complex128)
        for symbol in range(num_symbols):
            both = slice(symbol * memory, (symbol + 2) * memory)
            total[both, both] += one
        whiten = whitening(total, np.tile(received_energy(channels, shares)[:memory], num_symbols + 1))
        moved = _residual(maps[device], channels, shift).ravel()
        delivered = channels.gain[device] * shift
        full = np.concatenate([delivered.ravel(), moved])
        on_elements = (delivered / received_shares(channels.gain, shares)).ravel()
        weighted = np.concatenate([on_elements, whiten.conj().T @ (whiten @ moved)])
        weights = np.asarray(weighted / noise_var, dtype=np.complex128)
        mu = float(np.sqrt((full.conj() @ weights).real))
        return cls(channels, prediction(channels, shares), LinearAttack(weights, mu))

    @property
    def mu(self) -> float:
        return self.attack.mu

    def scores(self, samples: ComplexArray) -> FloatArray:
        """Λ of received samples `[..., sample]`, tail included, less what the server knows of them."""
        grid, memory = self.channels.grid, self.channels.memory
        whole = samples.shape[-1] - memory
        elements = demodulate(grid, samples[..., :whole])
        num_symbols = elements.shape[-2]
        repeated = np.zeros_like(samples)
        repeated[..., :whole] = modulate(grid, elements)
        starts = np.arange(num_symbols + 1)[:, None] * grid.symbol_samples + np.arange(memory)
        surprise = (samples - repeated)[..., starts] - _residual(self.predicted, self.channels, elements)
        flat = [part.reshape(*samples.shape[:-1], -1) for part in (elements, surprise)]
        return self.attack.scores(np.concatenate(flat, axis=-1))


def _residual(maps: ComplexArray, channels: FleetChannels, elements: ComplexArray) -> ComplexArray:
    """q d_{s−1} − q Φ d_s `[..., symbol + 1, sample]` of elements d `[..., symbol, tone]`."""
    before = elements @ maps.T
    now = (elements * prefix_ramp(channels.grid)) @ maps.T
    edges = [(0, 0)] * (elements.ndim - 2)
    return np.asarray(np.pad(before, [*edges, (1, 0), (0, 0)]) - np.pad(now, [*edges, (0, 1), (0, 0)]))


def worst_shift(channels: FleetChannels, shares: FloatArray, device: int) -> ComplexArray:
    """The unit vector of one symbol's elements `[tone]` that all samples reveal most under fleet noise."""
    maps = residual_maps(channels, shares)
    whiten = whitening(residual_noise(channels, maps, shares), received_energy(channels, shares))
    both = whiten @ np.concatenate([-maps[device] * prefix_ramp(channels.grid), maps[device]])
    cost = both.conj().T @ both
    cost += np.diag(np.abs(channels.gain[device]) ** 2 / received_shares(channels.gain, shares))
    return np.asarray(np.linalg.eigh(cost)[1][:, -1])


def exceeds(first: FloatArray, other: FloatArray, mu: float, level: float, delta: float = 0.0) -> bool:
    """Whether scores of transcripts of either vector prove, at that level, that more than μ was leaked.

    A μ-private release lets a test of false-alarm probability a hit with probability at most Φ(Φ⁻¹(a) + μ), plus the
    `delta` that was charged. Three thresholds, fixed beforehand, share the level; both probabilities have
    Clopper–Pearson limits.
    """
    tail = level / (2 * len(_THRESHOLDS))
    return any(
        _lower(other > place * mu, tail) > ndtr(ndtri(1 - _lower(first <= place * mu, tail)) + mu) + delta
        for place in _THRESHOLDS
    )


def _lower(hits: BoolArray, level: float) -> float:
    count = int(np.count_nonzero(hits))
    return 0.0 if count == 0 else float(betaincinv(count, len(hits) - count + 1, level))
