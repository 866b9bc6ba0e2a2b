"""Impairments against closed forms: each model is the one that its reference states."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import erf, erfc

from airdistill.channel.waveform import Grid
from airdistill.radio.impairments import (
    amplify,
    carrier_offset_hz,
    delay_samples,
    largest_delay,
    load_factor,
    oscillator_phase,
    quantise,
    saturation_amplitude,
)
from airdistill.radio.iq import demodulate, modulate
from airdistill.radio.waveform_link import WaveformRound, propagate, superpose_waveform
from airdistill.scenario.sections import Waveform

GRID = Grid(48, 30e3, 8 / (64 * 30e3), 2)


def wave_with(**changes):
    return Waveform(kind="ofdm", tones=48, cyclic_prefix=8 / (64 * 30e3), **changes)


def complex_normal(rng, *shape):
    return rng.standard_normal((*shape, 2)) @ [1, 1j] / np.sqrt(2)


def test_a_carrier_offset_is_the_interference_of_a_dirichlet_kernel():
    """Y_m = Σ_k X_k e^(iθ) e^(iπu(F−1)/F) sin(πu)/(F sin(πu/F)), u = k − m + f/Δf; θ is the phase at the window."""
    wave, size, age_s = wave_with(carrier_offset=6e3), GRID.fft_size, 40e-6
    sent = complex_normal(np.random.default_rng(0), 3, 48)
    samples = modulate(GRID, sent)
    phase = oscillator_phase(GRID, wave, 5, 2, 1, len(samples), age_s)
    received = demodulate(GRID, samples * np.exp(1j * phase))
    offset = carrier_offset_hz(wave, 5, 2, 1)
    assert 100 < abs(offset) <= 6e3
    apart = GRID.offsets[None, :] - GRID.offsets[:, None] + offset / 30e3
    kernel = np.exp(1j * np.pi * apart * (size - 1) / size) * np.sin(np.pi * apart)
    kernel = kernel / (size * np.sin(np.pi * apart / size))
    begin_s = age_s + (8 + 72 * np.arange(3)) / (64 * 30e3)
    expected = np.exp(2j * np.pi * offset * begin_s)[:, None] * (sent @ kernel.T)
    np.testing.assert_allclose(received, expected, rtol=0, atol=1e-12)


def test_carrier_offsets_are_uniform_and_differ_between_devices_and_rounds():
    wave = wave_with(carrier_offset=100.0)
    drawn = np.array([carrier_offset_hz(wave, 0, one, device) for one in (1, 2) for device in range(2000)])
    assert len(set(drawn)) == 4000
    assert 99 < np.abs(drawn).max() <= 100
    assert abs(drawn.mean()) < 4 * 100 / np.sqrt(3 * 4000)
    assert abs(drawn.var() * 3 / 1e4 - 1) < 4 * np.sqrt(0.8 / 4000)


def test_phase_noise_grows_linearly_and_has_its_linewidth():
    """Var φ = 2πβτ: then the oscillator's autocorrelation is e^(−πβτ), a Lorentzian of full width β at half maximum."""
    wave, age_s = wave_with(phase_noise=2e3), 20e-6
    paths = np.stack([oscillator_phase(GRID, wave, 0, 1, device, 300, age_s) for device in range(4000)])
    for sample in (0, 1, 99, 299):
        elapsed = age_s + sample / GRID.sample_rate_hz
        variance = 2 * np.pi * 2e3 * elapsed
        assert abs(paths[:, sample].var() / variance - 1) < 4 * np.sqrt(2 / 4000)
        assert abs(np.exp(1j * paths[:, sample]).mean() - np.exp(-np.pi * 2e3 * elapsed)) < 4 / np.sqrt(4000)
    steps = np.diff(paths[:, 98:101], axis=1)
    assert abs(np.mean(steps[:, 0] * steps[:, 1]) / steps.var()) < 4 / np.sqrt(4000)
    assert not oscillator_phase(GRID, wave_with(), 0, 1, 0, 300, age_s).any()


def test_a_delay_within_the_prefix_is_a_phase_ramp():
    """With 4 taps and a prefix of 8, up to 5 samples are; one more brings a part of the symbol before."""
    rng = np.random.default_rng(1)
    sent, taps = complex_normal(rng, 4, 48), complex_normal(rng, 1, 1, 4)
    channel = np.fft.fft(taps[0, 0], 64)[GRID.bins]
    for delay in range(8):
        received = propagate(GRID, modulate(GRID, sent)[None], taps, np.array([delay]))
        elements = demodulate(GRID, received[: 4 * GRID.symbol_samples])
        ramp = sent * channel * np.exp(-2j * np.pi * GRID.offsets * delay / 64)
        error = np.abs(elements - ramp)[1:].max()
        assert error < 1e-12 if delay <= 5 else error > 1e-3


def test_delays_are_uniform_from_zero_to_the_largest():
    wave = wave_with(timing_error=5 / GRID.sample_rate_hz)
    assert largest_delay(GRID, wave) == 5
    counts = np.bincount([delay_samples(GRID, wave, 0, 1, device) for device in range(6000)], minlength=6)
    assert len(counts) == 6
    assert (np.abs(counts - 1000) < 5 * np.sqrt(1000 * 5 / 6)).all()
    assert delay_samples(GRID, wave_with(), 0, 1, 0) == 0


@pytest.mark.parametrize(
    ("backoff_db", "kept", "correlated"), [(0, 0.632, 0.595), (3, 0.864, 0.849), (6, 0.981, 0.980)]
)
def test_a_limiter_keeps_the_known_part_of_gaussian_noise(backoff_db, kept, correlated):
    """Power 1 − e^(−γ²), of which α² is in phase with the input: α = 1 − e^(−γ²) + √π/2 γ erfc γ (Bussgang)."""
    wave = wave_with(amplifier="clip", backoff_db=backoff_db)
    num_samples = 400_000
    sent = complex_normal(np.random.default_rng(2), 2, num_samples) * np.sqrt([[1e-3 / 64], [5e-2 / 64]])
    clipped = amplify(wave, sent, saturation_amplitude(GRID, wave, np.array([1e-3, 5e-2])))
    power = (np.abs(sent) ** 2).mean(axis=1)
    gain = (clipped * sent.conj()).mean(axis=1) / power
    squared = 10 ** (backoff_db / 10)
    alpha = 1 - np.exp(-squared) + np.sqrt(np.pi * squared) / 2 * erfc(np.sqrt(squared))
    assert (np.abs(clipped) ** 2).mean(axis=1) / power == pytest.approx(1 - np.exp(-squared), rel=0.005)
    assert gain == pytest.approx(alpha, rel=0.005)
    assert 1 - np.exp(-squared) == pytest.approx(kept, abs=6e-4)
    assert alpha**2 == pytest.approx(correlated, abs=6e-4)


def test_amplifiers_keep_phases_and_follow_their_curves():
    """Each device has the saturation of its own peak power; Rapp's curve is written out for p = 2."""
    drive = np.array([1e-3, 0.5, 1.0, 2.0, 1e3])
    saturation = saturation_amplitude(GRID, wave_with(backoff_db=3.0), np.array([1e-3, 4e-3]))
    assert 64 * saturation**2 == pytest.approx(np.array([1e-3, 4e-3]) * 1.99526, rel=1e-5)
    sent = saturation[:, None] * drive * np.exp(1j * np.arange(5))
    rapp, clip, linear = (amplify(wave_with(amplifier=kind), sent, saturation) for kind in ("rapp", "clip", "linear"))
    for found in (rapp, clip):
        np.testing.assert_allclose(np.angle(found), np.angle(sent))
    np.testing.assert_allclose(np.abs(clip[1]), saturation[1] * np.array([1e-3, 0.5, 1, 1, 1]))
    np.testing.assert_allclose(
        np.abs(rapp[0, 1:4]), saturation[0] * np.array([0.5 / 1.0625**0.25, 2**-0.25, 2 / 17**0.25])
    )
    assert np.abs(rapp[0, [0, 4]]) == pytest.approx(saturation[0] * np.array([1e-3, 1]))
    assert linear is sent


@pytest.mark.parametrize("bits", [6, 8, 12])
def test_the_noise_of_quantisation_is_a_twelfth_of_the_squared_step_on_each_axis(bits):
    """A uniform signal within full scale: Δ = 2 · load factor · rms / 2^bits."""
    axes = np.random.default_rng(3).uniform(-1, 1, (200_000, 2))
    found = quantise(wave_with(adc_bits=bits), axes @ [1, 1j])
    step = 2 * load_factor(bits) * np.sqrt((axes**2).mean()) / 2**bits
    for error in (found.real - axes[:, 0], found.imag - axes[:, 1]):
        assert np.abs(error).max() <= step / 2 * (1 + 1e-9)
        assert error.var() == pytest.approx(step**2 / 12, rel=0.02)


def test_a_converter_has_its_levels_around_zero_and_clips():
    rng = np.random.default_rng(4)
    found = quantise(wave_with(adc_bits=3), 7 * complex_normal(rng, 50_000))
    step = np.diff(np.unique(found.real)).min()
    np.testing.assert_allclose(np.unique(found.real), step * (np.arange(8) - 3.5))
    np.testing.assert_allclose(np.unique(found.imag), step * (np.arange(8) - 3.5))
    silence = np.zeros(5, dtype=complex)
    assert quantise(wave_with(adc_bits=3), silence) is silence


@pytest.mark.parametrize(("bits", "step"), [(2, 0.9957), (3, 0.5860), (4, 0.3352), (5, 0.1881)])
def test_full_scale_is_that_of_least_error_for_a_gaussian_signal(bits, step):
    """The steps are Max's (1960, table II), and an exact minimum of the error finds them again."""
    levels = 2 ** (bits - 1)

    def error(width):
        low = width * np.arange(levels)
        high = np.append(low[1:], np.inf)
        at_ends = [[edge * np.exp(-(edge**2) / 2) if edge < np.inf else 0 for edge in ends] for ends in (low, high)]
        density = [np.exp(-(ends**2) / 2) for ends in (low, high)]
        mass = np.sqrt(np.pi / 2) * (erf(high / np.sqrt(2)) - erf(low / np.sqrt(2)))
        first, second = density[0] - density[1], mass + np.array(at_ends[0]) - np.array(at_ends[1])
        level = low + width / 2
        return (second - 2 * level * first + level**2 * mass).sum()

    assert minimize_scalar(error, bounds=(0.01, 2), method="bounded").x == pytest.approx(step, rel=1e-3)
    assert 2 * load_factor(bits) / 2**bits == pytest.approx(step, rel=0.1 if bits == 2 else 0.03)


def test_the_server_records_what_its_converter_outputs():
    wave = wave_with(adc_bits=2)
    ones = np.ones((1, 48), dtype=complex)
    this = WaveformRound(GRID, wave, ones[:, None, :1], ones, np.ones(1), np.ones(1), 0.1, 1, 0, 0)
    found = superpose_waveform(this, np.random.default_rng(5).standard_normal((1, 960)))
    assert len(np.unique(found.samples.real)) == len(np.unique(found.samples.imag)) == 4
