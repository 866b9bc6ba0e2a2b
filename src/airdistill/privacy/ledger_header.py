"""The header of a run in a ledger: every device's target, the terms of the guarantee, and the origin of its noise."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.files import jsonable
from airdistill.privacy.chain import LedgerError
from airdistill.privacy.trust import TrustStatement

FORMAT = 1
_ROUNDING = 1e-9  # relative, of δ
TDMA = "orthogonal_knowledge"  # a kind of uplink
EARLIER_EXCESS = "earlier_excess_delta"  # a term: what channel errors of earlier runs have taken of δ


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
    def reserved_delta(self) -> float:
        """The part of every device's target δ that is kept for channel errors: of this run, and of earlier ones.

        `delta` is the rest, for the noise.
        """
        own = self.terms.get("waveform", self.terms.get("csi_error", {})).get("reserved_delta", 0.0)
        return float(own) + float(self.terms.get(EARLIER_EXCESS, 0.0))

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


def excess_delta(header: LedgerHeader, num_releases: int, trust: TrustStatement) -> float | None:
    """The probability that a channel error of any device in any round was beyond its limit, by the union bound.

    None if such errors matter under this trust model and the ledger, of an earlier version, does not record their
    quantile.
    """
    terms = header.terms
    limit = float(terms.get("csi_error_limit", 0.0))
    if "waveform" not in terms and limit == 0:
        return 0.0
    secure_sum = isinstance(terms.get("medium"), Mapping)
    if secure_sum or not trust.needs_aligned_channels(terms["uplink"] == TDMA):
        return 0.0
    if "waveform" in terms:
        # Rounds that were charged again, or beyond the plan, have errors of their own.
        stated = terms["waveform"]
        return min(1.0, float(stated["excess"]) * max(1.0, num_releases / float(stated.get("rounds", np.inf))))
    if "csi_error" not in terms:
        return None
    return min(1.0, header.num_devices * num_releases * (1.0 - float(terms["csi_error"]["quantile"])))


def excess_of_runs(headers: Sequence[LedgerHeader], counts: Sequence[int], trust: TrustStatement) -> float:
    """That of runs with so many releases, together: every run has channels and errors of its own."""
    runs = zip(headers, counts, strict=True)
    return sum(excess_delta(header, count, trust) or 0.0 for header, count in runs if count)


def problem_with_excess(header: LedgerHeader, excess: float) -> str | None:
    """Why so much for channel errors of all runs is more than a header keeps of δ; None if it is not.

    A plan that could keep nothing of δ for its own has warned, and its certificate does not hold.
    """
    kept = header.reserved_delta
    if excess <= kept * (1 + _ROUNDING) or header.terms.get("csi_error", {}).get("reserved_delta") == 0:
        return None
    rule = f"would take {excess:.6g} of δ, and {kept:.6g} is kept for them"
    return f"channel errors of all runs in its ledger {rule}; plan a run that continues this ledger with it"


def noise_origin(header: LedgerHeader, before: str, num_entries: int) -> str:
    """What distinguishes the noise of a run: its own terms, and the runs with their entries that its ledger continues.

    It is made of identifiers and counts, not of computed numbers: another type of processor draws the same noise.
    """
    own = header.terms.get("noise_key")
    return "" if own is None else hashlib.sha256(f"{before}/{num_entries}/{own}".encode()).hexdigest()


def _array(values: list[float | None]) -> FloatArray:
    return np.array([np.inf if value is None else value for value in values], dtype=np.float64)
