import itertools
import math

import numpy as np
import pytest
from random_releases import TERMS, header, random_release

from airdistill.privacy.certificate import certificate_of
from airdistill.privacy.gaussian import gaussian_epsilon
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.release import Release
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.privacy.targets import target_mu
from airdistill.privacy.trust import TRUST_MODELS

COUNTS = np.array([[30.0, 10.0], [20.0, 40.0]])


def knowledge_release(noise, counts=COUNTS):
    """One round of two devices with two classes, by the table of sensitivity models; c is equal for all devices."""
    weights = counts / counts.sum(axis=0)
    root = math.sqrt(2)
    sensitivity = {
        "paper": np.broadcast_to(root / counts.sum(axis=1, keepdims=True), counts.shape),
        "class_mean": root / counts,
        "trajectory": np.minimum(root, root / counts + 0.3),
        "device": np.full(counts.shape, root),
    }
    return Release(1, weights, sensitivity, {trust: np.full(counts.shape, noise) for trust in TRUST_MODELS})


def certified(variance=1.0, asked=1.0, audit=None, releases=None, **changes):
    accountant, kind = changes.get("accountant", "exact"), changes.get("noise", "seeded")
    epsilon, delta = np.full(2, asked), np.full(2, 1e-5)
    budget = target_mu(epsilon, delta, accountant, kind)
    terms = header(budget, 2, 2, epsilon=epsilon, **({"enforced": False} | changes))
    ledger = Ledger(terms)
    for release in releases if releases is not None else [knowledge_release(variance)]:
        ledger.charge(release)
    return certificate_of(ledger, audit)


def test_epsilon_of_every_model_by_hand():
    certificate = certified(0.5)
    weights = COUNTS / COUNTS.sum(axis=0)
    root = math.sqrt(2)
    for i, account in enumerate(certificate.devices):
        # One record: its costliest class. A device: all classes.
        mu = {
            "paper": max(weights[i]) * root / COUNTS[i].sum() / math.sqrt(0.5),
            "class_mean": root / COUNTS.sum(axis=0).min() / math.sqrt(0.5),
            "trajectory": math.hypot(*(weights[i] * np.minimum(root, root / COUNTS[i] + 0.3))) / math.sqrt(0.5),
            "device": math.hypot(*(weights[i] * root)) / math.sqrt(0.5),
        }
        for model, trust in itertools.product(SENSITIVITY_MODELS, TRUST_MODELS):
            assert account.by_model[model][trust] == pytest.approx(gaussian_epsilon(mu[model], 1e-5), rel=1e-9)
        # Theorem 2 with Lemma 1: ε = μ√(2 ln(1/δ)).
        assert account.paper_formula == pytest.approx(mu["paper"] * math.sqrt(2 * math.log(1e5)), rel=1e-12)
        assert account.spent == account.by_model["device"]["fleet_noise"]


def test_holds_without_assumptions_needs_own_secure_noise_and_the_device_model():
    certificate = certified(100.0, sensitivity="device", trust="own_noise", noise="secure")
    assert certificate.verdict_in_words == "holds"
    assert certificate.reasons == ()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"trust": "own_noise"}, []),
        ({"trust": "fleet_noise"}, ["honest fleet", "exact channels"]),
        ({"trust": "receiver_noise"}, ["receiver noise", "exact channels"]),
        ({"trust": "fleet_noise", "noise": "secure"}, ["honest fleet", "exact channels"]),
        ({"sensitivity": "class_mean", "trust": "own_noise", "noise": "secure"}, ["static model"]),
        (
            {"sensitivity": "trajectory", "trust": "own_noise", "noise": "secure"},
            ["Lipschitz constants", "bounded gradients"],
        ),
        (
            {"sensitivity": "paper", "trust": "own_noise", "noise": "secure", "payload": "gradient"},
            ["separate samples"],
        ),
        ({"trust": "fleet_noise", "noise": "secure", "terms": TERMS | {"uplink": "orthogonal_knowledge"}}, []),
    ],
)
def test_the_verdict_names_the_assumptions_that_can_be_false(changes, named):
    certificate = certified(1e4, **changes)
    under = f" under assumptions ({', '.join(named)})" if named else ""
    if changes.get("noise") == "secure":
        assert certificate.verdict_in_words == f"holds{under}"
    else:
        assert certificate.verdict == "simulation"
        assert certificate.verdict_in_words == f"simulation: protects no one; with secret noise it would hold{under}"
    declared = [each.name for each in certificate.assumptions if each.declared]
    assert declared == ["public counts and batch order", "public pilot", "no other runs"]


@pytest.mark.parametrize(
    ("source", "words"),
    [("declared", "taken to be public"), ("synthetic", "synthetic data"), ("public", "declared public")],
)
def test_a_pilot_without_private_data_is_a_declared_assumption(source, words):
    constants = TERMS["constants"] | {"source": source}
    terms = {"trust": "own_noise", "noise": "secure", "terms": TERMS | {"constants": constants}}
    certificate = certified(1e4, **terms)
    assert certificate.verdict == "holds"
    assert words in next(each.sentence for each in certificate.assumptions if each.name == "public pilot")


def test_a_pilot_on_private_data_never_holds_without_assumptions():
    constants = TERMS["constants"] | {"source": "private"}
    terms = {"trust": "own_noise", "noise": "secure", "terms": TERMS | {"constants": constants}}
    certificate = certified(1e4, **terms)
    assert certificate.verdict_in_words == "holds under assumptions (harmless pilot)"
    assert any("pilot was not private" in reason for reason in certificate.reasons)
    assert any("not covered by the guarantee" in each.sentence for each in certificate.assumptions)
    assert not any("pilot" in reason for reason in certified(1e4, trust="own_noise", noise="secure").reasons)


@pytest.mark.parametrize("model", ["paper", "class_mean"])
@pytest.mark.parametrize("trust", TRUST_MODELS)
def test_paper_and_class_mean_never_hold_without_assumptions(model, trust):
    for noise in (1e-4, 1.0, 1e8):
        assert certified(noise, sensitivity=model, trust=trust).verdict != "holds"
    nothing = certified(releases=[], sensitivity=model, trust=trust)
    assert nothing.verdict_in_words == "holds"  # of no release at all
    assert nothing.reasons == ("Nothing was released.",)


def test_lemma_1_is_judged_by_what_one_record_can_move():
    """Noise that is enough for √2/B_i but not for √2/B_i^k: the smallest counterexample, two classes."""
    mu = target_mu(1.0, 1e-5, "exact")[0]
    weights = COUNTS / COUNTS.sum(axis=0)
    enough = max((weights[i].max() * math.sqrt(2) / COUNTS[i].sum() / mu) ** 2 for i in range(2))
    certificate = certified(enough, sensitivity="paper", trust="own_noise", noise="seeded", enforced=True)
    assert max(account.spent for account in certificate.devices) <= 1.0
    assert certificate.verdict == "does not hold"
    assert "Lemma 1 is not a valid bound" in certificate.reasons[0]
    # With one class a device Lemma 1 and the class mean are the same bound.
    single = knowledge_release((0.5 * math.sqrt(2) / 30 / mu) ** 2, np.array([[30.0], [30.0]]))
    terms = header(mu, 2, 1, epsilon=np.full(2, 1.0), sensitivity="paper", trust="own_noise", enforced=False)
    ledger = Ledger(terms)
    ledger.charge(single)
    assert certificate_of(ledger).verdict == "simulation"


def test_the_papers_accountant_above_epsilon_7_does_not_hold():
    """It allows so large a μ that the run stays within its own budget and violates its guarantee."""
    for asked, expected in [(1.0, "simulation"), (30.0, "does not hold")]:
        mu = target_mu(asked, 1e-5, "paper")[0]
        weights = COUNTS / COUNTS.sum(axis=0)
        enough = max((np.hypot(*(weights[i] * math.sqrt(2))) / mu) ** 2 for i in range(2))
        certificate = certified(enough, asked, accountant="paper", trust="own_noise", enforced=True)
        assert certificate.verdict == expected
    assert "the paper's accountant adds too little noise" in certificate.reasons[0]


def test_a_non_private_release_does_not_hold():
    certificate = certified(0.0, terms=TERMS | {"releases": "bare"})
    assert certificate.verdict == "does not hold"
    assert certificate.reasons == ("Numbers were released without noise: nothing protects them.",)


def test_an_audit_violation_overrules_the_ledger():
    audit = {"violations": ["a shift of 26 times the bound"]}
    certificate = certified(1e4, audit=audit)
    assert certificate.verdict == "does not hold"
    assert certificate.reasons[0] == "An audit found: a shift of 26 times the bound"
    assert certified(1e4, audit={"violations": []}).verdict == "simulation"


def test_devices_without_a_target_are_left_out():
    assert certified(1.0, math.inf).verdict == "nothing asked"
    stored = certified(1.0, math.inf).to_dict()
    assert stored["devices"][0]["asked"]["epsilon"] is None


def test_the_certificate_states_that_seeded_noise_does_not_protect():
    assert certified(1e4).reasons == ("The noise of this run is seeded: it is a simulation and protects no device.",)


def test_relabelling_is_counted_and_stated():
    plain, relabelled = (certified(1e4, sensitivity="class_mean", relabel=relabel) for relabel in (False, True))
    assert relabelled.devices[0].spent > plain.devices[0].spent
    assert any("change its label" in line for line in relabelled.statement)


def test_a_certificate_covers_the_releases_of_all_runs(tmp_path):
    first = Ledger.begin(header(), tmp_path / "first.jsonl")
    first.charge(random_release(1))
    second = Ledger.begin(header(name="second"), tmp_path / "second.jsonl", tmp_path / "first.jsonl")
    before = certificate_of(second)
    second.charge(random_release(1, seed=3))
    after = certificate_of(second)
    assert all(old.spent < new.spent for old, new in zip(before.devices, after.devices, strict=True))
    assert before.devices[0].spent == pytest.approx(first.epsilon()[0], rel=1e-12)


def test_no_release_holds_without_any_trust():
    assert certified(releases=[], sensitivity="device", trust="fleet_noise").verdict_in_words == "holds"


def test_assumptions_of_earlier_runs_are_kept(tmp_path):
    """Over-the-air knowledge under secure fleet noise, then TDMA, in which a device relies on its own noise."""
    alone = TERMS | {"uplink": "orthogonal_knowledge"}
    first = Ledger.begin(header(noise="secure"), tmp_path / "first.jsonl")
    first.charge(random_release(1, noise=100.0))
    assert certificate_of(first).verdict_in_words == "holds under assumptions (honest fleet, exact channels)"
    second = Ledger.begin(header(noise="secure", terms=alone), tmp_path / "second.jsonl", tmp_path / "first.jsonl")
    second.charge(random_release(1, seed=1, noise=100.0))
    assert certificate_of(second).verdict_in_words == "holds under assumptions (honest fleet, exact channels)"
    fresh = Ledger(header(noise="secure", terms=alone))
    fresh.charge(random_release(1, noise=100.0))
    assert certificate_of(fresh).verdict_in_words == "holds"


def test_guarantees_of_earlier_runs_and_continuing_runs_are_named(tmp_path):
    first = Ledger.begin(header(epsilon=np.full(3, 0.5)), tmp_path / "first.jsonl")
    first.charge(random_release(1))
    second = Ledger.begin(header(name="second"), tmp_path / "second.jsonl", tmp_path / "first.jsonl")
    second.charge(random_release(1, seed=3))
    assert any("test guaranteed device" in reason for reason in certificate_of(second).reasons)
    closed = certificate_of(Ledger.read(tmp_path / "first.jsonl"))
    assert any("Another run continues this ledger" in reason for reason in closed.reasons)


def test_lemma_1_is_judged_by_the_class_mean_bound_if_that_holds():
    statement = " ".join(certified(1e8, sensitivity="paper", trust="own_noise").statement)
    assert "the verdict uses √2/B_i^k" in statement
    assert "No guarantee follows" not in statement
