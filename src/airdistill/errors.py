"""What goes wrong, said in one line that names the field, its value and the rule it breaks."""

from __future__ import annotations

from typing import Any


class Described(str):
    """Stands for a value that is better described than printed; it is shown without quotes."""


NOT_GIVEN = Described("(not given)")


class AirDistillError(Exception):
    """Anything that a user can put right. The command line prints it as one line and exits with 2."""


class InputError(AirDistillError):
    """A value that the user gave breaks a rule."""

    def __init__(self, field: str, value: Any, rule: str) -> None:
        self.field, self.value, self.rule = field, value, rule
        super().__init__(f"{_shortened(Described(field))} = {_shortened(value)}: {_shortened(Described(rule), 300)}")


class DataError(AirDistillError):
    """A file that should hold data does not."""

    def __init__(self, message: str) -> None:
        super().__init__(_shortened(Described(message), 500))


def _shortened(value: Any, limit: int = 80) -> str:
    quoted = isinstance(value, str) and not isinstance(value, Described)
    try:
        text = f'"{value}"' if quoted else str(value)
    except ValueError:  # Python writes out no whole number of more than some thousand digits
        text = "(a number too long to be shown)"
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    if not quoted:
        return f"{text[: limit - 1]}…"
    tail = limit // 2  # a file's name stands at the end of its path
    return f"{text[: limit - tail - 1]}…{text[-tail:]}"
