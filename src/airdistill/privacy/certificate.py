"""Certificates: what a ledger's releases guarantee, to whom, and under which assumptions, from the ledger alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from airdistill import __version__
from airdistill.files import jsonable
from airdistill.privacy.assumptions import (
    ANTENNAS,
    EMULATED,
    NOISE,
    OWN_CODE,
    PILOT,
    PUBLIC,
    RADIO,
    SECURE_SUM,
    Assumption,
    answers_statement,
    channels_statement,
    comparison_statement,
    pilot_source,
)
from airdistill.privacy.ledger import Ledger, LedgerHeader
from airdistill.privacy.neighbours import STATIC_MODEL, neighbours_from
from airdistill.privacy.participation import participation_assumption, participation_statements
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.privacy.targets import paper_epsilon
from airdistill.privacy.trust import trust_from

HOLDS, UNDER_ASSUMPTIONS, FAILS = "holds", "holds under assumptions", "does not hold"
NOTHING_ASKED = "nothing asked"
_TOLERANCE = 1e-8  # relative, of ε: what rounding leaves of the ledger's own


@dataclass(frozen=True)
class DeviceAccount:
    """One device: its target, and what its releases cost under the declared and all other models."""

    device: int
    epsilon_asked: float
    delta: float
    spent: float
    paper_formula: float
    by_model: dict[str, dict[str, float]]
    evidence: float

    @property
    def kept(self) -> bool:
        """Whether the ε that the guarantee rests on stays within the target."""
        return self.evidence <= self.epsilon_asked * (1 + _TOLERANCE)


@dataclass(frozen=True)
class Certificate:
    """The verdict, what it rests on, and every device's account. `num_earlier` of the releases are of earlier runs."""

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

    @property
    def trust_names(self) -> tuple[str, ...]:
        """The trust models that releases are counted under."""
        return tuple(next(iter(self.devices[0].by_model.values())))

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
        if not account.kept or self._audit_found_more or self._seen_separately:
            return FAILS
        return UNDER_ASSUMPTIONS if any(not each.declared for each in self.assumptions) else HOLDS

    @property
    def _seen_separately(self) -> bool:
        """Whether the server saw single signals that other parties' noise was meant to protect."""
        trust = trust_from(self.header.trust, self.header.terms)
        return self.header.terms.get("medium") == "emulated" and not trust.counts_own_only

    @property
    def _audit_found_more(self) -> bool:
        return bool(self.audit and self.audit["violations"])


def certificate_of(ledger: Ledger, audit: dict[str, Any] | None = None) -> Certificate:
    """The certificate of all that the ledger has charged.

    `audit` is what an audit of the same run measured, with its violations.
    """
    header = ledger.header
    guarantees = _guarantees(ledger)
    accounts, assumptions = _accounts(ledger), _united(map(assumptions_behind, guarantees))
    non_private = header.terms["releases"] == "bare"
    if not guarantees and not non_private:
        assumptions = tuple(each for each in assumptions_behind(header) if each.name == STATIC_MODEL)
    draft = Certificate(
        header,
        ledger.num_earlier + ledger.num_releases,
        ledger.num_earlier,
        accounts,
        verdict="",
        reasons=(),
        statement=("Nothing is guaranteed.",) if non_private else _statement(guarantees or [header], assumptions),
        assumptions=assumptions,
        audit=audit,
        ledger_digest=None if ledger.chain is None else ledger.chain.digest,
    )
    verdicts = {draft.verdict_for(account) for account in accounts}
    # The worst verdict of any device is the verdict of the run.
    verdict = next(word for word in (FAILS, UNDER_ASSUMPTIONS, HOLDS, NOTHING_ASKED) if word in verdicts)
    reasons = tuple(_reasons(ledger, accounts, audit))
    return Certificate(**{**vars(draft), "verdict": verdict, "reasons": reasons})


def assumptions_behind(header: LedgerHeader) -> tuple[Assumption, ...]:
    """All that a guarantee takes for granted; what can turn out false comes first."""
    neighbours, terms = neighbours_from(header.payload, header.terms), header.terms
    found = [*neighbours.assumptions(header.sensitivity, terms.get("constants", {})), *_about_noise(header)]
    if neighbours.declared is not None:
        found.append(neighbours.declared)
    if own := terms.get("own_code"):
        found.append(Assumption("user's own code", OWN_CODE.format(parts=" and ".join(own))))
    counts, source = Assumption("public counts and batch order", PUBLIC, declared=True), pilot_source(terms)
    if source == "private":
        # No declaration makes private data public: that its pilot revealed nothing can turn out false.
        return (*found, Assumption("harmless pilot", PILOT[source]), counts)
    return (*found, counts, Assumption("public pilot", PILOT[source], declared=True))


def _about_noise(header: LedgerHeader) -> Iterator[Assumption]:
    trust, terms, tdma = trust_from(header.trust, header.terms), header.terms, _uses_tdma(header.terms)
    yield from trust.assumptions(tdma)
    medium = terms.get("medium")
    if isinstance(medium, Mapping):
        least, of_all = int(medium["least_devices"]), int(medium["devices"])
        yield Assumption("secure sum", SECURE_SUM.format(least=least, all=of_all, enough=2 * least - of_all))
    elif medium == "radio" and trust.counts_others and not trust.counts_receiver:
        yield Assumption("simultaneous transmission", RADIO)
    if not isinstance(medium, Mapping) and trust.needs_aligned_channels(tdma):
        limit = float(terms.get("csi_error_limit", 0.0))
        name = "exact channels" if limit == 0 else "bounded channel error"
        yield Assumption(name, channels_statement(limit, trust.counts_own_only))
    secret = participation_assumption(terms)
    if secret is not None:
        yield secret
    antennas = int(terms.get("antennas", 1))
    if antennas > 1 and not trust.counts_own_only:
        # No number of antennas can tell a device's own noise from its signal.
        yield Assumption("number of antennas", ANTENNAS.format(count=antennas))
    if header.noise == "seeded":
        yield Assumption("secret seed", NOISE["seeded"])


def _uses_tdma(terms: Mapping[str, Any]) -> bool:
    return bool(terms["uplink"] == "orthogonal_knowledge")


def _accounts(ledger: Ledger) -> tuple[DeviceAccount, ...]:
    header = ledger.header
    by_model = {
        model: {trust: ledger.epsilon(model, trust) for trust in ledger.trust_names} for model in SENSITIVITY_MODELS
    }
    lemma1 = ledger.spending.squared_mu("paper", "receiver_noise", relabel=False)
    formula = paper_epsilon(np.sqrt(lemma1), header.delta)
    # Lemma 1 is not a valid bound; one record moves at least the class mean of a model that was not trained on it.
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


def _guarantees(ledger: Ledger) -> list[LedgerHeader]:
    """The header of each run that released anything, on the terms of the last run; none for non-private releases."""
    last = ledger.header
    runs = [*ledger.earlier_headers, *([last] if ledger.num_releases else [])]
    terms = {name: getattr(last, name) for name in ("sensitivity", "trust", "relabel")}
    return [replace(run, **terms) for run in runs if run.terms["releases"] != "bare"]


def _united(assumptions: Iterable[tuple[Assumption, ...]]) -> tuple[Assumption, ...]:
    """Each assumption once, declared ones last."""
    found = dict.fromkeys(each for several in assumptions for each in several)
    return tuple(sorted(found, key=lambda each: each.declared))


def _statement(guarantees: Sequence[LedgerHeader], assumptions: Sequence[Assumption]) -> tuple[str, ...]:
    """The neighbouring relation, and everything else that is not stated as an assumption."""
    lines = []
    for header in guarantees:
        lines += [
            *neighbours_from(header.payload, header.terms).statement(header.sensitivity, header.relabel),
            *answers_statement(header.terms),
            *comparison_statement(header.terms),
            trust_from(header.trust, header.terms).statement(_uses_tdma(header.terms)),
            *participation_statements(header.terms),
            NOISE[header.noise],
        ]
    stated = {assumption.sentence for assumption in assumptions}
    return tuple(line for line in dict.fromkeys(lines) if line not in stated)


def _reasons(ledger: Ledger, accounts: Sequence[DeviceAccount], audit: dict[str, Any] | None) -> list[str]:
    header, reasons = ledger.header, []
    runs = [*ledger.earlier_headers, *([header] if ledger.num_releases else [])]
    if not runs:
        reasons.append("Nothing was released.")
    elif any(run.terms["releases"] == "bare" for run in runs):
        reasons.append("Numbers were released without noise: nothing protects them.")
    elif broken := [account for account in accounts if np.isfinite(account.epsilon_asked) and not account.kept]:
        reasons.append(_broken(header, max(broken, key=lambda account: account.evidence / account.epsilon_asked)))
    reasons += _earlier_guarantees(ledger, accounts)
    if ledger.closed:
        reasons.append("Another run continues this ledger: what it released is not included here.")
    if audit is not None and audit["violations"]:
        reasons += [f"An audit found: {violation}" for violation in audit["violations"]]
    if any(run.terms["releases"] == "private" and pilot_source(run.terms) == "private" for run in runs):
        reasons.append("The pilot was not private: the learning constants were measured on the devices' own data.")
    if any(run.noise == "seeded" and run.terms["releases"] == "private" for run in runs):
        reasons.append("The noise of this run is seeded: it is a simulation and protects no device.")
    if any(run.terms.get("medium") == "emulated" for run in runs):
        own_only = trust_from(header.trust, header.terms).counts_own_only
        reasons.append(EMULATED + (" Each device's own noise was present all the same." if own_only else ""))
    return reasons


def _earlier_guarantees(ledger: Ledger, accounts: Sequence[DeviceAccount]) -> list[str]:
    """Guarantees of earlier runs that a later run, with a larger target, has broken."""
    found = []
    for run in ledger.earlier_headers:
        over = [account for account in accounts if account.spent > run.epsilon[account.device] * (1 + _TOLERANCE)]
        if over and run.terms["releases"] == "private":
            worst = max(over, key=lambda account: account.spent / run.epsilon[account.device])
            found.append(
                f"{run.name} guaranteed device {worst.device} ε = {run.epsilon[worst.device]:.3g}; with later releases "
                f"it has spent {worst.spent:.3g}."
            )
    return found


def _broken(header: LedgerHeader, worst: DeviceAccount) -> str:
    target = f"and the target was {worst.epsilon_asked:.3g}"
    if neighbours_from(header.payload, header.terms).judged_by_class_mean(header.sensitivity):
        return (
            "Lemma 1 is not a valid bound: a class mean is over B_i^k samples, not B_i. Even for a model that was not "
            f"trained on the record, device {worst.device} has spent ε = {worst.evidence:.3g}, {target}."
        )
    short = "; the paper's accountant adds too little noise" if header.accountant == "paper" else ""
    return f"Device {worst.device} has spent ε = {worst.evidence:.3g}, {target}{short}."
