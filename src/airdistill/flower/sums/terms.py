"""What devices and server agree on before a secure sum, and how their messages are signed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airdistill.errors import InputError
from airdistill.flower.sums.modulus import Modulus
from airdistill.flower.sums.secret_keys import digest


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
