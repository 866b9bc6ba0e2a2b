"""Audits of correlated noise: the joint likelihood ratio reaches the certified μ and never exceeds it."""

import numpy as np
import pytest
from audit_contexts import no_progress, small_context
from small_worlds import small_scenario

import airdistill as ad
from airdistill.audit import AuditOptions, audit_run
from airdistill.audit.empirical import audit_empirically
from airdistill.audit.exact import audit_exactly, certified_mu, constructed_pairs
from airdistill.audit.neighbours import neighbours_of
from airdistill.runs.options import RunOptions

SIX = ("fleet.devices=6", "data.samples_per_device=10")
CYCLIC = (*SIX, "fleet.sampling=cyclic", "fleet.cycle=3")
OPTIONS = AuditOptions(device=1, candidates=2, transcripts=2, trials=60)
CLIPPED = ("federated.update_norm=0.3", "learning.local_epochs=1")
ADAPTIVE = (*CLIPPED, "federated.clip_quantile=0.6")
HEAD = ("public.samples=15", "public.features=3", "learning.local_epochs=0")
# What devices send, and how far two datasets of a device move it at most: two opposite vectors at the clip C, and, if
# the clip adapts, an indicator of C/2 that changes as well.
SENDING = {
    "gradients": ("ota_fl", (), 2.0),
    "updates": ("ota_fedavg", CLIPPED, 2 * 0.3),
    "updates, adaptive clip": ("ota_fedavg", ADAPTIVE, 0.3 * np.sqrt(4 + 1 / 4)),
    "heads": ("ota_head", HEAD, 2.0),
}
every_payload = pytest.mark.parametrize("sending", SENDING)


def context_of(folder, *changes, sending="gradients", rounds=6):
    scheme, own, _ = SENDING[sending]
    return small_context(folder, scheme, *CYCLIC, *own, *changes, rounds=rounds, device=1)


@every_payload
@pytest.mark.parametrize("kind", ["banded", "blt"])
def test_certified_mu_is_reached_and_never_exceeded(tmp_path, kind, sending):
    context = context_of(tmp_path, f"privacy.correlation={kind}", sending=sending)
    candidates = neighbours_of(context, 2, 0)
    found = audit_exactly(context, [candidates[0], candidates[-1]], OPTIONS, no_progress)
    assert not found.violations
    constructed = next(pair for pair in found.pairs if pair.constructed and pair.relation == "device")
    assert found.certified_ratio(constructed)[1:] == pytest.approx(np.ones(5), rel=1e-9)
    for pair in found.pairs:
        assert (pair.mu <= found.guarantee.mu * (1 + 1e-9)).all()
        assert pair.mu[:, -1].min() > 0


@every_payload
def test_certified_mu_is_that_of_the_covariance_of_what_was_received(tmp_path, sending):
    """μ² = Σ dᵀΣ⁻¹d with the dense covariance of all rounds, at the largest shift that clipping allows."""
    context = context_of(tmp_path, "privacy.correlation=blt", sending=sending)
    uplink, coefficients = context.plan.uplink, context.plan.uplink.correlation.coefficients(6)
    inverse = np.linalg.inv(sum(np.diag(np.full(6 - lag, coefficients[lag]), -lag) for lag in range(6)))
    noise = uplink.shares(6).sum()
    shift = np.array([SENDING[sending][2] * this.design.weights[1, 0] for this in context.rounds])
    for last in range(1, 7):
        covariance = noise * inverse[:last] @ inverse[:last].T
        expected = np.sqrt(shift[:last] @ np.linalg.solve(covariance, shift[:last]))
        assert certified_mu(context, "device")[last - 1, 1] == pytest.approx(expected, rel=1e-9)


def attacked(context, source=None):
    pair = next(pair for pair in constructed_pairs(context, OPTIONS) if pair.relation == "device")
    return audit_empirically(context, pair, OPTIONS, no_progress, source)


@every_payload
def test_drawn_noise_protects_as_much_as_is_counted(tmp_path, sending):
    found = attacked(context_of(tmp_path, "privacy.correlation=banded", sending=sending))
    assert found.violations == ()
    assert found.num_rounds == 6  # also those that the device does not join
    assert found.variance.low < 1 < found.variance.high
    assert found.auc.low < found.expected_auc < found.auc.high


@every_payload
def test_noise_that_does_not_repeat_what_it_should_is_found(tmp_path, sending):
    """Independent noise of the planned strength: later rounds do not hide what the ledger has counted on."""
    context = context_of(tmp_path, "privacy.correlation=banded", sending=sending)
    found = attacked(context, context.link.seeded_noise)
    assert any("correlation between rows" in line for line in found.violations)


@pytest.mark.parametrize("changes", [CYCLIC, (*SIX, "privacy.trust=own_noise")], ids=["cyclic", "own_noise"])
@every_payload
def test_records_of_a_run_agree_with_its_plan(tmp_path, changes, sending):
    scheme, own, _ = SENDING[sending]
    scenario = small_scenario(tmp_path, *changes, *own, "privacy.correlation=blt")
    record = ad.run(scenario, scheme, out=tmp_path / "run", options=RunOptions(threads=1))
    found = audit_run(record.folder, AuditOptions(parts=("recorded",)))
    assert found.violations == ()
    assert found.recorded.num_redrawn == 6
    assert found.recorded.epsilon == pytest.approx(record.rounds[-1]["epsilon_spent"], rel=1e-6)
