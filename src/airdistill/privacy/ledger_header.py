"""The header of a run in a ledger: every device's target, the terms of the guarantee, and the origin of its noise."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.files import jsonable
from airdistill.privacy.chain import Chain, LedgerError, digest_of_body
from airdistill.privacy.groups import Groups, column, numbers_of, whole_number
from airdistill.privacy.trust import TrustStatement

FORMATS = (1, 2)
GROUPED_FROM = 1000  # devices
_MOST_NUMBERS = 2**28  # devices times rows that a file is believed to have
_PER_DEVICE = ("epsilon", "delta", "mu")
_ROUNDING = 1e-9  # relative, of δ
TDMA = "orthogonal_knowledge"  # a kind of uplink
EARLIER_EXCESS = "earlier_excess_delta"  # a term: what channel errors of earlier runs have taken of δ


def format_for(num_devices: int) -> int:
    """The format in which the ledger of a new run is written: 1 is device by device, 2 by groups, for large fleets.

    A run keeps its format: its header states it, and holds for all lines up to the next header.
    """
    return 2 if num_devices >= GROUPED_FROM else 1


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
    format: int = 1

    @property
    def num_devices(self) -> int:
        return len(self.epsilon)

    @property
    def shape(self) -> tuple[int, int]:
        """[device, row]."""
        return self.num_devices, self.num_rows

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

    @cached_property
    def groups(self) -> Groups:
        """The groups of devices that have the same target."""
        return Groups.of([getattr(self, name) for name in _PER_DEVICE])

    def to_dict(self) -> dict[str, Any]:
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        if self.format == 2:
            fields |= {name: column(fields[name][self.groups.first]) for name in _PER_DEVICE}
            fields["groups"] = self.groups.to_dict()
        # The format comes first, as readers of format 1 expect.
        written: dict[str, Any] = jsonable({"kind": "opening", "format": self.format, **fields})
        return written

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> LedgerHeader:
        if stored["format"] not in FORMATS:
            read = " and ".join(map(str, FORMATS))
            raise LedgerError(f"a ledger of format {stored['format']}: this version reads formats {read}")
        numbers = _numbers_by_group(stored) if stored["format"] == 2 else {n: _array(stored[n]) for n in _PER_DEVICE}
        return cls(**{name: stored[name] for name in stored if name not in ("kind", "groups")} | numbers)


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


def _numbers_by_group(stored: Mapping[str, Any]) -> dict[str, FloatArray]:
    """What a header of format 2 has of every device; `ValueError` if these cannot be targets."""
    groups = Groups.from_dict(stored["groups"])
    if groups.num_devices * whole_number(stored["num_rows"], "num_rows") > _MOST_NUMBERS:
        raise ValueError(f"num_rows is {stored['num_rows']}: more numbers than a ledger may have")
    numbers = {name: numbers_of(stored[name], (groups.num_groups,), name) for name in _PER_DEVICE}
    for name, values in numbers.items():
        if not (values >= 0).all() or (name == "delta" and not (values < 1).all()):
            raise ValueError(f"{name}: must be a number that is not negative{', below 1' * (name == 'delta')}")
    return {name: np.asarray(groups.expand(values)) for name, values in numbers.items()}


def _array(values: list[float | None]) -> FloatArray:
    return np.array([np.inf if value is None else value for value in values], dtype=np.float64)


def same_start(closed: Chain, header: LedgerHeader, leftover: LedgerHeader | None) -> LedgerHeader:
    """The header that closed a ledger, if a killed start left it behind and this start is the same."""
    token = {} if leftover is None or "run" not in leftover.terms else {"run": leftover.terms["run"]}
    # An earlier version may have begun in another format.
    written = header.format if leftover is None else leftover.format
    again = replace(header, terms={**header.terms, **token}, format=written)
    if leftover is None or digest_of_body(again.to_dict()) != closed.last["by"]:
        folder = closed.last["in"]
        raise LedgerError(
            f"{closed.path}: another run continues it, in {folder}: give that run's ledger; if that run was killed "
            f"before its first round, repeat its command with --out {folder}"
        )
    return again
