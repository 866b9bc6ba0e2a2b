"""Grids of scenario fields: `--over privacy.epsilon=1,2,4` on the command line, or a TOML file of lists.

>>> grid = parsed_grid(["privacy.epsilon=1,2", 'radio.peak_power=1 mW,10 mW'])
>>> [label_of(point) for point in grid.points()]
['epsilon=1,peak_power=1mW', 'epsilon=1,peak_power=10mW', 'epsilon=2,peak_power=1mW', 'epsilon=2,peak_power=10mW']
"""

from __future__ import annotations

import itertools
import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airdistill.errors import AirDistillError, InputError
from airdistill.scenario.loading import changed, merged, parse_change, validated
from airdistill.scenario.model import Scenario

Point = dict[str, Any]  # the value of every field of a grid, by the field's full name
OVER, OVER_FILE = "--over", "--over-file"
_LONGEST_VALUE = 24  # letters of a value in a label, which names a folder
_OPENING, _CLOSING = "[{", "]}"
_NOT_SWEPT = {
    "name": "it changes nothing",
    "seed": "use --seeds",
    "overrides": "name a field, as overrides.ota_fl.FIELD",
}


@dataclass(frozen=True)
class Grid:
    """Fields with the values that each takes; a grid without fields has one point, the scenario as it is."""

    axes: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def __post_init__(self) -> None:
        fields = [field for field, _ in self.axes]
        for field, values in self.axes:
            if fields.count(field) > 1:
                raise InputError(OVER, field, "is given twice")
            if field in _NOT_SWEPT:
                raise InputError(OVER, field, f"cannot be swept: {_NOT_SWEPT[field]}")
            if not values:
                raise InputError(OVER, field, "has no value")
            if any(value in values[:index] for index, value in enumerate(values)):
                raise InputError(OVER, field, f"has a value twice: {', '.join(map(str, values))}")

    @classmethod
    def of(cls, over: Mapping[str, Sequence[Any]]) -> Grid:
        """Return the grid of a dictionary from fields to their values."""
        for field, values in over.items():
            if isinstance(values, str) or not isinstance(values, Sequence):
                raise InputError(OVER, field, f"needs a list of values, not {values!r}")
        return cls(tuple((field, tuple(values)) for field, values in over.items()))

    def points(self) -> Iterator[Point]:
        """All combinations; the last field varies fastest."""
        fields = [field for field, _ in self.axes]
        for values in itertools.product(*(values for _, values in self.axes)):
            yield dict(zip(fields, values, strict=True))


def parsed_grid(over: Sequence[str], file: Path | None = None) -> Grid:
    """Return the grid of the options `--over FIELD=A,B` and of the file that `--over-file` names."""
    given = [_parsed_axis(text) for text in over]
    return Grid((*given, *([] if file is None else _axes_of_file(file))))


def _parsed_axis(text: str) -> tuple[str, tuple[Any, ...]]:
    field, sign, values = text.partition("=")
    field = field.strip()
    if not sign or not all(field.split(".")):
        raise InputError(OVER, text, "must have the form section.field=value,value")
    parts = [part.strip() for part in _split(values)]
    if not all(parts):
        raise InputError(OVER, text, "contains an empty value")
    return field, tuple(_value_at(parse_change(f"{field}={part}"), field) for part in parts)


def _split(text: str) -> Iterator[str]:
    """Split at the commas that are outside brackets and quotes."""
    depth, quote, start = 0, "", 0
    for index, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    yield text[start:]


def _axes_of_file(path: Path) -> list[tuple[str, tuple[Any, ...]]]:
    """Read a TOML file whose entries are lists of values, nested like a scenario."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(OVER_FILE, str(path), f"cannot be read: {error}") from None
    found: list[tuple[str, tuple[Any, ...]]] = []
    for field, value in _leaves(tables):
        if not isinstance(value, list):
            raise InputError(OVER_FILE, str(path), f"{field} must be a list of values, as in {field} = [1, 2]")
        found.append((field, tuple(value)))
    if not found:
        raise InputError(OVER_FILE, str(path), "has no field")
    return found


def _leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield above + key, value


def _value_at(table: Mapping[str, Any], field: str) -> Any:
    value: Any = table
    for key in field.split("."):
        value = value[key]
    return value


def at_point(scenario: Scenario, point: Point) -> Scenario:
    """Return the scenario at a point of a grid, for every scheme alike: overrides of a grid's fields are left out."""
    if not point:
        return scenario
    given = scenario.model_dump(mode="python")
    overrides = given["overrides"]
    for field, value in point.items():
        keys = field.split(".")
        overrides = {scheme: _without(changes, keys) for scheme, changes in overrides.items()}
        for key in reversed(keys):
            value = {key: value}
        given = merged({**given, "overrides": overrides}, value)
        overrides = given["overrides"]
    with said_where(label_of(point)):
        return changed(validated(given), {})


def overridden(scenario: Scenario, point: Point) -> list[str]:
    """The overrides of schemes that a grid replaces."""
    return [
        f"overrides.{scheme}.{field}"
        for scheme, changes in scenario.overrides.items()
        for field in point
        if _without(changes, field.split(".")) != changes
    ]


def _without(table: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """A nested table without the entry at these keys; tables that are empty then are left out."""
    rest = dict(table)
    if len(keys) == 1:
        rest.pop(keys[0], None)
    elif isinstance(rest.get(keys[0]), Mapping):
        below = _without(rest.pop(keys[0]), keys[1:])
        rest |= {keys[0]: below} if below else {}
    return rest


@contextmanager
def said_where(where: str) -> Iterator[None]:
    """Add to an error the point of the grid, or the run, that it is about."""
    try:
        yield
    except InputError as error:
        raise InputError(error.field, error.value, f"{error.rule} (at {where})") from None
    except AirDistillError as error:
        raise AirDistillError(f"{error} (at {where})") from None


def short_names(fields: Sequence[str]) -> dict[str, str]:
    """The last part of every field's name, or the whole name if two fields would have the same."""
    last = [field.rpartition(".")[2] for field in fields]
    return {field: short if last.count(short) == 1 else field for field, short in zip(fields, last, strict=True)}


def label_of(point: Point) -> str:
    """Return a point as a text that can be part of a folder's name."""
    names = short_names(list(point))
    return ",".join(f"{names[field]}={_as_text(value)}" for field, value in point.items())


def _as_text(value: Any) -> str:
    """Return a value in letters that every file system allows."""
    text = (
        f"{value:g}" if isinstance(value, float) and math.isclose(value, float(f"{value:g}"), rel_tol=0) else str(value)
    )
    text = re.sub(r"[^\w.+-]+", "_", text.replace(" ", "")).strip("_")
    return text if len(text) <= _LONGEST_VALUE else text[-_LONGEST_VALUE:]


def cells_of(point: Point) -> dict[str, Any]:
    """Return the values of a point as cells of a table: numbers and texts as they are, others as JSON."""
    return {
        field: value if isinstance(value, str | int | float) else json.dumps(value, default=str)
        for field, value in point.items()
    }


def over_options(points: Iterable[Point]) -> list[str]:
    """Return the options `--over` that give these points."""
    values: dict[str, list[str]] = {}
    for point in points:
        for field, value in point.items():
            text = _inline_toml(value)
            if text not in values.setdefault(field, []):
                values[field].append(text)
    return [f"{field}={','.join(texts)}" for field, texts in values.items()]


def _inline_toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_inline_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else str(value)
