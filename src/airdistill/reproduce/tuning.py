"""The leaderboard's settings of each scheme and what was spent on finding them, from `tuned.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

FIRST_TUNING_SEED = 100


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
