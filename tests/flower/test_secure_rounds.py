"""Rounds with a secure sum: what the server learns, what it does not learn, and which devices are missing."""

import json

import numpy as np
import pytest
from against_simulator import records
from near_federation import federation, unchanged
from small_worlds import small_scenario

pytest.importorskip("flwr")
pytest.importorskip("opendp")

from airdistill.errors import InputError
from airdistill.flower.coordinator import Coordinator
from airdistill.flower.device import Device
from airdistill.flower.endpoint import SESSION, Endpoint, EndpointError
from airdistill.flower.sums.keys import Modulus
from airdistill.flower.sums.messages import Roster, keys_question, sum_terms
from airdistill.flower.sums.server_side import ServerSide
from airdistill.privacy.targets import epsilon_of_mu
from airdistill.runs.accounts import certify
from airdistill.scenario.loading import changed
from airdistill.streams import noise_seed, stream

STEPS = ("keys", "shares", "masked", "confirm", "reveal")


def secure_scenario(folder, *changes, noise="secure"):
    """Five devices, two of which may be missing."""
    return small_scenario(
        folder, "fleet.devices=5", "data.samples_per_device=12", "learning.rounds=3", "air.medium=secure_sum",
        "fleet.expected_dropouts=2", f"privacy.noise={noise}", *changes,
    )  # fmt: skip


def knowledge_in(folder, number, round_index):
    """A device's vectors, computed from its folder before it learns in the round."""
    return Device(folder, number, "ota_fd")._knowledge(round_index)


def test_the_server_learns_the_sum_of_the_signals_up_to_the_quantisation_step(tmp_path):
    """With seeded noise, which can be drawn again, the sum is Σ (w q + σ m), rounded by each device to the grid."""
    scenario = secure_scenario(tmp_path, noise="seeded")
    server, devices = federation(tmp_path / "run", scenario, "ota_fd")
    session = (server / SESSION).read_text()
    probe, _ = federation(tmp_path / "probe", scenario, "ota_fd", session=session)
    endpoint = Endpoint.open(probe, "ota_fd")
    expected = []

    def compute(step, round_index, device, real):
        if step == "keys" and device == 0 and real == "asked":
            grid = endpoint.charge_through(round_index).summed
            total = np.zeros((3, 3))
            for number, folder in enumerate(devices.folders):
                seed = noise_seed(scenario.seed, endpoint.ledger.noise_keys[-1])
                drawn = stream(seed, "artificial-noise", round_index, number).standard_normal((3, 3))
                share = grid.design.weights[number][:, None] * knowledge_in(folder, number, round_index)
                total += share + grid.grid.deviation[0][:, None] * drawn
            expected.append((total, grid.grid.spacing))
        return real

    devices.tamper = compute
    Coordinator(server, "ota_fd", devices).play()
    for record, (total, spacing) in zip(records(server), expected, strict=True):
        assert record["without_signal"] == {}
        difference = np.abs(np.array(record["knowledge"]) - total)
        assert (difference <= 5 * 0.5 * spacing[:, None] * (1 + 1e-6)).all()


def test_the_server_learns_only_the_sum(tmp_path):
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path), "ota_fd")
    answers = {}

    def collect(step, _round_index, _device, real):
        if real != "asked":
            answers.setdefault(step, []).append(real)
        return real

    devices.tamper = collect
    Coordinator(server, "ota_fd", devices).play()
    assert set(answers) == {*STEPS, "learn"}
    assert all(answer == {} for answer in answers["learn"])  # neither losses nor accuracy
    assert [record["loss"] for record in records(server)] == [None] * 3
    assert not any("accuracy" in record for record in records(server))
    grid = (
        Endpoint.open(federation(tmp_path / "probe", secure_scenario(tmp_path), "ota_fd")[0], "ota_fd")
        .charge_through(1)
        .summed
    )
    bits = (5 * grid.largest).bit_length() + 1
    words = np.array([Modulus(bits).unpacked(answer["words"], 9) for answer in answers["masked"]])
    assert words.max() > 2 ** (bits - 2)  # masked words fill the modulus; the vectors themselves are much smaller
    for folder in devices.folders:
        assert (folder / "secure-sum.json").stat().st_mode & 0o077 == 0
        assert json.loads((folder / "secure-sum.json").read_text())["values"] == []  # deleted after masking
    for folder in devices.folders:  # the devices have stored losses and accuracy
        reports = [json.loads(line) for line in (folder / "lessons.jsonl").read_text().splitlines()]
        assert [report["round"] for report in reports] == [1, 2, 3]
        assert all("mean" in report for report in reports)


def epsilon_by_hand(folder):
    """ε of each device after three rounds: a device changes a row by √2 and the rounding; three devices add noise."""
    endpoint = Endpoint.open(federation(folder / "account", secure_scenario(folder), "ota_fd")[0], "ota_fd")
    squared = np.zeros(5)
    for round_index in (1, 2, 3):
        grid = endpoint.charge_through(round_index).summed
        weights, spacing = grid.design.weights, grid.grid.spacing
        change = weights * np.sqrt(2) + 1.02 * spacing * np.sqrt(3)
        squared += (change**2 / (3 * grid.grid.deviation[0] ** 2)).sum(axis=1)
    return epsilon_of_mu(np.sqrt(squared), np.full(5, 1e-5), "secure")


@pytest.mark.parametrize("step", STEPS)
def test_two_of_five_devices_may_drop_out_at_any_step_and_the_certificate_holds(tmp_path, step):
    """A device that drops out before its vector has arrived is not in the sum; after that it is."""
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path), "ota_fd")
    lost = (1, 4)
    devices.tamper = lambda name, t, device, real: (
        (None if t == 2 and device in lost and STEPS.index(name) >= STEPS.index(step) else real)
        if name in STEPS
        else real
    )
    Coordinator(server, "ota_fd", devices).play()
    first, second, third = records(server)
    missing = ["1", "4"] if step in ("keys", "shares", "masked") else []
    assert sorted(second["without_signal"]) == missing
    assert all(record["knowledge"] is not None for record in (first, second, third))
    share = 3 / 5 if missing else 1.0
    assert np.mean(second["predicted_noise_var"]) == pytest.approx(
        np.mean(first["predicted_noise_var"]) / share, rel=0.2
    )
    planned = Endpoint.open(server, "ota_fd").plan.design(np.ones(5, dtype=complex), 1, None).effective_noise_var
    assert first["predicted_noise_var"] == pytest.approx(planned, rel=1e-6)  # the plan accounts for drop-outs
    certificate = certify(server)
    assert certificate.verdict == "holds under assumptions"
    assert [each.name for each in certificate.assumptions if not each.declared] == ["honest fleet", "secure sum"]
    expected = epsilon_by_hand(tmp_path)
    for account in certificate.devices:
        assert account.spent <= account.epsilon_asked
        assert account.spent == pytest.approx(expected[account.device], rel=1e-9)
    for number, folder in enumerate(devices.folders):
        own = certify(folder).devices[number]
        assert own.spent == certificate.devices[number].spent  # a dropped device is charged for the round too


def test_a_secure_sum_with_seeded_noise_is_a_simulation(tmp_path):
    """The scenario, which the server has too, names the seed."""
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path, noise="seeded"), "ota_fd")
    Coordinator(server, "ota_fd", devices).play()
    for folder in (server, devices.folders[0]):
        certificate = certify(folder)
        assert certificate.verdict_in_words == (
            "simulation: protects no one; with secret noise it would hold under assumptions (honest fleet, secure sum)"
        )
        assert any("The server has the seed" in reason for reason in certificate.reasons)


def test_below_the_threshold_devices_refuse_and_the_round_has_no_result(tmp_path):
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path), "ota_fd")
    devices.tamper = lambda name, t, device, real: None if name == "masked" and t == 2 and device in (0, 1, 4) else real
    Coordinator(server, "ota_fd", devices).play()
    _, second, third = records(server)
    assert second["knowledge"] is None
    assert "2 devices sent their vectors; at least 3 are required" in second["nothing_because"]
    assert third["knowledge"] is not None


def test_the_devices_refuse_a_server_that_tries_to_unmask_two_of_them(tmp_path):
    """The server claims that only two devices have survived."""
    _, devices = federation(tmp_path / "run", secure_scenario(tmp_path), "ota_fd")
    server = Endpoint.open(federation(tmp_path / "other", secure_scenario(tmp_path), "ota_fd")[0], "ota_fd")
    roster = Roster.read(devices.folders[0])
    side = ServerSide(sum_terms(server.charge_through(1).summed, roster), roster.public_keys)
    numbers = range(5)
    for answer in devices.ask("keys", 1, {device: {} for device in numbers}).values():
        side.take_keys(answer)
    keys = keys_question(side.keys_for_all())
    for answer in devices.ask("shares", 1, dict.fromkeys(numbers, keys)).values():
        side.take_shares(answer)
    devices.ask("masked", 1, {device: side.delivery_for(device) for device in numbers})
    lie = {"round": 1, "survivors": [0, 1]}
    answers = devices.ask("confirm", 1, dict.fromkeys((0, 1), lie))
    assert all("refuses: 2 devices survived; at least 3 are required" in answer for answer in answers.values())


@pytest.mark.parametrize("step", [*STEPS, "learn"])
def test_a_server_killed_at_any_step_continues_to_the_same_sum(tmp_path, step):
    """Secure noise and masks are drawn once: the devices repeat their replies and are charged once."""
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path), "airdistill")

    def killed(name, round_index, device, real):
        if (name, round_index, device) == (step, 2, 2) and real != "asked":
            raise KeyboardInterrupt
        return real

    devices.tamper = killed
    with pytest.raises(KeyboardInterrupt):
        Coordinator(server, "airdistill", devices).play()
    devices.tamper = unchanged
    Coordinator(server, "airdistill", devices).play()
    assert [record["round"] for record in records(server)] == [1, 2, 3]
    assert all(record["without_signal"] == record["without_lesson"] == {} for record in records(server))
    assert Endpoint.open(server, "airdistill").ledger.num_releases == 3
    assert {Endpoint.open(folder, "airdistill").ledger.num_releases for folder in devices.folders} == {3}


@pytest.mark.parametrize("what", ["words", "nothing", "other keys", "wrong share", "no receivers", "no shares"])
def test_only_the_device_that_sends_invalid_replies_is_left_out(tmp_path, what):
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path), "ota_fd")

    def tamper(step, round_index, device, real):
        if (round_index, device) != (2, 3) or real == "asked":
            return real
        if what == "words" and step == "masked":
            return {**real, "words": real["words"][:-1]}
        if what == "nothing":
            return {"device": 3, "round": 2}
        if what == "other keys" and step == "keys":
            return {**real, "mask_key": bytes(32)}
        if what == "no receivers" and step == "shares":
            return {**real, "receivers": [], "sealed": []}
        if what == "no shares" and step == "reveal":
            return {**real, "seed_shares": []}
        if what == "wrong share" and step == "reveal":
            return {**real, "seed_shares": [share[:-1] + bytes([share[-1] ^ 1]) for share in real["seed_shares"]]}
        return real

    devices.tamper = tamper
    Coordinator(server, "ota_fd", devices).play()
    _, second, third = records(server)
    assert second["knowledge"] is not None
    assert list(second["without_signal"]) == ([] if what in ("wrong share", "no shares") else ["3"])
    assert third["knowledge"] is not None


def test_a_run_stopped_by_too_few_devices_continues_when_they_are_back(tmp_path):
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path, "fleet.min_devices=4"), "ota_fd")
    devices.tamper = lambda _step, t, device, real: None if t == 2 and device in (3, 4) else real
    for _ in range(2):
        with pytest.raises(EndpointError, match=r"round 2: 3 devices replied and fleet\.min_devices requires 4"):
            Coordinator(server, "ota_fd", devices).play()
    devices.tamper = unchanged
    Coordinator(server, "ota_fd", devices).play()
    assert [record["without_signal"] for record in records(server)] == [{}, {}, {}]


@pytest.mark.parametrize("step", ["shares", "masked", "reveal", "learn"])
def test_a_restarted_server_continues_with_the_same_devices_though_another_is_back(tmp_path, step):
    """Device 4 did not send keys and is back after the kill, but the others have replied without it."""
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path), "ota_fd")

    def killed(name, round_index, device, real):
        if (name, round_index, device) == (step, 2, 2) and real != "asked":
            raise KeyboardInterrupt
        return None if (round_index, device) == (2, 4) else real

    devices.tamper = killed
    with pytest.raises(KeyboardInterrupt):
        Coordinator(server, "ota_fd", devices).play()
    devices.tamper = unchanged
    Coordinator(server, "ota_fd", devices).play()
    second = records(server)[1]
    assert list(second["without_signal"]) == ["4"]
    assert second["knowledge"] is not None
    assert records(server)[2]["without_signal"] == {}


@pytest.mark.parametrize("changes", [("privacy.carry_over=true",), ("privacy.noise=seeded",), ()])
def test_the_planned_rounds_use_the_whole_budget(tmp_path, changes):
    scenario = secure_scenario(tmp_path, "learning.rounds=7", *changes)
    endpoint = Endpoint.open(federation(tmp_path / "run", scenario, "airdistill")[0], "airdistill")
    for round_index in range(1, 8):
        endpoint.charge_through(round_index)
    spent = endpoint.ledger.epsilon().max()
    assert spent == pytest.approx(8, rel=1e-4)
    assert spent <= 8 * (1 + 1e-9)


def test_a_device_does_not_send_vectors_that_are_not_finite(tmp_path, monkeypatch):
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path), "ota_fd")
    real = Device._knowledge

    def broken(self, round_index):
        knowledge = real(self, round_index)
        return knowledge * np.nan if (self.number, round_index) == (0, 2) else knowledge

    monkeypatch.setattr(Device, "_knowledge", broken)
    Coordinator(server, "ota_fd", devices).play()
    assert [list(record["without_signal"]) for record in records(server)] == [[], ["0"], []]


def test_scenarios_that_a_secure_sum_cannot_run_are_rejected(tmp_path):
    scenario = secure_scenario(tmp_path)
    for field, changes in {
        "fleet.expected_dropouts": {"fleet": {"expected_dropouts": 3}},
        "privacy.trust": {"privacy": {"trust": "own_noise"}},
    }.items():
        with pytest.raises(InputError, match=field):
            changed(scenario, changes)
    with pytest.raises(InputError, match=r"fleet\.expected_dropouts"):
        changed(small_scenario(tmp_path), {"fleet": {"expected_dropouts": 1}})
    server, _ = federation(tmp_path / "run", scenario, "ota_fd")
    (server / "roster.json").unlink()
    with pytest.raises(EndpointError, match="needs the public keys of all devices"):
        Coordinator(server, "ota_fd", None)
