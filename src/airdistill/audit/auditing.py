"""The audit as a whole: which attacks are made on which device, and whether a promise was broken.

What is audited: a run as it was planned, or a scenario as it would be.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from airdistill import DEFAULT_SCHEME
from airdistill.audit.certificate import promise_of
from airdistill.audit.context import AuditContext, Link, NoiseSource, replay
from airdistill.audit.empirical import EmpiricalAudit, audit_empirically
from airdistill.audit.exact import ExactAudit, audit_exactly, choose_worst
from airdistill.audit.membership import MembershipAudit, audit_membership
from airdistill.audit.neighbours import neighbours_of
from airdistill.audit.options import AuditOptions, OnProgress
from airdistill.errors import InputError
from airdistill.files import jsonable
from airdistill.planning.plan import Plan
from airdistill.runs.accounts import note_audit, trusted_ledger
from airdistill.runs.folder import RUN, read_sealed, simulated
from airdistill.runs.options import RunOptions
from airdistill.runs.simulation import check_has_data, check_inputs
from airdistill.scenario.loading import load
from airdistill.schemes.base import Scheme
from airdistill.schemes.registry import load_scheme, plan_run

_REPLAYED = (
    "What the other devices send is replayed from one simulation: the guarantee must hold whatever they send. "
    "Only the audited device's data and the noise vary."
)
_LOWER_BOUND = "An attack shows what leaks at least; none of them can show that nothing more does."


@dataclass(frozen=True)
class Audit:
    """What was attacked, what came out, and which promises it breaks; a part that was not asked for is None."""

    name: str
    scheme: str
    device: int
    num_rounds: int
    planned_rounds: int
    trust: str
    sensitivity: str
    epsilon: float
    delta: float
    seed: int
    exact: ExactAudit | None
    empirical: EmpiricalAudit | None
    membership: MembershipAudit | None
    notes: tuple[str, ...]

    @property
    def violations(self) -> tuple[str, ...]:
        """Sentences with numbers; none if no promise was seen broken."""
        parts = (self.exact, self.empirical, self.membership)
        return tuple(sentence for part in parts if part is not None for sentence in part.violations)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON. `epsilon` is what these rounds were certified for, at the device's δ."""
        parts = {name: getattr(self, name) for name in ("exact", "empirical", "membership")}
        plain = {name: value for name, value in vars(self).items() if name not in parts}
        found = {name: None if part is None else part.to_dict() for name, part in parts.items()}
        whole: dict[str, Any] = jsonable({**plain, "violations": self.violations, **found})
        return whole


def audit(
    plan: Plan,
    scheme: Scheme,
    options: AuditOptions,
    run_options: RunOptions,
    on_progress: OnProgress | None = None,
    noise_source: NoiseSource | None = None,
) -> Audit:
    """Attacks a device of a plan that a scheme would run:

    1. replay the fleet, for what the others send;
    2. try neighbouring datasets, and keep the worst by one record and the worst by the whole device;
    3. follow those along fresh transcripts and compare with the certificate (`exact`);
    4. attack noise that is really drawn, from `noise_source` or as a run draws it (`empirical`);
    5. infer membership from the broadcasts (`membership`).

    Writes nothing.
    """
    tell = on_progress or _silent
    _check(plan, scheme, options)
    num_rounds, link = options.num_rounds(plan), Link(plan, options.device)
    world = replay(plan, link, run_options.engine(), scheme.one_model, num_rounds, tell)
    notes = [_REPLAYED, _LOWER_BOUND, *_notes_on(scheme)]
    exact = empirical = membership = None
    if {"exact", "empirical"} & set(options.parts):
        candidates = neighbours_of(world, options.candidates, options.seed)
        record, device = choose_worst(world, candidates, options, tell)
        if "exact" in options.parts:
            exact = audit_exactly(world, [record, device], options, tell)
        if "empirical" in options.parts:
            attacked = device if plan.scenario.privacy.sensitivity == "device" else record
            empirical = audit_empirically(world, attacked, options, tell, noise_source)
            notes += _notes_on_trials(empirical, options, num_rounds)
    if "membership" in options.parts:
        if plan.uplink.payload != "knowledge":
            told = f"what is broadcast here comes of {plan.uplink.payload}, and is no class means"
            notes.append(f"Membership inference is left out: {told}.")
        else:
            try:
                membership = audit_membership(world, options, tell)
            except InputError as reason:  # what the other attacks found is not thrown away for it
                notes.append(f"Membership inference is left out: {reason}.")
    return _audit_of(world, scheme, options, exact, empirical, membership, tuple(notes))


def _audit_of(
    world: AuditContext,
    scheme: Scheme,
    options: AuditOptions,
    exact: ExactAudit | None,
    empirical: EmpiricalAudit | None,
    membership: MembershipAudit | None,
    notes: tuple[str, ...],
) -> Audit:
    promise, privacy = promise_of(world), world.scenario.privacy
    return Audit(
        name=world.scenario.name,
        scheme=scheme.name,
        device=options.device,
        num_rounds=len(world.rounds),
        planned_rounds=world.plan.num_rounds,
        trust=privacy.trust,
        sensitivity=privacy.sensitivity,
        epsilon=float(promise.epsilon[-1]),
        delta=promise.delta,
        seed=options.seed,
        exact=exact,
        empirical=empirical,
        membership=membership,
        notes=notes + (() if np.isfinite(promise.epsilon[-1]) else ("No finite ε is certified: nothing is promised.",)),
    )


def _check(plan: Plan, scheme: Scheme, options: AuditOptions) -> None:
    check_has_data(plan.scenario)
    if plan.scenario.fleet.participation_hidden:
        rule = (
            "an attack knows who takes part, and would tell more than a server that does not: no audit is built for it"
        )
        raise InputError("fleet.participation_hidden", True, rule)
    if scheme.releases != "private":
        word = "its numbers as they are" if scheme.releases == "bare" else "nothing"
        raise InputError("--scheme", scheme.name, f"sends {word}: there is no promise to audit")
    if scheme.uplink != plan.uplink.kind:
        raise InputError("--scheme", scheme.name, f"sends {scheme.uplink}, the plan is for {plan.uplink.kind}")
    options.check_device(plan)


def _notes_on(scheme: Scheme) -> list[str]:
    if type(scheme).__module__.startswith("airdistill."):
        return []
    like = {"public_knowledge": "ota_proxy_fd", "gradient": "ota_fl", "orthogonal_knowledge": "orthogonal_fd"}
    known = f"as {like.get(scheme.uplink, 'ota_fd')} does"
    return [f"{scheme.name} is your own: it was assumed to send and to learn {known}, with the scenario's receiver."]


def _notes_on_trials(empirical: EmpiricalAudit | None, options: AuditOptions, num_rounds: int) -> list[str]:
    if empirical is None:
        return ["The attack on drawn noise is left out: the device sent nothing that counted noise protects."]
    if empirical.num_trials == options.trials and empirical.num_rounds == num_rounds:
        return []
    return [
        f"To bound the work, {empirical.num_trials} of {options.trials} trials were made in each world, "
        f"over {empirical.num_rounds} of {num_rounds} rounds in which the device sent."
    ]


def _silent(_stage: str, _done: int, _total: int) -> None:
    pass


@dataclass(frozen=True)
class Subject:
    """`folder` is where the run lies, and None for a scenario that nobody has run."""

    plan: Plan
    scheme: Scheme
    run_options: RunOptions
    folder: Path | None


def subject_of(
    name: str, scheme: str | None = None, changes: list[str] | None = None, device: str | None = None
) -> Subject:
    """A run's folder, or a scenario with a scheme and changes; `device` is cpu, cuda or auto."""
    folder = Path(name)
    if not (folder / RUN).is_file():
        chosen = scheme or DEFAULT_SCHEME
        plan = plan_run(load(name, changes or []), chosen)
        return Subject(plan, load_scheme(chosen), RunOptions(device=device or "cpu").resolved(), None)
    for option, given in [("--scheme", scheme), ("--set", changes)]:
        if given:
            raise InputError(option, str(given), f"{name} is a run: it is audited as it was run")
    trusted_ledger(simulated(folder))  # a run whose ledger cannot be trusted is no subject
    stored, planned = read_sealed(folder)
    options = RunOptions(**stored["options"]) if device is None else RunOptions(device=device).resolved()
    plan = Plan.from_dict(planned)
    check_inputs(folder, plan, stored, "audited")  # an attack on other data says nothing of this run
    return Subject(plan, load_scheme(stored["scheme"]), options, folder)


def audit_run(folder: str | Path, options: AuditOptions | None = None, on_progress: OnProgress | None = None) -> Audit:
    """Attacks a run as it was run; its certificate takes note of what was found from then on."""
    if not (Path(folder) / RUN).is_file():
        raise InputError("RUN", str(folder), "is no run's folder")
    subject = subject_of(str(folder))
    found = audit(subject.plan, subject.scheme, options or AuditOptions(), subject.run_options, on_progress)
    note_audit(Path(folder), found.to_dict())
    return found
