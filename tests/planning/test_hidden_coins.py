"""Coins that the server does not see: what is sent, planned, charged, certified; and what who sees them would learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_fleets import TRUSTS, fleets, uplink_of
from scipy.stats import norm
from small_worlds import small_scenario

import airdistill as ad
from airdistill.audit.second_opinion import opinion_in_words
from airdistill.errors import AirDistillError, InputError
from airdistill.planning.participation import Coins
from airdistill.planning.plan import Plan, planning_draws
from airdistill.planning.uplinks import release_of
from airdistill.planning.what_if.participation import hidden_coins_of
from airdistill.privacy.gaussian import gaussian_epsilon
from airdistill.privacy.ledger import BudgetExceeded, Ledger
from airdistill.privacy.poisson_sampling import SubsampledGaussian, grid_index
from airdistill.privacy.release import Release
from airdistill.radio.superposition import RoundNoise, over_the_air, vector_over_the_air
from airdistill.report.plan_table import summary_rows
from airdistill.runs.accounts import certify, ledger_header
from airdistill.schemes.registry import as_run_by, load_scheme, plan_run

HIDDEN = ("fleet.participation=0.5", "fleet.participation_hidden=true")
SAME_CHANNEL = "radio.gains=[[1e-5, 0], [2e-5, 0], [1e-5, 1e-5]]"  # in every round, planned and played


@given(fleets, st.sampled_from(TRUSTS), st.sampled_from([0.1, 0.5, 0.9]))
def test_everybody_sends_as_without_coins_and_the_server_divides_by_p(fleet, trust, probability):
    plain = uplink_of(fleet, trust).design(fleet.channel, fleet.num_rounds, 1)
    uplink = uplink_of(fleet, trust, hidden_coins=Coins(len(fleet.mu), probability, seed=3, at_least=0))
    hidden = uplink.design(fleet.channel, fleet.num_rounds, 1)
    np.testing.assert_array_equal(hidden.signal_gain, plain.signal_gain)
    np.testing.assert_array_equal(hidden.noise_gain, plain.noise_gain)
    np.testing.assert_allclose(hidden.weights, plain.weights / probability)
    np.testing.assert_allclose(hidden.rx_scale, plain.rx_scale * probability)
    np.testing.assert_allclose(hidden.effective_noise_var, plain.effective_noise_var / probability**2)
    assert (hidden.privacy_slack(uplink.required(fleet.num_rounds)) >= -1e-9).all()
    assert (hidden.power_slack(fleet.peak_power_w) >= -1e-9).all()
    np.testing.assert_allclose(
        uplink.noise_over(fleet.channel[None])(fleet.num_rounds)[0], hidden.effective_noise_var, rtol=1e-9
    )
    releases = [release_of(each, design, fleet.channel, 1) for each, design in [(uplink, hidden), (uplink, plain)]]
    for model, counted in [(fleet.model, trust), ("device", "fleet_noise")]:
        np.testing.assert_allclose(*(release.cost(model, counted) for release in releases), rtol=1e-9)


def test_the_sum_is_everybodys_on_average_and_scatters_as_coins_do(tmp_path):
    """Monte Carlo over the coins of 4000 rounds, without noise: mean, and variance Σ w²q²(1−p)/p."""
    planned = plan_run(small_scenario(tmp_path, *HIDDEN, "fleet.participation=0.3"), "ota_fd")
    counts, num_rounds = planned.fleet.class_counts, 4000
    rng, coins = np.random.default_rng(0), hidden_coins_of(planned.uplink)
    channel = rng.standard_normal(3) * 1e-5 + 1e-5 + 0j
    design, knowledge = planned.design(channel), rng.dirichlet(np.ones(3), (3, 3))
    silent = RoundNoise(np.zeros((3, 3, 3)), np.zeros((3, 3)))
    heard = [
        over_the_air(counts, knowledge, design, channel, silent, 1e-6, coins.there(index))
        for index in range(1, num_rounds + 1)
    ]
    received = np.stack([each.received for each in heard])
    variance = np.einsum("ik,ikd->kd", (counts / counts.sum(axis=0)) ** 2, knowledge**2) * 0.7 / 0.3
    assert (np.abs(received.mean(axis=0) - heard[0].ideal) < 4.5 * np.sqrt(variance / num_rounds)).all()
    np.testing.assert_allclose(received.var(axis=0), variance, rtol=0.2)
    assert max(each.squared_error.max() for each in heard) < 1e-20, "against the sum of those who were there"
    # Planned is the mean over coins, as the plan has it: a round's own would tell how they fell.
    expected = 1e-6 * 3 * (0.3 * np.abs(design.signal_gain) ** 2 + np.abs(design.noise_gain) ** 2).sum()
    np.testing.assert_allclose([each.planned_joules for each in heard], expected)
    with pytest.raises(AirDistillError, match=r"this.there\(\)"):
        over_the_air(counts, knowledge, design, channel, silent, 1e-6)
    with pytest.raises(AirDistillError, match="negative entries"):
        over_the_air(counts, knowledge - 1 / 3, design, channel, silent, 1e-6, np.ones(3, dtype=bool))


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("scheme", ["ota_fd", "airdistill", "ota_fl", "ota_fl_sampled", "ota_proxy_fd"])
def test_a_run_spends_what_was_planned_and_the_ledger_says_nothing_of_the_coins(tmp_path, scheme, trust):
    changes = [*HIDDEN, f"privacy.trust={trust}", SAME_CHANNEL, "learning.rounds=7"]
    public = ["public.samples=6", "learning.local_epochs=1"] if scheme == "ota_proxy_fd" else []
    scenario = small_scenario(tmp_path, *changes, *public)
    record, planned = ad.run(scenario, scheme, out=tmp_path / "run"), plan_run(scenario, scheme)
    assert len(record.rounds) == 7
    assert record.summary["epsilon_spent"] <= 8 * (1 + 1e-8)
    assert record.summary["epsilon_spent"] == pytest.approx(planned.epsilon_by_model["device"].max(), rel=0.02)
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    for release in ledger.releases:
        np.testing.assert_array_equal(release.participants, np.arange(3))
    in_full = np.sqrt(sum(release.cost("device", trust).sum(axis=1) for release in ledger.releases))
    assert (in_full <= planned.fleet.mu * (1 + 1e-9)).all()
    assert gaussian_epsilon(in_full.max(), ledger.header.delta[0]) > 1.2 * record.summary["epsilon_spent"]
    assert [line["epsilon_spent"] for line in record.rounds] == sorted(line["epsilon_spent"] for line in record.rounds)


def worlds(kind, planned):
    """One device's two neighbours that differ most: orthogonal class means, or opposite gradients."""
    if kind == "ota_fd":
        tables = np.zeros((2, 3, 3, 3))
        tables[0, 0, :, 0] = tables[1, 0, :, 1] = 1.0
        return tables
    vectors = np.zeros((2, 3, planned.uplink.vector_length))
    vectors[0, 0, 0], vectors[1, 0, 0] = planned.uplink.largest_norm, -planned.uplink.largest_norm
    return vectors


@pytest.mark.parametrize("scheme", ["ota_fd", "ota_fl"])
def test_an_attack_on_the_air_never_exceeds_the_ledger_unless_it_sees_the_coins(tmp_path, scheme):
    """Rounds as they are sent, one device against its worst neighbour, others' vectors known, a noiseless receiver.

    The best test there is (Neyman and Pearson) has δ = E(1 − e^(ε − loss))₊ at the ledger's ε.
    """
    num_rounds, probability, trials = 5, 0.3, 3000
    changes = [*HIDDEN, f"fleet.participation={probability}", "privacy.epsilon=1", "privacy.delta=0.05", SAME_CHANNEL]
    planned = plan_run(small_scenario(tmp_path, *changes, f"learning.rounds={num_rounds}"), scheme)
    channel = np.array([1e-5, 2e-5, 1e-5 + 1e-5j])
    design, rng = planned.design(channel), np.random.default_rng(1)
    ledger = ledger_of(planned)
    for index in range(1, num_rounds + 1):
        ledger.charge(release_of(planned.uplink, design, channel, index))
    epsilon = float(ledger.epsilon()[0])
    counted = planned.uplink.noise_by_trust(design, channel)["fleet_noise"][0]
    centres = design.weights[0][:, None] * worlds(scheme, planned)[:, 0].reshape(2, design.weights.shape[1], -1)

    def heard(vectors):
        there = np.array([rng.random() < probability, False, False])
        shape = (3, design.weights.shape[1], planned.uplink.vector_length)
        noise = RoundNoise(rng.standard_normal(shape), np.zeros(shape[1:]))
        if scheme == "ota_fd":
            sent = over_the_air(planned.fleet.class_counts, vectors, design, channel, noise, 1e-6, there)
        else:
            shares = planned.uplink.participation.nominal_weights
            norm_of = planned.uplink.largest_norm
            sent = vector_over_the_air(shares, vectors, design, channel, noise, 1e-6, norm_of, there)
        return sent.received, there[0]

    def log_density(received, centre):
        return norm.logpdf((received - centre) / np.sqrt(counted)[:, None]).sum()

    losses, seen = np.zeros(trials), np.zeros(trials)
    for trial in range(trials):
        for _ in range(num_rounds):
            received, came = heard(worlds(scheme, planned)[0])
            here = [log_density(received, centre) for centre in centres]
            nowhere = log_density(received, 0.0)
            mixed = [np.logaddexp(np.log(probability) + at, np.log(1 - probability) + nowhere) for at in here]
            losses[trial] += mixed[0] - mixed[1]
            seen[trial] += (here[0] - here[1]) * came
    found, with_coins = (np.maximum(1 - np.exp(epsilon - loss), 0) for loss in (losses, seen))
    error_bar = found.std() / np.sqrt(trials)
    assert found.mean() <= 0.05 + 4 * error_bar
    assert found.mean() > 0.03, "nearly the worst that the ledger expects"
    assert with_coins.mean() > 0.08, "who sees the coins breaks the promise"


def ledger_of(planned):
    return Ledger(ledger_header(planned, load_scheme("ota_fd"), "inputs"))


def test_a_certificate_says_what_hidden_coins_rest_on(tmp_path):
    ad.run(small_scenario(tmp_path, *HIDDEN), "ota_fd", out=tmp_path / "run")
    made = certify(tmp_path / "run")
    assert made.verdict == "holds under assumptions"
    assert "hidden coins" in made.verdict_in_words
    said = " ".join(each.sentence for each in made.assumptions)
    assert "the server must not learn the coins" in said
    for account in made.devices:
        for trust in TRUSTS:
            assert account.by_model["trajectory"][trust] <= account.by_model["device"][trust] * (1 + 1e-9)


def test_one_round_more_or_a_louder_one_is_refused(tmp_path):
    planned = plan_run(small_scenario(tmp_path, *HIDDEN, SAME_CHANNEL, "learning.rounds=4"), "ota_fd")
    channel = np.array([1e-5, 2e-5, 1e-5 + 1e-5j])
    release = release_of(planned.uplink, planned.design(channel), channel, 1)
    binding = np.sqrt(release.cost("device", "fleet_noise").sum(axis=1))
    # Its devices need not all be at their limit: make the first.
    limit = planned.fleet.mu / 2
    assert (grid_index(binding) <= grid_index(limit)).all()
    raised = Release(1, release.weights * (limit / binding)[:, None], release.sensitivity, release.counted_noise_var)
    ledger = ledger_of(planned)
    for _ in range(4):
        ledger.charge(raised)
    with pytest.raises(BudgetExceeded, match="of the 8 that it was promised"):
        ledger.charge(raised)
    louder = Release(1, 1.3 * raised.weights, raised.sensitivity, raised.counted_noise_var)
    fresh = ledger_of(planned)
    fresh.charge(louder)  # a louder round may be paid for with fewer of them
    with pytest.raises(BudgetExceeded):
        fresh.charge(louder)


def test_a_run_is_resumed_to_the_same_ledger_and_goes_on_from_earlier_runs(tmp_path):
    scenario = small_scenario(tmp_path, *HIDDEN, "privacy.epsilon=12")
    ad.run(small_scenario(tmp_path, "privacy.epsilon=4"), "ota_fd", out=tmp_path / "before")
    ad.run(scenario, "ota_fd", out=tmp_path / "run", ledger=tmp_path / "before")
    made = certify(tmp_path / "run")
    assert max(account.spent for account in made.devices) <= 12 * (1 + 1e-8)
    assert made.num_earlier == 6
    again = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert again.epsilon().max() == pytest.approx(max(account.spent for account in made.devices))
    alone = SubsampledGaussian(0.5, "orthogonal").largest_round_mu(6, np.full(3, 12.0), again.header.delta, np.zeros(3))
    assert (again.header.mu < alone * np.sqrt(6)).all()


def test_a_plan_that_knew_less_of_earlier_runs_is_stopped(tmp_path):
    """By what another run was charged after this plan was made."""
    scenario = small_scenario(tmp_path, *HIDDEN, SAME_CHANNEL)
    ad.run(small_scenario(tmp_path, SAME_CHANNEL), "ota_fd", out=tmp_path / "before")
    planned = plan_run(scenario, "ota_fd")
    header = ledger_header(planned, load_scheme("ota_fd"), "inputs")
    ledger = Ledger.begin(header, tmp_path / "late.jsonl", tmp_path / "before" / "ledger.jsonl")
    channel = np.array([1e-5, 2e-5, 1e-5 + 1e-5j])

    def play_all():
        for index in range(1, planned.num_rounds + 1):
            ledger.charge(release_of(planned.uplink, planned.design(channel), channel, index))

    with pytest.raises(BudgetExceeded):
        play_all()
    assert (ledger.epsilon() <= 8 * (1 + 1e-8)).all()


def test_a_delta_that_cannot_be_accounted_for_is_refused(tmp_path):
    for accountant in ("exact", "paper"):
        changes = (*HIDDEN, "privacy.delta=1e-20", f"privacy.accountant={accountant}")
        with pytest.raises(InputError, match="at least") as refused:
            plan_run(small_scenario(tmp_path, *changes), "ota_fd")
        assert refused.value.field == "privacy.delta"


def test_a_plan_foresees_rounds_that_differ():
    """Receiver noise and fading: a round is as loud as its channel lets it, and the loud ones cost most."""
    planned = plan_run(ad.load("quick", [*HIDDEN, "privacy.trust=receiver_noise", "learning.rounds=30"]), "ota_fd")
    ledger, channels = ledger_of(planned), planning_draws(planned.scenario)
    for index, channel in enumerate(channels[:30], 1):
        ledger.charge(release_of(planned.uplink, planned.design(channel, index), channel, index))
    np.testing.assert_allclose(planned.epsilon_by_model["device"], ledger.epsilon(), rtol=1e-6)
    costs = [release.cost("device", "receiver_noise").sum(axis=1) for release in ledger.releases]
    assert np.ptp(costs, axis=0).min() > 0.1 * np.max(costs), "the channel limits some rounds, or this shows nothing"


def test_nothing_left_of_a_budget_is_said(tmp_path):
    ad.run(small_scenario(tmp_path, *HIDDEN), "ota_fd", out=tmp_path / "before")
    with pytest.raises(BudgetExceeded, match="has spent its ε = 9"):  # coins of earlier runs are counted as if seen
        ad.run(small_scenario(tmp_path, *HIDDEN, "privacy.epsilon=9"), "ota_fd", ledger=tmp_path / "before")


@pytest.mark.parametrize(("scheme", "most"), [("ota_fl", 1.001), ("ota_fd", 1.3)])
def test_a_second_opinion_by_googles_accountant(tmp_path, scheme, most):
    """Its own Poisson sampling with one record replaced: the same for gradients, a bound for knowledge."""
    ad.run(small_scenario(tmp_path, "privacy.epsilon=1"), scheme, out=tmp_path / "before")
    out = tmp_path / "run"
    ad.run(small_scenario(tmp_path, *HIDDEN), scheme, out=out, ledger=tmp_path / "before")
    said = opinion_in_words(out)
    ours, theirs = (float(said.split(before)[1].split(" by ")[0]) for before in ("ε = ", "ledger, "))
    assert 0.98 < theirs / ours < most
    assert ("no entry below zero" in said) == (scheme == "ota_fd")


def test_a_plan_says_what_hidden_coins_buy_beside_everybody_seen_coins_and_the_published_form():
    planned = plan_run(ad.load("quick", [*HIDDEN, "learning.rounds=60"]), "ota_fd")
    hidden = planned.hidden_part
    assert (
        hidden.effective_noise_of_all
        == plan_run(ad.load("quick", ["learning.rounds=60"]), "ota_fd").forecast.effective_noise
    )
    seen = plan_run(ad.load("quick", [HIDDEN[0], "learning.rounds=60"]), "ota_fd")
    assert hidden.effective_noise_if_seen == seen.forecast.effective_noise
    assert 0.9 < planned.forecast.effective_noise / hidden.effective_noise_of_all < 1.3
    assert planned.forecast.effective_noise < 0.7 * hidden.effective_noise_if_seen
    rows = dict(summary_rows(planned))
    assert "seen by nobody" in rows["Taking part"]
    assert "times the noise" in rows["  beside seen coins"]
    assert Plan.from_dict(planned.to_dict()).hidden_part == hidden
    assert Plan.from_dict(planned.to_dict()).fleet.mu == pytest.approx(planned.fleet.mu)


def test_the_best_rounds_are_those_that_the_fleet_was_granted_for():
    planned = ad.plan(ad.load("quick", [*HIDDEN, "learning.rounds=optimal"]))
    again = ad.plan(ad.load("quick", [*HIDDEN, f"learning.rounds={planned.num_rounds}"]))
    np.testing.assert_array_equal(planned.fleet.mu, again.fleet.mu)
    assert abs(again.rounds.exact - planned.num_rounds) <= 2


class TestThePublishedForm:
    def test_it_plans_and_the_sound_ledger_stops_what_it_cannot_cover(self, tmp_path):
        loud = ["privacy.epsilon=20", "fleet.participation=0.9", "privacy.trust=own_noise", "learning.rounds=9"]
        scenario = small_scenario(tmp_path, *HIDDEN, *loud, "privacy.accountant=paper", SAME_CHANNEL)
        planned = plan_run(scenario, "ota_fl")
        assert any("The published form amplifies all rounds at once" in line for line in planned.warnings)
        record = ad.run(scenario, "ota_fl", out=tmp_path / "run")
        assert len(record.rounds) < 9
        assert record.summary["epsilon_spent"] <= 20
        assert planned.epsilon_by_model["device"].max() > 20

    def test_it_says_nothing_for_few_devices(self, tmp_path):
        scenario = small_scenario(tmp_path, *HIDDEN, "privacy.accountant=paper")
        with pytest.raises(InputError, match="κ = pM"):
            plan_run(scenario, "ota_fd")
        rows = dict(summary_rows(plan_run(small_scenario(tmp_path, *HIDDEN), "ota_fd")))
        assert "says nothing" in rows["  the published form"]


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("fleet.participation_hidden", ["fleet.participation_hidden=true"]),
        ("privacy.sensitivity", [*HIDDEN, "privacy.sensitivity=trajectory"]),
        ("privacy.carry_over", [*HIDDEN, "privacy.carry_over=true"]),
        ("privacy.noise", [*HIDDEN, "privacy.noise=secure"]),
        ("fleet.participation", [*HIDDEN, "air.medium=secure_sum"]),
        ("fleet.participation", [*HIDDEN, "radio.antennas=2"]),
    ],
)
def test_what_is_not_worked_out_is_refused(field, changes):
    with pytest.raises(InputError) as refused:
        ad.load("quick", changes)
    assert refused.value.field == field


def test_schemes_without_noise_have_no_coins_to_hide_and_own_ones_carry_nothing_over():
    def adapted(name):
        return as_run_by(load_scheme(name), ad.load("quick", list(HIDDEN)))

    assert not any(adapted(name).fleet.participation_hidden for name in ("fedsgd", "fd_error_free", "local_only"))
    assert adapted("airdistill").fleet.participation_hidden
    assert not adapted("airdistill").privacy.carry_over


def test_an_audit_is_refused(tmp_path):
    ad.run(small_scenario(tmp_path, *HIDDEN), "ota_fd", out=tmp_path / "run")
    with pytest.raises(InputError, match="participation_hidden"):
        ad.audit_run(tmp_path / "run")
