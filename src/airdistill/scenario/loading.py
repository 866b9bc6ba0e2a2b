"""From a preset's name or a TOML file, and `field=value` changes, to a validated scenario."""

from __future__ import annotations

import difflib
import itertools
import math
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from airdistill.errors import NOT_GIVEN, InputError
from airdistill.scenario.model import Scenario

_NO_FILES = ("mnist", "test", "train")  # what those fields say without meaning a file, whatever lies about
_PATH_FIELDS = [("data", "dataset"), ("radio", "trace"), ("public", "source")]


def load(source: str | Path, changes: Iterable[str] = ()) -> Scenario:
    """The scenario of a preset or a TOML file, with changes such as `radio.peak_power=10 mW` made to it.

    A relative path in the file is looked up beside the file; one in a change, in the working directory.
    """
    return _with_changes(_read(source), changes)


def load_text(text: str, name: str, changes: Iterable[str] = ()) -> Scenario:
    """The same from TOML that lies in no file; relative paths are looked up in the working directory."""
    return _with_changes({"name": name, **_parsed(text, name)}, changes)


def _with_changes(given: dict[str, Any], changes: Iterable[str]) -> Scenario:
    for change in changes:
        given = merged(given, parse_change(change))
    scenario = validated(given)
    for scheme in scenario.overrides:
        for_scheme(scenario, scheme)
    return scenario


def for_scheme(scenario: Scenario, scheme: str) -> Scenario:
    """The scenario as one scheme sees it: with its own overrides applied."""
    overrides = scenario.overrides.get(scheme, {})
    for field in ("overrides", "name"):
        if field in overrides:
            raise InputError(f"overrides.{scheme}.{field}", overrides[field], "a scheme cannot change this")
    try:
        return changed(scenario, overrides)
    except InputError as error:
        raise InputError(f"overrides.{scheme}.{error.field}", error.value, error.rule) from None


def changed(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """A copy with nested changes, validated anew."""
    return validated(merged(scenario.model_dump(mode="python"), changes))


def with_absolute_paths(scenario: Scenario) -> Scenario:
    """A copy that means the same files from any working directory."""
    changes: dict[str, Any] = {}
    for section, field in _PATH_FIELDS:
        value = getattr(getattr(scenario, section), field, None)
        if value is not None and value not in _NO_FILES and Path(value).exists():
            changes[section] = {field: str(Path(value).resolve())}
    return changed(scenario, changes)


def as_toml(scenario: Scenario) -> str:
    """All of it, to be loaded again from wherever the file comes to lie."""
    import tomli_w

    return tomli_w.dumps(with_absolute_paths(scenario).model_dump(mode="json", exclude_none=True))


def preset_names() -> list[str]:
    folder = resources.files("airdistill") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def preset_text(name: str) -> str:
    """The TOML of a preset, to start a scenario from."""
    if name not in preset_names():
        raise InputError("scenario", name, f"no such preset; there are {', '.join(preset_names())}")
    return (resources.files("airdistill") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


def preset_summary(name: str) -> str:
    """What a preset is for: the comment that its file opens with."""
    comment = itertools.takewhile(lambda line: line.startswith("#"), preset_text(name).splitlines())
    return " ".join(line.removeprefix("#").strip() for line in comment)


def _read(source: str | Path) -> dict[str, Any]:
    if isinstance(source, str) and source in preset_names():
        return _parsed(preset_text(source), source)
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        rule = f"no such file, and no such preset; presets are {', '.join(preset_names())}"
        raise InputError("scenario", str(source), rule) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("scenario", str(source), f"cannot be read: {error}") from None
    given = {"name": path.stem, **_parsed(text, str(source))}
    for section, field in _PATH_FIELDS:
        table = given.get(section)
        if isinstance(table, dict) and isinstance(table.get(field), str):
            beside = path.parent / table[field]
            if table[field] not in _NO_FILES and beside.exists():
                given[section] = {**table, field: str(beside)}
    return given


def _parsed(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text, parse_float=_parse_float)
    except (ValueError, RecursionError) as error:
        raise InputError("scenario", source, f"is not valid TOML: {error}") from None


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isinf(number) and "inf" not in text:
        raise ValueError(f"{text} is too large a number; write inf if you mean it")
    return number


def parse_change(change: str) -> dict[str, Any]:
    """`radio.peak_power=10 mW` as a nested table; the value is TOML where it reads as TOML, else a text."""
    field, sign, text = change.partition("=")
    keys = field.strip().split(".")
    if not sign or not all(keys):
        raise InputError("--set", change, "must read section.field=value")
    try:
        given = tomllib.loads(f"value = {text}", parse_float=_parse_float)
        value: Any = given["value"] if len(given) == 1 else text
    except RecursionError:
        raise InputError("--set", change, "is nested too deeply") from None
    except ValueError:
        value = text.strip()
    for key in reversed(keys):
        value = {key: value}
    nested: dict[str, Any] = value
    return nested


def merged(given: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables merged; a change wins, and what is no table is replaced whole."""
    result = dict(given)
    for key, value in changes.items():
        both_tables = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both_tables else value
    return result


def validated(given: Mapping[str, Any]) -> Scenario:
    """A scenario, or one line that names the first field that breaks a rule."""
    try:
        return Scenario.model_validate(dict(given))
    except ValidationError as invalid:
        raise _first_error(invalid) from None


def _first_error(invalid: ValidationError) -> InputError:
    error = invalid.errors()[0]
    location = list(error["loc"])
    field = ".".join(str(part) for part in location)
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        return InputError(field, NOT_GIVEN, "is required")
    if kind == "extra_forbidden":
        return InputError(field, error["input"], _unknown_key_rule(location))
    if kind == "value_error":
        rule = str(context["error"])
    elif kind in ("model_type", "dict_type"):
        rule = "must be a table"
    else:
        rule = error["msg"].replace("Input should", "must").replace("String should", "must")
    return InputError(field, error["input"], rule)


def _unknown_key_rule(location: list[int | str]) -> str:
    known = _known_keys(location[:-1])
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f"unknown key; did you mean {close[0]}?" if close else f"unknown key; known are {', '.join(known)}"


def _known_keys(section: list[int | str]) -> list[str]:
    model: Any = Scenario
    for part in section:
        if isinstance(part, str):
            annotation = model.model_fields[part].annotation
            model = getattr(annotation, "__args__", (annotation,))[0]
    return list(model.model_fields)
