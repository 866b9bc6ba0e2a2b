"""What a run left behind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airdistill.errors import InputError
from airdistill.runs.folder import ROUNDS, SUMMARY, simulated


@dataclass(frozen=True)
class RunRecord:
    """A run's folder, read: one dictionary for every round, and the summary of a run that has ended."""

    folder: Path
    rounds: tuple[dict[str, Any], ...]
    summary: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        lines = (folder / ROUNDS).read_text().splitlines() if (folder / ROUNDS).exists() else []
        summary = json.loads((folder / SUMMARY).read_text()) if (folder / SUMMARY).exists() else {}
        return cls(folder, tuple(json.loads(line) for line in lines), summary)

    @property
    def accuracy(self) -> dict[str, float] | None:
        """The last that was measured."""
        return next((line["accuracy"] for line in reversed(self.rounds) if "accuracy" in line), None)


def ended_run(folder: Path) -> RunRecord:
    """The record of a run that has ended."""
    record = RunRecord.read(simulated(folder))
    if not record.summary:
        raise InputError("RUN", str(folder), "has not ended yet; airdistill resume goes on with it")
    return record
