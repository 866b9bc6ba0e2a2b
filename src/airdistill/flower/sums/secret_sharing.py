"""Shamir's secret sharing of 256 random bits over the integers modulo the first prime above 2^256.

Flower's own (1.41) multiplies in GF(2^128) bit by bit, in Python. For 200 devices, 180 of which must be left, a device
would share its two secrets in 2 s and the server combine 200 secrets in 7 minutes. Here a multiplication is one of
Python's integers (10 ms and 30 ms), and the server computes the weights of a set of shares once for all secrets. The
arithmetic does not run in constant time: it is for devices on which no one else measures times.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

from airdistill.flower.sums.keys import KEY_BYTES, SecureSumError

PRIME = 2**256 + 297
SHARE_BYTES = 33


def create_shares(secret: bytes, threshold: int, num_shares: int) -> list[bytes]:
    """Shares for the points 1, 2, …: values of a random polynomial of degree threshold − 1, which is the secret at 0.

    Any `threshold` of them give the secret. Fewer are independent of it, because all coefficients are uniform.
    """
    if len(secret) != KEY_BYTES:
        raise SecureSumError(f"a secret has {len(secret)} bytes; only {KEY_BYTES} can be shared")
    rising = [int.from_bytes(secret, "little"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = []
    for point in range(1, num_shares + 1):
        value = 0
        for coefficient in reversed(rising):  # Horner's rule
            value = (value * point + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES, "little"))
    return shares


def combine_shares(shares: Mapping[int, bytes]) -> bytes:
    """The secret from shares by point: the value at 0 of the polynomial through them. Raise if it is not a secret."""
    points = tuple(sorted(shares))
    weights = _weights_at_zero(points)
    values = (int.from_bytes(shares[point], "little") for point in points)
    found = sum(weight * value for weight, value in zip(weights, values, strict=True)) % PRIME
    try:
        return found.to_bytes(KEY_BYTES, "little")
    except OverflowError:
        raise SecureSumError("the shares do not give a secret of 256 bits") from None


@lru_cache(maxsize=16)
def _weights_at_zero(points: Sequence[int]) -> tuple[int, ...]:
    """Lagrange's weights: the value at 0 is Σ_i y_i Π_{j≠i} x_j/(x_j − x_i)."""
    weights = []
    for point in points:
        over, under = 1, 1
        for other in points:
            if other != point:
                over, under = over * other % PRIME, under * (other - point) % PRIME
        weights.append(over * pow(under, -1, PRIME) % PRIME)
    return tuple(weights)
