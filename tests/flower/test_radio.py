"""Rounds over a radio, which here is a socket: the server hears the sum."""

import numpy as np
import pytest
from against_simulator import records, simulated
from near_federation import as_it_is, federation
from small_worlds import small_scenario

pytest.importorskip("flwr")

from airdistill.errors import AirDistillError, InputError
from airdistill.flower.coordinator import Coordinator
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
def test_what_comes_over_the_loopback_radio_is_what_the_simulator_hears(tmp_path, axis, scheme):
    scenario = radio_scenario(tmp_path, f"radio.noise={axis}")
    server, devices = federation(tmp_path / "run", scenario, scheme, TRANSMITTER)
    said = []
    devices.spoil = lambda step, _t, _device, real: said.append((step, real)) or real
    Coordinator(server, scheme, devices, radio=FRONT_END).play()
    expected, broadcasts = simulated(scenario, scheme)
    for mine, theirs, broadcast in zip(records(server), expected, broadcasts, strict=True):
        assert np.abs(np.array(mine["knowledge"]) - broadcast).max() < 1e-6
        assert mine["epsilon_spent"] == pytest.approx(theirs["epsilon_spent"], rel=1e-12)
        assert mine["uplink_seconds"] == pytest.approx(theirs["uplink_seconds"])
    answers = [answer for _, answer in said if answer != "asked"]
    assert all(answer == {} for answer in answers)  # neither signals nor lessons go over the wire
    certificate = certify(server)
    assert "emulated" not in " ".join(certificate.reasons)
    assert "sent together" in [assumption.name for assumption in certificate.assumptions]


def test_who_never_came_costs_its_share_and_who_may_have_sent_the_round(tmp_path):
    """Without its word nobody knows whether a device is in the sum."""
    scenario = radio_scenario(tmp_path, "privacy.trust=own_noise", "privacy.epsilon=1e6", "radio.noise_power=1e-30 W")
    server, devices = federation(tmp_path / "run", scenario, "ota_fd", TRANSMITTER)
    known = devices.introductions({0, 1})
    devices.introductions = lambda _: known
    devices.spoil = lambda step, t, device, real: (
        "failed: who knows" if (step, t, device) == ("send", 2, 1) and real != "asked" else real
    )
    Coordinator(server, "ota_fd", devices, radio=FRONT_END).play()
    first, second, third, _ = records(server)
    assert list(first["without_signal"]) == ["2"]
    assert np.allclose(np.sum(first["knowledge"], axis=1), 1.0, atol=0.05)
    assert second["knowledge"] is None
    assert "nobody knows whether what devices 1 send" in second["nothing_because"]
    assert third["knowledge"] is not None


def test_what_a_killed_server_had_heard_is_lost_and_is_not_sent_again(tmp_path):
    server, devices = federation(tmp_path / "run", radio_scenario(tmp_path), "ota_fd", TRANSMITTER)

    def killed(step, round_index, _device, real):
        if (step, round_index) == ("learn", 2):
            raise KeyboardInterrupt
        return real

    devices.spoil = killed
    with pytest.raises(KeyboardInterrupt):
        Coordinator(server, "ota_fd", devices, radio=FRONT_END).play()
    devices.spoil = as_it_is
    Coordinator(server, "ota_fd", devices, radio=FRONT_END).play()
    heard = [record["knowledge"] is not None for record in records(server)]
    assert heard == [True, False, True, True]
    assert "is lost" in records(server)[1]["nothing_because"]
    assert {device.last_round for device in map(devices.device, range(3))} == {4}


def test_a_loopback_radio_takes_one_round_at_a_time(tmp_path, monkeypatch):
    scenario = radio_scenario(tmp_path)
    air, transmitter = FrontEnd(scenario), Transmitter(scenario, 1)
    air.listen(3, (2, 2))
    for round_index, symbols in ((2, np.ones((2, 2))), (3, np.ones((2, 3)))):
        with pytest.raises(AirDistillError, match="nobody listens"):
            transmitter.send(round_index, symbols.astype(complex))
    with pytest.raises(AirDistillError, match="was not listened for"):
        air.heard(2)
    air.close()
    monkeypatch.delenv(PORT)
    with pytest.raises(InputError, match="free port"):
        FrontEnd(scenario)


def test_a_radio_must_be_named(tmp_path):
    server, devices = federation(tmp_path / "run", radio_scenario(tmp_path), "ota_fd")
    with pytest.raises(InputError, match="name a front end"):
        Coordinator(server, "ota_fd", devices)
    with pytest.raises(InputError, match="name a transmitter"):
        devices.device(0)
