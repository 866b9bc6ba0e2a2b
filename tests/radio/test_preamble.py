"""What a receiver finds of a frame in noise: errors as large as it states, and no turn of the carrier that is not."""

from functools import cache

import numpy as np
import pytest
from recorded_frames import noise_of

from airdistill.channel.waveform import Grid
from airdistill.radio.iq import modulate
from airdistill.radio.preamble import Synchronised, aligned, framed, synchronise

GRID = Grid(96, 30e3, 2.34375e-6, 2)
LEAD, SYMBOLS = 64, 15
WEAK = 10 ** (-0.2)  # pilots of −2 dB on a tone: several whole turns explain the phase between them


def received(rng, noise_power, offset_hz=0.0, num_symbols=SYMBOLS):
    """A frame of random data with pilots of power 1, late by `LEAD` samples."""
    data = noise_of(rng, num_symbols * GRID.tones, 0.3).reshape(num_symbols, GRID.tones)
    samples = np.concatenate([np.zeros(LEAD), modulate(GRID, framed(GRID, data)), np.zeros(50)])
    samples = samples * np.exp(2j * np.pi * offset_hz / GRID.sample_rate_hz * np.arange(len(samples)))
    return samples + noise_of(rng, len(samples), noise_power)


@cache
def found_in(noise_power, offset_hz=0.0, count=50) -> list[Synchronised]:
    rng = np.random.default_rng(0)
    return [synchronise(GRID, received(rng, noise_power, offset_hz), SYMBOLS) for _ in range(count)]


@pytest.mark.parametrize(("noise_power", "offset_share"), [(1e-3, 0.3), (1 / WEAK, 0.0)])
def test_errors_are_as_large_as_stated(noise_power, offset_share):
    """Also below the noise, where the phases of single tones are those of the noise."""
    period_hz = 1 / ((1 + SYMBOLS) * GRID.symbol_s)
    all_found = found_in(noise_power, offset_share * period_hz)
    middle = LEAD + (2 + SYMBOLS / 2) * GRID.symbol_samples + GRID.prefix_samples / 2
    turned = 2 * np.pi * offset_share * period_hz / GRID.sample_rate_hz * middle
    assert {found.start for found in all_found} == {LEAD}
    for errors in (
        [(found.offset_hz - offset_share * period_hz) / found.offset_std_hz for found in all_found],
        [found.delay / found.delay_std for found in all_found],
        [np.angle(found.gain * np.exp(-1j * turned)) / found.gain_std for found in all_found],
        [(abs(found.gain) - 1) / found.gain_std for found in all_found],
    ):
        assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(1, abs=0.25)


def test_weak_pilots_leave_several_offsets_and_the_least_is_taken():
    """One symbol apart they give 16 times the error of the offset, more than a whole turn of the round."""
    for found in found_in(1 / WEAK, 0.0):
        assert found.offset_period_hz == pytest.approx(1 / (16 * GRID.symbol_s))
        assert 4 * 16 * found.offset_std_hz > found.offset_period_hz / 2
        assert abs(found.offset_hz) < 5 * found.offset_std_hz


@pytest.mark.parametrize("offset_hz", [0.0, 2100.0, -9700.0])
def test_strong_pilots_tell_whole_turns_apart(offset_hz):
    for found in found_in(1e-3, offset_hz, count=10):
        assert found.offset_period_hz == 0
        assert found.offset_hz == pytest.approx(offset_hz, abs=5 * found.offset_std_hz)


def test_an_offset_that_is_certain_but_for_whole_turns_is_the_likeliest_one():
    """No offset at all is then out of the question: the coarse estimate alone decides, and is wrong now and then."""
    offset_hz = 9700.0
    all_found = found_in(1 / WEAK, offset_hz, count=20)
    turns = [(found.offset_hz - offset_hz) / found.offset_period_hz for found in all_found]
    assert np.abs(np.array(turns) - np.round(turns)).max() < 0.25
    assert np.mean(np.abs(turns) < 0.25) > 0.2
    assert np.mean(np.abs(turns) < 2.25) > 0.9


def test_what_is_aligned_has_the_phase_of_the_pilots():
    """A turn of the carrier within the frame is removed around its middle, where the phase was measured."""
    rng = np.random.default_rng(1)
    clean, turned = received(rng, 0.0), received(np.random.default_rng(1), 0.0, 700.0)
    found = synchronise(GRID, turned, SYMBOLS)
    ours = aligned(GRID, turned, SYMBOLS, found, 1.0)
    np.testing.assert_allclose(ours[:2000], clean[LEAD:][:2000], atol=1e-6)
