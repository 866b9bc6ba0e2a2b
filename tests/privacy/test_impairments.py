"""What is counted behind impairments: closed forms, quadrature, Monte Carlo and dense matrices of damaged radios."""

import numpy as np
import pytest
from privacy.test_waveform import GRID, channels, dense_fleet_factor, shares_of
from scipy import stats

from airdistill.channel.waveform import Grid
from airdistill.privacy.impairments import (
    chord,
    clipping_delta,
    deviation_factor,
    least_backoff_db,
    limiter_factor,
    offset_turns,
    phase_noise_turns,
    receiver_deviation_factor,
    rotation_deviation,
)
from airdistill.privacy.waveform import FleetChannels, receiver_factor
from airdistill.radio.iq import demodulate, modulate

SHARES = shares_of(6)


def test_back_off_of_gaussian_samples_is_that_of_theory_section_11():
    assert least_backoff_db(200 * 40_000, 8.0, 1e-6, noise_share=1.0) == pytest.approx(15.8, abs=0.05)
    scrambled = least_backoff_db(200 * 40_000, 8.0, 1e-6)
    assert 0.4 < scrambled - 15.765 < 0.6  # the price of a proof for any payload
    assert least_backoff_db(200 * 40_000, 8.0, 1e-6, noise_share=0.5, crest=3.0) == pytest.approx(
        scrambled + 10 * np.log10(2.0)
    )
    for share in (0.0, 0.3, 1.0):
        backoff = least_backoff_db(1000, 1.0, 1e-3, share, crest=2.0)
        assert clipping_delta(backoff, 1000, 1.0, share, crest=2.0) == pytest.approx(1e-3, rel=1e-9)
        assert clipping_delta(backoff - 0.1, 1000, 1.0, share, crest=2.0) > 1.05e-3
    assert clipping_delta(0.0, 10, 1.0) == 1.0
    assert clipping_delta(2.0, 1, 0.0, noise_share=1.0) == pytest.approx(2 * np.exp(-(10**0.2)))


def test_scrambled_samples_exceed_a_level_no_more_often_than_the_bound():
    """Payloads from one number that has all the energy to equal numbers, with noise, spread over the tones."""
    rng = np.random.default_rng(3)
    grid, draws = Grid(24, 1.0, 0.0, 2), 4000
    for payload in (np.eye(24)[0] * np.sqrt(24), np.ones(24), np.sqrt(np.arange(24) / 11.5)):
        crest = float(np.max(np.abs(payload) ** 2))
        phases = np.exp(2j * np.pi * rng.random((draws, 1, 24)))
        noise = rng.standard_normal((2, draws, 1, 24)) / np.sqrt(2)
        numbers = np.sqrt(0.5) * payload * phases + np.sqrt(0.5) * (noise[0] + 1j * noise[1])
        power = np.abs(modulate(grid, np.fft.fft(numbers, norm="ortho"))) ** 2 * grid.fft_size / 24
        for threshold in (2.0, 4.0, 8.0):
            worst = (power > threshold * (0.5 + 0.5 * crest)).mean(axis=0).max()
            assert worst <= threshold * np.exp(1 - threshold) * (1 + 4 / np.sqrt(draws))
    assert (power > 4.0).mean() > 0.2 * np.exp(-4.0)  # the check is of a level that samples do reach


def test_moments_of_a_scrambled_sum_are_at_most_gaussian():
    """E|Σ b_k φ_k|⁴ and ⁶ by multinomial sums, against 2! and 3! times powers of Σ|b_k|²."""
    rng = np.random.default_rng(4)
    weights = rng.uniform(0, 1, 5)
    turns = np.exp(2j * np.pi * rng.random((400_000, 5)))
    power = np.abs(turns @ weights) ** 2
    total = float((weights**2).sum())
    fourth = 2 * total**2 - float((weights**4).sum())
    assert (power**2).mean() == pytest.approx(fourth, rel=0.01)
    assert fourth <= 2 * total**2
    assert (power**3).mean() <= 6 * total**3


def clip(samples, level):
    return samples / np.maximum(np.abs(samples) / level, 1)


def rapp(samples, level):
    return samples / (1 + (np.abs(samples) / level) ** 4) ** 0.25


@pytest.mark.parametrize("amplifier", [clip, rapp])
def test_amplifiers_do_not_enlarge_differences(amplifier):
    rng = np.random.default_rng(5)
    first = rng.standard_normal(200_000) + 1j * rng.standard_normal(200_000)
    near = rng.random(200_000) < 0.5
    other = np.where(near, first + 1e-3 * np.exp(2j * np.pi * rng.random(200_000)), 2 * first[::-1])
    ratio = np.abs(amplifier(first, 0.8) - amplifier(other, 0.8)) / np.abs(first - other)
    assert ratio.max() <= 1 + 1e-9
    assert ratio.max() > 0.9


@pytest.mark.parametrize("amplifier", [clip, rapp])
def test_limiters_keep_receiver_noise_within_the_factor_of_the_channel(amplifier):
    """Random searches for a shift that arrives larger stay within the bound."""
    given = channels(4, 4, -10.0)
    samples, elements = limiter_factor(given, "samples"), limiter_factor(given, "elements")
    rng = np.random.default_rng(6)
    found = np.zeros((2, 4))
    for _ in range(400):
        base = rng.standard_normal((1, GRID.tones)) * np.exp(2j * np.pi * rng.random(GRID.tones))
        shift = np.zeros(GRID.tones, complex)
        shift[rng.integers(GRID.tones)] = 0.05
        for device in range(4):
            weights = given.equalizer[device]
            sent = [amplifier(modulate(GRID, (base + one) * weights), 0.3) for one in (0, shift)]
            moved = np.convolve(sent[1] - sent[0], given.taps[device])
            at_elements = demodulate(GRID, moved[: GRID.symbol_samples])
            energy = np.array([(np.abs(moved) ** 2).sum(), (np.abs(at_elements) ** 2).sum()]) / 0.05**2
            found[:, device] = np.maximum(found[:, device], energy)
    assert np.all(found[0] <= samples)
    assert np.all(found[1] <= elements)
    assert np.all(receiver_factor(given) <= samples)
    flat = FleetChannels(GRID, np.ones((1, 1), complex), np.ones((1, 8), complex))
    assert limiter_factor(flat, "elements")[0] == pytest.approx(1.0)
    assert limiter_factor(flat, "samples")[0] == pytest.approx(2.0)


def test_an_amplifier_can_enlarge_what_arrives():
    """A weak tone, transmitted strongly, leaks through the limiter onto strong ones: more arrives than was meant."""
    taps = np.array([[1.0, -0.95]], complex)
    response = np.fft.fft(taps, GRID.fft_size, axis=1)[:, GRID.bins]
    given = FleetChannels(GRID, taps, 1 / response)
    shift = np.zeros(GRID.tones, complex)
    shift[np.argmin(np.abs(response))] = 1e-3
    rng, most = np.random.default_rng(10), 0.0
    for _ in range(300):
        base = rng.standard_normal((2, 1, GRID.tones))
        sent = [clip(modulate(GRID, base[0] + 1j * base[1] + one / response), 1.0) for one in (0, shift)]
        moved = demodulate(GRID, np.convolve(sent[1] - sent[0], taps[0])[: GRID.symbol_samples])
        most = max(most, float((np.abs(moved) ** 2).sum() / 1e-6))
    assert 1.5 < most <= limiter_factor(given, "elements")[0]


def rotated_maps(given, phases):
    """Elements → elements for samples that turn before the channel, `[device, element, element]`, by dense matrices."""
    maps = []
    for taps, equalizer, phase in zip(given.taps, given.equalizer, phases, strict=True):
        sent = modulate(given.grid, (np.eye(given.grid.tones) * equalizer)[:, None, :]) * np.exp(1j * phase)
        arrived = np.stack([np.convolve(row, taps)[: given.grid.symbol_samples] for row in sent])
        maps.append(demodulate(given.grid, arrived)[:, 0].T)
    return np.stack(maps)


@pytest.mark.parametrize("largest", [0.002, 0.02, 0.05])
def test_carrier_offsets_stay_within_the_factor(largest):
    given = channels(6, 4, -3.0)
    turns = offset_turns(given, largest * GRID.spacing_hz)
    eta = rotation_deviation(given, turns)
    bound = deviation_factor(given.gain, SHARES, mixing=eta)
    rng, time = np.random.default_rng(7), np.arange(GRID.symbol_samples) / GRID.fft_size
    for _ in range(30):
        offsets = largest * np.where(rng.random(6) < 0.5, rng.choice([-1, 1], 6), rng.uniform(-1, 1, 6))
        maps = rotated_maps(given, 2 * np.pi * offsets[:, None] * time + 2 * np.pi * rng.random((6, 1)))
        assert np.all(dense_fleet_factor(maps, SHARES) <= bound * (1 + 1e-9))
    assert np.all(bound >= deviation_factor(given.gain, SHARES) * (1 + largest))


def test_offsets_leak_into_tones_without_noise():
    """Why samples are not counted with rotation: there, 5 % of a spacing exposes a device tenfold beyond its factor."""
    given = channels(6, 1)
    time = np.arange(GRID.symbol_samples) / GRID.fft_size
    offsets = np.array([0.05, 0, 0, 0, 0, 0])[:, None]
    maps = []
    for taps, equalizer, offset in zip(given.taps, given.equalizer, offsets, strict=True):
        sent = modulate(GRID, (np.eye(8) * equalizer)[:, None, :]) * np.exp(2j * np.pi * offset * time)
        maps.append(np.stack([np.convolve(row, taps) for row in sent], axis=1))
    shares = np.array([0.01, *[0.198] * 5])
    assert dense_fleet_factor(np.stack(maps), shares)[0] > 90  # of 100, which its own noise gives


def test_phase_noise_stays_below_its_quantile_as_often_as_stated():
    grid = Grid(48, 30e3, 4e-6, 2)
    taps = np.ones((1, 5), complex)
    given = FleetChannels(grid, taps, np.ones((1, 48), complex))
    rng, linewidth, trials = np.random.default_rng(8), 200.0, 4000
    turns = phase_noise_turns(given, linewidth, 1, 0.2)
    within, delays = turns.within_symbol, turns.over_delay
    steps = rng.standard_normal((trials, grid.symbol_samples)) * np.sqrt(2 * np.pi * linewidth / grid.sample_rate_hz)
    phase = np.cumsum(steps, axis=1)
    useful = phase[:, grid.prefix_samples :]
    turned = np.abs(useful - useful[:, [grid.fft_size // 2]]).max(axis=1)
    beyond = [np.abs(phase[:, lag:] - phase[:, :-lag]).max(axis=1) > delays[lag] for lag in range(1, 5)]
    exceeded = (turned > within).mean()
    assert 0.2 * 0.1 < exceeded <= 0.1 * (1 + 4 / np.sqrt(0.1 * trials))
    assert np.any(beyond, axis=0).mean() <= 0.1
    # Twice the linewidth as variance, or one end instead of two, would not hold.
    assert within == pytest.approx(
        stats.norm.isf(0.1 / 8) * np.sqrt(2 * np.pi * linewidth * grid.fft_size / 2 / grid.sample_rate_hz)
    )


def test_errors_of_channel_estimates_cost_the_published_margin():
    flat = np.ones((6, 8), complex)
    for error in (0.01, 0.1, 0.3):
        margin = ((1 + error) / (1 - error)) ** 2
        assert deviation_factor(flat, SHARES, by_tone=np.full((6, 8), error)) == pytest.approx(
            np.minimum(margin, 1 / SHARES)
        )
    assert deviation_factor(flat, SHARES, by_tone=np.full((6, 8), 1.1)) == pytest.approx(1 / SHARES)
    given, rng = channels(6, 4, -3.0), np.random.default_rng(9)
    size = 0.15 * np.abs(given.equalizer) / np.abs(given.equalizer).max()
    bound = deviation_factor(given.gain, SHARES, by_tone=size)
    for trial in range(50):
        turned = np.exp(2j * np.pi * rng.random(size.shape))
        signs = np.where(np.arange(6)[:, None] == trial % 6, 1.0, -1.0)
        gain = given.gain + size * (signs if trial % 2 else turned)
        assert np.all(dense_fleet_factor(np.stack([np.diag(row) for row in gain]), SHARES) <= bound * (1 + 1e-9))


def test_late_devices_are_covered_as_well_as_punctual_ones():
    given = channels(6, 3, -3.0)
    late = FleetChannels(
        GRID, np.stack([np.roll(np.pad(row, (0, 4)), 1 + n % 4) for n, row in enumerate(given.taps)]), given.equalizer
    )
    assert np.allclose(np.abs(late.gain), np.abs(given.gain))
    factor = dense_fleet_factor(np.stack([np.diag(row) for row in late.gain]), SHARES)
    assert np.allclose(factor, deviation_factor(given.gain, SHARES), rtol=1e-9)


def test_chord_is_the_distance_on_the_unit_circle():
    for angle in (0.0, 0.3, -1.0, 3.0):
        assert chord(angle) == pytest.approx(abs(np.exp(1j * angle) - 1))
    assert chord(7.0) == 2.0


def test_receiver_noise_covers_turned_samples_through_unknown_taps():
    given, rng = channels(5, 4, -3.0), np.random.default_rng(11)
    tap_error = 0.05 * np.abs(given.taps).sum(axis=1)
    turns = offset_turns(given, 0.05 * GRID.spacing_hz)
    bound = receiver_deviation_factor(receiver_factor(given), given, tap_error, turns)
    units = np.eye(2 * GRID.tones).reshape(-1, 2, GRID.tones)
    time = np.arange(2 * GRID.symbol_samples) / GRID.fft_size
    for _ in range(10):
        error = rng.standard_normal(given.taps.shape) + 1j * rng.standard_normal(given.taps.shape)
        error *= (tap_error / np.abs(error).sum(axis=1))[:, None]
        for device in range(5):
            sent = modulate(GRID, units * given.equalizer[device]) * np.exp(0.1j * np.pi * time * rng.choice([-1, 1]))
            moved = np.stack([np.convolve(row, given.taps[device] + error[device]) for row in sent])
            assert np.linalg.norm(moved, 2) ** 2 <= bound[device]
    assert np.all(bound < 3 * receiver_factor(given))
