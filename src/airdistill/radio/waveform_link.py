"""One round of OFDM, sample by sample: every device's transmit samples, their channels, their sum, the receiver.

The scalar model stays: on every element the server receives Σ_i g_i x_i, with g_i the effective gain of device i, plus
noise. What differs from it is what the radios do: see `radio.impairments` and `radio.pilots`. These functions compute;
they charge no ledger. `radio.charged_round` is the only way for a scheme to transmit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.fft import next_fast_len

from airdistill.arrays import ComplexArray, FloatArray, IntArray
from airdistill.channel.selective import equaliser
from airdistill.channel.waveform import Grid
from airdistill.radio.impairments import (
    amplify,
    delay_samples,
    largest_delay,
    oscillator_phase,
    quantise,
    saturation_amplitude,
)
from airdistill.radio.iq import (
    SCRAMBLING_SEED,
    demodulate,
    despread,
    elements_of,
    modulate,
    numbers_of,
    scrambling,
    spread,
)
from airdistill.scenario.sections import Waveform
from airdistill.streams import Seed, stream

_BLOCK_SAMPLES = 1 << 18  # of several devices, processed at once: 4 MiB, which caches hold


def propagate(grid: Grid, samples: ComplexArray, taps: ComplexArray, delays: IntArray | None = None) -> ComplexArray:
    """The sum at the receiver, `[sample]`, of samples `[device, sample]` through taps `[device, symbol, tap]`.

    Taps are constant during a symbol (or all the time, with one symbol in `taps`). What a symbol's convolution leaves
    behind its end falls into the next symbol's prefix. The result is `taps − 1` samples longer than the input. Devices
    can be late by whole samples, `[device]`; it is then longer by the largest delay, too.
    """
    if delays is not None and delays.any():
        taps = _delayed(taps, delays)
    num_devices, _, num_taps = taps.shape
    symbols = samples.reshape(num_devices, -1, grid.symbol_samples)
    length = grid.symbol_samples + num_taps - 1
    size = next_fast_len(length)
    spectra = np.fft.fft(symbols, size)
    spectra *= np.fft.fft(taps, size)
    convolved = np.fft.ifft(spectra.sum(axis=0))[:, :length]
    received = np.zeros(samples.shape[1] + num_taps - 1, dtype=np.complex128)
    for symbol, tail in enumerate(convolved):
        start = symbol * grid.symbol_samples
        received[start : start + length] += tail
    return received


def _delayed(taps: ComplexArray, delays: IntArray) -> ComplexArray:
    """Taps `[device, symbol, tap]` with each device's delay before them."""
    num_devices, num_symbols, num_taps = taps.shape
    late = np.zeros((num_devices, num_symbols, num_taps + int(delays.max())), dtype=np.complex128)
    for device, delay in enumerate(delays):
        late[device, :, delay : delay + num_taps] = taps[device]
    return late


@dataclass(frozen=True)
class WaveformRound:
    """What one round of OFDM depends on, apart from the signals.

    `taps` `[device, symbol, tap]` is the channel while data is sent (one symbol in it: it does not change). Devices
    equalise by `tone_gains` `[device, tone]`, the channel that they know. `gains` `[device]` are the effective gains g
    of the scalar model. `noise_power` is the receiver's, in a sample and in an element. Oscillators have drifted for
    `pilot_age_s` when data begins. `seed` is the scenario's, for impairments; `noise_seed` is the
    receiver noise's own.
    """

    grid: Grid
    wave: Waveform
    taps: ComplexArray
    tone_gains: ComplexArray
    gains: FloatArray
    peak_power: FloatArray
    noise_power: float
    round_index: int
    seed: int
    noise_seed: Seed
    pilot_age_s: float = 0.0

    @property
    def num_devices(self) -> int:
        return len(self.gains)

    @cached_property
    def weights(self) -> ComplexArray:
        """What a device multiplies its spread elements by, `[device, tone]`: effective gain times equaliser."""
        return np.asarray(self.gains[:, None] * equaliser(self.tone_gains, self.wave.fade_floor_db))

    @cached_property
    def delays(self) -> IntArray:
        """How many samples late each device is, `[device]`."""
        drawn = [
            delay_samples(self.grid, self.wave, self.seed, self.round_index, device)
            for device in range(self.num_devices)
        ]
        return np.array(drawn, dtype=np.int64)

    @property
    def largest_delay(self) -> int:
        return largest_delay(self.grid, self.wave)

    def received_samples(self, num_numbers: int) -> int:
        """Samples from the first that any device may send to the last that any path may bring."""
        sent = self.grid.num_symbols(num_numbers) * self.grid.symbol_samples
        num_taps: int = self.taps.shape[-1]
        return sent + num_taps - 1 + self.largest_delay

    def phases(self, num_numbers: int) -> ComplexArray:
        """The public scrambling of the round, `[symbol, tone]`."""
        return scrambling(self.grid, self.grid.num_symbols(num_numbers), SCRAMBLING_SEED, self.round_index)


@dataclass(frozen=True)
class ReceivedWaveform:
    """What the server has of a round: the samples that it records `[sample]`, and what it makes of them.

    `elements` `[symbol, tone]` are demodulated; `despread` `[symbol, tone]` carries the numbers in their order, with
    the others' interference if there is any. With one axis, its imaginary part carries no number.
    """

    samples: ComplexArray
    elements: ComplexArray
    despread: ComplexArray
    numbers: FloatArray


def superpose_waveform(this: WaveformRound, signals: FloatArray) -> ReceivedWaveform:
    """Send every device's signals x `[device, number]` at once, and receive their sum Σ_i g_i x_i.

    1. Every device packs, scrambles, spreads, equalises and modulates, behind its oscillator, clock and amplifier.
    2. Its samples travel through its channel; the air adds them up, and the receiver adds noise.
    3. The server converts, demodulates and despreads.
    Devices are processed by blocks, and no block's samples are kept.
    """
    num_numbers = signals.shape[1]
    phases = this.phases(num_numbers)
    received = sample_noise(this, this.received_samples(num_numbers))
    per_block = max(1, _BLOCK_SAMPLES // (len(phases) * this.grid.symbol_samples))
    for first in range(0, this.num_devices, per_block):
        block = slice(first, first + per_block)
        sent = _transmit_samples(this, signals[block], phases, first)
        arrived = propagate(this.grid, sent, this.taps[block], this.delays[block])
        received[: len(arrived)] += arrived
    return receive_waveform(this, quantise(this.wave, received), num_numbers)


def receive_waveform(this: WaveformRound, samples: ComplexArray, num_numbers: int) -> ReceivedWaveform:
    """Demodulate and despread recorded samples that begin with the first prefix."""
    phases = this.phases(num_numbers)
    elements = demodulate(this.grid, samples[: len(phases) * this.grid.symbol_samples])
    carried = despread(elements, phases) if this.wave.spreading == "dft" else elements * phases.conj()
    return ReceivedWaveform(samples, elements, carried, numbers_of(this.grid, carried, num_numbers))


def device_samples(this: WaveformRound, signal: FloatArray, device: int) -> ComplexArray:
    """What one device's antenna emits in the round, `[sample]`, from its signals x `[number]`.

    Its delay is zeros at the beginning. All devices' samples are equally long; times √fft_size they are in √W.
    """
    sent = _transmit_samples(this, signal[None], this.phases(len(signal)), device)[0]
    delay = int(this.delays[device])
    return np.pad(sent, (delay, this.largest_delay - delay))


def _transmit_samples(this: WaveformRound, signals: FloatArray, phases: ComplexArray, first: int) -> ComplexArray:
    """Samples `[device, sample]` of consecutive devices in their own time, from signals x `[device, number]`.

    Amplifiers change magnitudes only and oscillators phases only: their order does not matter.
    """
    numbers, devices = elements_of(this.grid, signals), slice(first, first + len(signals))
    laid = spread(numbers, phases) if this.wave.spreading == "dft" else numbers * phases
    samples = modulate(this.grid, laid * this.weights[devices, None])
    saturation = saturation_amplitude(this.grid, this.wave, this.peak_power[devices])
    return _turned(this, amplify(this.wave, samples, saturation), first)


def _turned(this: WaveformRound, samples: ComplexArray, first: int) -> ComplexArray:
    """Samples `[device, sample]` with the phases of the devices' oscillators."""
    if this.wave.carrier_offset == 0 and this.wave.phase_noise == 0:
        return samples
    for device, sent in enumerate(samples, start=first):
        drift = oscillator_phase(this.grid, this.wave, this.seed, this.round_index, device, len(sent), this.pilot_age_s)
        sent *= np.exp(1j * drift)
    return samples


def sample_noise(this: WaveformRound, num_samples: int) -> ComplexArray:
    """Receiver noise of the round, `[sample]`: circular, half of its power on each axis."""
    draws = stream(this.noise_seed, "sample-noise", this.round_index).standard_normal((2, num_samples))
    return np.asarray(np.sqrt(this.noise_power / 2) * (draws[0] + 1j * draws[1]))
