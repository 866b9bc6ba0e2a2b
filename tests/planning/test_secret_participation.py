"""Poisson sampling that is secret from the server: design, plan, charge, certificate, and the optimal attack."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_fleets import TRUSTS, fleets, uplink_of
from small_worlds import small_scenario

import airdistill as ad
from airdistill.audit.second_opinion import opinion_in_words
from airdistill.channel.sources import channel_source
from airdistill.errors import AirDistillError, InputError
from airdistill.planning.amplification import fleet_for_rounds
from airdistill.planning.plan import Plan, plan, planning_draws
from airdistill.privacy.gaussian import gaussian_epsilon
from airdistill.privacy.ledger import BudgetExceeded, Ledger
from airdistill.privacy.participation import SecretPoisson
from airdistill.privacy.poisson_sampling import SubsampledGaussian, grid_index
from airdistill.privacy.release import Release
from airdistill.privacy.spending import EarlierRuns
from airdistill.radio.charged_round import charge_round, check_vectors
from airdistill.radio.superposition import RoundNoise, over_the_air
from airdistill.report.plan import summary_rows
from airdistill.runs.accounts import certify, ledger_header
from airdistill.schemes.registry import as_run_by, load_scheme, plan_run

SECRET = ("fleet.participation=0.5", "fleet.participation_hidden=true")
SAME_CHANNEL = "radio.gains=[[1e-5, 0], [2e-5, 0], [1e-5, 1e-5]]"  # in every round, planned and played


@given(fleets, st.sampled_from(TRUSTS), st.sampled_from([0.1, 0.5, 0.9]))
def test_gains_are_those_of_full_participation_and_the_server_divides_by_p(fleet, trust, probability):
    plain = uplink_of(fleet, trust).design(fleet.channel, fleet.num_rounds, 1)
    uplink = uplink_of(fleet, trust, participation=SecretPoisson(len(fleet.mu), 3, probability))
    secret = uplink.design(fleet.channel, fleet.num_rounds, 1)
    np.testing.assert_array_equal(secret.signal_gain, plain.signal_gain)
    np.testing.assert_array_equal(secret.noise_gain, plain.noise_gain)
    np.testing.assert_allclose(secret.weights, plain.weights / probability)
    np.testing.assert_allclose(secret.rx_scale, plain.rx_scale * probability)
    np.testing.assert_allclose(secret.effective_noise_var, plain.effective_noise_var / probability**2)
    assert (secret.privacy_slack(uplink.required(fleet.num_rounds)) >= -1e-9).all()
    assert (secret.power_slack(fleet.peak_power_w) >= -1e-9).all()
    np.testing.assert_allclose(
        uplink.noise_over(fleet.channel[None])(fleet.num_rounds)[0], secret.effective_noise_var, rtol=1e-9
    )
    releases = [uplink.release(design, fleet.channel, 1) for design in (secret, plain)]
    for model, counted in [(fleet.model, trust), ("device", "fleet_noise")]:
        np.testing.assert_allclose(*(release.cost(model, counted) for release in releases), rtol=1e-9)


def test_the_received_sum_is_unbiased_and_has_the_variance_of_poisson_sampling(tmp_path):
    """Monte Carlo over the masks of 4000 rounds, without noise: mean, and variance Σ w²q²(1−p)/p."""
    planned = plan_run(small_scenario(tmp_path, *SECRET, "fleet.participation=0.3"), "ota_fd")
    counts, num_rounds = planned.fleet.class_counts, 4000
    rng, participation = np.random.default_rng(0), planned.uplink.participation
    channel = rng.standard_normal(3) * 1e-5 + 1e-5 + 0j
    design, class_means = planned.design(channel), rng.dirichlet(np.ones(3), (3, 3))
    weights, no_noise = counts / counts.sum(axis=0), RoundNoise(np.zeros((3, 3, 3)), np.zeros((3, 3)))
    receptions = [
        over_the_air(
            weights, class_means, design, channel, no_noise, 1e-6, signal_mask=participation.signal_mask(index)
        )
        for index in range(1, num_rounds + 1)
    ]
    received = np.stack([each.received for each in receptions])
    variance = np.einsum("ik,ikd->kd", weights**2, class_means**2) * 0.7 / 0.3
    assert (np.abs(received.mean(axis=0) - receptions[0].ideal) < 4.5 * np.sqrt(variance / num_rounds)).all()
    np.testing.assert_allclose(received.var(axis=0), variance, rtol=0.2)
    assert max(each.squared_error.max() for each in receptions) < 1e-20, "against the sum of the devices that sent"
    # The planned energy is the mean over masks, as in the plan: that of a round's own mask would reveal the mask.
    expected = 1e-6 * 3 * (0.3 * np.abs(design.signal_gain) ** 2 + np.abs(design.noise_gain) ** 2).sum()
    np.testing.assert_allclose([each.planned_joules for each in receptions], expected)
    check_vectors(planned, design, class_means, 1)
    with pytest.raises(AirDistillError, match="negative entry"):
        check_vectors(planned, design, class_means - 1 / 3, 1)


def test_a_charged_round_sends_only_noise_for_devices_outside_the_secret_mask(tmp_path):
    scenario = small_scenario(tmp_path, *SECRET, SAME_CHANNEL, "learning.rounds=12")
    planned = plan_run(scenario, "ota_fd")
    ledger, source = ledger_of(planned), channel_source(scenario)
    class_means = np.random.default_rng(0).dirichlet(np.ones(3), (3, 3))
    sizes = set()
    for index in range(1, 13):
        charged = charge_round(planned, ledger, source, index)
        mask = planned.uplink.participation.signal_mask(index)
        noise = replace(charged.on_air, permission=None)
        reception = charged.transmit(class_means)
        masked = np.where(mask[:, None, None], class_means, 0.0)
        weights = planned.uplink.nominal_weights
        sent = over_the_air(weights, masked, charged.design, charged.channel, noise, scenario.radio.slot)
        np.testing.assert_array_equal(reception.received, sent.received)
        sizes.add(int(mask.sum()))
    assert len(sizes) > 1, "some rounds have devices that send only noise"


@pytest.mark.parametrize(
    ("scheme", "trust"),
    [
        *(("ota_fd", trust) for trust in TRUSTS),
        ("airdistill", "own_noise"),
        *(("ota_fl", trust) for trust in TRUSTS),
        ("ota_fl_sampled", "fleet_noise"),
        ("ota_proxy_fd", "receiver_noise"),
    ],
)
def test_a_run_spends_what_was_planned_and_the_ledger_does_not_record_the_masks(tmp_path, scheme, trust):
    changes = [*SECRET, f"privacy.trust={trust}", SAME_CHANNEL, "learning.rounds=7"]
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


def neighbouring_vectors(scheme, planned):
    """The two most distant vectors of device 0: orthogonal class means, or opposite gradients.

    The shape is `[neighbour, device, row, entry]`.
    """
    uplink = planned.uplink
    vectors = np.zeros((2, 3, uplink.num_rows, uplink.vector_length))
    if scheme == "ota_fd":
        vectors[0, 0, :, 0] = vectors[1, 0, :, 1] = 1.0
    else:
        vectors[0, 0, 0, 0], vectors[1, 0, 0, 0] = uplink.largest_norm, -uplink.largest_norm
    return vectors


@pytest.mark.parametrize("scheme", ["ota_fd", "ota_fl"])
def test_the_optimal_attack_never_exceeds_the_ledger_unless_it_knows_the_masks(tmp_path, scheme):
    """Transmitted rounds, one device and its worst neighbour, other devices' vectors known, a noiseless receiver.

    The most powerful test (Neyman and Pearson) has δ = E(1 − e^(ε − loss))₊ at the ledger's ε.
    """
    num_rounds, probability, trials = 5, 0.3, 3000
    changes = [*SECRET, f"fleet.participation={probability}", "privacy.epsilon=1", "privacy.delta=0.05", SAME_CHANNEL]
    planned = plan_run(small_scenario(tmp_path, *changes, f"learning.rounds={num_rounds}"), scheme)
    channel = np.array([1e-5, 2e-5, 1e-5 + 1e-5j])
    design, rng = planned.design(channel), np.random.default_rng(1)
    ledger = ledger_of(planned)
    for index in range(1, num_rounds + 1):
        ledger.charge(planned.uplink.release(design, channel, index))
    epsilon = float(ledger.epsilon()[0])
    counted = planned.uplink.noise_by_trust(design, channel)["fleet_noise"][0]
    vectors = neighbouring_vectors(scheme, planned)
    centres = design.weights[0][:, None] * vectors[:, 0]

    def received_sum():
        mask = np.array([rng.random() < probability, False, False])
        noise = RoundNoise(rng.standard_normal(vectors.shape[1:]), np.zeros(vectors.shape[2:]))
        weights, largest = planned.uplink.nominal_weights, planned.uplink.largest_norm
        sent = over_the_air(weights, vectors[0], design, channel, noise, 1e-6, largest, mask)
        return sent.received, mask[0]

    def log_density(received, centre):
        """But for a constant, which cancels."""
        return -0.5 * ((received - centre) ** 2 / counted[:, None]).sum()

    losses, losses_with_mask = np.zeros(trials), np.zeros(trials)
    for trial in range(trials):
        for _ in range(num_rounds):
            received, joined = received_sum()
            if_sent = [log_density(received, centre) for centre in centres]
            if_not = log_density(received, 0.0)
            mixed = [np.logaddexp(np.log(probability) + sent, np.log(1 - probability) + if_not) for sent in if_sent]
            losses[trial] += mixed[0] - mixed[1]
            losses_with_mask[trial] += (if_sent[0] - if_sent[1]) * joined
    found, with_mask = (np.maximum(1 - np.exp(epsilon - loss), 0) for loss in (losses, losses_with_mask))
    error_bar = found.std() / np.sqrt(trials)
    assert found.mean() <= 0.05 + 4 * error_bar
    assert found.mean() > 0.03, "nearly the worst that the ledger expects"
    assert with_mask.mean() > 0.08, "the guarantee does not hold against an attacker that knows the masks"


def ledger_of(planned):
    return Ledger(ledger_header(planned, "ota_fd", "private"))


def test_a_certificate_states_the_assumption_of_secret_participation(tmp_path):
    ad.run(small_scenario(tmp_path, *SECRET), "ota_fd", out=tmp_path / "run")
    made = certify(tmp_path / "run")
    assert made.verdict == "simulation"
    assert "secret participation" in made.verdict_in_words
    said = " ".join(each.sentence for each in made.assumptions)
    assert "The server must not learn which devices send a vector" in said
    for account in made.devices:
        for trust in TRUSTS:
            assert account.by_model["trajectory"][trust] <= account.by_model["device"][trust] * (1 + 1e-9)


def test_an_extra_round_or_rounds_of_more_power_are_refused(tmp_path):
    planned = plan_run(small_scenario(tmp_path, *SECRET, SAME_CHANNEL, "learning.rounds=4"), "ota_fd")
    channel = np.array([1e-5, 2e-5, 1e-5 + 1e-5j])
    release = planned.uplink.release(planned.design(channel), channel, 1)
    binding = np.sqrt(release.cost("device", "fleet_noise").sum(axis=1))
    # Not all devices are at their limit in this release: raise all of them to it.
    limit = planned.fleet.mu / 2
    assert (grid_index(binding) <= grid_index(limit)).all()
    raised = Release(1, release.weights * (limit / binding)[:, None], release.sensitivity, release.counted_noise_var)
    ledger = ledger_of(planned)
    for _ in range(4):
        ledger.charge(raised)
    with pytest.raises(BudgetExceeded, match="above its target 8 at δ"):
        ledger.charge(raised)
    stronger = Release(1, 1.3 * raised.weights, raised.sensitivity, raised.counted_noise_var)
    fresh = ledger_of(planned)
    fresh.charge(stronger)  # rounds of a higher cost are allowed, but fewer of them
    with pytest.raises(BudgetExceeded):
        fresh.charge(stronger)


def test_a_run_that_continues_an_earlier_ledger_stays_within_the_target(tmp_path):
    scenario = small_scenario(tmp_path, *SECRET, "privacy.epsilon=12")
    ad.run(small_scenario(tmp_path, "privacy.epsilon=4"), "ota_fd", out=tmp_path / "before")
    ad.run(scenario, "ota_fd", out=tmp_path / "run", ledger=tmp_path / "before")
    made = certify(tmp_path / "run")
    assert max(account.spent for account in made.devices) <= 12 * (1 + 1e-8)
    assert made.num_earlier == 6
    again = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert again.epsilon().max() == pytest.approx(max(account.spent for account in made.devices))
    alone = SubsampledGaussian(0.5, "orthogonal").largest_round_mu(6, np.full(3, 12.0), again.header.delta, np.zeros(3))
    assert (again.header.mu < alone * np.sqrt(6)).all()


def test_the_ledger_stops_a_plan_that_does_not_know_of_an_earlier_run(tmp_path):
    """The plan has the whole budget, and the ledger also counts an earlier run of the same devices."""
    scenario = small_scenario(tmp_path, *SECRET, SAME_CHANNEL)
    ad.run(small_scenario(tmp_path, SAME_CHANNEL), "ota_fd", out=tmp_path / "before")
    planned = plan_run(scenario, "ota_fd")
    header = ledger_header(planned, "ota_fd", "private")
    ledger = Ledger.begin(header, tmp_path / "late.jsonl", tmp_path / "before" / "ledger.jsonl")
    channel = np.array([1e-5, 2e-5, 1e-5 + 1e-5j])

    def play_all():
        for index in range(1, planned.num_rounds + 1):
            ledger.charge(planned.uplink.release(planned.design(channel), channel, index))

    with pytest.raises(BudgetExceeded):
        play_all()
    assert (ledger.epsilon() <= 8 * (1 + 1e-8)).all()


def test_a_delta_below_the_accounting_precision_is_refused(tmp_path):
    for accountant in ("exact", "paper"):
        changes = (*SECRET, "privacy.delta=1e-20", f"privacy.accountant={accountant}")
        with pytest.raises(InputError, match="at least") as refused:
            plan_run(small_scenario(tmp_path, *changes), "ota_fd")
        assert refused.value.field == "privacy.delta"


def test_a_plan_predicts_the_epsilon_of_rounds_that_differ():
    """Receiver noise and fading: the power of a round, and so its cost, depend on the channel."""
    planned = plan_run(ad.load("quick", [*SECRET, "privacy.trust=receiver_noise", "learning.rounds=30"]), "ota_fd")
    ledger, channels = ledger_of(planned), planning_draws(planned.scenario)
    for index, channel in enumerate(channels[:30], 1):
        ledger.charge(planned.uplink.release(planned.design(channel, index), channel, index))
    np.testing.assert_allclose(planned.epsilon_by_model["device"], ledger.epsilon(), rtol=1e-6)
    costs = [release.cost("device", "receiver_noise").sum(axis=1) for release in ledger.releases]
    assert np.ptp(costs, axis=0).min() > 0.1 * np.max(costs), "the channel must limit some rounds"


def test_an_exhausted_budget_is_reported(tmp_path):
    ad.run(small_scenario(tmp_path, *SECRET), "ota_fd", out=tmp_path / "before")
    # Rounds of earlier runs are counted without amplification.
    with pytest.raises(BudgetExceeded, match="has spent its ε = 9"):
        ad.run(small_scenario(tmp_path, *SECRET, "privacy.epsilon=9"), "ota_fd", ledger=tmp_path / "before")


@pytest.mark.parametrize(("scheme", "most"), [("ota_fl", 1.001), ("ota_fd", 1.3)])
def test_a_second_opinion_by_googles_accountant(tmp_path, scheme, most):
    """Its Poisson-sampled event under the replace-one relation: equal for gradients, an upper bound for class means."""
    ad.run(small_scenario(tmp_path, "privacy.epsilon=1"), scheme, out=tmp_path / "before")
    out = tmp_path / "run"
    ad.run(small_scenario(tmp_path, *SECRET), scheme, out=out, ledger=tmp_path / "before")
    said = opinion_in_words(out)
    ours, theirs = (float(said.split(before)[1].split(" by ")[0]) for before in ("ε = ", "ledger, "))
    assert 0.98 < theirs / ours < most
    assert ("no entry below zero" in said) == (scheme == "ota_fd")


def test_the_amplification_comparison_of_a_plan():
    planned = plan_run(ad.load("quick", [*SECRET, "learning.rounds=60"]), "ota_fd")
    found = planned.amplification
    assert (
        found.effective_noise_of_all
        == plan_run(ad.load("quick", ["learning.rounds=60"]), "ota_fd").forecast.effective_noise
    )
    known = plan_run(ad.load("quick", [SECRET[0], "learning.rounds=60"]), "ota_fd")
    assert found.effective_noise_if_seen == known.forecast.effective_noise
    assert 0.9 < planned.forecast.effective_noise / found.effective_noise_of_all < 1.3
    assert planned.forecast.effective_noise < 0.7 * found.effective_noise_if_seen
    rows = dict(summary_rows(planned))
    assert "secret from the server" in rows["Participation"]
    assert "times the noise" in rows["  vs. known sampling"]
    assert Plan.from_dict(planned.to_dict()).amplification == found
    assert Plan.from_dict(planned.to_dict()).fleet.mu == pytest.approx(planned.fleet.mu)


def test_optimal_rounds_agree_with_the_mu_that_they_grant():
    planned = plan(ad.load("quick", [*SECRET, "learning.rounds=optimal"]))
    again = plan(ad.load("quick", [*SECRET, f"learning.rounds={planned.num_rounds}"]))
    np.testing.assert_array_equal(planned.fleet.mu, again.fleet.mu)
    assert abs(again.rounds.exact - planned.num_rounds) <= 2


class TestThePublishedForm:
    def test_the_exact_ledger_stops_a_plan_of_the_published_form(self, tmp_path):
        weak = ["privacy.epsilon=20", "fleet.participation=0.9", "privacy.trust=own_noise", "learning.rounds=9"]
        scenario = small_scenario(tmp_path, *SECRET, *weak, "privacy.accountant=paper", SAME_CHANNEL)
        planned = plan_run(scenario, "ota_fl")
        assert any("The published form amplifies all rounds at once" in line for line in planned.warnings)
        record = ad.run(scenario, "ota_fl", out=tmp_path / "run")
        assert len(record.rounds) < 9
        assert record.summary["epsilon_spent"] <= 20
        assert planned.epsilon_by_model["device"].max() > 20

    def test_it_does_not_apply_to_few_devices(self, tmp_path):
        scenario = small_scenario(tmp_path, *SECRET, "privacy.accountant=paper")
        with pytest.raises(InputError, match="κ = pM"):
            plan_run(scenario, "ota_fd")
        rows = dict(summary_rows(plan_run(small_scenario(tmp_path, *SECRET), "ota_fd")))
        assert "does not apply" in rows["  published bound"]


@pytest.mark.parametrize(
    ("scheme", "accountant", "trust"),
    [
        ("ota_fd", "exact", "receiver_noise"),
        ("ota_fd", "paper", "own_noise"),
        ("ota_fl", "exact", "own_noise"),
        ("ota_fl", "paper", "fleet_noise"),
    ],
)
def test_without_privacy_targets_no_noise_is_required(tmp_path, scheme, accountant, trust):
    """ε = ∞, with too few devices for the published form: it then applies without any noise."""
    changes = ["privacy.epsilon=inf", f"privacy.trust={trust}", f"privacy.accountant={accountant}"]
    planned = plan_run(small_scenario(tmp_path, *SECRET, *changes), scheme)
    assert np.isinf(planned.fleet.mu).all()
    assert not planned.required_noise_var().any()
    assert planned.forecast.effective_noise == pytest.approx(planned.amplification.published_noise)
    assert planned.amplification.published_excess == 0
    assert Plan.from_dict(planned.to_dict()).to_dict() == planned.to_dict()
    # Nor does it matter what earlier runs have spent.
    spent = np.array([0.0, 1.0, np.inf])
    again = fleet_for_rounds(planned.scenario, planned.uplink.payload.neighbours, 6, EarlierRuns(spent))
    assert np.isinf(again.mu).all()


def test_a_device_without_a_target_leaves_the_others_theirs(tmp_path):
    mixed = [*SECRET, "privacy.epsilon={values=[8, inf, 8]}"]
    planned = plan_run(small_scenario(tmp_path, *mixed), "ota_fd")
    same = plan_run(small_scenario(tmp_path, *SECRET), "ota_fd")
    assert np.isinf(planned.fleet.mu).tolist() == [False, True, False]
    assert planned.fleet.mu[[0, 2]] == pytest.approx(same.fleet.mu[[0, 2]])
    assert not planned.required_noise_var()[1].any()
    assert (planned.epsilon_by_model["device"][[0, 2]] <= 8 * (1 + 1e-8)).all()
    # κ of the published form is still too small for the devices with a target.
    assert np.isinf(planned.amplification.published_noise)
    with pytest.raises(InputError, match="κ = pM"):
        plan_run(small_scenario(tmp_path, *mixed, "privacy.accountant=paper"), "ota_fd")


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("fleet.participation_hidden", ["fleet.participation_hidden=true"]),
        ("privacy.sensitivity", [*SECRET, "privacy.sensitivity=trajectory"]),
        ("privacy.carry_over", [*SECRET, "privacy.carry_over=true"]),
        ("privacy.noise", [*SECRET, "privacy.noise=secure"]),
        ("fleet.participation", [*SECRET, "air.medium=secure_sum"]),
        ("fleet.participation", [*SECRET, "radio.antennas=2"]),
    ],
)
def test_unsupported_combinations_are_refused(field, changes):
    with pytest.raises(InputError) as refused:
        ad.load("quick", changes)
    assert refused.value.field == field


def test_schemes_adapt_a_scenario_with_secret_participation():
    def adapted(name):
        return as_run_by(load_scheme(name), ad.load("quick", list(SECRET)))

    assert not any(adapted(name).fleet.participation_hidden for name in ("fedsgd", "fd_error_free", "local_only"))
    assert adapted("airdistill").fleet.participation_hidden
    assert not adapted("airdistill").privacy.carry_over


def test_attacks_on_secret_participation_are_refused(tmp_path):
    """The records of a run are audited all the same: tests/audit/test_recorded.py."""
    ad.run(small_scenario(tmp_path, *SECRET), "ota_fd", out=tmp_path / "run")
    with pytest.raises(InputError, match="participation_hidden"):
        ad.audit_run(tmp_path / "run", ad.AuditOptions(parts=("exact",)))
