"""Poisson sampling that the server knows: masks, designs of the participating devices, plans and runs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_fleets import TRUSTS, fleets, uplink_of
from small_worlds import small_scenario

import airdistill as ad
from airdistill.errors import InputError
from airdistill.planning.plan import Plan, plan, planning_draws
from airdistill.planning.transceiver.design import design_round
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.participation import Everyone, KnownPoisson
from airdistill.report.plan import summary_rows
from airdistill.runs.accounts import certify
from airdistill.schemes.registry import as_run_by, load_scheme, plan_run

HALF = "fleet.participation=0.5"
SAME_CHANNEL = "radio.gains=[[1e-5, 0], [2e-5, 0], [1e-5, 1e-5]]"  # in every round, planned and played


def test_masks_are_independent_and_have_the_declared_probability():
    """Monte Carlo of the counts: mean and variance of a binomial, no correlation between devices or rounds."""
    num_devices, probability, num_rounds = 40, 0.3, 4000
    participation = KnownPoisson(num_devices, 7, probability)
    masks = participation.masks(num_rounds, num_rounds)
    counts, variance = masks.sum(axis=1), num_devices * probability * (1 - probability)
    assert abs(counts.mean() - num_devices * probability) < 4 * np.sqrt(variance / num_rounds)
    assert abs(counts.var() / variance - 1) < 4 * np.sqrt(2 / num_rounds)
    between_devices = np.corrcoef(masks.T.astype(float))[~np.eye(num_devices, dtype=bool)]
    assert np.abs(between_devices).max() < 5.5 / np.sqrt(num_rounds)
    between_rounds = np.corrcoef(masks[:-1].ravel(), masks[1:].ravel())[0, 1]
    assert abs(between_rounds) < 4 / np.sqrt(masks.size)
    np.testing.assert_array_equal(participation.rounds_joined(num_rounds), masks.sum(axis=0))
    np.testing.assert_array_equal(participation.masks(3, 7), masks[[0, 1, 2, 0, 1, 2, 0]])


def test_a_round_with_too_few_devices_does_not_happen():
    few, any_number = KnownPoisson(6, 1, 0.4, at_least=3), KnownPoisson(6, 1, 0.4)
    counts = any_number.masks(200, 200).sum(axis=1)
    np.testing.assert_array_equal(few.masks(200, 200).sum(axis=1), np.where(counts >= 3, counts, 0))


@given(fleets, st.sampled_from(TRUSTS), st.integers(1, 9))
def test_a_round_is_the_plain_round_of_its_participating_devices(fleet, trust, round_index):
    """The gains do not depend on the other devices, which send nothing, not even noise, and are not charged."""
    participation = KnownPoisson(len(fleet.mu), 3, 0.6)
    uplink, joined = uplink_of(fleet, trust, participation=participation), participation.mask(round_index)
    num_rounds = max(fleet.num_rounds, round_index)
    design = uplink.design(fleet.channel, num_rounds, round_index)
    required = uplink.required(num_rounds)
    assert not design.signal_gain[~joined].any()
    assert not design.noise_gain[~joined].any()
    assert not uplink.release(design, fleet.channel, round_index).cost(fleet.model, trust)[~joined].any()
    assert (design.privacy_slack(required) >= -1e-9).all()
    assert (design.power_slack(fleet.peak_power_w) >= -1e-9).all()
    if joined.any():
        raised = np.divide(design.weights, fleet.weights, out=np.zeros(design.weights.shape), where=fleet.weights > 0)
        alone = design_round(
            fleet.class_counts[joined],
            fleet.channel[joined],
            fleet.peak_power_w[joined],
            fleet.channel_noise_var,
            (required * raised**2)[joined],
            trust,
        )
        assert design.weights[joined] == pytest.approx(alone.weights, rel=1e-12)
        assert design.effective_noise_var == pytest.approx(alone.effective_noise_var, rel=1e-9)


@given(fleets)
def test_required_noise_counts_only_the_rounds_that_a_device_joins(fleet):
    participation = KnownPoisson(len(fleet.mu), 5, 0.5)
    joined = participation.rounds_joined(fleet.num_rounds)
    np.testing.assert_allclose(
        uplink_of(fleet, "fleet_noise", participation=participation).required(fleet.num_rounds),
        fleet.required * (joined / fleet.num_rounds)[:, None],
    )


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("scheme", ["ota_fd", "airdistill", "ota_fl", "ota_fl_sampled"])
def test_a_run_spends_what_was_planned_and_charges_only_participating_devices(tmp_path, scheme, trust):
    changes = [f"privacy.trust={trust}", SAME_CHANNEL, "learning.rounds=8", "fleet.participation=0.6"]
    scenario = small_scenario(tmp_path, *changes)
    record = ad.run(scenario, scheme, out=tmp_path / "run")
    planned = plan_run(scenario, scheme)
    assert record.summary["epsilon_spent"] <= 8 * (1 + 1e-9)
    participation = planned.uplink.participation
    releases = Ledger.read(tmp_path / "run" / "ledger.jsonl").releases
    assert len(releases) == 8
    for release in releases:
        np.testing.assert_array_equal(release.participants, np.flatnonzero(participation.mask(release.round_index)))
    if planned.uplink.carry_over:  # the forecast draws channels in its own order
        return
    predicted = planned.epsilon_by_model["device"].max()
    assert record.summary["epsilon_by_model"]["device"] == pytest.approx(predicted, rel=1e-6)


def test_a_certificate_states_that_known_sampling_does_not_amplify_privacy(tmp_path):
    ad.run(small_scenario(tmp_path, HALF), "ota_fd", out=tmp_path / "run")
    statement = " ".join(certify(tmp_path / "run").statement)
    assert "each device joins a round with probability 0.5. The server knows which devices join" in statement
    assert "sampling does not amplify privacy" in statement


def test_runs_survive_rounds_without_any_device(tmp_path):
    scenario = small_scenario(tmp_path, "fleet.participation=0.2", "learning.rounds=12")
    for scheme in ("ota_fd", "ota_fl"):
        record = ad.run(scenario, scheme, out=tmp_path / scheme)
        assert len(record.rounds) == 12
        assert record.summary["epsilon_spent"] <= 8 * (1 + 1e-9)
        assert plan_run(scenario, scheme).uplink.participation.masks(12, 12).sum(axis=1).min() == 0
        assert any("raise fleet.participation" in line for line in plan_run(scenario, scheme).warnings)


def test_secure_noise_of_participating_devices_keeps_the_target(tmp_path):
    scenario = small_scenario(tmp_path, "fleet.participation=0.7", "privacy.noise=secure")
    record = ad.run(scenario, "ota_fd", out=tmp_path / "run")
    assert record.summary["epsilon_spent"] <= 8 * (1 + 1e-9)


@pytest.mark.parametrize("more", [[], ["privacy.class_budget=optimal"], ["radio.csi_error_db=-30"]])
def test_power_and_privacy_hold_in_every_round(more):
    planned = plan(ad.load("quick", [HALF, "radio.truncation=-130 dB", *more]))
    assert planned.forecast.power_holds_share == 1
    assert planned.forecast.privacy_holds_share == 1
    assert planned.epsilon_by_model["device"].max() <= 8 * (1 + 1e-9)


def test_probability_one_is_full_participation():
    plain, certain = ad.load("quick", []), ad.load("quick", ["fleet.participation=1"])
    assert certain == plain
    planned = plan(plain)
    assert isinstance(planned.uplink.participation, Everyone)
    assert planned.participation is None
    channels = planning_draws(plain)
    sure = replace(planned.uplink, participation=KnownPoisson(20, 0, 1.0))
    np.testing.assert_allclose(sure.noise_over(channels)(60), planned.uplink.noise_over(channels)(60), rtol=1e-12)


@pytest.mark.parametrize("scheme", ["ota_fd", "ota_fl"])
def test_the_participation_comparison_of_a_plan(scheme):
    scenario = ad.load("quick", [HALF])
    planned, of_all = plan_run(scenario, scheme), plan_run(ad.load("quick", []), scheme)
    found = planned.participation
    assert found.effective_noise_of_all == of_all.forecast.effective_noise
    assert found.round_joules_of_all == of_all.forecast.round_joules
    assert planned.forecast.effective_noise > 1.5 * of_all.forecast.effective_noise
    assert found.least_rounds < 30 < found.most_rounds
    assert planned.uplink_seconds == of_all.uplink_seconds
    rows = dict(summary_rows(planned))
    assert f"{found.least_devices} to {found.most_devices} of 20 devices a round" in rows["Participation"]
    assert "times the noise" in rows["  vs. all devices"]
    assert Plan.from_dict(planned.to_dict()).participation == found


def test_non_private_schemes_use_all_devices_and_the_sampled_reference_half():
    def probability(name, *changes):
        return as_run_by(load_scheme(name), ad.load("quick", list(changes))).fleet.participation

    thirds = "fleet.participation=0.3"
    assert [probability(name, thirds) for name in ("fedsgd", "fedavg", "fd_error_free", "local_only")] == [1] * 4
    assert [probability(name, thirds) for name in ("ota_fd", "airdistill", "ota_fl", "ota_fl_sampled")] == [0.3] * 4
    assert probability("ota_fl_sampled") == 0.5
    assert probability("ota_fl_sampled", "overrides.ota_fl.fleet.participation=0.1") == 0.1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["fleet.participation=0"], r"fleet\.participation"),
        (["fleet.participation=1.5"], r"fleet\.participation"),
        ([HALF, "fleet.sampling=with_replacement", "fleet.sampled_devices=2"], r"participation = 0\.5.*drawn already"),
        ([HALF, "air.medium=secure_sum"], r"participation = 0\.5: a secure sum asks every device"),
    ],
)
def test_unsupported_combinations_are_refused(changes, words):
    with pytest.raises(InputError, match=words):
        ad.load("quick", changes)


def test_tdma_and_the_papers_transceiver_refuse_sampling():
    with pytest.raises(InputError, match=r"participation = 0\.5: with TDMA all devices participate"):
        plan_run(ad.load("quick", [HALF]), "orthogonal_fd")
    with pytest.raises(InputError, match=r"participation = 0\.5: the paper's transceiver"):
        ad.load("paper", [HALF, "radio.transceiver=paper"])
