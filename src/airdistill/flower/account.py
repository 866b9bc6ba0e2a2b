"""An endpoint's account of privacy, which outlives federations: a folder kept beside its data.

The account names the folders of all federations that this endpoint has joined with the same data. The ledger of each
one continues that of the one before it, whatever their schemes are: a federation is refused as soon as the budget that
earlier ones have left is spent, and every certificate counts all of them. The endpoint gives the account itself
(`--node-config account=…`): no server can leave it out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airdistill.errors import AirDistillError
from airdistill.files import write_whole
from airdistill.runs.folder import LEDGER, RUN, locked

ACCOUNT = "account.json"
SERVER = "server"  # the owner of the server's account; that of a device's is its number
_LOCK_TIMEOUT_S = 60.0


class AccountError(AirDistillError):
    """An account that cannot be continued, or a federation that did not begin with it."""


@dataclass(frozen=True)
class Account:
    """The account in a folder, of the server or of the device with a number."""

    folder: Path
    owner: str

    @classmethod
    def of(cls, folder: str, owner: str) -> Account | None:
        """The account in the folder that the endpoint was given; None without one."""
        return cls(Path(folder), owner) if folder else None

    @contextmanager
    def open(self, federation: Path) -> Iterator[Path | None]:
        """The folder whose ledger this federation's must continue; None for the first.

        The federation is in the account when the block has ended. If a start was killed in between, the next one finds
        the same folder to continue.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(self.folder, _LOCK_TIMEOUT_S):
            earlier = self._federations()
            own = str(federation.resolve())
            before = [each for each in earlier if each != own]
            if before and not (Path(before[-1]) / LEDGER).is_file():
                rule = "what was released there cannot be counted: bring the folder back"
                raise AccountError(f"{self.folder / ACCOUNT}: {before[-1]} has no {LEDGER}; {rule}")
            yield Path(before[-1]) if before else None
            stored = {"owner": self.owner, "federations": [*before, own]}
            write_whole(self.folder / ACCOUNT, json.dumps(stored, indent=1).encode(), secret=True)

    def check(self, federation: Path) -> None:
        """Raise unless a federation that has begun is in the account: its ledger must have continued the others'."""
        if str(federation.resolve()) not in self._federations():
            rule = f"began with another account or without one; prepare a new federation, which {self.folder} counts"
            raise AccountError(f"{federation}: its ledger, {federation / RUN}, {rule}")

    def _federations(self) -> list[str]:
        path = self.folder / ACCOUNT
        if not path.exists():
            return []
        try:
            stored: dict[str, Any] = json.loads(path.read_bytes())
            owner, federations = str(stored["owner"]), [str(each) for each in stored["federations"]]
        except (ValueError, KeyError, TypeError) as error:
            raise AccountError(f"{path}: is damaged: {error}; bring back a copy of it") from None
        if owner != self.owner:
            rule = "ledgers count every device under its number: keep the numbers of earlier federations"
            raise AccountError(f"{path}: is the account of {_named(owner)}, and this is {_named(self.owner)}; {rule}")
        return federations


def _named(owner: str) -> str:
    return "the server" if owner == SERVER else f"device {owner}"
