"""Channel estimates: exact without noise, unbiased with it, and as wrong as predicted."""

import numpy as np
import pytest

from airdistill.channel.waveform import Grid
from airdistill.radio.pilots import denoise, estimate_channels, kept_delays, pilot_elements, pilot_error_var
from airdistill.scenario.sections import Waveform

DEFAULT = Waveform(kind="ofdm")
SMALL = Waveform(kind="ofdm", tones=48, cyclic_prefix=8 / (64 * 30e3))
POWER = np.array([1e-3, 4e-3])


def grid_of(wave):
    return Grid(wave.tones, wave.spacing, wave.cyclic_prefix, wave.axes)


def channels(grid, taps):
    """H_k = Σ_l h_l e^(−2πi k l / F), written out."""
    turned = np.exp(-2j * np.pi * np.outer(np.arange(taps.shape[-1]), grid.offsets) / grid.fft_size)
    return taps @ turned


def random_taps(num_devices, num_taps):
    return np.random.default_rng(0).standard_normal((num_devices, num_taps, 2)) @ [1, 1j]


@pytest.mark.parametrize("wave", [DEFAULT, SMALL])
@pytest.mark.parametrize("pilot", ["downlink", "uplink"])
def test_a_pilot_without_noise_shows_the_channel(wave, pilot):
    wave = wave.model_copy(update={"pilot": pilot})
    grid = grid_of(wave)
    taps = random_taps(2, kept_delays(grid))
    found = estimate_channels(grid, wave, taps, 0.0, POWER, 0, 1)
    expected = channels(grid, taps)
    assert np.abs(found - expected).max() < 1e-3 * np.sqrt((np.abs(expected) ** 2).mean())
    assert ((np.abs(found - expected) ** 2).mean()) < 1e-8 * (np.abs(expected) ** 2).mean()


@pytest.mark.parametrize("num_taps", [1, 24, 72])
def test_denoising_is_a_fit_of_taps_by_least_squares(num_taps):
    grid = grid_of(DEFAULT)
    rough = random_taps(3, grid.tones)
    of_tap = channels(grid, np.eye(num_taps)).T
    fitted = of_tap @ np.linalg.lstsq(of_tap, rough.T, rcond=1e-4)[0]
    np.testing.assert_allclose(denoise(grid, rough, num_taps), fitted.T, rtol=0, atol=1e-6)


@pytest.mark.parametrize("pilot", ["downlink", "uplink"])
@pytest.mark.parametrize("num_symbols", [1, 3])
@pytest.mark.parametrize("wave", [DEFAULT, SMALL])
def test_an_estimate_is_unbiased_and_its_error_the_predicted_one(wave, pilot, num_symbols):
    """Over independent noises; each device's own power counts for uplink pilots, the server's for the downlink's."""
    wave = wave.model_copy(update={"pilot": pilot, "pilot_symbols": num_symbols, "pilot_power": 2e-3})
    grid, noise_power, num_rounds = grid_of(wave), 1e-5, 300
    taps = random_taps(2, 6)
    rounds = [estimate_channels(grid, wave, taps, noise_power, POWER, 0, one) for one in range(1, num_rounds + 1)]
    errors = np.stack(rounds) - channels(grid, taps)
    predicted = pilot_error_var(grid, wave, noise_power, kept_delays(grid), POWER)
    assert predicted.shape == ((2,) if pilot == "uplink" else ())

    measured = (np.abs(errors) ** 2).mean(axis=(0, 2))
    dimensions = predicted * wave.pilot_symbols * (POWER if pilot == "uplink" else 2e-3) / noise_power
    assert dimensions == pytest.approx(52 if wave.tones == 612 else 8)
    spread = 1 / np.sqrt(num_rounds * dimensions)  # of a mean of exponential variables, relative
    assert (np.abs(measured / predicted - 1) < 5 * spread).all()
    mean_error = np.abs(errors.mean(axis=0)) ** 2 * num_rounds / predicted[..., None]
    assert mean_error.mean() < 1.5


def test_no_tone_is_estimated_worse_than_without_denoising():
    """At the band's edges a fit of taps extrapolates; a projection does not amplify."""
    grid = grid_of(DEFAULT)
    kept = np.diagonal(denoise(grid, np.eye(grid.tones), 72)).real
    assert 0 < kept.min() < 0.1
    assert 0.5 < kept[[0, -1]].max() == kept.max() < 1


@pytest.mark.parametrize("tones", [48, 51, 612])
def test_the_pilot_has_all_tones_alike_and_a_low_peak(tones):
    from airdistill.radio.iq import modulate

    grid = Grid(tones, 30e3, 2.34375e-6, 2)
    assert np.abs(pilot_elements(grid)) == pytest.approx(1)
    envelope = np.abs(modulate(grid, pilot_elements(grid)[None])) ** 2
    assert envelope.max() < 10 ** (4.5 / 10) * envelope.mean()  # random phases: about 9 dB


def test_noise_differs_between_devices_and_rounds():
    grid = grid_of(SMALL)
    taps = np.zeros((2, 1), dtype=complex)
    first, again, later = (estimate_channels(grid, SMALL, taps, 1.0, POWER, 0, one) for one in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != later).all()
    assert (first[0] != first[1]).all()
