"""A run's privacy accounts: what its ledger opens with, and how a run begins or goes on with one."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from airdistill.arrays import FloatArray
from airdistill.codesign.plan import Plan
from airdistill.errors import InputError
from airdistill.privacy.certificate import Certificate, certificate_of
from airdistill.privacy.ledger import Ledger, Opening, spent_before
from airdistill.privacy.targets import target_mu
from airdistill.runs.folder import AUDIT, LEDGER, RunError, digest_of, existing_folder, read_sealed
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Scheme


def opening_of(plan: Plan, scheme: Scheme) -> Opening:
    """Who was promised what, and on which terms."""
    fleet, privacy = plan.fleet, plan.scenario.privacy
    return Opening(
        name=plan.scenario.name,
        scheme=scheme.name,
        payload=plan.uplink.payload,
        num_rows=plan.uplink.num_rows,
        epsilon=fleet.epsilon,
        delta=fleet.delta,
        # Of the whole promise: the plan's own μ may be what earlier runs have left of it.
        mu=target_mu(fleet.epsilon, fleet.delta, privacy.accountant, privacy.noise),
        sensitivity=privacy.sensitivity,
        trust=privacy.trust,
        accountant=privacy.accountant,
        relabel=privacy.relabel,
        noise=privacy.noise,
        enforced=scheme.releases == "private",
        terms=_terms(plan, scheme),
    )


def _terms(plan: Plan, scheme: Scheme) -> dict[str, Any]:
    scenario = plan.scenario
    facts: dict[str, Any] = {
        "scenario": digest_of(scenario.model_dump_json().encode()),
        "uplink": plan.uplink.kind,
        "releases": scheme.releases,
        "planned_rounds": plan.num_rounds,
        "sampling": scenario.fleet.sampling,
        "transceiver": scenario.radio.transceiver,
        "constants": scenario.constants.model_dump(),
    }
    if scenario.privacy.noise == "secure":
        # New noise each time: the same scenario run twice is two runs.
        facts["run"] = secrets.token_hex(16)
    return facts


def ledger_path(given: Path) -> Path:
    """Of a run's folder, or the file itself."""
    path = given / LEDGER if given.is_dir() else given
    if not path.is_file():
        raise InputError("--ledger", str(given), "is neither a ledger nor a run's folder")
    return path


def spent_by_earlier_runs(given: Path | None, scenario: Scenario) -> FloatArray | None:
    """μ² of every device `[device]` by the ledger given, on this scenario's terms."""
    return None if given is None else spent_before(ledger_path(given), scenario.privacy, scenario.num_devices)


def read_ledger(folder: Path, stored: dict[str, Any]) -> Ledger:
    """Of a run that began; it must be the one that was opened then."""
    if "ledger" not in stored:
        raise RunError(f"{folder}: was begun by airdistill {stored['airdistill']}, which kept no ledger")
    ledger = Ledger.read(folder / LEDGER)
    check_ledger_at(ledger, stored["ledger"]["lines"], stored["ledger"]["digest"])
    return ledger


def certify(folder: str | Path) -> Certificate:
    """What a run's ledger guarantees, whether the run has ended or not; an audit of it is taken into account."""
    folder = existing_folder(Path(folder))
    stored, _ = read_sealed(folder)
    return certificate_of(read_ledger(folder, stored), _audit_in(folder))


def _audit_in(folder: Path) -> dict[str, Any] | None:
    path = folder / AUDIT
    if not path.exists():
        return None
    try:
        audit: dict[str, Any] = json.loads(path.read_text())
        return {**audit, "violations": list(audit["violations"])}
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{path}: is damaged; audit the run again, or remove it") from None


def check_ledger_at(ledger: Ledger, num_lines: int, digest: str) -> None:
    """Whether it still begins with what it held when somebody noted this."""
    chain = ledger.chain
    assert chain is not None
    if len(chain.bodies) < num_lines or chain.digest_at(num_lines) != digest:
        raise RunError(f"{chain.path}: is not the ledger that this run has kept; it was replaced or cut")


def mark_of(ledger: Ledger) -> dict[str, Any]:
    """How far a ledger goes, to be checked later."""
    assert ledger.chain is not None
    return {"lines": len(ledger.chain.bodies), "digest": ledger.chain.digest}
