"""Certificates of feature means: both guarantees side by side, chains that void one of them, and what is declared."""

import numpy as np
import pytest
from feature_worlds import DEVICES, WIDTH, epsilon_of_gaussian, plan_of, played

import airdistill as ad
from airdistill.privacy.certificate import certificate_of
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.sensitivity import feature_means_sensitivity


@pytest.mark.parametrize("counts", ["public", "private"])
@pytest.mark.parametrize(("model", "epsilon"), [("device", 8.0), ("class_mean", 1.0)])
def test_both_guarantees_are_certified_side_by_side(tmp_path, counts, model, epsilon):
    """ε of the largest shift over the counted noise; the shifts by the formulas of theory section 10."""
    record = played(tmp_path, "feature_means", f"privacy.sensitivity={model}", f"privacy.epsilon={epsilon}",
                    f"privacy.counts={counts}")  # fmt: skip
    plan, certificate = plan_of(record), ad.certify(record.folder)
    payload, held = plan.uplink.payload, plan.fleet.class_counts
    rho, rho_s, tau = payload.norm_bound, payload.sample_bound, payload.count_norm
    assert (tau > 0) == (counts == "private")
    shifts = {"device": np.full(DEVICES, np.sqrt(4 * rho**2 + 2 * tau**2))}
    least = np.where(held > 0, held, 10**9).min(axis=1) if tau == 0 else 1
    shifts["class_mean"] = np.minimum(2 * rho, 2 * rho_s / np.sqrt(least * held.sum(axis=1)))
    release = next(release for _, release in Ledger.read(record.folder / "ledger.jsonl").history())
    deviation = np.sqrt(release.counted_noise_var["fleet_noise"][:, 0])
    found = {name: max(epsilon_of_gaussian(mu, 1e-5) for mu in shift / DEVICES / deviation)
             for name, shift in shifts.items()}  # fmt: skip
    assert found[model] == pytest.approx(epsilon, rel=1e-6)
    stated = {"device": certificate.device_epsilon, "class_mean": certificate.record_epsilon}
    assert stated.pop(model) is None
    other = "class_mean" if model == "device" else "device"
    assert stated[other] == pytest.approx(found[other], rel=1e-6)
    whom = "one record of any device" if model == "device" else "the whole data of any device"
    assert certificate.statement[0].startswith(f"For {whom}")
    key = "record_epsilon" if model == "device" else "device_epsilon"
    assert certificate.to_dict()[key] == stated[other]


def test_votes_void_the_record_figure_and_the_certificate_says_so(tmp_path):
    played(tmp_path, "airdistill_features", "privacy.epsilon=20", name="first")
    before = certificate_of(Ledger.read(tmp_path / "first" / "ledger.jsonl"))
    assert before.record_epsilon < 20
    second = played(tmp_path, "airdistill_proxy", name="second", ledger=tmp_path / "first")
    after = ad.certify(second.folder)
    assert after.record_epsilon is None
    assert "record_epsilon" not in after.to_dict()
    assert "there is no separate figure for one record" in after.statement[0]


def test_more_feature_means_keep_the_record_figure(tmp_path):
    """Four times the whole-device μ² is four times that of a record."""
    first = played(tmp_path, "feature_means", "privacy.epsilon=20", name="first")
    before = certificate_of(Ledger.read(first.folder / "ledger.jsonl"))
    again = played(tmp_path, "airdistill_features", name="second", ledger=first.folder)
    assert 1.5 * before.record_epsilon < ad.certify(again.folder).record_epsilon < 20


def test_an_earlier_guarantee_for_devices_is_compared_with_what_devices_have_spent(tmp_path):
    """The last run protects records: what it costs whole devices breaks the first run's guarantee by far."""
    played(tmp_path, "feature_means", "privacy.epsilon=4", name="first")
    later = ("privacy.sensitivity=class_mean", "privacy.epsilon=8")
    second = played(tmp_path, "feature_means", *later, name="second", ledger=tmp_path / "first")
    certificate = ad.certify(second.folder)
    sentence = next(reason for reason in certificate.reasons if "guaranteed device" in reason)
    spent = certificate.worst("device", "fleet_noise")
    assert spent > 20
    assert float(sentence.rsplit(" ", 1)[1].rstrip(".")) == pytest.approx(spent, rel=0.01)


def test_the_header_states_the_norms_that_the_bound_rests_on(tmp_path):
    record = played(tmp_path, "feature_means", "public.sample_norm=2", "public.feature_norm=1.5")
    ledger = Ledger.read(record.folder / "ledger.jsonl")
    sizes = {"dimensions": WIDTH, "norm": 1.5, "sample_norm": 2.0, "count_norm": 0.0}
    assert ledger.header.terms["features"] == sizes
    release = next(release for _, release in ledger.history())
    expected = feature_means_sensitivity(plan_of(record).fleet.class_counts, "class_mean", 1.5, 2.0)
    assert release.sensitivity["class_mean"][:, 0] == pytest.approx(expected)


@pytest.mark.parametrize("scheme", ["airdistill", "feature_means"])
def test_counts_that_a_later_run_discloses_are_not_called_private(tmp_path, scheme):
    """The certificate of both said of the first that class counts are not public, and the second published them."""
    first = played(tmp_path, "feature_means", "privacy.counts=private", "privacy.epsilon=20", name="first")
    alone = certificate_of(Ledger.read(first.folder / "ledger.jsonl"))
    assert "Class counts are not: noisy weights" in sentences_of(alone)
    second = played(tmp_path, scheme, "privacy.epsilon=90", name="second", ledger=first.folder)
    both = ad.certify(second.folder)
    assert "Class counts are not: noisy weights" not in sentences_of(both)
    assert "Class counts are not protected: feature means of this ledger kept them private, and another" in str(
        both.reasons
    )


def sentences_of(certificate):
    return " ".join([*certificate.statement, *(each.sentence for each in certificate.assumptions)])


@pytest.mark.parametrize("source", ["test", "train"])
def test_it_is_an_assumption_that_no_record_of_another_run_was_made_public(tmp_path, source):
    """The first run's training samples may be the second one's public samples: the ledger has digests of both as a
    whole, and cannot compare them."""
    first = played(tmp_path, "feature_means", "privacy.epsilon=20", name="first")
    changes = ("privacy.epsilon=90", f"public.source={source}", "data.samples_per_device=10")
    again = played(tmp_path, "feature_means", *changes, name="second", ledger=first.folder)
    certificate = ad.certify(again.folder)
    assert "data stay with their device" in certificate.fallible
    assert "None of their private records was or is in a public set of another of these runs." in sentences_of(
        certificate
    )
