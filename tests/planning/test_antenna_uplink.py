"""Uplinks with several antennas: power and privacy hold, the predicted noise is right, one antenna is plain."""

import numpy as np
import pytest
from random_fleets import DYNAMICS, TRUSTS, random_fleet
from scipy.optimize import linprog
from small_worlds import small_scenario

from airdistill.channel.sources import channel_source
from airdistill.errors import InputError
from airdistill.planning.antennas.uplink import AntennaUplink
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.payloads import ClassMeans
from airdistill.planning.plan import Plan, plan
from airdistill.planning.transceiver.common_noise import best_common_noise
from airdistill.planning.transceiver.superposed import SuperposedUplink
from airdistill.planning.what_if.steps import antenna_what_if
from airdistill.privacy.sensitivity import aggregation_weights
from airdistill.privacy.targets import spent_squared_mu
from airdistill.radio.superposition import RoundNoise, over_the_air
from airdistill.scenario import load


def antenna_uplink(fleet, trust, **choices):
    unknown = np.full(len(fleet.mu), np.nan)
    realised = RealisedFleet(fleet.class_counts, fleet.peak_power_w, unknown, unknown, fleet.mu)
    payload = ClassMeans(realised, fleet.model, False, DYNAMICS)
    return AntennaUplink(realised, fleet.channel_noise_var, trust, payload, **choices)


def antennas_of(fleet, num_antennas, seed):
    gauss = np.random.default_rng(seed).standard_normal((2, len(fleet.mu), num_antennas))
    return (gauss[0] + 1j * gauss[1]) * np.abs(fleet.channel)[:, None]


@pytest.mark.parametrize("combining", ["joint", "per_class"])
@pytest.mark.parametrize("trust", TRUSTS)
def test_every_round_stays_within_power_and_budget(trust, combining):
    """The ledger's own cost of T such rounds, counted over all that the antennas receive, is at most μ²."""
    for seed in range(12):
        fleet = random_fleet(seed)
        uplink = antenna_uplink(fleet, trust, combining=combining)
        channel = antennas_of(fleet, 2 + seed % 3, seed)
        made = uplink.design(channel, fleet.num_rounds, 1)
        assert made.power_slack(fleet.peak_power_w).min() >= -1e-9
        release = uplink.release(made, channel, 1)
        # A noiseless receiver protects no device: the fleet's noise counts instead.
        counts = trust if fleet.channel_noise_var > 0 or trust == "own_noise" else "fleet_noise"
        spent = fleet.num_rounds * spent_squared_mu(release.cost(fleet.model, counts), fleet.model, False)
        assert (spent <= fleet.mu**2 * (1 + 1e-9)).all(), f"fleet {seed}"
        sent = made.weights > 0
        assert np.allclose(made.counted_noise_var[sent], release.counted_noise_var[counts][sent])
        planned = uplink.noise_over(channel[None])(fleet.num_rounds)[0]
        assert planned == pytest.approx(made.effective_noise_var)


@pytest.mark.parametrize("trust", TRUSTS)
def test_received_noise_has_the_predicted_variance(trust):
    """Over many draws the estimate is the mean of a class's holders, with noise of variance v_k."""
    fleet = random_fleet(3)
    uplink = antenna_uplink(fleet, trust)
    channel = antennas_of(fleet, 3, 0)
    made = uplink.design(channel, fleet.num_rounds, 1)
    num_classes = fleet.class_counts.shape[1]
    class_means = np.random.default_rng(0).dirichlet(np.ones(num_classes), fleet.class_counts.shape)
    weights, errors = aggregation_weights(fleet.class_counts), []
    for draw in range(400):
        noise = RoundNoise.seeded(draw, 1, made, num_classes, 2 * fleet.channel_noise_var, "complex")
        reception = over_the_air(weights, class_means, made, channel, noise, 1e-6)
        errors.append(reception.received - reception.ideal)
    sent = np.isfinite(made.effective_noise_var)
    drawn = np.array(errors)[:, sent]
    variance = made.effective_noise_var[sent]
    assert (drawn**2).mean(axis=(0, 2)) == pytest.approx(variance, rel=0.15)
    assert (np.abs(drawn.mean(axis=0)) <= 5 * np.sqrt(variance / 400)[:, None]).all()


def test_with_few_devices_only_their_own_noise_protects_them():
    """N antennas can null 2N − 2 other devices, and so fleet_noise costs as much as own_noise."""
    fleet = random_fleet(5)
    channel = antennas_of(fleet, 4, 1)
    assert len(fleet.mu) <= 7  # 2N − 1
    fleet_made, own_made = (
        antenna_uplink(fleet, trust).design(channel, fleet.num_rounds, 1) for trust in ("fleet_noise", "own_noise")
    )
    assert fleet_made.effective_noise_var == pytest.approx(own_made.effective_noise_var, rel=1e-6)


def test_common_noise_is_optimal_against_a_linear_programme():
    rng = np.random.default_rng(0)
    for _ in range(30):
        asked, reaching = rng.uniform(0, 2, (6, 1)), rng.uniform(0, 0.9, (6, 1))
        asked[rng.random(6) < 0.2] = 0.0
        common = best_common_noise(asked, reaching)[0]
        found = common + np.maximum(asked - reaching * common, 0.0).sum()
        # min R + Σδ, κR + δ ≥ req.
        least = linprog(np.ones(7), A_ub=-np.column_stack([reaching, np.eye(6)]), b_ub=-asked[:, 0]).fun
        assert found == pytest.approx(least, rel=1e-8)


def test_one_antenna_gives_the_plain_superposed_uplink(tmp_path):
    scenario = small_scenario(tmp_path, "radio.antennas=1")
    assert type(plan(scenario).uplink) is SuperposedUplink
    assert channel_source(scenario).round_channel(2).shape == (3,)


def test_the_first_antenna_has_the_channel_of_a_single_antenna(tmp_path):
    alone = channel_source(small_scenario(tmp_path))
    several = channel_source(small_scenario(tmp_path, "radio.antennas=3"))
    assert several.round_channel(4)[:, 0].tobytes() == alone.round_channel(4).tobytes()
    drawn = several.planning_channels(2)
    assert drawn.shape == (2, 3, 3)
    assert drawn[:, :, 0].tobytes() == alone.planning_channels(2).tobytes()
    assert not np.isclose(drawn[:, :, 1], drawn[:, :, 0]).any()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        (["radio.csi_error_db=-30"], "radio.csi_error_db"),
        (["radio.truncation=optimal"], "radio.truncation"),
        (["radio.noise=real"], "radio.noise"),
        (
            [
                "radio.transceiver=paper",
                "privacy.sensitivity=paper",
                "privacy.accountant=paper",
                "privacy.trust=receiver_noise",
            ],
            "radio.transceiver",
        ),
        (["radio.fading=umi"], "radio.fading"),
        (["fleet.participation=0.5"], "fleet.participation"),
        (["privacy.noise=secure"], "privacy.noise"),
        (["air.medium=radio"], "air.medium"),
        (["radio.gains=[[1,0],[1,0],[1,0]]"], "radio.gains"),
    ],
)
def test_unsupported_combinations_are_refused_by_field(tmp_path, changes, field):
    with pytest.raises(InputError, match=rf"{field}.*radio.antennas = 2"):
        small_scenario(tmp_path, "radio.antennas=2", *changes)


@pytest.mark.parametrize("uplink", ["orthogonal_knowledge", "gradient"])
def test_tdma_and_gradients_refuse_several_antennas(uplink):
    with pytest.raises(InputError, match=r"radio\.antennas"):
        plan(load("quick", ["radio.antennas=2"]), uplink, 100)


def test_the_antenna_what_if_of_a_plan(tmp_path):
    made = plan(small_scenario(tmp_path, "radio.antennas=3"))
    found = antenna_what_if(made)
    assert found.num_antennas == 3
    assert 0 <= found.gap <= found.largest_gap
    assert found.floor < found.floor_alone
    assert found.noise_var == pytest.approx(made.forecast.effective_noise / made.uplink.vector_length)
    assert any("3 antennas receive is counted" in sentence for sentence in made.assumptions)
    assert Plan.from_dict(made.to_dict()).to_dict() == made.to_dict()
    assert antenna_what_if(plan(small_scenario(tmp_path))) is None
