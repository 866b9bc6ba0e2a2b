"""The server's side of the secure sum: it forwards messages, adds the vectors and removes the revealed masks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from airdistill.flower.records import Record, by_device, integer, octets
from airdistill.flower.sums.device_side import check_keys, pairwise_mask
from airdistill.flower.sums.keys import Modulus, SecureSumError, Words, commitment, mask, public_key
from airdistill.flower.sums.messages import Terms
from airdistill.flower.sums.secret_sharing import combine_shares

_COMMITMENT_BYTES = 32
_SECRETS = {"dropped": ("key_shares", b"key share"), "survivors": ("seed_shares", b"seed share")}


class ServerSide:
    """The server in one round of the steps in `device_side`; a device that misses one step is left out of the next."""

    def __init__(self, terms: Terms, roster: Mapping[int, bytes]) -> None:
        self._terms, self._roster = terms, roster
        self._keys: dict[int, Record] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._commitments: dict[int, dict[int, bytes]] = {}  # of a dealer, to the shares of a holder
        self._masked: dict[int, Words] = {}
        self._signatures: dict[int, bytes] = {}
        self._revealed: dict[int, dict[str, dict[int, bytes]]] = {}  # by holder, the shares of each dealer

    @property
    def modulus(self) -> Modulus:
        return self._terms.modulus

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
        self._commitments[device] = self._commitments_in(record, device)
        self._sealed[device] = sealed

    def _commitments_in(self, record: Record, device: int) -> dict[int, bytes]:
        content, holders, size = octets(record, "commitments"), sorted(self._keys), 2 * _COMMITMENT_BYTES
        if len(content) != size * len(holders):
            raise SecureSumError(f"device {device} sent {len(content)} bytes of commitments for {len(holders)} devices")
        return {holder: content[size * place : size * (place + 1)] for place, holder in enumerate(holders)}

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
        self._revealed[device] = {name: by_device(record, name, shares) for name, (shares, _) in _SECRETS.items()}

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
        return self._combined("survivors", device, lambda seed: commitment(seed, purpose) == committed)

    def _mask_private_of(self, device: int) -> bytes:
        known = octets(self._keys[device], "mask_key")
        return self._combined("dropped", device, lambda private: public_key(private) == known)

    def _combined(self, devices_name: str, dealer: int, is_right: Callable[[bytes], bool]) -> bytes:
        """Combine the shares that the dealer has committed to: a wrong share must not prevent the sum."""
        _, what = _SECRETS[devices_name]
        points = {holder: point for point, holder in enumerate(sorted(self._keys), start=1)}
        right = {}
        for holder, revealed in self._revealed.items():
            share = revealed[devices_name][dealer]
            if commitment(share, self._terms.purpose(what, dealer, holder)) in self._committed(dealer, holder):
                right[points[holder]] = share
        if len(right) >= self._terms.threshold:
            secret = combine_shares(dict(sorted(right.items())[: self._terms.threshold]))
            if is_right(secret):
                return secret
        raise SecureSumError(f"the shares of device {dealer}'s secret do not give what it committed to")

    def _committed(self, dealer: int, holder: int) -> tuple[bytes, bytes]:
        both = self._commitments[dealer][holder]
        return both[:_COMMITMENT_BYTES], both[_COMMITMENT_BYTES:]

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
