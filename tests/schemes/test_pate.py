"""Runs of pate: charged before devices train, answered once, resumed, stated in the certificate."""

import json
from dataclasses import replace

import numpy as np
import pytest
from in_process import runs_in_this_process
from small_worlds import small_scenario, write_dataset

import airdistill as ad
from airdistill.audit import AuditOptions
from airdistill.audit.auditing import audit, audit_run
from airdistill.errors import AirDistillError, InputError
from airdistill.flower.endpoint import EndpointError, check_playable
from airdistill.planning.plan import Plan
from airdistill.privacy.ledger import BudgetExceeded, Ledger
from airdistill.privacy.pate import data_dependent_rdp, epsilon_of_rdp
from airdistill.privacy.signature import NotVerified, check_against_ledger
from airdistill.privacy.trust import TRUST_MODELS
from airdistill.radio.charged_round import charge_round
from airdistill.radio.trusted_aggregator import charge_votes, facts_of_votes
from airdistill.report.comparison import notes_of
from airdistill.runs.accounts import ledger_header
from airdistill.runs.comparison import compare
from airdistill.runs.options import RunOptions
from airdistill.schemes.registry import load_scheme, plan_run

OPTIONS = RunOptions(threads=1, eval_every=1)
VOTING = (
    "fleet.devices=12", "public.samples=60", "public.distill_epochs=1", "learning.local_epochs=3",
    "learning.batch_size=6",
)  # fmt: skip


@pytest.fixture(autouse=True)
def blobs(tmp_path):
    write_dataset(tmp_path / "blobs.npz", num_train=300, num_test=300)


def scenario_in(folder, *changes):
    return small_scenario(folder, *VOTING, *changes)


def played(folder, *changes, name="run", **how):
    return ad.run(scenario_in(folder, *changes), "pate", out=folder / name, options=OPTIONS, **how)


def plan_of(record):
    return Plan.from_dict(json.loads((record.folder / "plan.json").read_text()))


def charged(folder, *changes):
    plan = plan_run(scenario_in(folder, *changes), "pate")
    ledger = Ledger(ledger_header(plan, "pate", "private"))
    return plan, ledger, charge_votes(plan, ledger, 1)


def votes_of(plan, labels):
    """Every device's votes `[device, 1, query · class]` from labels `[device, query]`."""
    votes = np.eye(plan.fleet.num_classes)[labels]
    return votes.reshape(len(labels), 1, -1)


def test_a_run_spends_its_target_and_keeps_what_was_answered(tmp_path):
    record = played(tmp_path)
    line, settings = record.rounds[0], plan_of(record).uplink.payload.settings
    ledger = Ledger.read(record.folder / "ledger.jsonl")
    assert ledger.num_releases == 1
    assert ledger.epsilon() == pytest.approx(np.full(12, 8.0))
    assert line["epsilon_spent"] == pytest.approx(8.0)
    assert 0 < line["pate"]["answered"] <= settings.most_answers
    assert line["pate"]["queries"] == settings.num_queries
    assert line["pate"]["data_dependent_epsilon"] > 0
    assert line["uplink_seconds"] == pytest.approx(12 * settings.num_queries * 2 * 3.6e-6)
    assert 0 <= line["labels_right"]["received"] <= 1


def test_devices_learn_all_classes_or_take_the_model_over(tmp_path):
    changes = ("privacy.epsilon=inf", "learning.model=mlp-32", "public.samples=240")
    taught, taken = (
        played(tmp_path, *changes, f"public.broadcast={what}", name=what) for what in ("predictions", "model")
    )
    assert taken.accuracy["worst"] == taken.accuracy["best"]
    assert taught.accuracy["worst"] < taught.accuracy["best"]
    assert min(taught.accuracy["mean"], taken.accuracy["mean"]) > 0.6


def test_the_aggregator_answers_what_most_devices_say(tmp_path):
    plan, _, votes = charged(tmp_path, "privacy.epsilon=inf", "public.vote_threshold=0.7")
    labels = np.tile(np.arange(60) % 3, (12, 1))
    labels[6:, :20] = (labels[6:, :20] + 1) % 3  # half of the devices disagree on the first 20
    rows = votes.transmit(votes_of(plan, labels)).received.reshape(60, 3)
    assert np.isnan(rows[:20]).all()
    assert (rows[20:].argmax(axis=1) == labels[0, 20:]).all()


def test_votes_are_answered_once_and_are_votes(tmp_path):
    plan, _, votes = charged(tmp_path)
    num_queries = plan.uplink.payload.num_samples
    good = votes_of(plan, np.zeros((12, num_queries), dtype=int))
    wrong = {"halves": good / 2, "two votes on a sample": np.ones_like(good), "nothing like votes": -good}
    for name, vectors in wrong.items():
        with pytest.raises(AirDistillError, match="round 1"):
            votes.transmit(vectors)
        assert name  # refused, and the round can still be answered
    votes.transmit(good)
    with pytest.raises(AirDistillError, match="transmitted already"):
        votes.transmit(good)


def test_the_same_entry_draws_the_same_noise_and_another_does_not(tmp_path):
    plan, _, first = charged(tmp_path)
    labels = np.random.default_rng(0).integers(0, 3, (12, plan.uplink.payload.num_samples))
    votes, received = votes_of(plan, labels), []
    for each in (first, charged(tmp_path)[2], charged(tmp_path, "seed=5")[2]):
        received.append(each.transmit(votes).received)
    assert np.array_equal(received[0], received[1], equal_nan=True)
    assert not np.array_equal(received[0], received[2], equal_nan=True)


def test_votes_beyond_the_budget_are_not_answered(tmp_path):
    plan = plan_run(scenario_in(tmp_path), "pate")
    header = ledger_header(plan, "pate", "private")
    with pytest.raises(BudgetExceeded, match="not transmitted"):
        charge_votes(plan, Ledger(replace(header, mu=header.mu * 0.999)), 1)


def test_a_second_run_spends_what_the_first_has_left(tmp_path):
    first = played(tmp_path)
    with pytest.raises(BudgetExceeded):
        played(tmp_path, "privacy.epsilon=7", name="second", ledger=first.folder)
    more = played(tmp_path, "privacy.epsilon=12", name="third", ledger=first.folder)
    assert Ledger.read(more.folder / "ledger.jsonl").epsilon() == pytest.approx(np.full(12, 12.0))


def test_a_later_run_on_the_air_counts_votes_as_unprotected(tmp_path):
    """Whoever does not trust the aggregator has no budget left."""
    first = played(tmp_path)
    with pytest.raises(BudgetExceeded):
        ad.run(scenario_in(tmp_path, "privacy.epsilon=100"), "ota_proxy_fd", rounds=1, out=tmp_path / "air",
               options=OPTIONS, ledger=first.folder)  # fmt: skip


@pytest.mark.parametrize("killed_in", ["round", "summary"])
def test_a_run_that_was_stopped_resumes_bit_identically(tmp_path, killed_in, monkeypatch):
    whole = played(tmp_path, name="whole")

    def kill(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        if killed_in == "round":
            patch.setattr("airdistill.schemes.receivers.AnswerReceiver.estimate", kill)
        with pytest.raises(RuntimeError, match="killed"):
            played(tmp_path, name="cut", **({"on_round": kill} if killed_in == "summary" else {}))
    ad.resume(tmp_path / "cut")
    for name in ("plan.json", "rounds.jsonl", "ledger.jsonl", "summary.json", "certificate.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (whole.folder / name).read_bytes(), name


def test_the_certificate_names_the_aggregator_and_withholds_what_depends_on_votes(tmp_path):
    record = played(tmp_path)
    certificate = ad.certify(record.folder)
    assert certificate.fallible == ("trusted aggregator",)
    assert certificate.verdict == "simulation"
    assert certificate.worst("device", "trusted_aggregator") == pytest.approx(8.0)
    assert all(np.isinf(certificate.worst("device", trust)) for trust in TRUST_MODELS)
    assert any("A data-dependent ε would be smaller" in line for line in certificate.statement)
    assert "data_dependent" not in json.dumps(certificate.to_dict())
    said = next(each.sentence for each in certificate.assumptions if each.name == "trusted aggregator")
    assert "holds if the aggregator is trusted" in said


def test_a_published_data_dependent_epsilon_is_stated_and_guarantees_nothing(tmp_path):
    record = played(tmp_path, "public.data_dependent=published")
    certificate, found = ad.certify(record.folder), record.rounds[0]["pate"]["data_dependent_epsilon"]
    assert certificate.to_dict()["data_dependent_epsilon"] == pytest.approx(found)
    assert any("was not sanitised: it is no guarantee" in line for line in certificate.statement)
    assert {account.evidence for account in certificate.devices} == {certificate.devices[0].evidence}
    assert certificate.devices[0].evidence == pytest.approx(8.0)


def test_a_comparison_says_who_is_trusted(tmp_path):
    schemes, out = ["pate", "local_only"], tmp_path / "compared"
    with runs_in_this_process():
        record = compare(scenario_in(tmp_path), schemes, out=out, options=OPTIONS)
    notes = notes_of(record)
    assert notes[-1].startswith("pate: The guarantee holds if the aggregator is trusted")
    assert sum("aggregator" in note for note in notes) == 1


def test_what_may_not_be_stated_is_not_verified(tmp_path):
    """A certificate follows from the ledger, with a published ε that the signature alone vouches for."""
    for name, states in (("published", True), ("withheld", False)):
        folder = played(tmp_path, f"public.data_dependent={name}", name=name).folder
        stored = {**ad.certify(folder, "2026-01-01").to_dict()}
        check_against_ledger(stored, folder)
        assert ("data_dependent_epsilon" in stored) == states
    with pytest.raises(NotVerified, match="data_dependent_epsilon"):
        check_against_ledger({**stored, "data_dependent_epsilon": 1.0}, folder)


def test_the_recorded_epsilon_is_that_of_the_votes(tmp_path):
    plan, _, votes = charged(tmp_path)
    settings = plan.uplink.payload.settings
    labels = np.random.default_rng(1).integers(0, 3, (12, settings.num_queries))
    reception, counts = votes.transmit(votes_of(plan, labels)), np.eye(3, dtype=int)[labels].sum(axis=0)
    facts = facts_of_votes(plan, reception.ideal, reception.received)
    assert facts["data_dependent_epsilon"] == epsilon_of_rdp(data_dependent_rdp(settings, counts), 1e-5)
    assert facts["answered"] == np.isfinite(reception.received.reshape(-1, 3)).all(axis=1).sum()


def test_secret_noise_holds_if_the_aggregator_is_trusted(tmp_path):
    pytest.importorskip("opendp")
    record = played(tmp_path, "privacy.noise=secure")
    assert ad.certify(record.folder).verdict_in_words == "holds under assumptions (trusted aggregator)"
    assert "data_dependent_epsilon" not in record.rounds[0]["pate"]  # its analysis is of continuous noise


def test_nothing_of_votes_goes_on_the_air(tmp_path):
    plan, ledger, _ = charged(tmp_path)
    with pytest.raises(AirDistillError, match="not over the air"):
        charge_round(plan, ledger, None, 1)
    record = played(tmp_path)
    found = audit_run(record.folder)  # its records, and no attack
    assert found.exact is found.empirical is None
    assert any("attacks follow signals on the air" in note for note in found.notes)
    with pytest.raises(InputError, match="attacks follow signals on the air"):
        audit(plan, load_scheme("pate"), AuditOptions(parts=("exact",)), OPTIONS)


def test_a_federation_refuses_votes():
    with pytest.raises((InputError, EndpointError)):
        check_playable(load_scheme("pate"), ad.load("quick", ["public.samples=10"]))
