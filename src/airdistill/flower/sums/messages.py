"""Messages of a secure sum: the terms that both ends derive, the packed keys, and the roster of public keys.

The roster has every device's public key and the name of the run. It is the same in every folder. The operator who
prepares the run distributes it, and not the server of its rounds: a server that chose the keys could impersonate all
other devices and would see a single vector.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from airdistill.errors import InputError
from airdistill.flower.endpoint import EndpointError
from airdistill.flower.machine.certificates import write_secret
from airdistill.flower.records import Record, by_device, integer, octets, ordered
from airdistill.flower.sums.keys import Identity, Modulus, digest
from airdistill.radio.sum_grid import SumGrid

ROSTER, IDENTITY = "roster.json", "identity.key"
_KEY_FIELDS = ("mask_key", "share_key", "seed_commitment", "signature")


@dataclass(frozen=True)
class Terms:
    """The parameters of one round's secure sum.

    `threshold` is the least number of devices whose vectors must be in the sum. `run` is new for each run, also of the
    same scenario: keys, masks and signatures are valid for one round of one run only. `meaning` is a digest of what the
    numbers stand for: the signatures of a device that interprets them differently do not verify.
    """

    run: str
    round_number: int
    devices: tuple[int, ...]
    threshold: int
    modulus: Modulus
    length: int
    meaning: str = ""

    def __post_init__(self) -> None:
        if list(self.devices) != sorted(set(self.devices)) or min(self.devices, default=-1) < 0:
            raise InputError("devices", self.devices, "must be distinct numbers from 0 upwards, in ascending order")
        # With half of the devices or fewer, the server could have one half of them confirm one set of survivors and the
        # other half another set. It would see two sums, whose difference belongs to a few devices only.
        least = max(2, len(self.devices) // 2 + 1)
        if not least <= self.threshold <= len(self.devices):
            rule = f"must be more than half of the {len(self.devices)} devices, at least 2, and at most all of them"
            raise InputError("threshold", self.threshold, rule)
        if self.length < 1:
            raise InputError("length", self.length, "must be at least 1")

    @cached_property
    def context(self) -> bytes:
        """A digest that enters every key and signature, and so none of them is valid in another round."""
        numbers = [self.round_number, self.threshold, self.modulus.bits, self.length, *self.devices]
        return digest(b"airdistill secure sum 2", self.run.encode(), self.meaning.encode(), *map(number, numbers))

    @property
    def largest(self) -> int:
        """The largest magnitude that a device may send: the sum does not wrap even if all devices send it."""
        return ((1 << (self.modulus.bits - 1)) - 1) // len(self.devices)

    def purpose(self, what: bytes, *devices: int) -> bytes:
        return digest(self.context, what, *map(number, devices))

    def keys_statement(self, device: int, mask_key: bytes, share_key: bytes, seed_commitment: bytes) -> bytes:
        return digest(self.context, b"keys", number(device), mask_key, share_key, seed_commitment)

    def survivors_statement(self, survivors: Sequence[int], keys: bytes) -> bytes:
        """The statement that a device signs; `keys` is a digest of all keys, because the masks depend on them."""
        return digest(self.purpose(b"survivors", *survivors), keys)


def number(value: int) -> bytes:
    return value.to_bytes(8, "little")


@dataclass(frozen=True)
class Roster:
    """The public keys of all devices. `run` is new for every run: a signature of one run is not valid in another."""

    run: str
    public_keys: Mapping[int, bytes]

    @classmethod
    def of(cls, identities: Sequence[Identity]) -> Roster:
        """The roster of a new run of these devices."""
        return cls(secrets.token_hex(16), {number: identity.public for number, identity in enumerate(identities)})

    @classmethod
    def read(cls, folder: Path) -> Roster:
        try:
            stored = json.loads((folder / ROSTER).read_bytes())
            keys = {int(number): bytes.fromhex(key) for number, key in stored["devices"].items()}
            return cls(str(stored["run"]), keys)
        except FileNotFoundError:
            rule = "a secure sum needs the public keys of all devices"
            raise EndpointError(f"{folder}: {ROSTER} is missing: {rule}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EndpointError(f"{folder / ROSTER}: not a valid roster: {error}") from None

    def write(self, folder: Path) -> None:
        devices = {str(number): key.hex() for number, key in self.public_keys.items()}
        (folder / ROSTER).write_text(json.dumps({"run": self.run, "devices": devices}, indent=1))


def own_identity(folder: Path) -> Identity:
    """Read the device's signing key."""
    try:
        return Identity((folder / IDENTITY).read_bytes())
    except FileNotFoundError:
        raise EndpointError(f"{folder}: {IDENTITY} is missing: the device cannot sign") from None


def write_identity(folder: Path) -> Identity:
    """Make a new signing key for a device and write it to a file that only the device can read."""
    identity = Identity()
    write_secret(folder / IDENTITY, identity.private)
    return identity


def sum_terms(grid: SumGrid, roster: Roster) -> Terms:
    """The terms of a round, which each end derives for itself; messages of an end with other terms do not verify."""
    num_devices = len(grid.grid.amplitude)
    modulus = Modulus.for_sum(grid.largest, num_devices)
    devices, least = tuple(range(num_devices)), grid.least_devices
    return Terms(roster.run, grid.round_index, devices, least, modulus, grid.num_values, grid.digest)


def keys_question(keys: Sequence[Record]) -> Record:
    """Pack the keys of all devices into one record, which is sent to each of them."""
    question: Record = {"devices": [integer(record, "device") for record in keys]}
    for name in _KEY_FIELDS:
        question[f"{name}s"] = [octets(record, name) for record in keys]
    return question


def keys_in(question: Record, round_index: int) -> list[Record]:
    """Unpack the record of `keys_question`."""
    columns = {name: by_device(question, "devices", f"{name}s") for name in _KEY_FIELDS}
    return [
        {"round": round_index, "device": device, **{name: column[device] for name, column in columns.items()}}
        for device in ordered(question.get("devices"), "devices")
    ]
