"""The frames of a simulated round: its data, as the run sent and received it, between preamble and pilots.

Preamble and pilots pass the channel and the receiver noise. Devices' oscillators and amplifiers and the server's
converter act on the data alone, exactly as in the run: what is decoded from a frame is what the run received.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.selective import tone_gains
from airdistill.channel.waveform import Grid
from airdistill.radio.iq import modulate
from airdistill.radio.preamble import AFTER, BEFORE, known_elements
from airdistill.radio.waveform_link import WaveformRound, device_samples, propagate, superpose_waveform
from airdistill.streams import stream

_DEVICES_AT_ONCE = 32


def pilot_power(grid: Grid, peak_power: FloatArray) -> FloatArray:
    """The power of an element of the pilots before equalisation, W: that of numbers at the power limit."""
    return np.asarray(grid.axes * peak_power)


def pilot_amplitude(this: WaveformRound) -> float:
    """The amplitude with which the sum of the devices' pilots arrives, √W: its mean over tones."""
    own = np.sqrt(pilot_power(this.grid, this.peak_power))[:, None] * this.weights
    return float(abs(np.mean(np.sum(own * tone_gains(this.grid, this.taps[:, 0]), axis=0))))


def _known_samples(this: WaveformRound, devices: slice) -> ComplexArray:
    """Preamble and pilot of consecutive devices, `[device, sample]`."""
    own = np.sqrt(pilot_power(this.grid, this.peak_power[devices]))[:, None] * this.weights[devices]
    return modulate(this.grid, known_elements(this.grid) * own[:, None])


def transmitted_frame(this: WaveformRound, signal: FloatArray, device: int) -> ComplexArray:
    """What a device's antenna emits, `[sample]`, from its signals x `[number]`: late as in the run, and in √W."""
    length, late = this.grid.symbol_samples, int(this.delays[device])
    known = _known_samples(this, slice(device, device + 1))[0]
    data = device_samples(this, signal, device)[late : -this.largest_delay + late or None]
    whole = np.concatenate([known[: BEFORE * length], data, known[-AFTER * length :]])
    return np.pad(whole, (late, this.largest_delay - late))


def received_frame(this: WaveformRound, signals: FloatArray) -> tuple[ComplexArray, FloatArray]:
    """What the server records, `[sample]`, and the numbers that it demodulates, from signals x `[device, number]`.

    The receiver noise of the data is the run's; that of preamble and pilots has a stream of its own.
    """
    grid, data = this.grid, superpose_waveform(this, signals)
    num_symbols, tail = grid.num_symbols(signals.shape[1]), this.taps.shape[-1] - 1 + this.largest_delay
    start, end = BEFORE * grid.symbol_samples, (BEFORE + num_symbols) * grid.symbol_samples
    received = np.zeros(end + AFTER * grid.symbol_samples + tail, dtype=np.complex128)
    received[start : start + len(data.samples)] += data.samples
    for before, after in _known_arriving(this):
        received[: len(before)] += before
        received[end : end + len(after)] += after
    without = np.r_[0:start, start + len(data.samples) : len(received)]
    parts = stream(this.noise_seed, "recorded-noise", this.round_index).standard_normal((2, len(without)))
    received[without] += np.sqrt(this.noise_power / 2) * (parts[0] + 1j * parts[1])
    return received, data.numbers


def _known_arriving(this: WaveformRound) -> Iterator[tuple[ComplexArray, ComplexArray]]:
    """What arrives before and after the data, `[sample]`, of some devices at a time."""
    length = this.grid.symbol_samples
    for first in range(0, this.num_devices, _DEVICES_AT_ONCE):
        block = slice(first, first + _DEVICES_AT_ONCE)
        sent, taps, late = _known_samples(this, block), this.taps[block], this.delays[block]
        before = propagate(this.grid, sent[:, : BEFORE * length], taps[:, :1], late)
        yield before, propagate(this.grid, sent[:, -AFTER * length :], taps[:, -1:], late)
