"""An attacker with access to every antenna: it learns what is counted, and more than the combined scalar suggests."""

from dataclasses import replace

import numpy as np
import pytest
from audit_contexts import no_progress, small_context

from airdistill.audit.empirical import audit_empirically
from airdistill.audit.neighbours import neighbours_of
from airdistill.audit.options import AuditOptions
from airdistill.planning.transceiver.design import noise_by_trust


def attacked(context):
    return audit_empirically(context, neighbours_of(context, 4, 0)[-1], AuditOptions(trials=130, seed=0), no_progress)


def as_if_combined(context):
    """The same context with the noise of the scalar f^H Y in place of the noise counted over all antennas."""

    def counted(this):
        combined = np.einsum("kn,in->ik", this.design.combiner.conj(), this.channel)[:, 0]
        alone = replace(this.design, combiner=None)
        trust = context.scenario.privacy.trust
        return noise_by_trust(alone, combined, context.plan.uplink.channel_noise_var, trust)[trust]

    rounds = tuple(
        replace(this, design=replace(this.design, counted_noise_var=counted(this))) for this in context.rounds
    )
    return replace(context, rounds=rounds)


@pytest.mark.parametrize(
    ("antennas", "trust"), [(2, "own_noise"), (2, "receiver_noise"), (3, "receiver_noise"), (3, "fleet_noise")]
)
def test_the_attack_on_all_antennas_measures_the_counted_noise(tmp_path, trust, antennas):
    context = small_context(
        tmp_path, "ota_fd", f"privacy.trust={trust}", f"radio.antennas={antennas}", "fleet.devices=3", rounds=6
    )
    found = attacked(context)
    assert found.violations == ()
    assert found.variance.value == pytest.approx(1, abs=0.07)
    assert found.auc.low <= found.expected_auc <= found.auc.high


@pytest.mark.parametrize("trust", ["receiver_noise", "fleet_noise"])
def test_a_certificate_from_the_combined_scalar_is_violated(tmp_path, trust):
    """The reason for section 9: it would count noise that the server can null."""
    context = small_context(tmp_path, "ota_fd", f"privacy.trust={trust}", "radio.antennas=3", rounds=6)
    assert any("Noise lower than counted" in sentence for sentence in attacked(as_if_combined(context)).violations)


def test_own_noise_cannot_be_nulled(tmp_path):
    context = small_context(tmp_path, "ota_fd", "privacy.trust=own_noise", "radio.antennas=3", rounds=6)
    assert attacked(as_if_combined(context)).violations == ()
