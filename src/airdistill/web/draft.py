"""A scenario that is being edited: its origin, the changes, the equivalent command, and its plan."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import tomli_w

from airdistill.errors import InputError
from airdistill.planning.plan import Plan
from airdistill.scenario.loading import as_toml, for_scheme, load, load_text
from airdistill.scenario.model import Scenario

_FILE_FIELDS = ("data.dataset", "radio.trace", "public.source")


@dataclass(frozen=True)
class Origin:
    """A preset, or an opened file with its text."""

    name: str
    text: str | None = None

    @property
    def identity(self) -> str:
        """A short string that differs between origins."""
        return self.name if self.text is None else hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def scenario(self, changes: list[str] | None = None) -> Scenario:
        """The scenario with changes, each as `--set` takes it."""
        if self.text is None:
            return load(self.name, changes or [])
        return load_text(self.text, _valid_name(self.name), changes or [])


def _valid_name(file_name: str) -> str:
    stem = re.sub(r"\.toml$", "", file_name)
    return re.sub(r"[^\w.-]", "-", stem)[:100].lstrip(".-") or "scenario"


@dataclass(frozen=True)
class Draft:
    """An origin with `changes` of single fields, each as `--set` takes it."""

    origin: Origin
    changes: tuple[str, ...] = ()

    @property
    def scenario(self) -> Scenario:
        """The scenario with all changes applied."""
        return self.origin.scenario(list(self.changes))

    def command(self, verb: str, *options: str) -> str:
        """The equivalent command line."""
        sets = [part for change in self.changes for part in ("--set", change)]
        return shlex.join(["airdistill", verb, self.origin.name, *options, *sets])


def as_changes(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """`{"radio.peak_power": 0.01}` as arguments of `--set`."""
    return tuple(f"{name}={_toml_value(value)}" for name, value in fields.items())


def _toml_value(value: Any) -> str:
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip().replace("\n", " ")


def check_names_no_files(scenario: Scenario) -> None:
    """Reject a scenario that names files. A visitor from the network must not choose which files are read."""
    for prefix, variant in _variants(scenario):
        public = variant.public.source if variant.public is not None else "test"
        for name, value, allowed in [
            ("data.dataset", variant.data.dataset, ("mnist",)),
            ("radio.trace", variant.radio.trace, (None,)),
            ("public.source", public, ("test", "train")),
        ]:
            if value not in allowed:
                rule = "names a file; a page that is open to the network does not read files of this machine"
                raise InputError(prefix + name, value, rule)


def check_names_no_code(scenario: Scenario) -> None:
    """Reject a scenario that names Python code. Any visitor could otherwise run code on this machine."""
    for prefix, variant in _variants(scenario):
        for section, content in variant.model_dump(mode="json", exclude={"overrides"}).items():
            for name, value in content.items() if isinstance(content, dict) else ():
                _check_no_reference(f"{section}.{name}", value, prefix)


def _check_no_reference(name: str, value: Any, prefix: str) -> None:
    """Reject `package.module:Class` in any field, because any field may be one that is imported."""
    if isinstance(value, str):
        # A dataset is a file, or else a function of the user's own.
        is_file = name in _FILE_FIELDS and (name != "data.dataset" or Path(value).exists())
        if ":" in value and not is_file:
            rule = "names code of your own, which the page does not run; use the command line"
            raise InputError(prefix + name, value, rule)
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_no_reference(name, item, prefix)


def _variants(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    """The scenario alone and with each scheme's overrides, any of which can name a file; with prefixes of fields."""
    yield "", scenario
    for scheme in scenario.overrides:
        yield f"overrides.{scheme}.", for_scheme(scenario, scheme)


def planned(scenario: Scenario, scheme: str) -> Plan:
    """The plan that a run of the scheme follows; plans are kept and returned at once the next time."""
    return _planned(as_toml(scenario), scheme)


@lru_cache(maxsize=64)
def _planned(toml: str, scheme: str) -> Plan:
    from airdistill.runs.options import plan

    return plan(load_text(toml, "scenario"), scheme)
