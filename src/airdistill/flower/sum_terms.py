"""What devices and server agree on before a secure sum, and how their messages look and are signed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airdistill.errors import InputError
from airdistill.flower.modulus import Modulus
from airdistill.flower.secret_keys import SecureSumError, digest

# What a ConfigRecord of Flower holds, so that every message is one.
Value = int | bytes | list[int] | list[bytes]
Record = dict[str, Value]


@dataclass(frozen=True)
class Terms:
    """A round's secure sum. `threshold`: the least number of devices whose vectors must be in the sum.

    `run` is new for each attempt, also for one that repeats a round: keys, masks and signatures hold for it alone.
    """

    run: str
    round_number: int
    devices: tuple[int, ...]
    threshold: int
    modulus: Modulus
    length: int

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
        return digest(b"airdistill secure sum 1", self.run.encode(), *map(number, numbers))

    @property
    def largest(self) -> int:
        """What a device may send at most, in magnitude: if all did, the sum would still not wrap."""
        return ((1 << (self.modulus.bits - 1)) - 1) // len(self.devices)

    def purpose(self, what: bytes, *devices: int) -> bytes:
        return digest(self.context, what, *map(number, devices))

    def keys_statement(self, device: int, mask_key: bytes, share_key: bytes, seed_commitment: bytes) -> bytes:
        return digest(self.context, b"keys", number(device), mask_key, share_key, seed_commitment)

    def survivors_statement(self, survivors: Sequence[int]) -> bytes:
        return self.purpose(b"survivors", *survivors)


def number(value: int) -> bytes:
    return value.to_bytes(8, "little")


def integer(record: Record, name: str) -> int:
    value = record.get(name)
    if not isinstance(value, int):
        raise SecureSumError(f"a message of the secure sum lacks its number {name}")
    return value


def octets(record: Record, name: str) -> bytes:
    value = record.get(name)
    if not isinstance(value, bytes):
        raise SecureSumError(f"a message of the secure sum lacks its bytes {name}")
    return value


def by_device(record: Record, devices_name: str, values_name: str) -> dict[int, bytes]:
    """Two lists of the same length, as a record holds them: devices in order, and bytes for each."""
    devices, values = record.get(devices_name), record.get(values_name)
    if not isinstance(values, list) or not all(isinstance(value, bytes) for value in values):
        raise SecureSumError(f"a message of the secure sum lacks its list {values_name}")
    named = ordered(devices, devices_name)
    if len(named) != len(values):
        raise SecureSumError(f"a message of the secure sum names {len(named)} {devices_name} for {len(values)} values")
    return {device: value for device, value in zip(named, values, strict=True) if isinstance(value, bytes)}


def ordered(devices: object, name: str) -> list[int]:
    """Device numbers, each once and in order: one set can be written in one way only."""
    if not isinstance(devices, list) or not all(isinstance(device, int) for device in devices):
        raise SecureSumError(f"a message of the secure sum lacks its list {name}")
    if devices != sorted(set(devices)):
        raise SecureSumError(f"a message of the secure sum names its {name} twice or out of order")
    return devices
