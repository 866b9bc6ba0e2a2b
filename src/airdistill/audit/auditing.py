"""The whole audit: what a run recorded, the attacks on one device of a run or scenario, and the violations found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from airdistill import DEFAULT_SCHEME
from airdistill.audit.context import AuditContext, Link, NoiseSource, replay
from airdistill.audit.empirical import EmpiricalAudit, audit_empirically
from airdistill.audit.exact import ExactAudit, audit_exactly, choose_worst, constructed_pairs, guarantee_of
from airdistill.audit.labels import LabelAudit, audit_labels
from airdistill.audit.membership import MembershipAudit, audit_membership
from airdistill.audit.neighbours import neighbours_of
from airdistill.audit.options import ATTACKS, PARTS, AuditOptions, OnProgress
from airdistill.audit.recorded import RecordedAudit, audit_recorded
from airdistill.errors import AirDistillError, Described, InputError
from airdistill.files import jsonable
from airdistill.planning.plan import Plan
from airdistill.privacy.trust import TRUST_MODELS
from airdistill.runs.accounts import audits_in, note_audit, trusted_ledger
from airdistill.runs.earlier import AFTER
from airdistill.runs.folder import RUN, existing_folder, read_sealed, simulated
from airdistill.runs.options import RunOptions
from airdistill.runs.record import undamaged_run
from airdistill.runs.simulation import check_has_data, check_inputs
from airdistill.scenario.loading import load
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Scheme
from airdistill.schemes.registry import load_scheme, plan_run

_REPLAYED = (
    "The other devices' signals are replayed from one simulation: the guarantee must hold for any such signals. "
    "Only the audited device's data and the noise vary."
)
_NEVER_JOINED = (
    "Device {device} transmits in none of these {rounds} rounds, and so there was nothing to attack: audit another one "
    "(--audited-device), or more rounds (--rounds)."
)
_STARTED = (
    "This run started with the models of an earlier one, and the attacks with untrained ones: leakage by what those "
    "models have learned is not measured."
)
_LOWER_BOUND = "An attack gives a lower bound on the privacy loss; it cannot prove the absence of a larger loss."
_COUNTS_ARE_PUBLIC = (
    "Label inference is left out: it reads answers on a public set. Class counts are public by declaration, and so "
    "{words} do not protect a device's label distribution."
)
_COUNTS_ARE_PRIVATE = (
    "Label inference is left out: it reads answers on a public set. The noisy weights of classes are covered by the "
    "attacks on whole devices."
)
_NOTHING_CERTIFIED = "No finite ε is certified: there is no guarantee to violate."


@dataclass(frozen=True)
class Audit:
    """What was attacked, the results, and the violations found; a part that was not requested is None."""

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
    labels: LabelAudit | None
    notes: tuple[str, ...]
    recorded: RecordedAudit | None = None

    @property
    def violations(self) -> tuple[str, ...]:
        """One sentence with numbers for each violated guarantee; empty if no violation was found."""
        parts = (self.recorded, self.exact, self.empirical, self.membership, self.labels)
        return tuple(sentence for part in parts if part is not None for sentence in part.violations)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON. `epsilon` is the certified ε of these rounds at the device's δ."""
        parts = {name: getattr(self, name) for name in PARTS}
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
    folder: Path | None = None,
) -> Audit:
    """Audit one device of a plan under a scheme, and the records of its run in `folder`; write nothing.

    1. Compare what the run charged and received with its design (`recorded`).
    2. Replay the fleet to get the signals of the other devices.
    3. Try neighbouring datasets; keep the worst by one record and the worst by the whole device.
    4. Follow these along fresh transcripts and compare with the certificate (`exact`).
    5. Attack drawn noise, from `noise_source` or as a run draws it (`empirical`).
    6. Infer membership from the broadcasts, or from the answers on a public set (`membership`).
    7. Infer the device's label distribution from its answers on a public set (`labels`).
    """
    tell = on_progress or _no_progress
    _check(plan, scheme, options)
    recorded, left_out = None, _reason_against_attacks(plan)
    if folder is not None and "recorded" in options.parts:
        recorded = audit_recorded(folder, plan, _is_custom(scheme), tell)
    attacks = set(options.parts) & set(ATTACKS)
    if folder is not None and recorded is not None and (left_out is not None or not attacks):
        return _audit_of_records(plan, scheme, options, folder, recorded, left_out if attacks else None)
    if left_out is not None:
        raise left_out
    if not attacks:
        raise InputError("--parts", Described("recorded"), "a scenario has no records; name a run's folder, or attacks")
    found = replace(_attacked(plan, scheme, options, run_options, tell, noise_source), recorded=recorded)
    started = folder is not None and AFTER in read_sealed(folder)[0]
    return replace(found, notes=(*found.notes, _STARTED)) if started else found


def _attacked(
    plan: Plan,
    scheme: Scheme,
    options: AuditOptions,
    run_options: RunOptions,
    tell: OnProgress,
    noise_source: NoiseSource | None,
) -> Audit:
    num_rounds, link = options.num_rounds(plan), Link(plan, options.device)
    context = replay(plan, link, run_options.learning_engine(), scheme, num_rounds, tell)
    notes = [_REPLAYED, _LOWER_BOUND, *_notes_on(scheme)]
    exact = empirical = None
    if {"exact", "empirical"} & set(options.parts):
        candidates = neighbours_of(context, options.candidates, options.seed)
        record, device = choose_worst(context, candidates, options, tell)
        if "exact" in options.parts:
            exact = audit_exactly(context, [record, device], options, tell)
        if "empirical" in options.parts:
            relation = "device" if plan.scenario.privacy.sensitivity == "device" else "record"
            built = [pair for pair in constructed_pairs(context, options) if pair.relation == relation]
            attacked = built[0] if built else device if relation == "device" else record
            empirical = audit_empirically(context, attacked, options, tell, noise_source)
            notes += _notes_on_trials(empirical, plan, options, num_rounds)
    membership = _membership(context, options, tell, notes)
    labels = _labels(context, options, tell, noise_source, notes)
    return _audit_of(context, scheme, options, exact, empirical, membership, labels, tuple(notes))


def _membership(
    context: AuditContext, options: AuditOptions, tell: OnProgress, notes: list[str]
) -> MembershipAudit | None:
    """Membership inference if it is requested and possible; otherwise a note says why not."""
    payload = context.plan.uplink.payload
    if "membership" not in options.parts:
        return None
    if not (payload.neighbours.is_class_mean or payload.answers_public_set):
        reason = f"the broadcasts carry {payload.words}, and the attack needs class means or answers on a public set"
        notes.append(f"Membership inference is left out: {reason}.")
        return None
    try:
        return audit_membership(context, options, tell)
    except InputError as error:  # keep the results of the other attacks
        notes.append(f"Membership inference is left out: {error}.")
        return None


def _labels(
    context: AuditContext, options: AuditOptions, tell: OnProgress, source: NoiseSource | None, notes: list[str]
) -> LabelAudit | None:
    """Label inference if it is requested and possible; otherwise a note says why not."""
    payload = context.plan.uplink.payload
    if "labels" not in options.parts:
        return None
    if not payload.answers_public_set:
        private = context.scenario.privacy.counts == "private"
        notes.append(_COUNTS_ARE_PRIVATE if private else _COUNTS_ARE_PUBLIC.format(words=payload.words))
        return None
    try:
        found = audit_labels(context, options, tell, source)
    except InputError as error:  # keep the results of the other attacks
        notes.append(f"Label inference is left out: {error}.")
        return None
    if found is None:
        notes.append("Label inference is left out: the device sends in no round.")
    return found


def _audit_of_records(
    plan: Plan,
    scheme: Scheme,
    options: AuditOptions,
    folder: Path,
    recorded: RecordedAudit,
    left_out: InputError | None,
) -> Audit:
    """The audit of a run's records alone: the certified ε is that of its ledger."""
    ledger, privacy = trusted_ledger(folder), plan.scenario.privacy
    epsilon = float(ledger.epsilon()[options.device])
    notes = [] if left_out is None else [f"The attacks are left out: {left_out}."]
    return Audit(
        name=plan.scenario.name,
        scheme=scheme.name,
        device=options.device,
        num_rounds=recorded.num_rounds,
        planned_rounds=plan.num_rounds,
        trust=privacy.trust,
        sensitivity=privacy.sensitivity,
        epsilon=epsilon,
        delta=float(ledger.header.delta[options.device]),
        seed=options.seed,
        exact=None,
        empirical=None,
        membership=None,
        labels=None,
        notes=tuple(notes if np.isfinite(epsilon) else (*notes, _NOTHING_CERTIFIED)),
        recorded=recorded,
    )


def _audit_of(
    context: AuditContext,
    scheme: Scheme,
    options: AuditOptions,
    exact: ExactAudit | None,
    empirical: EmpiricalAudit | None,
    membership: MembershipAudit | None,
    labels: LabelAudit | None,
    notes: tuple[str, ...],
) -> Audit:
    guarantee, privacy = guarantee_of(context), context.scenario.privacy
    return Audit(
        name=context.scenario.name,
        scheme=scheme.name,
        device=options.device,
        num_rounds=len(context.rounds),
        planned_rounds=context.plan.num_rounds,
        trust=privacy.trust,
        sensitivity=privacy.sensitivity,
        epsilon=float(guarantee.epsilon[-1]),
        delta=guarantee.delta,
        seed=options.seed,
        exact=exact,
        empirical=empirical,
        membership=membership,
        labels=labels,
        notes=notes if np.isfinite(guarantee.epsilon[-1]) else (*notes, _NOTHING_CERTIFIED),
    )


def _check(plan: Plan, scheme: Scheme, options: AuditOptions) -> None:
    check_has_data(plan.scenario)
    if scheme.releases != "private":
        sent = "values without noise" if scheme.releases == "bare" else "nothing"
        raise InputError("--scheme", scheme.name, f"sends {sent}: there is no guarantee to audit")
    if scheme.uplink_kind != plan.uplink.kind:
        raise InputError("--scheme", scheme.name, f"sends {scheme.uplink_kind}, the plan is for {plan.uplink.kind}")
    options.check_device(plan)


def _reason_against_attacks(plan: Plan) -> InputError | None:
    """Why the attacks cannot be made on this plan; None if they can. Its records can be audited all the same."""
    if not plan.uplink.uses_radio:
        rule = f"the attacks follow signals on the air, and {plan.uplink.payload.words} go to a trusted aggregator"
        return InputError("privacy.trust", plan.scenario.privacy.trust, rule)
    if plan.uplink.participation.is_secret:
        rule = (
            "auditing secret participation is not supported: the attacks know which devices participate and would "
            "overstate what a server learns that does not; set it to false"
        )
        return InputError("fleet.participation_hidden", True, rule)
    if plan.scenario.privacy.trust not in TRUST_MODELS:
        rule = f"an audit supports the trust models {', '.join(TRUST_MODELS)}"
        return InputError("privacy.trust", plan.scenario.privacy.trust, rule)
    return None


def _is_custom(scheme: Scheme) -> bool:
    return not type(scheme).__module__.startswith("airdistill.")


def _notes_on(scheme: Scheme) -> list[str]:
    if not _is_custom(scheme):
        return []
    return [
        f"{scheme.name} is a custom scheme, audited as if it sent every device's {scheme.payload.words} and learned "
        "from every broadcast, with the scenario's receiver."
    ]


def _notes_on_trials(empirical: EmpiricalAudit | None, plan: Plan, options: AuditOptions, num_rounds: int) -> list[str]:
    if plan.uplink.participation.rounds_joined(num_rounds)[options.device] == 0:
        return [_NEVER_JOINED.format(device=options.device, rounds=num_rounds)]
    if empirical is None:
        return ["The attack on drawn noise is left out: no row that the device sent has counted noise."]
    if empirical.num_trials == options.trials and empirical.num_rounds == num_rounds:
        return []
    return [
        f"To limit the computation, {empirical.num_trials} of {options.trials} trials were made for each dataset of "
        f"the pair, over {empirical.num_rounds} of {num_rounds} rounds in which the device sent."
    ]


def _no_progress(_stage: str, _done: int, _total: int) -> None:
    pass


@dataclass(frozen=True)
class Subject:
    """The plan and scheme to audit; `folder` is the run folder, None for a scenario."""

    plan: Plan
    scheme: Scheme
    run_options: RunOptions
    folder: Path | None


def subject_of(
    name: str, scheme: str | None = None, changes: list[str] | None = None, device: str | None = None
) -> Subject:
    """The subject named by a run folder, or by a scenario with scheme and changes; `device` is cpu, cuda or auto."""
    folder = Path(name)
    if not (folder / RUN).is_file():
        chosen = scheme or DEFAULT_SCHEME
        plan = plan_run(_scenario_named(name, changes), chosen)
        return Subject(plan, load_scheme(chosen), RunOptions(device=device or "cpu").resolved(), None)
    for option, given in [("--scheme", scheme), ("--set", changes)]:
        if given:
            raise InputError(option, str(given), f"{name} is a run and is audited as it was run; leave the option out")
    # Before anything is computed: what is damaged is named, and not audited.
    undamaged_run(simulated(folder))
    trusted_ledger(folder)
    audits_in(folder)
    stored, planned = read_sealed(folder)
    options = RunOptions.from_dict(stored["options"]) if device is None else RunOptions(device=device).resolved()
    plan = Plan.from_dict(planned)
    played = load_scheme(stored["scheme"])
    check_inputs(folder, plan, played, stored, "audited")  # an attack on other data would not concern this run
    return Subject(plan, played, options, folder)


def _scenario_named(name: str, changes: list[str] | None) -> Scenario:
    """The scenario; a folder that is neither a run nor a scenario is called what it is."""
    try:
        return load(name, changes or [])
    except AirDistillError:
        if Path(name).is_dir():
            existing_folder(Path(name))
        raise


def audit_run(
    folder: str | PathLike[str], options: AuditOptions | None = None, on_progress: OnProgress | None = None
) -> Audit:
    """Audit a run as it was run; its certificate includes the result from then on."""
    if not (Path(folder) / RUN).is_file():
        raise InputError("RUN", str(folder), "is not a run folder")
    subject = subject_of(str(folder))
    how = options or AuditOptions()
    found = audit(subject.plan, subject.scheme, how, subject.run_options, on_progress, folder=subject.folder)
    note_audit(Path(folder), found.to_dict())
    return found
