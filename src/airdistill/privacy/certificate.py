"""What a ledger's releases guarantee, to whom, under which assumption. It takes the ledger's data and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from airdistill import __version__
from airdistill.files import jsonable
from airdistill.privacy.assumptions import (
    EMULATED,
    JUDGED_BY_CLASS_MEAN,
    NOISE,
    RELABEL,
    STATIC_MODEL,
    Assumption,
    answers_in_words,
    assumptions_behind,
    basis,
    neighbours,
    pilot_source,
    taking_part_in_words,
    trust_in_words,
)
from airdistill.privacy.ledger import Ledger, LedgerHeader
from airdistill.privacy.release import TRUST_MODELS
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.privacy.targets import paper_epsilon

HOLDS, UNDER_ASSUMPTIONS, FAILS = "holds", "holds under assumptions", "does not hold"
NOTHING_ASKED = "nothing asked"
_TOLERANCE = 1e-8  # relative, of ε: what rounding leaves of the ledger's own


@dataclass(frozen=True)
class DeviceAccount:
    """One device: what it asked, and what its releases cost under the declared and under all other models."""

    device: int
    epsilon_asked: float
    delta: float
    spent: float
    paper_formula: float
    by_model: dict[str, dict[str, float]]
    evidence: float

    @property
    def kept(self) -> bool:
        """Whether the ε that the promise can rest on stays within what was asked."""
        return self.evidence <= self.epsilon_asked * (1 + _TOLERANCE)


@dataclass(frozen=True)
class Certificate:
    """The verdict, what it rests on, and every device's account; of `num_releases`, `num_earlier` by runs before."""

    header: LedgerHeader
    num_releases: int
    num_earlier: int
    devices: tuple[DeviceAccount, ...]
    verdict: str
    reasons: tuple[str, ...]
    statement: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    audit: dict[str, Any] | None
    ledger_digest: str | None

    @property
    def verdict_in_words(self) -> str:
        """With the assumptions that can turn out false."""
        if self.verdict != UNDER_ASSUMPTIONS:
            return self.verdict
        return f"{self.verdict} ({', '.join(each.name for each in self.assumptions if not each.declared)})"

    @property
    def releases_in_words(self) -> str:
        earlier = f", {self.num_earlier} of them by earlier runs" if self.num_earlier else ""
        return f"{self.num_releases} release{'' if self.num_releases == 1 else 's'}{earlier}"

    def worst(self, model: str, trust: str) -> float:
        """ε of the worst device."""
        return max(account.by_model[model][trust] for account in self.devices)

    def to_dict(self) -> dict[str, Any]:
        terms = self.header
        written: dict[str, Any] = jsonable(
            {
                "airdistill": __version__,
                "name": terms.name,
                "scheme": terms.scheme,
                "verdict": self.verdict,
                "verdict_in_words": self.verdict_in_words,
                "reasons": self.reasons,
                "statement": self.statement,
                "assumptions": [vars(assumption) for assumption in self.assumptions],
                "declared": {
                    name: getattr(terms, name)
                    for name in ("sensitivity", "trust", "accountant", "relabel", "noise", "payload")
                },
                "releases": self.num_releases,
                "earlier_releases": self.num_earlier,
                "ledger_digest": self.ledger_digest,
                "audit": self.audit,
                "devices": [
                    {
                        "device": account.device,
                        "asked": {"epsilon": account.epsilon_asked, "delta": account.delta},
                        "spent": account.spent,
                        "paper_formula": account.paper_formula,
                        "epsilon": account.by_model,
                        "verdict": self.verdict_for(account),
                    }
                    for account in self.devices
                ],
            }
        )
        return written

    def verdict_for(self, account: DeviceAccount) -> str:
        if np.isinf(account.epsilon_asked):
            return NOTHING_ASKED
        if not account.kept or self._audit_found_more or self._seen_alone:
            return FAILS
        return UNDER_ASSUMPTIONS if any(not each.declared for each in self.assumptions) else HOLDS

    @property
    def _seen_alone(self) -> bool:
        """Whether the server saw single signals that were to be hidden by others' noise."""
        return self.header.terms.get("medium") == "emulated" and self.header.trust != "own_noise"

    @property
    def _audit_found_more(self) -> bool:
        return bool(self.audit and self.audit["violations"])


def certificate_of(ledger: Ledger, audit: dict[str, Any] | None = None) -> Certificate:
    """Of all that the ledger has charged; `audit` is what an audit of the same run measured, with its violations."""
    header = ledger.header
    promises = _promises(ledger)
    accounts, assumptions = _accounts(ledger), _united(map(assumptions_behind, promises))
    bare = header.terms["releases"] == "bare"
    if not promises and not bare:
        assumptions = tuple(each for each in assumptions_behind(header) if each.name == STATIC_MODEL)
    draft = Certificate(
        header,
        ledger.num_earlier + ledger.num_releases,
        ledger.num_earlier,
        accounts,
        verdict="",
        reasons=(),
        statement=("Nothing is promised.",) if bare else _statement(promises or [header], assumptions),
        assumptions=assumptions,
        audit=audit,
        ledger_digest=None if ledger.chain is None else ledger.chain.digest,
    )
    verdicts = {draft.verdict_for(account) for account in accounts}
    # The worst word for any device is the word for all.
    verdict = next(word for word in (FAILS, UNDER_ASSUMPTIONS, HOLDS, NOTHING_ASKED) if word in verdicts)
    reasons = tuple(_reasons(ledger, accounts, audit))
    return Certificate(**{**vars(draft), "verdict": verdict, "reasons": reasons})


def _accounts(ledger: Ledger) -> tuple[DeviceAccount, ...]:
    header = ledger.header
    by_model = {model: {trust: ledger.epsilon(model, trust) for trust in TRUST_MODELS} for model in SENSITIVITY_MODELS}
    lemma1 = ledger.spending.squared_mu("paper", "receiver_noise", relabel=False)
    formula = paper_epsilon(np.sqrt(lemma1), header.delta)
    # Lemma 1 is no bound; the least that one record can move is a class mean of a model that it did not train.
    least = "class_mean" if header.sensitivity == "paper" else header.sensitivity
    return tuple(
        DeviceAccount(
            device,
            float(header.epsilon[device]),
            float(header.delta[device]),
            float(by_model[header.sensitivity][header.trust][device]),
            float(formula[device]),
            {m: {t: float(values[device]) for t, values in trusts.items()} for m, trusts in by_model.items()},
            float(by_model[least][header.trust][device]),
        )
        for device in range(header.num_devices)
    )


def _promises(ledger: Ledger) -> list[LedgerHeader]:
    """What each run that released anything stands for, counted on the terms of the last; none for bare numbers."""
    last = ledger.header
    runs = [*ledger.earlier_headers, *([last] if ledger.num_releases else [])]
    terms = {name: getattr(last, name) for name in ("sensitivity", "trust", "relabel")}
    return [replace(run, **terms) for run in runs if run.terms["releases"] != "bare"]


def _united(assumptions: Iterable[tuple[Assumption, ...]]) -> tuple[Assumption, ...]:
    """Each once, what is declared last."""
    found = dict.fromkeys(each for several in assumptions for each in several)
    return tuple(sorted(found, key=lambda each: each.declared))


def _statement(promises: Sequence[LedgerHeader], assumptions: Sequence[Assumption]) -> tuple[str, ...]:
    """The neighbouring relation, and what of the rest is no assumption."""
    lines = []
    for promise in promises:
        judged = promise.sensitivity == "paper" and promise.payload == "knowledge"
        lines += [
            neighbours(promise.sensitivity, promise.payload),
            JUDGED_BY_CLASS_MEAN if judged else basis(promise.sensitivity, promise.payload),
            *answers_in_words(promise.terms),
            *([RELABEL] if promise.relabel and promise.payload == "knowledge" else []),
            trust_in_words(promise.trust, promise.terms["uplink"]),
            *_taking_part(promise),
            NOISE[promise.noise],
        ]
    said = {assumption.sentence for assumption in assumptions}
    return tuple(line for line in dict.fromkeys(lines) if line not in said)


def _taking_part(promise: LedgerHeader) -> list[str]:
    terms = promise.terms
    hidden = terms.get("participation_hidden", False)
    return taking_part_in_words(terms["sampling"], terms.get("participation", 1.0), hidden)


def _reasons(ledger: Ledger, accounts: Sequence[DeviceAccount], audit: dict[str, Any] | None) -> list[str]:
    header, reasons = ledger.header, []
    runs = [*ledger.earlier_headers, *([header] if ledger.num_releases else [])]
    if not runs:
        reasons.append("Nothing was released.")
    elif any(run.terms["releases"] == "bare" for run in runs):
        reasons.append("Numbers went out as they are: nothing hides them.")
    elif broken := [account for account in accounts if np.isfinite(account.epsilon_asked) and not account.kept]:
        reasons.append(_broken(header, max(broken, key=lambda account: account.evidence / account.epsilon_asked)))
    reasons += _earlier_promises(ledger, accounts)
    if ledger.closed:
        reasons.append("Another run has gone on from this ledger: what it released is not in here.")
    if audit is not None and audit["violations"]:
        reasons += [f"An audit found: {violation}" for violation in audit["violations"]]
    if any(run.terms["releases"] == "private" and pilot_source(run) == "private" for run in runs):
        reasons.append("The pilot was not private: the learning constants were measured on the devices' own data.")
    if any(run.noise == "seeded" and run.terms["releases"] == "private" for run in runs):
        reasons.append("The noise of this run is seeded: it is a simulation and protects nobody.")
    if any(run.terms.get("medium") == "emulated" for run in runs):
        alone = " Each device's own noise was there all the same." if header.trust == "own_noise" else ""
        reasons.append(EMULATED + alone)
    return reasons


def _earlier_promises(ledger: Ledger, accounts: Sequence[DeviceAccount]) -> list[str]:
    """A later run may ask for more than an earlier one had promised; that promise is then gone."""
    found = []
    for run in ledger.earlier_headers:
        over = [account for account in accounts if account.spent > run.epsilon[account.device] * (1 + _TOLERANCE)]
        if over and run.terms["releases"] == "private":
            worst = max(over, key=lambda account: account.spent / run.epsilon[account.device])
            promised = run.epsilon[worst.device]
            found.append(
                f"{run.name} had promised device {worst.device} ε = {promised:.3g}; with what was released since, "
                f"{worst.spent:.3g} is spent."
            )
    return found


def _broken(header: LedgerHeader, worst: DeviceAccount) -> str:
    told = f"where {worst.epsilon_asked:.3g} was asked"
    if header.sensitivity == "paper" and header.payload == "knowledge":
        return (
            "Lemma 1 is no bound: a class mean is over B_i^k samples, not B_i. Even for a model that one record did "
            f"not train, device {worst.device} has spent ε = {worst.evidence:.3g} {told}."
        )
    short = "; the paper's accountant grants too little noise" if header.accountant == "paper" else ""
    return f"Device {worst.device} has spent ε = {worst.evidence:.3g} {told}{short}."
