"""The cryptography of the secure sum: modular integers, masks, key agreement, authenticated encryption, signatures.

Every key and mask is bound to one round of one run. Flower's own primitives (1.41) are not used; `secret_sharing` says
why not its secret sharing. As for the others:

* `pseudo_rand_gen` folds a seed to 32 bits and feeds a Mersenne Twister, and so every mask can be found by trying 2^32
  seeds. It also never draws the largest residue, and so a masked number is not uniform. Here: ChaCha20 with 256 bits;
* `generate_shared_key` derives one key per pair for all purposes. Here HKDF also takes the round, the devices and the
  purpose;
* Fernet, behind `encrypt`, cannot bind a message to its sender, its receiver and its round. Here: ChaCha20-Poly1305
  with all three as associated data.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from airdistill.errors import AirDistillError, InputError

Words = NDArray[np.uint64]
MAX_BITS = 63  # a sum still fits a signed 64-bit integer, which Flower and NumPy can carry
KEY_BYTES = 32
NONCE_BYTES = 12


class SecureSumError(AirDistillError):
    """The sum cannot be computed, or must not be."""


@dataclass(frozen=True)
class Modulus:
    """Integers modulo 2^bits, from −2^(bits−1) to 2^(bits−1) − 1; the upper half of the residues is negative."""

    bits: int

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= MAX_BITS:
            raise InputError("bits", self.bits, f"must lie between 2 and {MAX_BITS}")

    @classmethod
    def for_sum(cls, largest: int, num_devices: int) -> Modulus:
        """The smallest modulus in which `num_devices` integers of magnitude up to `largest` add up without wrapping."""
        if largest < 1 or num_devices < 1:
            raise InputError("largest, num_devices", (largest, num_devices), "must both be at least 1")
        bits = (largest * num_devices).bit_length() + 1  # one bit for the sign
        if bits > MAX_BITS:
            rule = f"{num_devices} devices need {bits} bits and only {MAX_BITS} are available: quantise more coarsely"
            raise InputError("the largest value a device may send", largest, rule)
        return cls(bits)

    def encode(self, values: NDArray[np.int64]) -> Words:
        return self.reduce(values.astype(np.int64).view(np.uint64))  # two's complement: −1 becomes 2^64 − 1

    def decode(self, residues: Words) -> NDArray[np.int64]:
        """The representative of each residue class that is nearest to zero."""
        unused = np.uint64(64 - self.bits)
        return (residues << unused).view(np.int64) >> np.int64(64 - self.bits)

    def packed(self, residues: Words) -> bytes:
        """Residues at `bits` bits each, the lowest first; the last byte is filled up with zeros."""
        octets = np.ascontiguousarray(residues, "<u8").view(np.uint8).reshape(-1, 8)
        return np.packbits(
            np.unpackbits(octets, axis=1, bitorder="little")[:, : self.bits], bitorder="little"
        ).tobytes()

    def unpacked(self, content: bytes, length: int) -> Words:
        """So many residues from their bytes. Raise unless they are what `packed` returns."""
        size = self.num_bytes(length)
        if len(content) != size:
            raise SecureSumError(f"{len(content)} bytes; {length} numbers of {self.bits} bits need {size}")
        bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")
        if bits[length * self.bits :].any():
            raise SecureSumError("the unused bits at the end of a vector must be zero")
        padded = np.zeros((length, 64), np.uint8)
        padded[:, : self.bits] = bits[: length * self.bits].reshape(length, self.bits)
        return np.packbits(padded, axis=1, bitorder="little").view("<u8").astype(np.uint64).ravel()

    def num_bytes(self, length: int) -> int:
        """The size of so many packed residues."""
        return -(-length * self.bits // 8)

    def reduce(self, words: Words) -> Words:
        """Reduce at the end of a sum; before that, words wrap at 2^64, which is a multiple of this modulus."""
        return words & np.uint64((1 << self.bits) - 1)


def new_secret() -> bytes:
    """A private key or the seed of a mask: 256 bits from the operating system."""
    return os.urandom(KEY_BYTES)


def public_key(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed_key(private: bytes, other_public: bytes, purpose: bytes) -> bytes:
    """The key that two devices share for one purpose."""
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other_public))
    except ValueError as error:  # a point of small order, or bytes that are not a key
        raise SecureSumError(f"a device's public key is not valid: {error}") from error
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=purpose).derive(shared)


def mask(seed: bytes, purpose: bytes, length: int) -> Words:
    """Expand a seed into uniform words: the key stream of ChaCha20 under a key that has no other use."""
    key = HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=purpose).derive(seed)
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * length)), dtype="<u8").astype(np.uint64)


def commitment(secret: bytes, purpose: bytes) -> bytes:
    """A commitment to a secret of 256 random bits; it is hiding because such a secret cannot be guessed."""
    return digest(purpose, secret)


def digest(*parts: bytes) -> bytes:
    """A SHA-256 digest of the parts; each is preceded by its length, and so the split into parts is unambiguous."""
    state = hashes.Hash(hashes.SHA256())
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.finalize()


def seal(key: bytes, content: bytes, address: bytes) -> bytes:
    """Encrypt and authenticate content for an address."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, address)


def unseal(key: bytes, sealed: bytes, address: bytes) -> bytes:
    """Decrypt content that the other holder of the key sealed for this address; raise for any other content."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], address)
    except (InvalidTag, ValueError) as error:
        raise SecureSumError("a sealed share was changed in transit") from error


class Identity:
    """A device's signing key, by which the other devices verify that a message is not from the server."""

    def __init__(self, private: bytes | None = None) -> None:
        self._key = Ed25519PrivateKey.generate() if private is None else Ed25519PrivateKey.from_private_bytes(private)

    @property
    def private(self) -> bytes:
        return self._key.private_bytes(
            serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
        )

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def sign(self, content: bytes) -> bytes:
        return self._key.sign(content)


def signed_by(public: bytes, signature: bytes, content: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True
