"""Rounds of a federation without a network: server and devices in one process, message by message."""

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from against_simulator import records, simulated, worst_difference
from near_federation import federation, unchanged
from small_worlds import small_scenario, write_dataset

pytest.importorskip("flwr")

from airdistill.errors import AirDistillError, InputError
from airdistill.flower.coordinator import Coordinator, Introduction
from airdistill.flower.demo import prepare
from airdistill.flower.device import Device
from airdistill.flower.endpoint import SESSION, Endpoint, EndpointError
from airdistill.flower.media import NO_ANSWER, _check_signal
from airdistill.flower.records import packed
from airdistill.privacy.ledger import BudgetExceeded
from airdistill.radio.superposition import Permission
from airdistill.runs.accounts import certify, ledger_header
from airdistill.runs.folder import RunError, locked
from airdistill.runs.record import ended_run
from airdistill.runs.runner import resume


@pytest.mark.parametrize(("scheme", "epochs"), [("airdistill", 0), ("ota_fd", 0), ("ota_fd", 1)])
def test_server_and_devices_give_the_same_records_as_the_simulator(tmp_path, scheme, epochs):
    scenario = small_scenario(
        tmp_path, f"learning.local_epochs={epochs}", "learning.batch_size=7", "learning.rounds=5", "privacy.epsilon=200"
    )
    server, devices = federation(tmp_path / "run", scenario, scheme)
    Coordinator(server, scheme, devices).play()
    expected, broadcasts = simulated(scenario, scheme, server)
    assert worst_difference(records(server), expected, broadcasts) < 1e-6
    summary = json.loads((server / "summary.json").read_text())
    assert any("emulated" in line for line in summary["assumptions"])
    certificate = json.loads((server / "certificate.json").read_text())
    assert any("emulated" in line for line in certificate["reasons"])
    ledgers = {(folder / "ledger.jsonl").read_text() for folder in [server, *devices.folders]}
    assert len(ledgers) == 1  # the server and all devices have computed the same ledger


def test_a_device_is_charged_first_also_for_missed_rounds_and_refuses_earlier_rounds(tmp_path):
    server, devices = federation(tmp_path / "run", small_scenario(tmp_path, "learning.rounds=4"), "airdistill")
    devices.device(0).answer("signal", 1, {})
    assert devices.device(0).last_round == 1
    devices.device(0).answer("signal", 3, {})
    for refused in (2, 1, 0, -1, 5):
        with pytest.raises(EndpointError, match=f"round {refused} is refused"):
            devices.device(0).answer("signal", refused, {})
    ahead, behind = Endpoint.open(devices.folders[0], "airdistill"), Endpoint.open(server, "airdistill")
    for round_index in (1, 2, 3):
        behind.charge_through(round_index)
    assert (devices.folders[0] / "ledger.jsonl").read_text() == (server / "ledger.jsonl").read_text()
    assert [release.round_index for release in ahead.ledger.releases] == [1, 2, 3]


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_the_same_question_gets_the_same_bytes_without_a_second_charge(tmp_path, noise):
    """Secure noise cannot be drawn again, and so the reply is cached."""
    scenario = small_scenario(tmp_path, f"privacy.noise={noise}", "privacy.trust=own_noise")
    _, devices = federation(tmp_path / "run", scenario, "ota_fd")
    first = devices.device(0).answer("signal", 1, {})
    ledger = (devices.folders[0] / "ledger.jsonl").read_bytes()
    assert devices.device(0).answer("signal", 1, {}) == first
    assert (devices.folders[0] / "ledger.jsonl").read_bytes() == ledger
    with pytest.raises(EndpointError, match="an earlier question was different"):
        devices.device(0).answer("signal", 1, {"more": 1})


def test_a_device_killed_after_its_charge_stays_charged_and_sends_nothing(tmp_path, monkeypatch):
    _, devices = federation(tmp_path / "run", small_scenario(tmp_path), "ota_fd")
    device = devices.device(0)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(device, "_knowledge", killed)
    with pytest.raises(KeyboardInterrupt):
        device.answer("signal", 1, {})
    assert devices.device(0).last_round == 1
    with pytest.raises(EndpointError, match="round 1 is refused"):
        devices.device(0).answer("signal", 1, {})


def test_a_device_refuses_a_round_beyond_its_budget(tmp_path, monkeypatch):
    _, devices = federation(tmp_path / "run", small_scenario(tmp_path), "ota_fd")
    device = devices.device(1)
    header = device.endpoint.ledger.header
    monkeypatch.setattr(device.endpoint.ledger, "header", replace(header, mu=header.mu * 0.1))
    with pytest.raises(BudgetExceeded, match="it was not transmitted"):
        device.answer("signal", 1, {})
    assert devices.device(1).last_round == 0


def test_a_device_learns_once_a_round_and_only_from_finite_numbers(tmp_path):
    _, devices = federation(tmp_path / "run", small_scenario(tmp_path), "ota_fd")
    uniform = np.full((3, 3), 1 / 3)
    with pytest.raises(EndpointError, match="the last charge in round 0"):
        devices.device(0).answer("learn", 4, {"evaluate": 0})
    devices.device(0).answer("signal", 1, {})
    for number, wrong in enumerate((uniform[:2], uniform * np.inf, np.array([[np.nan, 0.5, 0.5]] * 3))):
        devices.device(number).answer("signal", 2, {})
        with pytest.raises(AirDistillError, match=r"is refused|of shape"):
            devices.device(number).answer("learn", 2, {"broadcast": packed(wrong), "evaluate": 0})
        # The server may not try other broadcasts until one is accepted.
        with pytest.raises(EndpointError, match="an earlier question was different"):
            devices.device(number).answer("learn", 2, {"broadcast": packed(uniform), "evaluate": 0})
    unsent = uniform.copy()
    unsent[1] = np.nan
    question = {"broadcast": packed(unsent), "evaluate": 1}
    report = devices.device(0).answer("learn", 1, question)
    assert "mean" in report
    weights = (devices.folders[0] / "weights.safetensors").read_bytes()
    assert devices.device(0).answer("learn", 1, question) == report
    assert (devices.folders[0] / "weights.safetensors").read_bytes() == weights
    with pytest.raises(EndpointError, match="an earlier question was different"):
        devices.device(0).answer("learn", 1, {"broadcast": packed(uniform), "evaluate": 0})


def test_an_updated_model_does_not_send_in_an_earlier_round(tmp_path):
    """Under `trajectory` the sensitivity of a round grows with the updates before it; in round 1 there are none."""
    scenario = small_scenario(tmp_path, "privacy.sensitivity=trajectory")
    _, devices = federation(tmp_path / "run", scenario, "ota_fd")
    device = devices.device(0)
    device.endpoint.charge_through(2)
    device.learn(1, None, evaluate=False)
    devices.device(0).answer("signal", 3, {})
    devices.device(0).learn(3, None, evaluate=False)
    with pytest.raises(EndpointError, match="round 3 is refused: the model was already updated in round 3"):
        devices.device(0)._knowledge(3)


def test_the_sealed_files_of_a_folder_cannot_be_changed(tmp_path):
    scenario = small_scenario(tmp_path)
    server, devices = federation(tmp_path / "run", scenario, "ota_fd")
    other, _ = federation(tmp_path / "other", small_scenario(tmp_path, "privacy.epsilon=2000"), "ota_fd")
    (devices.folders[0] / "plan.json").write_bytes((other / "plan.json").read_bytes())
    with pytest.raises(EndpointError, match="is not the plan of the scenario in the same folder"):
        devices.device(0)
    devices.device(1).answer("signal", 1, {})
    (devices.folders[1] / "plan.json").write_bytes((other / "plan.json").read_bytes())
    with pytest.raises(RunError, match="cannot be trusted"):
        devices.device(1)
    devices.device(2).answer("signal", 1, {})
    (devices.folders[2] / "ledger.jsonl").unlink()
    with pytest.raises(AirDistillError, match="ledger"):
        devices.device(2)
    Endpoint.open(server, "ota_fd")
    (server / "run.json").unlink()  # as after a kill during the first opening, before any release
    assert Endpoint.open(server, "ota_fd").ledger.last_round == 0


ANSWERS = {
    "missing": None,
    "failed": "failed: no power",
    "shape": {"signal": packed(np.zeros((2, 3), dtype=complex))},
    "not finite": {"signal": packed(np.full((3, 3), np.nan + 0j))},
    "string": {"signal": "x"},
    "nothing": {},
    "too strong": {"signal": packed(np.full((3, 3), 0.1 + 0j))},  # 10 mW; the limit is 1 mW
}


@pytest.mark.parametrize("noise", ["seeded", "secure"])
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_device_without_a_valid_signal_is_left_out_if_each_device_has_its_own_noise(tmp_path, answer, noise):
    """Device 2 in round 2: no other device relies on its noise, and so the sum is scaled to the others' mean."""
    scenario = small_scenario(
        tmp_path, "learning.rounds=3", "privacy.trust=own_noise", "privacy.epsilon=1e6", "radio.noise_power=1e-30 W",
        f"privacy.noise={noise}",
    )  # fmt: skip
    server, devices = federation(tmp_path / "run", scenario, "ota_fd")
    devices.tamper = lambda step, t, device, real: answer if (step, t, device) == ("signal", 2, 2) else real
    Coordinator(server, "ota_fd", devices).play()
    first, second, third = records(server)
    assert list(second["without_signal"]) == ["2"]
    assert first["without_signal"] == third["without_signal"] == {}
    assert second["knowledge"] is not None
    assert np.allclose(np.sum(second["knowledge"], axis=1), 1.0, atol=0.05)  # a mean of predictions sums to one


def test_a_signal_as_strong_as_knowledge_and_noise_explain_is_accepted(tmp_path):
    """No signal of honest devices is rejected in 500 rounds with strong noise."""
    scenario = small_scenario(tmp_path, "learning.rounds=500", "learning.max_rounds=500", "privacy.trust=own_noise")
    server, _ = federation(tmp_path / "run", scenario, "ota_fd")
    endpoint = Endpoint.open(server, "ota_fd")
    knowledge = np.eye(3)
    for round_index in range(1, 501):
        charged = endpoint.charge_through(round_index)
        for device in range(3):
            permission = Permission(round_index)  # that of the device's own charge
            own = replace(charged, noise=replace(charged.on_air, permission=permission), permission=permission)
            signal = own.signal_of(device, knowledge)
            _check_signal(signal, charged.design, device, np.zeros(3))
            with pytest.raises(AirDistillError, match="explain at most"):
                _check_signal(signal + 20 * np.abs(signal).max(), charged.design, device, np.zeros(3))


@pytest.mark.parametrize("adds_noise", [True, False])
def test_nothing_is_broadcast_if_the_guarantees_rely_on_the_noise_of_a_missing_device(tmp_path, adds_noise):
    """A design assigns the noise to the devices with the lowest cost; the noise of the others is zero."""
    scenario = small_scenario(tmp_path, "learning.rounds=3", "privacy.trust=fleet_noise")
    server, devices = federation(tmp_path / "run", scenario, "airdistill")
    session = (server / SESSION).read_text()
    probe, _ = federation(tmp_path / "probe", scenario, "airdistill", session=session)
    has_noise = Endpoint.open(probe, "airdistill").charge_through(2).design.noise_gain.any(axis=1)
    lost = int(np.flatnonzero(has_noise == adds_noise)[0])
    devices.tamper = lambda _step, t, device, real: None if (t, device) == (2, lost) else real
    Coordinator(server, "airdistill", devices).play()
    first, second, third = records(server)
    assert list(second["without_signal"]) == [str(lost)]
    assert (second["knowledge"] is None) == adds_noise
    assert ("rely on the noise" in (second["nothing_because"] or "")) == adds_noise
    assert first["knowledge"] is not None
    assert third["knowledge"] is not None
    assert devices.device(lost).last_round == 3  # it is also charged for the round that it missed


def test_a_run_does_not_start_with_wrong_terms_duplicates_or_too_few_devices(tmp_path):
    scenario = small_scenario(tmp_path, "fleet.min_devices=2")
    server, devices = federation(tmp_path / "run", scenario, "ota_fd")
    known = devices.introductions({0, 1, 2})
    wrong = {
        "a different scenario": [*known[:2], Introduction(2, "other")],
        "two nodes claim": [*known, known[1]],
        "devices 1, 2 are missing": known[:1],
    }
    for reason, introduced in wrong.items():
        devices.introductions = lambda _, introduced=introduced: introduced
        with pytest.raises(EndpointError, match=reason):
            Coordinator(server, "ota_fd", devices).play()


def test_a_late_device_participates_from_then_on_and_too_few_devices_stop_a_run(tmp_path):
    scenario = small_scenario(tmp_path, "learning.rounds=4", "fleet.min_devices=2", "privacy.trust=own_noise")
    server, devices = federation(tmp_path / "run", scenario, "ota_fd")
    introduced = devices.introductions({0, 1, 2})
    devices.introductions = lambda _: introduced[:2]
    late = iter([[], [Introduction(2, "other terms")], [introduced[2]], []])
    devices.newcomers = lambda: next(late)
    devices.tamper = lambda _step, t, device, real: None if (t, device) in [(4, 0), (4, 1)] else real
    with pytest.raises(EndpointError, match=r"round 4: 1 devices replied and fleet\.min_devices requires 2"):
        Coordinator(server, "ota_fd", devices).play()
    assert [list(record["without_signal"]) for record in records(server)] == [["2"], ["2"], []]
    devices.tamper, devices.newcomers = unchanged, list
    devices.introductions = lambda _: introduced
    Coordinator(server, "ota_fd", devices).play()  # the devices are back: the round is repeated, and the run continues
    assert records(server)[3]["without_signal"] == {}


@pytest.mark.parametrize(
    ("scheme", "noise", "killed_in", "killed_after"),
    [
        ("airdistill", "seeded", "signal", 2),
        ("ota_fd", "seeded", "learn", 0),
        ("ota_fd", "secure", "signal", 0),
        ("ota_fd", "secure", "learn", 2),
    ],
)
def test_a_restarted_server_repeats_the_round_with_the_same_result(tmp_path, scheme, noise, killed_in, killed_after):
    """The server is killed after the reply of device `killed_after`; the next devices were not asked yet."""
    scenario = small_scenario(
        tmp_path, "learning.rounds=4", f"privacy.noise={noise}", "privacy.epsilon=200", "privacy.carry_over=true"
    )
    server, devices = federation(tmp_path / "run", scenario, scheme)

    def killed(step, round_index, device, real):
        if (step, round_index, device) == (killed_in, 3, killed_after) and real != "asked":
            raise KeyboardInterrupt
        return real

    devices.tamper = killed
    with pytest.raises(KeyboardInterrupt):
        Coordinator(server, scheme, devices).play()
    devices.tamper = unchanged
    Coordinator(server, scheme, devices).play()
    assert [record["round"] for record in records(server)] == [1, 2, 3, 4]
    assert all(record["without_signal"] == record["without_lesson"] == {} for record in records(server))
    assert json.loads((server / "summary.json").read_text())["rounds"] == 4
    ledgers = [Endpoint.open(folder, scheme).ledger.releases for folder in [server, *devices.folders]]
    for releases in ledgers:
        assert [mine.same_as(first) for mine, first in zip(releases, ledgers[0], strict=True)] == [True] * 4
    if noise == "seeded":
        whole, others = federation(tmp_path / "whole", scenario, scheme, session=(server / SESSION).read_text())
        Coordinator(whole, scheme, others).play()
        assert (server / "rounds.jsonl").read_bytes() == (whole / "rounds.jsonl").read_bytes()


def test_a_lost_device_an_invalid_signal_and_a_killed_server_in_one_run(tmp_path):
    """Device 1 is lost in round 2 after its charge, device 2 then sends NaN, and the server is killed in round 3."""
    scenario = small_scenario(tmp_path, "learning.rounds=3", "privacy.trust=own_noise")
    server, devices = federation(tmp_path / "run", scenario, "ota_fd")
    whole, others = federation(tmp_path / "whole", scenario, "ota_fd", session=(server / SESSION).read_text())

    def lost_and_invalid(step, t, device, real):
        if device == 1 and t >= 2:
            return real if (step, t, real) == ("signal", 2, "asked") else NO_ANSWER if real != "asked" else None
        return ANSWERS["not finite"] if (step, t, device) == ("signal", 2, 2) and real != "asked" else real

    def killed(step, t, device, real):
        if (step, t, device) == ("signal", 3, 2) and real != "asked":
            raise KeyboardInterrupt
        return lost_and_invalid(step, t, device, real)

    devices.tamper = killed
    with pytest.raises(KeyboardInterrupt):
        Coordinator(server, "ota_fd", devices).play()
    devices.tamper = others.tamper = lost_and_invalid
    Coordinator(server, "ota_fd", devices).play()
    Coordinator(whole, "ota_fd", others).play()
    assert (server / "rounds.jsonl").read_bytes() == (whole / "rounds.jsonl").read_bytes()
    assert [list(record["without_signal"]) for record in records(server)] == [[], ["1", "2"], ["1"]]
    assert "not finite" in records(server)[1]["without_signal"]["2"]
    # Each device is charged for the rounds in which it was asked: the lost device for two, the others for all.
    assert [certify(folder).num_releases for folder in devices.folders] == [3, 2, 3]
    of_all = certify(server)
    for number, folder in enumerate(devices.folders):
        account, known = certify(folder).devices[number], of_all.devices[number]
        # The server charges a device that might have replied.
        assert account.spent < known.spent if number == 1 else account.spent == known.spent
        assert known.kept


def without_checkpoints(server):
    for path in server.glob("checkpoint-*"):
        path.unlink()
    return {path.name: path.read_bytes() for path in server.glob("*.json*")}


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_an_ended_federation_is_not_repeated(tmp_path, caplog, noise):
    scenario = small_scenario(tmp_path, "learning.rounds=2", "privacy.epsilon=200", f"privacy.noise={noise}")
    server, devices = federation(tmp_path / "run", scenario, "ota_fd")
    Coordinator(server, "ota_fd", devices).play()
    before = without_checkpoints(server)
    devices.tamper = lambda *_: pytest.fail("a device was asked")
    Coordinator(server, "ota_fd", devices).play()
    assert "has ended; nothing is left to do" in caplog.text
    assert {path.name: path.read_bytes() for path in server.glob("*.json*")} == before


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_an_interrupted_federation_without_checkpoints_is_refused(tmp_path, noise):
    scenario = small_scenario(tmp_path, "learning.rounds=4", "privacy.epsilon=200", f"privacy.noise={noise}")
    server, devices = federation(tmp_path / "run", scenario, "ota_fd")

    def killed(_step, round_index, _device, real):
        if round_index == 3:
            raise KeyboardInterrupt
        return real

    devices.tamper = killed
    with pytest.raises(KeyboardInterrupt):
        Coordinator(server, "ota_fd", devices).play()
    before, devices.tamper = without_checkpoints(server), unchanged
    with pytest.raises(RunError, match=r"checkpoints were removed or are damaged, .* after round 3; .*--ledger"):
        Coordinator(server, "ota_fd", devices).play()
    assert {path.name: path.read_bytes() for path in server.glob("*.json*")} == before
    assert len(records(server)) == 2


def test_the_folders_of_both_ends_are_certified_and_cannot_be_resumed_as_simulations(tmp_path):
    server, devices = federation(tmp_path / "run", small_scenario(tmp_path, "learning.rounds=2"), "ota_fd")
    Coordinator(server, "ota_fd", devices).play()
    for folder in (server, *devices.folders):
        certificate = certify(folder)
        assert certificate.num_releases == 2
        assert any("emulated" in reason for reason in certificate.reasons)
        assert certificate.verdict == "does not hold"  # a single signal does not have the other devices' noise
        for refused in (resume, ended_run):
            with pytest.raises(InputError, match="of a federation"):
                refused(folder)


def test_own_noise_protects_a_device_whose_signal_the_server_sees(tmp_path):
    scenario = small_scenario(tmp_path, "learning.rounds=2", "privacy.trust=own_noise", "privacy.noise=secure")
    server, devices = federation(tmp_path / "run", scenario, "ota_fd")
    Coordinator(server, "ota_fd", devices).play()
    assert certify(server).verdict == "holds"
    assert all(record["loss"] is None for record in records(server))  # the ledger does not account for losses


def test_the_certificate_says_that_devices_reported_their_losses(tmp_path):
    scenario = small_scenario(tmp_path, "learning.rounds=2", "privacy.trust=own_noise")
    server, devices = federation(tmp_path / "run", scenario, "ota_fd")
    Coordinator(server, "ota_fd", devices).play()
    certificate = certify(server)
    assert certificate.verdict == "simulation"
    assert any("reported the exact losses" in reason for reason in certificate.reasons)
    assert all(record["loss"] is not None for record in records(server))


def test_a_device_with_its_own_data_must_have_the_planned_class_counts(tmp_path):
    """The counts are in the scenario; with other counts the planned noise would not be enough."""
    for number in range(3):
        write_dataset(tmp_path / f"own-{number}.npz", num_train=12 + 3 * number, seed=number)
    counts = "data.class_counts=[[4,4,4],[5,5,5],[6,6,6]]"
    scenario = small_scenario(tmp_path, counts, "learning.rounds=2", "privacy.epsilon=200")
    server, devices = federation(tmp_path / "run", scenario, "ota_fd", session="0" * 32)  # the same noise each time
    devices.data = [str(tmp_path / f"own-{number}.npz") for number in range(3)]
    Coordinator(server, "ota_fd", devices).play()
    assert [record["without_signal"] for record in records(server)] == [{}, {}]
    assert records(server)[1]["accuracy"]["mean"] > 0.4
    with pytest.raises(AirDistillError, match=r"has \[5, 5, 5\] samples of each class; the plan requires \[4"):
        Device(devices.folders[0], 0, "ota_fd", data=devices.data[1]).answer("learn", 3, {})
    with pytest.raises(InputError, match=r"data\.class_counts"):
        Device(devices.folders[0], 0, "ota_fd")


def test_a_scenario_that_a_federation_cannot_run_is_rejected(tmp_path):
    sampled = ("fleet.sampling=with_replacement", "fleet.sampled_devices=2")
    for name, scheme, given in (
        ("scheme", "fedsgd", small_scenario(tmp_path)),
        ("fleet.sampling", "ota_fd", small_scenario(tmp_path, *sampled)),
        ("fleet.participation", "ota_fd", small_scenario(tmp_path, "fleet.participation=0.5")),
    ):
        with pytest.raises(InputError, match=name):
            prepare(tmp_path / scheme, given, scheme)
        assert not (tmp_path / scheme).exists()


def test_the_server_learns_the_reason_of_a_refusal_but_not_of_a_failure(tmp_path):
    """Flower forwards the text of an exception, and a text from NumPy may contain data."""
    from airdistill.flower.client_app import _device

    _, devices = federation(tmp_path / "run", small_scenario(tmp_path), "ota_fd")
    settings = {"folder": str(devices.folders[0]), "device": 0, "scheme": "ota_fd"}
    with pytest.raises(EndpointError, match="round 9 is refused"), _device(settings) as device:
        device.answer("signal", 9, {})
    with pytest.raises(AirDistillError, match=r"^failed; the reason is in the device's own log$"), _device(settings):
        raise ValueError("0.123 of device 0")
    assert "0.123 of device 0" in (devices.folders[0] / "failures.log").read_text()
    with pytest.raises(InputError, match="--node-config scheme"), _device({"folder": "x", "device": 0}):
        pass


def test_a_second_message_waits_for_the_first(tmp_path):
    with locked(tmp_path):
        began = time.monotonic()
        with pytest.raises(RunError, match="another process"), locked(tmp_path, patience_s=0.3):
            pass
        assert time.monotonic() - began >= 0.3
    with locked(tmp_path, patience_s=0.3):
        pass


def test_an_invalid_reply_is_reported_and_not_used():
    from flwr.app import ConfigRecord, Error, RecordDict

    from airdistill.flower.server_app import _answer_in, _introduction_in

    def reply(content, error=None):
        """The fields of a Flower message that are read; a real message can only be made within a run."""
        return SimpleNamespace(content=content, error=error, has_error=lambda: error is not None)

    said = {"device": 1, "round": 2, "signal": b"abc"}
    whole = reply(RecordDict({"said": ConfigRecord(said)}))
    assert _answer_in(whole, 1, 2) == said
    assert _answer_in(None, 1, 2) == "no answer in time"
    assert _answer_in(reply(None, Error(1, "no power")), 1, 2) == "failed: no power"
    for device, round_index in ((0, 2), (1, 3)):
        assert _answer_in(whole, device, round_index) == "replied as device 1 in round 2"
    for empty in (RecordDict(), RecordDict({"said": ConfigRecord({})})):
        assert _answer_in(reply(empty), 1, 2) == "replied as device None in round None"
    whole = ConfigRecord({"device": 1, "terms": "x"})
    assert _introduction_in(reply(RecordDict({"said": whole}))) == Introduction(1, "x")
    assert _introduction_in(reply(None, Error(2, "no folder"))) == "failed: no folder"
    for content in (RecordDict(), RecordDict({"said": ConfigRecord({"device": 1})})):
        assert "did not send its number" in _introduction_in(reply(content))


def test_two_federations_on_other_data_share_no_noise(tmp_path):
    """No endpoint has all data, and so none can key its noise by them: the difference of two signals had no noise."""
    noise, keys = [], []
    for name, moved in (("first", 0.0), ("second", 1.0)):
        (tmp_path / name).mkdir()
        scenario = small_scenario(tmp_path / name, "privacy.trust=own_noise")
        with np.load(scenario.data.dataset) as stored:
            arrays = dict(stored)
        np.savez(scenario.data.dataset, **{**arrays, "x_train": arrays["x_train"] + moved})
        _, devices = federation(tmp_path / name / "run", scenario, "ota_fd")
        endpoint = Endpoint.open(devices.folders[0], "ota_fd")
        keys.append(endpoint.ledger.header.terms["noise_key"])
        noise.append(endpoint.charge_through(1).on_air.artificial)
        (statement,) = [each for each in certify(devices.folders[0]).statement if "It is keyed by" in each]
        assert "a random id that the federation's folders were prepared with" in statement
        assert "scenario, data" not in statement
    assert keys[0] != keys[1]
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.8


def test_folders_that_an_earlier_version_prepared_have_the_noise_that_they_had(tmp_path):
    scenario = small_scenario(tmp_path)
    server, devices = federation(tmp_path / "run", scenario, "ota_fd")
    for folder in (server, *devices.folders):
        (folder / SESSION).unlink()
    Coordinator(server, "ota_fd", devices).play()
    header = Endpoint.open(server, "ota_fd").ledger.header
    plan = Endpoint.open(server, "ota_fd").plan
    assert header.terms["noise_key"] == ledger_header(plan, "ota_fd", "private").terms["noise_key"]
    assert any("another federation of this scenario has the same noise" in each for each in certify(server).statement)
