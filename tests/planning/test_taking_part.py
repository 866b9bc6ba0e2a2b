"""Participation by coins: who is there, designs of those who are, plans and runs that count only their own rounds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_fleets import TRUSTS, fleets, uplink_of
from small_worlds import small_scenario

import airdistill as ad
from airdistill.errors import InputError
from airdistill.planning.participation import Coins
from airdistill.planning.plan import Plan, planning_draws
from airdistill.planning.transceiver.design import design_round
from airdistill.planning.uplinks import release_of
from airdistill.planning.what_if.participation import coins_of
from airdistill.privacy.ledger import Ledger
from airdistill.report.plan_table import summary_rows
from airdistill.runs.accounts import certify
from airdistill.schemes.registry import as_run_by, load_scheme, plan_run

HALF = "fleet.participation=0.5"
SAME_CHANNEL = "radio.gains=[[1e-5, 0], [2e-5, 0], [1e-5, 1e-5]]"  # in every round, planned and played


def test_coins_come_up_as_often_as_they_should_and_apart():
    """Monte Carlo of the counts: mean and variance of a binomial, no device and no round tied to another."""
    num_devices, chance, num_rounds = 40, 0.3, 4000
    coins = Coins(num_devices, chance, seed=7)
    there = coins.over_rounds(num_rounds, num_rounds)
    counts, variance = there.sum(axis=1), num_devices * chance * (1 - chance)
    assert abs(counts.mean() - num_devices * chance) < 4 * np.sqrt(variance / num_rounds)
    assert abs(counts.var() / variance - 1) < 4 * np.sqrt(2 / num_rounds)
    ties = np.corrcoef(there.T.astype(float))[~np.eye(num_devices, dtype=bool)]
    assert np.abs(ties).max() < 5.5 / np.sqrt(num_rounds)
    again = np.corrcoef(there[:-1].ravel(), there[1:].ravel())[0, 1]
    assert abs(again) < 4 / np.sqrt(there.size)
    np.testing.assert_array_equal(coins.rounds_taken(num_rounds), there.sum(axis=0))
    np.testing.assert_array_equal(coins.over_rounds(3, 7), there[[0, 1, 2, 0, 1, 2, 0]])


def test_a_round_of_too_few_does_not_happen():
    few, any_number = Coins(6, 0.4, seed=1, at_least=3), Coins(6, 0.4, seed=1)
    counts = any_number.over_rounds(200, 200).sum(axis=1)
    np.testing.assert_array_equal(few.over_rounds(200, 200).sum(axis=1), np.where(counts >= 3, counts, 0))


@given(fleets, st.sampled_from(TRUSTS), st.integers(1, 9))
def test_a_round_is_the_plain_round_of_those_who_are_there(fleet, trust, round_index):
    """Same gains as if the others had never been there; they send nothing, not even noise, and pay nothing."""
    coins = Coins(len(fleet.mu), 0.6, seed=3)
    uplink, there = uplink_of(fleet, trust, coins=coins), coins.there(round_index)
    num_rounds = max(fleet.num_rounds, round_index)
    design = uplink.design(fleet.channel, num_rounds, round_index)
    required = uplink.required(num_rounds)
    assert not design.signal_gain[~there].any()
    assert not design.noise_gain[~there].any()
    assert not release_of(uplink, design, fleet.channel, round_index).cost(fleet.model, trust)[~there].any()
    assert (design.privacy_slack(required) >= -1e-9).all()
    assert (design.power_slack(fleet.peak_power_w) >= -1e-9).all()
    if there.any():
        raised = np.divide(design.weights, fleet.weights, out=np.zeros(design.weights.shape), where=fleet.weights > 0)
        alone = design_round(
            fleet.class_counts[there],
            fleet.channel[there],
            fleet.peak_power_w[there],
            fleet.channel_noise_var,
            (required * raised**2)[there],
            trust,
        )
        assert design.weights[there] == pytest.approx(alone.weights, rel=1e-12)
        assert design.effective_noise_var == pytest.approx(alone.effective_noise_var, rel=1e-9)


@given(fleets)
def test_what_is_required_is_for_the_rounds_that_a_device_takes_part_in(fleet):
    coins = Coins(len(fleet.mu), 0.5, seed=5)
    taken = coins.rounds_taken(fleet.num_rounds)
    np.testing.assert_allclose(
        uplink_of(fleet, "fleet_noise", coins=coins).required(fleet.num_rounds),
        fleet.required * (taken / fleet.num_rounds)[:, None],
    )


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("scheme", ["ota_fd", "airdistill", "ota_fl", "ota_fl_sampled"])
def test_a_plan_foresees_what_the_run_spends_and_absent_devices_pay_nothing(tmp_path, scheme, trust):
    changes = [f"privacy.trust={trust}", SAME_CHANNEL, "learning.rounds=8", "fleet.participation=0.6"]
    scenario = small_scenario(tmp_path, *changes)
    record = ad.run(scenario, scheme, out=tmp_path / "run")
    planned = plan_run(scenario, scheme)
    assert record.summary["epsilon_spent"] <= 8 * (1 + 1e-9)
    coins = coins_of(planned.uplink)
    releases = Ledger.read(tmp_path / "run" / "ledger.jsonl").releases
    assert len(releases) == 8
    for release in releases:
        np.testing.assert_array_equal(release.participants, np.flatnonzero(coins.there(release.round_index)))
    if planned.uplink.carry_over:  # the forecast draws channels in its own order
        return
    foreseen = planned.epsilon_by_model["device"].max()
    assert record.summary["epsilon_by_model"]["device"] == pytest.approx(foreseen, rel=1e-6)


def test_a_certificate_says_that_the_coin_amplifies_nothing(tmp_path):
    ad.run(small_scenario(tmp_path, HALF), "ota_fd", out=tmp_path / "run")
    statement = " ".join(certify(tmp_path / "run").statement)
    assert "with probability 0.5, by its own coin, and the server knows who does" in statement
    assert "amplifies nothing" in statement


def test_rounds_in_which_nobody_takes_part_are_survived(tmp_path):
    scenario = small_scenario(tmp_path, "fleet.participation=0.2", "learning.rounds=12")
    for scheme in ("ota_fd", "ota_fl"):
        record = ad.run(scenario, scheme, out=tmp_path / scheme)
        assert len(record.rounds) == 12
        assert record.summary["epsilon_spent"] <= 8 * (1 + 1e-9)
        assert coins_of(plan_run(scenario, scheme).uplink).over_rounds(12, 12).sum(axis=1).min() == 0
        assert any("raise fleet.participation" in line for line in plan_run(scenario, scheme).warnings)


def test_secure_noise_of_those_who_are_there_keeps_the_promise(tmp_path):
    scenario = small_scenario(tmp_path, "fleet.participation=0.7", "privacy.noise=secure")
    record = ad.run(scenario, "ota_fd", out=tmp_path / "run")
    assert record.summary["epsilon_spent"] <= 8 * (1 + 1e-9)


@pytest.mark.parametrize("more", [[], ["privacy.class_budget=optimal"], ["radio.csi_error_db=-30"]])
def test_power_and_privacy_hold_in_every_round(more):
    planned = ad.plan(ad.load("quick", [HALF, "radio.truncation=-130 dB", *more]))
    assert planned.forecast.power_holds_share == 1
    assert planned.forecast.privacy_holds_share == 1
    assert planned.epsilon_by_model["device"].max() <= 8 * (1 + 1e-9)


def test_with_everybody_there_nothing_changes():
    plain, certain = ad.load("quick", []), ad.load("quick", ["fleet.participation=1"])
    assert certain == plain
    planned = ad.plan(plain)
    assert planned.uplink.coins is None
    assert planned.taking_part is None
    channels = planning_draws(plain)
    sure = replace(planned.uplink, coins=Coins(20, 1.0, 0))
    np.testing.assert_allclose(sure.noise_over(channels)(60), planned.uplink.noise_over(channels)(60), rtol=1e-12)


@pytest.mark.parametrize("scheme", ["ota_fd", "ota_fl"])
def test_a_plan_says_what_participation_costs_beside_everybody(scheme):
    scenario = ad.load("quick", [HALF])
    planned, everybody = plan_run(scenario, scheme), plan_run(ad.load("quick", []), scheme)
    seen = planned.taking_part
    assert seen.effective_noise_of_all == everybody.forecast.effective_noise
    assert seen.round_joules_of_all == everybody.forecast.round_joules
    assert planned.forecast.effective_noise > 1.5 * everybody.forecast.effective_noise
    assert seen.least_rounds < 30 < seen.most_rounds
    assert planned.uplink_seconds == everybody.uplink_seconds
    rows = dict(summary_rows(planned))
    assert f"{seen.least_devices} to {seen.most_devices} of 20 devices a round" in rows["Taking part"]
    assert "times the noise" in rows["  beside everybody"]
    assert Plan.from_dict(planned.to_dict()).taking_part == seen


def test_schemes_without_noise_ask_everybody_and_the_reference_half_of_all():
    def chance(name, *changes):
        return as_run_by(load_scheme(name), ad.load("quick", list(changes))).fleet.participation

    thirds = "fleet.participation=0.3"
    assert [chance(name, thirds) for name in ("fedsgd", "fedavg", "fd_error_free", "local_only")] == [1] * 4
    assert [chance(name, thirds) for name in ("ota_fd", "airdistill", "ota_fl", "ota_fl_sampled")] == [0.3] * 4
    assert chance("ota_fl_sampled") == 0.5
    assert chance("ota_fl_sampled", "overrides.ota_fl.fleet.participation=0.1") == 0.1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["fleet.participation=0"], r"fleet\.participation"),
        (["fleet.participation=1.5"], r"fleet\.participation"),
        ([HALF, "fleet.sampling=with_replacement", "fleet.sampled_devices=2"], r"participation = 0\.5.*drawn already"),
        ([HALF, "air.medium=secure_sum"], r"participation = 0\.5: a secure sum asks every device"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        ad.load("quick", changes)


def test_one_after_the_other_everybody_takes_part():
    with pytest.raises(InputError, match=r"participation = 0\.5: one after the other"):
        plan_run(ad.load("quick", [HALF]), "orthogonal_fd")
    with pytest.raises(InputError, match=r"participation = 0\.5: the paper's transceiver"):
        ad.load("paper", [HALF, "radio.transceiver=paper"])
