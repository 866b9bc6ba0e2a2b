"""Audits of clipped updates: two opposite ones reach the certified μ, and nothing exceeds it."""

import numpy as np
import pytest
from audit_contexts import planned

import airdistill as ad
from airdistill.audit import AuditOptions, audit_run
from airdistill.runs.options import RunOptions
from airdistill.schemes.payloads import payload_protocol

ONE = RunOptions(threads=1, dtype="float64")
FEW = AuditOptions(transcripts=1, candidates=2, trials=100, parts=("recorded", "exact", "empirical"))
PUBLIC = ("public.samples=15", "public.features=3")
ADAPTIVE = ("federated.clip_quantile=0.6", "federated.server_optimizer=momentum")


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [
        ("ota_fedavg", ()),
        ("ota_fedavg", ADAPTIVE),
        ("ota_fedavg", (*ADAPTIVE, "privacy.trust=own_noise", "privacy.noise=secure")),
        ("ota_head", (*PUBLIC, *ADAPTIVE, "privacy.trust=receiver_noise")),
    ],
)
def test_two_opposite_updates_reach_the_certificate(tmp_path, scheme, changes):
    """`recorded` computes weights, sensitivities and noise of the ledger a second time."""
    rounds = ("learning.rounds=2", "privacy.epsilon=2", "privacy.delta=1e-5")
    plan, _ = planned(tmp_path, scheme, *rounds, *changes)
    run = ad.run(plan.scenario, scheme, out=tmp_path / "run", options=ONE)
    found = audit_run(run.folder, FEW)
    assert found.violations == ()
    device = found.exact.pairs[-1]
    assert (device.relation, device.constructed, device.compared) == ("device", True, True)
    assert 0.999 < found.exact.certified_ratio(device)[-1] <= 1 + 1e-9
    assert found.empirical.mu == pytest.approx(device.mu[0, -1])
    for pair in found.exact.pairs[:-1]:  # what training really moves, by other data of the device
        assert (found.exact.certified_ratio(pair) <= 1).all()
        assert pair.shift.max() > 0


def test_the_constructed_vectors_differ_in_every_way_that_the_clip_allows(tmp_path):
    plan, _ = planned(tmp_path, "ota_fedavg", *ADAPTIVE)
    ((pair),) = payload_protocol(plan).constructed_pairs(0, np.random.default_rng(0))
    first, second = pair.vectors[:, 0]
    assert second == pytest.approx(-first)
    assert np.linalg.norm(first[:-1]) == pytest.approx(1)
    assert (first[-1], second[-1]) == (0.25, -0.25)
