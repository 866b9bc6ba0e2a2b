"""What a radio's impairments do to the noise that is counted: a proven factor, a probability to charge, or own noise.

**Own noise always counts.** A device adds its noise before its amplifier, oscillator and antenna, and all that follows
is post-processing of a noised vector. No impairment therefore costs more than χ_i = 1/s_i under fleet noise.

**Deviations.** Let device j's elements arrive through g_j + E_j with ‖E_j‖ ≤ η_j, up to a common phase, which circular
noise does not feel. For every combination v of the elements, ‖(√s_j (g_j + E_j)ᴴ v)_j‖ ≥ (√w_min − √Σ s_j η_j²)‖v‖ by
the triangle inequality, and so

    χ_i ≤ (max|g_i| + η_i)²/(√w_min − √Σ s_j η_j²)².

With g = 1 and η = e_q this is the margin ((1 + e_q)/(1 − e_q))² for errors of the channel estimate.

**Clipping.** A sample is Σ_k b_k φ_k + noise with public random phases φ_k (the scrambling), independent of the data.
E|Σ b_k φ_k|^{2p} ≤ p! (Σ|b_k|²)^p, which is what a complex Gaussian of the same power has, and the same holds with
Gaussian noise added. Hence E exp(t|x|²/σ²) ≤ 1/(1 − t), and P(|x|² > uσ²) ≤ u e^{1−u} for u ≥ 1. If no sample is
clipped with probability 1 − p, the transmission equals an unclipped one with that probability: for both neighbours, so
that an (ε, δ) guarantee becomes (ε, δ + (1 + e^ε)p). What is drawn independently of data and noise (channel errors,
oscillators) is conditioned upon instead, and costs its probability alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri_exp

from airdistill.arrays import ComplexArray, FloatArray, divide_or
from airdistill.privacy.waveform import FleetChannels, received_shares

_OVERSAMPLED = 8  # points of |H|² per sample of a symbol


def clipping_delta(
    backoff_db: float,
    num_samples: int,
    epsilon: float,
    noise_share: float = 0.0,
    crest: float = 1.0,
) -> float:
    """The δ that a limiter costs at this back-off: (1 + e^ε) times the probability that any sample is clipped.

    `backoff_db` is the saturation power over the mean power of signal and noise. `num_samples` counts all devices' and
    rounds' samples. `noise_share` is the noise's part of that power; 1 uses the exact Gaussian tail. `crest` is the
    largest square of a number over the mean square at that power: spreading can gather a concentrated payload in one
    sample. Without spreading it is 1, because every number is in all samples alike.
    """
    power = noise_share + (1 - noise_share) * crest
    threshold = 10 ** (backoff_db / 10) / power
    return float(np.exp(min(_log_delta(threshold, num_samples, epsilon, noise_share == 1), 0.0)))


def least_backoff_db(
    num_samples: int, epsilon: float, delta: float, noise_share: float = 0.0, crest: float = 1.0
) -> float:
    """The least back-off, in dB, at which a limiter costs at most `delta`: see `clipping_delta`."""
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta}: must lie strictly between 0 and 1")
    low, high = 1.0, 2.0
    while _log_delta(high, num_samples, epsilon, noise_share == 1) > math.log(delta):
        high *= 2
    for _ in range(100):
        middle = 0.5 * (low + high)
        enough = _log_delta(middle, num_samples, epsilon, noise_share == 1) <= math.log(delta)
        low, high = (low, middle) if enough else (middle, high)
    return 10 * math.log10(high * (noise_share + (1 - noise_share) * crest))


def _log_delta(threshold: float, num_samples: int, epsilon: float, gaussian: bool) -> float:
    """ln((1 + e^ε) n p) with p = e^{−u} for Gaussian samples, u e^{1−u} for scrambled signals, at most 1."""
    tail = -threshold
    if not gaussian:
        tail = 1 + math.log(threshold) - threshold if threshold > 1 else 0.0
    return float(np.logaddexp(0.0, epsilon)) + min(math.log(num_samples) + tail, 0.0)


def limiter_factor(channels: FleetChannels, observed: str) -> FloatArray:
    """χ under receiver noise behind amplifiers that clip or compress, at any back-off, `[device]`.

    An ideal limiter and Rapp's model map x to ρ(|x|)x/|x| with 0 ≤ ρ' ≤ 1 and ρ(r) ≤ r: the singular values of the
    map's derivative are ρ' and ρ/r, and so it is 1-Lipschitz. The shift does not grow *at the antenna*: it is at most
    max|e| per unit in the useful part, and √2 times that with the prefix. But it need not keep the equaliser's shape,
    and the channel may pass it at its best frequency.
    """
    strongest = (np.abs(channels.equalizer) ** 2).max(axis=1)
    taps, fft_size = channels.taps, channels.grid.fft_size
    if observed == "elements":
        response = np.fft.fft(taps, fft_size, axis=1)[:, channels.grid.bins]
        return np.asarray((np.abs(response) ** 2).max(axis=1) * strongest)
    points = _OVERSAMPLED * fft_size
    # |H|² is a trigonometric polynomial of degree R: between m points it exceeds them at most by 1/cos(πR/m).
    peak = (np.abs(np.fft.fft(taps, points, axis=1)) ** 2).max(axis=1) / math.cos(math.pi * channels.memory / points)
    return np.asarray(2 * peak * strongest)


def chord(angle: FloatArray | float) -> FloatArray:
    """|e^{jθ} − 1| for the largest |θ|, rad."""
    return np.asarray(2 * np.sin(np.minimum(np.abs(angle), np.pi) / 2))


@dataclass(frozen=True)
class Turns:
    """The largest turns of an oscillator, rad: from the middle of a symbol's useful part, and over a delay `[tap]`."""

    within_symbol: float
    over_delay: FloatArray

    def late_paths(self, channels: FleetChannels) -> FloatArray:
        """Σ_l |h_l||e^{jθ_l} − 1| `[device]`: the turn happens before the channel, and late paths have less of it."""
        return np.asarray(np.abs(channels.taps) @ chord(self.over_delay))


def rotation_deviation(channels: FleetChannels, turns: Turns, by_tone: FloatArray | float = 0.0) -> FloatArray:
    """η of oscillators that turn a device's samples, `[device]`, on elements; `by_tone` as in `deviation_factor`."""
    passed = (np.abs(channels.gain) + by_tone).max(axis=1)
    strongest = np.abs(channels.equalizer).max(axis=1)
    return np.asarray(chord(turns.within_symbol) * passed + turns.late_paths(channels) * strongest)


def offset_turns(channels: FleetChannels, offset_hz: float) -> Turns:
    """The turns of a carrier offset."""
    grid = channels.grid
    delays_s = np.arange(channels.memory + 1) / grid.sample_rate_hz
    return Turns(math.pi * abs(offset_hz) / grid.spacing_hz, 2 * math.pi * abs(offset_hz) * delays_s)


def phase_noise_turns(channels: FleetChannels, linewidth_hz: float, num_symbols: int, probability: float) -> Turns:
    """Turns of Wiener phase noise that none of so many symbols, of all devices, exceeds but with this probability.

    The phase has variance 2π·linewidth·t after a time t, and its largest deviation until then exceeds θ with
    probability at most 4Q(θ/σ), by reflection. Half of the probability goes to the symbols, which have two halves. The
    other half is shared by all delays l: of points that are l samples apart, two moments at distance l have one between
    them, and so differ by at most two deviations from it.
    """
    grid, memory = channels.grid, channels.memory
    sample_turns = linewidth_hz / grid.sample_rate_hz
    within_symbol = _wiener_quantile(sample_turns * grid.fft_size / 2, 2 * num_symbols, probability / 2)
    over_delay = np.zeros(memory + 1)
    for delay in range(1, memory + 1):
        points = num_symbols * (math.ceil(grid.symbol_samples / delay) + 1)
        over_delay[delay] = 2 * _wiener_quantile(sample_turns * delay, 2 * points, probability / (2 * memory))
    return Turns(within_symbol, over_delay)


def _wiener_quantile(turns: float, count: int, probability: float) -> float:
    """θ with 4 count Q(θ/σ) = probability for σ² = 2π·turns."""
    return float(-ndtri_exp(math.log(probability / (4 * count))) * math.sqrt(2 * math.pi * turns))


def deviation_factor(
    gain: ComplexArray, shares: FloatArray, by_tone: FloatArray | float = 0.0, mixing: FloatArray | float = 0.0
) -> FloatArray:
    """χ on elements under fleet noise for gains that deviate from `gain` `[device, tone]`, `[device]`.

    `by_tone` η `[device, tone]` bounds errors that stay on their tone (channel estimates); `mixing` η `[device]` bounds
    the norm of those that mix tones (oscillators). Never more than 1/s_i, which a device's own noise gives.
    """
    size = np.abs(gain)
    shift = size + by_tone
    lost = np.sqrt(shares @ np.broadcast_to(np.square(by_tone), size.shape))
    covered = np.sqrt(received_shares(gain, shares)) - lost
    if np.any(mixing):
        mixed = np.broadcast_to(mixing, shares.shape)
        shift = shift.max(axis=1, keepdims=True) + mixed[:, None]
        covered = np.array([covered.min() - math.sqrt(shares @ mixed**2)])
    ratio = divide_or(shift, np.maximum(covered, 0.0), np.inf).max(axis=1)
    return np.asarray(np.minimum(ratio**2, divide_or(np.ones_like(shares), shares, np.inf)))


def receiver_deviation_factor(
    factor: FloatArray, channels: FleetChannels, tap_error: FloatArray | float = 0.0, turns: Turns | None = None
) -> FloatArray:
    """χ under receiver noise from χ of the channels as known, for taps that deviate and oscillators that turn.

    `tap_error` bounds Σ_l |h_l − ĥ_l| `[device]`. Samples have at most √2 max|e| per unit (the prefix repeats some of
    them), and taps deliver at most the sum of their magnitudes times that. A turn of received samples keeps their
    energy.
    """
    strongest = np.abs(channels.equalizer).max(axis=1)
    extra = np.asarray(tap_error)
    if turns is not None:
        # An unknown error of a tap turns, too: by no more than a sign.
        extra = extra + turns.late_paths(channels) + tap_error * chord(turns.over_delay).max()
    return np.asarray((np.sqrt(factor) + math.sqrt(2) * strongest * extra) ** 2)
