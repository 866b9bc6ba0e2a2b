"""What is audited: a run as it was planned, or a scenario as it would be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airdistill import DEFAULT_SCHEME
from airdistill.audit.auditing import Audit, audit
from airdistill.audit.options import AuditOptions, OnProgress
from airdistill.codesign.plan import Plan
from airdistill.errors import InputError
from airdistill.runs.accounts import trusted_ledger
from airdistill.runs.audits import note_audit
from airdistill.runs.folder import RUN, read_sealed, simulated
from airdistill.runs.options import RunOptions
from airdistill.runs.simulation import check_inputs
from airdistill.scenario.loading import load
from airdistill.schemes.base import Scheme
from airdistill.schemes.registry import load_scheme, plan_run


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
