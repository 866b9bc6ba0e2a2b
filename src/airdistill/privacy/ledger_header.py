"""The header of a run in a ledger: every device's target, the terms of the guarantee, and the origin of its noise."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.files import jsonable
from airdistill.privacy.chain import LedgerError

FORMAT = 1


@dataclass(frozen=True)
class LedgerHeader:
    """Every device's target (ε, δ), `[device]`, and the terms of the guarantee.

    `mu` is what the declared accountant grants. `enforced` is false for a non-private scheme, whose releases no target
    could allow. `terms` are facts that a certificate must state.
    """

    name: str
    scheme: str
    payload: str
    num_rows: int
    epsilon: FloatArray
    delta: FloatArray
    mu: FloatArray
    sensitivity: str
    trust: str
    accountant: str
    relabel: bool
    noise: str
    enforced: bool = True
    terms: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_devices(self) -> int:
        return len(self.epsilon)

    @property
    def rows(self) -> str:
        """What the rows stand for: only runs that agree in it move the same rows with the same record.

        Costs of others are added device by device. Versions before 0.2 did not record which data each device holds.
        """
        return " ".join(filter(None, (self.payload, self.terms.get("device_data"))))

    @property
    def scenario_digest(self) -> str | None:
        """The digest of the run's scenario; None if the ledger does not record it."""
        return self.terms.get("scenario") or None

    @property
    def data_digest(self) -> str | None:
        """The digest of the run's data and channels; None if they are not in one place, as in a federation."""
        return self.terms.get("inputs") or None

    def to_dict(self) -> dict[str, Any]:
        written: dict[str, Any] = jsonable({"kind": "opening", "format": FORMAT, **asdict(self)})
        return written

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> LedgerHeader:
        if stored["format"] != FORMAT:
            raise LedgerError(f"a ledger of format {stored['format']}: this version reads format {FORMAT}")
        numbers = {name: _array(stored[name]) for name in ("epsilon", "delta", "mu")}
        return cls(**{name: stored[name] for name in stored if name not in ("kind", "format")} | numbers)


def noise_origin(header: LedgerHeader, before: str, num_entries: int) -> str:
    """What distinguishes the noise of a run: its own terms, and the runs with their entries that its ledger continues.

    It is made of identifiers and counts, not of computed numbers: another type of processor draws the same noise.
    """
    own = header.terms.get("noise_key")
    return "" if own is None else hashlib.sha256(f"{before}/{num_entries}/{own}".encode()).hexdigest()


def _array(values: list[float | None]) -> FloatArray:
    return np.array([np.inf if value is None else value for value in values], dtype=np.float64)
