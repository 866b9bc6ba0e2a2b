"""Cells and tapped delay lines of 3GPP TR 38.901: what the standard covers, and the rules for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airdistill.errors import Described, InputError

if TYPE_CHECKING:
    from airdistill.scenario.radio import Radio


@dataclass(frozen=True)
class Cell:
    """Validity of a path-loss model, table 7.4.1-1: heights and distances in m, as (smallest, largest); carrier in Hz.

    Outdoors the distance is that on the ground, indoors that between the antennas. `variant` is Sionna's name of one of
    several kinds of offices or factories.
    """

    name: str
    server_height: tuple[float, float]
    default_server_height: float
    device_height: tuple[float, float]
    highest_carrier: float
    distance: tuple[float, float] = (10.0, 5000.0)
    variant: str | None = None
    clutter: Clutter | None = None

    @property
    def indoors(self) -> bool:
        return self.variant is not None


@dataclass(frozen=True)
class Clutter:
    """What stands in a factory hall: share of the floor, height and size in m. `above`: the server is above it."""

    density: float
    height: float
    size: float
    above: bool

    @classmethod
    def of(cls, radio: Radio, usual: Clutter) -> Clutter:
        """The clutter of a scenario; what it does not give is usual."""
        density, height, size = radio.clutter_density, radio.clutter_height, radio.clutter_size
        return cls(density or usual.density, height or usual.height, size or usual.size, usual.above)


# Ceilings: 3 m in the standard's office (table 7.2-2), and up to 25 m in its factories (table 7.2-4).
_OFFICE_M, _HALL_M, _UP_TO_150_M, _UP_TO_600_M = (0.0, 3.0), (0.0, 25.0), (1.0, 150.0), (1.0, 600.0)
# Table 7.8-7. From a density of 40 % clutter is dense.
_SPARSE, _DENSE, _DENSE_FROM = (0.2, 2.0, 10.0), (0.6, 6.0, 2.0), 0.4


def _factory(variant: str) -> Cell:
    sparse, high = variant[0] == "S", variant[1] == "H"
    clutter = Clutter(*(_SPARSE if sparse else _DENSE), above=high)
    height = 8.0 if high else 1.5
    return Cell(f"InF-{variant}", _HALL_M, height, _HALL_M, 100e9, _UP_TO_600_M, variant, clutter)


CELLS = {
    "umi": Cell("UMi", (10.0, 10.0), 10.0, (1.5, 22.5), 100e9),
    "uma": Cell("UMa", (25.0, 25.0), 25.0, (1.5, 22.5), 100e9),
    "rma": Cell("RMa", (10.0, 150.0), 35.0, (1.0, 10.0), 30e9),
    "inh-open": Cell("InH-open", _OFFICE_M, 3.0, _OFFICE_M, 100e9, _UP_TO_150_M, "open"),
    "inh-mixed": Cell("InH-mixed", _OFFICE_M, 3.0, _OFFICE_M, 100e9, _UP_TO_150_M, "mixed"),
    "inf-sl": _factory("SL"),
    "inf-dl": _factory("DL"),
    "inf-sh": _factory("SH"),
    "inf-dh": _factory("DH"),
}
# With their latest path, in units of the delay spread (tables 7.7.2-1 to 7.7.2-5).
TAPPED_DELAY_LINES = {"tdl-a": 9.6586, "tdl-b": 4.7834, "tdl-c": 8.6523, "tdl-d": 12.525, "tdl-e": 20.6519}

LOWEST_CARRIER, HIGHEST_CARRIER = 0.5e9, 100e9
# Shadowing is correlated between devices: a table of seven numbers for every pair.
MOST_DEVICES = 2000
# The common rule for flat fading, under which one coefficient describes a slot.
SLOT_PER_DELAY_SPREAD = 10.0


def is_threegpp(fading: str) -> bool:
    """Return whether a fading model is one of 3GPP TR 38.901."""
    return fading in CELLS or fading in TAPPED_DELAY_LINES


def check_threegpp(radio: Radio, num_devices: int, cyclic_prefix: float | None = None) -> None:
    """Reject what the standard does not cover; gains or a trace replace the fading model.

    One coefficient describes a slot. Symbols of a waveform with a cyclic prefix take all paths that it covers.
    """
    if not is_threegpp(radio.fading) or radio.gains is not None or radio.trace is not None:
        return
    if num_devices > MOST_DEVICES:
        rule = f'fading "{radio.fading}" is drawn for at most {MOST_DEVICES} devices'
        raise InputError("fleet.devices", num_devices, rule)
    if radio.fading in CELLS:
        _check_cell(radio, CELLS[radio.fading])
    else:
        _check_between("radio.carrier", radio.carrier, (LOWEST_CARRIER, HIGHEST_CARRIER), "Hz", "TDL")
        latest = TAPPED_DELAY_LINES[radio.fading]
        longest = radio.slot / SLOT_PER_DELAY_SPREAD if cyclic_prefix is None else cyclic_prefix / latest
        if radio.delay_spread > longest and cyclic_prefix is not None:
            rule = (
                f"must be at most {longest:.3g} s, because the latest path of {radio.fading} is {latest:g} times as "
                "late and must fit waveform.cyclic_prefix; lengthen that"
            )
            raise InputError("radio.delay_spread", radio.delay_spread, rule)
        if radio.delay_spread > longest:
            rule = f"must be at most a tenth of radio.slot, {longest:g} s, because one coefficient describes a slot"
            raise InputError("radio.delay_spread", radio.delay_spread, rule)


def _check_cell(radio: Radio, cell: Cell) -> None:
    _check_between("radio.carrier", radio.carrier, (LOWEST_CARRIER, cell.highest_carrier), "Hz", cell.name)
    _check_between("radio.device_height", radio.device_height, cell.device_height, "m", cell.name)
    if radio.server_height is not None:
        _check_between("radio.server_height", radio.server_height, cell.server_height, "m", cell.name)
    server_height = radio.server_height or cell.default_server_height
    rise = server_height - radio.device_height if cell.indoors else 0.0
    for metres in radio.distance.numbers:
        given = Described(f"{metres:g}, {math.hypot(metres, rise):g} m between the antennas") if rise else metres
        _check_between("radio.distance", math.hypot(metres, rise), cell.distance, "m", cell.name, given)
    if cell.clutter is not None:
        _check_clutter(radio, cell.name, Clutter.of(radio, cell.clutter), server_height)


def _check_clutter(radio: Radio, name: str, clutter: Clutter, server_height: float) -> None:
    """Table 7.2-4: what makes a factory sparse or dense, and a server low or high."""
    dense = name[-2] == "D"
    if dense != (clutter.density >= _DENSE_FROM):
        rule = f"must be {'at least' if dense else 'below'} {_DENSE_FROM:g} for 3GPP {name}"
        raise InputError("radio.clutter_density", clutter.density, rule)
    if radio.device_height >= clutter.height:
        rule = f"must be below the clutter of {clutter.height:g} m for 3GPP {name}"
        raise InputError("radio.device_height", radio.device_height, rule)
    if clutter.above != (server_height > clutter.height):
        side = "above" if clutter.above else "not above"
        rule = f"must be {side} the clutter of {clutter.height:g} m for 3GPP {name}"
        raise InputError("radio.server_height", server_height, rule)


def _check_between(
    field: str, value: float, limits: tuple[float, float], unit: str, model: str, given: Any = None
) -> None:
    least, most = limits
    if not least <= value <= most:
        span = f"be {least:g} {unit}" if least == most else f"lie between {least:g} and {most:g} {unit}"
        raise InputError(field, value if given is None else given, f"must {span} for 3GPP {model}")
