"""Convert quantities with units to SI numbers: "1 mW", "-113 dBm", "915 MHz", "3.6 us", "0.5 km".

>>> watts("1 mW")
0.001
>>> round(10 * math.log10(watts("-113 dBm") / 1e-3))
-113
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

_PREFIXES = {
    "f": 1e-15, "p": 1e-12, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "m": 1e-3, "": 1.0,
    "k": 1e3, "M": 1e6, "G": 1e9,
}  # fmt: skip
_DECIBEL_REFERENCE_W = {"dBm": 1e-3, "dBW": 1.0}
_KIND_OF_UNIT = {"W": "power", "Hz": "frequency", "s": "time", "m": "distance"}
_EXAMPLES = {
    "power gain": "-100 dB", "power": "1 mW", "frequency": "915 MHz", "time": "3.6 us", "distance": "100 m",
    "noise density": "-168 dBm/Hz", "level in dB": "6 dB", "antenna gain": "3 dBi",
}  # fmt: skip
_COMMON_PREFIXES = ("n", "u", "m", "", "k", "M", "G")
_UNITS_IN_FULL = "(watt|hertz|second|sec|metre|meter)s?$"
_SYMBOLS = {"wat": "W", "her": "Hz", "sec": "s", "met": "m"}
_QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*")


def parse_quantity(value: Any, kind: str) -> float:
    """Return the SI value of a text with a unit of this kind; numbers without a unit are SI values already.

    Raises ValueError with the rule that the value breaks.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(_rule(kind))
    if isinstance(value, (int, float)):
        return _finite(float(value) if abs(value) < 1e300 else math.inf)
    match = _QUANTITY.fullmatch(value)
    if match is None:
        comma = re.fullmatch(r"\s*([-+]?\d+),(\d+)(\s*\S*)\s*", value)
        raise ValueError(_rule(kind) + (f'; did you mean "{comma[1]}.{comma[2]}{comma[3]}"?' if comma else ""))
    number, unit = _finite(float(match[1])), match[2]
    if unit == "":
        return number
    return _finite(_to_si(number, unit, kind))


def _to_si(number: float, unit: str, kind: str) -> float:
    if unit == "dB" or unit in _DECIBEL_REFERENCE_W:
        _check_kind("power gain" if unit == "dB" else "power", kind, unit)
        if abs(number) > 3000:  # 10**308 is the largest float
            raise ValueError(f"{number:g} {unit} is outside the range of any radio")
        return float(_DECIBEL_REFERENCE_W.get(unit, 1.0) * 10.0 ** (number / 10.0))
    for symbol, found_kind in _KIND_OF_UNIT.items():
        prefix = unit.removesuffix(symbol)
        if prefix != unit and prefix in _PREFIXES:
            _check_kind(found_kind, kind, unit)
            return number * _PREFIXES[prefix]
    raise ValueError(f'"{unit}" is not a unit of {kind}; {_rule(kind)}{_meant(unit, kind)}')


def _meant(unit: str, kind: str) -> str:
    """`; did you mean UNIT?` for a unit of this kind in another case or in full: mw, Mhz, watts, sec."""
    symbols = [symbol for symbol, of in _KIND_OF_UNIT.items() if of == kind]
    known = [prefix + symbol for symbol in symbols for prefix in _COMMON_PREFIXES if symbol != "Hz" or prefix in "kMG"]
    known += list(_DECIBEL_REFERENCE_W) if kind == "power" else ["dB"] if kind == "power gain" else []
    full = re.sub(_UNITS_IN_FULL, lambda found: _SYMBOLS[found[1][:3].lower()], unit, flags=re.IGNORECASE)
    close = [name for name in known if name.lower() == full.lower()]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _check_kind(found: str, wanted: str, unit: str) -> None:
    if found != wanted:
        raise ValueError(f'"{unit}" is a unit of {found}; {_rule(wanted)}')


def _rule(kind: str) -> str:
    return f'must be {"an" if kind[0] in "aeiou" else "a"} {kind} such as "{_EXAMPLES[kind]}"'


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def watts(value: Any) -> float:
    """Return a power in W."""
    return parse_quantity(value, "power")


def power_gain(value: Any) -> float:
    """Return the power gain |h|² of a channel, given as a number or in dB."""
    return parse_quantity(value, "power gain")


def hertz(value: Any) -> float:
    """Return a frequency in Hz."""
    return parse_quantity(value, "frequency")


def seconds(value: Any) -> float:
    """Return a time in s."""
    return parse_quantity(value, "time")


def metres(value: Any) -> float:
    """Return a distance in m."""
    return parse_quantity(value, "distance")


def watts_per_hertz(value: Any) -> float:
    """Return a noise density in W/Hz.

    >>> watts_per_hertz("-174 dBm/Hz") == watts("-174 dBm")
    True
    """
    if isinstance(value, str) and value.rstrip().endswith("/Hz"):
        try:
            return watts(value.rstrip().removesuffix("/Hz"))
        except ValueError:
            raise ValueError(_rule("noise density")) from None
    density = parse_quantity(value, "noise density")
    if density < 0:
        raise ValueError('is in W/Hz and must be greater than 0; decibels need their unit, as in "-168 dBm/Hz"')
    return density


def decibels(value: Any) -> float:
    """Return a level in dB, given as a number or with its unit.

    >>> decibels("6 dB"), decibels(6)
    (6.0, 6.0)
    """
    return _without_unit(value, "dB", "level in dB")


def decibels_isotropic(value: Any) -> float:
    """Return an antenna gain in dBi, given as a number or with its unit."""
    return _without_unit(value, "dBi", "antenna gain")


def _without_unit(value: Any, unit: str, kind: str) -> float:
    """Return a number in decibels, whose unit may be written behind it."""
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if match is None or match[2] not in ("", unit):
            raise ValueError(_rule(kind))
        return _finite(float(match[1]))
    return parse_quantity(value, kind)


def with_prefix(value: float, unit: str) -> str:
    """Return a number with three digits and an SI prefix.

    >>> with_prefix(0.0216, "s")
    '21.6 ms'
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}"
    steps = [
        ("f", 1e-15),
        ("p", 1e-12),
        ("n", 1e-9),
        ("µ", 1e-6),
        ("m", 1e-3),
        ("", 1.0),
        ("k", 1e3),
        ("M", 1e6),
    ]
    prefix, scale = next((s for s in reversed(steps) if abs(value) >= s[1] * 0.9995), steps[0])
    return f"{value / scale:.3g} {prefix}{unit}"


def rounded_up(value: float | None, digits: int = 3) -> str:
    """Format an upper bound, such as ε or δ, with so many digits that the text is never below the value.

    None means infinity, as in JSON. The shortest decimal that restores the number is rounded: 3.0 is 3.00, not 3.01.

    >>> rounded_up(3.0), rounded_up(3.004), rounded_up(2.9999), rounded_up(1e-5), rounded_up(1234.5)
    ('3.00', '3.01', '3.00', '1e-5', '1235')
    """
    if value is None or math.isinf(value):
        return "∞"
    exact = Decimal(repr(float(value)))
    if exact == 0:
        return "0"
    kept = exact.adjusted() + 1 if exact < 10**6 else 0  # no digit before the point is lost below a million
    up = Context(prec=max(digits, kept), rounding=ROUND_CEILING).create_decimal(exact)
    if -3 <= up.adjusted() < 6:
        return f"{up:.{max(0, digits - 1 - up.adjusted())}f}"
    mantissa, exponent = f"{up:.{digits - 1}e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"
