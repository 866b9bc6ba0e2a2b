"""Tidy tables: one row for each run and round, as CSV, Parquet or a pandas frame; and one row for each arm."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from airdistill.errors import AirDistillError
from airdistill.files import write_whole
from airdistill.runs.comparison import COMPARISON, Arm, ComparisonRecord
from airdistill.runs.folder import RUN, SCENARIO, read_sealed, simulated
from airdistill.runs.grid import cells_of
from airdistill.runs.record import RunRecord
from airdistill.runs.results import Interval, arm_results, runs_of
from airdistill.scenario.loading import load

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
_FIRST = ("label", "scheme", "seed")  # then the fields of the grid
_LOSSES = ("loss", "training_loss", "distillation_loss")
_SENT = ("uplink_seconds", "planned_joules", "measured_joules", "planned_power_w", "measured_power_w")
_COPIED = ("round", "lr", *_LOSSES, *_SENT, "epsilon_spent")
_INFINITE_IF_NULL = ("epsilon_spent",)
_MEDIANS = ("predicted_noise_var", "measured_noise_var", "estimate_error")  # over rows of the payload
_ACCURACY = ("mean", "worst", "best", "own_classes")
_LABELS = ("ideal", "received", "broadcast")
_NEEDS = "pip install 'airdistill[web]' has both pandas and pyarrow"


def load_results(folder: str | Path) -> pd.DataFrame:
    """Return one row for each run and round of a comparison, a sweep or a single run, as a pandas frame.

    Columns are those of `results.csv`. A run that has not ended has the rounds that it has.
    """
    pandas, folder = _module("pandas", "load_results returns its frames"), Path(folder)
    frame: pd.DataFrame = pandas.DataFrame(rows_in(folder), columns=_columns(folder))
    empty = [name for name in frame if frame[name].isna().all()]
    return frame.astype(dict.fromkeys(empty, float))


def rows_in(folder: Path) -> list[Row]:
    """Return the rows of a comparison, a sweep or a single run."""
    if (folder / COMPARISON).exists():
        return result_rows(ComparisonRecord.read(folder), unfinished=True)
    scheme = read_sealed(simulated(folder))[0]["scheme"]
    scenario = load(folder / SCENARIO)
    return list(_rows_of_run(Arm(folder.resolve().name, scheme, scenario), scenario.seed, RunRecord.read(folder)))


def _columns(folder: Path) -> list[str]:
    is_comparison = (folder / COMPARISON).exists()
    return columns_of(ComparisonRecord.read(folder).comparison.fields if is_comparison else ())


def columns_of(fields: Sequence[str]) -> list[str]:
    """Return the columns of a tidy table of a grid of these fields."""
    accuracy, labels = (f"accuracy_{name}" for name in _ACCURACY), (f"labels_right_{name}" for name in _LABELS)
    return [*_FIRST, *fields, *_COPIED, *_MEDIANS, "inactive_devices", *accuracy, "accuracy_half_width", *labels]


def result_rows(record: ComparisonRecord, unfinished: bool = False) -> list[Row]:
    """Return one row for each run and round; `unfinished` includes the rounds of runs that have not ended."""
    rows: list[Row] = []
    for task in record.comparison.tasks:
        run, folder = record.runs.get(task), task.folder_in(record.folder)
        if run is None and unfinished and (folder / RUN).exists():
            run = RunRecord.read(folder)
        if run is not None:
            rows += _rows_of_run(record.comparison.arm(task.label), task.seed, run)
    return rows


def _rows_of_run(arm: Arm, seed: int, run: RunRecord) -> list[Row]:
    known = dict(zip(_FIRST, (arm.label, arm.scheme, seed), strict=True)) | cells_of(arm.point)
    return [{**known, **numbers_of(record)} for record in run.rounds]


def numbers_of(record: Mapping[str, Any]) -> Row:
    """Return the numbers of a round's record, by column; lists as their median."""
    row: Row = {name: record.get(name) for name in _COPIED}
    for name in _INFINITE_IF_NULL:
        row[name] = float("inf") if row[name] is None else row[name]
    for name in _MEDIANS:
        known = [value for value in record.get(name) or () if value is not None]
        row[name] = float(np.median(known)) if known else None
    row["inactive_devices"] = len(record.get("silent_devices", ()))
    accuracy = record.get("accuracy", {})
    row |= {f"accuracy_{name}": accuracy.get(name) for name in _ACCURACY}
    row["accuracy_half_width"] = accuracy.get("sample", {}).get("half_width")
    return row | {f"labels_right_{name}": record.get("labels_right", {}).get(name) for name in _LABELS}


# The summary: one row for each arm.


def summary_rows(record: ComparisonRecord) -> list[Row]:
    """Return the results of every arm with their 95 % intervals over seeds; differences are paired by seed."""
    rows = []
    for result in arm_results(record):
        arm = record.comparison.arm(result.label)
        row: Row = {"label": arm.label, "scheme": arm.scheme, "seeds": result.num_seeds, **cells_of(arm.point)}
        measured = {
            "accuracy": result.accuracy,
            "worst_device": result.worst_device,
            "gain_over_local": result.gain,
            "difference_to_first": difference_to_first(record, arm),
            "uplink_seconds": result.uplink_seconds,
            "joules": result.joules,
            "noise_var": result.noise_var,
        }
        for name, interval in measured.items():
            row |= {name: None, f"{name}_low": None, f"{name}_high": None} | _interval(name, interval)
        row |= {"rounds_fewest": result.rounds[0], "rounds_most": result.rounds[1]}
        rows.append(row | {f"epsilon_{model}": value for model, value in result.epsilon_by_model.items()})
    return rows


def _interval(name: str, interval: Interval | None) -> Row:
    if interval is None:
        return {}
    ends = {} if interval.half is None else {f"{name}_low": interval.low, f"{name}_high": interval.high}
    return {name: interval.mean, **ends}


def difference_to_first(record: ComparisonRecord, arm: Arm) -> Interval | None:
    """Return the accuracy minus that of the first scheme at the same point, seed by seed; None for the first itself."""
    first = next(other for other in record.comparison.arms if other.point == arm.point)
    theirs, ours = runs_of(record, first.label), runs_of(record, arm.label)
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    if first is arm or not pairs:
        return None
    return Interval.of([own.summary["accuracy"]["mean"] - other.summary["accuracy"]["mean"] for own, other in pairs])


# Files.


def csv_of(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    """Return rows as CSV; a value that is absent is empty."""
    names = list(columns or (rows[0] if rows else ()))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def write_results(record: ComparisonRecord) -> list[Path]:
    """Write `results.csv`, `summary.csv`, and `results.parquet` if pyarrow is installed; return their paths."""
    folder, rows, columns = record.folder, result_rows(record), columns_of(record.comparison.fields)
    write_whole(folder / "results.csv", csv_of(rows, columns).encode())
    write_whole(folder / "summary.csv", csv_of(summary_rows(record)).encode())
    written = [folder / "results.csv", folder / "summary.csv"]
    if has_module("pyarrow"):
        write_parquet(folder / "results.parquet", rows, columns)
        written.append(folder / "results.parquet")
    return written


def write_parquet(path: Path, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Write rows as Parquet. A column of numbers and texts becomes one of texts."""
    arrow, parquet = _module("pyarrow", str(path)), _module("pyarrow.parquet", str(path))
    table = arrow.table({name: arrow.array(_of_one_type([row.get(name) for row in rows])) for name in columns})
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    write_whole(path, buffer.getvalue())


def _of_one_type(values: list[Any]) -> list[Any]:
    if any(isinstance(value, str) for value in values):
        return [None if value is None else str(value) for value in values]
    if any(isinstance(value, float) for value in values):
        return [None if value is None else float(value) for value in values]
    return values


def has_module(name: str) -> bool:
    """Whether a module is installed."""
    from importlib.util import find_spec

    return find_spec(name) is not None


def _module(name: str, what_for: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise AirDistillError(f"{name.partition('.')[0]} is not installed, and {what_for} needs it: {_NEEDS}") from None
