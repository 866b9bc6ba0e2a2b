"""Read scenarios: from a preset's name, a TOML file or a dictionary, with `field=value` changes, validated.

>>> as_scenario({"fleet": {"devices": 2}, "privacy": {"epsilon": 8, "delta": 1e-5}}).radio.antennas
1
>>> load("quick", ["radio.antennas=4"]).radio.antennas
4
"""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from airdistill.errors import NOT_GIVEN, InputError, SeveralInputsError, did_you_mean
from airdistill.scenario.model import Scenario

ScenarioLike: TypeAlias = Scenario | str | Path | Mapping[str, Any]

# Fields that may name a file, and their values that never do, even if such a file exists.
_PATH_FIELDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("data", "dataset"): ("mnist",),
    ("radio", "trace"): (),
    ("public", "source"): ("test", "train"),
    ("public", "embedding"): ("auto", "raw", "random", "patches", "contrastive", "clusters"),
}


_UNKNOWN, _MEANT = "unknown key", "; did you mean "
# What pydantic says of wrong types and sizes, and the same in plain words.
_PLAIN_WORDS = {
    "^(Input|String|Tuple) should": "must",
    "be a valid (tuple|list)": "be a list",
    "be a valid integer.*": "be a whole number",
    "be a valid boolean.*": "be true or false",
    "be a valid string": "be a text",
    "be greater than or equal to": "be at least",
    "be less than or equal to": "be at most",
    "be less than": "be below",
}


def as_scenario(given: ScenarioLike) -> Scenario:
    """Return a scenario from a preset's name, the path of a TOML file, a dictionary nested like TOML, or a scenario."""
    if isinstance(given, Scenario):
        return given
    if isinstance(given, Mapping):
        return _with_changes(dict(given), ())
    if isinstance(given, str | Path):
        return load(given)
    rule = "must be a Scenario, a preset's name, the path of a TOML file, or a dictionary with its contents"
    raise InputError("scenario", given, rule)


def load(source: str | Path, changes: Iterable[str] = ()) -> Scenario:
    """Return the scenario of a preset or a TOML file with changes such as `radio.peak_power=10 mW` applied.

    Relative paths in a file start at the file's folder; those in a change start at the working directory.
    """
    return _with_changes(_read(source), changes)


def load_text(text: str, name: str, changes: Iterable[str] = ()) -> Scenario:
    """Return the scenario of a TOML text with changes applied; relative paths start at the working directory."""
    return _with_changes({"name": name, **_parsed(text, name)}, changes)


def _with_changes(given: dict[str, Any], changes: Iterable[str]) -> Scenario:
    for change in changes:
        given = merged(given, parse_change(change))
    scenario = validated(given)
    for scheme in scenario.overrides:
        _check_fields(scenario, scheme)
    return scenario


def for_scheme(scenario: Scenario, scheme: str) -> Scenario:
    """Return the scenario with the overrides of one scheme applied."""
    overrides = _own_overrides(scenario, scheme)
    try:
        return changed(scenario, overrides)
    except InputError as error:
        raise _in_overrides(scheme, error) from None


def _own_overrides(scenario: Scenario, scheme: str) -> dict[str, Any]:
    overrides = scenario.overrides.get(scheme, {})
    for field in ("overrides", "name"):
        if field in overrides:
            raise InputError(f"overrides.{scheme}.{field}", overrides[field], "a scheme cannot change this")
    return overrides


def _check_fields(scenario: Scenario, scheme: str) -> None:
    """Check names and values in the overrides of one scheme, which may not be the one that is planned.

    What the whole scenario does not allow together is refused when the scheme is planned: a scenario that asks for
    correlated noise must not be refused because some other scheme would truncate.
    """
    overrides = merged(scenario.model_dump(mode="python"), _own_overrides(scenario, scheme))
    try:
        Scenario.model_validate(overrides)
    except ValidationError as invalid:
        raise SeveralInputsError.joined([_in_overrides(scheme, each) for each in _errors(invalid)]) from None
    except InputError:  # a rule on several fields, from for_scheme with the same words
        return


def _in_overrides(scheme: str, error: InputError) -> InputError:
    return InputError(f"overrides.{scheme}.{error.field}", error.value, error.rule)


def changed(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """Return a copy with nested changes applied, validated again."""
    given = scenario.model_dump(mode="python")
    if scenario.radio.noise_power is None:
        given["radio"].pop("noise_power", None)  # the default is written, and would override a new noise figure
    return validated(merged(given, changes))


def with_absolute_paths(scenario: Scenario) -> Scenario:
    """Return a copy that names the same files from any working directory."""
    changes: dict[str, Any] = {}
    for (section, field), names in _PATH_FIELDS.items():
        value = getattr(getattr(scenario, section), field, None)
        if value is not None and value not in names and Path(value).exists():
            changes.setdefault(section, {})[field] = str(Path(value).resolve())
    return changed(scenario, changes)


def files_named(scenario: Scenario) -> list[str]:
    """Return the files and folders that a scenario names and that exist, with those of weights for own networks."""
    names = [getattr(getattr(scenario, section), field, None) for section, field in _PATH_FIELDS]
    parts = [part for name in names if name is not None for part in (name, name.partition("@")[2])]
    ordinary = {value for values in _PATH_FIELDS.values() for value in values}
    return [part for part in dict.fromkeys(parts) if part and part not in ordinary and Path(part).exists()]


def as_toml(scenario: Scenario) -> str:
    """Return the whole scenario as TOML that can be loaded from any folder."""
    import tomli_w

    return tomli_w.dumps(with_absolute_paths(scenario).model_dump(mode="json", exclude_none=True))


def preset_names() -> list[str]:
    """Return the names of the presets, sorted."""
    folder = resources.files("airdistill") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def _no_such_preset(name: str) -> str:
    known = preset_names()
    return f"no such preset; presets are {', '.join(known)}{did_you_mean(name, known)}"


def preset_text(name: str) -> str:
    """Return the TOML of a preset."""
    if name not in preset_names():
        raise InputError("scenario", name, _no_such_preset(name))
    return (resources.files("airdistill") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


def preset_summary(name: str) -> str:
    """Return what a preset is for: the comment at the start of its file."""
    comment = itertools.takewhile(lambda line: line.startswith("#"), preset_text(name).splitlines())
    return " ".join(line.removeprefix("#").strip() for line in comment)


def _read(source: str | Path) -> dict[str, Any]:
    if isinstance(source, str) and source in preset_names():
        return _parsed(preset_text(source), source)
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        raise InputError("scenario", str(source), f"no such file, and {_no_such_preset(str(source))}") from None
    except UnicodeDecodeError:
        raise InputError("scenario", str(source), "cannot be read: it is not a text in UTF-8") from None
    except OSError as error:
        rule = "it is a folder; give a TOML file" if path.is_dir() else f"{error.strerror}"
        raise InputError("scenario", str(source), f"cannot be read: {rule}") from None
    given = {"name": path.stem, **_parsed(text, str(source))}
    for (section, field), names in _PATH_FIELDS.items():
        table = given.get(section)
        if isinstance(table, dict) and isinstance(table.get(field), str):
            from_here = path.parent / table[field]
            if table[field] not in names and from_here.exists():
                given[section] = {**table, field: str(from_here)}
    return given


def _parsed(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text, parse_float=_parse_float)
    except (ValueError, RecursionError) as error:
        raise InputError("scenario", source, f"is not valid TOML: {_syntax_error(str(error), text)}") from None


def _syntax_error(said: str, text: str) -> str:
    """What the parser says, with the line in question, and the usual cause: a text without quotes."""
    said = re.sub(r"\('(.*?)',?\)", lambda found: found[1].replace("', '", "."), said)
    place = re.search(r"at line (\d+)", said)
    lines = text.splitlines()
    if place is None or int(place[1]) > len(lines):
        return said
    line = lines[int(place[1]) - 1].strip()
    key, sign, value = line.partition("=")
    bare = sign and re.match(r"\s*[^\s\"'\[{]", value) and not _is_toml(value)
    return f"{said}: {line}" + (f'; texts need quotes, as in {key.strip()} = "{value.strip()}"' if bare else "")


def _is_toml(value: str) -> bool:
    try:
        tomllib.loads(f"value = {value}")
    except ValueError:
        return False
    return True


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isinf(number) and "inf" not in text:
        raise ValueError(f"{text} is too large; write inf for infinity")
    return number


def parse_change(change: str) -> dict[str, Any]:
    """Return `radio.peak_power=10 mW` as a nested table; a value that is not valid TOML is taken as text."""
    field, sign, text = change.partition("=")
    keys = field.strip().split(".")
    if not sign or not all(keys):
        raise InputError("--set", change, "must have the form section.field=value")
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
    """Return nested tables merged: the changes win, and values other than tables are replaced whole."""
    result = dict(given)
    for key, value in changes.items():
        both_tables = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both_tables else value
    return result


def validated(given: Mapping[str, Any]) -> Scenario:
    """Return the scenario, or raise an error with one line for each invalid field."""
    try:
        return Scenario.model_validate(dict(given))
    except ValidationError as invalid:
        raise SeveralInputsError.joined(_errors(invalid)) from None


def _errors(invalid: ValidationError) -> list[InputError]:
    """All errors, unknown keys first. A key that is missing because it is misspelt is not reported twice."""
    made = [_as_input_error(error) for error in invalid.errors()]
    unknown = [error for error in made if error.rule.startswith(_UNKNOWN)]
    meant = {error.rule.partition(_MEANT)[2].rstrip("?") for error in unknown}
    others = [
        error
        for error in made
        if error not in unknown and not (error.value is NOT_GIVEN and error.field.split(".")[-1] in meant)
    ]
    return [*unknown, *others]


def _as_input_error(error: Any) -> InputError:
    location = list(error["loc"])
    field = ".".join(str(part) for part in location)
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        example = "; airdistill scenarios show quick prints an example" if len(location) == 1 else ""
        return InputError(field, NOT_GIVEN, f"is required{example}")
    if kind == "extra_forbidden":
        return InputError(field, error["input"], _unknown_key_rule(location))
    if kind == "value_error":
        rule = str(context["error"])
    elif kind in ("model_type", "dict_type"):
        rule = f"must be a table, with fields such as {field}.{_known_keys(location)[0]}"
    elif kind == "string_pattern_mismatch":
        usable = re.sub(r"[^\w.-]+", "-", str(error["input"])).strip("-.") or "my-run"
        rule = f"must have letters, digits and - . _ only, and at most 100; use {usable[:99]}"
    else:
        rule = _in_plain_words(error["msg"])
        if kind == "literal_error":
            rule += did_you_mean(error["input"], re.findall("'([^']*)'", context["expected"]))
    return InputError(field, error["input"], rule)


def _in_plain_words(message: str) -> str:
    """A rule of pydantic, in words that need no knowledge of Python."""
    for said, plain in _PLAIN_WORDS.items():
        message = re.sub(said, plain, message)
    return message


def _unknown_key_rule(location: list[int | str]) -> str:
    """Return the rule for an unknown key: the closest known key, or all of them."""
    given, known = str(location[-1]), _known_keys(location[:-1])
    elsewhere = {name: f"{section}.{name}" for section in _known_keys([]) for name in _known_keys([section])}
    meant = did_you_mean(given, known) or (f"{_MEANT}{elsewhere[given]}?" if given in elsewhere else "")
    meant = meant or did_you_mean(given, elsewhere.values())
    if not meant and len(location) == 1:
        section = did_you_mean(given, elsewhere)
        meant = f"{_MEANT}{elsewhere[section.removeprefix(_MEANT).rstrip('?')]}?" if section else ""
    return f"{_UNKNOWN}{meant or '; known keys are ' + ', '.join(known)}"


def _known_keys(section: list[int | str]) -> list[str]:
    model: Any = Scenario
    for part in section:
        if isinstance(part, str):
            annotation = model.model_fields[part].annotation
            model = getattr(annotation, "__args__", (annotation,))[0]
    return list(getattr(model, "model_fields", ()))
