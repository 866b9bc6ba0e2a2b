"""Named random streams: one root seed, and for every (purpose, round, device) a generator of its own.

The generators are counter-based, so a resumed run, a federation of real devices and an uninterrupted
simulation make the same draws without passing any state around. They are for simulation: they hide nothing.
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, purpose: str, round_index: int = 0, device: int = 0) -> np.random.Generator:
    """The generator for one purpose in one round on one device.

    The seed and the purpose make Philox's 128-bit key; round and device are the upper half of its
    256-bit counter, which leaves 2^128 blocks to each stream before it would meet the next one.
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest()
    key = np.frombuffer(digest, dtype="<u8")
    counter = np.array([0, 0, device, round_index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))
