import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airdistill.units import hertz, metres, rounded_up, seconds, watts, with_prefix


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (watts, "1 mW", 1e-3),
        (watts, "5e-15 W", 5e-15),
        (watts, "2.5uW", 2.5e-6),
        (watts, "2 µW", 2e-6),
        (watts, "0 dBm", 1e-3),
        (watts, "30 dBm", 1.0),
        (watts, "-113 dBm", 5.011872336272715e-15),
        (watts, "-10 dBW", 0.1),
        (hertz, "915 MHz", 915e6),
        (hertz, "2.4GHz", 2.4e9),
        (seconds, "3.6 us", 3.6e-6),
        (seconds, "1 ms", 1e-3),
        (metres, "0.5 km", 500.0),
        (metres, " 100 m ", 100.0),
        (metres, 7, 7.0),
        (watts, "3", 3.0),
    ],
)
def test_a_quantity_becomes_its_si_value(parse, text, expected):
    assert parse(text) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("parse", "value", "rule"),
    [
        (watts, "915 MHz", '"MHz" is a unit of frequency'),
        (hertz, "1 mW", '"mW" is a unit of power'),
        (metres, "-3 dBm", '"dBm" is a unit of power'),
        (seconds, "5 m", '"m" is a unit of distance'),
        (watts, "5 parsec", "not a unit of power"),
        (watts, "five mW", "must be a power"),
        (watts, "", "must be a power"),
        (watts, True, "must be a power"),
        (watts, [1], "must be a power"),
        (watts, math.nan, "finite"),
        (watts, math.inf, "finite"),
        (watts, "1e999 W", "finite"),
        (watts, "4000 dBm", "outside the range of any radio"),
    ],
)
def test_an_invalid_quantity_is_rejected_with_its_rule(parse, value, rule):
    with pytest.raises(ValueError, match=rule):
        parse(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0216, "21.6 ms"), (3.6e-4, "360 µs"), (1.0, "1 s"), (0.9999, "1 s"), (7200, "7.2 ks"), (0.0, "0 s")],
)
def test_numbers_are_shown_with_a_prefix(value, text):
    assert with_prefix(value, "s") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.0, "3.00"), (2.9999, "3.00"), (3.004, "3.01"), (3.000000000000001, "3.01"), (0.1, "0.100"),
        (9.999, "10.0"), (99.95, "100"), (1234.5, "1235"), (999999.5, "1e6"), (1234567.0, "1.24e6"), (1e-5, "1e-5"),
        (1.001e-5, "1.01e-5"), (0.00099999, "0.00100"), (0.0, "0"), (math.inf, "∞"), (None, "∞"),
    ],
)  # fmt: skip
def test_an_upper_bound_is_rounded_up(value, text):
    assert rounded_up(value) == text


@given(st.floats(min_value=1e-300, max_value=1e300), st.integers(1, 6))
def test_a_printed_upper_bound_is_never_below_the_value_and_close_to_it(value, digits):
    printed = float(rounded_up(value, digits))
    assert value <= printed <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-15)
    assert rounded_up(printed, digits) == rounded_up(value, digits)
