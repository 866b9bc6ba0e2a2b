"""A run's privacy accounts: its ledger's header, how a run begins or continues a ledger, its certificate and audits."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.channel.csi import ChannelError
from airdistill.errors import InputError
from airdistill.files import json_value, place_of
from airdistill.planning.feature_means import FeatureMeans, has_own_embedding
from airdistill.planning.fleet import reserved_delta
from airdistill.planning.payloads import PAYLOADS
from airdistill.planning.plan import Plan
from airdistill.planning.waveform import waveform_facts
from airdistill.privacy.certificate import Certificate, certificate_of
from airdistill.privacy.ledger import Ledger, spent_before
from airdistill.privacy.ledger_header import EARLIER_EXCESS, LedgerHeader, format_for
from airdistill.privacy.participation import header_of
from airdistill.privacy.spending import EarlierRuns
from airdistill.privacy.targets import target_mu
from airdistill.privacy.trust import is_built_in, trust_header
from airdistill.runs.checkpoint import newest_ledger_marks
from airdistill.runs.folder import (
    AUDITS,
    LEDGER,
    ROUNDS,
    RUN,
    RunError,
    digest_of,
    existing_folder,
    locked,
    read_sealed,
    what_is_left,
)
from airdistill.scenario.model import Scenario


@dataclass(frozen=True)
class Inputs:
    """Digests of what a run reads: all samples and labels; these with every round's channel; and who holds which.

    `compared` says what the public samples were compared with. The endpoints of a federation have none of these in
    common, because no endpoint has all data.
    """

    data_digest: str = ""
    digest: str = ""
    compared: Mapping[str, int] | None = None
    device_data: str = ""


NO_INPUTS = Inputs()


def ledger_header(
    plan: Plan, scheme: str, releases: str, inputs: Inputs = NO_INPUTS, own_scheme: bool = False
) -> LedgerHeader:
    """Every device's target and the terms of the guarantee."""
    fleet, privacy = plan.fleet, plan.scenario.privacy
    return LedgerHeader(
        name=plan.scenario.name,
        scheme=scheme,
        payload=plan.uplink.payload.neighbours.payload,
        num_rows=plan.uplink.num_rows,
        epsilon=fleet.epsilon,
        delta=fleet.delta,
        mu=_granted(plan),
        sensitivity=privacy.sensitivity,
        trust=privacy.trust,
        accountant=privacy.accountant,
        relabel=privacy.relabel,
        noise=privacy.noise,
        enforced=releases == "private",
        terms={
            **_terms(plan, releases),
            **_own_code(plan, own_scheme),
            "inputs": inputs.digest,
            "noise_key": _noise_key(plan.scenario, scheme, inputs.data_digest),
            **({"device_data": inputs.device_data} if inputs.device_data else {}),
            **({} if inputs.compared is None else {"public_comparison": dict(inputs.compared)}),
        },
        format=format_for(fleet.num_devices),
    )


def _noise_key(scenario: Scenario, scheme: str, data_digest: str) -> str:
    """The digest of scheme, scenario and data: runs that differ in any of these draw different noise.

    Names of files do not count, because their contents do; nor do fields that have their default, because later
    versions have more of them.
    """
    fields = scenario.model_dump(mode="json", exclude_defaults=True)
    fields.pop("name", None)
    for section, field in (("data", "dataset"), ("public", "source"), ("radio", "trace")):
        fields.get(section, {}).pop(field, None)
    if scenario.public is not None and place_of(scenario.public.embedding).is_file():
        fields["public"].pop("embedding", None)
    trace = scenario.radio.trace
    contents = [data_digest, digest_of(place_of(trace).read_bytes()) if trace else ""]
    return digest_of(json.dumps([scheme, fields, contents], sort_keys=True).encode())


def _granted(plan: Plan) -> FloatArray:
    """μ of the whole target, `[device]`; the plan's own may be what earlier runs have left of it.

    The paper's accountant may grant more than (ε, δ) allows: no round exceeds either. With secret participation it is
    the plan's own, and the ledger composes the rounds itself.
    """
    fleet, privacy = plan.fleet, plan.scenario.privacy
    if plan.uplink.participation.is_secret:
        return fleet.mu
    rules = {privacy.accountant, "exact"}
    granted = [target_mu(fleet.epsilon, fleet.delta, rule, privacy.noise) for rule in sorted(rules)]
    return np.asarray(np.min(granted, axis=0))


def _terms(plan: Plan, releases: str) -> dict[str, Any]:
    scenario = plan.scenario
    facts: dict[str, Any] = {
        "scenario": digest_of(scenario.model_dump_json().encode()),
        "uplink": plan.uplink.kind,
        "releases": releases,
        "planned_rounds": plan.num_rounds,
        **header_of(plan.uplink.participation),
        "transceiver": scenario.radio.transceiver,
        "csi_error_limit": ChannelError.of(scenario).limit,
        "constants": scenario.constants.model_dump(),
    }
    if scenario.radio.csi_error_db is not None:
        facts["csi_error"] = {"quantile": scenario.radio.csi_quantile, "reserved_delta": reserved_delta(scenario)}
    if scenario.waveform.kind == "ofdm":
        facts["waveform"] = {**waveform_facts(scenario, plan.uplink), "reserved_delta": reserved_delta(scenario)}
    if plan.fleet.earlier_excess > 0:
        facts[EARLIER_EXCESS] = plan.fleet.earlier_excess
    if scenario.radio.antennas > 1:
        facts["antennas"] = scenario.radio.antennas
    if plan.uplink.correlation is not None:
        facts["correlation"] = plan.uplink.correlation.to_dict()
    payload = plan.uplink.payload
    # A user's own class states facts under a key of its own: it cannot replace a term of the ledger.
    stated = payload.header() if payload.kind in PAYLOADS else {"payload_facts": payload.header()}
    facts |= stated | payload.neighbours.to_header() | trust_header(scenario.privacy.trust)
    if scenario.privacy.noise == "secure":
        # Secure noise is new each time: the same scenario run twice is two runs.
        facts["run"] = secrets.token_hex(16)
    return facts


def _own_code(plan: Plan, own_scheme: bool) -> dict[str, Any]:
    """The parts of a run that are the user's own classes, which a certificate must name; nothing if there are none."""
    uplink = plan.uplink
    # Devices may share weights of such a model, and one device's data then move the vectors of others.
    own = {
        "scheme": own_scheme,
        "model": any(":" in name for name in plan.scenario.model_names),
        "embedding": uplink.payload.kind == FeatureMeans.kind and has_own_embedding(plan.scenario),
        "payload": uplink.payload.kind not in PAYLOADS,
        "participation model": not type(uplink.participation).__module__.startswith("airdistill."),
        "trust model": not is_built_in(uplink.trust),
        # It is made with the plan, which names the data: nothing forces it to read only what was received.
        "receiver": ":" in plan.scenario.learning.receiver,
    }
    found = [name for name, is_own in own.items() if is_own]
    return {"own_code": found} if found else {}


def begin_ledger(folder: Path, header: LedgerHeader, given: Path | None) -> Ledger:
    """Begin the ledger of a new run in its folder; `given` is an earlier run of the same devices, or its ledger."""
    path = folder / LEDGER
    if given is None:
        return Ledger.begin(header, path)
    earlier = ledger_path(given).resolve()  # of a link, the lock of the folder that has the ledger
    if earlier == path.resolve():
        raise InputError("--ledger", str(given), "is in the new run's own folder; choose another --out")
    try:
        with locked(earlier.parent):
            return Ledger.begin(header, path, earlier, _leftover(path))
    except PermissionError as error:
        raise RunError(f"{error.filename}: cannot be written: a ledger that is continued must be closed") from None


def _leftover(path: Path) -> LedgerHeader | None:
    """The header of a start that was killed before its first round; it has released nothing."""
    try:
        stored = json_value(path.read_bytes().splitlines()[-1])
        return LedgerHeader.from_dict({name: value for name, value in stored.items() if name != "digest"})
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def ledger_path(given: Path) -> Path:
    """The ledger file of a run's folder, checked against everything that the run has recorded of it."""
    path = given / LEDGER if given.is_dir() else given
    if not path.is_file() or path.name != LEDGER or not (path.parent / RUN).is_file():
        raise InputError("--ledger", str(given), "is neither a run's folder nor the ledger in it")
    trusted_ledger(path.parent)
    return path


def spent_by_earlier_runs(given: Path | None, scenario: Scenario) -> EarlierRuns | None:
    """What the runs of the given ledger have spent under this scenario's terms."""
    return None if given is None else spent_before(ledger_path(given), scenario.privacy, scenario.num_devices)


def trusted_ledger(folder: Path, recorded_rounds: int | None = None) -> Ledger:
    """Read a run's ledger, and check that it is the run's own and covers its checkpoint and its records."""
    stored, _ = read_sealed(folder)
    if "ledger" not in stored:
        raise RunError(f"{folder}: was begun by airdistill {stored['airdistill']}, which kept no ledger")
    # Before the ledger: a run that continues meanwhile charges a round first and then records it.
    marks, recorded = [stored["ledger"], *newest_ledger_marks(folder)], _last_round_sent(folder)
    ledger = Ledger.read(folder / LEDGER, recorded_rounds)
    assert ledger.chain is not None
    for mark in marks:
        if ledger.chain.num_lines < mark["lines"] or ledger.chain.digest_at(mark["lines"]) != mark["digest"]:
            raise RunError(f"{ledger.chain.path}: is not the ledger of this run; it was replaced or cut")
    if recorded > ledger.last_round:
        raise RunError(f"{ledger.chain.path}: is incomplete: round {recorded} is recorded but was never charged")
    return ledger


def _last_round_sent(folder: Path) -> int:
    """The last recorded round that sent anything; lines that are incomplete or damaged do not count."""
    for line in reversed(_recorded_lines(folder)):
        try:
            record = json_value(line)
            if "measured_noise_var" in record or "without_signal" in record:
                return int(record["round"])
        except (ValueError, KeyError, TypeError, OverflowError):
            continue  # readers of the records name it
    return 0


def _recorded_lines(folder: Path) -> list[bytes]:
    path = folder / ROUNDS
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def check_repeatable(folder: Path, checkpoint_every: int) -> None:
    """Raise unless a run without a usable checkpoint was killed before its first one: only then no round is lost."""
    reached = max(len(_recorded_lines(folder)), trusted_ledger(folder).last_round)
    if reached > checkpoint_every or (reached > 0 and any(folder.glob("checkpoint-*.json"))):
        problem = "its checkpoints were removed or are damaged, and so it cannot be resumed"
        raise RunError(f"{folder}: {problem} after round {reached}; {what_is_left(folder)}")


def certify(folder: str | PathLike[str], issued: str | None = None) -> Certificate:
    """The certificate of a run's ledger, whether the run has ended or not, with its audits and the date of issue."""
    folder = existing_folder(Path(folder))
    return certificate_of(trusted_ledger(folder), audits_in(folder), issued, _data_dependent_epsilon(folder))


def _data_dependent_epsilon(folder: Path) -> float | None:
    """What the last recorded round cost with its votes; None for other payloads and damaged lines."""
    for line in _recorded_lines(folder)[-1:]:
        try:
            return float(json_value(line)["pate"]["data_dependent_epsilon"])
        except (ValueError, KeyError, TypeError):
            continue  # readers of the records name damage
    return None


def mark_of(ledger: Ledger) -> dict[str, Any]:
    """The length and digest of a ledger, to check it later."""
    assert ledger.chain is not None
    return {"lines": ledger.chain.num_lines, "digest": ledger.chain.digest}


def note_audit(folder: Path, audit: dict[str, Any]) -> None:
    """Add the summary of an audit to those of the run in this folder; return when it is on disk."""
    stored, _ = read_sealed(folder)
    parts = [name for name in ("recorded", "exact", "empirical", "membership", "labels") if audit.get(name) is not None]
    kept = {name: audit[name] for name in ("device", "num_rounds", "seed", "violations")}
    entry = {"run": stored["digest"], "parts": parts, **kept}
    path = folder / AUDITS
    whole = _whole_lines(path)
    with path.open("ab") as file:
        file.truncate(sum(map(len, whole)))
        file.write((json.dumps(entry, ensure_ascii=False) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def audits_in(folder: Path) -> dict[str, Any] | None:
    """All audits of the run in this folder and every violation found: a later audit does not undo an earlier one."""
    path = folder / AUDITS
    stored, _ = read_sealed(folder)
    try:
        entries = [json_value(line) for line in _whole_lines(path)]
        own = [entry for entry in entries if entry["run"] == stored["digest"]]
        violations = dict.fromkeys(sentence for entry in own for sentence in entry["violations"])
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{path}: is damaged; remove it and audit the run again") from None
    return {"audits": own, "violations": list(violations)} if own else None


def _whole_lines(path: Path) -> list[bytes]:
    """The complete lines; an incomplete last line does not count."""
    content = path.read_bytes() if path.exists() else b""
    return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]


def check_not_anothers(folder: Path, own: Path | None) -> None:
    """Refuse to write an audit of one run into the folder of another."""
    if (folder / RUN).exists() and (own is None or own.resolve() != folder.resolve()):
        raise InputError("--out", str(folder), "is the folder of another run")
