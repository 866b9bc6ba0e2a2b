"""The rules that a scenario must keep for a server with several antennas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airdistill.errors import InputError
from airdistill.scenario.threegpp import is_threegpp

if TYPE_CHECKING:
    from airdistill.scenario.model import Scenario


def check_antennas(scenario: Scenario) -> None:
    """With one antenna everything goes; with more, what has not been worked out is refused."""
    radio, num_antennas = scenario.radio, scenario.radio.antennas
    if num_antennas == 1:
        return
    refused: list[tuple[bool, str, Any, str]] = [
        (radio.gains is not None, "radio.gains", "given", "has one gain for every device"),
        (radio.trace is not None, "radio.trace", radio.trace, "has one gain for every device"),
        (is_threegpp(radio.fading), "radio.fading", radio.fading, "is drawn for one antenna"),
        (radio.csi_error_db is not None, "radio.csi_error_db", radio.csi_error_db, "is for one antenna"),
        (radio.truncation != 0, "radio.truncation", radio.truncation, "is for one antenna"),
        (radio.transceiver == "paper", "radio.transceiver", "paper", "eqs. (18)-(20) are for one antenna"),
        (radio.noise == "real", "radio.noise", "real", "would hide nothing on the antennas' other axes: complex"),
        (scenario.fleet.participation < 1, "fleet.participation", scenario.fleet.participation, "is for one antenna"),
        (scenario.privacy.noise == "secure", "privacy.noise", "secure", "has a grid for one antenna"),
        (scenario.air.medium != "emulated", "air.medium", scenario.air.medium, "adds up for one antenna"),
    ]
    for applies, field, value, rule in refused:
        if applies:
            raise InputError(field, value, f"{rule}; radio.antennas = {num_antennas}")
