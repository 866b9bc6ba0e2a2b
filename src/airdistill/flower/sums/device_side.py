"""The device's side of the secure sum: secure aggregation after Bonawitz et al. (CCS 2017), with an active server.

The server forwards every message and may lie in each. A round has five steps:

1. keys     – a device's new public keys and a commitment to the seed of its own mask, signed by the device;
2. shares   – its mask key and its seed, split among all devices and sealed for each of them, and commitments to
              every share, by which the server recognises a device that reveals a wrong one;
3. masked   – its vector under its own mask and one mask shared with every other device, which cancel in the sum;
4. confirm  – its signature on the set of survivors: the devices whose vectors the server claims to have;
5. reveal   – given a threshold of signatures on the same set: its shares of the survivors' seeds and of the mask keys
              of the dropped devices. A device never reveals both for one device: the set decides which.

If fewer devices survive than the threshold, the devices refuse steps 4 and 5. The sum therefore has the noise of at
least that many devices. Every device exchanges shares with every other: the complete graph of SecAgg, whose cost
`benchmarks/secure_sum.py` measures for 200 devices. SecAgg+ has a sparser random graph for fleets of thousands, and
must assume that few enough devices collude or drop out among any one's neighbours. This module neither sends nor stores
anything. The caller stores the state of a device, as JSON, before each reply leaves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
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
from airdistill.flower.sums.messages import Terms
from airdistill.flower.sums.secret_sharing import SHARE_BYTES, create_shares


class RefusedError(SecureSumError):
    """A device refuses a request of the server, because the reply could reveal more than the sum."""


@dataclass
class _State:
    """The state of a device between two messages; all of it is secret except the other devices' public keys."""

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
    """One device in one round; `roster` has the public key of every device and does not come from the server."""

    def __init__(self, terms: Terms, device: int, identity: Identity, roster: Mapping[int, bytes]) -> None:
        if device not in terms.devices or any(other not in roster for other in terms.devices):
            raise SecureSumError(f"device {device} is not in the round, or the roster lacks a device of the round")
        self._terms, self._device, self._identity, self._roster = terms, device, identity, roster
        self._state = _State()

    @property
    def modulus(self) -> Modulus:
        return self._terms.modulus

    def keys(self) -> Record:
        """Step 1: send new public keys."""
        self._check_step("keys", self._terms.round_number)
        state = self._state
        mask_key, share_key = public_key(state.mask_private), public_key(state.share_private)
        seed_commitment = commitment(state.seed, self._terms.purpose(b"seed", self._device))
        statement = self._terms.keys_statement(self._device, mask_key, share_key, seed_commitment)
        state.step = "shares"
        return {
            **self._sender(),
            "mask_key": mask_key,
            "share_key": share_key,
            "seed_commitment": seed_commitment,
            "signature": self._identity.sign(statement),
        }

    def shares(self, keys: Sequence[Record]) -> Record:
        """Step 2: share the secrets among the devices that sent keys."""
        for record in keys:
            self._check_step("shares", integer(record, "round"))
            check_keys(self._terms, self._roster, record)
        state, devices = self._state, [integer(record, "device") for record in keys]
        ordered(devices, "keys")
        self._check_threshold(devices, "sent keys")
        state.mask_keys = {integer(record, "device"): octets(record, "mask_key") for record in keys}
        state.share_keys = {integer(record, "device"): octets(record, "share_key") for record in keys}
        if state.mask_keys.get(self._device) != public_key(state.mask_private):
            raise RefusedError(
                f"device {self._device} is not among the devices that sent keys, or its keys were replaced"
            )
        threshold = self._terms.threshold
        key_shares = create_shares(state.mask_private, threshold, len(devices))
        seed_shares = create_shares(state.seed, threshold, len(devices))
        sealed, commitments = [], []
        for other, key_share, seed_share in zip(devices, key_shares, seed_shares, strict=True):
            commitments += share_commitments(self._terms, self._device, other, key_share, seed_share)
            if other == self._device:
                state.key_shares[other], state.seed_shares[other] = key_share, seed_share
            else:
                address = self._terms.purpose(b"address", self._device, other)
                sealed.append(seal(self._share_key(other), key_share + seed_share, address))
        state.step = "masked"
        receivers = [other for other in devices if other != self._device]
        return {**self._sender(), "receivers": receivers, "sealed": sealed, "commitments": b"".join(commitments)}

    def masked(self, delivered: Record, values: NDArray[np.int64]) -> Words:
        """Step 3: mask the vector, given the shares that the other devices sealed for this one.

        A device does this once: two vectors under one mask would reveal their difference.
        """
        self._check_step("masked", integer(delivered, "round"))
        sealed = by_device(delivered, "senders", "sealed")
        if self._device in sealed or not sealed.keys() <= self._state.mask_keys.keys():
            raise RefusedError(f"device {self._device} received shares from a device that sent no keys")
        self._check_threshold([*sealed, self._device], "sent shares")
        masked = self._terms.modulus.encode(self._check_values(values))
        opened = {other: self._open_shares(other, content) for other, content in sealed.items()}
        self._state.key_shares |= {other: key_share for other, (key_share, _) in opened.items()}
        self._state.seed_shares |= {other: seed_share for other, (_, seed_share) in opened.items()}
        masked += mask(self._state.seed, self._terms.purpose(b"own mask", self._device), self._terms.length)
        for other in sealed:
            other_key = self._state.mask_keys[other]
            masked += pairwise_mask(self._terms, self._device, other, self._state.mask_private, other_key)
        self._state.step = "confirm"
        return self._terms.modulus.reduce(masked)

    def confirm(self, question: Record) -> Record:
        """Step 4: sign one set of survivors, and never a second one."""
        self._check_step("confirm", integer(question, "round"))
        survivors = ordered(question.get("survivors"), "survivors")
        if not set(survivors) <= self._state.key_shares.keys() or self._device not in survivors:
            raise RefusedError(f"device {self._device} is not among the survivors, or some of them sent no shares")
        self._check_threshold(survivors, "survived")
        self._state.survivors = survivors
        self._state.step = "reveal"
        return {**self._sender(), "signature": self._identity.sign(self._statement(survivors))}

    def reveal(self, question: Record) -> Record:
        """Step 5: reveal the shares and forget all other secrets."""
        self._check_step("reveal", integer(question, "round"))
        state, survivors = self._state, self._state.survivors
        if ordered(question.get("survivors"), "survivors") != survivors:
            raise RefusedError(
                f"device {self._device} confirmed the survivors {survivors} and reveals shares for that set only"
            )
        statement = self._statement(survivors)
        signatures = by_device(question, "signers", "signatures")
        signers = [
            signer
            for signer, signature in signatures.items()
            if signer in survivors and signed_by(self._roster[signer], signature, statement)
        ]
        self._check_threshold(signers, "confirmed these survivors")
        dropped = sorted(state.key_shares.keys() - set(survivors))
        answer: Record = {
            **self._sender(),
            "survivors": survivors,
            "seed_shares": [state.seed_shares[device] for device in survivors],
            "dropped": dropped,
            "key_shares": [state.key_shares[device] for device in dropped],
        }
        self._state = _State("over", b"", b"", b"", survivors=survivors)
        return answer

    def to_json(self) -> str:
        """The state as JSON. It contains the secrets of the round and must be readable by the device only."""
        state = {name: _as_text(value) for name, value in vars(self._state).items()}
        return json.dumps({"terms": asdict(self._terms), "device": self._device, "kept": state})

    @classmethod
    def from_json(cls, text: str, identity: Identity, roster: Mapping[int, bytes]) -> DeviceSide:
        content = json.loads(text)
        terms = content["terms"]
        modulus, devices = Modulus(**terms.pop("modulus")), tuple(terms.pop("devices"))
        side = cls(Terms(**terms, modulus=modulus, devices=devices), content["device"], identity, roster)
        side._state = _State(**{name: _from_text(name, value) for name, value in content["kept"].items()})
        return side

    def _check_step(self, step: str, round_number: int) -> None:
        if round_number != self._terms.round_number:
            raise RefusedError(
                f"device {self._device} is in round {self._terms.round_number}, not in round {round_number}"
            )
        if step != self._state.step:
            raise RefusedError(f"device {self._device} was asked for step {step} but is at step {self._state.step}")

    def _check_threshold(self, devices: Sequence[int], what: str) -> None:
        if len(set(devices)) < self._terms.threshold:
            rule = f"at least {self._terms.threshold} are required"
            raise RefusedError(f"device {self._device} refuses: {len(set(devices))} devices {what}; {rule}")

    def _check_values(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        length, bound = self._terms.length, self._terms.largest
        if values.shape != (length,) or values.dtype != np.int64:
            raise SecureSumError(f"a vector is {values.dtype} {values.shape}; it must be int64 ({length},)")
        if np.any(values > bound) or np.any(values < -bound):
            raise SecureSumError(f"a vector has an entry beyond ±{bound}: the sum could wrap")
        return values

    def _open_shares(self, other: int, sealed: bytes) -> tuple[bytes, bytes]:
        """Decrypt this device's shares of another device's mask key and seed."""
        address = self._terms.purpose(b"address", other, self._device)
        shares = unseal(self._share_key(other), sealed, address)
        if len(shares) != 2 * SHARE_BYTES:
            raise SecureSumError(f"device {other} sealed {len(shares)} bytes for device {self._device}: not two shares")
        return shares[:SHARE_BYTES], shares[SHARE_BYTES:]

    def _share_key(self, other: int) -> bytes:
        pair = sorted((self._device, other))
        state, purpose = self._state, self._terms.purpose(b"share", *pair)
        return agreed_key(state.share_private, state.share_keys[other], purpose)

    def _statement(self, survivors: Sequence[int]) -> bytes:
        state = self._state
        devices = sorted(state.mask_keys)
        keys = [key for device in devices for key in (state.mask_keys[device], state.share_keys[device])]
        return self._terms.survivors_statement(survivors, digest(*keys))

    def _sender(self) -> Record:
        return {"round": self._terms.round_number, "device": self._device}


def check_keys(terms: Terms, roster: Mapping[int, bytes], record: Record) -> None:
    """Raise unless the keys are signed by the device that they are attributed to."""
    device = integer(record, "device")
    mask_key, share_key = octets(record, "mask_key"), octets(record, "share_key")
    statement = terms.keys_statement(device, mask_key, share_key, octets(record, "seed_commitment"))
    if device not in terms.devices or not signed_by(roster[device], octets(record, "signature"), statement):
        raise RefusedError(f"the keys of device {device} are not signed by it")


def share_commitments(terms: Terms, dealer: int, holder: int, key_share: bytes, seed_share: bytes) -> list[bytes]:
    """What the server checks a holder's shares by; each share alone is as random as a key."""
    purposes = (terms.purpose(what, dealer, holder) for what in (b"key share", b"seed share"))
    return [commitment(share, purpose) for share, purpose in zip((key_share, seed_share), purposes, strict=True)]


def pairwise_mask(terms: Terms, device: int, other: int, private: bytes, other_public: bytes) -> Words:
    """The mask of two devices: the one with the smaller number adds it and the other subtracts it."""
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
