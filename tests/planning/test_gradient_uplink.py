"""Plans for federated learning against the formulas of theory section 5, written out with loops."""

import math

import numpy as np
import pytest

import airdistill as ad
from airdistill.channel import channel_source
from airdistill.errors import InputError
from airdistill.planning.plan import plan
from airdistill.privacy.gaussian import gaussian_mu, paper_mu
from airdistill.privacy.participation import WithReplacement

D, CLIP = 777, 1.7
COUNTS = [[30, 10], [5, 15], [20, 20]]
SAMPLES = np.array([40.0, 20.0, 40.0])
WEIGHTS = SAMPLES / 100
BASE = [
    "fleet.devices=3", f"data.class_counts={COUNTS}", f"learning.clip_norm={CLIP}",
    "privacy.epsilon={values=[2, 8, 4]}", "privacy.delta={values=[1e-5, 1e-6, 1e-4]}",
    "radio.peak_power={values=['1 mW', '2 mW', '3 mW']}", "radio.noise_power=1e-12 W", "learning.rounds=7",
]  # fmt: skip
EPSILON, DELTA, POWER = np.array([2.0, 8, 4]), np.array([1e-5, 1e-6, 1e-4]), np.array([1e-3, 2e-3, 3e-3])
CHANNEL = np.array([1e-4 + 2e-4j, -3e-4 + 1e-5j, 2e-4 - 1e-4j])


def made(*changes):
    return plan(ad.load("quick", [*BASE, *changes]), "gradient", D)


@pytest.mark.parametrize("model", ["paper", "class_mean", "trajectory", "device"])
def test_required_noise_protects_one_record_or_one_device(model):
    shift = 2 * CLIP * WEIGHTS if model == "device" else np.full(3, 2 * CLIP / 100)
    expected = 7 * shift**2 / gaussian_mu(EPSILON, DELTA) ** 2
    assert made(f"privacy.sensitivity={model}").required_noise_var()[:, 0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("axis", ["complex", "real"])
def test_design_under_receiver_noise(axis):
    planned = made("privacy.trust=receiver_noise", "privacy.sensitivity=paper", f"radio.noise={axis}")
    noise_var = 1e-12 * (0.5 if axis == "complex" else 1)
    link = np.abs(CHANNEL) ** 2 * POWER
    cap = D / CLIP**2 * min(link / WEIGHTS**2)
    required = max(planned.required_noise_var()[:, 0])
    scale_sq = min(cap, noise_var / required)
    drawn = planned.design(CHANNEL)
    assert drawn.rx_scale[0] ** 2 == pytest.approx(scale_sq, rel=1e-12)
    assert drawn.effective_noise_var[0] == pytest.approx(max(required, noise_var / cap), rel=1e-12)
    # P1 = B_i λ C h̄/(B √D |h|²)
    gain = SAMPLES * math.sqrt(scale_sq) * CLIP * CHANNEL.conj() / (100 * math.sqrt(D) * np.abs(CHANNEL) ** 2)
    assert drawn.signal_gain[:, 0] == pytest.approx(gain, rel=1e-12)
    assert not drawn.noise_gain.any()


@pytest.mark.parametrize("trust", ["receiver_noise", "fleet_noise", "own_noise"])
@pytest.mark.parametrize("sampling", [[], ["fleet.sampling=with_replacement", "fleet.sampled_devices=2"]])
def test_power_and_privacy_hold_in_every_round(trust, sampling):
    planned = made(f"privacy.trust={trust}", "learning.rounds=40", *sampling)
    for index in range(1, 41):
        drawn = planned.design(CHANNEL, index)
        assert (drawn.power_slack(POWER) >= -1e-9).all()
        assert (drawn.privacy_slack(planned.required_noise_var()) >= -1e-9).all()


def test_gap_and_rounds_follow_their_definitions():
    planned = made("privacy.trust=receiver_noise", "learning.rounds=optimal", "learning.max_rounds=300")
    lr, lipschitz, loss = 0.05, 22.0, 2.5
    shift, mu = 2 * CLIP * WEIGHTS, gaussian_mu(EPSILON, DELTA)
    link = np.abs(channel_source(planned.scenario).planning_channels(200)) ** 2 * POWER
    floor = 0.5e-12 / (D / CLIP**2 * (link / WEIGHTS**2).min(axis=1))

    def gap(num_rounds):
        noise = np.sort(D * np.maximum(num_rounds * max(shift**2 / mu**2), floor))[:190].mean()
        return 3 * (3 * loss / (lr * math.sqrt(num_rounds)) + 1.5 * lr * lipschitz * noise / math.sqrt(num_rounds))

    gaps = [gap(t) for t in range(1, 301)]
    assert planned.rounds.exact == int(np.argmin(gaps)) + 1
    assert planned.convergence_gap == pytest.approx(min(gaps), rel=1e-9)
    limited = (3 * loss / lr) / (1.5 * lr * lipschitz * D * max(shift**2 / mu**2))
    assert planned.rounds.privacy_limited == pytest.approx(limited, rel=1e-9)


def test_the_papers_rounds_by_its_formula():
    planned = made("constants.loss_bound=2e5")
    stringency = max(np.log(1 / DELTA) / EPSILON**2)
    expected = 2e5 * 100**2 / (4 * 0.05**2 * 22 * D * CLIP**2 * stringency)
    assert expected > 100
    assert planned.rounds.paper == round(expected)


def test_forecast_of_time_energy_and_epsilon():
    planned = made("privacy.trust=receiver_noise", "privacy.sensitivity=paper")
    assert planned.uplink_seconds == pytest.approx(7 * D * 3.6e-6)
    powers = planned.forecast.signal_power_w.sum()
    assert planned.uplink_joules == pytest.approx(7 * D * 3.6e-6 * powers)
    # Per record the strictest device spends exactly its target, and no device spends more.
    assert (planned.epsilon_by_model["paper"] <= EPSILON * (1 + 1e-9)).all()
    assert np.array_equal(planned.epsilon_by_model["paper"], planned.epsilon_by_model["trajectory"])
    assert (planned.epsilon_by_model["device"] > 10 * planned.epsilon_by_model["paper"]).all()


SAMPLED = ["fleet.sampling=with_replacement", "fleet.sampled_devices=2", "learning.rounds=30"]


def spent(planned, num_rounds):
    """Σ_t (m_i/N · 2C/B_i)²/c_t over the rounds that a device joins, from the actual weights and noise."""
    total = np.zeros(3)
    for index in range(1, num_rounds + 1):
        weights = planned.uplink.participation.weights(WEIGHTS, index)
        noise = planned.design(CHANNEL, index).effective_noise_var[0]
        total += (weights * 2 * CLIP / SAMPLES) ** 2 / noise
    return total


@pytest.mark.parametrize("accountant", ["exact", "paper"])
def test_sampled_devices_are_charged_for_the_rounds_that_they_join(accountant):
    record = ["privacy.sensitivity=paper", "privacy.trust=receiver_noise", f"privacy.accountant={accountant}"]
    planned = made(*SAMPLED, *record, "radio.noise_power=1e-20 W")
    joined = sum(planned.uplink.participation.weights(WEIGHTS, index) > 0 for index in range(1, 31))
    mu = (gaussian_mu if accountant == "exact" else paper_mu)(EPSILON, DELTA)
    rounds = joined if accountant == "exact" else 30 * (1 - (1 - WEIGHTS) ** 2)
    assert planned.required_noise_var()[:, 0] == pytest.approx(rounds * (2 * CLIP / 100) ** 2 / mu**2)
    assert (joined < 30).all()
    share = spent(planned, 30) / mu**2
    if accountant == "exact":
        assert (share <= 1 + 1e-9).all()
        assert share.max() > 0.3  # the target is not kept by excessive noise
    ledger_cost = sum(
        planned.uplink.shift("paper").after(1)[:, 0] / planned.design(CHANNEL, index).counted_noise_var[:, 0]
        for index in range(1, 31)
    )
    assert ledger_cost == pytest.approx(spent(planned, 30), rel=1e-9)


def test_devices_that_are_not_drawn_are_inactive():
    planned = made(*SAMPLED, "privacy.trust=fleet_noise")
    found_inactive = False
    for index in range(1, 31):
        inactive = planned.uplink.participation.weights(WEIGHTS, index) == 0
        drawn = planned.design(CHANNEL, index)
        assert not drawn.signal_gain[inactive].any()
        assert not drawn.noise_gain[inactive].any()
        assert np.isinf(drawn.counted_noise_var[inactive]).all()
        found_inactive = found_inactive or inactive.any()
    assert found_inactive


def test_draws_with_replacement_follow_the_nominal_weights_and_repeat():
    nominal = np.array([0.1, 0.3, 0.6])
    sampled = WithReplacement(3, 3, 4, tuple(nominal))
    weights = np.array([sampled.weights(nominal, index) for index in range(1, 4001)])
    assert weights.sum(axis=1) == pytest.approx(np.ones(4000))
    # The standard error of a mean of 4 · 4000 draws is 0.4 % at most.
    assert weights.mean(axis=0) == pytest.approx([0.1, 0.3, 0.6], abs=0.02)
    again = WithReplacement(3, 3, 4, tuple(nominal))
    assert np.array_equal(sampled.weights(nominal, 17), again.weights(nominal, 17))
    joined = (weights[:50] > 0).sum(axis=0)
    assert sampled.rounds_joined(50).tolist() == joined.tolist()
    assert (weights > 0).mean(axis=0) == pytest.approx(sampled.expected_rounds(1), abs=0.03)


def test_a_plan_survives_json():
    planned = made(*SAMPLED)
    again = type(planned).from_dict(planned.to_dict())
    assert again.to_dict() == planned.to_dict()
    assert np.array_equal(again.design(CHANNEL, 5).signal_gain, planned.design(CHANNEL, 5).signal_gain)


def test_sampling_with_replacement_is_only_for_gradients():
    scenario = ad.load("quick", [*BASE, *SAMPLED])
    with pytest.raises(InputError, match=r"fleet\.sampling.*only gradients"):
        plan(scenario)
    with pytest.raises(InputError, match=r"fleet\.sampled_devices.*needs a number"):
        ad.load("quick", ["fleet.sampling=with_replacement"])
