"""What 3GPP TR 38.901 covers: the fadings that it defines, and the rules that a scenario with one of them must keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airdistill.errors import InputError

if TYPE_CHECKING:
    from airdistill.scenario.model import Radio


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
