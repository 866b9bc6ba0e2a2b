"""Channel estimates from samples: exact without noise, unbiased with it, and as wrong as predicted."""

import numpy as np
import pytest

from airdistill.channel.selective import delays_basis
from airdistill.channel.waveform import Grid
from airdistill.radio.pilots import channel_estimate, estimate_channel, pilot_error_var, pilot_samples
from airdistill.scenario.sections import Waveform

DEFAULT = Waveform(kind="ofdm", pilot_symbols=1)
SMALL = Waveform(kind="ofdm", pilot_symbols=1, tones=48, cyclic_prefix=8 / (64 * 30e3))
POWER = 2e-3


def grid_of(wave):
    return Grid(wave.tones, wave.spacing, wave.cyclic_prefix, wave.axes)


def channels(grid, taps):
    """H_k = Σ_l h_l e^(−2πi k l / F), written out."""
    turned = np.exp(-2j * np.pi * np.outer(np.arange(taps.shape[-1]), grid.offsets) / grid.fft_size)
    return taps @ turned


def random_taps(num_taps):
    return np.random.default_rng(0).standard_normal((num_taps, 2)) @ [1, 1j]


@pytest.mark.parametrize("wave", [DEFAULT, SMALL])
def test_a_pilot_without_noise_shows_the_channel(wave):
    """Up to delays of the whole prefix, and up to what of the channel is almost invisible on the used tones."""
    grid = grid_of(wave)
    taps = random_taps(grid.prefix_samples + 1)
    found, expected = estimate_channel(grid, wave, taps, 0.0, POWER, 0, (1, 0)), channels(grid, taps)
    assert ((np.abs(found - expected) ** 2).mean()) < 1e-6 * (np.abs(expected) ** 2).mean()


def test_an_estimate_is_a_fit_of_taps_by_least_squares():
    """Against a least-squares solver, which leaves out the same invisible combinations of taps."""
    grid = grid_of(DEFAULT)
    rng = np.random.default_rng(1)
    samples = rng.standard_normal((grid.symbol_samples, 2)) @ [1, 1j]
    useful, sent = (np.fft.fft(one[72:], norm="ortho") for one in (samples, pilot_samples(grid, DEFAULT, POWER)))
    rough = useful[grid.offsets % 1024] / sent[grid.offsets % 1024]
    of_tap = channels(grid, np.eye(73)).T
    fitted = of_tap @ np.linalg.lstsq(of_tap, rough, rcond=1e-3)[0]
    np.testing.assert_allclose(channel_estimate(grid, samples, POWER), fitted, rtol=0, atol=1e-9 * np.abs(fitted).max())


@pytest.mark.parametrize("num_symbols", [1, 3])
@pytest.mark.parametrize("wave", [DEFAULT, SMALL])
def test_an_estimate_is_unbiased_and_its_error_the_predicted_one(wave, num_symbols):
    """Tone by tone, over independent noises."""
    wave = wave.model_copy(update={"pilot_symbols": num_symbols})
    grid, noise_power, num_rounds = grid_of(wave), 1e-5, 400
    taps = random_taps(6)
    found = [estimate_channel(grid, wave, taps, noise_power, POWER, 0, (one, 5)) for one in range(num_rounds)]
    errors, predicted = np.stack(found) - channels(grid, taps), pilot_error_var(grid, wave, noise_power, POWER)
    dimensions = 51 if wave.tones == 612 else 9
    assert predicted.mean() == pytest.approx(noise_power * dimensions / (POWER * num_symbols))

    measured = (np.abs(errors) ** 2).mean(axis=0)
    assert np.abs(measured / predicted - 1).max() < 6 / np.sqrt(num_rounds)  # the squared error is exponential
    assert measured.mean() == pytest.approx(predicted.mean(), rel=5 / np.sqrt(num_rounds * dimensions))
    mean_error = np.abs(errors.mean(axis=0)) ** 2 * num_rounds / predicted
    assert mean_error.mean() < 1 + 5 / np.sqrt(dimensions)


def test_no_tone_is_estimated_worse_than_without_denoising():
    """At the band's edges a fit of taps extrapolates; a projection does not amplify."""
    grid = grid_of(DEFAULT)
    kept = pilot_error_var(grid, DEFAULT, 1.0, 612.0)
    assert kept.sum() == pytest.approx(delays_basis(grid).shape[1])
    assert 0 < kept.min() < 0.1
    assert 0.5 < kept[[0, -1]].max() == pytest.approx(kept.max())
    assert kept.max() < 1


@pytest.mark.parametrize("tones", [48, 51, 612])
def test_a_pilot_has_its_power_equally_on_all_tones_and_a_low_peak(tones):
    grid = Grid(tones, 30e3, 2.34375e-6, 2)
    symbol = pilot_samples(grid, DEFAULT, POWER)[grid.prefix_samples :]
    on_tones = np.abs(np.fft.fft(symbol, norm="ortho")) ** 2
    np.testing.assert_allclose(on_tones[grid.offsets % grid.fft_size], POWER / tones)
    assert on_tones.sum() == pytest.approx(POWER)
    envelope = np.abs(symbol) ** 2
    assert envelope.max() < 10 ** (4.5 / 10) * envelope.mean()  # with random phases about 9 dB


def test_noise_differs_between_devices_and_rounds():
    grid, nothing = grid_of(SMALL), np.zeros(1, dtype=complex)
    links = [(1, 0), (1, 0), (2, 0), (1, 1)]
    first, again, later, other = (estimate_channel(grid, SMALL, nothing, 1.0, POWER, 0, link) for link in links)
    np.testing.assert_array_equal(first, again)
    assert (first != later).all()
    assert (first != other).all()
