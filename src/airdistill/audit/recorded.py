"""The audit of what a run recorded: its ledger, its rounds, and the class means that it received.

The attacks replay a plan; this part reads the run's own folder. A build that adds no noise, or charges a tenth, leaves
a folder in which ledger, records and plan contradict each other. Nothing is trained here.

A run that continues a ledger shares its devices and, as a rule, its seed. Noise that both runs drew can be removed by
comparing them, and so the other runs of a chain are looked for. A continued ledger names the folder of its successor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from airdistill.audit.charges import Charges
from airdistill.audit.empirical import Correlation
from airdistill.audit.membership import LEVEL
from airdistill.audit.options import OnProgress
from airdistill.audit.received import (
    NUM_TESTS,
    NoiseVariance,
    RecordedNoise,
    TableTests,
    WhitenedTable,
    correlation_between,
    table_tests,
    whitened_table,
)
from airdistill.audit.redrawn import entry_keys
from airdistill.audit.released import Replan
from airdistill.channel.sources import channel_source
from airdistill.errors import AirDistillError
from airdistill.files import json_value
from airdistill.planning.plan import Plan
from airdistill.privacy.chain import digest_of_body
from airdistill.privacy.ledger import BudgetExceeded, Ledger
from airdistill.privacy.release import Release
from airdistill.runs.accounts import trusted_ledger
from airdistill.runs.folder import CERTIFICATE, LEDGER, RunError
from airdistill.runs.record import RunRecord, undamaged_run

_SAME_EPSILON = 1e-6  # relative
_UNRECORDED = (
    "Charged rounds without a record ({rounds}): only their charges were compared, and not what was sent in them."
)
_AT_THEIR_WORD = (
    "The records are compared with the plan and with each other: this finds a program that does not do what it says, "
    "and not a folder whose files were all forged to agree."
)


@dataclass(frozen=True)
class RecordedAudit:
    """What the folder of a run shows: `epsilon` is recomputed, for the worst device of all releases in the ledger.

    `correlations` are those of the kept tables, and with other runs of the same chain by their folders.
    """

    num_rounds: int
    num_releases: int
    num_redrawn: int
    num_tables: int
    epsilon: float
    recorded_epsilon: float | None
    variance: NoiseVariance | None
    correlations: dict[str, Correlation]
    violations: tuple[str, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("epsilon", "recorded_epsilon", "violations", "notes")}
        counts = {name: getattr(self, f"num_{name}") for name in ("rounds", "releases", "redrawn", "tables")}
        found = self.variance
        variance = None if found is None else found.to_dict()
        correlations = {name: vars(each) for name, each in self.correlations.items()}
        level = {"level": LEVEL, "tests": NUM_TESTS}
        return {**counts, **level, **plain, "variance": variance, "correlations": correlations}


def audit_recorded(folder: Path, plan: Plan, own_gains: bool, on_progress: OnProgress) -> RecordedAudit:
    """Audit the folder of a run of this plan; `own_gains` says that its scheme may design rounds of its own.

    1. recompute every entry of the ledger from the plan, the channel and what earlier rounds have cost;
    2. compare the recorded noise with the design, and draw seeded noise again;
    3. recompute ε;
    4. test the received class means for noise that is reused or not centred, in this run and along its chain.
    """
    record = undamaged_run(folder)  # before the ledger: a run in progress charges a round first and then records it
    ledger = trusted_ledger(folder)
    charges, noise = Charges(plan, ledger, own_gains), RecordedNoise(own_gains)
    missing = _follow(plan, ledger, record, charges, noise, on_progress)
    tables = [table for line in record.rounds if (table := table_of(line, ledger)) is not None]
    if plan.uplink.uses_radio and plan.uplink.observation.misalignment > 0:
        tables = []  # misaligned signals are alike in all rounds, as if noise were reused
    tests, (chain, chain_notes) = table_tests(tables), along_chain(folder, ledger, tables)
    epsilon, recorded, wrong = _recomputed_epsilon(folder, ledger, record, charges)
    correlations = {} if tests is None else tests.correlations
    reused = [
        f"Noise is reused along the chain: a round of this run and one of {name} have a correlation of "
        f"{each.value:.4f}; for independent draws it is below {each.limit:.4f}."
        for name, each in chain.items()
        if each.value > each.limit
    ]
    found = [*missing, *charges.violations, *wrong, *noise.violations, *_of_tests(tests), *reused]
    return RecordedAudit(
        num_rounds=len(record.rounds),
        num_releases=charges.num_releases,
        num_redrawn=noise.num_redrawn,
        num_tables=0 if tests is None else tests.num_rounds,
        epsilon=epsilon,
        recorded_epsilon=recorded,
        variance=noise.variance(),
        correlations={**correlations, **chain},
        violations=tuple(found),
        notes=(
            _AT_THEIR_WORD,
            *_unrecorded(ledger, record),
            *charges.notes,
            *noise.notes,
            *_about_tables(plan, tests),
            *chain_notes,
        ),
    )


def _unrecorded(ledger: Ledger, record: RunRecord) -> list[str]:
    """The rounds that were charged and have no record: a run was stopped there, or its records are gone."""
    missing = sorted(set(_last_entries(ledger)) - {line["round"] for line in record.rounds})
    named = f"{missing[0]} to {missing[-1]}" if len(missing) > 1 else "".join(map(str, missing))
    return [_UNRECORDED.format(rounds=named)] if missing else []


def _of_tests(tests: TableTests | None) -> list[str]:
    return [] if tests is None else tests.violations


def _follow(
    plan: Plan, ledger: Ledger, record: RunRecord, charges: Charges, noise: RecordedNoise, on_progress: OnProgress
) -> list[str]:
    """Recompute every release in order; return the violations that a comparison of single rounds does not show."""
    replan, last = Replan(plan, channel_source(plan.scenario)), _last_entries(ledger)
    lines = {line["round"]: dict(line) for line in record.rounds if "measured_noise_var" in line}
    uncharged = sorted(set(lines) - set(last))
    found = [f"Round {uncharged[0]} sent something and has no entry in the ledger."] if uncharged else []
    for number, (entry, key) in enumerate(zip(_entries(ledger), entry_keys(ledger), strict=True)):
        index = entry.round_index
        try:
            this = replan.released(index, charges.spent, key)
        except BudgetExceeded as reason:
            found.append(f"Round {index} was released although its budget was spent: {reason}.")
            break
        charges.see(this, entry)
        if last[index] == number and index in lines:
            noise.see(this, lines[index])
        on_progress("records compared", number + 1, ledger.num_releases)
    return found


def _entries(ledger: Ledger) -> Iterator[Release]:
    """The releases of this run, read one by one."""
    return (release for _, release in itertools.islice(ledger.history(), ledger.num_earlier, None))


def _last_entries(ledger: Ledger) -> dict[int, int]:
    """The position of each round's last entry: a run that is resumed may charge a round again."""
    return {entry.round_index: number for number, entry in enumerate(_entries(ledger))}


def _recomputed_epsilon(
    folder: Path, ledger: Ledger, record: RunRecord, charges: Charges
) -> tuple[float, float | None, list[str]]:
    """ε of the worst device, the one that was recorded, and a sentence for every ε that is too low."""
    header, earlier = ledger.header, list(itertools.islice(ledger.history(), ledger.num_earlier))
    own = charges.epsilon(earlier)
    worst, found = int(np.argmax(own)), []
    stated = _stated_epsilon(folder, ledger, record)
    for name, value in stated.items():
        if own[worst] > value * (1 + _SAME_EPSILON):
            costs = f"what was released costs {own[worst]:.6g}"
            found.append(f"{name} states ε = {value:.6g} for the worst device; {costs}.")
    over = own > header.epsilon * (1 + _SAME_EPSILON)
    if header.enforced and over.any():
        device = int(np.argmax(over))
        spent = f"device {device} has spent ε = {own[device]:.6g} of {header.epsilon[device]:.6g}"
        found.append(f"More was released than the target allows: {spent}.")
    return float(own[worst]), next(iter(stated.values()), None), found


def _stated_epsilon(folder: Path, ledger: Ledger, record: RunRecord) -> dict[str, float]:
    """ε of the worst device as the folder's files state it, for those that cover all releases."""
    found = {"The ledger": float(ledger.epsilon().max())}
    if record.rounds and record.rounds[-1]["round"] == ledger.last_round:
        found["The last round's record"] = _infinite(record.rounds[-1]["epsilon_spent"])
    if record.summary:
        found["The summary"] = _infinite(record.summary["epsilon_spent"])
    certified = _certified(folder / CERTIFICATE, ledger.num_releases + ledger.num_earlier)
    return found if certified is None else {**found, "The certificate": certified}


def _certified(path: Path, num_releases: int) -> float | None:
    """ε of the worst device in a certificate; None without one of all these releases."""
    if not path.exists():
        return None
    try:
        stored = json_value(path.read_bytes())
        if stored.get("releases", 0) + stored.get("earlier_releases", 0) != num_releases:
            return None
        devices = stored["devices"]
        spent = devices["spent"] if isinstance(devices, dict) else [device["spent"] for device in devices]
        return max(map(_infinite, spent))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{path}: cannot be read; remove it, airdistill certify writes it again") from None


def _infinite(value: float | None) -> float:
    return float("inf") if value is None else float(value)


def _about_tables(plan: Plan, tests: TableTests | None) -> list[str]:
    if tests is not None:
        return []
    kept = f"no table of received {plan.uplink.payload.words} tells its noise"
    return [f"In these records {kept}: reuse and direction of the noise were not tested on what was received."]


def table_of(line: Any, ledger: Ledger) -> WhitenedTable | None:
    """The noise of a kept table; None if misaligned signals or secret participation are part of the difference."""
    terms = ledger.header.terms
    if terms.get("csi_error_limit", 0.0) != 0 or terms.get("participation_hidden", False):
        return None
    if not ledger.header.payload.startswith("knowledge"):
        return None
    return whitened_table(dict(line))


def along_chain(folder: Path, ledger: Ledger, tables: list[WhitenedTable]) -> tuple[dict[str, Correlation], list[str]]:
    """Correlations with the runs before and after this one, by folder, and notes on what could not be compared."""
    found: dict[str, Correlation] = {}
    notes: list[str] = []
    others, missing = _chained(folder, ledger)
    for other in others:
        try:
            theirs = Ledger.read(other / LEDGER)
            lines = RunRecord.read(other).rounds
        except AirDistillError as error:
            notes.append(f"The run in {other} of this chain cannot be compared: {error}.")
            continue
        kept = [table for line in lines if (table := table_of(line, theirs)) is not None]
        correlation = correlation_between(tables, kept)
        if correlation is None:
            notes.append(f"The run in {other} of this chain keeps no tables that can be compared.")
        else:
            found[f"the run in {other}"] = correlation
    return found, [*notes, *missing]


def _chained(folder: Path, ledger: Ledger) -> tuple[list[Path], list[str]]:
    """The folders of the run that continues this one and of the one that it continues, and notes on those not found."""
    others, notes = [], []
    assert ledger.chain is not None
    if ledger.closed:
        successor = Path(ledger.chain.last["in"])
        places = [place for place in (successor, folder.parent / successor.name) if (place / LEDGER).is_file()]
        others += places[:1]
        if not places:
            notes.append(f"The run that continues this ledger is not at {successor}: its noise was not compared.")
    if ledger.num_earlier:
        before = _predecessor(folder, digest_of_body(ledger.header.to_dict()))
        others += [] if before is None else [before]
        if before is None:
            rule = "is not beside it: their noise was not compared"
            notes.append(f"This run continues the ledger of another, whose folder {rule}.")
    return others, notes


def _predecessor(folder: Path, header_digest: str) -> Path | None:
    """The folder beside this one whose ledger ends with a note that this run continues it."""
    for path in sorted(folder.resolve().parent.glob(f"*/{LEDGER}")):
        try:
            last = json_value(path.read_bytes().splitlines()[-1])
            if last["kind"] == "continued" and last["by"] == header_digest:
                return path.parent
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            continue  # another run's damaged ledger is not this audit's matter
    return None
