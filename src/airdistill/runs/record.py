"""Records: what a run left in its folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from airdistill.errors import InputError
from airdistill.files import json_value
from airdistill.runs.checkpoint import newest_rounds_mark
from airdistill.runs.folder import ROUNDS, SUMMARY, RunError, digest_of, read_digests, simulated

if TYPE_CHECKING:
    from airdistill.runs.results import AccuracyRecord, RoundRecord, RunSummary


@dataclass(frozen=True)
class RunRecord:
    """A run's folder: one record for every round, and the summary of a run that has ended.

    `damage` says what of an ended run's records was lost since; `rounds` are then those before.
    """

    folder: Path
    rounds: tuple[RoundRecord, ...]
    summary: RunSummary
    damage: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """Read a run that may still be running: an incomplete last line does not count.

        Raise `RunError` if its records, or the summary of an ended run, are damaged.
        """
        digests, damage = _digests(folder)
        summary, path = _summary(folder, digests), folder / ROUNDS
        content = path.read_bytes() if path.exists() else b""
        rounds, problem = _records(path, content)
        if not summary and problem:
            raise RunError(problem)
        if summary:
            rounds, lost = _unharmed(path, content, rounds, problem, digests | {"rounds": summary["rounds"]})
            damage = (*damage, *lost)
        return cls(folder, rounds, summary, damage)

    def __fspath__(self) -> str:
        """The folder: a record stands wherever the path of a run does, as in `certify(record)`."""
        return os.fspath(self.folder)

    def __repr__(self) -> str:
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy['mean']:.1%}"
        state = ("" if self.summary else ", not ended") + (", damaged" if self.damage else "")
        return f"RunRecord({str(self.folder)!r}: {len(self.rounds)} rounds{accuracy}{state})"

    @property
    def accuracy(self) -> AccuracyRecord | None:
        """The last measured accuracy."""
        return next((line["accuracy"] for line in reversed(self.rounds) if "accuracy" in line), None)


def undamaged_run(folder: Path) -> RunRecord:
    """The record of a run, whether it has ended or not. Raise `RunError` if any of it is damaged."""
    lost, record = _cut_since_checkpoint(folder), RunRecord.read(folder)
    if damage := (*record.damage, *(() if record.summary else lost)):
        raise RunError(damage[0])
    return record


def damage_in(folder: Path) -> tuple[str, ...]:
    """What is damaged of a run's records and summary; nothing of this concerns its ledger."""
    try:
        lost, record = _cut_since_checkpoint(folder), RunRecord.read(folder)
    except RunError as problem:
        return (str(problem),)
    return (*record.damage, *(() if record.summary else lost))


def _cut_since_checkpoint(folder: Path) -> tuple[str, ...]:
    """That the records at the newest checkpoint of a run are not there any more; a run in progress adds to them."""
    mark, path = newest_rounds_mark(folder), folder / ROUNDS
    content = path.read_bytes() if path.exists() else b""
    if mark is None or (len(content) >= mark[0] and digest_of(content[: mark[0]]) == mark[1]):
        return ()
    return (f"{path}: does not match its checkpoint: it was edited, cut or removed; what is left of it is kept",)


def _digests(folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    try:
        return read_digests(folder), ()
    except RunError as problem:
        return {}, (str(problem),)


def _summary(folder: Path, digests: Mapping[str, Any]) -> RunSummary:
    """The summary; empty if the run has not ended."""
    path = folder / SUMMARY
    if not path.exists():
        return cast("RunSummary", {})
    content = path.read_bytes()
    way_out = "remove it, and airdistill resume writes it again"
    if SUMMARY in digests and digests[SUMMARY] != digest_of(content):
        raise RunError(f"{path}: was edited or damaged; {way_out}")
    return cast("RunSummary", _stored(content, str(path), way_out))


def _records(path: Path, content: bytes) -> tuple[tuple[RoundRecord, ...], str | None]:
    """The complete records up to the first that is damaged, and what is wrong with that one."""
    rounds: list[RoundRecord] = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            record = _stored(line, f"{path}: line {number}", "the file is damaged")
        except RunError as problem:
            return tuple(rounds), str(problem)
        if record.get("round") != number:
            return tuple(rounds), f"{path}: line {number} is not round {number}; the file is damaged"
        rounds.append(cast("RoundRecord", record))
    return tuple(rounds), None


def _unharmed(
    path: Path, content: bytes, rounds: tuple[RoundRecord, ...], problem: str | None, ended: Mapping[str, Any]
) -> tuple[tuple[RoundRecord, ...], list[str]]:
    """The rounds of an ended run that can be relied on, and what happened to the others."""
    if problem is None and len(rounds) < ended["rounds"]:
        problem = f"{path}: {'was cut' if path.exists() else 'is missing'}"
    elif problem is None and ROUNDS in ended and ended[ROUNDS] != digest_of(content):
        problem, rounds = f"{path}: was edited or damaged, and in which rounds is not known", ()
    if problem is None:
        return rounds, []
    return rounds, [f"{problem}; {len(rounds)} of {ended['rounds']} rounds are shown, and the file is kept"]


def _stored(content: bytes, where: str, rule: str) -> dict[str, Any]:
    try:
        value = json_value(content)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RunError(f"{where}: cannot be read; {rule}")
    return value


def ended_run(folder: Path) -> RunRecord:
    """The record of a run that has ended."""
    record = RunRecord.read(simulated(folder))
    if not record.summary:
        if lost := _cut_since_checkpoint(folder):
            raise RunError(lost[0])
        raise InputError("RUN", str(folder), "has not ended yet; continue it with airdistill resume")
    return record
