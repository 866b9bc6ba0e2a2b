"""Symbols `[row, slot]` as frames of samples and back: what drivers of sample-based radios have in common.

A symbol is sent on an element of the grid of the scenario's `[waveform]`, spread over all tones of its OFDM symbol. All
tones share a device's power: amplitudes are divided by √tones, and the server multiplies by it. The scenario's
`radio.noise_power` is therefore the receiver's noise in the whole band. Nothing is equalised: the channel must be flat
over the band, and be the one that the scenario states.
"""

from __future__ import annotations

import numpy as np

from airdistill.arrays import ComplexArray
from airdistill.channel.sources import ChannelSource, channel_source
from airdistill.channel.waveform import Grid
from airdistill.errors import AirDistillError
from airdistill.radio.iq import (
    SCRAMBLING_SEED,
    despread,
    elements_of,
    modulate,
    numbers_of,
    scrambling,
    spread,
)
from airdistill.radio.preamble import AFTER, BEFORE, NotSynchronised, aligned, elements_in, framed, synchronise
from airdistill.scenario.model import Scenario
from airdistill.streams import stream

_BOTH_AXES = 2


class Modem:
    """The frames of a scenario's devices, and their sum at the server."""

    def __init__(self, scenario: Scenario) -> None:
        wave = scenario.waveform
        self.grid = Grid(wave.tones, wave.spacing, wave.cyclic_prefix, _BOTH_AXES)
        self.source: ChannelSource = channel_source(scenario)
        self._power_w = scenario.radio.peak_power.draw(scenario.num_devices, stream(scenario.seed, "radio.peak_power"))

    def num_symbols(self, shape: tuple[int, int]) -> int:
        return self.grid.num_symbols(_BOTH_AXES * shape[0] * shape[1])

    def frame_samples(self, shape: tuple[int, int]) -> int:
        """Samples of a round of `shape` = (rows, slots), with preamble and pilots."""
        return (BEFORE + self.num_symbols(shape) + AFTER) * self.grid.symbol_samples

    def frame(self, round_index: int, device: int, symbols: ComplexArray) -> ComplexArray:
        """The samples `[sample]` of one device; their squared sum over a symbol is its power, W."""
        channel = complex(self.source.round_channel(round_index)[device])
        turn = np.conj(channel) / abs(channel) if channel else 0.0  # as the signals: pilots arrive in phase
        pairs = np.stack([symbols.real, symbols.imag], axis=-1).reshape(-1)
        data = spread(elements_of(self.grid, pairs), self._phases(round_index, symbols.shape))
        own = np.sqrt(self._power_w[device]) * turn
        return modulate(self.grid, framed(self.grid, data, complex(own)) / np.sqrt(self.grid.tones))

    def symbols(self, round_index: int, samples: ComplexArray, shape: tuple[int, int]) -> ComplexArray:
        """The sum of the devices' symbols, `[row, slot]`, in recorded samples. Raise if there is no frame in them."""
        num_symbols, level = self.num_symbols(shape), self.pilot_amplitude(round_index)
        try:
            found = synchronise(self.grid, samples, num_symbols)
        except NotSynchronised as reason:
            raise AirDistillError(f"round {round_index}: the recording of {len(samples)} samples: {reason}") from None
        received = aligned(self.grid, samples, num_symbols, found, level)[: self.frame_samples(shape)]
        data = elements_in(self.grid, received, found)[BEFORE : BEFORE + num_symbols]
        slots = despread(data, self._phases(round_index, shape)) * np.sqrt(self.grid.tones)
        pairs = numbers_of(self.grid, slots, _BOTH_AXES * shape[0] * shape[1]).reshape(*shape, 2)
        return np.asarray(pairs[..., 0] + 1j * pairs[..., 1])

    def pilot_amplitude(self, round_index: int) -> float:
        """The amplitude with which all devices' pilots arrive together, √W in an element."""
        gains = np.abs(self.source.round_channel(round_index))
        return float(np.sum(gains * np.sqrt(self._power_w)) / np.sqrt(self.grid.tones))

    def _phases(self, round_index: int, shape: tuple[int, ...]) -> ComplexArray:
        return scrambling(self.grid, self.num_symbols((shape[0], shape[1])), SCRAMBLING_SEED, round_index)
