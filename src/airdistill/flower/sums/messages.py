"""What both ends of a secure sum derive from a paid round, and how its larger messages are packed into one record.

What devices and server agree on before a secure sum, and how their messages are signed.

Who takes part in a secure sum: every device's public key, and the name of the run; the same in every folder.

Whoever prepares the run hands it out, and not the server of its rounds: one that could name the keys could stand for
every other device, and would see a single vector.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airdistill.errors import InputError
from airdistill.flower.endpoint import EndpointError
from airdistill.flower.machine.certificates import write_secret
from airdistill.flower.records import Record, by_device, integer, octets, ordered
from airdistill.flower.sums.keys import Identity, Modulus, digest
from airdistill.radio.sum_grid import SumGrid

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


@dataclass(frozen=True)
class Terms:
    """A round's secure sum. `threshold`: the least number of devices whose vectors must be in the sum.

    `run` is new for each run, also of the same scenario: keys, masks and signatures hold for one round of it alone.
    """

    run: str
    round_number: int
    devices: tuple[int, ...]
    threshold: int
    modulus: Modulus
    length: int
    meaning: str = ""  # a digest of what the numbers stand for: who takes them for something else is not understood

    def __post_init__(self) -> None:
        if list(self.devices) != sorted(set(self.devices)) or min(self.devices, default=-1) < 0:
            raise InputError("devices", self.devices, "must be different numbers from 0 on, in order")
        # With half of the devices or fewer, the server could have one set of survivors confirmed by one half and
        # another by the other half, and so see two sums whose difference is a few devices' own.
        least = max(2, len(self.devices) // 2 + 1)
        if not least <= self.threshold <= len(self.devices):
            rule = f"must be more than half of the {len(self.devices)} devices, at least 2, and not more than all"
            raise InputError("threshold", self.threshold, rule)
        if self.length < 1:
            raise InputError("length", self.length, "must be at least 1")

    @property
    def context(self) -> bytes:
        """Goes into every key and every signature: nothing of one round means anything in another."""
        numbers = [self.round_number, self.threshold, self.modulus.bits, self.length, *self.devices]
        return digest(b"airdistill secure sum 1", self.run.encode(), self.meaning.encode(), *map(number, numbers))

    @property
    def largest(self) -> int:
        """What a device may send at most, in magnitude: if all did, the sum would still not wrap."""
        return ((1 << (self.modulus.bits - 1)) - 1) // len(self.devices)

    def purpose(self, what: bytes, *devices: int) -> bytes:
        return digest(self.context, what, *map(number, devices))

    def keys_statement(self, device: int, mask_key: bytes, share_key: bytes, seed_commitment: bytes) -> bytes:
        return digest(self.context, b"keys", number(device), mask_key, share_key, seed_commitment)

    def survivors_statement(self, survivors: Sequence[int], keys: bytes) -> bytes:
        """`keys` is a digest of everybody's keys: the signature holds for the masks made with these alone."""
        return digest(self.purpose(b"survivors", *survivors), keys)


def number(value: int) -> bytes:
    return value.to_bytes(8, "little")


ROSTER, IDENTITY = "roster.json", "identity.key"


@dataclass(frozen=True)
class Roster:
    """`run` is new for every run: what was signed in one means nothing in another."""

    run: str
    public_keys: Mapping[int, bytes]

    @classmethod
    def of(cls, identities: Sequence[Identity]) -> Roster:
        """For a new run of these devices."""
        return cls(secrets.token_hex(16), {number: identity.public for number, identity in enumerate(identities)})

    @classmethod
    def read(cls, folder: Path) -> Roster:
        try:
            stored = json.loads((folder / ROSTER).read_bytes())
            keys = {int(number): bytes.fromhex(key) for number, key in stored["devices"].items()}
            return cls(str(stored["run"]), keys)
        except FileNotFoundError:
            raise EndpointError(f"{folder}: has no {ROSTER}: a secure sum needs everybody's public key") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EndpointError(f"{folder / ROSTER}: is no roster: {error}") from None

    def write(self, folder: Path) -> None:
        devices = {str(number): key.hex() for number, key in self.public_keys.items()}
        (folder / ROSTER).write_text(json.dumps({"run": self.run, "devices": devices}, indent=1))


def own_identity(folder: Path) -> Identity:
    """The device's signing key."""
    try:
        return Identity((folder / IDENTITY).read_bytes())
    except FileNotFoundError:
        raise EndpointError(f"{folder}: has no {IDENTITY}: the device cannot sign") from None


def write_identity(folder: Path) -> Identity:
    """A new signing key for a device, which only it can read."""
    identity = Identity()
    write_secret(folder / IDENTITY, identity.private)
    return identity
