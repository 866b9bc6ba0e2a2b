"""Noise and power of the superposed signal, measured over many rounds."""

import math

import numpy as np
import pytest

import airdistill as ad
from airdistill.channel import channel_source
from airdistill.radio import ideal_knowledge, over_the_air
from airdistill.radio.superposition import RoundNoise, error_free

NUM_ROUNDS = 200
FEW_ROUNDS = "learning.max_rounds=100"  # to choose from: the plan is not what is tested


def receptions(plan, axis, noise_power_w, num_rounds=NUM_ROUNDS):
    fleet, source = plan.fleet, channel_source(plan.scenario)
    rng = np.random.default_rng(1)
    vectors = rng.dirichlet(np.full(fleet.num_classes, 0.3), (fleet.num_devices, fleet.num_classes))
    for round_index in range(1, num_rounds + 1):
        channel = source.round_channel(round_index)
        design = plan.design(channel)
        noise = RoundNoise.seeded(0, round_index, design, fleet.num_classes, noise_power_w, axis)
        yield vectors, design, over_the_air(plan.uplink.weights(1), vectors, design, channel, noise, 3.6e-6)


@pytest.mark.parametrize("axis", ["complex", "real"])
@pytest.mark.parametrize("trust", ["receiver_noise", "fleet_noise", "own_noise"])
def test_the_measured_variance_is_the_predicted_one(axis, trust):
    """The mean of (r̂ − q)²/v over all rounds, classes and entries is 1. Its error is small enough to detect 5 %."""
    changes = [
        FEW_ROUNDS,
        "fleet.devices=6",
        "radio.noise_power=2e-14 W",
        f"radio.noise={axis}",
        f"privacy.trust={trust}",
    ]
    plan = ad.plan(ad.load("quick", changes))
    ratios = np.stack(
        [found.squared_error / found.predicted_noise_var for _, _, found in receptions(plan, axis, 2e-14)]
    )
    error = math.sqrt(2 / (ratios.size * 10))
    assert 4 * error < 0.05
    assert abs(ratios.mean() - 1) < 4 * error


def test_noise_of_another_strength_is_detected():
    plan = ad.plan(ad.load("quick", ["fleet.devices=6", "privacy.trust=receiver_noise"]))
    stronger = receptions(plan, "complex", 1.05 * 5e-15, 2 * NUM_ROUNDS)
    ratios = [found.squared_error / found.predicted_noise_var for _, _, found in stronger]
    error = math.sqrt(2 / (np.size(ratios) * 10))
    assert np.mean(ratios) - 1 > 4 * error


@pytest.mark.parametrize("trust", ["receiver_noise", "fleet_noise", "own_noise"])
def test_power_stays_below_its_limit_and_is_the_planned_one(trust):
    plan = ad.plan(ad.load("quick", [FEW_ROUNDS, "fleet.devices=6", f"privacy.trust={trust}"]))
    expected, measured = [], []
    for vectors, design, found in receptions(plan, "complex", 5e-15):
        norms = (vectors**2).sum(axis=2)
        signal, noise = np.abs(design.signal_gain) ** 2 * norms, np.abs(design.noise_gain) ** 2
        assert (signal + noise <= plan.fleet.peak_power_w[:, None] * (1 + 1e-9)).all()
        assert found.planned_power_w == pytest.approx(design.mean_power_w().sum() / 10)
        assert found.measured_joules == pytest.approx(found.measured_power_w * found.uplink_seconds)
        expected.append((signal + noise).sum() / 10)
        measured.append(found.measured_power_w)
    difference = np.array(measured) - np.array(expected)
    # Without artificial noise the power is not random.
    error = difference.std() / math.sqrt(NUM_ROUNDS)
    assert abs(difference.mean()) <= 5 * error + 1e-12 * np.mean(expected)


def test_the_ideal_sum_is_the_weighted_mean_and_an_error_free_exchange_delivers_it():
    counts = np.array([[3, 0, 0], [1, 4, 0]])
    vectors = np.random.default_rng(0).dirichlet(np.ones(3), (2, 3))
    vectors[0, 1:] = np.nan
    vectors[1, 2] = np.nan
    ideal = ideal_knowledge(counts, vectors)
    found = error_free(ideal, 18.0)
    assert found.received[0] == pytest.approx(0.75 * vectors[0, 0] + 0.25 * vectors[1, 0])
    assert found.received[1] == pytest.approx(vectors[1, 1])
    assert np.isnan(found.received[2]).all()
    assert np.array_equal(found.received, found.ideal, equal_nan=True)
    assert np.array_equal(found.broadcast, ideal, equal_nan=True)
    assert found.squared_error.tolist() == [0, 0, 0]
    assert found.uplink_seconds == 9 * 2.0


def test_a_class_that_no_device_holds_is_not_received():
    plan = ad.plan(
        ad.load("quick", ["fleet.devices=2", "radio.gains=[[1e-6, 0], [1e-6, 0]]", "data.class_counts=[[5,0],[5,0]]"])
    )
    channel = np.full(2, 1e-6 + 0j)
    design = plan.design(channel)
    noise = RoundNoise.seeded(0, 1, design, 2, 5e-15, "complex")
    found = over_the_air(plan.uplink.weights(1), np.full((2, 2, 2), 0.5), design, channel, noise, 1e-6)
    assert np.isfinite(found.received[0]).all()
    assert np.isnan(found.received[1]).all()


def test_seeded_noise_depends_on_round_and_device_only():
    def noise(round_index, num_devices):
        plan = ad.plan(ad.load("quick", [FEW_ROUNDS, f"fleet.devices={num_devices}"]))
        design = plan.design(np.full(num_devices, 1e-6 + 0j))
        return RoundNoise.seeded(0, round_index, design, 5, 1.0, "complex")

    first, again, more = noise(3, 4), noise(3, 4), noise(3, 7)
    assert np.array_equal(first.artificial, again.artificial)
    assert np.array_equal(first.artificial, more.artificial[:4])
    assert np.array_equal(first.receiver, more.receiver)
    assert not np.array_equal(first.receiver, noise(4, 4).receiver)
