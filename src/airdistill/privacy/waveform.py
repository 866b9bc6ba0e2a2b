"""What a server that keeps samples learns beyond the demodulated elements, as a factor on the counted noise.

Privacy is planned for elements: device i adds a vector d_i of norm 1 per unit of shift, and the noise S of all devices
(or of the receiver) hides it. The true cost of a shift is χ_i/S with a factor χ_i ≥ 1: counted noise must be divided by
it. All noise here is circular: the same variance on both axes of an element, independent between elements.

**Elements.** Device j's vector arrives as g_j d_j, with g_j = H_j e_j `[tone]`: 1, and less where the equaliser's floor
acts. Its noise has variance S s_j per element, Σ s_j = 1. The noise of an element is S w, w = Σ s_j |g_j|², and so
χ_i = max_tone |g_i|²/w.

**Samples under fleet noise.** Let L be the number of taps and R = L − 1. All samples of a symbol are functions of its
elements, except the first R of its prefix, in which the channel still delivers the previous symbol: they differ from
what the elements predict by ρ_s = Σ_j (Q_j d_j[s−1] − Q_j Φ d_j[s]). Q_j `[sample, tone]` is what the samples before a
symbol's end leave behind it, and Φ the phase ramp of the prefix's length. After the last symbol, ρ is Q_j d_j alone.
Noise in elements and residuals is correlated. Subtract from ρ the best linear prediction from the elements, with
K = Σ s_j Q_j ḡ_j/w: what remains has the maps q_j = Q_j − K g_j and is independent of the noise in the elements. With
B_i: δ ↦ (q_i δ_{s−1} − q_i Φ δ_s)_s, hence

    χ_i = sup over ‖δ‖ = 1 of Σ_s |g_i δ_s|²/w + (B_i δ)ᴴ (Σ_j s_j B_j B_jᴴ)⁺ (B_i δ).

**One symbol is the worst.** Let X_i = (−q_i Φ; q_i), and let G = Σ_j s_j X_j X_jᴴ. A server that received both halves
of ρ_s separately could add them up, and adding is post-processing. It then has independent observations of independent
symbols, and so χ_i ≤ λ_max(diag(|g_i|²/w) + X_iᴴ G⁺ X_i), with equality if a round is one symbol. The same holds if
taps change between symbols. Five symbols have up to 10 % less in small systems (tests/privacy/test_waveform.py).

**Unequal noise.** Rows of a payload may have different noise, and a symbol mixes them. Covariances are monotone: with
V_jn the noise of device j in number n, noise of min_n V_jn in all numbers reveals no less. S = Σ_j min_n V_jn and the
shares min_n V_jn/S are therefore sound for all numbers of a symbol (`common_noise`). The numbers that fill the last
symbol and, with one number in an element, the other axis must have noise, too: a minimum of zero counts nothing.

**Own noise.** The received signal is post-processing of d_i plus its own noise of S s_i, and so χ_i ≤ 1/s_i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray, divide_or
from airdistill.channel.waveform import Grid

_CHUNK = 32  # devices whose maps are in memory at once
# A direction whose noise is below _SMALL of the strongest is rounding error: its noise is taken as _TRACE of what was
# received before the elements' prediction was subtracted. A true shift there costs too much, a rounding error nothing.
_SMALL, _LEAST, _TRACE = 1e-12, 1e-22, 1e-24
_SPLITS = (0.2, 0.4, 0.8)  # t of `receiver_factor`
_STEPS = 60

WeightedGram = Callable[[FloatArray], ComplexArray]


@dataclass(frozen=True)
class FleetChannels:
    """Channels of one round: `taps` `[device, tap]` at the sampling rate, `equalizer` e `[device, tone]`."""

    grid: Grid
    taps: ComplexArray
    equalizer: ComplexArray

    def __post_init__(self) -> None:
        memory = self.taps.shape[1] - 1
        if memory > self.grid.prefix_samples:
            raise ValueError(
                f"taps: {memory + 1} taps do not fit a cyclic prefix of {self.grid.prefix_samples} samples; "
                "lengthen waveform.cyclic_prefix"
            )

    @property
    def memory(self) -> int:
        """R: samples of a prefix that still contain the previous symbol."""
        return int(self.taps.shape[1]) - 1

    @cached_property
    def gain(self) -> ComplexArray:
        """g = H e `[device, tone]`: what arrives on an element per unit that the device means to deliver."""
        response = np.fft.fft(self.taps, self.grid.fft_size, axis=1)[:, self.grid.bins]
        return np.asarray(response * self.equalizer)


@dataclass(frozen=True)
class PrefixNoise:
    """Fresh noise that devices add to the first `length` samples of every prefix, and of one more behind the round.

    It decays within the prefix, and the useful part stays clean. `var` `[device]` is the variance of each such sample
    as transmitted, in units of the noise S of an element.
    """

    length: int
    var: FloatArray

    @classmethod
    def relative(cls, channels: FleetChannels, shares: FloatArray, times: float) -> PrefixNoise:
        """As long as the residual, and so many times as strong as a device's own noise in an ordinary sample."""
        own = shares * (np.abs(channels.equalizer) ** 2).sum(axis=1) / channels.grid.fft_size
        return cls(channels.memory, times * own)

    def covariance(self, channels: FleetChannels) -> ComplexArray:
        """N `[sample, sample]`: covariance in the first R samples, given the burst in all later ones.

        The samples after the first R are functions of the elements: a server that subtracts them sees the burst there.
        """
        taps, memory = channels.taps, channels.memory
        if self.length + memory > channels.grid.prefix_samples:
            raise ValueError(
                f"length = {self.length}: a burst through {memory + 1} taps must end within the cyclic prefix of "
                f"{channels.grid.prefix_samples} samples; shorten it or lengthen waveform.cyclic_prefix"
            )
        total = np.zeros((self.length + memory,) * 2, dtype=np.complex128)
        for device, var in enumerate(self.var):
            sent = convolution(taps[device], self.length)
            total += var * sent @ sent.conj().T
        if self.length < 1 or not total.any():
            return total[:memory, :memory]
        seen = slice(memory, None)
        cross = total[:memory, seen]
        known = np.linalg.pinv(total[seen, seen], hermitian=True)
        return np.asarray(total[:memory, :memory] - cross @ known @ cross.conj().T)


def common_noise(noise_var: FloatArray) -> tuple[float, FloatArray]:
    """S and the shares s `[device]` of noise that differs between numbers, `[device, number]` as received."""
    least = noise_var.min(axis=1)
    total = float(least.sum())
    if not total > 0:
        raise ValueError("noise_var = 0: every number of a symbol needs noise, those that fill it up included")
    return total, np.asarray(least / total)


def element_factor(gain: ComplexArray, shares: FloatArray) -> FloatArray:
    """χ under fleet noise for a server that keeps elements only, `[device]`; `shares` s sum to 1."""
    return np.asarray((np.abs(gain) ** 2 / received_shares(gain, shares)).max(axis=1))


def received_shares(gain: ComplexArray, shares: FloatArray) -> FloatArray:
    """w `[tone]`: the fleet's noise on each tone, 1 where no equaliser's floor acts."""
    if not np.isclose(shares.sum(), 1.0, rtol=0, atol=1e-9):
        raise ValueError(f"shares = {shares.sum():g} in all: must sum to 1")
    return np.asarray(shares @ np.abs(gain) ** 2)


def prefix_factor(
    channels: FleetChannels,
    shares: FloatArray,
    prefix_noise: PrefixNoise | None = None,
    tolerance: float = 1e-3,
) -> FloatArray:
    """χ under fleet noise for a server that keeps every sample, `[device]`: for a round of any number of symbols.

    Never below the exact factor of one symbol, and above it by at most `tolerance`, relative. A prefix receives one
    burst of noise, of which half the variance is counted for each half of the residual.
    """
    gain = channels.gain
    on_elements = np.abs(gain) ** 2 / received_shares(gain, shares)
    cap = divide_or(np.ones_like(shares), shares, np.inf)
    if channels.memory == 0:
        return np.asarray(np.minimum(on_elements.max(axis=1), cap))
    maps = residual_maps(channels, shares)
    chunks = [slice(start, start + _CHUNK) for start in range(0, len(maps), _CHUNK)]
    all_tones = np.ones((1, channels.grid.tones))
    grams = [residual_gram(channels.grid, maps[part], all_tones) for part in chunks]
    noise: ComplexArray = (shares[:, None, None] * np.concatenate(grams)).sum(axis=0)
    if prefix_noise is not None:
        noise += np.kron(np.eye(2), prefix_noise.covariance(channels) / 2)
    whiten = whitening(noise, received_energy(channels, shares))

    def factors(part: slice, gram: ComplexArray) -> FloatArray:
        def weighted(weights: FloatArray) -> ComplexArray:
            return np.asarray(whiten @ residual_gram(channels.grid, maps[part], weights) @ whiten.conj().T)

        return largest_eigenvalue(on_elements[part], whiten @ gram @ whiten.conj().T, weighted, tolerance)

    found = [factors(part, gram) for part, gram in zip(chunks, grams, strict=True)]
    return np.asarray(np.minimum(np.concatenate(found), cap))


def receiver_factor(channels: FleetChannels, num_symbols: int = 2, tolerance: float = 1e-3) -> FloatArray:
    """χ under receiver noise for a server that keeps every sample, `[device]`; within `tolerance` for one symbol.

    Thermal noise is new in every sample. χ_i is therefore the energy that a unit vector delivers to all samples: |g_i|²
    in the useful part, ‖Z δ‖² in the prefix and behind the last symbol. Of several symbols, a prefix receives a sum
    a_s + b_{s−1}, and ‖a + b‖² ≤ (1 + t)‖a‖² + (1 + 1/t)‖b‖² bounds it for every t > 0.
    """
    on_elements = np.abs(channels.gain) ** 2
    if channels.grid.prefix_samples == 0:
        return np.asarray(on_elements.max(axis=1))
    tables = [_delivered(channels, split) for split in ((None,) if num_symbols == 1 else _SPLITS)]
    chunks = [slice(start, start + _CHUNK) for start in range(0, len(on_elements), _CHUNK)]

    def factors(part: slice, table: ComplexArray) -> FloatArray:
        sent = np.abs(channels.equalizer[part]) ** 2

        def weighted(weights: FloatArray) -> ComplexArray:
            prefix = _prefix_covariance(channels.grid, sent * weights**2)
            return np.asarray(table[part] @ prefix @ table[part].conj().transpose(0, 2, 1))

        return largest_eigenvalue(on_elements[part], weighted(np.ones_like(sent)), weighted, tolerance)

    found = [np.concatenate([factors(part, table) for part in chunks]) for table in tables]
    return np.asarray(np.min(found, axis=0))


def _delivered(channels: FleetChannels, split: float | None) -> ComplexArray:
    """Z `[device, sample, prefix sample]`: a symbol's prefix as transmitted → as received, and → behind the symbol.

    A symbol ends with the samples of its prefix. Rows that neighbours share are scaled by the split; None: one symbol.
    """
    prefix, memory = channels.grid.prefix_samples, channels.memory
    found = np.stack([convolution(taps, prefix) for taps in channels.taps])
    if split is not None:
        found[:, :memory] *= np.sqrt(1 + split)
        found[:, prefix:] *= np.sqrt(1 + 1 / split)
    return found


def convolution(taps: ComplexArray, count: int) -> ComplexArray:
    """So many samples → the samples that arrive, `[count + R, count]`."""
    found = np.zeros((count + len(taps) - 1, count), dtype=np.complex128)
    for column in range(count):
        found[column : column + len(taps), column] = taps
    return found


def _prefix_covariance(grid: Grid, power: FloatArray) -> ComplexArray:
    """Covariance of a prefix's samples as transmitted, `[device, sample, sample]`, for a power `[device, tone]`."""
    spectrum = np.zeros((*power.shape[:-1], grid.fft_size))
    spectrum[..., grid.bins] = power
    place = np.arange(grid.prefix_samples)
    return np.asarray(np.fft.ifft(spectrum, axis=-1)[..., place[:, None] - place])


def mixed_factor(
    fleet: FloatArray, receiver: FloatArray, fleet_var: float | FloatArray, receiver_var: float | FloatArray
) -> FloatArray:
    """χ relative to the sum of both noises, from the factors for each alone: their mean, weighted with the variances.

    For positive X and Y, aᴴ(X + Y)⁻¹a ≤ u² aᴴX⁻¹a + (1 − u)² aᴴY⁻¹a for all u in [0, 1]; take u as X's share.
    """
    return np.asarray((fleet_var * fleet + receiver_var * receiver) / (np.asarray(fleet_var) + receiver_var))


def prediction(channels: FleetChannels, shares: FloatArray) -> ComplexArray:
    """K `[sample, tone]`: what an element predicts of the R samples behind its symbol."""
    table = last_samples(channels.grid, channels.memory)
    # K = Σ_j s_j Q_j ḡ_j/w, with the sum over devices first, because Q_j is linear in the taps.
    per_tap = channels.taps.T @ (shares[:, None] * channels.equalizer * channels.gain.conj())
    rows = [(per_tap[row + 1 :] * table[: len(table) - row]).sum(axis=0) for row in range(len(table))]
    return np.asarray(np.reshape(rows, table.shape) / received_shares(channels.gain, shares))


def residual_maps(channels: FleetChannels, shares: FloatArray) -> ComplexArray:
    """q `[device, sample, tone]`: what an element leaves behind its symbol, less what all elements predict of it."""
    maps = left_behind(channels)
    maps -= prediction(channels, shares) * channels.gain[:, None, :]
    return maps


def left_behind(channels: FleetChannels) -> ComplexArray:
    """Q `[device, sample, tone]`: what an element leaves in the R samples after the end of its symbol."""
    memory = channels.memory
    later = np.arange(memory)[:, None] + np.arange(1, memory + 1)  # the tap that delays the k-th last sample to row r
    taps = np.pad(channels.taps, [(0, 0), (0, memory)])[:, later]
    return np.asarray((taps @ last_samples(channels.grid, memory)) * channels.equalizer[:, None, :])


def last_samples(grid: Grid, count: int) -> ComplexArray:
    """The last samples of a symbol per element, `[sample, tone]`, the very last one first."""
    back = np.arange(1, count + 1)
    return np.asarray(np.exp(-2j * np.pi * np.outer(back, grid.offsets) / grid.fft_size) / np.sqrt(grid.fft_size))


def prefix_ramp(grid: Grid) -> ComplexArray:
    """Φ `[tone]`: the phase from the end of a symbol to its beginning, which the prefix precedes."""
    return np.asarray(np.exp(-2j * np.pi * grid.offsets * grid.prefix_samples / grid.fft_size))


def residual_gram(grid: Grid, maps: ComplexArray, weights: FloatArray) -> ComplexArray:
    """X diag(weights²) Xᴴ `[device, 2 sample, 2 sample]` for X = (−q Φ; q), from q and weights `[device, tone]`."""
    weighted = maps * weights[:, None, :]
    adjoint = weighted.conj().transpose(0, 2, 1)
    same, cross = weighted @ adjoint, -(weighted * prefix_ramp(grid)) @ adjoint
    top = np.concatenate([same, cross], axis=2)
    return np.concatenate([top, np.concatenate([cross.conj().transpose(0, 2, 1), same], axis=2)], axis=1)


def residual_noise(channels: FleetChannels, maps: ComplexArray, shares: FloatArray) -> ComplexArray:
    """G `[2 sample, 2 sample]`: the covariance of both halves of one symbol's residual, in units of S."""
    return np.asarray(residual_gram(channels.grid, maps, np.sqrt(shares)[:, None]).sum(axis=0))


def received_energy(channels: FleetChannels, shares: FloatArray) -> FloatArray:
    """About the energy of Σ_j √s_j Q_j in each row of X, `[2 sample]`: what is far below it is rounding error."""
    later = np.cumsum(np.abs(channels.taps[:, :0:-1]) ** 2, axis=1)[:, ::-1]
    sent = (np.abs(channels.equalizer) ** 2).sum(axis=1) / channels.grid.fft_size
    return np.tile((shares * sent) @ later, 2)


def whitening(noise: ComplexArray, energy: FloatArray) -> ComplexArray:
    """W with W noise Wᴴ = 1; directions without noise are scaled so far up that a shift in them costs too much."""
    unit = divide_or(np.ones_like(energy), np.sqrt(energy), 0.0)
    values, directions = np.linalg.eigh(unit[:, None] * noise * unit)
    strong = values > _SMALL * values.max(initial=0.0)
    values = np.where(strong, np.maximum(values, _LEAST), _TRACE)
    return np.asarray((directions / np.sqrt(values)).conj().T * unit)


def largest_eigenvalue(diagonal: FloatArray, plain: ComplexArray, gram: WeightedGram, tolerance: float) -> FloatArray:
    """An upper bound on λ_max(diag(a) + VᴴV), `[device]`, within a relative `tolerance`.

    a is `[device, tone]`, `plain` is VVᴴ, and `gram(u)` returns V diag(u²) Vᴴ. The eigenvalue is the root of f(λ) = 1
    for f(λ) = λ_max(V diag(1/(λ − a)) Vᴴ). (λ − a)f(λ) falls with λ for the smallest a and rises for the largest one,
    and so a + f(λ)(λ − a) with these two brackets the root.
    """
    least, most = diagonal.min(axis=1), diagonal.max(axis=1)
    added = np.linalg.eigvalsh(plain)[:, -1]
    lower, upper = np.maximum(most, least + added), most + np.maximum(added, 0.0)
    for _ in range(_STEPS):
        open_ = upper - lower > tolerance * upper
        if not open_.any():
            break
        guess = np.where(open_, 0.5 * (lower + upper), upper + 1.0)
        ratio = np.linalg.eigvalsh(gram(1 / np.sqrt(guess[:, None] - diagonal)))[:, -1]
        ends = least + ratio * (guess - least), most + ratio * (guess - most)
        lower = np.where(open_, np.maximum(lower, np.minimum(*ends)), lower)
        upper = np.where(open_, np.minimum(upper, np.maximum(*ends)), upper)
    return np.asarray(upper)
