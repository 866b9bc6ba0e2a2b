"""The integers of a secure sum against an independent computation."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from small_worlds import small_scenario

import airdistill as ad
from airdistill.radio.sum_grid import SumGrid
from airdistill.radio.superposition import Permission
from airdistill.streams import stream

pytest.importorskip("opendp")


def sum_grid(folder, *changes, num_devices=5, dropouts=2):
    scenario = small_scenario(
        folder, f"fleet.devices={num_devices}", "data.samples_per_device=12", "air.medium=secure_sum",
        f"fleet.expected_dropouts={dropouts}", "privacy.noise=secure", *changes,
    )  # fmt: skip
    plan = ad.plan(scenario)
    channel = np.ones(num_devices, dtype=complex)
    design = plan.design(channel, 1, np.zeros((num_devices, plan.uplink.num_rows)))
    return plan, design, channel, SumGrid.of(plan, design, channel, 1)


def values(grid, device, vectors):
    """What a device submits that has charged the round and checked its vectors."""
    permission = Permission(grid.round_index)
    permission.open()
    charged = replace(grid, noise_seed=grid.plan.scenario.seed, permission=permission)
    return charged.values(device, vectors)


def class_means_of(num_devices, seed=0):
    rows = np.random.default_rng(seed).dirichlet(np.ones(3), (num_devices, 3))
    return np.asarray(rows)


@pytest.mark.parametrize("dropouts", [0, 1, 2])
def test_the_noise_of_the_remaining_devices_is_what_privacy_requires_of_the_fleet(tmp_path, dropouts):
    plan, design, channel, grid = sum_grid(tmp_path, dropouts=dropouts)
    required = np.abs(design.noise_gain * channel[:, None]) ** 2 / design.rx_scale**2  # variance per device, in r̂
    assert 5 * grid.grid.deviation[0] ** 2 == pytest.approx(required.sum(axis=0), rel=1e-12)
    # The devices that may not drop out add what a design without drop-outs requires of all.
    without = sum_grid(tmp_path, dropouts=0)[3]
    least = (5 - dropouts) * grid.grid.deviation[0] ** 2
    assert least == pytest.approx(5 * without.grid.deviation[0] ** 2, rel=1e-9)
    # Up to rounding it costs what the fleet's noise over the air costs if only a share of that noise is counted.
    over_the_air = plan.uplink.release(design, channel, 1).cost("device", "fleet_noise") * 5 / (5 - dropouts)
    cost = grid.release().cost("device", "fleet_noise")
    assert (cost >= over_the_air).all()
    assert cost == pytest.approx(over_the_air, rel=3e-3)
    # A secure sum has no receiver noise that could count, and a device's own noise is a share of the sum's.
    assert np.array_equal(grid.release().cost("device", "receiver_noise"), cost)
    assert grid.release().cost("device", "own_noise") == pytest.approx((5 - dropouts) * cost, rel=1e-12)


def test_values_are_weighted_class_means_on_the_grid_plus_noise_of_the_planned_variance(tmp_path):
    _, design, _, grid = sum_grid(tmp_path)
    vectors = class_means_of(5)
    draws = np.stack([values(grid, 1, vectors[1]) for _ in range(600)]).reshape(600, 3, 3)
    spacing, deviation = grid.grid.spacing, grid.grid.deviation[0]
    assert np.array_equal(np.log2(spacing), np.rint(np.log2(spacing)))  # powers of two: sums are exact
    mean, shares = draws.mean(axis=0) * spacing[:, None], design.weights[1][:, None] * vectors[1]
    assert np.abs(mean - shares).max() < 5 * deviation.max() / np.sqrt(600)
    variance = (draws * spacing[:, None]).var(axis=(0, 2))
    error = deviation**2 * np.sqrt(2 / 1800)
    assert (np.abs(variance - deviation**2) < 5 * error).all()


def test_seeded_values_are_the_signals_rounded_to_the_grid(tmp_path):
    plan, design, _, grid = sum_grid(tmp_path, "privacy.noise=seeded")
    vectors = class_means_of(5)
    for device in range(5):
        drawn = stream(plan.scenario.seed, "artificial-noise", 1, device).standard_normal((3, 3))
        signal = design.weights[device][:, None] * vectors[device] + grid.grid.deviation[0][:, None] * drawn
        found = values(grid, device, vectors[device]).reshape(3, 3) * grid.grid.spacing[:, None]
        assert (np.abs(found - signal) <= 0.5 * grid.grid.spacing[:, None] * (1 + 1e-9)).all()


def test_values_stay_well_below_the_largest_and_the_sum_over_all_devices_is_exact(tmp_path):
    _, _, _, grid = sum_grid(tmp_path)
    vectors = class_means_of(5)
    drawn = np.stack([values(grid, device, vectors[device]) for device in range(5) for _ in range(200)])
    assert np.abs(drawn).max() < grid.largest / 2
    assert 5 * grid.largest < 2**62
    total = drawn[:5].sum(axis=0)
    exact = [sum(Fraction(int(value)) for value in column) for column in drawn[:5].T]
    assert [Fraction(int(value)) for value in total] == exact


def test_a_sum_over_survivors_is_scaled_to_their_average_with_its_noise_variance(tmp_path):
    _, design, _, grid = sum_grid(tmp_path)
    vectors, survivors = class_means_of(5), [0, 2, 3]
    weights = design.weights[survivors] / design.weights[survivors].sum(axis=0)
    average = np.einsum("ik,ikd->kd", weights, vectors[survivors])
    errors = []
    for _ in range(400):
        total = sum(values(grid, device, vectors[device]) for device in survivors)
        received, noise_var = grid.received(total, survivors)
        errors.append(received - average)
    measured = np.square(errors).mean(axis=(0, 2))
    assert measured == pytest.approx(noise_var, rel=5 * np.sqrt(2 / 1200))


def test_a_row_that_no_survivor_holds_is_nan(tmp_path):
    counts = "data.class_counts=[[5,5,0],[5,5,0],[5,0,5]]"
    scenario = small_scenario(
        tmp_path, "air.medium=secure_sum", "fleet.expected_dropouts=1", "privacy.noise=secure", counts
    )
    plan, channel = ad.plan(scenario), np.ones(3, dtype=complex)
    grid = SumGrid.of(plan, plan.design(channel, 1, np.zeros((3, 3))), channel, 1)
    received, noise_var = grid.received(np.zeros(9, dtype=np.int64), [0, 1])
    assert np.isnan(received[2]).all()
    assert np.isinf(noise_var[2])
    assert np.isfinite(received[:2]).all()
