"""The grid of an OFDM waveform: tones, samples, symbols, how many numbers they carry, and the time of a whole round.

A resource element is one tone in one symbol, and carries a complex number: `axes` real numbers. With unitary transforms
an element of power p has p in the sum of its samples' powers, and receiver noise has the same variance in every sample
and every element. All of a device's power limit is shared by the tones that are on the air at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from airdistill.arrays import IntArray
from airdistill.scenario.model import Scenario

DEFAULT_TONE_HZ = 312.5e3  # in which the default noise power is received
_EXCESS_SAMPLES = 1.25  # least oversampling: FFT sizes of LTE and NR (612 tones in 1024, 48 in 64)
_BITS_PER_TONE = 2  # reports and scales are sent with QPSK
_SWITCHES = {"downlink": 3, "uplink": 2}  # changes of direction in a round


@dataclass(frozen=True)
class Grid:
    """The numerology of an OFDM waveform."""

    tones: int
    spacing_hz: float
    prefix_s: float
    axes: int

    @classmethod
    def of(cls, scenario: Scenario) -> Grid | None:
        """The grid of a scenario; None for numbers sent one at a time on one tone."""
        wave = scenario.waveform
        if wave.kind == "single_tone":
            return None
        return cls(wave.tones, wave.spacing, wave.cyclic_prefix, wave.axes)

    @property
    def fft_size(self) -> int:
        """Samples of a symbol without its prefix: a power of two."""
        return 1 << math.ceil(math.log2(_EXCESS_SAMPLES * self.tones))

    @property
    def sample_rate_hz(self) -> float:
        return self.fft_size * self.spacing_hz

    @cached_property
    def prefix_samples(self) -> int:
        return round(self.prefix_s * self.sample_rate_hz)

    @property
    def symbol_samples(self) -> int:
        return self.fft_size + self.prefix_samples

    @property
    def symbol_s(self) -> float:
        return self.symbol_samples / self.sample_rate_hz

    @property
    def bandwidth_hz(self) -> float:
        """Occupied bandwidth, with the unused tone at the carrier."""
        return (self.tones + 1) * self.spacing_hz

    @cached_property
    def offsets(self) -> IntArray:
        """Each used tone's distance from the carrier in spacings, in ascending order, `[tone]`."""
        below = self.tones // 2
        return np.concatenate([np.arange(-below, 0), np.arange(1, self.tones - below + 1)])

    @cached_property
    def bins(self) -> IntArray:
        """Each used tone's place in a discrete Fourier transform, `[tone]`."""
        return np.asarray(self.offsets % self.fft_size)

    @property
    def numbers_per_symbol(self) -> int:
        return self.tones * self.axes

    @property
    def number_s(self) -> float:
        """The time of a symbol, prefix included, that one number takes."""
        return self.symbol_s / self.numbers_per_symbol

    def num_symbols(self, num_numbers: int) -> int:
        """Symbols that carry so many numbers; the last one is filled with zeros."""
        return -(-num_numbers // self.numbers_per_symbol)


@dataclass(frozen=True)
class AirTime:
    """The time of one round on the air, s: data, pilots, reports of gains and scale, and guards between directions."""

    data_s: float
    pilot_s: float = 0.0
    feedback_s: float = 0.0
    guard_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.data_s + self.pilot_s + self.feedback_s + self.guard_s


def tone_noise_power_w(scenario: Scenario) -> float:
    """The receiver's noise power in one tone, W.

    Without a value of its own an OFDM waveform has the noise density of the default tone.
    """
    radio, grid = scenario.radio, Grid.of(scenario)
    if grid is None or "noise_power" in radio.model_fields_set:
        return radio.noise_power
    return radio.noise_power * grid.spacing_hz / DEFAULT_TONE_HZ


def number_seconds(scenario: Scenario) -> float:
    """The time that a device is on the air for one number: energy is power times this."""
    grid = Grid.of(scenario)
    return scenario.radio.slot if grid is None else grid.number_s


def air_time(scenario: Scenario, num_numbers: int) -> AirTime:
    """The time of a round that carries so many numbers.

    1. Pilots: of the server, or of one device after another. None is sent if channels are known by assumption.
    2. Feedback: every device reports its gain and the server broadcasts the scale. Uplink pilots tell the server only,
       and it sends every device the taps of its channel, one for every sample of the prefix.
    3. Data: whole symbols.
    """
    grid, wave = Grid.of(scenario), scenario.waveform
    if grid is None:
        return AirTime(num_numbers * scenario.radio.slot)
    data_s = grid.num_symbols(num_numbers) * grid.symbol_s
    if wave.csi == "perfect":
        return AirTime(data_s)
    per_symbol, num_devices = grid.tones * _BITS_PER_TONE, scenario.num_devices
    if wave.pilot == "downlink":
        pilots, reported = wave.pilot_symbols, -(-num_devices * wave.feedback_bits // per_symbol)
        scales = -(-wave.feedback_bits // per_symbol)
    else:
        pilots, reported = wave.pilot_symbols * num_devices, 0
        taps = 2 * max(grid.prefix_samples, 1)
        scales = -(-wave.feedback_bits * (1 + num_devices * taps) // per_symbol)
    feedback = (reported + scales) * grid.symbol_s
    return AirTime(data_s, pilots * grid.symbol_s, feedback, _SWITCHES[wave.pilot] * wave.guard)
