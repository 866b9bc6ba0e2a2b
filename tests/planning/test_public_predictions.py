"""Plans for predictions on a public set, theory section 8, against the formulas written out."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_fleets import TRUSTS, random_fleet
from small_worlds import small_scenario

from airdistill.errors import InputError
from airdistill.planning.fleet import RealisedFleet, realise_fleet
from airdistill.planning.payloads import PublicPredictions
from airdistill.planning.plan import Plan, plan
from airdistill.planning.transceiver.superposed import SuperposedUplink
from airdistill.planning.what_if.public_set import affordable_rounds, public_set_what_if
from airdistill.privacy.gaussian import gaussian_epsilon, gaussian_mu
from airdistill.privacy.participation import Participation
from airdistill.scenario import load


def uplink_of(fleet, trust, samples=12, answers=5, **choices):
    unknown = np.full(len(fleet.mu), np.nan)
    realised = RealisedFleet(fleet.class_counts, fleet.peak_power_w, unknown, unknown, fleet.mu)
    return SuperposedUplink(
        realised, fleet.channel_noise_var, trust, PublicPredictions(realised, samples, answers), **choices
    )


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from(TRUSTS), st.integers(1, 12), st.integers(1, 20))
def test_the_design_meets_power_and_privacy_constraints(seed, trust, answers, num_rounds):
    """Each device at its largest vector: V answers of norm 1 over N·K slots."""
    fleet = random_fleet(seed)
    uplink = uplink_of(fleet, trust, 12, answers)
    design = uplink.design(fleet.channel, num_rounds, 1)
    length, weight = 12 * fleet.class_counts.shape[1], 1 / len(fleet.mu)
    required = num_rounds * 2 * answers * weight**2 / fleet.mu**2
    assert uplink.required(num_rounds)[:, 0] == pytest.approx(required)
    # x = P1 √(D/V) q + P2 m: the mean over D slots of |x|² is |P1|²‖q‖²/V + |P2|².
    power = np.abs(design.signal_gain[:, 0]) ** 2 + np.abs(design.noise_gain[:, 0]) ** 2
    assert (power <= fleet.peak_power_w * (1 + 1e-9)).all()
    if np.isfinite(design.effective_noise_var[0]):
        arrives = fleet.channel * design.signal_gain[:, 0] * np.sqrt(length / answers) / design.rx_scale[0]
        assert arrives == pytest.approx(np.full(len(arrives), weight))
        counted = uplink.noise_by_trust(design, fleet.channel)[trust][:, 0]
        assert (counted >= required * (1 - 1e-9)).all()
        made = np.abs(fleet.channel * design.noise_gain[:, 0]) ** 2
        noise = (made.sum() + fleet.channel_noise_var) / design.rx_scale[0] ** 2
        assert design.effective_noise_var[0] == pytest.approx(noise)


def test_the_noise_of_the_theory_page():
    """50 devices, N = 3000, T = 1, ε = 8, δ = 1e-5: √(2NT)/(Mμ) per entry; fewer answers save four fifths of v."""
    mu = gaussian_mu(8.0, 1e-5)
    fleet = RealisedFleet(np.ones((50, 10)), np.full(50, 1e30), np.full(50, 8.0), np.full(50, 1e-5), np.full(50, mu))
    for answers, deviation in [(3000, math.sqrt(2 * 3000) / (50 * mu)), (600, math.sqrt(2 * 600) / (50 * mu))]:
        uplink = SuperposedUplink(fleet, 0.0, "fleet_noise", PublicPredictions(fleet, 3000, answers))
        noise_var = uplink.noise_over(np.ones((1, 50)))(1)[0, 0]
        assert math.sqrt(noise_var) == pytest.approx(deviation)
    assert uplink.num_slots == 30_000


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 30))
def test_the_remaining_budget_is_divided_among_the_remaining_rounds(seed, done, num_rounds):
    """With carry-over every round may spend its share of the remaining budget: never more than μ² in total."""
    rng = np.random.default_rng(seed)
    fleet = random_fleet(seed)
    uplink = uplink_of(fleet, "fleet_noise", carry_over=True)
    squared_mu = fleet.mu[:, None] ** 2
    spent = np.where(np.isinf(squared_mu), 5.0, squared_mu * rng.uniform(0, 0.9))
    round_index = min(done, num_rounds)
    required = uplink.required_at(num_rounds, round_index, spent)
    left = np.where(np.isinf(squared_mu), np.inf, squared_mu - spent)
    shift = 2 * 5 / len(fleet.mu) ** 2
    assert required == pytest.approx((num_rounds - round_index + 1) * shift / left)


def scenario_of(tmp_path, *changes):
    return small_scenario(
        tmp_path, "public.samples=12", "privacy.sensitivity=device", "learning.rounds=2", "radio.truncation=0", *changes
    )


def test_a_plan_for_a_public_set_survives_json(tmp_path):
    made = plan(scenario_of(tmp_path), "public_knowledge")
    assert made.uplink.num_slots == 12 * 3
    assert made.uplink_seconds == pytest.approx(2 * 36 * made.scenario.radio.slot)
    again = Plan.from_dict(made.to_dict())
    assert again.uplink.payload.most_answers == made.uplink.payload.most_answers == 12
    assert again.to_dict() == made.to_dict()
    # The same ε for all models: the only bound is that of a whole device.
    for epsilon in made.epsilon_by_model.values():
        assert epsilon == pytest.approx(made.fleet.epsilon, rel=1e-3)
        assert (epsilon <= made.fleet.epsilon * (1 + 1e-9)).all()


def test_the_final_epsilon_follows_from_the_noise_that_is_sent(tmp_path):
    made = plan(scenario_of(tmp_path), "public_knowledge")
    channel = np.ones(3) * 1e-6
    design = made.design(channel)
    counted = made.uplink.noise_by_trust(design, channel)["fleet_noise"][:, 0]
    mu = np.sqrt(2 * (2 * 12) * (1 / 3) ** 2 / counted)  # T = 2, V = N = 12, w = 1/3
    assert gaussian_epsilon(mu, made.fleet.delta) == pytest.approx(made.fleet.epsilon, rel=1e-6)


def test_only_device_level_sensitivity_is_accepted(tmp_path):
    with pytest.raises(InputError, match="the only bound of predictions of a trained model is that of a whole device"):
        plan(small_scenario(tmp_path, "public.samples=12", "privacy.sensitivity=paper"), "public_knowledge")
    with pytest.raises(InputError, match="this scheme needs a public set"):
        plan(small_scenario(tmp_path, "privacy.sensitivity=device"), "public_knowledge")


@pytest.mark.parametrize(
    ("changes", "answers"),
    [
        ([], 600),
        (["data.partition=iid"], 3000),
        (["public.answers_per_device=100"], 100),
        (["public.answers_per_device=5000"], 3000),
        (["public.samples_per_round=1001"], 201),
        (["data.classes_per_device=10"], 3000),
        (["data.classes_per_device=3"], 900),
    ],
)
def test_the_answers_of_a_device_follow_its_share_of_classes(changes, answers):
    scenario = load("skewed", changes)
    fleet = realise_fleet(scenario)
    assert PublicPredictions.for_scenario(scenario, fleet, None).most_answers == answers


def test_a_class_with_hardly_any_samples_does_not_count_as_known(tmp_path):
    scenario = scenario_of(tmp_path)
    counts = np.array([[10, 10, 0], [10, 10, 1], [10, 10, 10]])  # knows 2, 2 and 3 of 3
    fleet = RealisedFleet(counts, *(np.ones(3),) * 4)
    assert PublicPredictions.for_scenario(scenario, fleet, None).most_answers == 8


class FirstOfThree(Participation):
    """A user's own model that knows three devices only."""

    def mask(self, round_index):
        return np.array([True, False, False]) & (round_index > 0)


def test_the_what_if_repeats_a_users_own_participation(tmp_path):
    """Each in every round, one device of three and two of six: 2VT/(M μ)² for the M that join."""
    changes = ["radio.noise_power=0", f"fleet.sampling={__name__}:FirstOfThree"]
    made = plan(scenario_of(tmp_path, *changes), "public_knowledge")
    by_devices = {each.devices: each for each in public_set_what_if(made).forecasts if each.samples == 12}
    mu, own = made.fleet.mu.min(), made.num_rounds
    for devices, joining in ((6, 2), (12, 4), (1, 1)):
        assert by_devices[devices].noise_var == pytest.approx(2 * own * 12 / (joining * mu) ** 2)


def test_the_what_if_draws_known_participation_for_each_number_of_devices(tmp_path):
    """It never has less noise than all devices."""
    found, everyone = (
        public_set_what_if(plan(scenario_of(tmp_path, "radio.noise_power=0", *changes), "public_knowledge")).forecasts
        for changes in (["fleet.participation=0.8"], [])
    )
    pairs = [*zip(found, everyone, strict=True)]
    assert {of_sampled.devices for of_sampled, _ in pairs} == {1, 2, 3, 6, 12}
    assert all(of_sampled.noise_var >= of_all.noise_var * (1 - 1e-9) for of_sampled, of_all in pairs)
    assert pairs[4][0].noise_var > 1.1 * pairs[4][1].noise_var


def test_the_what_if_follows_the_formulas(tmp_path):
    made = plan(scenario_of(tmp_path, "radio.noise_power=0"), "public_knowledge")
    found = public_set_what_if(made)
    own, quarter = found.forecasts[0], found.forecasts[1]
    assert (own.devices, own.samples, own.rounds, own.answers) == (3, 12, 2, 12)
    mu = made.fleet.mu.min()
    assert own.noise_var == pytest.approx(2 * 2 * 12 / (3 * mu) ** 2)
    known = (made.fleet.class_counts > 0).mean()
    assert own.row_evidence == pytest.approx(known * 3 * mu / math.sqrt(2 * 12))
    assert own.class_evidence == pytest.approx(own.row_evidence * math.sqrt(12 / 3))
    assert (quarter.devices, quarter.samples) == (1, 12)
    by_rounds = {each.rounds: each for each in found.forecasts if (each.devices, each.samples) == (3, 12)}
    assert by_rounds[10].class_evidence == pytest.approx(by_rounds[1].class_evidence)
    assert by_rounds[10].noise_var == pytest.approx(10 * by_rounds[1].noise_var)
    assert public_set_what_if(plan(small_scenario(tmp_path))) is None


def test_rounds_are_affordable_while_each_carries_enough_evidence(tmp_path):
    forecast = public_set_what_if(plan(scenario_of(tmp_path), "public_knowledge")).forecasts[0]
    most = affordable_rounds(forecast)
    alone = forecast.class_evidence  # of all rounds together, and so of a single round in their place
    assert alone / math.sqrt(most) >= 4 or most == 1
    assert alone / math.sqrt(most + 1) < 4
