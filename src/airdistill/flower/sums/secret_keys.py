"""The cryptography under the secure sum, each piece bound to one round of one run.

From Flower 1.41 comes the secret sharing (`flwr.common.secure_aggregation.crypto.shamir`: Shamir's scheme over
GF(2^128) of PyCryptodome, with coefficients from the operating system). Its other pieces are not used, because

* `pseudo_rand_gen` folds a seed to 32 bits and feeds a Mersenne Twister: every mask could be found by trying 2^32
  seeds. It also never draws the largest residue, so a masked number would not be uniform. Here: ChaCha20, 256 bits;
* `generate_shared_key` derives one key per pair, whatever it is for. Here HKDF is told the round, who and what for;
* Fernet, behind `encrypt`, cannot bind a message to its sender, its receiver and its round. Here: ChaCha20-Poly1305
  with all of them as associated data.
"""

from __future__ import annotations

import os

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from airdistill.errors import AirDistillError
from airdistill.flower.sums.modulus import Words

KEY_BYTES = 32
NONCE_BYTES = 12


class SecureSumError(AirDistillError):
    """The sum cannot be had, or must not be."""


def new_secret() -> bytes:
    """A private key, or the seed of a mask: 256 bits from the operating system."""
    return os.urandom(KEY_BYTES)


def public_key(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed_key(private: bytes, other_public: bytes, purpose: bytes) -> bytes:
    """The key that two devices share for this purpose and nothing else."""
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other_public))
    except ValueError as error:  # a point of small order, or not a key at all
        raise SecureSumError(f"a device's public key is no key: {error}") from error
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=purpose).derive(shared)


def mask(seed: bytes, purpose: bytes, length: int) -> Words:
    """Uniform words from a seed: the key stream of ChaCha20 under a key that is used for nothing else."""
    key = HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=purpose).derive(seed)
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * length)), dtype="<u8").astype(np.uint64)


def commitment(secret: bytes, purpose: bytes) -> bytes:
    """Says later whether a secret is the one that was meant; it hides it, because it is 256 random bits."""
    return digest(purpose, secret)


def digest(*parts: bytes) -> bytes:
    """Of parts of any length, none of which can be mistaken for two."""
    state = hashes.Hash(hashes.SHA256())
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.finalize()


def seal(key: bytes, content: bytes, address: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, address)


def unseal(key: bytes, sealed: bytes, address: bytes) -> bytes:
    """Only what the other holder of the key sealed for this address."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], address)
    except (InvalidTag, ValueError) as error:
        raise SecureSumError("a sealed share was changed on its way") from error


class Identity:
    """A device's signing key: how the others know that a message is its own and not the server's."""

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
