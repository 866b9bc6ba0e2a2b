"""The server's part of the secure sum: it forwards, adds up, and takes off the masks that the devices reveal."""

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

_MOST_TRIES = 1000


class ServerSide:
    """One round. A device that fails to answer a question is out of the later ones; see `device_side` for the steps."""

    def __init__(self, terms: Terms, roster: Mapping[int, bytes]) -> None:
        self._terms, self._roster = terms, roster
        self._keys: dict[int, Record] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._masked: dict[int, Words] = {}
        self._signatures: dict[int, bytes] = {}
        self._revealed: dict[int, Record] = {}

    def take_keys(self, record: Record) -> None:
        """Signed by the device: if the others had to find out that they are not, they would have no sum."""
        device = self._sender(record, self._terms.devices)
        check_keys(self._terms, self._roster, record)
        self._keys[device] = record

    def keys_for_all(self) -> list[Record]:
        self._enough(self._keys, "sent keys")
        return [self._keys[device] for device in sorted(self._keys)]

    def take_shares(self, record: Record) -> None:
        device, sealed = self._sender(record, self._keys), by_device(record, "receivers", "sealed")
        if sealed.keys() != self._keys.keys() - {device}:
            raise SecureSumError(f"device {device} sent shares for others than those who sent keys")
        self._sealed[device] = sealed

    def delivery_for(self, device: int) -> Record:
        self._enough(self._sealed, "sent shares")
        senders = [sender for sender in sorted(self._sealed) if sender != device]
        return {**self._round(), "senders": senders, "sealed": [self._sealed[sender][device] for sender in senders]}

    def take_masked(self, device: int, words: Words) -> None:
        if device not in self._sealed or words.shape != (self._terms.length,) or words.dtype != np.uint64:
            raise SecureSumError(f"device {device} sent no shares, or its vector is not {self._terms.length} uint64")
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
        self._enough(self._masked, "sent their vectors")
        return {**self._round(), "survivors": self.survivors}

    def take_confirmation(self, record: Record) -> None:
        self._signatures[self._sender(record, self._masked)] = octets(record, "signature")

    def reveal_question(self) -> Record:
        self._enough(self._signatures, "confirmed the survivors")
        signers = sorted(self._signatures)
        signatures = [self._signatures[signer] for signer in signers]
        return {**self._round(), "survivors": self.survivors, "signers": signers, "signatures": signatures}

    def take_reveal(self, record: Record) -> None:
        device = self._sender(record, self._signatures)
        if record.get("survivors") != self.survivors or record.get("dropped") != self._dropped():
            raise SecureSumError(f"device {device} revealed shares of other devices than it was asked for")
        for devices_name, shares_name in (("survivors", "seed_shares"), ("dropped", "key_shares")):
            by_device(record, devices_name, shares_name)  # as many as devices, or it is refused
        self._revealed[device] = record

    def total(self) -> NDArray[np.int64]:
        """The sum of the survivors' vectors, exact."""
        self._enough(self._revealed, "revealed their shares")
        words = np.zeros(self._terms.length, np.uint64)
        for device in self.survivors:
            words += self._masked[device]
            words -= mask(self._seed_of(device), self._terms.purpose(b"own mask", device), self._terms.length)
        for dropped in self._dropped():
            private = self._mask_private_of(dropped)
            for device in self.survivors:
                # What the survivor added is what the lost device would have taken away.
                words += pairwise_mask(self._terms, dropped, device, private, octets(self._keys[device], "mask_key"))
        return self._terms.modulus.decode(self._terms.modulus.reduce(words))

    def _dropped(self) -> list[int]:
        """Those whose masks are in the others' vectors, but whose own vector is not here."""
        return sorted(self._sealed.keys() - self._masked.keys())

    def _seed_of(self, device: int) -> bytes:
        committed = octets(self._keys[device], "seed_commitment")
        purpose = self._terms.purpose(b"seed", device)
        return self._combined("survivors", "seed_shares", device, lambda seed: commitment(seed, purpose) == committed)

    def _mask_private_of(self, device: int) -> bytes:
        known = octets(self._keys[device], "mask_key")
        return self._combined("dropped", "key_shares", device, lambda private: public_key(private) == known)

    def _combined(self, devices_name: str, shares_name: str, device: int, is_right: Callable[[bytes], bool]) -> bytes:
        """From any shares that fit: one device that reveals a wrong one must not cost the others their sum."""
        shares = [by_device(record, devices_name, shares_name)[device] for record in self._revealed.values()]
        for some in islice(combinations(shares, self._terms.threshold), _MOST_TRIES):
            try:
                secret = combine_shares(list(some))
            except ValueError:  # what is no share at all
                continue
            if len(secret) == KEY_BYTES and is_right(secret):
                return secret
        raise SecureSumError(f"the shares of device {device}'s secret do not give what it committed to")

    def _sender(self, record: Record, allowed: Collection[int]) -> int:
        device = integer(record, "device")
        if device not in allowed or integer(record, "round") != self._terms.round_number:
            raise SecureSumError(f"device {device} answers out of turn")
        return device

    def _enough(self, devices: Collection[int], what: str) -> None:
        if len(devices) < self._terms.threshold:
            rule = f"and {self._terms.threshold} must have"
            raise SecureSumError(f"no sum in round {self._terms.round_number}: {len(devices)} devices {what}, {rule}")

    def _round(self) -> Record:
        return {"round": self._terms.round_number}
