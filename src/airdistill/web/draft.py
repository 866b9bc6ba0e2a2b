"""A scenario being worked on: what it starts from, what was changed, and the command that says the same."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tomli_w

from airdistill.errors import InputError
from airdistill.planning.plan import Plan, plan
from airdistill.scenario.loading import as_toml, for_scheme, load, load_text
from airdistill.scenario.model import Scenario

AS_IT_STANDS = "the scenario as it stands"


@dataclass(frozen=True)
class Origin:
    """A preset, or an opened file with its text."""

    name: str
    text: str | None = None

    @property
    def identity(self) -> str:
        return self.name if self.text is None else hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def scenario(self, changes: list[str] | None = None) -> Scenario:
        if self.text is None:
            return load(self.name, changes or [])
        return load_text(self.text, _fit_for_a_name(self.name), changes or [])


def _fit_for_a_name(file_name: str) -> str:
    stem = re.sub(r"\.toml$", "", file_name)
    return re.sub(r"[^\w.-]", "-", stem)[:100].lstrip(".-") or "scenario"


@dataclass(frozen=True)
class Draft:
    """`changes` are of single fields, as `--set` takes them."""

    origin: Origin
    changes: tuple[str, ...] = ()

    @property
    def scenario(self) -> Scenario:
        return self.origin.scenario(list(self.changes))

    def command(self, verb: str, *options: str) -> str:
        """The same on the command line."""
        sets = [part for change in self.changes for part in ("--set", change)]
        return shlex.join(["airdistill", verb, self.origin.name, *options, *sets])


def as_changes(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """`{"radio.peak_power": 0.01}` as `--set` has it."""
    return tuple(f"{name}={_toml_value(value)}" for name, value in fields.items())


def _toml_value(value: Any) -> str:
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip().replace("\n", " ")


def check_names_no_files(scenario: Scenario) -> None:
    """For a page that others can reach: a scenario from outside must not say which files of this machine are read."""
    for where, seen in _as_schemes_see_it(scenario):
        public = seen.public.source if seen.public is not None else "test"
        for name, value, known in [
            ("data.dataset", seen.data.dataset, ("mnist",)),
            ("radio.trace", seen.radio.trace, (None,)),
            ("public.source", public, ("test", "train")),
        ]:
            if value not in known:
                raise InputError(where + name, value, "names a file; a page that is open to the network takes none")


def check_names_no_code(scenario: Scenario) -> None:
    """What the page starts, or plans for others, imports nobody's code: whoever reaches the page could name any."""
    for where, seen in _as_schemes_see_it(scenario):
        server = None if seen.public is None else seen.public.server_model
        named = [("fleet.groups", group.model) for group in seen.fleet.groups]
        for name, model in [("learning.model", seen.learning.model), *named, ("public.server_model", server)]:
            if model is not None and ":" in model:
                raise InputError(where + name, model, "is code of your own, which the page does not run: use the shell")


def _as_schemes_see_it(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    """As it stands and with every scheme's overrides: any of them can name a file or code. With where they stand."""
    yield "", scenario
    for scheme in scenario.overrides:
        yield f"overrides.{scheme}.", for_scheme(scenario, scheme)


@lru_cache(maxsize=64)
def _planned(toml: str, scheme: str) -> Plan:
    scenario = load_text(toml, "scenario")
    if scheme == AS_IT_STANDS:
        return plan(scenario)
    from airdistill.schemes.registry import plan_run

    return plan_run(scenario, scheme)


def planned(scenario: Scenario, scheme: str = AS_IT_STANDS) -> Plan:
    """The plan; of what was asked before, at once."""
    return _planned(as_toml(scenario), scheme)
