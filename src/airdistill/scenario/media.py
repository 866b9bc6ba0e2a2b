"""The rules that a scenario must keep for its medium: for whoever adds the signals up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airdistill.errors import InputError

if TYPE_CHECKING:
    from airdistill.scenario.model import Scenario


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
