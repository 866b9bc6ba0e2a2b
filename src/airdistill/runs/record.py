"""Records: what a run left in its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from airdistill.errors import InputError
from airdistill.runs.folder import ROUNDS, SUMMARY, RunError, simulated

if TYPE_CHECKING:
    from airdistill.runs.results import AccuracyRecord, RoundRecord, RunSummary


@dataclass(frozen=True)
class RunRecord:
    """A run's folder: one record for every round, and the summary of a run that has ended."""

    folder: Path
    rounds: tuple[RoundRecord, ...]
    summary: RunSummary

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """Read a run that may still be running: an incomplete last line does not count."""
        path = folder / ROUNDS
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        rounds = [_stored(line, f"{path}: line {number}") for number, line in enumerate(lines, start=1)]
        for number, record in enumerate(rounds, start=1):
            if record.get("round") != number:
                raise RunError(f"{path}: line {number} is not round {number}; the file is damaged")
        path = folder / SUMMARY
        summary = _stored(path.read_bytes(), str(path)) if path.exists() else {}
        return cls(folder, tuple(cast("RoundRecord", record) for record in rounds), cast("RunSummary", summary))

    def __repr__(self) -> str:
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy['mean']:.1%}"
        state = "" if self.summary else ", not ended"
        return f"RunRecord({str(self.folder)!r}: {len(self.rounds)} rounds{accuracy}{state})"

    @property
    def accuracy(self) -> AccuracyRecord | None:
        """The last measured accuracy."""
        return next((line["accuracy"] for line in reversed(self.rounds) if "accuracy" in line), None)


def _stored(content: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RunError(f"{where}: cannot be read; the file is damaged")
    return value


def ended_run(folder: Path) -> RunRecord:
    """The record of a run that has ended."""
    record = RunRecord.read(simulated(folder))
    if not record.summary:
        raise InputError("RUN", str(folder), "has not ended yet; continue it with airdistill resume")
    return record
