"""Votes for a trusted aggregator: the rule for noise and answers, the budget, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from small_worlds import small_scenario

import airdistill as ad
from airdistill.errors import InputError
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.plan import Plan
from airdistill.planning.teacher_votes import settings_for
from airdistill.privacy.gaussian import gaussian_epsilon, gaussian_mu
from airdistill.scenario.sections import Public

PUBLISHED_SQUARED_MU = 640 / 150**2 + 286 * 2 / 40**2


def fleet_of(num_devices, squared_mu, counts=None):
    counts = np.full((num_devices, 10), 24) if counts is None else counts
    each = np.ones(num_devices)
    return RealisedFleet(counts, each, each, each, np.sqrt(squared_mu) * each)


def spent(settings):
    return settings.squared_distance / settings.vote_noise**2


def planned(folder, *changes):
    return ad.plan(small_scenario(folder, "public.samples=12", "learning.local_epochs=1", *changes), "pate")


def test_the_published_budget_gives_the_published_setting():
    found = settings_for(Public(samples=9000), fleet_of(250, PUBLISHED_SQUARED_MU))
    assert (found.most_answers, found.num_queries, found.threshold) == (286, 640, 200)
    assert found.vote_noise == pytest.approx(40, rel=1e-3)
    assert found.threshold_noise == pytest.approx(150, rel=1e-3)
    assert spent(found) == pytest.approx(PUBLISHED_SQUARED_MU)


@pytest.mark.parametrize(
    "declared",
    [{"answered": 50}, {"vote_noise": 60.0}, {"threshold_noise": 90.0}, {"samples_per_round": 400}, {"samples": 100},
     {"answered": 50, "threshold_noise": 200.0}, {"vote_noise": 30.0, "samples_per_round": 300}],
)  # fmt: skip
def test_what_is_not_declared_uses_the_rest_of_the_budget(declared):
    public = Public(**{"samples": 3000, **declared})
    found = settings_for(public, fleet_of(250, PUBLISHED_SQUARED_MU))
    names = {"answered": "most_answers", "samples_per_round": "num_queries"}
    kept = {name: getattr(found, names.get(name, name)) for name in declared if name != "samples"}
    assert kept == {name: value for name, value in declared.items() if name != "samples"}
    assert spent(found) <= PUBLISHED_SQUARED_MU * (1 + 1e-9)
    if "vote_noise" not in declared:
        assert spent(found) == pytest.approx(PUBLISHED_SQUARED_MU)
    else:  # one answer more would not fit
        assert spent(replace(found, most_answers=found.most_answers + 2)) > PUBLISHED_SQUARED_MU
    assert found.most_answers <= found.num_queries <= public.samples


def test_devices_with_two_classes_need_fewer_votes():
    counts = np.zeros((50, 10), dtype=int)
    counts[np.arange(50), np.arange(50) % 10] = counts[np.arange(50), (np.arange(50) + 1) % 10] = 30
    found = settings_for(Public(), fleet_of(50, 1.0, counts))
    assert found.threshold == pytest.approx(0.8 * 50 * 2 / 10)
    assert settings_for(Public(vote_threshold=0.5), fleet_of(50, 1.0, counts)).threshold == 25


def test_without_a_target_every_sample_is_asked_about_without_noise():
    found = settings_for(Public(samples=70), fleet_of(20, np.inf))
    assert (found.num_queries, found.most_answers, found.vote_noise) == (70, 70, 0)


def test_the_plan_spends_the_target_of_the_strictest_device_and_is_read_again(tmp_path):
    plan = planned(tmp_path, "privacy.epsilon=[3, 8, 6]")
    payload, uplink = plan.uplink.payload, plan.uplink
    assert spent(payload.settings) == pytest.approx(gaussian_mu(3, 1e-5) ** 2)
    assert plan.epsilon_by_model["device"] == pytest.approx(np.full(3, 3.0))
    design = plan.design(np.zeros(3, dtype=complex))
    release = uplink.release(design, np.zeros(3), 1)
    assert release.cost("device", "trusted_aggregator") == pytest.approx(spent(payload.settings) * np.ones((3, 1)))
    assert np.isinf(release.cost("device", "fleet_noise")).all()
    assert np.isinf(release.cost("device", "own_noise")).all()
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again.uplink.payload.settings == payload.settings
    assert again.uplink.num_slots == uplink.num_slots == 3 * payload.num_samples * 2


def test_plan_and_scenario_say_what_is_trusted(tmp_path):
    plan = planned(tmp_path)
    assert plan.scenario.privacy.trust == "trusted_aggregator"
    stated = " ".join(plan.assumptions)
    assert "holds if the aggregator is trusted" in stated
    assert "Channels are known" not in stated
    assert plan.uplink_joules == 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        (("public.vote_noise=0.1", "public.answered=5"), "public.vote_noise"),
        (("public.answered=13",), "public.answered"),
        (("public.threshold_noise=0.1",), "public.threshold_noise"),
        (("fleet.participation=0.5",), "fleet.participation"),
        (("public.server_selector=1",), "public.server_selector"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(tmp_path, changes, field):
    with pytest.raises(InputError) as refused:
        planned(tmp_path, *changes)
    assert refused.value.field == field


def test_a_budget_that_is_too_small_is_named_with_what_it_would_cost(tmp_path):
    with pytest.raises(InputError) as refused:
        planned(tmp_path, "public.vote_noise=0.5", "public.threshold_noise=1", "public.answered=5",
                "public.samples_per_round=10", "privacy.epsilon=1")  # fmt: skip
    cost = gaussian_epsilon(np.sqrt(5 * 2 / 0.5**2 + 10), 1e-5)
    assert f"cost ε = {cost:.4g}" in str(refused.value)


def test_a_medium_without_signals_makes_no_difference(tmp_path):
    changes = ("air.medium=secure_sum", "fleet.expected_dropouts=1")
    summed, plain = planned(tmp_path, *changes).uplink, planned(tmp_path).uplink
    assert summed.payload.settings == plain.payload.settings


def test_devices_vote_once(tmp_path):
    scenario = small_scenario(tmp_path, "public.samples=12", "learning.local_epochs=1")
    with pytest.raises(InputError, match="devices vote once"):
        ad.run(scenario, "pate", rounds=2, out=tmp_path / "run")


@pytest.mark.parametrize("scheme", ["ota_fd", "airdistill", "airdistill_proxy", "ota_fl", "orthogonal_fd"])
def test_schemes_on_the_air_have_no_aggregator(tmp_path, scheme):
    changes = ("privacy.trust=trusted_aggregator", "public.samples=12", "learning.local_epochs=1")
    with pytest.raises(InputError, match=r"privacy\.trust = .?trusted_aggregator"):
        ad.plan(small_scenario(tmp_path, *changes), scheme)
