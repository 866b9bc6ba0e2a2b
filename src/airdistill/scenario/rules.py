"""The rules that a scenario must keep for who takes part, what hides its signals, and whoever adds them up.

What 3GPP TR 38.901 covers: the fadings that it defines, and the rules that a scenario with one of them must keep.

The rules that a scenario must keep for a server with several antennas.

The rules that a scenario must keep for the transceiver as the paper prints it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airdistill.errors import InputError

if TYPE_CHECKING:
    from airdistill.scenario.model import Radio, Scenario


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


@dataclass(frozen=True)
class Cell:
    """Where a path-loss model holds, table 7.4.1-1: heights in metres, each as (least, most)."""

    name: str
    server_height: tuple[float, float]
    usual_server_height: float
    device_height: tuple[float, float]
    highest_carrier: float


CELLS = {
    "umi": Cell("UMi", (10.0, 10.0), 10.0, (1.5, 22.5), 100e9),
    "uma": Cell("UMa", (25.0, 25.0), 25.0, (1.5, 22.5), 100e9),
    "rma": Cell("RMa", (10.0, 150.0), 35.0, (1.0, 10.0), 30e9),
}
TAPPED_DELAY_LINES = ("tdl-a", "tdl-b", "tdl-c", "tdl-d", "tdl-e")

LOWEST_CARRIER, HIGHEST_CARRIER = 0.5e9, 100e9
NEAREST_M, FARTHEST_M = 10.0, 5000.0
# Shadowing is correlated between every two devices: a table of seven numbers for each pair.
MOST_DEVICES = 2000
# The usual rule for flat fading; then one coefficient describes a slot.
SLOT_PER_DELAY_SPREAD = 10.0


def is_threegpp(fading: str) -> bool:
    return fading in CELLS or fading in TAPPED_DELAY_LINES


def check_threegpp(radio: Radio, num_devices: int) -> None:
    """Refuses what the standard does not cover; with gains or a trace the fading is not used."""
    if not is_threegpp(radio.fading) or radio.gains is not None or radio.trace is not None:
        return
    if num_devices > MOST_DEVICES:
        rule = f'fading "{radio.fading}" is drawn for at most {MOST_DEVICES} devices'
        raise InputError("fleet.devices", num_devices, rule)
    if radio.fading in CELLS:
        _check_cell(radio, CELLS[radio.fading])
    else:
        _check_between("radio.carrier", radio.carrier, (LOWEST_CARRIER, HIGHEST_CARRIER), "Hz", "TDL")
        longest = radio.slot / SLOT_PER_DELAY_SPREAD
        if radio.delay_spread > longest:
            rule = f"must be at most a tenth of radio.slot, {longest:g} s: one coefficient stands for a slot"
            raise InputError("radio.delay_spread", radio.delay_spread, rule)


def _check_cell(radio: Radio, cell: Cell) -> None:
    _check_between("radio.carrier", radio.carrier, (LOWEST_CARRIER, cell.highest_carrier), "Hz", cell.name)
    for metres in radio.distance.numbers:
        _check_between("radio.distance", metres, (NEAREST_M, FARTHEST_M), "m", cell.name)
    _check_between("radio.device_height", radio.device_height, cell.device_height, "m", cell.name)
    if radio.server_height is not None:
        _check_between("radio.server_height", radio.server_height, cell.server_height, "m", cell.name)


def _check_between(field: str, value: float, limits: tuple[float, float], unit: str, model: str) -> None:
    least, most = limits
    if not least <= value <= most:
        span = f"be {least:g} {unit}" if least == most else f"lie between {least:g} and {most:g} {unit}"
        raise InputError(field, value, f"must {span} for 3GPP {model}")


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


def check_paper_transceiver(scenario: Scenario) -> None:
    privacy, radio = scenario.privacy, scenario.radio
    if radio.transceiver != "paper":
        return
    needed = {"sensitivity": "paper", "accountant": "paper", "trust": "receiver_noise", "relabel": False}
    for field, value in needed.items():
        if getattr(privacy, field) != value:
            rule = f"the paper's transceiver is built for {field} = {value} alone"
            raise InputError(f"privacy.{field}", getattr(privacy, field), rule)
    for name, given, wanted in [
        ("radio.truncation", radio.truncation, 0),
        ("radio.csi_error_db", radio.csi_error_db, None),
        ("privacy.carry_over", privacy.carry_over, False),
        ("fleet.participation", scenario.fleet.participation, 1),
    ]:
        if given != wanted:
            raise InputError(name, given, "the paper's transceiver knows nothing of it")
