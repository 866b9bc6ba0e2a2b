"""The rules that a scenario must keep for who takes part, what hides its signals, and whoever adds them up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airdistill.errors import InputError

if TYPE_CHECKING:
    from airdistill.scenario.model import Scenario


def check_participation(scenario: Scenario) -> None:
    chance = scenario.fleet.participation
    if chance == 1:
        if scenario.fleet.participation_hidden:
            rule = "everybody takes part, which cannot be hidden; give fleet.participation below 1"
            raise InputError("fleet.participation_hidden", True, rule)
        return
    if scenario.fleet.participation_hidden:
        _check_hidden(scenario)
    if scenario.fleet.sampling != "none":
        rule = f"devices are drawn already, sampling {scenario.fleet.sampling}; give one of the two"
        raise InputError("fleet.participation", chance, rule)
    if scenario.air.medium == "secure_sum":
        raise InputError("fleet.participation", chance, "a secure sum asks every device in every round")


def _check_hidden(scenario: Scenario) -> None:
    privacy = scenario.privacy
    if privacy.sensitivity != "device":
        rule = (
            "a hidden coin hides whether a device takes part, and not one record of a device that is heard; declare "
            'sensitivity = "device"'
        )
        raise InputError("privacy.sensitivity", privacy.sensitivity, rule)
    if privacy.carry_over:
        raise InputError("privacy.carry_over", True, "amplified rounds are planned to be alike: not with hidden coins")
    if privacy.noise == "secure":
        rule = "hidden coins are accounted for Gaussian noise, not for sums of discrete ones; use seeded noise"
        raise InputError("privacy.noise", privacy.noise, rule)


def check_medium(scenario: Scenario) -> None:
    dropouts, num_devices, medium = scenario.fleet.expected_dropouts, scenario.num_devices, scenario.air.medium
    if medium != "secure_sum":
        if dropouts:
            rule = f"noise for drop-outs is planned for in a secure_sum alone, and the medium is {medium}"
            raise InputError("fleet.expected_dropouts", dropouts, rule)
        return
    if 2 * dropouts >= num_devices or num_devices < 2:
        rule = f"a secure sum needs more than half of the {num_devices} devices, and at least 2"
        raise InputError("fleet.expected_dropouts", dropouts, rule)
    if scenario.privacy.trust != "fleet_noise":
        rule = "a secure sum is hidden by the devices' noise together: trust fleet_noise"
        raise InputError("privacy.trust", scenario.privacy.trust, rule)


def check_noise(scenario: Scenario) -> None:
    privacy, radio = scenario.privacy, scenario.radio
    if privacy.noise == "secure" and privacy.trust == "receiver_noise":
        rule = 'under trust "receiver_noise" the devices make no noise; trust fleet_noise or own_noise'
        raise InputError("privacy.noise", privacy.noise, rule)
    if radio.csi_error_db is None:
        return
    if privacy.noise == "secure" and privacy.trust != "own_noise":
        rule = "signals that slip leave the common grid of secure noise; trust own_noise, or use seeded noise"
        raise InputError("radio.csi_error_db", radio.csi_error_db, rule)
    if privacy.trust == "receiver_noise" and radio.noise == "real":
        rule = 'a signal that slips leaves the real axis, and noise = "real" has no noise there to count'
        raise InputError("radio.csi_error_db", radio.csi_error_db, rule)
