"""Trackers: what a run records, also written for TensorBoard, MLflow or a table; or sent to an object of your own.

A tracker is told the rounds of one run from the first on, and then its end. What it writes depends on the run's records
only: a run that is resumed, or computed on another machine, is told again from its first round, into an empty folder.
"""

from __future__ import annotations

import csv
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol

from airdistill.errors import AirDistillError, InputError, described
from airdistill.files import json_value
from airdistill.plugins import load_object
from airdistill.runs.folder import PLAN, ROUNDS, RUN
from airdistill.runs.record import RunRecord

TRACK = "--track"
TRACKED = "track"  # the folder of trackers, in that of a run or a comparison
_NEEDS = "pip install 'airdistill[track]'"


class Tracker(Protocol):
    """What is told of one run."""

    def on_round(self, record: dict[str, Any], num_rounds: int) -> None:
        """A round was computed: its record, a line of `rounds.jsonl`, and the planned number of rounds."""

    def on_end(self, record: RunRecord) -> None:
        """The run has ended, or its command has: `record.summary` is empty if rounds are left."""


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker is made for. `folder` is the tracker's own, empty, and shared by a comparison's runs."""

    name: str  # the run's folder; in a comparison LABEL/seed-N
    run: Path
    folder: Path


OnRound = Callable[[dict[str, Any], int], None]
MakeTracker = Callable[[TrackedRun], Tracker]


class CsvTracker:
    """One table for each run, a row for each round: those of `results.csv`, while the run is in progress."""

    def __init__(self, tracked: TrackedRun) -> None:
        path = tracked.folder / f"{tracked.name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("w", newline="")
        self._writer: csv.DictWriter[str] | None = None

    def on_round(self, record: dict[str, Any], num_rounds: int) -> None:
        from airdistill.runs.tables import numbers_of

        row = {**numbers_of(record), "planned_rounds": num_rounds}
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, list(row), lineterminator="\n")
            self._writer.writeheader()
        self._writer.writerow(row)
        self._file.flush()

    def on_end(self, _record: RunRecord) -> None:
        self._file.close()


class TensorBoardTracker:
    """Event files, one folder for each run: `tensorboard --logdir FOLDER/track/tensorboard`."""

    def __init__(self, tracked: TrackedRun) -> None:
        writer = _extra("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._event = _extra("tensorboard.compat.proto.event_pb2", "tensorboard").Event
        self._summary = _extra("tensorboard.compat.proto.summary_pb2", "tensorboard").Summary
        self._writer = writer.EventFileWriter(str(tracked.folder / tracked.name))

    def on_round(self, record: dict[str, Any], _num_rounds: int) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in _finite(record).items()]
        summary = self._summary(value=values)
        self._writer.add_event(self._event(wall_time=time.time(), step=record["round"], summary=summary))
        self._writer.flush()

    def on_end(self, _record: RunRecord) -> None:
        self._writer.close()


class MlflowTracker:
    """Runs of one experiment in a local database: `mlflow ui --backend-store-uri sqlite:///FOLDER/track/mlflow/runs.db`.

    The database is a file.
    """

    def __init__(self, tracked: TrackedRun) -> None:
        self._entities = _extra("mlflow.entities", "mlflow")
        tracked.folder.mkdir(parents=True, exist_ok=True)
        place = f"sqlite:///{tracked.folder.resolve() / 'runs.db'}"
        self._client = _extra("mlflow.tracking", "mlflow").MlflowClient(place)
        name = tracked.folder.resolve().parents[1].name
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name, place_of_artifacts(tracked))
        self._run = self._client.create_run(experiment, run_name=tracked.name).info.run_id

    def on_round(self, record: dict[str, Any], _num_rounds: int) -> None:
        now = int(1000 * time.time())
        metrics = [self._entities.Metric(name, value, now, record["round"]) for name, value in _finite(record).items()]
        self._client.log_batch(self._run, metrics)

    def on_end(self, record: RunRecord) -> None:
        self._client.set_terminated(self._run, "FINISHED" if record.summary else "KILLED")


def place_of_artifacts(tracked: TrackedRun) -> str:
    """Return the folder that MLflow would otherwise make in the working directory."""
    return (tracked.folder.resolve() / "artifacts").as_uri()


TRACKERS: dict[str, MakeTracker] = {"csv": CsvTracker, "tensorboard": TensorBoardTracker, "mlflow": MlflowTracker}
_MODULES = {"tensorboard": "tensorboard", "mlflow": "mlflow"}


def _finite(record: dict[str, Any]) -> dict[str, float]:
    """Every number of a record but its round; an infinite ε cannot be drawn."""
    from airdistill.runs.tables import numbers_of  # tables are of comparisons, which have trackers

    numbers = {name: value for name, value in numbers_of(record).items() if name != "round" and value is not None}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def _extra(module: str, name: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise InputError(TRACK, name, f"is not installed: {_NEEDS}") from None


def chosen_trackers(given: Sequence[str | MakeTracker]) -> dict[str, MakeTracker]:
    """Return functions that make trackers, from names, references `module:function` and functions."""
    found: dict[str, MakeTracker] = {}
    for each in given:
        name = each if isinstance(each, str) else getattr(each, "__name__", type(each).__name__)
        if name in found:
            raise InputError(TRACK, name, "is given twice")
        if not isinstance(each, str):
            found[name] = each
        elif each in TRACKERS:
            if each in _MODULES:
                _extra(_MODULES[each], each)  # before anything runs
            found[each] = TRACKERS[each]
        elif ":" in each:
            found[each.replace(":", ".")] = load_object(each, TRACK)
        else:
            raise InputError(
                TRACK, each, f"must be one of {', '.join(TRACKERS)}, or your own as package.module:function"
            )
    return found


class Tracking:
    """The trackers of a run, or of all runs of a comparison in the folder `root`: they follow the records on disk.

    A context manager around the computation; trackers are told the end when it ends, in whatever way.
    """

    def __init__(self, makers: dict[str, MakeTracker], root: Path) -> None:
        self._makers, self._root = makers, root
        self._runs: dict[Path, _Followed] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Tracking:
        for key in self._makers:
            shutil.rmtree(self._root / TRACKED / key, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as closing:  # an error of one tracker does not keep the others from their end
            for followed in self._runs.values():
                closing.callback(followed.end)

    def follow(self, run: Path) -> None:
        """Tell the trackers of the run in this folder the rounds that they have not been told."""
        if not self._makers or not (run / RUN).exists():
            return
        with self._lock:
            if run not in self._runs:
                name = run.resolve().name if run == self._root else run.relative_to(self._root).as_posix()
                self._runs[run] = _Followed(run, [self._made(key, name, run) for key in self._makers])
            self._runs[run].catch_up()

    def also(self, on_round: OnRound | None, run: Path) -> OnRound:
        """Return a function for a run's rounds that tells the trackers, and calls `on_round`."""

        def tell(record: dict[str, Any], num_rounds: int) -> None:
            self.follow(run)
            if on_round is not None:
                on_round(record, num_rounds)

        return tell

    def _made(self, key: str, name: str, run: Path) -> tuple[str, Tracker]:
        folder = self._root / TRACKED / key
        folder.mkdir(parents=True, exist_ok=True)
        with _errors_named(key):
            return key, self._makers[key](TrackedRun(name, run, folder))


class _Followed:
    """A run's round file, read as it grows, and the trackers that are told."""

    def __init__(self, run: Path, trackers: list[tuple[str, Tracker]]) -> None:
        self._run, self._trackers, self._read = run, trackers, 0
        self._planned = int(json_value((run / PLAN).read_bytes())["rounds"]["chosen"])

    def catch_up(self) -> None:
        """Tell the complete lines that are new."""
        path = self._run / ROUNDS
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            record = json_value(line)
            for name, tracker in self._trackers:
                with _errors_named(name):
                    tracker.on_round(record, self._planned)

    def end(self) -> None:
        """Tell what is left, and the end."""
        self.catch_up()
        record = RunRecord.read(self._run)
        for name, tracker in self._trackers:
            with _errors_named(name):
                tracker.on_end(record)


@contextmanager
def _errors_named(name: str) -> Iterator[None]:
    """Make an exception of a tracker an error of one line that names it."""
    try:
        yield
    except AirDistillError:
        raise
    except Exception as error:  # a user's tracker can raise any exception
        raise AirDistillError(f"{TRACK} {name}: failed: {described(error)}") from error
