"""The factors of privacy/waveform.py against dense linear algebra: a round is built sample by sample as a matrix."""

import numpy as np
import pytest

from airdistill.channel.waveform import Grid
from airdistill.privacy.waveform import (
    FleetChannels,
    PrefixNoise,
    common_noise,
    element_factor,
    mixed_factor,
    prefix_factor,
    receiver_factor,
)
from airdistill.radio.iq import modulate
from airdistill.radio.waveform_link import propagate

GRID = Grid(tones=8, spacing_hz=1.0, prefix_s=6 / 16, axes=2)
EXACT = 1e-10


def channels(num_devices, num_taps, floor_db=-300.0, seed=0, grid=GRID):
    rng = np.random.default_rng(seed)
    shape = (num_devices, num_taps)
    taps = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) * np.exp(-np.arange(num_taps) / 3)
    response = np.fft.fft(taps, grid.fft_size, axis=1)[:, grid.bins]
    power = np.abs(response) ** 2
    floor = 10 ** (floor_db / 10) * power.mean(axis=1, keepdims=True)
    return FleetChannels(grid, taps, response.conj() / np.maximum(power, floor))


def shares_of(num_devices, seed=1):
    drawn = np.random.default_rng(seed).uniform(0.2, 2.0, num_devices)
    return drawn / drawn.sum()


def dense_maps(given, num_symbols):
    """Elements → all received samples of every device, `[device, sample, element]`, by modulating unit vectors."""
    grid, maps = given.grid, []
    units = np.eye(num_symbols * grid.tones).reshape(-1, num_symbols, grid.tones)
    for taps, equalizer in zip(given.taps, given.equalizer, strict=True):
        sent = modulate(grid, units * equalizer)
        maps.append(np.stack([np.convolve(row, taps) for row in sent], axis=1))
    return np.stack(maps)


def dense_fleet_factor(maps, shares, *added):
    """The supremum of (Aδ)ᴴ Σ⁺ (Aδ) for every device, by a singular value decomposition of the noise's factor."""
    noises = [np.sqrt(share) * one for share, one in zip(shares, maps, strict=True)]
    factor = np.concatenate([*noises, *added], axis=1)
    left, values, _ = np.linalg.svd(factor, full_matrices=False)
    kept = values > 1e-11 * values[0]
    white = left[:, kept].conj().T / values[kept, None]
    return np.array([np.linalg.norm(white @ one, 2) ** 2 for one in maps])


@pytest.mark.parametrize("floor_db", [-300.0, -3.0])
@pytest.mark.parametrize(("num_devices", "num_taps"), [(1, 4), (2, 3), (4, 4), (6, 2), (6, 7)])
def test_fleet_noise_in_all_samples_of_a_symbol_equals_dense_linear_algebra(num_devices, num_taps, floor_db):
    given, shares = channels(num_devices, num_taps, floor_db), shares_of(num_devices)
    expected = dense_fleet_factor(dense_maps(given, 1), shares)
    assert np.allclose(prefix_factor(given, shares, tolerance=EXACT), expected, rtol=1e-6)
    if num_devices > 2:
        assert expected.max() > 1.5


@pytest.mark.parametrize("floor_db", [-300.0, -3.0])
def test_more_symbols_reveal_no_more_than_one(floor_db):
    given, shares = channels(5, 4, floor_db), shares_of(5)
    factor = prefix_factor(given, shares, tolerance=EXACT)
    for num_symbols in (2, 3, 5):
        dense = dense_fleet_factor(dense_maps(given, num_symbols), shares)
        assert np.all(dense <= factor * (1 + 1e-9))
        assert np.all(dense >= 0.9 * factor)


def test_channels_that_change_between_symbols_reveal_no_more_than_their_worst_symbol():
    """A whole round through `propagate`, with taps of each symbol's own, against the factors of its symbols alone."""
    given, shares, num_symbols = channels(5, 4, -3.0), shares_of(5), 3
    taps = np.stack([channels(5, 4, seed=seed).taps for seed in (0, 7, 8)], axis=1)  # [device, symbol, tap]
    units = np.eye(num_symbols * GRID.tones).reshape(-1, num_symbols, GRID.tones)
    maps = np.stack(
        [
            np.stack(
                [propagate(GRID, row[None], taps[device, None]) for row in modulate(GRID, units * weights)], axis=1
            )
            for device, weights in enumerate(given.equalizer)
        ]
    )
    alone = [
        prefix_factor(FleetChannels(GRID, taps[:, symbol], given.equalizer), shares, tolerance=EXACT)
        for symbol in range(num_symbols)
    ]
    dense, bound = dense_fleet_factor(maps, shares), np.max(alone, axis=0)
    assert np.all(dense <= bound * (1 + 1e-9))
    assert np.all(dense >= 0.8 * bound)


def test_identical_channels_reveal_nothing_in_the_prefix():
    one = channels(1, 5)
    same = FleetChannels(GRID, np.repeat(one.taps, 6, axis=0), np.repeat(one.equalizer, 6, axis=0))
    assert np.allclose(prefix_factor(same, shares_of(6), tolerance=EXACT), 1.0, rtol=1e-6)
    turned = np.exp(1j * np.arange(6))[:, None]  # the equaliser undoes a common phase
    rotated = FleetChannels(GRID, same.taps * turned, same.equalizer / turned)
    assert np.allclose(prefix_factor(rotated, shares_of(6), tolerance=EXACT), 1.0, rtol=1e-6)
    assert np.allclose(prefix_factor(channels(6, 1), shares_of(6)), 1.0, rtol=1e-12)


def test_a_device_without_noise_of_its_own_is_protected_where_others_are():
    given, shares = channels(12, 2), np.append(0.0, shares_of(11))
    expected = dense_fleet_factor(dense_maps(given, 1), shares)
    found = prefix_factor(given, shares, tolerance=EXACT)
    assert np.allclose(found, expected, rtol=1e-6)
    assert 1.0 < found[0] < 1e4
    lonely = channels(2, 3)
    assert prefix_factor(lonely, np.array([0.0, 1.0]))[0] > 1e12  # the other device's noise has another direction


def test_elements_alone_cost_what_the_floor_leaves():
    given, shares = channels(5, 4, -3.0), shares_of(5)
    maps = np.stack([np.diag(row) for row in given.gain])
    expected = dense_fleet_factor(maps, shares)
    found = element_factor(given.gain, shares)
    assert np.allclose(found, expected, rtol=1e-9)
    assert np.all(found <= prefix_factor(given, shares))
    assert found.max() > 1.05
    assert np.allclose(element_factor(channels(5, 4).gain, shares), 1.0)


def test_the_factor_depends_on_the_channels_and_not_on_the_scale_of_shares():
    with pytest.raises(ValueError, match="must sum to 1"):
        prefix_factor(channels(3, 3), np.ones(3))
    with pytest.raises(ValueError, match="do not fit a cyclic prefix"):
        channels(3, 8)


def test_unequal_noise_counts_by_its_least_number():
    """Numbers with noise of their own, spread over the tones: the bound holds, and equal noise is counted in full."""
    given, rng = channels(5, 4, -3.0), np.random.default_rng(6)
    spreading = np.fft.fft(np.eye(8), norm="ortho")
    maps = dense_maps(given, 1) @ spreading
    for spread in (0.0, 0.5, 3.0):
        noise_var = shares_of(5)[:, None] * np.exp(spread * rng.standard_normal((5, 8)))
        total, shares = common_noise(noise_var)
        bound = prefix_factor(given, shares) / total
        weighted = np.concatenate([one * np.sqrt(var) for one, var in zip(maps, noise_var, strict=True)], axis=1)
        true = dense_fleet_factor(maps, np.zeros(5), weighted)
        assert np.all(true <= bound * (1 + 1e-9))
        assert spread > 0 or np.allclose(true, bound, rtol=2e-3)
    with pytest.raises(ValueError, match="every number of a symbol needs noise"):
        common_noise(np.eye(3))


def test_noise_in_the_prefix_is_relative_to_that_of_ordinary_samples():
    """Against the mean power of modulated noise: unit variance on each element, by share, through the equaliser."""
    given, shares, rng = channels(3, 3, -3.0), shares_of(3), np.random.default_rng(2)
    elements = (rng.standard_normal((3, 4000, 8)) + 1j * rng.standard_normal((3, 4000, 8))) / np.sqrt(2)
    sent = modulate(GRID, elements * np.sqrt(shares)[:, None, None] * given.equalizer[:, None])
    found = PrefixNoise.relative(given, shares, 5.0)
    assert found.length == 2
    assert np.allclose(found.var, 5 * (np.abs(sent) ** 2).mean(axis=1), rtol=0.03)


def bursts(given, var, length, starts, num_samples):
    """Received bursts of fresh noise, one column for each sample that a device adds."""
    columns = []
    for taps, amplitude in zip(given.taps, np.sqrt(var), strict=True):
        for first in starts:
            for place in range(first, first + length):
                column = np.zeros(num_samples, complex)
                column[place : place + len(taps)] = amplitude * taps
                columns.append(column)
    return np.stack(columns, axis=1)


@pytest.mark.parametrize(("length", "num_taps"), [(3, 3), (4, 3), (1, 3), (3, 4)])
def test_noise_in_the_prefix_covers_the_second_look(length, num_taps):
    given, shares, var = channels(4, num_taps), shares_of(4), np.array([0.5, 2.0, 0.3, 1.0])
    found = prefix_factor(given, shares, PrefixNoise(length, var), tolerance=EXACT)
    memory, per_symbol = num_taps - 1, GRID.symbol_samples
    for num_symbols, times, exact in ((1, 0.5, True), (1, 1.0, False), (4, 1.0, False)):
        maps = np.pad(dense_maps(given, num_symbols), [(0, 0), (0, GRID.prefix_samples), (0, 0)])
        starts = [symbol * per_symbol for symbol in range(num_symbols + 1)]
        added = bursts(given, times * var, length, starts, maps.shape[1])
        dense = dense_fleet_factor(maps, shares, added)
        assert np.all(dense <= found * (1 + 1e-6))
        assert not exact or np.allclose(dense, found, rtol=1e-6)
    assert np.all(found < prefix_factor(given, shares))
    strong = prefix_factor(given, shares, PrefixNoise(length, 1e6 * var))
    assert strong.max() < 1.001 or length < memory
    with pytest.raises(ValueError, match="must end within the cyclic prefix"):
        prefix_factor(given, shares, PrefixNoise(7, var))


@pytest.mark.parametrize("floor_db", [-300.0, -3.0])
def test_receiver_noise_in_all_samples_equals_the_largest_singular_value(floor_db):
    given = channels(5, 4, floor_db)
    one = np.linalg.norm(dense_maps(given, 1), 2, axis=(1, 2)) ** 2
    assert np.allclose(receiver_factor(given, num_symbols=1, tolerance=EXACT), one, rtol=1e-6)
    several = receiver_factor(given, tolerance=EXACT)
    for num_symbols in (2, 5):
        dense = np.linalg.norm(dense_maps(given, num_symbols), 2, axis=(1, 2)) ** 2
        assert np.all(dense <= several * (1 + 1e-9))
    assert np.all(several < 1.35 * dense)


def test_a_prefix_through_a_flat_channel_doubles_what_thermal_noise_reveals():
    grid = Grid(tones=612, spacing_hz=30e3, prefix_s=72 / (1024 * 30e3), axes=2)
    flat = FleetChannels(grid, np.ones((1, 1), complex), np.ones((1, 612), complex))
    assert receiver_factor(flat)[0] == pytest.approx(2.0, abs=1e-6)
    none = FleetChannels(Grid(612, 30e3, 0.0, 2), flat.taps, flat.equalizer)
    assert receiver_factor(none)[0] == pytest.approx(1.0)


def test_mixed_noise_is_bounded_by_the_mean_of_both_factors():
    given, shares = channels(4, 4, -3.0), shares_of(4)
    maps = dense_maps(given, 1)
    fleet, receiver = prefix_factor(given, shares, tolerance=EXACT), receiver_factor(given, 1, EXACT)
    for fleet_var, receiver_var in ((1.0, 1.0), (3.0, 0.2), (0.05, 1.0)):
        thermal = np.sqrt(receiver_var / fleet_var) * np.eye(maps.shape[1])
        true = dense_fleet_factor(maps, shares, thermal) / fleet_var * (fleet_var + receiver_var)
        bound = mixed_factor(fleet, receiver, fleet_var, receiver_var)
        assert np.all(true <= bound * (1 + 1e-9))
        assert np.all(true > 0.5 * bound)


def test_a_floor_makes_the_refined_factor_smaller_than_the_sum_of_both_parts():
    """The bracket's tolerance is kept: a coarse factor lies above the exact one and within the tolerance."""
    given, shares = channels(6, 5, -3.0), shares_of(6)
    exact = prefix_factor(given, shares, tolerance=EXACT)
    for tolerance in (0.1, 0.01, 0.001):
        coarse = prefix_factor(given, shares, tolerance=tolerance)
        assert np.all((exact <= coarse) & (coarse <= exact * (1 + 1.2 * tolerance)))
