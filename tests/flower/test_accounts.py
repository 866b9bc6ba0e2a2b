"""Federations one after the other on the same devices: what the first has spent is not there for the second."""

import json

import numpy as np
import pytest
from against_simulator import records
from near_federation import federation, unchanged
from public_worlds import public_scenario

pytest.importorskip("flwr")

from airdistill.errors import AirDistillError
from airdistill.flower.account import ACCOUNT, AccountError
from airdistill.flower.coordinator import Coordinator
from airdistill.flower.device import Device
from airdistill.flower.endpoint import Endpoint, EndpointError
from airdistill.privacy.ledger import BudgetExceeded
from airdistill.privacy.targets import epsilon_of_mu
from airdistill.runs.accounts import certify
from airdistill.runs.folder import PLAN


def scenario_in(folder, *changes):
    return public_scenario(folder, "learning.rounds=2", *changes)


def begun(folder, scenario, scheme, accounts, ledger=None):
    server, devices = federation(folder, scenario, scheme, ledger=ledger)
    devices.accounts = [str(accounts / f"device-{number}") for number in range(len(devices.folders))]
    return server, devices


def played(folder, scenario, scheme, accounts, ledger=None):
    server, devices = begun(folder, scenario, scheme, accounts, ledger)
    Coordinator(server, scheme, devices, account=str(accounts / "server")).play()
    return server, devices


def stopped_after_one_round(folder, scenario, scheme, accounts):
    """The server is killed after all devices have sent in round 1."""
    server, devices = begun(folder, scenario, scheme, accounts)

    def killed(step, _round_index, _device, real):
        if step == "learn":
            raise KeyboardInterrupt
        return real

    devices.tamper = killed
    with pytest.raises(KeyboardInterrupt):
        Coordinator(server, scheme, devices, account=str(accounts / "server")).play()
    devices.tamper = unchanged
    return server, devices


def test_a_second_federation_is_refused_where_the_budget_is_spent_and_its_certificate_counts_both(tmp_path):
    """Of another scheme, and prepared as if nothing had been spent."""
    scenario, accounts = scenario_in(tmp_path), tmp_path / "accounts"
    first, _ = played(tmp_path / "one", scenario, "ota_fd", accounts)
    assert certify(first).num_releases == 2
    second, devices = played(tmp_path / "two", scenario, "airdistill_features", accounts)
    assert records(second) == []
    summary = json.loads((second / "summary.json").read_text())
    assert "above its target 50" in summary["ended_because"]
    for number in range(3):
        with pytest.raises(BudgetExceeded, match="it was not transmitted"):
            devices.device(number).answer("signal", 1, {})
        (stored,) = devices.folders[number].glob("answers/*.json")
        assert "answer" not in json.loads(stored.read_text())
    for folder in (second, *devices.folders):
        certificate = certify(folder)
        assert [account.spent for account in certificate.devices] == pytest.approx([50.0] * 3, rel=1e-6)
        assert (certificate.num_releases, certificate.num_earlier) == (2, 2)


def test_devices_refuse_by_their_own_accounts_whatever_the_server_counts(tmp_path):
    scenario, accounts = scenario_in(tmp_path), tmp_path / "accounts"
    played(tmp_path / "one", scenario, "airdistill_proxy", accounts)
    server, devices = begun(tmp_path / "two", scenario, "airdistill_features", accounts)
    with pytest.raises(EndpointError, match=r"0 devices replied .* device 2: failed: round 1 would take device"):
        Coordinator(server, "airdistill_features", devices).play()
    without = Device(devices.folders[0], 0, "airdistill_features")  # the operator of the device could leave it out
    assert without.last_round == 0
    with pytest.raises(BudgetExceeded):  # but the ledger has continued the first one already
        without.endpoint.charge_through(1)


def test_a_second_federation_gets_what_the_first_has_left(tmp_path):
    """μ² of both add up to the target, computed from the noise that each of them charged."""
    scenario, accounts = scenario_in(tmp_path), tmp_path / "accounts"
    first, _ = stopped_after_one_round(tmp_path / "one", scenario, "airdistill_proxy", accounts)
    second, devices = played(tmp_path / "two", scenario, "feature_means", accounts, ledger=first)
    assert len(records(second)) == 2
    assert all(record["without_signal"] == record["without_lesson"] == {} for record in records(second))
    squared = np.zeros(3)
    for folder, scheme in ((first, "airdistill_proxy"), (second, "feature_means")):
        for release in Endpoint.open(folder, scheme).ledger.releases:
            shift = release.weights * release.sensitivity["device"]
            squared += (shift**2 / release.counted_noise_var[scenario.privacy.trust])[:, 0]
    expected = epsilon_of_mu(np.sqrt(squared), np.full(3, 1e-5), "seeded")
    for folder in (second, *devices.folders):
        spent = [account.spent for account in certify(folder).devices]
        assert spent == pytest.approx(expected, rel=1e-6)
        assert max(spent) == pytest.approx(50, rel=1e-4)
    with pytest.raises(AirDistillError, match="another run continues it"):  # the first one is closed
        Endpoint.open(first, "airdistill_proxy").charge_through(2)


def test_a_start_that_was_killed_is_repeated_without_losing_the_earlier_ledger(tmp_path):
    scenario, accounts = scenario_in(tmp_path), tmp_path / "accounts"
    stopped_after_one_round(tmp_path / "one", scenario, "airdistill_proxy", accounts)
    _, devices = begun(tmp_path / "two", scenario, "airdistill_features", accounts)
    counted = devices.device(0).endpoint.ledger.num_earlier
    assert counted == 1
    account = accounts / "device-0" / ACCOUNT
    stored = account.read_bytes()
    (devices.folders[0] / "run.json").unlink()  # killed before the folder was sealed
    assert devices.device(0).endpoint.ledger.num_earlier == counted
    assert account.read_bytes() == stored
    (devices.folders[0] / "run.json").unlink()  # killed before the account was written
    account.write_text(json.dumps({**json.loads(stored), "federations": json.loads(stored)["federations"][:1]}))
    assert devices.device(0).endpoint.ledger.num_earlier == counted
    assert account.read_bytes() == stored


def test_the_account_of_a_device_is_in_the_settings_of_its_node(tmp_path):
    from airdistill.flower.client_app import _device

    _, devices = federation(tmp_path / "run", scenario_in(tmp_path), "ota_fd")
    settings = {"folder": str(devices.folders[1]), "device": 1, "scheme": "ota_fd", "account": str(tmp_path / "own")}
    with _device(settings) as device:
        assert device.last_round == 0
    stored = json.loads((tmp_path / "own" / ACCOUNT).read_text())
    assert stored == {"owner": "1", "federations": [str(devices.folders[1])]}
    with pytest.raises(AccountError, match="is the account of device 1"), _device({**settings, "device": 0}):
        pass  # the server may read why


def test_an_account_that_cannot_be_continued_is_refused(tmp_path):
    scenario, accounts = scenario_in(tmp_path), tmp_path / "accounts"
    _, first = begun(tmp_path / "one", scenario, "ota_fd", accounts)
    first.device(0)
    first.device(1)
    _, second = begun(tmp_path / "two", scenario, "ota_fd", accounts)
    second.accounts[1] = first.accounts[0]
    with pytest.raises(AccountError, match="is the account of device 0, and this is device 1; ledgers count every"):
        second.device(1)
    (first.folders[0] / "ledger.jsonl").rename(tmp_path / "elsewhere")
    with pytest.raises(AccountError, match=r"device-0 has no ledger\.jsonl; what was released there cannot be counted"):
        second.device(0)
    _, third = begun(tmp_path / "three", scenario, "ota_fd", accounts)
    third.accounts = [""] * 3
    third.device(2)
    third.accounts[2] = first.accounts[2]
    with pytest.raises(AccountError, match="began with another account or without one; prepare a new federation"):
        third.device(2)
    (accounts / "device-1" / ACCOUNT).write_text("{}")
    with pytest.raises(AccountError, match="is damaged"):
        first.device(1)


def test_a_plan_for_more_than_the_whole_budget_is_refused(tmp_path):
    _, devices = federation(tmp_path / "run", scenario_in(tmp_path), "ota_fd")
    path = devices.folders[0] / PLAN
    plan = json.loads(path.read_text())
    for device in plan["privacy"]["devices"]:
        device["mu"] *= 1.01
    path.write_text(json.dumps(plan))
    with pytest.raises(EndpointError, match="is not the plan of the scenario"):
        devices.device(0)
