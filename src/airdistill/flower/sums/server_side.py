"""The server's side of the secure sum: it forwards messages, adds the vectors and removes the revealed masks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import combinations, islice

import numpy as np
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from numpy.typing import NDArray

from airdistill.flower.records import Record, by_device, integer, octets
from airdistill.flower.sums.device_side import check_keys, pairwise_mask
from airdistill.flower.sums.keys import KEY_BYTES, SecureSumError, Words, commitment, mask, public_key
from airdistill.flower.sums.messages import Terms

_MAX_COMBINATIONS = 1000


class ServerSide:
    """The server in one round of the steps in `device_side`; a device that misses one step is left out of the next."""

    def __init__(self, terms: Terms, roster: Mapping[int, bytes]) -> None:
        self._terms, self._roster = terms, roster
        self._keys: dict[int, Record] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._masked: dict[int, Words] = {}
        self._signatures: dict[int, bytes] = {}
        self._revealed: dict[int, Record] = {}

    def take_keys(self, record: Record) -> None:
        """Accept a device's keys if it signed them; with forged keys the other devices would refuse the round."""
        device = self._sender(record, self._terms.devices)
        check_keys(self._terms, self._roster, record)
        self._keys[device] = record

    def keys_for_all(self) -> list[Record]:
        self._check_threshold(self._keys, "sent keys")
        return [self._keys[device] for device in sorted(self._keys)]

    def take_shares(self, record: Record) -> None:
        device, sealed = self._sender(record, self._keys), by_device(record, "receivers", "sealed")
        if sealed.keys() != self._keys.keys() - {device}:
            raise SecureSumError(f"device {device} sent shares for other devices than those that sent keys")
        self._sealed[device] = sealed

    def delivery_for(self, device: int) -> Record:
        self._check_threshold(self._sealed, "sent shares")
        senders = [sender for sender in sorted(self._sealed) if sender != device]
        return {**self._round(), "senders": senders, "sealed": [self._sealed[sender][device] for sender in senders]}

    def take_masked(self, device: int, words: Words) -> None:
        if device not in self._sealed or words.shape != (self._terms.length,) or words.dtype != np.uint64:
            raise SecureSumError(
                f"device {device} sent no shares, or its vector is not {self._terms.length} uint64 numbers"
            )
        self._masked[device] = words

    @property
    def with_keys(self) -> list[int]:
        return sorted(self._keys)

    @property
    def with_shares(self) -> list[int]:
        return sorted(self._sealed)

    @property
    def confirmed(self) -> list[int]:
        return sorted(self._signatures)

    @property
    def survivors(self) -> list[int]:
        return sorted(self._masked)

    def survivors_question(self) -> Record:
        self._check_threshold(self._masked, "sent their vectors")
        return {**self._round(), "survivors": self.survivors}

    def take_confirmation(self, record: Record) -> None:
        self._signatures[self._sender(record, self._masked)] = octets(record, "signature")

    def reveal_question(self) -> Record:
        self._check_threshold(self._signatures, "confirmed the survivors")
        signers = sorted(self._signatures)
        signatures = [self._signatures[signer] for signer in signers]
        return {**self._round(), "survivors": self.survivors, "signers": signers, "signatures": signatures}

    def take_reveal(self, record: Record) -> None:
        device = self._sender(record, self._signatures)
        if record.get("survivors") != self.survivors or record.get("dropped") != self._dropped():
            raise SecureSumError(f"device {device} revealed shares of other devices than it was asked for")
        for devices_name, shares_name in (("survivors", "seed_shares"), ("dropped", "key_shares")):
            by_device(record, devices_name, shares_name)  # raises unless there is one share for each device
        self._revealed[device] = record

    def total(self) -> NDArray[np.int64]:
        """The sum of the survivors' vectors, exact."""
        self._check_threshold(self._revealed, "revealed their shares")
        words = np.zeros(self._terms.length, np.uint64)
        for device in self.survivors:
            words += self._masked[device]
            words -= mask(self._seed_of(device), self._terms.purpose(b"own mask", device), self._terms.length)
        for dropped in self._dropped():
            private = self._mask_private_of(dropped)
            for device in self.survivors:
                # The survivor added this mask, and the dropped device would have subtracted it.
                words += pairwise_mask(self._terms, dropped, device, private, octets(self._keys[device], "mask_key"))
        return self._terms.modulus.decode(self._terms.modulus.reduce(words))

    def _dropped(self) -> list[int]:
        """Devices whose masks are in the other vectors, but whose own vectors have not arrived."""
        return sorted(self._sealed.keys() - self._masked.keys())

    def _seed_of(self, device: int) -> bytes:
        committed = octets(self._keys[device], "seed_commitment")
        purpose = self._terms.purpose(b"seed", device)
        return self._combined("survivors", "seed_shares", device, lambda seed: commitment(seed, purpose) == committed)

    def _mask_private_of(self, device: int) -> bytes:
        known = octets(self._keys[device], "mask_key")
        return self._combined("dropped", "key_shares", device, lambda private: public_key(private) == known)

    def _combined(self, devices_name: str, shares_name: str, device: int, is_right: Callable[[bytes], bool]) -> bytes:
        """Combine shares into the committed secret, trying subsets: a wrong share must not prevent the sum."""
        shares = [by_device(record, devices_name, shares_name)[device] for record in self._revealed.values()]
        for some in islice(combinations(shares, self._terms.threshold), _MAX_COMBINATIONS):
            try:
                secret = combine_shares(list(some))
            except ValueError:  # not a share
                continue
            if len(secret) == KEY_BYTES and is_right(secret):
                return secret
        raise SecureSumError(f"the shares of device {device}'s secret do not give what it committed to")

    def _sender(self, record: Record, allowed: Collection[int]) -> int:
        device = integer(record, "device")
        if device not in allowed or integer(record, "round") != self._terms.round_number:
            raise SecureSumError(f"device {device} replied out of turn")
        return device

    def _check_threshold(self, devices: Collection[int], what: str) -> None:
        if len(devices) < self._terms.threshold:
            rule = f"at least {self._terms.threshold} are required"
            raise SecureSumError(f"no sum in round {self._terms.round_number}: {len(devices)} devices {what}; {rule}")

    def _round(self) -> Record:
        return {"round": self._terms.round_number}
