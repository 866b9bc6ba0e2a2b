"""What a certificate says of simulations, of assumptions that are known to be false, and in its first line."""

import math

import numpy as np
import pytest
from random_releases import TERMS, header, random_release

from airdistill.privacy.certificate import certificate_of
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.release import Release
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.privacy.targets import target_mu
from airdistill.privacy.trust import TRUST_MODELS

SECURE_SUM = {"medium": {"devices": 3, "least_devices": 2}}


def certified(num_rounds=1, noise=1e4, audit=None, per_trust=None, **changes):
    """Three devices with random releases of so much noise; `per_trust` replaces what a trust model counts."""
    terms = TERMS | changes.pop("terms", {})
    ledger = Ledger(header(enforced=False, terms=terms, **changes))
    for round_index in range(1, num_rounds + 1):
        release = random_release(round_index, noise=noise)
        counted = dict(release.counted_noise_var) | (per_trust or {})
        ledger.charge(Release(round_index, release.weights, release.sensitivity, counted))
    return certificate_of(ledger, audit)


@pytest.mark.parametrize("terms", [{}, SECURE_SUM, {"medium": "radio"}])
@pytest.mark.parametrize("trust", ["fleet_noise", "own_noise"])
def test_seeded_noise_is_a_simulation_and_never_holds(trust, terms):
    certificate = certified(trust=trust, terms=terms)
    assert certificate.verdict == "simulation"
    assert certificate.verdict_in_words.startswith("simulation: protects no one; with secret noise it would hold")
    assert certificate.headline.startswith("Simulation: (ε")
    stored = certificate.to_dict()
    assert stored["simulation"] is True
    assert {device["verdict"] for device in stored["devices"]} == {"simulation"}
    assert "secret seed" not in certificate.fallible


def test_a_simulation_that_breaks_its_target_does_not_hold():
    certificate = certified(noise=1e-4)
    assert certificate.verdict == certificate.verdict_in_words == "does not hold"
    assert certificate.headline.startswith("Simulation: not guaranteed: (ε = 8.00, δ = 1e-5) for every one of 3")


def test_the_server_of_a_federation_has_the_seed():
    reasons = " ".join(certified(terms=SECURE_SUM).reasons)
    assert "The server has the seed, and can remove the noise of every device." in reasons
    assert "The server has the seed" not in " ".join(certified().reasons)


def test_noise_of_the_receiver_is_real_over_a_radio():
    """Devices add none: no seed protects anything. With noise of the devices, or as printed, a seed does."""
    none = {"fleet_noise": np.zeros((3, 4)), "own_noise": np.zeros((3, 4))}
    radio = {"trust": "receiver_noise", "terms": {"medium": "radio"}}
    assert certified(per_trust=none, **radio).verdict_in_words == (
        "holds under assumptions (receiver noise, exact channels)"
    )
    assert certified(**radio).verdict == "simulation"
    assert certified(per_trust=none, trust="receiver_noise").verdict == "simulation"
    printed = {"medium": "radio", "transceiver": "paper"}
    assert certified(per_trust=none, trust="receiver_noise", terms=printed).verdict == "simulation"


@pytest.mark.parametrize(
    ("trust", "noise", "reported", "verdict"),
    [
        ("own_noise", "seeded", True, "simulation"),
        ("own_noise", "secure", False, "holds"),
        ("fleet_noise", "seeded", True, "does not hold"),
        ("fleet_noise", "secure", True, "does not hold"),
    ],
)
def test_an_emulated_federation_says_that_devices_reported_their_losses(trust, noise, reported, verdict):
    certificate = certified(trust=trust, noise=1e4 if noise == "seeded" else 1e5, terms={"medium": "emulated"})
    if noise == "secure":
        ledger = Ledger(header(enforced=False, noise="secure", trust=trust, terms=TERMS | {"medium": "emulated"}))
        ledger.charge(random_release(1, noise=1e5))
        certificate = certificate_of(ledger)
    assert certificate.verdict == verdict
    assert any("reported the exact losses" in reason for reason in certificate.reasons) is reported


def test_what_a_server_saw_separately_stays_unprotected_in_a_run_that_continues(tmp_path):
    """A simulated run after an emulated federation: no other device's noise protected the earlier signals."""
    common = {"enforced": False, "noise": "secure", "trust": "fleet_noise"}
    first = Ledger.begin(header(**common, terms=TERMS | {"medium": "emulated"}), tmp_path / "first.jsonl")
    first.charge(random_release(1, noise=1e5))
    second = Ledger.begin(header(**common), tmp_path / "second.jsonl", tmp_path / "first.jsonl")
    second.charge(random_release(1, noise=1e5))
    assert certificate_of(second).verdict == "does not hold"


def mean_release(round_index, noise):
    """Class means of two devices with 30 and 10, and 20 and 40 samples."""
    counts = np.array([[30.0, 10.0], [20.0, 40.0]])
    sensitivity = {model: math.sqrt(2) / counts for model in SENSITIVITY_MODELS}
    sensitivity["device"] = np.full(counts.shape, math.sqrt(2))
    counted = {trust: np.full(counts.shape, noise) for trust in TRUST_MODELS}
    return Release(round_index, counts / counts.sum(axis=0), sensitivity, counted)


def means_certified(model, rounds, noise, kind="secure"):
    mu = target_mu(np.full(2, 1.0), np.full(2, 1e-5), "exact", kind)
    terms = header(mu, 2, 2, epsilon=np.full(2, 1.0), sensitivity=model, trust="own_noise", noise=kind, enforced=False)
    ledger = Ledger(terms)
    for round_index in rounds:
        ledger.charge(mean_release(round_index, noise))
    return certificate_of(ledger)


@pytest.mark.parametrize("model", ["paper", "class_mean"])
def test_class_mean_does_not_hold_for_a_model_that_was_trained_on_the_record(model):
    """Noise that is enough for one class mean, and not for a whole device: enough only while models are untrained."""
    untrained = means_certified(model, [1], noise=0.2)
    assert untrained.verdict_in_words == "holds under assumptions (static model)"
    for rounds in ([1, 2], [2]):
        trained = means_certified(model, rounds, noise=0.4)
        assert all(account.spent <= 1 for account in trained.devices)
        assert trained.verdict == "does not hold"
        assert "not trained on the record, and this run's models were" in trained.reasons[0]
        assert "static model" not in trained.fallible
        assert trained.headline.startswith("Not guaranteed: (ε = 1.00, δ = 1e-5)")


def test_noise_for_whole_devices_protects_a_record_of_a_trained_model():
    """What hides a whole device hides each of its records: the guarantee needs no static model, and states that ε."""
    certificate = means_certified("class_mean", [1, 2], noise=1e3)
    assert certificate.verdict_in_words == "holds"
    worst = max(account.by_model["device"]["own_noise"] for account in certificate.devices)
    assert max(account.evidence for account in certificate.devices) == worst
    assert worst > max(account.spent for account in certificate.devices)
    assert any("The verdict uses the bound for whole devices" in line for line in certificate.statement)


def test_the_first_line_has_the_worst_numbers_and_their_range():
    same = certified(noise=1e4, epsilon=np.full(3, 9.0))
    assert same.headline.endswith("whole-device, trust fleet_noise")
    ledger = Ledger(header(epsilon=np.array([1.0, 2.0, np.inf]), delta=np.array([1e-5, 1e-6, 1e-4]), enforced=False))
    ledger.charge(random_release(1, noise=1e-3))
    assert certificate_of(ledger).headline == (
        "Simulation: not guaranteed: (ε ≤ 2.00, δ ≤ 1e-5) for every one of 2 of 3 devices (ε from 1.00, δ from 1e-6), "
        "whole-device, trust fleet_noise"
    )
    record = certified(sensitivity="class_mean", trust="own_noise")
    assert record.headline.endswith("one record's features, trust own_noise")
    free = certified(epsilon=np.full(3, math.inf))
    assert free.headline == "No guarantee was asked for: 3 devices, whole-device, trust fleet_noise"


def test_what_exceeds_the_target_by_rounding_only_is_the_target():
    ledger = Ledger(header(epsilon=np.full(3, 8.0), enforced=False))
    ledger.charge(random_release(1))
    spent = ledger.epsilon()
    for factor, expected in [(1 + 1e-15, True), (1 + 1e-6, False)]:
        ledger.header = header(epsilon=spent / factor, enforced=False)
        for account in certificate_of(ledger).devices:
            assert (account.spent == account.epsilon_asked) is expected
            assert account.kept is expected


def test_a_certificate_says_which_runs_it_counts(tmp_path):
    alone = certified()
    scope = next(each for each in alone.assumptions if each.name == "no other runs")
    assert scope.declared
    assert scope.sentence.startswith("The releases of this run and of no other are counted.")
    assert "copy of this run's folder" in scope.sentence
    first = Ledger.begin(header(name="earlier"), tmp_path / "first.jsonl")
    first.charge(random_release(1))
    second = Ledger.begin(header(name="second"), tmp_path / "second.jsonl", tmp_path / "first.jsonl")
    second.charge(random_release(1, seed=3))
    certificate = certificate_of(second)
    scope = next(each for each in certificate.assumptions if each.name == "no other runs")
    assert "the earlier runs in its ledger (earlier)" in scope.sentence
    assert [run["name"] for run in certificate.to_dict()["runs"]] == ["earlier", "second"]


def csi_terms(quantile=0.999, reserved=0.0):
    return {"csi_error_limit": 0.1, "csi_error": {"quantile": quantile, "reserved_delta": reserved}}


def test_channel_errors_beyond_their_limit_add_to_delta():
    """3 devices × 4 rounds × (1 − 0.999)."""
    certificate = certified(4, terms=csi_terms())
    for account in certificate.devices:
        assert account.delta_in_all == pytest.approx(1e-5 + 12 * 0.001, rel=1e-9)
    assert certificate.verdict == "does not hold"
    assert any("Channel errors beyond their limit add their probability to δ" in line for line in certificate.reasons)
    assert certificate.to_dict()["devices"][0]["guaranteed"]["delta"] == certificate.devices[0].delta_in_all
    assert certified(400, terms=csi_terms()).devices[0].delta_in_all == 1.0


def test_a_reserved_part_of_delta_covers_channel_errors():
    terms = csi_terms(1 - 1e-9, reserved=2e-8)
    certificate = certified(4, terms=terms)
    assert certificate.verdict_in_words.endswith("would hold under assumptions (honest fleet, bounded channel error)")
    assert certificate.devices[0].delta == pytest.approx(1e-5 + 2e-8, rel=1e-12)
    assert certificate.devices[0].delta_in_all == pytest.approx(1e-5 + 12e-9, rel=1e-9)
    assert "δ = 1.01e-5" in certificate.headline
    sentence = next(each.sentence for each in certificate.assumptions if each.name == "bounded channel error")
    assert "at most 1.2e-8, which is part of the stated δ" in sentence
    assert sentence.endswith("The limit is the 0.999999999 quantile of the error of one device in one round.")


@pytest.mark.parametrize("reserved", [2e-9, 1.7e-9, 3.3e-7])
def test_a_delta_that_was_reserved_in_full_is_the_target_again(reserved):
    """Subtracting and adding a float leaves a rounding error: 1.0000000000000001e-05 must not become 1.01e-5."""
    terms = csi_terms(1 - reserved / 12, reserved)
    certificate = certified(4, terms=terms, delta=np.full(3, 1e-5) - reserved)
    assert "δ = 1e-5)" in certificate.headline
    assert all(account.delta == account.delta_in_all == 1e-5 for account in certificate.devices)


def test_own_noise_needs_no_channel_estimates_and_old_ledgers_are_read():
    own = certified(4, trust="own_noise", terms=csi_terms())
    assert own.devices[0].delta_in_all == 1e-5
    old = certified(4, terms={"csi_error_limit": 0.1})
    assert old.devices[0].delta_in_all == 1e-5
    (sentence,) = [each.sentence for each in old.assumptions if each.name == "bounded channel error"]
    assert "does not record how probable larger errors are" in sentence
    assert "quantile" not in sentence


KEYED = (
    "It is keyed by scheme, scenario, data, earlier runs and the ledger's entry: no two entries of a ledger share "
    "noise."
)
UNKEYED = (
    "An earlier version began this run: its noise depends on seed, round and device alone, and another run with the "
    "same seed may have had the same noise."
)


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"noise_key": "0"}, KEYED),
        ({}, UNKEYED),
        ({"noise_key": "0", "medium": "emulated", "session": "1"}, "Copies of these folders that are run on other"),
        ({"noise_key": "0", **SECURE_SUM}, "another federation of this scenario has the same noise"),
    ],
)
def test_a_certificate_says_by_what_its_seeded_noise_differs_from_that_of_others(terms, said):
    (sentence,) = [line for line in certified(terms=terms).statement if "keyed by" in line or "depends on seed" in line]
    assert said in sentence
    assert ("scenario, data" in sentence) is (said == KEYED)
    ledger = Ledger(header(enforced=False, noise="secure", terms=TERMS | terms))
    ledger.charge(random_release(1, noise=1e5))
    assert not any("keyed by" in line for line in certificate_of(ledger).statement)
