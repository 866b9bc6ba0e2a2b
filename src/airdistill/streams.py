"""Named random streams: one seed, and an independent generator for every (purpose, round, device).

The generators are counter-based. A resumed run, a federation of real devices and an uninterrupted simulation draw the
same numbers without exchanging any state. They are for simulation only: anyone who knows the seed can repeat them.

>>> first = stream(0, "channel", round_index=3, device=7).standard_normal(2)
>>> again = stream(0, "channel", round_index=3, device=7).standard_normal(2)
>>> bool((first == again).all())
True
>>> other = stream(0, "channel", round_index=3, device=8).standard_normal(2)
>>> bool((first == other).any())
False
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, purpose: str, round_index: int = 0, device: int = 0) -> np.random.Generator:
    """Return the generator for one purpose in one round on one device.

    The 128-bit key of Philox is a digest of seed and purpose. Round and device are the upper half of its 256-bit
    counter, and so each stream has 2^128 blocks before it would overlap with the next one.
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest()
    key = np.frombuffer(digest, dtype="<u8")
    counter = np.array([0, 0, device, round_index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))
