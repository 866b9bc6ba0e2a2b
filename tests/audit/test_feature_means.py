"""Audits of feature means: attacks with embedded data reach the certified μ, and do not exceed it."""

import numpy as np
import pytest
from audit_contexts import planned

import airdistill as ad
from airdistill.audit import AuditOptions, audit, audit_run
from airdistill.report.audit import audit_page
from airdistill.report.page import render
from airdistill.runs.options import RunOptions
from airdistill.schemes.payloads import payload_protocol

ONE = RunOptions(threads=1, dtype="float64")
FEW = AuditOptions(transcripts=1, candidates=2, trials=100, parts=("recorded", "exact", "empirical"))
ATTACKS = AuditOptions(transcripts=1, candidates=2, trials=100, parts=("exact", "empirical"))
PUBLIC = (
    "public.samples=15",
    "public.distill_epochs=1",
    "learning.rounds=2",
    "privacy.epsilon=2",
    "privacy.delta=1e-5",
)


@pytest.mark.parametrize(
    ("scheme", "changes", "reached"),
    [
        ("feature_means", (), 0.999),
        ("airdistill_features", (), 0.999),
        ("feature_means", ("privacy.counts=private",), 0.9),
        ("feature_means", ("privacy.trust=own_noise", "privacy.noise=secure"), 0.999),
        ("feature_means", ("privacy.trust=receiver_noise", "public.feature_norm=1", "public.sample_norm=0.5"), 0.7),
    ],
)
def test_the_best_attack_on_a_device_comes_close_to_the_certificate(tmp_path, scheme, changes, reached):
    """If a sample is clipped to less than the vector, two opposite vectors need all samples in the rarest class."""
    plan, _ = planned(tmp_path, scheme, *PUBLIC, *changes)
    run = ad.run(plan.scenario, scheme, out=tmp_path / "run", options=ONE)
    found = audit_run(run.folder, FEW)
    assert found.violations == ()
    device = found.exact.pairs[-1]
    assert (device.relation, device.constructed, device.compared) == ("device", True, True)
    assert reached < found.exact.certified_ratio(device)[-1] <= 1 + 1e-9
    record = found.exact.pairs[-2]
    assert record.ratios["one record, theory section 10"].max() == pytest.approx(1)
    assert found.empirical.mu == pytest.approx(device.mu[0, -1])
    assert found.empirical.variance.low < 1 < found.empirical.variance.high
    assert "whole device, constructed" in render(audit_page(found))


def test_a_guarantee_for_records_is_reached_by_one_record(tmp_path):
    plan, scheme = planned(tmp_path, "feature_means", *PUBLIC, "privacy.sensitivity=class_mean")
    found = audit(plan, scheme, ATTACKS, ONE)
    assert found.violations == ()
    record, device = found.exact.pairs[-2:]
    assert found.exact.certified_ratio(record)[-1] == pytest.approx(1)
    assert found.exact.certified_ratio(device)[-1] > 1
    assert not device.compared
    assert found.empirical.mu == pytest.approx(record.mu[0, -1])


def test_the_constructed_vectors_are_opposite_and_of_the_norm_that_is_planned(tmp_path):
    """Computed by the devices' code: two vectors of norm ρ, 2ρ apart."""
    plan, _ = planned(tmp_path, "feature_means", *PUBLIC)
    pairs = payload_protocol(plan).constructed_pairs(0, np.random.default_rng(0))
    first, second = next(pair.vectors for pair in pairs if pair.relation == "device")[:, 0]
    assert np.linalg.norm(first) == pytest.approx(plan.uplink.payload.norm_bound)
    assert second == pytest.approx(-first)
