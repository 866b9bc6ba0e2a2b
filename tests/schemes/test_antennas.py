"""Schemes with several receive antennas: runs, ledgers and certificates."""

import numpy as np
import pytest
from small_worlds import small_scenario

import airdistill as ad
from airdistill.errors import InputError
from airdistill.flower.endpoint import check_playable
from airdistill.privacy.certificate import certificate_of
from airdistill.privacy.ledger import Ledger
from airdistill.schemes.planning import as_run_by
from airdistill.schemes.registry import load_scheme

PUBLIC = ("public.samples=12", "learning.local_epochs=1")


@pytest.mark.parametrize(
    ("scheme", "trust"),
    [
        ("ota_fd", "receiver_noise"),
        ("ota_fd", "own_noise"),
        ("airdistill", "fleet_noise"),
        ("airdistill", "receiver_noise"),
        ("ota_proxy_fd", "own_noise"),
        ("airdistill_proxy", "fleet_noise"),
    ],
)
def test_every_round_is_charged_within_the_budget(tmp_path, scheme, trust):
    changes = [
        "radio.antennas=3",
        f"privacy.trust={trust}",
        "learning.rounds=3",
        *(PUBLIC if "proxy" in scheme else ()),
    ]
    ad.run(small_scenario(tmp_path, *changes), scheme, out=tmp_path / "run")
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert ledger.num_releases == 3
    assert (ledger.squared_mu() <= ledger.header.mu**2 * (1 + 1e-9)).all()
    assert ledger.header.terms["antennas"] == 3
    stated = " ".join(assumption.sentence for assumption in certificate_of(ledger).assumptions)
    assert ("Everything that the server's 3 antennas receive is counted" in stated) == (trust != "own_noise")


def test_the_ledger_of_one_antenna_does_not_mention_antennas(tmp_path):
    ad.run(small_scenario(tmp_path, "learning.rounds=2"), "ota_fd", out=tmp_path / "run")
    assert "antennas" not in Ledger.read(tmp_path / "run" / "ledger.jsonl").header.terms


def test_a_federation_has_one_antenna(tmp_path):
    with pytest.raises(InputError, match=r"radio\.antennas = 2: a federation receives with one antenna"):
        check_playable(load_scheme("ota_fd"), small_scenario(tmp_path, "radio.antennas=2"))


def test_the_non_private_reference_puts_all_power_on_the_signal(tmp_path):
    scheme = load_scheme("ota_fd_antennas")
    adapted = as_run_by(scheme, small_scenario(tmp_path, "radio.antennas=4"))
    made = ad.plan(adapted)
    assert np.isinf(made.fleet.epsilon).all()
    assert (made.forecast.noise_power_w == 0).all()
