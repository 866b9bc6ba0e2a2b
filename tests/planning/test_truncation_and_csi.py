"""Truncated channel inversion and imperfect CSI: designs, errors, and what a misaligned signal reveals."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_fleets import TRUSTS, fleets, random_fleet, uplink_of
from scipy.integrate import quad
from small_worlds import small_scenario

import airdistill as ad
from airdistill.channel.csi import ChannelError, planning_estimates, round_estimate
from airdistill.errors import InputError
from airdistill.planning.convergence.rounds import typical_floor
from airdistill.planning.plan import plan, planning_draws
from airdistill.planning.transceiver.design import design_round, noise_by_trust
from airdistill.planning.transceiver.superposed import active_devices, squared_bias_bound, weights_of_active_devices
from airdistill.privacy.sensitivity import aggregation_weights, required_noise_var
from airdistill.radio.superposition import RoundNoise, over_the_air
from airdistill.scenario import load


@given(fleets, st.sampled_from(TRUSTS))
def test_without_truncation_and_csi_error_the_design_is_bit_identical_to_the_plain_one(fleet, trust):
    uplink = uplink_of(fleet, trust, truncation=0.0, error=ChannelError(0.0))
    design = uplink.design(fleet.channel, fleet.num_rounds, 1)
    plain = design_round(
        fleet.class_counts, fleet.channel, fleet.peak_power_w, fleet.channel_noise_var, fleet.required, trust
    )
    for name, value in vars(plain).items():
        assert np.array_equal(getattr(design, name), value), name
    assert np.array_equal(uplink.noise_over(fleet.channel[None])(fleet.num_rounds)[0], plain.effective_noise_var)


@given(fleets, st.sampled_from(TRUSTS), st.floats(0, 1))
def test_a_truncated_round_is_the_plain_round_of_its_active_devices(fleet, trust, quantile):
    """The gains do not depend on inactive devices, which send nothing, not even noise, and are not charged."""
    gains = np.abs(fleet.channel) ** 2
    threshold = float(np.quantile(gains, quantile))
    uplink, active = uplink_of(fleet, trust, truncation=threshold), gains >= threshold
    design = uplink.design(fleet.channel, fleet.num_rounds, 1)
    counts = fleet.class_counts[active]
    required = required_noise_var(counts, fleet.mu[active], fleet.num_rounds, fleet.model)
    alone = design_round(
        counts, fleet.channel[active], fleet.peak_power_w[active], fleet.channel_noise_var, required, trust
    )
    for name in ("weights", "signal_gain", "noise_gain"):
        # A device at its power limit has power left for noise only by rounding.
        close = 1e-6 * np.abs(getattr(alone, name)).max(initial=0)
        assert getattr(design, name)[active] == pytest.approx(getattr(alone, name), rel=1e-9, abs=close)
        assert not getattr(design, name)[~active].any()
    assert design.rx_scale == pytest.approx(alone.rx_scale, rel=1e-9)
    assert design.effective_noise_var == pytest.approx(alone.effective_noise_var, rel=1e-9)
    release = uplink.release(design, fleet.channel, 1)
    assert not release.cost(fleet.model, trust)[~active].any()
    assert (design.privacy_slack(uplink.required(fleet.num_rounds)) >= -1e-9).all()
    assert (design.power_slack(fleet.peak_power_w) >= -1e-9).all()


@given(fleets, st.floats(0, 1), st.integers(0, 2**32))
def test_the_bias_of_truncation_stays_below_its_bound(fleet, quantile, seed):
    threshold = float(np.quantile(np.abs(fleet.channel) ** 2, quantile))
    num_devices, num_classes = fleet.class_counts.shape
    rng = np.random.default_rng(seed)
    class_means = rng.dirichlet(np.full(num_classes, 0.2), (num_devices, num_classes))
    active = active_devices(fleet.channel, threshold)
    weights = weights_of_active_devices(fleet.weights, active)
    received = weights.any(axis=0)
    difference = np.einsum("ik,ikd->kd", weights - fleet.weights, class_means)
    bound = squared_bias_bound(fleet.weights, active, fleet.channel.shape)
    assert ((difference**2).sum(axis=1)[received] <= bound[received] * (1 + 1e-9) + 1e-15).all()


def test_the_bound_on_the_bias_is_tight_for_opposite_predictions():
    weights, channel = np.array([[0.7], [0.3]]), np.array([1.0, 0.1])
    class_means = np.array([[1.0, 0.0], [0.0, 1.0]])
    active = active_devices(channel, 0.5)
    bias = (weights_of_active_devices(weights, active) - weights)[:, 0] @ class_means
    assert (bias**2).sum() == pytest.approx(squared_bias_bound(weights, active, channel.shape)[0])
    assert (bias**2).sum() == pytest.approx(2 * 0.3**2)


@pytest.mark.parametrize(("power_db", "quantile"), [(-30, 0.999), (-20, 0.99), (-10, 0.9)])
def test_csi_errors_have_the_stated_power_limit_and_misalignment(power_db, quantile):
    error = ChannelError(10 ** (power_db / 10), quantile)
    drawn = error.draw(400_000, np.random.default_rng(0))
    assert np.abs(drawn).max() <= error.limit
    # The quantile of an exponential law, from its distribution function.
    assert 1 - np.exp(-(error.limit**2) / error.power) == pytest.approx(quantile)
    density = lambda x: np.exp(-x / error.power) / error.power / quantile  # noqa: E731 - of |e|²
    expected, _ = quad(lambda x: x / (1 - x) * density(x), 0, error.limit**2)
    assert error.misalignment == pytest.approx(expected, rel=1e-6)
    power, _ = quad(lambda x: x * density(x), 0, error.limit**2)
    assert (np.abs(drawn) ** 2).mean() == pytest.approx(power, rel=0.02)
    inverse = 1 / (1 + drawn)
    spread = 5 * inverse.std() / np.sqrt(len(drawn))
    assert abs(inverse.mean() - 1) < spread
    assert (inverse.real - 1).var() == pytest.approx(0.5 * error.misalignment, rel=0.03)
    assert (np.abs(inverse) ** 2).mean() == pytest.approx(1 + error.misalignment, rel=0.01)


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("noiseless", [False, True])
def test_predicted_noise_includes_the_error_of_misaligned_signals(trust, noiseless):
    """Monte Carlo over errors and noise, with one-hot class means, for which the prediction is exact, not a bound."""
    fleet = next(f for f in map(random_fleet, range(100)) if len(f.mu) >= 4 and (f.class_counts > 0).all())
    fleet = replace(
        fleet, channel_noise_var=0.0 if noiseless else 0.05, mu=np.full(len(fleet.mu), 3.0), num_rounds=2, model="paper"
    )
    error = ChannelError(10**-1.5, 0.99)
    uplink, rng, num_classes = (
        uplink_of(fleet, trust, error=error),
        np.random.default_rng(1),
        len(fleet.class_counts[0]),
    )
    known = fleet.channel
    design = uplink.design(known, fleet.num_rounds, 1)
    assert (design.power_slack(fleet.peak_power_w) >= -1e-9).all()
    class_means = np.broadcast_to(np.eye(num_classes), (len(known), num_classes, num_classes))
    weights, errors, powers = aggregation_weights(fleet.class_counts), [], []
    for index in range(1500):
        channel = known / (1 + error.draw(len(known), rng))
        noise = RoundNoise.seeded(index, 1, design, num_classes, 2 * fleet.channel_noise_var, "complex")
        reception = over_the_air(weights, class_means, design, channel, noise, 1.0)
        errors.append(reception.squared_error)
        powers.append(reception.measured_power_w)
    spread = 5 * np.std(errors, axis=0) / np.sqrt(len(errors))
    assert (np.abs(np.mean(errors, axis=0) - design.effective_noise_var) < spread).all()
    planned = design.mean_power_w().sum() / num_classes
    assert np.mean(powers) == pytest.approx(planned, rel=1e-9, abs=5 * np.std(powers) / np.sqrt(len(powers)))


@given(fleets, st.sampled_from(TRUSTS), st.floats(0.01, 0.6), st.integers(0, 2**32))
def test_no_csi_error_within_the_limit_reveals_more_than_is_charged(fleet, trust, limit, seed):
    """The server receives both axes: the magnitude of the misaligned shift against the noise on the shift's axis."""
    error = ChannelError(limit**2 / np.log(1000), 0.999)
    uplink = uplink_of(fleet, trust, error=error)
    known, rng = fleet.channel, np.random.default_rng(seed)
    design = uplink.design(known, fleet.num_rounds, 1)
    charged = uplink.release(design, known, 1).cost(fleet.model, trust)
    assert np.where(charged > 0, design.privacy_slack(uplink.required(fleet.num_rounds)), 0).min() >= -1e-9
    errors = error.limit * np.exp(2j * np.pi * rng.random(len(known)))
    errors[rng.random(len(known)) < 0.5] = -error.limit
    revealed = _true_cost(uplink, design, known / (1 + errors), trust)
    assert (revealed <= charged * (1 + 1e-9)).all()


def _true_cost(uplink, design, channel, trust):
    """(|h P1|√K s)²/noise on each axis, computed from the gains: the cost against a receiver of the complex sum."""
    num_classes = len(design.rx_scale)
    shift = np.abs(channel[:, None] * design.signal_gain) * np.sqrt(num_classes) * uplink.sensitivity(uplink.model, 1)
    own = np.abs(channel[:, None] * design.noise_gain) ** 2
    fleet = own.sum(axis=0) if design.noise_axes == 2 else own
    counted = {"own_noise": own, "fleet_noise": fleet, "receiver_noise": fleet + uplink.channel_noise_var}[trust]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(shift > 0, shift**2 / counted, 0.0)


def test_the_misalignment_margin_is_tight():
    """The worst errors reach the charged cost: a stronger signal of the device, weaker noise of all other devices."""
    fleet = next(f for f in map(random_fleet, range(300)) if len(f.mu) == 6)
    fleet = replace(fleet, class_counts=np.maximum(fleet.class_counts, 1))
    error = ChannelError(0.01, 0.999)
    for trust in ("receiver_noise", "fleet_noise"):
        uplink = uplink_of(replace(fleet, channel_noise_var=0.5, mu=np.full(6, 0.1)), trust, error=error)
        design = uplink.design(fleet.channel, fleet.num_rounds, 1)
        charged = uplink.release(design, fleet.channel, 1).cost(fleet.model, trust)[0]
        worst = np.full(6, error.limit + 0j)
        worst[0] = -error.limit
        reached = _true_cost(uplink, design, fleet.channel / (1 + worst), trust)[0]
        # The device's own noise is stronger too, which the margin does not use.
        assert (reached <= charged * (1 + 1e-9)).all()
        assert (reached >= charged * (0.999999 if trust == "receiver_noise" else 0.4)).all()


@given(fleets)
def test_own_noise_is_not_affected_by_csi_errors_and_needs_one_axis(fleet):
    exact, inexact = uplink_of(fleet, "own_noise"), uplink_of(fleet, "own_noise", error=ChannelError(0.02))
    ours, plain = (uplink.design(fleet.channel, fleet.num_rounds, 1) for uplink in (inexact, exact))
    assert np.array_equal(ours.noise_gain, plain.noise_gain)
    assert ours.noise_axes == 1
    counted = inexact.noise_by_trust(ours, fleet.channel)
    assert np.array_equal(counted["own_noise"], noise_by_trust(plain, fleet.channel, 0.0, "own_noise")["own_noise"])
    # Noise that other devices add on misaligned axes is not counted.
    assert (counted["fleet_noise"] == counted["own_noise"]).all()


def test_channel_estimates_have_their_own_random_streams():
    scenario = load("quick", ["radio.csi_error_db=-20"])
    channel = np.ones(20, dtype=complex)
    first = round_estimate(scenario, channel, 1)
    assert np.array_equal(first, round_estimate(scenario, channel, 1))
    assert not np.isclose(first, round_estimate(scenario, channel, 2)).any()
    assert not np.isclose(first, planning_estimates(scenario, channel[None])[0]).any()
    exact = load("quick")
    assert round_estimate(exact, channel, 1) is channel


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        (["radio.csi_error_db=-3"], "radio.csi_error_db"),
        (["radio.csi_error_db=-20", "privacy.noise=secure"], "radio.csi_error_db"),
        (["radio.csi_error_db=-20", "privacy.trust=receiver_noise", "radio.noise=real"], "radio.csi_error_db"),
        (["radio.csi_error_db=3"], "radio.csi_error_db"),
        (["radio.csi_quantile=1"], "radio.csi_quantile"),
        (["radio.truncation=-1"], "radio.truncation"),
        (["radio.truncation=-100 dBm"], "radio.truncation"),
    ],
)
def test_invalid_channel_fields_are_refused(changes, field):
    with pytest.raises(InputError) as refused:
        ChannelError.of(load("quick", changes))
    assert refused.value.field == field


@pytest.mark.parametrize("change", ["radio.truncation=-100 dB", "radio.csi_error_db=-20", "privacy.carry_over=true"])
def test_the_papers_transceiver_refuses_extensions(change):
    with pytest.raises(InputError, match="the paper's transceiver"):
        load("paper", ["radio.transceiver=paper", change])


def test_a_threshold_may_be_given_in_decibels():
    assert load("quick", ["radio.truncation=-100 dB"]).radio.truncation == pytest.approx(1e-10)


def test_a_round_needs_the_minimum_number_of_devices():
    channel = np.array([[1.0, 0.1, 2.0], [0.1, 0.1, 2.0]])
    assert active_devices(channel, 0.5, at_least=2).tolist() == [[True, False, True], [False, False, False]]
    made = plan(load("quick", ["fleet.min_devices=20", "radio.truncation=optimal", "learning.receiver=tracking"]))
    channels = planning_draws(made.scenario)
    for drawn in channels[:20]:
        active = made.design(drawn).weights.any(axis=1)
        assert active.all() or not active.any()


@given(fleets, st.sampled_from(["fleet_noise", "own_noise"]))
def test_receiver_noise_on_one_axis_does_not_protect_misaligned_signals(fleet, trust):
    """The ledger's entry for receiver_noise, which a later run may count on, has only the devices' noise."""
    uplink = uplink_of(fleet, trust, error=ChannelError(0.01), noise_on_both_axes=False)
    design = uplink.design(fleet.channel, fleet.num_rounds, 1)
    counted = uplink.noise_by_trust(design, fleet.channel)
    assert np.array_equal(counted["receiver_noise"], counted["fleet_noise"])


def test_a_class_that_mostly_cannot_be_sent_still_requires_noise():
    """A holder has no channel in six rounds of ten: the typical floor is that of the other four."""
    gains = np.ones((10, 3), dtype=complex)
    gains[:6, 2] = 0
    fleet = replace(random_fleet(3), class_counts=np.full((3, 2), 5), peak_power_w=np.ones(3), mu=np.ones(3))
    fleet = replace(fleet, channel_noise_var=0.1, model="device", channel=gains[0])
    uplink = uplink_of(fleet, "receiver_noise", split_budget=True)
    floor = typical_floor(uplink, gains)
    assert np.isfinite(floor).all()
    assert floor == pytest.approx(uplink.channel_floor(gains)[9])
    assert (replace(uplink, floor=floor).required(4) > 0).all()


@pytest.mark.parametrize("quantile", [0.999, 1 - 1e-9])
def test_the_certificate_counts_the_probability_of_larger_channel_errors(tmp_path, quantile):
    """P by hand, from the tail of a Rayleigh magnitude at the certified limit: devices × rounds × exp(−e_q²/σ²)."""
    changes = ["radio.csi_error_db=-30", f"radio.csi_quantile={quantile}", "learning.rounds=3"]
    scenario = small_scenario(tmp_path, *changes)
    record = ad.run(scenario, "ota_fd", out=tmp_path / "run")
    certificate = ad.certify(record.folder)
    limit = certificate.header.terms["csi_error_limit"]
    probability = 3 * 3 * math.exp(-(limit**2) / 10**-3.0)
    asked, covered = 1e-5, quantile > 0.999
    noise_delta = asked - probability if covered else asked
    for account in certificate.devices:
        assert account.delta == pytest.approx(asked, rel=1e-9)
        assert account.delta_in_all == pytest.approx(noise_delta + probability, rel=1e-6)
        assert account.evidence <= 8
    assert certificate.verdict == ("simulation" if covered else "does not hold")
    warned = any("Channel errors beyond their" in line for line in ad.plan(scenario).warnings)
    assert warned is not covered
