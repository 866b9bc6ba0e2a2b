"""Frames of a simulated round: the sum of the devices' frames through their channels, and the run's own numbers."""

import dataclasses

import numpy as np
import pytest

from airdistill.channel.waveform import Grid
from airdistill.radio.frames import pilot_amplitude, received_frame, transmitted_frame
from airdistill.radio.iq import demodulate
from airdistill.radio.preamble import BEFORE, known_elements, synchronise
from airdistill.radio.waveform_link import WaveformRound, equaliser, sample_noise, superpose_waveform
from airdistill.scenario.sections import Waveform

NUM_DEVICES, NUM_NUMBERS = 4, 500
POWER_W = np.array([0.1, 0.2, 0.05, 0.1])


def a_round(noise_power=0.0, num_taps=3, **changes):
    rng = np.random.default_rng(0)
    wave = Waveform(kind="ofdm", tones=96, cyclic_prefix=16 / (128 * 30e3), fade_floor_db=-300, **changes)
    grid = Grid(wave.tones, wave.spacing, wave.cyclic_prefix, wave.axes)
    taps = rng.standard_normal((NUM_DEVICES, 1, num_taps, 2)) @ [1, 1j] * 1e-3
    known = np.fft.fft(taps[:, 0], grid.fft_size)[:, grid.bins]
    inverse = np.abs(equaliser(known, wave.fade_floor_db)) ** 2
    gains = 1 / np.sqrt(wave.axes * inverse.sum(axis=1))
    return WaveformRound(grid, wave, taps, known, gains, POWER_W, noise_power, 3, 7, "7/entry")


@pytest.mark.parametrize("changes", [{}, {"timing_error": 2e-6}, {"axes": 1, "spreading": "none"}])
def test_a_reception_is_the_sum_of_the_frames_behind_their_channels(changes):
    this = a_round(**changes)
    signals = np.random.default_rng(1).standard_normal((NUM_DEVICES, NUM_NUMBERS)) * 0.1
    frames = [transmitted_frame(this, signals[device], device) for device in range(NUM_DEVICES)]
    summed = sum(np.convolve(frame, taps[0]) for frame, taps in zip(frames, this.taps, strict=True))
    received, _ = received_frame(this, signals)
    np.testing.assert_allclose(received, summed, rtol=0, atol=1e-12 * np.abs(summed).max())
    assert bool(this.delays.any()) == ("timing_error" in changes)


def test_noise_is_the_runs_own_in_the_data_and_of_the_same_power_around_it():
    this = a_round(noise_power=1e-3)
    signals = np.random.default_rng(1).standard_normal((NUM_DEVICES, NUM_NUMBERS)) * 0.1
    received, numbers = received_frame(this, signals)
    silent, _ = received_frame(dataclasses.replace(this, noise_power=0.0), signals)
    noise, start = received - silent, BEFORE * this.grid.symbol_samples
    own = sample_noise(this, this.received_samples(NUM_NUMBERS))
    np.testing.assert_allclose(noise[start : start + len(own)], own, atol=1e-14)
    around = np.delete(noise, slice(start, start + len(own)))
    assert np.mean(np.abs(around) ** 2) == pytest.approx(1e-3, rel=0.15)
    np.testing.assert_array_equal(numbers, superpose_waveform(this, signals).numbers)


def test_pilots_arrive_flat_with_the_stated_amplitude_and_every_device_at_its_power_limit():
    this = a_round()
    received, _ = received_frame(this, np.zeros((NUM_DEVICES, NUM_NUMBERS)))
    pilot = demodulate(this.grid, received)[1] * known_elements(this.grid)[1].conj()
    amplitude = pilot_amplitude(this)
    np.testing.assert_allclose(pilot, amplitude, rtol=1e-9)
    assert amplitude == pytest.approx(np.sum(this.gains * np.sqrt(2 * POWER_W)))
    length = this.grid.symbol_samples
    for device, limit in enumerate(POWER_W):
        frame = transmitted_frame(this, np.zeros(NUM_NUMBERS), device)
        useful = frame[length + this.grid.prefix_samples : 2 * length]
        # The sum of a symbol's squared samples is the power of all its tones together.
        assert np.sum(np.abs(useful) ** 2) == pytest.approx(limit)
    found = synchronise(this.grid, received, this.grid.num_symbols(NUM_NUMBERS))
    assert found.start == 0
    assert found.correlation > 0.98


def test_what_the_converter_leaves_of_the_data_is_recorded():
    this = a_round(noise_power=1e-6, adc_bits=4)
    signals = np.random.default_rng(1).standard_normal((NUM_DEVICES, NUM_NUMBERS)) * 0.1
    received, _ = received_frame(this, signals)
    start, own = BEFORE * this.grid.symbol_samples, superpose_waveform(this, signals).samples
    middle = slice(start + 16, start + len(own) - 16)  # preamble and pilot overlap with both ends
    np.testing.assert_allclose(received[middle], own[16:-16], atol=1e-15)
    assert len(np.unique(received[middle].real)) <= 2**4
