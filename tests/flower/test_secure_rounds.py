"""Rounds whose medium is a secure sum: what the server gets, what it does not, and who is missing."""

import json

import numpy as np
import pytest
from against_simulator import records
from near_federation import as_it_is, federation
from small_worlds import small_scenario

pytest.importorskip("flwr")
pytest.importorskip("opendp")

from airdistill.errors import InputError
from airdistill.flower.coordinator import Coordinator
from airdistill.flower.device import Device
from airdistill.flower.endpoint import Endpoint, EndpointError
from airdistill.flower.sums.messages import Roster, keys_question, sum_terms
from airdistill.flower.sums.server_side import ServerSide
from airdistill.privacy.targets import epsilon_of_mu
from airdistill.runs.accounts import certify
from airdistill.scenario.loading import changed
from airdistill.streams import stream

STEPS = ("keys", "shares", "masked", "confirm", "reveal")


def secure_scenario(folder, *changes, noise="secure"):
    """Five devices, two of which may be missing."""
    return small_scenario(
        folder, "fleet.devices=5", "data.samples_per_device=12", "learning.rounds=3", "air.medium=secure_sum",
        "fleet.expected_dropouts=2", f"privacy.noise={noise}", *changes,
    )  # fmt: skip


def knowledge_in(folder, number, round_index):
    """What a device has to say, worked out on its folder; before it learns in the round."""
    return Device(folder, number, "ota_fd")._knowledge(round_index)


def test_the_server_gets_the_sum_of_the_signals_to_the_quantisation_step(tmp_path):
    """With seeded noise, which can be drawn again: Σ (w q + σ m), rounded by each device to the grid."""
    scenario = secure_scenario(tmp_path, noise="seeded")
    server, devices = federation(tmp_path / "run", scenario, "ota_fd")
    probe, _ = federation(tmp_path / "probe", scenario, "ota_fd")
    station = Endpoint.open(probe, "ota_fd")
    expected = []

    def listen(step, round_index, device, real):
        if step == "keys" and device == 0 and real == "asked":
            grid = station.charge_through(round_index).summed
            total = np.zeros((3, 3))
            for number, folder in enumerate(devices.folders):
                drawn = stream(scenario.seed, "artificial-noise", round_index, number).standard_normal((3, 3))
                share = grid.design.weights[number][:, None] * knowledge_in(folder, number, round_index)
                total += share + grid.grid.deviation[0][:, None] * drawn
            expected.append((total, grid.grid.spacing))
        return real

    devices.spoil = listen
    Coordinator(server, "ota_fd", devices).play()
    for record, (total, spacing) in zip(records(server), expected, strict=True):
        assert record["without_signal"] == {}
        apart = np.abs(np.array(record["knowledge"]) - total)
        assert (apart <= 5 * 0.5 * spacing[:, None] * (1 + 1e-6)).all()


def test_devices_tell_the_server_nothing_but_the_sum(tmp_path):
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path), "ota_fd")
    said = {}

    def overhear(step, _round_index, _device, real):
        if real != "asked":
            said.setdefault(step, []).append(real)
        return real

    devices.spoil = overhear
    Coordinator(server, "ota_fd", devices).play()
    assert set(said) == {*STEPS, "learn"}
    assert all(answer == {} for answer in said["learn"])  # neither losses nor accuracy
    assert [record["loss"] for record in records(server)] == [None] * 3
    assert not any("accuracy" in record for record in records(server))
    words = np.array([np.frombuffer(answer["words"], "<u8") for answer in said["masked"]])
    grid = (
        Endpoint.open(federation(tmp_path / "probe", secure_scenario(tmp_path), "ota_fd")[0], "ota_fd")
        .charge_through(1)
        .summed
    )
    bits = (5 * grid.largest).bit_length() + 1
    assert words.max() > 2 ** (bits - 2)  # masked words fill the modulus, which the vectors are far from doing
    for folder in devices.folders:
        assert (folder / "secure-sum.json").stat().st_mode & 0o077 == 0
        assert json.loads((folder / "secure-sum.json").read_text())["values"] == []  # gone once it was masked
    for folder in devices.folders:  # for themselves they have kept both
        lessons = [json.loads(line) for line in (folder / "lessons.jsonl").read_text().splitlines()]
        assert [lesson["round"] for lesson in lessons] == [1, 2, 3]
        assert all("mean" in lesson for lesson in lessons)


def epsilon_written_out(folder):
    """Of every device after three rounds: a whole device moves a row by √2 and the rounding, three devices hide it."""
    station = Endpoint.open(federation(folder / "account", secure_scenario(folder), "ota_fd")[0], "ota_fd")
    squared = np.zeros(5)
    for round_index in (1, 2, 3):
        grid = station.charge_through(round_index).summed
        weights, spacing = grid.design.weights, grid.grid.spacing
        moved = weights * np.sqrt(2) + 1.02 * spacing * np.sqrt(3)
        squared += (moved**2 / (3 * grid.grid.deviation[0] ** 2)).sum(axis=1)
    return epsilon_of_mu(np.sqrt(squared), np.full(5, 1e-5), "secure")


@pytest.mark.parametrize("step", STEPS)
def test_two_of_five_may_be_lost_at_any_step_and_the_certificate_holds(tmp_path, step):
    """Lost before its vector has come, a device is missing from the sum; after that it is in it."""
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path), "ota_fd")
    lost = (1, 4)
    devices.spoil = lambda name, t, device, real: (
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
    assert first["predicted_noise_var"] == pytest.approx(planned, rel=1e-6)  # the plan knows what drop-outs cost
    certificate = certify(server)
    assert certificate.verdict == "holds under assumptions"
    assert [each.name for each in certificate.assumptions if not each.declared] == ["honest fleet", "secure sum"]
    expected = epsilon_written_out(tmp_path)
    for account in certificate.devices:
        assert account.spent <= account.epsilon_asked
        assert account.spent == pytest.approx(expected[account.device], rel=1e-9)
    for number, folder in enumerate(devices.folders):
        own = certify(folder).devices[number]
        assert own.spent == certificate.devices[number].spent  # whoever was lost has paid for the round all the same


def test_below_the_threshold_devices_refuse_and_nothing_comes_of_the_round(tmp_path):
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path), "ota_fd")
    devices.spoil = lambda name, t, device, real: None if name == "masked" and t == 2 and device in (0, 1, 4) else real
    Coordinator(server, "ota_fd", devices).play()
    _, second, third = records(server)
    assert second["knowledge"] is None
    assert "2 devices sent their vectors, and 3 must have" in second["nothing_because"]
    assert third["knowledge"] is not None


def test_a_server_that_would_unmask_two_is_refused_by_the_devices(tmp_path):
    """It says that only two have survived: the refusal is theirs."""
    _, devices = federation(tmp_path / "run", secure_scenario(tmp_path), "ota_fd")
    server = Endpoint.open(federation(tmp_path / "other", secure_scenario(tmp_path), "ota_fd")[0], "ota_fd")
    roster = Roster.read(devices.folders[0])
    side = ServerSide(sum_terms(server.charge_through(1).summed, roster), roster.public_keys)
    everybody = range(5)
    for answer in devices.ask("keys", 1, {device: {} for device in everybody}).values():
        side.take_keys(answer)
    keys = keys_question(side.keys_for_all())
    for answer in devices.ask("shares", 1, dict.fromkeys(everybody, keys)).values():
        side.take_shares(answer)
    devices.ask("masked", 1, {device: side.delivery_for(device) for device in everybody})
    lie = {"round": 1, "survivors": [0, 1]}
    answers = devices.ask("confirm", 1, dict.fromkeys((0, 1), lie))
    assert all("refuses: 2 devices survived, and 3 must have" in answer for answer in answers.values())


@pytest.mark.parametrize("step", [*STEPS, "learn"])
def test_a_server_killed_at_any_step_goes_on_to_the_same_sum(tmp_path, step):
    """Secure noise and masks are drawn once: the devices answer as they did, and are charged once."""
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path), "airdistill")

    def killed(name, round_index, device, real):
        if (name, round_index, device) == (step, 2, 2) and real != "asked":
            raise KeyboardInterrupt
        return real

    devices.spoil = killed
    with pytest.raises(KeyboardInterrupt):
        Coordinator(server, "airdistill", devices).play()
    devices.spoil = as_it_is
    Coordinator(server, "airdistill", devices).play()
    assert [record["round"] for record in records(server)] == [1, 2, 3]
    assert all(record["without_signal"] == record["without_lesson"] == {} for record in records(server))
    assert Endpoint.open(server, "airdistill").ledger.num_releases == 3
    assert {Endpoint.open(folder, "airdistill").ledger.num_releases for folder in devices.folders} == {3}


@pytest.mark.parametrize("what", ["words", "nothing", "other keys", "wrong share", "no receivers", "no shares"])
def test_a_device_that_answers_nonsense_costs_its_share_and_nothing_else(tmp_path, what):
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path), "ota_fd")

    def spoil(step, round_index, device, real):
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

    devices.spoil = spoil
    Coordinator(server, "ota_fd", devices).play()
    _, second, third = records(server)
    assert second["knowledge"] is not None
    assert list(second["without_signal"]) == ([] if what in ("wrong share", "no shares") else ["3"])
    assert third["knowledge"] is not None


def test_a_run_that_too_few_have_stopped_goes_on_when_they_are_back(tmp_path):
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path, "fleet.min_devices=4"), "ota_fd")
    devices.spoil = lambda _step, t, device, real: None if t == 2 and device in (3, 4) else real
    for _ in range(2):
        with pytest.raises(EndpointError, match="round 2: 3 devices answered and 4 must"):
            Coordinator(server, "ota_fd", devices).play()
    devices.spoil = as_it_is
    Coordinator(server, "ota_fd", devices).play()
    assert [record["without_signal"] for record in records(server)] == [{}, {}, {}]


@pytest.mark.parametrize("step", ["shares", "masked", "reveal", "learn"])
def test_a_killed_server_goes_on_with_those_who_were_there_though_another_is_back(tmp_path, step):
    """Device 4 was silent when keys were asked, and is back after the kill: the others have answered without it."""
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path), "ota_fd")

    def killed(name, round_index, device, real):
        if (name, round_index, device) == (step, 2, 2) and real != "asked":
            raise KeyboardInterrupt
        return None if (round_index, device) == (2, 4) else real

    devices.spoil = killed
    with pytest.raises(KeyboardInterrupt):
        Coordinator(server, "ota_fd", devices).play()
    devices.spoil = as_it_is
    Coordinator(server, "ota_fd", devices).play()
    second = records(server)[1]
    assert list(second["without_signal"]) == ["4"]
    assert second["knowledge"] is not None
    assert records(server)[2]["without_signal"] == {}


@pytest.mark.parametrize("changes", [("privacy.carry_over=true",), ("privacy.noise=seeded",), ()])
def test_the_planned_rounds_are_paid_for_to_the_last(tmp_path, changes):
    scenario = secure_scenario(tmp_path, "learning.rounds=7", *changes)
    station = Endpoint.open(federation(tmp_path / "run", scenario, "airdistill")[0], "airdistill")
    for round_index in range(1, 8):
        station.charge_through(round_index)
    spent = station.ledger.epsilon().max()
    assert spent == pytest.approx(8, rel=1e-4)
    assert spent <= 8 * (1 + 1e-9)


def test_a_device_does_not_send_what_is_no_number(tmp_path, monkeypatch):
    server, devices = federation(tmp_path / "run", secure_scenario(tmp_path), "ota_fd")
    real = Device._knowledge

    def broken(self, round_index):
        knowledge = real(self, round_index)
        return knowledge * np.nan if (self.number, round_index) == (0, 2) else knowledge

    monkeypatch.setattr(Device, "_knowledge", broken)
    Coordinator(server, "ota_fd", devices).play()
    assert [list(record["without_signal"]) for record in records(server)] == [[], ["0"], []]


def test_what_a_secure_sum_cannot_do_is_refused(tmp_path):
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
    with pytest.raises(EndpointError, match="needs everybody's public key"):
        Coordinator(server, "ota_fd", None)
