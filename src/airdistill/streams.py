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
from typing import TypeAlias

import numpy as np

# A scenario's seed; for noise that protects, the seed of one ledger entry (`noise_seed`), which is a text.
Seed: TypeAlias = int | str


def stream(seed: Seed, purpose: str, round_index: int = 0, device: int = 0) -> np.random.Generator:
    """Return the generator for one purpose in one round on one device.

    The 128-bit key of Philox is a digest of seed and purpose. Round and device are the upper half of its 256-bit
    counter, and so each stream has 2^128 blocks before it would overlap with the next one.
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest()
    key = np.frombuffer(digest, dtype="<u8")
    counter = np.array([0, 0, device, round_index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


def noise_seed(seed: int, entry_key: str) -> Seed:
    """Return the seed of the noise of one ledger entry: two entries do not draw the same noise, even with one seed.

    Ledgers of versions before 0.2 have entries without a key; their noise depends on seed, round and device alone.
    """
    return f"{seed}/{entry_key}" if entry_key else seed
