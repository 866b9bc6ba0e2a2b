"""The sum of the devices' vectors and nothing else: secure aggregation after Bonawitz et al. (CCS 2017), active server.

The server carries every message and may lie in each. A round has five questions, and the server forwards between them:

1. keys     – a device's fresh public keys and a commitment to the seed of its own mask, signed by the device;
2. shares   – its mask key and its seed, split among all devices and sealed for each of them;
3. masked   – its vector under its own mask and one mask shared with every other device, which cancel in the sum;
4. confirm  – its signature under the set of survivors: the devices whose vectors the server says it has;
5. reveal   – with a threshold of such signatures under the same set: its shares of the survivors' seeds and of the
              mask keys of those that dropped out. Never both of one device: the set decides which.

Fewer survivors than the threshold, and the devices refuse steps 4 and 5. So the sum has the noise of at least that
many devices. Every device deals with every other (SecAgg's complete graph; SecAgg+ thins it out for fleets of
thousands). Nothing here sends or stores anything; a device writes its state down, as JSON, before each reply leaves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from flwr.common.secure_aggregation.crypto.shamir import create_shares
from numpy.typing import NDArray

from airdistill.flower.records import Record, by_device, integer, octets, ordered
from airdistill.flower.sums.keys import (
    Identity,
    Modulus,
    SecureSumError,
    Words,
    agreed_key,
    commitment,
    digest,
    mask,
    new_secret,
    public_key,
    seal,
    signed_by,
    unseal,
)
from airdistill.flower.sums.messages import Terms, number

SHARE_INDEX_BYTES = 4  # Flower puts the index of a share before it


class RefusedError(SecureSumError):
    """A device does not do what the server asks, because the answer could show more than the sum."""


@dataclass
class _Kept:
    """What a device keeps between two messages; all of it is its own business except the peers' public keys."""

    step: str = "keys"
    mask_private: bytes = field(default_factory=new_secret)
    share_private: bytes = field(default_factory=new_secret)
    seed: bytes = field(default_factory=new_secret)
    mask_keys: dict[int, bytes] = field(default_factory=dict)
    share_keys: dict[int, bytes] = field(default_factory=dict)
    key_shares: dict[int, bytes] = field(default_factory=dict)
    seed_shares: dict[int, bytes] = field(default_factory=dict)
    survivors: list[int] = field(default_factory=list)


class DeviceSide:
    """One device in one round. `roster`: every device's public identity, not from the server of the round."""

    def __init__(self, terms: Terms, device: int, identity: Identity, roster: Mapping[int, bytes]) -> None:
        if device not in terms.devices or any(other not in roster for other in terms.devices):
            raise SecureSumError(f"device {device} is not in the round, or does not know all that are")
        self._terms, self._device, self._identity, self._roster = terms, device, identity, roster
        self._kept = _Kept()

    def keys(self) -> Record:
        """Step 1."""
        self._at("keys", self._terms.round_number)
        kept = self._kept
        mask_key, share_key = public_key(kept.mask_private), public_key(kept.share_private)
        seed_commitment = commitment(kept.seed, self._terms.purpose(b"seed", self._device))
        statement = self._terms.keys_statement(self._device, mask_key, share_key, seed_commitment)
        kept.step = "shares"
        return {
            **self._sender(),
            "mask_key": mask_key,
            "share_key": share_key,
            "seed_commitment": seed_commitment,
            "signature": self._identity.sign(statement),
        }

    def shares(self, keys: Sequence[Record]) -> Record:
        """Step 2, with the keys of everybody who sent some."""
        for record in keys:
            self._at("shares", integer(record, "round"))
            check_keys(self._terms, self._roster, record)
        kept, devices = self._kept, [integer(record, "device") for record in keys]
        ordered(devices, "keys")
        self._enough(devices, "sent keys")
        kept.mask_keys = {integer(record, "device"): octets(record, "mask_key") for record in keys}
        kept.share_keys = {integer(record, "device"): octets(record, "share_key") for record in keys}
        if kept.mask_keys.get(self._device) != public_key(kept.mask_private):
            raise RefusedError(f"device {self._device} is not among those that sent keys, or not with its own")
        threshold = self._terms.threshold
        key_shares = create_shares(kept.mask_private, threshold, len(devices))
        seed_shares = create_shares(kept.seed, threshold, len(devices))
        sealed = []
        for other, key_share, seed_share in zip(devices, key_shares, seed_shares, strict=True):
            if other == self._device:
                kept.key_shares[other], kept.seed_shares[other] = key_share, seed_share
            else:
                address = self._terms.purpose(b"address", self._device, other)
                sealed.append(seal(self._share_key(other), key_share + seed_share, address))
        kept.step = "masked"
        receivers = [other for other in devices if other != self._device]
        return {**self._sender(), "receivers": receivers, "sealed": sealed}

    def masked(self, delivered: Record, values: NDArray[np.int64]) -> Words:
        """Step 3, with the shares that the others sealed for this device. Once: two vectors under one mask would
        show their difference."""
        self._at("masked", integer(delivered, "round"))
        sealed = by_device(delivered, "senders", "sealed")
        if self._device in sealed or not sealed.keys() <= self._kept.mask_keys.keys():
            raise RefusedError(f"device {self._device} was sent shares by one that sent no keys")
        self._enough([*sealed, self._device], "sent shares")
        masked = self._terms.modulus.encode(self._checked(values))
        opened = {other: self._opened(other, content) for other, content in sealed.items()}
        self._kept.key_shares |= {other: key_share for other, (key_share, _) in opened.items()}
        self._kept.seed_shares |= {other: seed_share for other, (_, seed_share) in opened.items()}
        masked += mask(self._kept.seed, self._terms.purpose(b"own mask", self._device), self._terms.length)
        for other in sealed:
            other_key = self._kept.mask_keys[other]
            masked += pairwise_mask(self._terms, self._device, other, self._kept.mask_private, other_key)
        self._kept.step = "confirm"
        return self._terms.modulus.reduce(masked)

    def confirm(self, question: Record) -> Record:
        """Step 4: signs one set of survivors, and never another."""
        self._at("confirm", integer(question, "round"))
        survivors = ordered(question.get("survivors"), "survivors")
        if not set(survivors) <= self._kept.key_shares.keys() or self._device not in survivors:
            raise RefusedError(f"device {self._device} is not among the survivors, or some of them sent no shares")
        self._enough(survivors, "survived")
        self._kept.survivors = survivors
        self._kept.step = "reveal"
        return {**self._sender(), "signature": self._identity.sign(self._statement(survivors))}

    def reveal(self, question: Record) -> Record:
        """Step 5: forgets what it does not reveal."""
        self._at("reveal", integer(question, "round"))
        kept, survivors = self._kept, self._kept.survivors
        if ordered(question.get("survivors"), "survivors") != survivors:
            raise RefusedError(
                f"device {self._device} confirmed the survivors {survivors} and reveals for no other set"
            )
        statement = self._statement(survivors)
        signatures = by_device(question, "signers", "signatures")
        signers = [
            signer
            for signer, signature in signatures.items()
            if signer in survivors and signed_by(self._roster[signer], signature, statement)
        ]
        self._enough(signers, "confirmed these survivors")
        dropped = sorted(kept.key_shares.keys() - set(survivors))
        answer: Record = {
            **self._sender(),
            "survivors": survivors,
            "seed_shares": [kept.seed_shares[device] for device in survivors],
            "dropped": dropped,
            "key_shares": [kept.key_shares[device] for device in dropped],
        }
        self._kept = _Kept("over", b"", b"", b"", survivors=survivors)
        return answer

    def to_json(self) -> str:
        """To be kept where only the device can read it: it holds the secrets of the round."""
        kept = {name: _as_text(value) for name, value in vars(self._kept).items()}
        return json.dumps({"terms": asdict(self._terms), "device": self._device, "kept": kept})

    @classmethod
    def from_json(cls, text: str, identity: Identity, roster: Mapping[int, bytes]) -> DeviceSide:
        content = json.loads(text)
        terms = content["terms"]
        modulus, devices = Modulus(**terms.pop("modulus")), tuple(terms.pop("devices"))
        side = cls(Terms(**terms, modulus=modulus, devices=devices), content["device"], identity, roster)
        side._kept = _Kept(**{name: _from_text(name, value) for name, value in content["kept"].items()})
        return side

    def _at(self, step: str, round_number: int) -> None:
        if round_number != self._terms.round_number:
            raise RefusedError(f"device {self._device} is in round {self._terms.round_number}, not in {round_number}")
        if step != self._kept.step:
            raise RefusedError(f"device {self._device} was asked for step {step} and is at {self._kept.step}")

    def _enough(self, devices: Sequence[int], what: str) -> None:
        if len(set(devices)) < self._terms.threshold:
            rule = f"and {self._terms.threshold} must have"
            raise RefusedError(f"device {self._device} refuses: {len(set(devices))} devices {what}, {rule}")

    def _checked(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        length, bound = self._terms.length, self._terms.largest
        if values.shape != (length,) or values.dtype != np.int64:
            raise SecureSumError(f"a vector is {values.dtype} {values.shape} and must be int64 ({length},)")
        if np.any(values > bound) or np.any(values < -bound):
            raise SecureSumError(f"a vector holds a number beyond ±{bound}, so that the sum could wrap")
        return values

    def _opened(self, other: int, sealed: bytes) -> tuple[bytes, bytes]:
        """This device's shares of another's mask key and seed."""
        address = self._terms.purpose(b"address", other, self._device)
        shares = unseal(self._share_key(other), sealed, address)
        key_share, seed_share = shares[: len(shares) // 2], shares[len(shares) // 2 :]
        index = number(sorted(self._kept.mask_keys).index(self._device) + 1)[:SHARE_INDEX_BYTES]
        if not (key_share.startswith(index) and seed_share.startswith(index)):
            raise SecureSumError(f"device {other} sealed a share that is meant for another than device {self._device}")
        return key_share, seed_share

    def _share_key(self, other: int) -> bytes:
        pair = sorted((self._device, other))
        return agreed_key(self._kept.share_private, self._kept.share_keys[other], self._terms.purpose(b"share", *pair))

    def _statement(self, survivors: Sequence[int]) -> bytes:
        kept = self._kept
        keys = [part for device in sorted(kept.mask_keys) for part in (kept.mask_keys[device], kept.share_keys[device])]
        return self._terms.survivors_statement(survivors, digest(*keys))

    def _sender(self) -> Record:
        return {"round": self._terms.round_number, "device": self._device}


def check_keys(terms: Terms, roster: Mapping[int, bytes], record: Record) -> None:
    """Raises unless they are signed by the device that they are said to be of."""
    device = integer(record, "device")
    mask_key, share_key = octets(record, "mask_key"), octets(record, "share_key")
    statement = terms.keys_statement(device, mask_key, share_key, octets(record, "seed_commitment"))
    if device not in terms.devices or not signed_by(roster[device], octets(record, "signature"), statement):
        raise RefusedError(f"the keys of device {device} are not signed by it")


def pairwise_mask(terms: Terms, device: int, other: int, private: bytes, other_public: bytes) -> Words:
    """Added by the device with the smaller number and taken away by the other one, so that the two cancel."""
    pair = sorted((device, other))
    shared = agreed_key(private, other_public, terms.purpose(b"pair", *pair))
    words = mask(shared, terms.purpose(b"pairwise mask", *pair), terms.length)
    return words if device < other else np.uint64(0) - words


def _as_text(value: str | bytes | list[int] | dict[int, bytes]) -> str | list[int] | dict[str, str]:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(device): content.hex() for device, content in value.items()}
    return value


def _from_text(name: str, value: Any) -> Any:
    if name in ("step", "survivors"):
        return value
    if isinstance(value, dict):
        return {int(device): bytes.fromhex(content) for device, content in value.items()}
    return bytes.fromhex(value)
