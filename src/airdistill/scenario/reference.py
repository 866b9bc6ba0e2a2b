"""Descriptions of every scenario field, generated from the model, for the manual, command line and web page."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import annotated_types
import tomli_w
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from airdistill.errors import InputError, did_you_mean
from airdistill.scenario.fields import Kind
from airdistill.scenario.model import Scenario
from airdistill.scenario.per_device import PerDevice
from airdistill.units import with_prefix

REQUIRED, LEFT_OUT = "required", "left out"
_PLAIN_KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text", dict: "tables of fields"}


@dataclass(frozen=True)
class ScenarioField:
    """A field: `name` includes the section; `default` is as in a scenario file, or says that there is none."""

    name: str
    kind: str
    default: str
    description: str


def scenario_fields(model: type[BaseModel] = Scenario) -> tuple[ScenarioField, ...]:
    """Return all fields in the order of the model."""
    return tuple(_fields_of(model, ""))


def fields_by_section(model: type[BaseModel] = Scenario) -> dict[str, tuple[ScenarioField, ...]]:
    """Return the fields by section; fields outside a section have the empty name."""
    sections: dict[str, tuple[ScenarioField, ...]] = {}
    for field in scenario_fields(model):
        section = field.name.partition(".")[0] if "." in field.name else ""
        sections[section] = (*sections.get(section, ()), field)
    return sections


def fields_of_section(section: str) -> tuple[ScenarioField, ...]:
    """Return the fields of a section such as `radio`; an empty name returns all fields."""
    if not section:
        return scenario_fields()
    known = fields_by_section()
    if section not in known:
        meant = did_you_mean(section, known)
        raise InputError("section", section, f"no such section; sections are {', '.join(filter(None, known))}{meant}")
    return known[section]


def _fields_of(model: type[BaseModel], prefix: str) -> Iterator[ScenarioField]:
    hints = get_type_hints(model, include_extras=True)
    for key, field in model.model_fields.items():
        name = prefix + key
        if not field.description:
            raise TypeError(f"{name}: a field of a scenario needs a description")
        hint = _given(hints[key])
        if _is_section(hint):
            yield from _fields_of(hint, f"{name}.")
            continue
        yield ScenarioField(name, _kind(hint, field), _default(hint, field), field.description)
        for entry in get_args(hint):
            if _is_section(entry):
                yield from _fields_of(entry, f"{name}[].")


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseModel)


def _given(hint: Any) -> Any:
    """Return the type of an optional field when it is given."""
    if get_origin(hint) in (Union, types.UnionType):
        kept = [part for part in get_args(hint) if part is not type(None)]
        return kept[0] if len(kept) == 1 else hint
    return hint


def _kind(hint: Any, field: FieldInfo) -> str:
    limits = _limits([rule for rule in field.metadata if isinstance(rule, annotated_types.BaseMetadata)])
    return ", ".join([_in_words(hint), *([limits] if limits else [])])


def _in_words(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        known = _kind_of_alias(hint)
        return known.words if known else _in_words(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) is tuple:
        entries = [_in_words(part) for part in get_args(hint) if part is not ...]
        return f"list of: {entries[0]}" if ... in get_args(hint) else f"[{', '.join(entries)}]"
    if _is_section(hint):
        return "table"
    return _PLAIN_KINDS[get_origin(hint) or hint]


def _kind_of_alias(hint: Any) -> Kind | None:
    return next((part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Kind)), None)


def _limits(rules: list[annotated_types.BaseMetadata]) -> str:
    """Return the bounds of a number in words; a range if both ends are included."""
    bounds = {type(rule): getattr(rule, type(rule).__name__.lower()) for rule in rules if _is_bound(rule)}
    lowest, highest = bounds.get(annotated_types.Ge), bounds.get(annotated_types.Le)
    if lowest is not None and highest is not None:
        return f"from {lowest} to {highest}"
    words = {
        annotated_types.Gt: "above",
        annotated_types.Ge: "at least",
        annotated_types.Lt: "below",
        annotated_types.Le: "at most",
    }
    return ", ".join(f"{words[rule]} {bound}" for rule, bound in bounds.items())


def _is_bound(rule: annotated_types.BaseMetadata) -> bool:
    return isinstance(rule, (annotated_types.Gt, annotated_types.Ge, annotated_types.Lt, annotated_types.Le))


def _default(hint: Any, field: FieldInfo) -> str:
    if field.is_required():
        return REQUIRED
    value = field.get_default(call_default_factory=True)
    if value is None:
        return LEFT_OUT
    if isinstance(value, PerDevice):
        value = value.as_given()
    known = _kind_of_alias(hint)
    return _as_toml(_with_unit(value, known.unit) if known and known.unit else value)


def _with_unit(value: Any, unit: str) -> Any:
    return [_with_unit(each, unit) for each in value] if isinstance(value, list) else with_prefix(value, unit)


def _as_toml(value: Any) -> str:
    if isinstance(value, dict | tuple) and not value:
        return "{}" if isinstance(value, dict) else "[]"
    return " ".join(tomli_w.dumps({"_": value}).removeprefix("_ = ").split()).replace("[ ", "[").replace(", ]", "]")
