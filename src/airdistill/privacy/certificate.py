"""Certificates: what a ledger's releases guarantee, to whom, and under which assumptions, from the ledger alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from airdistill import __version__
from airdistill.arrays import FloatArray
from airdistill.files import jsonable
from airdistill.privacy.accounts import DeviceAccount, DeviceAccounts, accounts_of
from airdistill.privacy.assumptions import Assumption
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.ledger_header import LedgerHeader
from airdistill.privacy.statements import (
    OTHER_FIGURES,
    CertifiedRun,
    assumptions_of,
    facts_about,
    guarantees_of,
    judged_by_class_mean,
    neighbours_in_words,
    publishes_votes,
    record_figure,
    runs_of,
    second_guarantee,
)
from airdistill.privacy.targets import TOLERANCE
from airdistill.privacy.trust import trust_from
from airdistill.units import rounded_up

HOLDS, UNDER_ASSUMPTIONS, SIMULATION, FAILS = "holds", "holds under assumptions", "simulation", "does not hold"
NOTHING_ASKED = "nothing asked"
FORMATS = (1, 2)


@dataclass(frozen=True)
class Certificate:
    """The verdict, what it rests on, and every device's account. `num_earlier` of the releases are of earlier runs.

    `issued` is the date at which it was handed out, in UTC; a run's own copy has none.
    """

    header: LedgerHeader
    runs: tuple[CertifiedRun, ...]
    num_releases: int
    num_earlier: int
    devices: DeviceAccounts
    verdict: str
    reasons: tuple[str, ...]
    statement: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    audit: dict[str, Any] | None
    ledger_digest: str | None
    ledger_lines: int | None
    issued: str | None = None
    data_dependent_epsilon: float | None = None

    @property
    def fallible(self) -> tuple[str, ...]:
        """The names of the assumptions that can turn out false."""
        return tuple(each.name for each in self.assumptions if not each.declared)

    @property
    def verdict_in_words(self) -> str:
        """With the assumptions that can turn out false."""
        named = f"({', '.join(self.fallible)})"
        if self.verdict == SIMULATION:
            under = f" under assumptions {named}" if self.fallible else ""
            return f"simulation: protects no one; with secret noise it would hold{under}"
        return f"{self.verdict} {named}" if self.verdict == UNDER_ASSUMPTIONS else self.verdict

    @property
    def headline(self) -> str:
        """The guarantee in one line: ε and δ, for which devices and neighbours, under which trust model.

        If devices differ, these are the largest ε and δ, and the smallest follow.
        """
        devices = self.devices
        asked = np.isfinite(devices.epsilon_asked)
        whom = f"{neighbours_in_words(self.header)}, trust {self.header.trust}"
        if not asked.any():
            return f"No guarantee was asked for: {len(devices)} devices, {whom}"
        fails = self.verdict == FAILS
        epsilon = (devices.epsilon_asked if fails else devices.evidence)[asked]
        delta = (devices.delta if fails else devices.delta_in_all)[asked]
        count = int(devices.groups.sizes[asked].sum())
        every = count if count == len(devices) else f"{count} of {len(devices)}"
        numbers, ranges = _numbers(epsilon, delta)
        line = f"{numbers} for every one of {every} devices{ranges}, {whom}"
        line = f"not guaranteed: {line}" if fails else line
        return f"Simulation: {line}" if self.is_simulation else line[0].upper() + line[1:]

    @property
    def is_simulation(self) -> bool:
        """Whether the noise of any run was seeded, and therefore protects no device."""
        return any(run.is_simulation for run in self.runs)

    @property
    def releases_in_words(self) -> str:
        earlier = f", {self.num_earlier} of them by earlier runs" if self.num_earlier else ""
        return f"{self.num_releases} release{'' if self.num_releases == 1 else 's'}{earlier}"

    @property
    def record_epsilon(self) -> float | None:
        """ε of the worst device for one of its records, label included, beside the guarantee for whole devices.

        None unless every payload of the ledger has an exact bound for records: one that was made after training on the
        records moves as far as that of a whole device.
        """
        return self._second("class_mean") if self.header.sensitivity == "device" else None

    @property
    def device_epsilon(self) -> float | None:
        """ε of the worst device for its whole data, beside a guarantee for records by an exact bound."""
        return None if self.header.sensitivity == "device" else self._second("device")

    def _second(self, model: str) -> float | None:
        usable = record_figure(self.runs) and self.verdict != FAILS
        return self.worst(model, self.header.trust) if usable else None

    @property
    def trust_names(self) -> tuple[str, ...]:
        """The trust models that releases are counted under."""
        return tuple(next(iter(self.devices.by_model.values())))

    def worst(self, model: str, trust: str) -> float:
        """ε of the worst device."""
        return float(self.devices.by_model[model][trust].max())

    def to_dict(self) -> dict[str, Any]:
        terms = self.header
        written: dict[str, Any] = jsonable(
            {
                "airdistill": __version__,
                "format": self.header.format,
                "issued": self.issued,
                "headline": self.headline,
                "name": terms.name,
                "scheme": terms.scheme,
                "verdict": self.verdict,
                "verdict_in_words": self.verdict_in_words,
                "reasons": self.reasons,
                "statement": self.statement,
                **{name: each for name in OTHER_FIGURES if (each := getattr(self, name)) is not None},
                "assumptions": [vars(assumption) for assumption in self.assumptions],
                "declared": {
                    name: getattr(terms, name)
                    for name in ("sensitivity", "trust", "accountant", "relabel", "noise", "payload")
                },
                "simulation": self.is_simulation,
                "releases": self.num_releases,
                "earlier_releases": self.num_earlier,
                "runs": [_run_in_json(run) for run in self.runs],
                "scenario_digest": terms.scenario_digest,
                "data_digest": terms.data_digest,
                "ledger_digest": self.ledger_digest,
                "ledger_lines": self.ledger_lines,
                "audit": self.audit,
            }
        )
        verdicts = self.verdicts
        by_device = self.header.format == 1
        written["devices"] = self.devices.listed(verdicts) if by_device else self.devices.in_columns(verdicts)
        return written

    @property
    def verdicts(self) -> list[str]:
        """The verdict for the devices of each group."""
        fails = self._audit_found_more or self._seen_separately
        otherwise = SIMULATION if self.is_simulation else UNDER_ASSUMPTIONS if self.fallible else HOLDS
        asked, kept = np.isfinite(self.devices.epsilon_asked).tolist(), self.devices.kept.tolist()
        return [
            NOTHING_ASKED if not any_asked else FAILS if fails or not is_kept else otherwise
            for any_asked, is_kept in zip(asked, kept, strict=True)
        ]

    @property
    def _seen_separately(self) -> bool:
        """Whether the server of any run saw single signals that other parties' noise was meant to protect."""
        trust = trust_from(self.header.trust, self.header.terms)
        media = [self.header.terms.get("medium"), *(run.terms.get("medium") for run in self.runs)]
        return "emulated" in media and not trust.counts_own_only

    @property
    def _audit_found_more(self) -> bool:
        return bool(self.audit and self.audit["violations"])


def certificate_of(
    ledger: Ledger,
    audit: dict[str, Any] | None = None,
    issued: str | None = None,
    data_dependent: float | None = None,
) -> Certificate:
    """The certificate of all that the ledger has charged.

    `audit` is what an audit of the same run measured, with its violations; `data_dependent` an ε that is no guarantee,
    and is stated if the ledger says that it may be.
    """
    header, runs = ledger.header, runs_of(ledger)
    data_dependent = data_dependent if publishes_votes(header) else None
    accounts, assumptions = accounts_of(ledger, runs), assumptions_of(runs, ledger)
    private = [run for run in runs if run.terms["releases"] != "bare"]
    is_bare, unsent = header.terms["releases"] == "bare", [CertifiedRun(header, 0)]
    draft = Certificate(
        header,
        tuple(runs),
        ledger.num_earlier + ledger.num_releases,
        ledger.num_earlier,
        accounts,
        verdict="",
        reasons=(),
        statement=NO_GUARANTEE if is_bare else guarantees_of(private or unsent, assumptions, data_dependent),
        assumptions=assumptions,
        audit=audit,
        ledger_digest=None if ledger.chain is None else ledger.chain.digest,
        ledger_lines=None if ledger.chain is None else ledger.chain.num_lines,
        issued=issued,
        data_dependent_epsilon=data_dependent,
    )
    verdicts = set(draft.verdicts)
    # The worst verdict of any device is the verdict of the run.
    order = (FAILS, SIMULATION, UNDER_ASSUMPTIONS, HOLDS, NOTHING_ASKED)
    verdict = next(word for word in order if word in verdicts)
    decided = replace(draft, verdict=verdict, reasons=tuple(_reasons(ledger, runs, accounts, audit)))
    delta = float(accounts.delta_in_all.max())
    second = second_guarantee(runs, decided.record_epsilon, decided.device_epsilon, delta)
    return decided if second is None else replace(decided, statement=(second, *decided.statement))


NO_GUARANTEE = ("Nothing is guaranteed.",)


def _run_in_json(run: CertifiedRun) -> dict[str, Any]:
    header = run.header
    digests = {"scenario_digest": header.scenario_digest, "data_digest": header.data_digest}
    return {"name": header.name, "scheme": header.scheme, "releases": run.num_releases, **digests}


def _numbers(epsilon: FloatArray, delta: FloatArray) -> tuple[str, str]:
    """The largest ε and δ in words, and in words the smallest of those that differ between devices."""
    values = {"ε": epsilon, "δ": delta}
    shown = {name: rounded_up(each.max()) for name, each in values.items()}
    least = {name: rounded_up(each.min()) for name, each in values.items()}
    differ = [name for name in values if least[name] != shown[name]]
    signs = {name: "≤" if name in differ else "=" for name in values}
    numbers = ", ".join(f"{name} {signs[name]} {shown[name]}" for name in values)
    ranges = ", ".join(f"{name} from {least[name]}" for name in differ)
    return f"({numbers})", f" ({ranges})" if ranges else ""


def _reasons(
    ledger: Ledger, runs: Sequence[CertifiedRun], accounts: DeviceAccounts, audit: dict[str, Any] | None
) -> list[str]:
    reasons = []
    if not runs:
        reasons.append("Nothing was released.")
    elif any(run.terms["releases"] == "bare" for run in runs):
        reasons.append("Numbers were released without noise: nothing protects them.")
    else:
        reasons += _broken_targets(ledger.header, runs, accounts)
    reasons += _earlier_guarantees(ledger, accounts)
    if audit is not None and audit["violations"]:
        reasons += [f"An audit found: {violation}" for violation in audit["violations"]]
    return [*reasons, *facts_about(ledger, runs)]


def _broken_targets(header: LedgerHeader, runs: Sequence[CertifiedRun], accounts: DeviceAccounts) -> list[str]:
    """How the targets of devices were missed, in ε and in δ; of each the worst device."""
    over = accounts.furthest(accounts.evidence, accounts.epsilon_asked)
    reasons = []
    if over is not None:
        reasons.append(_over_epsilon(header, any(run.assumes_untrained_model for run in runs), over))
    late = accounts.furthest(accounts.delta_in_all, accounts.delta)
    if late is not None:
        remedy = "" if "waveform" in header.terms else " Raise radio.csi_quantile."
        reasons.append(
            f"Channel errors beyond their limit add their probability to δ: device {late.device} has "
            f"δ = {rounded_up(late.delta_in_all)}, and the target was {rounded_up(late.delta)}.{remedy}"
        )
    return reasons


def _earlier_guarantees(ledger: Ledger, accounts: DeviceAccounts) -> list[str]:
    """Guarantees of earlier runs, for their own neighbours, that a later run with a larger target has broken."""
    found = []
    for run in ledger.earlier_headers:
        spent = accounts.groups.expand(accounts.by_model[run.sensitivity].get(run.trust, accounts.spent))
        over = spent > run.epsilon * (1 + TOLERANCE)
        if over.any() and run.terms["releases"] == "private":
            worst = int(np.argmax(np.where(over, spent / run.epsilon, 0.0)))
            found.append(
                f"{run.name} guaranteed device {worst} ε = {rounded_up(run.epsilon[worst])}; with later releases it "
                f"has spent {rounded_up(spent[worst])}."
            )
    return found


def _over_epsilon(header: LedgerHeader, untrained_assumed: bool, worst: DeviceAccount) -> str:
    spent = f"device {worst.device} has spent ε = {rounded_up(worst.evidence)}"
    target = f"and the target was {rounded_up(worst.epsilon_asked)}"
    if untrained_assumed:
        return (
            f"The declared bound ({header.sensitivity}) assumes a model that was not trained on the record, and this "
            f"run's models were: it does not apply. By the bound for any training, that of whole devices, {spent}, "
            f"{target}."
        )
    if judged_by_class_mean(header):
        return (
            "Lemma 1 is not a valid bound: a class mean is over B_i^k samples, not B_i. Even for a model that was not "
            f"trained on the record, {spent}, {target}."
        )
    short = "; the paper's accountant adds too little noise" if header.accountant == "paper" else ""
    return f"{spent[0].upper()}{spent[1:]}, {target}{short}."
