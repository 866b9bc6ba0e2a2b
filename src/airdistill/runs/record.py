"""What a run left behind.

What a round's record keeps of the knowledge itself: a table of classes by classes, small enough to look at.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray, IntArray
from airdistill.errors import InputError
from airdistill.radio.superposition import Reception
from airdistill.runs.folder import ROUNDS, SUMMARY, RunError, simulated


@dataclass(frozen=True)
class RunRecord:
    """A run's folder, read: one dictionary for every round, and the summary of a run that has ended."""

    folder: Path
    rounds: tuple[dict[str, Any], ...]
    summary: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """Of a run that may still go on: a line without its end does not count yet."""
        path = folder / ROUNDS
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        rounds = tuple(_stored(line, f"{path}: line {number}") for number, line in enumerate(lines, start=1))
        for number, record in enumerate(rounds, start=1):
            if record.get("round") != number:
                raise RunError(f"{path}: line {number} is not round {number}; the file is damaged")
        path = folder / SUMMARY
        return cls(folder, rounds, _stored(path.read_bytes(), str(path)) if path.exists() else {})

    @property
    def accuracy(self) -> dict[str, float] | None:
        """The last that was measured."""
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
        raise InputError("RUN", str(folder), "has not ended yet; airdistill resume goes on with it")
    return record


MOST_CLASSES = 100  # a table of more is nothing to look at, and long to write
_DIGITS = 6

Table = list[list[float | None]]


def class_mean_tables(heard: Reception, num_classes: int) -> dict[str, Any]:
    """Everybody's average without noise, what was received, and what was broadcast: row k is class k's vector.

    Nothing of a scheme of a user's own that sends something else.
    """
    tables = {"ideal": heard.ideal, "received": heard.received, "broadcast": heard.knowledge}
    if any(table.shape != (num_classes, num_classes) for table in tables.values()):
        return {}
    return _kept(tables, num_classes)


def public_tables(heard: Reception, num_classes: int, labels_asked: IntArray, labels: IntArray) -> dict[str, Any]:
    """The same for answers on public samples whose labels are known: row k is the mean over the samples of class k."""
    tables = {
        "ideal": _mean_by_label(heard.ideal.reshape(-1, num_classes), labels_asked, num_classes),
        "received": _mean_by_label(heard.received.reshape(-1, num_classes), labels_asked, num_classes),
        "broadcast": _mean_by_label(heard.knowledge, labels, num_classes),
    }
    return _kept(tables, num_classes)


def _mean_by_label(rows: FloatArray, labels: IntArray, num_classes: int) -> FloatArray:
    means = np.full((num_classes, num_classes), np.nan)
    for label in np.unique(labels):
        known = rows[(labels == label) & np.isfinite(rows).all(axis=1)]
        if len(known):
            means[label] = known.mean(axis=0)
    return means


def _kept(tables: dict[str, FloatArray], num_classes: int) -> dict[str, Any]:
    if num_classes > MOST_CLASSES:
        return {}
    return {"knowledge": {name: _rounded(table) for name, table in tables.items()}}


def _rounded(table: FloatArray) -> Table:
    """Null is what nobody knows."""
    return [[float(f"{x:.{_DIGITS}g}") if np.isfinite(x) else None for x in row] for row in table.tolist()]
