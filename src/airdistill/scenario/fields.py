"""Types of scenario fields: how a value is parsed, and the rule that it must satisfy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, GetCoreSchemaHandler, PlainValidator
from pydantic_core import CoreSchema, core_schema

from airdistill.errors import did_you_mean
from airdistill.scenario.per_device import PerDevice, parse_per_device
from airdistill.units import (
    decibels,
    decibels_isotropic,
    hertz,
    metres,
    power_gain,
    seconds,
    watts,
    watts_per_hertz,
)

Parser = Callable[[Any], float]

# Wider than any radio, network or dataset needs, and narrow enough that products of a few numbers do not overflow.
LARGEST, SMALLEST = 1e30, 1e-30
_REFERENCE = r"[\w.]+:\w+"
LARGEST_COUNT = 10**9
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-12, 1e6
SMALLEST_DELTA = 1e-100
THERMAL = "thermal"


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("must be a number")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError(f"must lie between {SMALLEST:g} and {LARGEST:g}")
    if math.isnan(value):
        raise ValueError("must be a number")
    return float(value)


def _bounded(parse: Parser) -> Parser:
    def check(value: Any) -> float:
        number = parse(value)
        if math.isinf(number):
            raise ValueError("must be a finite number")
        if number != 0 and not SMALLEST <= abs(number) <= LARGEST:
            raise ValueError(f"must lie between {SMALLEST:g} and {LARGEST:g}")
        return number

    return check


def _positive(parse: Parser) -> Parser:
    def check(value: Any) -> float:
        number = parse(value)
        if not number > 0:
            raise ValueError("must be greater than 0")
        return number

    return check


def _not_negative(parse: Parser) -> Parser:
    def check(value: Any) -> float:
        number = parse(value)
        if number < 0:
            raise ValueError("must not be negative")
        return number

    return check


def _sample_count(value: Any) -> float:
    number = _bounded(_number)(value)
    if not 1 <= number <= LARGEST_COUNT or number != int(number):
        raise ValueError(
            f"must be a whole number of samples from 1 to {LARGEST_COUNT}; devices without data are rejected"
        )
    return number


def _epsilon(value: Any) -> float:
    if isinstance(value, str) and value != "inf":
        raise ValueError("must be a number above 0, such as 8, or inf for no privacy")
    number = _positive(_number)(math.inf if value == "inf" else value)
    if not (math.isinf(number) or SMALLEST_EPSILON <= number <= LARGEST_EPSILON):
        raise ValueError(f"must lie between {SMALLEST_EPSILON:g} and {LARGEST_EPSILON:g}, or be inf")
    return number


def _delta(value: Any) -> float:
    if isinstance(value, str):
        raise ValueError("must be a number strictly between 0 and 1, such as 1e-5")
    number = _number(value)
    if not 0 < number < 1:
        raise ValueError("must lie strictly between 0 and 1")
    if number < SMALLEST_DELTA:
        raise ValueError(f"must be at least {SMALLEST_DELTA:g}")
    return number


def _rounds(value: Any) -> int | str:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST_COUNT
    if not is_count and value not in ("optimal", "paper"):
        raise ValueError(f'must be "optimal", "paper" or a whole number from 1 to {LARGEST_COUNT}')
    return value  # type: ignore[no-any-return]


def _features(value: Any) -> int | str:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST_COUNT
    if not is_count and value != "auto":
        raise ValueError(f'must be "auto" or a whole number from 1 to {LARGEST_COUNT}')
    return value  # type: ignore[no-any-return]


def _truncation(value: Any) -> float | str:
    return "optimal" if value == "optimal" else _not_negative(_bounded(power_gain))(value)


def _receiver_noise(value: Any) -> float | None:
    return None if value is None or value == THERMAL else _not_negative(_bounded(watts))(value)


def _name(value: Any) -> Any:
    """A name that consists of digits is a number on the command line."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _named(*names: str) -> Callable[[Any], str]:
    """A parser for one of these names, or for a user's own class as `package.module:Class`."""

    def check(value: Any) -> Any:
        if not isinstance(value, str) or (value not in names and not re.fullmatch(_REFERENCE, value)):
            rule = f"must be one of {', '.join(names)}, or your own as package.module:Class"
            raise ValueError(f"{rule}{did_you_mean(value, names)}")
        return value

    return check


class _PerDeviceRule:
    """A pydantic annotation: parses a `PerDevice` with `parse_one` for its entries, and writes it as it was given."""

    def __init__(self, parse_one: Parser) -> None:
        self._parse_one = parse_one

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: parse_per_device(value, self._parse_one),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.as_given()),
        )


@dataclass(frozen=True)
class Kind:
    """The description of a type, which the manual and `airdistill scenarios fields` print."""

    words: str
    unit: str = ""  # of numbers that are given without a unit
    choices: tuple[str, ...] = ()  # names that a user's own class can stand in for


def _own_or(*names: str) -> Kind:
    return Kind(f"one of {', '.join(names)}, or package.module:Class", choices=names)


_ABOVE_0, _FROM_0, _EACH = "above 0", "0 or more", "for each device"

Number = Annotated[float, BeforeValidator(_bounded(_number)), Kind("number")]
Positive = Annotated[float, BeforeValidator(_positive(_bounded(_number))), Kind(f"number {_ABOVE_0}")]
NotNegative = Annotated[float, BeforeValidator(_not_negative(_bounded(_number))), Kind(f"number, {_FROM_0}")]
Power = Annotated[float, BeforeValidator(_not_negative(_bounded(watts))), Kind(f"W, {_FROM_0}", "W")]
Frequency = Annotated[float, BeforeValidator(_positive(_bounded(hertz))), Kind(f"Hz, {_ABOVE_0}", "Hz")]
Length = Annotated[float, BeforeValidator(_positive(_bounded(metres))), Kind(f"m, {_ABOVE_0}", "m")]
Time = Annotated[float, BeforeValidator(_positive(_bounded(seconds))), Kind(f"s, {_ABOVE_0}", "s")]
Duration = Annotated[float, BeforeValidator(_not_negative(_bounded(seconds))), Kind(f"s, {_FROM_0}", "s")]
Offset = Annotated[float, BeforeValidator(_not_negative(_bounded(hertz))), Kind(f"Hz, {_FROM_0}", "Hz")]
ReceiverNoisePower = Annotated[
    float | None, PlainValidator(_receiver_noise), Kind(f'W, {_FROM_0}, or "{THERMAL}"', "W")
]
NoiseDensity = Annotated[
    float, BeforeValidator(_positive(_bounded(watts_per_hertz))), Kind(f"W/Hz, {_ABOVE_0}", "W/Hz")
]
PositivePower = Annotated[float, BeforeValidator(_positive(_bounded(watts))), Kind(f"W, {_ABOVE_0}", "W")]
Decibels = Annotated[float, BeforeValidator(_bounded(decibels)), Kind("dB", "dB")]
AntennaGain = Annotated[float, BeforeValidator(_bounded(decibels_isotropic)), Kind("dBi", "dBi")]
BandName = Annotated[Literal["868", "915", "2400"], BeforeValidator(_name), Kind("one of 868, 915, 2400")]
Truncation = Annotated[
    Literal["optimal"] | float, PlainValidator(_truncation), Kind(f'power gain, {_FROM_0}, or "optimal"')
]
_SAMPLING = ("none", "with_replacement", "cyclic")
_TRUST = ("receiver_noise", "fleet_noise", "own_noise", "trusted_aggregator")
_RECEIVERS = ("linear", "projected", "tracking", "learning")
Sampling = Annotated[str, PlainValidator(_named(*_SAMPLING)), _own_or(*_SAMPLING)]
Trust = Annotated[str, PlainValidator(_named(*_TRUST)), _own_or(*_TRUST)]
Receiver = Annotated[str, PlainValidator(_named(*_RECEIVERS)), _own_or(*_RECEIVERS)]
Features = Annotated[
    Literal["auto"] | int,
    PlainValidator(_features),
    Kind('"auto" or a whole number, at least 1'),
]
Rounds = Annotated[
    Literal["optimal", "paper"] | int,
    PlainValidator(_rounds),
    Kind('"optimal", "paper" or a whole number, at least 1'),
]

WattsPerDevice = Annotated[PerDevice, _PerDeviceRule(_positive(_bounded(watts))), Kind(f"W, {_ABOVE_0}, {_EACH}", "W")]
MetresPerDevice = Annotated[
    PerDevice, _PerDeviceRule(_positive(_bounded(metres))), Kind(f"m, {_ABOVE_0}, {_EACH}", "m")
]
EpsilonPerDevice = Annotated[PerDevice, _PerDeviceRule(_epsilon), Kind(f"number {_ABOVE_0}, or inf, {_EACH}")]
DeltaPerDevice = Annotated[PerDevice, _PerDeviceRule(_delta), Kind(f"number between 0 and 1, {_EACH}")]
SamplesPerDevice = Annotated[PerDevice, _PerDeviceRule(_sample_count), Kind(f"whole number, at least 1, {_EACH}")]
