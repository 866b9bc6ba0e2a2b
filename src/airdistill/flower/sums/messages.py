"""What both ends of a secure sum derive from a paid round, and how its larger messages are packed into one record."""

from __future__ import annotations

from collections.abc import Sequence

from airdistill.air.sum_grid import SumGrid
from airdistill.flower.records import Record, by_device, integer, octets, ordered
from airdistill.flower.sums.modulus import Modulus
from airdistill.flower.sums.roster import Roster
from airdistill.flower.sums.terms import Terms

_OF_KEYS = ("mask_key", "share_key", "seed_commitment", "signature")


def sum_terms(grid: SumGrid, roster: Roster) -> Terms:
    """Of a round: nobody is asked for them, and whoever has others is not understood."""
    num_devices = len(grid.grid.amplitude)
    modulus = Modulus.for_sum(grid.largest, num_devices)
    devices, least = tuple(range(num_devices)), grid.least_devices
    return Terms(roster.run, grid.round_index, devices, least, modulus, grid.num_values, grid.digest)


def keys_question(keys: Sequence[Record]) -> Record:
    """Everybody's keys, for everybody."""
    question: Record = {"devices": [integer(record, "device") for record in keys]}
    for name in _OF_KEYS:
        question[f"{name}s"] = [octets(record, name) for record in keys]
    return question


def keys_in(question: Record, round_index: int) -> list[Record]:
    columns = {name: by_device(question, "devices", f"{name}s") for name in _OF_KEYS}
    return [
        {"round": round_index, "device": device, **{name: column[device] for name, column in columns.items()}}
        for device in ordered(question.get("devices"), "devices")
    ]
