"""The leaderboard: all schemes on the same settings, with their tuned overrides, each setting a comparison.

The tuned overrides, and what was spent on finding them, are those of `tuned.toml`.

A folder holds `leaderboard.json`, the question, and one comparison for each setting. Schemes without privacy do not
depend on ε, and are run once for all values, in a comparison of their own.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from airdistill import __version__
from airdistill.errors import InputError
from airdistill.files import json_text
from airdistill.runs.comparison import COMPARISON, Arm, Comparison, ComparisonRecord, OnProgress, start
from airdistill.runs.folder import RunError, digest_of, locked, new_folder, write_json, writing
from airdistill.runs.options import RunOptions
from airdistill.scenario.loading import changed, load, merged, parse_change, with_absolute_paths
from airdistill.scenario.model import Scenario
from airdistill.schemes.registry import load_scheme

LEADERBOARD = "leaderboard.json"
PRESET = "skewed"
SPLITS: dict[str, dict[str, Any]] = {
    "two-classes": {"partition": "shards", "classes_per_device": 2},
    "iid": {"partition": "iid"},
}
EPSILONS = (8.0, 2.0)
_VARIED = ("data.dataset", "data.partition", "data.classes_per_device", "privacy.epsilon")
_DATA_NAME = r"[a-z0-9][a-z0-9-]{0,39}"
_QUICK = {"fleet": {"devices": 20}, "data": {"samples_per_device": 60}, "public": {"samples": 200}}
_QUICK_ROUNDS, _QUICK_EPOCHS, _QUICK_MODEL = 2, 1, "mlp"
FIRST_TUNING_SEED = 100


@dataclass(frozen=True)
class Question:
    """What a leaderboard compares. `sources` are datasets by name; `only` selects runs as SETTING/SCHEME patterns."""

    sources: Mapping[str, str]
    seeds: int
    changes: tuple[str, ...]
    quick: bool
    options: RunOptions
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for change in self.changes:
            for varied in _VARIED:
                if _changes(parse_change(change), varied):
                    rule = f"the settings of a leaderboard vary {varied}; choose settings by --only"
                    raise InputError("--set", change, rule)
        for pattern in self.only:
            if not any(_matches(pattern, setting, scheme) for setting in self.settings for scheme in ranked_schemes()):
                named = f"settings are {', '.join(each.name for each in self.settings)}"
                rule = f"must be SETTING/SCHEME, in which * stands for any; {named}; schemes are "
                raise InputError("--only", pattern, rule + ", ".join(ranked_schemes()))

    @property
    def settings(self) -> tuple[Setting, ...]:
        """All settings, in the order of the page."""
        return tuple(Setting(data, split, epsilon) for data in self.sources for split in SPLITS for epsilon in EPSILONS)

    def asks_for(self, setting: Setting, scheme: str) -> bool:
        """Whether the scheme is to be run in the setting."""
        return not self.only or any(_matches(pattern, setting, scheme) for pattern in self.only)

    def to_dict(self) -> dict[str, Any]:
        return {
            "airdistill": __version__,
            "data": dict(self.sources),
            "seeds": self.seeds,
            "changes": list(self.changes),
            "quick": self.quick,
            "options": self.options.to_dict(),
            "only": list(self.only),
        }

    @classmethod
    def read(cls, folder: Path) -> Question:
        """Return the question that a folder was made for, with the latest selection of runs."""
        path = folder / LEADERBOARD
        if not path.is_file():
            raise InputError("DIR", str(folder), f"is not a leaderboard's folder: it has no {LEADERBOARD}")
        try:
            stored = json.loads(path.read_text())
            digest = stored.pop("digest")
            if digest != digest_of(json_text(stored).encode()):
                raise ValueError("it was edited or damaged")
            options = RunOptions.from_dict(stored["options"])
            only, changes = tuple(stored["only"]), tuple(stored["changes"])
            return cls(stored["data"], stored["seeds"], changes, stored["quick"], options, only)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{path}: cannot be read: {error}") from None


def _changes(nested: Mapping[str, Any], field: str) -> bool:
    section, name = field.split(".")
    return section in nested and not (isinstance(nested[section], Mapping) and name not in nested[section])


def _matches(pattern: str, setting: Setting, scheme: str) -> bool:
    wanted, _, wanted_scheme = pattern.partition("/")
    return fnmatchcase(setting.name, wanted) and fnmatchcase(scheme, wanted_scheme)


def sources_of(given: list[str]) -> dict[str, str]:
    """Return datasets by name from `NAME=SOURCE`, or `mnist` alone; by default MNIST."""
    sources: dict[str, str] = {}
    for each in given or ["mnist"]:
        name, sign, source = each.partition("=")
        source = source if sign else name
        if not sign and name != "mnist":
            raise InputError("--data", each, "must have the form NAME=SOURCE, or be mnist")
        if not re.fullmatch(_DATA_NAME, name):
            raise InputError("--data", each, "the name must be of small letters, digits and hyphens")
        if name in sources:
            raise InputError("--data", each, f"{name} is given twice")
        sources[name] = str(Path(source).resolve()) if source != "mnist" and Path(source).exists() else source
    return sources


# What is run.


def comparison_of(question: Question, setting: Setting) -> Comparison:
    """Return the comparison of a setting: its private schemes, or those without privacy if its ε is None."""
    scenario = _scenario(question, setting)
    numbers = tuple(range(scenario.seed, scenario.seed + question.seeds))
    arms = tuple(_arm(question, setting, scheme, scenario) for scheme in _schemes(setting))
    return Comparison(setting.name, arms, numbers, question.options)


def _schemes(setting: Setting) -> list[str]:
    private = setting.epsilon is not None
    return [name for name in ranked_schemes() if (load_scheme(name).releases == "private") == private]


def _scenario(question: Question, setting: Setting) -> Scenario:
    """Return the preset on this data: what the dataset needs, then the user's changes, then what settings vary."""
    changes: dict[str, Any] = merged(_QUICK, {}) if question.quick else needs_of_dataset(setting.data)
    for change in question.changes:
        changes = merged(changes, parse_change(change))
    varied: dict[str, Any] = {"data": {"dataset": question.sources[setting.data], **SPLITS[setting.split]}}
    if setting.epsilon is not None:
        varied["privacy"] = {"epsilon": setting.epsilon}
    # The overrides of the preset are in the table of tuned settings.
    preset = load(PRESET).model_copy(update={"overrides": {}})
    return with_absolute_paths(changed(preset, merged(merged(changes, varied), {"name": setting.name})))


def _arm(question: Question, setting: Setting, scheme: str, scenario: Scenario) -> Arm:
    """Return a scheme with its own tuned overrides and no other's, on top of which are the user's."""
    own = merged(tuned_for(scheme, setting).settings, scenario.overrides.get(scheme, {}))
    if question.quick:
        own = _scaled_down(own, scenario)
    return Arm.of(scheme, changed(scenario.model_copy(update={"overrides": {}}), {"overrides": {scheme: own}}))


def _scaled_down(overrides: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
    """Return a scheme's overrides with few rounds and epochs, few features and a small network."""
    learning = {**vars(scenario.learning), **overrides.get("learning", {})}
    small: dict[str, Any] = {
        "rounds": min(_QUICK_ROUNDS, learning["rounds"]) if isinstance(learning["rounds"], int) else _QUICK_ROUNDS,
        "local_epochs": min(_QUICK_EPOCHS, learning["local_epochs"]),
        "model": "softmax_regression" if learning["model"] == "softmax_regression" else _QUICK_MODEL,
    }
    kept = {section: values for section, values in overrides.items() if section != "public"}
    return merged(kept, {"learning": small, "public": {"broadcast": "predictions", "distill_epochs": 1}})


def run_leaderboard(question: Question, out: Path, jobs: int, on_progress: OnProgress) -> None:
    """Train what the question asks for and the folder does not hold yet; repeating a stopped call resumes it.

    `on_progress` is told of tasks that have the setting in their labels.
    """
    folder = out if (out / LEADERBOARD).exists() else new_folder(out, "leaderboard")
    with locked(folder):
        asked = _asked(question)
        if not (folder / LEADERBOARD).exists():
            for setting, labels in asked.items():
                comparison_of(question, setting).check(labels)
        _write_question(folder, question)
        for setting, labels in asked.items():
            told = _naming(setting, on_progress)
            start(comparison_of(question, setting), folder / setting.name, jobs, told, labels=labels)


def _naming(setting: Setting, on_progress: OnProgress) -> OnProgress:
    return lambda task, news: on_progress(replace(task, label=f"{setting.name}/{task.label}"), news)


def _asked(question: Question) -> dict[Setting, list[str]]:
    """Return the arms to run by setting; schemes without privacy once for all ε."""
    asked: dict[Setting, list[str]] = {}
    for setting in question.settings:
        for own in (setting, replace(setting, epsilon=None)):
            labels = [scheme for scheme in _schemes(own) if question.asks_for(setting, scheme)]
            if labels:
                asked[own] = list(dict.fromkeys([*asked.get(own, []), *labels]))
    return asked


def _write_question(folder: Path, question: Question) -> None:
    """Write what is asked; a folder keeps its question, of which only the selection of runs may change."""
    if (folder / LEADERBOARD).exists():
        stored = Question.read(folder)
        if replace(stored, only=()) != replace(question, only=()):
            raise InputError("--out", str(folder), "holds another leaderboard; choose another folder")
    body = question.to_dict()
    with writing(folder):
        write_json(folder / LEADERBOARD, {**body, "digest": digest_of(json_text(body).encode())})


# What was found.


def records_in(folder: Path, question: Question) -> dict[Setting, dict[str, ComparisonRecord]]:
    """Return what the folder holds of each setting: the comparison that an arm belongs to, by label."""
    found: dict[Setting, dict[str, ComparisonRecord]] = {}
    for setting in question.settings:
        for own in (setting, replace(setting, epsilon=None)):
            if (folder / own.name / COMPARISON).exists():
                record = ComparisonRecord.read(folder / own.name)
                found.setdefault(setting, {}).update({arm.label: record for arm in record.comparison.arms})
    return found


@dataclass(frozen=True)
class Setting:
    """Data, split and ε; ε is None for schemes without privacy, which are run once for all values."""

    data: str
    split: str
    epsilon: float | None

    @property
    def name(self) -> str:
        """The name in commands, files and pages, which is that of its folder, too."""
        return f"{self.data}-{self.split}-{'without-privacy' if self.epsilon is None else f'{self.epsilon:g}'}"


@dataclass(frozen=True)
class Tuned:
    """An entry of the table: where and how settings were tuned, and the settings that won."""

    schemes: tuple[str, ...]
    data: str
    split: str
    epsilon: float | None = None
    seeds: tuple[int, ...] = ()
    runs: int = 0
    note: str = ""
    tried: dict[str, list[Any]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def setting(self) -> Setting:
        return Setting(self.data, self.split, self.epsilon)


@cache
def _table() -> tuple[dict[str, Any], tuple[Tuned, ...]]:
    text = (resources.files("airdistill") / "reproduce" / "tuned.toml").read_text(encoding="utf-8")
    stored = tomllib.loads(text)
    entries = [{**each, "schemes": tuple(each["schemes"]), "seeds": tuple(each["seeds"])} for each in stored["tuned"]]
    return stored["datasets"], tuple(Tuned(**entry) for entry in entries)


def all_tuned() -> tuple[Tuned, ...]:
    """Return the whole table."""
    return _table()[1]


def ranked_schemes() -> tuple[str, ...]:
    """Return the leaderboard's schemes: those that have an entry, in its order."""
    return tuple(dict.fromkeys(scheme for entry in all_tuned() for scheme in entry.schemes))


def needs_of_dataset(name: str) -> dict[str, Any]:
    """Return what a dataset changes in the scenario, whatever the scheme; nothing if its name is not in the table."""
    needs: dict[str, Any] = _table()[0].get(name, {})
    return needs


def tuned_for(scheme: str, setting: Setting) -> Tuned:
    """Return the entry that fits best: of the same data first, then of the same split, then of the same ε."""
    entries = [entry for entry in all_tuned() if scheme in entry.schemes]

    def likeness(entry: Tuned) -> tuple[bool, bool, bool]:
        return entry.data == setting.data, entry.split == setting.split, entry.epsilon == setting.epsilon

    return max(entries, key=likeness)  # of equals the first
