"""What a round's record keeps of the knowledge itself: a table of classes by classes, small enough to look at."""

from __future__ import annotations

from typing import Any

import numpy as np

from airdistill.air.exchange import Heard
from airdistill.arrays import FloatArray, IntArray

MOST_CLASSES = 100  # a table of more is nothing to look at, and long to write
_DIGITS = 6

Table = list[list[float | None]]


def class_mean_tables(heard: Heard, num_classes: int) -> dict[str, Any]:
    """Everybody's average without noise, what was received, and what was broadcast: row k is class k's vector.

    Nothing of a scheme of a user's own that sends something else.
    """
    tables = {"ideal": heard.ideal, "received": heard.received, "broadcast": heard.knowledge}
    if any(table.shape != (num_classes, num_classes) for table in tables.values()):
        return {}
    return _kept(tables, num_classes)


def public_tables(heard: Heard, num_classes: int, labels_asked: IntArray, labels: IntArray) -> dict[str, Any]:
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
