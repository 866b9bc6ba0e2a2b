"""Who takes part in a secure sum: every device's public key, and the name of the run; the same in every folder.

Whoever prepares the run hands it out, and not the server of its rounds: one that could name the keys could stand for
every other device, and would see a single vector.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airdistill.flower.machine.certificates import write_secret
from airdistill.flower.station import StationError
from airdistill.flower.sums.secret_keys import Identity

ROSTER, IDENTITY = "roster.json", "identity.key"


@dataclass(frozen=True)
class Roster:
    """`run` is new for every run: what was signed in one means nothing in another."""

    run: str
    public_keys: Mapping[int, bytes]

    @classmethod
    def of(cls, identities: Sequence[Identity]) -> Roster:
        """For a new run of these devices."""
        return cls(secrets.token_hex(16), {number: identity.public for number, identity in enumerate(identities)})

    @classmethod
    def read(cls, folder: Path) -> Roster:
        try:
            stored = json.loads((folder / ROSTER).read_bytes())
            keys = {int(number): bytes.fromhex(key) for number, key in stored["devices"].items()}
            return cls(str(stored["run"]), keys)
        except FileNotFoundError:
            raise StationError(f"{folder}: has no {ROSTER}: a secure sum needs everybody's public key") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StationError(f"{folder / ROSTER}: is no roster: {error}") from None

    def write(self, folder: Path) -> None:
        devices = {str(number): key.hex() for number, key in self.public_keys.items()}
        (folder / ROSTER).write_text(json.dumps({"run": self.run, "devices": devices}, indent=1))


def own_identity(folder: Path) -> Identity:
    """The device's signing key."""
    try:
        return Identity((folder / IDENTITY).read_bytes())
    except FileNotFoundError:
        raise StationError(f"{folder}: has no {IDENTITY}: the device cannot sign") from None


def write_identity(folder: Path) -> Identity:
    """A new signing key for a device, which only it can read."""
    identity = Identity()
    write_secret(folder / IDENTITY, identity.private)
    return identity
