"""The ends of a federation without a federation between them: in one process, message by message."""

import json
from pathlib import Path

import numpy as np
import pytest
from against_simulator import SCHEMES, records, simulated, worst_difference
from small_worlds import small_scenario

pytest.importorskip("flwr")

from airdistill.errors import InputError
from airdistill.flower.coordinator import Coordinator, Introduction
from airdistill.flower.device import Device
from airdistill.flower.station import Station, StationError
from airdistill.privacy.ledger import BudgetExceeded
from airdistill.scenario.loading import as_toml, changed
from airdistill.schemes.planning import as_run_by


def _as_it_is(_kind, _round_index, _device, answer):
    return answer


class Nearby:
    """Devices in this process; a test may spoil what they answer."""

    def __init__(self, folders, scheme):
        self.folders, self.scheme, self.spoil = folders, scheme, _as_it_is

    def device(self, number):
        return Device(self.folders[number], number, self.scheme)

    def introductions(self, num_devices):
        devices = [self.device(number) for number in range(num_devices)]
        return [Introduction(each.number, each.station.digest, each.last_round) for each in devices]

    def signals(self, round_index):
        return self._all("signal", round_index, lambda device: device.signal(round_index))

    def lessons(self, round_index, broadcast, evaluate):
        return self._all("learn", round_index, lambda device: device.learn(round_index, broadcast, evaluate).to_dict())

    def _all(self, kind, round_index, ask):
        answers = {}
        for number in range(len(self.folders)):
            if self.spoil(kind, round_index, number, "asked") is None:
                continue  # a device that hears nothing
            answers[number] = self.spoil(kind, round_index, number, ask(self.device(number)))
        return answers


def federation(folder: Path, scenario, scheme):
    """The server's folder and the devices, each with the scenario as its own, and with the plan, made once here."""
    adapted = as_run_by(SCHEMES[scheme](), scenario)
    folders = [folder / name for name in ("server", *map(str, range(adapted.num_devices)))]
    for each in folders:
        each.mkdir(parents=True)
        (each / "scenario.toml").write_text(as_toml(adapted))
    Station.open(folders[0], scheme)
    for each in folders[1:]:
        (each / "plan.json").write_bytes((folders[0] / "plan.json").read_bytes())
    return folders[0], Nearby(folders[1:], scheme)


@pytest.mark.parametrize(("scheme", "epochs"), [("airdistill", 0), ("ota_fd", 0), ("ota_fd", 1)])
def test_the_ends_together_do_what_the_simulator_does(tmp_path, scheme, epochs):
    scenario = small_scenario(
        tmp_path, f"learning.local_epochs={epochs}", "learning.batch_size=7", "learning.rounds=5", "privacy.epsilon=200"
    )
    server, devices = federation(tmp_path / "run", scenario, scheme)
    Coordinator(server, scheme, devices).play()
    expected, broadcasts = simulated(scenario, scheme)
    assert worst_difference(records(server), expected, broadcasts) < 1e-6
    summary = json.loads((server / "summary.json").read_text())
    assert any("emulated" in line for line in summary["assumptions"])
    certificate = json.loads((server / "certificate.json").read_text())
    assert any("emulated" in line for line in certificate["reasons"])
    ledgers = {(folder / "ledger.jsonl").read_text() for folder in [server, *devices.folders]}
    assert len(ledgers) == 1  # everybody has written down the same, each for itself


def test_a_device_pays_first_refuses_what_is_over_and_pays_for_what_it_missed(tmp_path):
    """Also where it fails after that: what was charged stays charged, and the round is not sent a second time."""
    server, devices = federation(tmp_path / "run", small_scenario(tmp_path, "learning.rounds=4"), "airdistill")
    first = devices.device(0)
    first.signal(1)
    assert devices.device(0).last_round == 1
    for refused in (1, 0, -1, 5):
        with pytest.raises(StationError, match=f"round {refused} is refused"):
            devices.device(0).signal(refused)
    devices.device(0).signal(3)
    ahead, behind = Station.open(devices.folders[0], "airdistill"), Station.open(server, "airdistill")
    for round_index in (1, 2, 3):
        behind.pay_for(round_index)
    assert (devices.folders[0] / "ledger.jsonl").read_text() == (server / "ledger.jsonl").read_text()
    assert [release.round_index for release in ahead.ledger.releases] == [1, 2, 3]


def test_a_device_refuses_a_round_that_it_cannot_pay_for(tmp_path, monkeypatch):
    _, devices = federation(tmp_path / "run", small_scenario(tmp_path), "ota_fd")
    device = devices.device(1)
    terms = device.station.ledger.opening
    monkeypatch.setattr(device.station.ledger, "opening", type(terms)(**{**vars(terms), "mu": terms.mu * 0.1}))
    with pytest.raises(BudgetExceeded, match="it did not happen"):
        device.signal(1)
    assert devices.device(1).last_round == 0


def test_a_device_learns_once_a_round_and_from_nothing_but_numbers(tmp_path):
    _, devices = federation(tmp_path / "run", small_scenario(tmp_path), "ota_fd")
    uniform = np.full((3, 3), 1 / 3)
    for wrong in (uniform[:2], uniform * np.inf, uniform[0], np.array([[np.nan, 0.5, 0.5]] * 3)):
        with pytest.raises(StationError, match="is refused"):
            devices.device(0).learn(1, wrong, evaluate=False)
    unsent = uniform.copy()
    unsent[1] = np.nan
    assert "mean" in devices.device(0).learn(1, unsent, evaluate=True).to_dict()
    with pytest.raises(StationError, match="has learned in round 1"):
        devices.device(0).learn(1, uniform, evaluate=False)


ANSWERS = {
    "missing": None,
    "failed": "failed: no power",
    "shape": np.zeros((2, 3), dtype=complex),
    "no number": np.full((3, 3), np.nan + 0j),
    "words": np.full((3, 3), "x"),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_device_without_a_signal_costs_its_share_if_the_others_do_not_hide_behind_it(tmp_path, answer):
    """Device 2 in round 2: its noise is its own, so the others' sum goes on, scaled to a mean of theirs."""
    scenario = small_scenario(
        tmp_path, "learning.rounds=3", "privacy.trust=own_noise", "privacy.epsilon=1e6", "radio.noise_power=1e-30 W"
    )
    server, devices = federation(tmp_path / "run", scenario, "ota_fd")
    devices.spoil = lambda kind, t, device, real: answer if (kind, t, device) == ("signal", 2, 2) else real
    Coordinator(server, "ota_fd", devices).play()
    first, second, third = records(server)
    assert list(second["without_signal"]) == ["2"]
    assert first["without_signal"] == third["without_signal"] == {}
    assert second["knowledge"] is not None
    assert np.allclose(np.sum(second["knowledge"], axis=1), 1.0, atol=0.05)  # a mean of predictions sums to one


def test_nothing_is_broadcast_where_devices_count_on_the_noise_of_one_that_is_missing(tmp_path):
    scenario = small_scenario(tmp_path, "learning.rounds=3", "privacy.trust=fleet_noise")
    server, devices = federation(tmp_path / "run", scenario, "airdistill")
    devices.spoil = lambda _kind, t, device, real: None if (t, device) == (2, 1) else real
    Coordinator(server, "airdistill", devices).play()
    first, second, third = records(server)
    assert second["knowledge"] is None
    assert second["distillation_loss"] is None
    assert list(second["without_lesson"]) == []
    assert first["knowledge"] is not None
    assert third["knowledge"] is not None
    assert devices.device(1).last_round == 3  # it has paid for the round that it missed


def test_a_run_does_not_begin_with_wrong_terms_twins_or_too_few(tmp_path):
    server, devices = federation(tmp_path / "run", small_scenario(tmp_path), "ota_fd")
    known = devices.introductions(3)
    wrong = {
        "another scenario": [*known[:2], Introduction(2, "other", 0)],
        "two nodes say": [*known, known[1]],
        "devices 1, 2 have not come": known[:1],
    }
    for reason, introduced in wrong.items():
        devices.introductions = lambda _, introduced=introduced: introduced
        with pytest.raises(StationError, match=reason):
            Coordinator(server, "ota_fd", devices).play()


def test_a_server_that_was_killed_goes_on_with_the_next_round(tmp_path):
    """The round that was cut off is lost and stays paid for."""
    server, devices = federation(tmp_path / "run", small_scenario(tmp_path, "learning.rounds=4"), "airdistill")

    def killed(kind, round_index, _device, real):
        if (kind, round_index) == ("learn", 2):
            raise KeyboardInterrupt
        return real

    devices.spoil = killed
    with pytest.raises(KeyboardInterrupt):
        Coordinator(server, "airdistill", devices).play()
    devices.spoil = _as_it_is
    Coordinator(server, "airdistill", devices).play()
    assert [record["round"] for record in records(server)] == [1, 3, 4]
    assert json.loads((server / "summary.json").read_text())["rounds"] == 4


def test_what_an_emulated_medium_cannot_play_is_refused(tmp_path):
    scenario = small_scenario(tmp_path)
    for name, scheme, given in (
        ("scheme", "fedsgd", scenario),
        ("privacy.noise", "ota_fd", changed(scenario, {"privacy": {"noise": "secure"}})),
    ):
        folder = tmp_path / scheme
        folder.mkdir()
        (folder / "scenario.toml").write_text(as_toml(given))
        with pytest.raises(InputError, match=name):
            Station.open(folder, scheme)


def test_an_answer_that_cannot_be_read_is_told_and_not_believed():
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    from airdistill.flower.server_app import _introduction_in, _lesson_in, _read, _signal_in

    sent = ArrayRecord({"signal": Array(np.ones((3, 3), dtype=complex))})
    said = ConfigRecord({"device": 1, "round": 2})
    assert np.array_equal(_read(RecordDict({"sent": sent, "said": said}), 1, 2, _signal_in), np.ones((3, 3)))
    assert _read(RecordDict({"sent": sent, "said": said}), 0, 2, _signal_in) == "answered as device 1 in round 2"
    assert _read(RecordDict({"sent": sent, "said": said}), 1, 3, _signal_in) == "answered as device 1 in round 2"
    pickled = Array("complex128", (3, 3), "numpy.ndarray", b"\x80\x04]\x94.")
    words = ConfigRecord({"device": 1, "round": 2, "training": "much"})
    for content, read in (
        (RecordDict(), _signal_in),
        (RecordDict({"said": said}), _signal_in),
        (RecordDict({"said": said, "sent": ArrayRecord({"signal": pickled})}), _signal_in),
        (RecordDict({"said": words}), _lesson_in),
    ):
        assert _read(content, 1, 2, read).startswith("sent what cannot be read")
    whole = ConfigRecord({"device": 1, "terms": "x", "last_round": 0})
    assert _introduction_in(RecordDict({"said": whole})) == Introduction(1, "x", 0)
    for content in (RecordDict(), RecordDict({"said": said})):
        with pytest.raises(StationError, match="did not say its number"):
            _introduction_in(content)
