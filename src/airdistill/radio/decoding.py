"""From the recording of a reception to the server's estimate, with what the recording tells of the link.

1. Find the preamble; correct carrier offset, delay, phase and level, where they differ from zero by more than noise.
2. Demodulate, despread, and divide by the scale λ.
3. Estimate the noise twice: from unused tones, and from the difference of the two pilots.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray, divide_or
from airdistill.channel.waveform import Grid
from airdistill.radio.iq import demodulate, despread, numbers_of, scrambling
from airdistill.radio.preamble import (
    AFTER,
    BEFORE,
    NotSynchronised,
    Synchronised,
    aligned,
    at_start,
    elements_in,
    known_elements,
    synchronise,
)
from airdistill.radio.recordings import Contents, Recording, RecordingError, read_recording
from airdistill.radio.superposition import receive


@dataclass(frozen=True)
class Decoded:
    """What a reception says. `numbers` `[row, entry]` are as received, √W; `knowledge` is r̂ of eq. (12).

    `noise_power` is that of an element, W, from unused tones; `noise_var` `[row]` is its part in the variance of
    knowledge. `evm` is the rms error of the pilots' elements over their amplitude, after corrections.
    """

    contents: Contents
    numbers: FloatArray
    knowledge: FloatArray
    found: Synchronised
    noise_power: float
    signal_power: float
    evm: float

    @property
    def noise_var(self) -> FloatArray:
        """Half of an element's noise is on each axis; NaN for a row that was not sent."""
        return divide_or(np.array(self.noise_power / 2), self.contents.rx_scale**2, np.nan)

    def to_dict(self) -> dict[str, Any]:
        """What was measured, without the knowledge."""
        found, grid = self.found, self.contents.grid
        return {
            "round": self.contents.round_index,
            "scheme": self.contents.scheme,
            "payload": self.contents.payload,
            "rows": self.contents.rows,
            "entries": self.contents.entries,
            "start_sample": found.start,
            "start_s": found.start / grid.sample_rate_hz,
            "delay_samples": found.delay,
            "carrier_offset_hz": found.offset_hz,
            "carrier_offset_std_hz": found.offset_std_hz,
            "carrier_offset_period_hz": found.offset_period_hz,
            "phase_rad": float(np.angle(found.gain)),
            "level_db": _db(abs(found.gain / self.contents.pilot_amplitude) ** 2),
            "preamble_correlation": found.correlation,
            "pilot_snr_db": _db(abs(found.gain) ** 2 / found.noise_power),
            "data_snr_db": _db(self.signal_power / self.noise_power) if self.noise_power > 0 else None,
            "evm": self.evm,
            "ripple": found.ripple,
            "noise_power_unused_tones_w": self.noise_power,
            "noise_power_pilots_w": self._level(found.noise_power),
            "noise_power_stated_w": self.contents.noise_power,
            "receiver_noise_var": self.noise_var,
            "planned_noise_var": self.contents.noise_var,
        }

    def _level(self, power: float) -> float:
        """A power of the recording at the level that the metadata state."""
        return float(power * (self.contents.pilot_amplitude / abs(self.found.gain)) ** 2)


def decode_file(path: Path, start: int | None = None) -> Decoded:
    """Read and decode a recording of a reception."""
    return decode(read_recording(path), path.name, start)


def decode(recording: Recording, name: str = "recording", start: int | None = None) -> Decoded:
    """Decode a recording of a reception. Raise `RecordingError` if it is not one, or has no preamble.

    With `start` the frame begins at this sample, and nothing is searched or corrected: for recordings by the clock and
    oscillator of the transmitters, and pilots below the noise.
    """
    contents, grid = recording.contents, recording.contents.grid
    if contents.device is not None:
        rule = f"is what device {contents.device} sent; decode a recording of a reception"
        raise RecordingError(f"{name}: airdistill:kind", "transmission", rule)
    found, received = _frame(recording, name, start)
    elements = elements_in(grid, received, found) if start is None else demodulate(grid, received)
    noise_power = _unused_tone_power(grid, received)
    data = elements[BEFORE : BEFORE + contents.num_symbols]
    numbers = _numbers(contents, data)
    filled = numbers.size / (grid.numbers_per_symbol * contents.num_symbols)
    signal_power = max(float(np.mean(np.abs(data) ** 2)) - noise_power, 0.0) / filled
    knowledge = receive(numbers.astype(np.complex128), contents.rx_scale)
    evm = _error_vector(grid, elements, contents.pilot_amplitude)
    return Decoded(contents, numbers, knowledge, found, noise_power, signal_power, evm)


def _frame(recording: Recording, name: str, start: int | None) -> tuple[Synchronised, ComplexArray]:
    """What was found of the frame, and its samples from the preamble on."""
    contents, samples = recording.contents, recording.samples
    grid, num_symbols, length = contents.grid, contents.num_symbols, contents.frame_samples
    if len(samples) - (start or 0) < length:
        rule = f"a frame of {num_symbols} data symbols takes {length}: the recording was cut"
        raise RecordingError(f"{name}: samples", len(samples) - (start or 0), rule)
    if start is not None:
        return at_start(grid, samples, num_symbols, start), samples[start : start + length]
    try:
        found = synchronise(grid, samples, num_symbols)
    except NotSynchronised as reason:
        raise RecordingError(f"{name}: samples", len(samples), str(reason)) from None
    return found, aligned(grid, samples, num_symbols, found, contents.pilot_amplitude)[:length]


def _numbers(contents: Contents, data: ComplexArray) -> FloatArray:
    """The numbers `[row, entry]` that elements `[symbol, tone]` carry."""
    grid = contents.grid
    phases = scrambling(grid, len(data), contents.scrambling_seed, contents.round_index)
    slots = despread(data, phases) if contents.spreading == "dft" else data * phases.conj()
    return numbers_of(grid, slots, contents.num_numbers).reshape(contents.rows, contents.entries)


def _unused_tone_power(grid: Grid, received: ComplexArray) -> float:
    """Mean power of the unused elements, without the one at the carrier, where receivers leak."""
    symbols = received.reshape(-1, grid.symbol_samples)[:, grid.prefix_samples :]
    unused = np.setdiff1d(np.arange(1, grid.fft_size), grid.bins)
    return float(np.mean(np.abs(np.fft.fft(symbols, axis=1, norm="ortho")[:, unused]) ** 2))


def _error_vector(grid: Grid, elements: ComplexArray, amplitude: float) -> float:
    """The rms error of both pilots over their amplitude."""
    pilots = elements[[BEFORE - 1, -AFTER]] * known_elements(grid)[1].conj() / amplitude
    return float(np.sqrt(np.mean(np.abs(pilots - 1) ** 2)))


def _db(ratio: float) -> float | None:
    return float(10 * np.log10(ratio)) if ratio > 0 else None
