"""Rounds over a loopback radio, which is a socket: the server receives the sum."""

import numpy as np
import pytest
from against_simulator import records, simulated
from near_federation import federation, unchanged
from public_worlds import public_scenario
from small_worlds import small_scenario

pytest.importorskip("flwr")

from airdistill.errors import AirDistillError, InputError
from airdistill.flower.coordinator import BROADCAST, Coordinator
from airdistill.flower.machine.processes import free_port
from airdistill.radio.loopback import PORT, FrontEnd, Transmitter
from airdistill.runs.accounts import certify

FRONT_END, TRANSMITTER = "airdistill.radio.loopback:FrontEnd", "airdistill.radio.loopback:Transmitter"


@pytest.fixture(autouse=True)
def _port(monkeypatch):
    monkeypatch.setenv(PORT, str(free_port()))


def radio_scenario(folder, *changes):
    return small_scenario(folder, "air.medium=radio", "learning.rounds=4", *changes)


@pytest.mark.parametrize(("axis", "scheme"), [("complex", "airdistill"), ("real", "ota_fd")])
def test_the_loopback_radio_receives_the_same_as_the_simulator(tmp_path, axis, scheme):
    # The receiver's own noise is new each time, and too weak here to be seen; the devices' noise is as simulated.
    scenario = radio_scenario(tmp_path, f"radio.noise={axis}", "radio.noise_power=1e-30 W")
    server, devices = federation(tmp_path / "run", scenario, scheme, TRANSMITTER)
    calls = []
    devices.tamper = lambda _step, _t, _device, real: calls.append(real) or real
    Coordinator(server, scheme, devices, radio=FRONT_END).play()
    expected, broadcasts = simulated(scenario, scheme, server)
    for mine, theirs, broadcast in zip(records(server), expected, broadcasts, strict=True):
        assert np.abs(np.array(mine["knowledge"]) - broadcast).max() < 1e-6
        assert mine["epsilon_spent"] == pytest.approx(theirs["epsilon_spent"], rel=1e-12)
        assert mine["uplink_seconds"] == pytest.approx(theirs["uplink_seconds"])
    answers = [answer for answer in calls if answer != "asked"]
    assert all(answer == {} for answer in answers)  # neither signals nor update reports cross the network
    certificate = certify(server)
    assert "emulated" not in " ".join(certificate.reasons)
    assert "simultaneous transmission" in [assumption.name for assumption in certificate.assumptions]


@pytest.mark.parametrize("scheme", ["feature_means", "airdistill_proxy"])
def test_features_and_votes_over_a_radio_teach_what_the_simulator_does(tmp_path, scheme):
    scenario = public_scenario(tmp_path, "air.medium=radio", "radio.noise_power=1e-30 W")
    server, devices = federation(tmp_path / "run", scenario, scheme, TRANSMITTER)
    Coordinator(server, scheme, devices, radio=FRONT_END).play()
    (expected,), (broadcast,) = simulated(scenario, scheme, server)
    (record,) = records(server)
    assert record["without_signal"] == record["without_lesson"] == {}
    assert record["epsilon_spent"] == pytest.approx(expected["epsilon_spent"], rel=1e-12)
    assert np.abs(np.load(server / BROADCAST) - broadcast).max() < 1e-6


@pytest.mark.parametrize("axis", ["complex", "real"])
def test_the_loopback_radio_has_receiver_noise_of_its_own(tmp_path, monkeypatch, axis):
    scenario, shape = radio_scenario(tmp_path, f"radio.noise={axis}", "radio.noise_power=2e-9 W"), (20, 200)
    received = []
    for _ in range(2):
        monkeypatch.setenv(PORT, str(free_port()))
        front_end = FrontEnd(scenario)
        front_end.listen(1, shape)
        received.append(front_end.received(1))
        assert np.array_equal(front_end.received(1), received[-1])
        front_end.close()
    assert not (received[0] == received[1]).any()
    # A complex sample has two real parts, and so half the relative error of a real one's power.
    parts = 2 if axis == "complex" else 1
    for noise in received:
        assert np.mean(np.abs(noise) ** 2) == pytest.approx(2e-9, rel=5 * np.sqrt(2 / (parts * noise.size)))
        assert (np.abs(noise.imag) > 0).any() == (axis == "complex")


def test_an_absent_device_is_left_out_and_an_uncertain_one_invalidates_the_round(tmp_path):
    """Without its reply the server does not know whether a device is in the sum."""
    scenario = radio_scenario(tmp_path, "privacy.trust=own_noise", "privacy.epsilon=1e6", "radio.noise_power=1e-30 W")
    server, devices = federation(tmp_path / "run", scenario, "ota_fd", TRANSMITTER)
    known = devices.introductions({0, 1})
    devices.introductions = lambda _: known
    devices.tamper = lambda step, t, device, real: (
        "failed: unknown" if (step, t, device) == ("send", 2, 1) and real != "asked" else real
    )
    Coordinator(server, "ota_fd", devices, radio=FRONT_END).play()
    first, second, third, _ = records(server)
    assert list(first["without_signal"]) == ["2"]
    assert np.allclose(np.sum(first["knowledge"], axis=1), 1.0, atol=0.05)
    assert second["knowledge"] is None
    assert "unknown whether the signals of devices 1 are in the sum" in second["nothing_because"]
    assert third["knowledge"] is not None


def test_the_signal_that_a_killed_server_had_received_is_lost_and_not_sent_again(tmp_path):
    server, devices = federation(tmp_path / "run", radio_scenario(tmp_path), "ota_fd", TRANSMITTER)

    def killed(step, round_index, _device, real):
        if (step, round_index) == ("learn", 2):
            raise KeyboardInterrupt
        return real

    devices.tamper = killed
    with pytest.raises(KeyboardInterrupt):
        Coordinator(server, "ota_fd", devices, radio=FRONT_END).play()
    devices.tamper = unchanged
    Coordinator(server, "ota_fd", devices, radio=FRONT_END).play()
    has_knowledge = [record["knowledge"] is not None for record in records(server)]
    assert has_knowledge == [True, False, True, True]
    assert "is lost" in records(server)[1]["nothing_because"]
    assert {device.last_round for device in map(devices.device, range(3))} == {4}


def test_a_loopback_radio_receives_one_round_at_a_time(tmp_path, monkeypatch):
    scenario = radio_scenario(tmp_path)
    air, transmitter = FrontEnd(scenario), Transmitter(scenario, 1)
    air.listen(3, (2, 2))
    for round_index, symbols in ((2, np.ones((2, 2))), (3, np.ones((2, 3)))):
        with pytest.raises(AirDistillError, match="does not receive such a round now"):
            transmitter.send(round_index, symbols.astype(complex))
    with pytest.raises(AirDistillError, match="round 2 was not received"):
        air.received(2)
    air.close()
    monkeypatch.delenv(PORT)
    with pytest.raises(InputError, match="free port"):
        FrontEnd(scenario)


def test_the_medium_radio_requires_the_name_of_a_driver(tmp_path):
    server, devices = federation(tmp_path / "run", radio_scenario(tmp_path), "ota_fd")
    with pytest.raises(InputError, match="name a front end"):
        Coordinator(server, "ota_fd", devices)
    with pytest.raises(InputError, match="name a transmitter"):
        devices.device(0)
