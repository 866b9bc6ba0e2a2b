"""The grid of secure noise: by hand, and its guarantees on random designs."""

import math

import numpy as np
import pytest
from hypothesis import given
from random_fleets import fleets

from airdistill.errors import InputError
from airdistill.planning.transceiver.design import RoundDesign, design_round
from airdistill.radio.discrete_noise import LEAST_UNITS, MOST_UNITS, ROUNDING, SecureGrid


def design_with(amplitude, deviation, channel, rx_scale, energy_slots=1.0):
    """A design whose signal and noise arrive with these amplitudes in r̂, `[device, row]`."""
    unit = rx_scale / np.asarray(channel)[:, None]
    shape = np.broadcast_shapes(np.shape(amplitude), unit.shape)
    signal = np.broadcast_to(np.asarray(amplitude) * unit / math.sqrt(energy_slots), shape)
    noise = np.broadcast_to(np.asarray(deviation) * unit, shape)
    nothing = np.zeros(shape)
    return RoundDesign(nothing, signal, noise, np.asarray(rx_scale), nothing[0], nothing, nothing[0])


CHANNEL = np.array([1e-4 + 2e-4j, -3e-4 + 1e-5j, 2e-4 - 1e-4j])
SCALE = np.array([2e-5, 3e-6])
AMPLITUDE = np.array([[0.5, 0.0], [0.25, 0.9], [0.25, 0.1]])


def grid_of(deviation, own=False, amplitude=AMPLITUDE, length=7):
    design = design_with(amplitude, deviation, CHANNEL, SCALE, energy_slots=3.0)
    return SecureGrid.of(design, CHANNEL, np.full((3, 2), 0.8), length, 3.0, own)


def test_units_and_amplitudes_are_those_of_the_design():
    grid = grid_of(0.3)
    assert grid.unit == pytest.approx(SCALE / CHANNEL[:, None])
    assert grid.amplitude == pytest.approx(AMPLITUDE, rel=1e-12)
    assert grid.deviation == pytest.approx(np.full((3, 2), 0.3), rel=1e-12)
    assert grid.noise_var() == pytest.approx(np.full((3, 2), 0.09), rel=1e-12)


def test_the_spacing_is_the_largest_power_of_two_that_rounding_allows():
    grid = grid_of(0.3)
    assert (np.frexp(grid.spacing)[0] == 0.5).all()
    least = np.array([0.25, 0.1]) * 0.8
    assert (grid.added_shift() <= ROUNDING * least).all()
    assert (2 * grid.added_shift() > ROUNDING * least).all()
    assert (grid.added_shift() >= grid.spacing * math.sqrt(7)).all()


def test_noise_too_small_for_the_grid_is_added_by_other_devices():
    deviation = np.full((3, 2), 0.3)
    spacing = grid_of(0.3).spacing
    deviation[1, 0] = 7.9 * spacing[0]
    deviation[2, 1] = 8.1 * spacing[1]
    grid = grid_of(deviation)
    assert grid.deviation[1, 0] == 0
    assert grid.deviation[2, 1] == pytest.approx(8.1 * spacing[1])
    required, total = (deviation**2).sum(axis=0), grid.noise_var().sum(axis=0)
    assert total == pytest.approx(required, rel=1e-12)
    assert total[0] >= required[0] * (1 - 1e-15)
    assert grid.closeness() < 1e-200


def test_own_noise_cannot_be_added_by_other_devices():
    deviation = np.full((3, 2), 0.3)
    deviation[1, 0] = 7.9 * grid_of(0.3).spacing[0]
    with pytest.raises(InputError, match=r"privacy\.epsilon = \(as given\): too large for secure noise.*would be 7\.9"):
        grid_of(deviation, own=True)
    # A device without a privacy target adds no noise; the own noise of a device is one discrete Gaussian.
    deviation[1, 0] = 0.0
    assert grid_of(deviation, own=True).closeness() == 0


def test_a_row_whose_noise_is_too_small_is_rejected():
    deviation = np.full((3, 2), 0.3)
    deviation[:, 1] = 1e-12
    with pytest.raises(InputError, match="too large for secure noise"):
        grid_of(deviation)
    deviation[:, 1] = 0.0
    assert not grid_of(deviation).deviation[:, 1].any()


def test_noise_too_large_for_exact_integers_is_rejected():
    with pytest.raises(InputError, match="too small for secure noise"):
        grid_of(2 * MOST_UNITS * grid_of(0.3).spacing)


def test_devices_without_a_channel_and_rows_that_are_not_sent():
    channel = CHANNEL * [1, 0, 1]
    design = design_with(AMPLITUDE, 0.3, CHANNEL, SCALE * [1, 0])
    grid = SecureGrid.of(design, channel, np.full((3, 2), 0.8), 7, 1.0)
    for array in (grid.unit, grid.amplitude, grid.deviation):
        assert not array[1].any()
        assert not array[:, 1].any()
        assert array[[0, 2], 0].all()
    assert np.isfinite(grid.spacing).all()


def test_misaligned_signals_are_rejected():
    design = design_with(AMPLITUDE, 0.3, CHANNEL * np.exp(0.01j), SCALE)
    with pytest.raises(ValueError, match="in phase"):
        SecureGrid.of(design, CHANNEL, np.full((3, 2), 0.8), 7, 1.0)


def test_a_sum_that_is_not_close_to_a_discrete_gaussian_is_rejected():
    two = np.array([[3.0], [3.0]])
    grid = SecureGrid(np.ones(1), two, two, two + 0j, 4)
    with pytest.raises(RuntimeError, match="closeness"):
        grid.closeness()


@given(fleets)
def test_random_designs_keep_noise_and_shift(fleet):
    required = fleet.required
    args = fleet.class_counts, fleet.channel, fleet.peak_power_w, fleet.channel_noise_var, required
    sensitivity = np.full(required.shape, math.sqrt(2))
    for trust in ("fleet_noise", "own_noise"):
        design = design_round(*args, trust)
        num_classes = required.shape[1]
        own = trust == "own_noise"
        grid = SecureGrid.of(design, fleet.channel, sensitivity, num_classes, num_classes, own)
        sent = design.rx_scale > 0
        assert grid.amplitude[:, sent] == pytest.approx(fleet.weights[:, sent], rel=1e-9)
        counted = grid.noise_var() if own else grid.noise_var().sum(axis=0)
        least = required if own else required.max(axis=0)
        assert counted[..., sent] == pytest.approx(least[..., sent], rel=1e-9)
        held = (grid.amplitude > 0) & sent
        shift = np.broadcast_to(grid.added_shift(), held.shape)
        assert (shift[held] <= ROUNDING * (grid.amplitude * sensitivity)[held] * (1 + 1e-12)).all()
        assert grid.closeness() < 1e-200
        units = grid.deviation / grid.spacing
        assert ((units == 0) | (units >= LEAST_UNITS)).all()
