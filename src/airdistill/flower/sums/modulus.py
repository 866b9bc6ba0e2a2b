"""Whole numbers modulo 2^bits, wide enough that a sum of what the devices may send never wraps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airdistill.errors import InputError

Words = NDArray[np.uint64]
MAX_BITS = 63  # a sum still fits a signed 64-bit number, which is what Flower and NumPy carry


@dataclass(frozen=True)
class Modulus:
    """Numbers from −2^(bits−1) to 2^(bits−1) − 1; the upper half of the residues stands for the negative ones."""

    bits: int

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= MAX_BITS:
            raise InputError("bits", self.bits, f"must lie between 2 and {MAX_BITS}")

    @classmethod
    def for_sum(cls, largest: int, num_devices: int) -> Modulus:
        """The smallest in which num_devices numbers of at most `largest` in magnitude add up without wrapping."""
        if largest < 1 or num_devices < 1:
            raise InputError("largest, num_devices", (largest, num_devices), "must both be at least 1")
        bits = (largest * num_devices).bit_length() + 1  # and one for the sign
        if bits > MAX_BITS:
            rule = f"{num_devices} of them need {bits} bits and there are {MAX_BITS}: quantise more coarsely"
            raise InputError("the largest value a device may send", largest, rule)
        return cls(bits)

    def encode(self, values: NDArray[np.int64]) -> Words:
        return self.reduce(values.astype(np.int64).view(np.uint64))  # two's complement: −1 becomes 2^64 − 1

    def decode(self, residues: Words) -> NDArray[np.int64]:
        """The number nearest to zero of each residue's class."""
        unused = np.uint64(64 - self.bits)
        return (residues << unused).view(np.int64) >> np.int64(64 - self.bits)

    def reduce(self, words: Words) -> Words:
        """Arithmetic of unsigned words wraps at 2^64, a multiple of this modulus, so reducing at the end is enough."""
        return words & np.uint64((1 << self.bits) - 1)
