"""Labels as they are stored, texts or whole numbers, and the classes 0, 1, 2, … that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import IntArray
from airdistill.errors import DataError

Label: TypeAlias = int | str
_LARGEST_LABEL = 9_999


def as_labels(array: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    """The labels as int64 or as texts, after a check of each of them."""
    if array.ndim != 1:
        way_out = "use labels.ravel()" if array.size == len(array) else "of one-hot rows take labels.argmax(axis=1)"
        raise DataError(f"{name}: labels have shape {array.shape}: must be a list with one label a sample; {way_out}")
    if array.dtype.kind not in "iuUS":
        way_out = "; convert whole numbers with labels.astype(int)" if array.dtype.kind in "fb" else ""
        raise DataError(f"{name}: labels are {array.dtype}: must be whole numbers or texts{way_out}")
    return _as_texts(array, name) if array.dtype.kind in "US" else _as_numbers(array, name)


def _as_numbers(array: NDArray[np.generic], name: str) -> IntArray:
    labels = array.astype(np.int64)
    if labels.min() < 0:
        raise DataError(f"{name}: label {labels.min()} is negative: must be 0 or more; or store labels as texts")
    if labels.max() > _LARGEST_LABEL:
        raise DataError(f"{name}: label {labels.max()}: must be at most {_LARGEST_LABEL}; or store labels as texts")
    return labels


def _as_texts(array: NDArray[np.generic], name: str) -> NDArray[np.str_]:
    try:
        labels = array.astype(np.str_)
    except UnicodeDecodeError:
        raise DataError(f"{name}: labels must be texts in ASCII or Unicode; store them as str, not as bytes") from None
    if (np.char.str_len(labels) == 0).any():
        raise DataError(f"{name}: label {int(np.argmin(np.char.str_len(labels)))} is empty")
    return labels


def label_map(labels: NDArray[np.generic], name: str) -> tuple[Label, ...] | None:
    """The label of every class, sorted; None if the training labels are 0, 1, 2, … already."""
    found: list[Label] = np.unique(labels).tolist()
    if len(found) > _LARGEST_LABEL + 1:
        raise DataError(f"{name}: has {len(found)} different labels: must be at most {_LARGEST_LABEL + 1}")
    return None if found == list(range(len(found))) else tuple(found)


def as_classes(labels: NDArray[np.generic], known: Sequence[Label], what: str, rule: str) -> IntArray:
    """The class of each label: its place among the sorted `known` ones; `rule` says of `what` that one is not there."""
    given, classes = np.asarray(known), np.zeros(len(labels), dtype=np.int64)
    unknown = np.ones(len(labels), dtype=np.bool_)
    if (given.dtype.kind == "U") == (labels.dtype.kind == "U"):
        classes = np.minimum(np.searchsorted(given, labels), len(given) - 1).astype(np.int64)
        unknown = np.asarray(given[classes] != labels)
    if unknown.any():
        raise DataError(f"{what} {labels[unknown][0].item()} {rule}")
    return classes
