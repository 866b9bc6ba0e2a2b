"""Channel estimates from pilots, and their error, which the planner predicts.

A pilot symbol has a known number of constant magnitude on every used tone, and its power is shared by the tones. What
is received, divided by what was sent, is the channel plus noise: the least-squares estimate. The channel has few
delays: projecting the estimate on the channels of so many taps removes the noise that none of them can produce.

Unused tones leave some of these channels almost invisible: 72 taps in 612 of 1024 tones are 52 dimensions, and what the
others contribute to the used tones is below `_LEAST_VISIBLE`. They are left out. A projection never amplifies: also at
the band's edges the error is at most that of the estimate before it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.linalg import eigh, toeplitz

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.waveform import Grid
from airdistill.radio.iq import demodulate, modulate
from airdistill.radio.waveform_link import propagate
from airdistill.scenario.sections import Waveform
from airdistill.streams import Seed, stream

_LEAST_VISIBLE = 1e-4  # of the most visible channel of unit energy, in magnitude: −80 dB


def pilot_elements(grid: Grid) -> ComplexArray:
    """The pilot on the used tones, `[tone]`: unit magnitude, quadratic phase, and so a flat envelope, too."""
    return np.asarray(np.exp(-1j * np.pi * np.arange(grid.tones) ** 2 / grid.tones))


def kept_delays(grid: Grid) -> int:
    """How many taps an estimate has: delays of whole samples that are within the prefix."""
    return max(grid.prefix_samples, 1)


@lru_cache(maxsize=8)
def _visible(grid: Grid, num_taps: int) -> tuple[FloatArray, ComplexArray]:
    """Energies on the used tones of orthogonal channels of unit energy, `[kept]`, and these channels, `[tap, kept]`."""
    apart = np.arange(num_taps)[:, None] * grid.offsets / grid.fft_size
    energies, channels = eigh(toeplitz(np.exp(2j * np.pi * apart).sum(axis=1)))
    kept = energies > _LEAST_VISIBLE**2 * energies[-1]
    return energies[kept], channels[:, kept]


def denoise(grid: Grid, estimate: ComplexArray, num_taps: int) -> ComplexArray:
    """The channel of so many taps that is closest to an estimate `[..., tone]` on the used tones."""
    energies, channels = _visible(grid, num_taps)
    spectrum = np.zeros((*estimate.shape[:-1], grid.fft_size), dtype=np.complex128)
    spectrum[..., grid.bins] = estimate
    matched = np.fft.ifft(spectrum, norm="forward")[..., :num_taps]
    taps = (matched @ channels.conj() / energies) @ channels.T
    return np.asarray(np.fft.fft(taps, grid.fft_size)[..., grid.bins])


def pilot_error_var(
    grid: Grid, wave: Waveform, noise_power: float, num_taps: int, peak_power: FloatArray | None = None
) -> FloatArray:
    """E|ĥ − h|², the mean over tones of the squared error of an estimate with so many taps: n·r / (P·S).

    n is the noise power in an element, P the pilot's power, S the number of pilot symbols, and r ≤ `num_taps` the
    number of dimensions that remain of the N tones: an element has P/N, and r/N of its noise is left. It does not
    depend on the channel. Uplink pilots have the devices' `peak_power` `[device]`, and the result is `[device]`, too.
    """
    dimensions = len(_visible(grid, num_taps)[0])
    return np.asarray(noise_power * dimensions / (_pilot_power(wave, peak_power) * wave.pilot_symbols))


def estimate_channels(
    grid: Grid,
    wave: Waveform,
    taps: ComplexArray,
    noise_power: float,
    peak_power: FloatArray,
    seed: Seed,
    round_index: int,
) -> ComplexArray:
    """Every device's channel on the used tones as its pilot shows it, `[device, tone]`, from taps `[device, tap]`.

    With a downlink pilot each device receives the server's through its own channel, and knows the uplink by
    reciprocity: radios are calibrated. With uplink pilots the server receives one device after another, and sends each
    what it found, without rounding here. `noise_power` is that of whoever receives the pilot. Oscillators are at rest
    during the pilot: later phases are relative to it. Without noise the estimate is exact but for what
    `_LEAST_VISIBLE` leaves out.
    """
    num_devices, num_samples = len(taps), wave.pilot_symbols * grid.symbol_samples
    amplitude = np.sqrt(np.broadcast_to(_pilot_power(wave, peak_power), num_devices) / grid.tones)
    known = pilot_elements(grid)
    sent = modulate(grid, np.tile(known, (wave.pilot_symbols, 1)))
    received = np.empty((num_devices, num_samples), dtype=np.complex128)
    for device in range(num_devices):
        draws = stream(seed, "pilot-noise", round_index, device).standard_normal((2, num_samples))
        noise = np.sqrt(noise_power / 2) * (draws[0] + 1j * draws[1])
        arrived = propagate(grid, amplitude[device] * sent[None], taps[device, None, None])
        received[device] = arrived[:num_samples] + noise
    each = demodulate(grid, received) / (amplitude[:, None, None] * known)
    return denoise(grid, np.asarray(each.mean(axis=1)), kept_delays(grid))


def _pilot_power(wave: Waveform, peak_power: FloatArray | None) -> FloatArray:
    if wave.pilot == "downlink":
        return np.asarray(wave.pilot_power)
    assert peak_power is not None, "uplink pilots have the devices' peak power"
    return peak_power
