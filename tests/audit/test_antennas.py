"""An attacker who sees every antenna: never more than is counted, and more than the combined scalar would promise."""

from dataclasses import replace

import numpy as np
import pytest
from audited_worlds import quiet, small_world

from airdistill.audit.empirical import audit_empirically
from airdistill.audit.neighbours import neighbours_of
from airdistill.audit.options import AuditOptions
from airdistill.planning.transceiver.design import noise_by_trust

TRUSTS = ["receiver_noise", "fleet_noise", "own_noise"]


def attacked(world):
    return audit_empirically(world, neighbours_of(world, 4, 0)[-1], AuditOptions(trials=130, seed=0), quiet)


def as_if_combined(world):
    """The same world with what the scalar f^H Y alone would count in place of what the antennas show."""

    def counted(this):
        combined = np.einsum("kn,in->ik", this.design.combiner.conj(), this.channel)[:, 0]
        alone = replace(this.design, combiner=None)
        trust = world.scenario.privacy.trust
        return noise_by_trust(alone, combined, world.plan.uplink.channel_noise_var)[trust]

    rounds = tuple(replace(this, design=replace(this.design, counted_noise_var=counted(this))) for this in world.rounds)
    return replace(world, rounds=rounds)


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("antennas", [2, 3])
def test_the_whole_vector_shows_what_is_counted_and_no_more(tmp_path, trust, antennas):
    world = small_world(
        tmp_path, "ota_fd", f"privacy.trust={trust}", f"radio.antennas={antennas}", "fleet.devices=3", rounds=6
    )
    found = attacked(world)
    assert found.violations == ()
    assert found.variance.value == pytest.approx(1, abs=0.07)
    assert found.auc.low <= found.expected_auc <= found.auc.high


@pytest.mark.parametrize("trust", ["receiver_noise", "fleet_noise"])
def test_a_certificate_from_the_combined_scalar_is_broken(tmp_path, trust):
    """Why section 9 matters: it would count noise that the server can null."""
    world = small_world(tmp_path, "ota_fd", f"privacy.trust={trust}", "radio.antennas=3", rounds=6)
    assert any("Noise lower than counted" in sentence for sentence in attacked(as_if_combined(world)).violations)


def test_own_noise_is_immune(tmp_path):
    world = small_world(tmp_path, "ota_fd", "privacy.trust=own_noise", "radio.antennas=3", rounds=6)
    assert attacked(as_if_combined(world)).violations == ()
