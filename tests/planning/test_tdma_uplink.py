"""TDMA is designed like as many fleets of one device each."""

import numpy as np
import pytest
from random_fleets import TRUSTS, random_fleet

from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.payloads import ClassMeans
from airdistill.planning.transceiver.design import design_round
from airdistill.planning.transceiver.tdma import TdmaUplink
from airdistill.privacy.sensitivity import TrajectoryDynamics, aggregation_weights, required_noise_var

DYNAMICS = TrajectoryDynamics(0.05, 10.0, 2.0, 4.0)


def uplink_of(fleet, trust):
    realised = RealisedFleet(fleet.class_counts, fleet.peak_power_w, fleet.mu, fleet.mu, fleet.mu)
    return TdmaUplink(realised, fleet.channel_noise_var, trust, ClassMeans(realised, fleet.model, False, DYNAMICS))


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("seed", range(8))
def test_each_device_is_designed_like_a_fleet_of_one(seed, trust):
    fleet, rounds = random_fleet(seed), 9
    rng = np.random.default_rng(seed)
    channel = (rng.standard_normal(len(fleet.mu)) + 1j * rng.standard_normal(len(fleet.mu))) * 0.3
    drawn = uplink_of(fleet, trust).design(channel, rounds, 1)
    weights, alone_trust = aggregation_weights(fleet.class_counts), trust
    if trust == "fleet_noise" or fleet.channel_noise_var == 0:
        alone_trust = "own_noise"
    total = np.zeros(fleet.class_counts.shape[1])
    for device in range(len(fleet.mu)):
        counts = fleet.class_counts[[device]]
        required = required_noise_var(counts, fleet.mu[[device]], rounds, fleet.model, dynamics=DYNAMICS)
        power = fleet.peak_power_w[[device]]
        alone = design_round(counts, channel[[device]], power, fleet.channel_noise_var, required, alone_trust)
        held = counts[0] > 0
        assert drawn.signal_gain[device, held] == pytest.approx(alone.signal_gain[0, held], rel=1e-9)
        assert np.abs(drawn.noise_gain[device, held]) == pytest.approx(np.abs(alone.noise_gain[0, held]), rel=1e-9)
        assert drawn.rx_scale[device, held] == pytest.approx(alone.rx_scale[held], rel=1e-9)
        in_the_sum = weights[device, held] ** 2 * alone.counted_noise_var[0, held]
        assert drawn.counted_noise_var[device, held] == pytest.approx(in_the_sum, rel=1e-9)
        total[held] += weights[device, held] ** 2 * alone.effective_noise_var[held]
    reached = (fleet.class_counts > 0).any(axis=0)
    assert drawn.effective_noise_var[reached] == pytest.approx(total[reached], rel=1e-9)
    assert (drawn.power_slack(fleet.peak_power_w) >= -1e-9).all()
    assert (drawn.privacy_slack(uplink_of(fleet, trust).required(rounds)) >= -1e-9).all()


@pytest.mark.parametrize("trust", TRUSTS)
def test_the_planned_noise_is_that_of_the_designs(trust):
    fleet = random_fleet(5)
    rng = np.random.default_rng(1)
    shape = (6, len(fleet.mu))
    channels = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) * 0.3
    uplink = uplink_of(fleet, trust)
    planned = uplink.noise_over(channels)(4)
    for draw, channel in enumerate(channels):
        assert planned[draw] == pytest.approx(uplink.design(channel, 4, 1).effective_noise_var, rel=1e-12)
    assert uplink.num_slots == len(fleet.mu) * fleet.class_counts.shape[1] ** 2


def test_superposition_divides_the_noise_by_the_number_of_equal_devices():
    """Privacy-limited and all devices equal: superposition needs max_i req, TDMA Σ_i req."""
    counts, mu, devices = np.full((6, 3), 20), np.full(6, 0.3), 6
    realised = RealisedFleet(counts, np.full(6, 1e9), mu, mu, mu)
    tdma = TdmaUplink(realised, 1.0, "receiver_noise", ClassMeans(realised, "device", False, DYNAMICS))
    superposed = design_round(counts, np.ones(6), 1e9, 1.0, tdma.required(10), "receiver_noise")
    ratio = tdma.design(np.ones(6), 10, 1).effective_noise_var / superposed.effective_noise_var
    assert ratio == pytest.approx(np.full(3, devices))
