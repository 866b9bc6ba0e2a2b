"""Errors whose message is one line: the field, its value, and the rule that the value breaks."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_MOST_LINES = 10  # of several errors: a list of a thousand devices may have as many faults
_PACKAGE = Path(__file__).parent


class Described(str):
    """The description of a value, shown without quotes in place of the value itself."""


NOT_GIVEN = Described("(not given)")


class AirDistillError(Exception):
    """An error that the user can correct. The command line prints it as one line and exits with code 2."""


class InputError(AirDistillError):
    """A value given by the user breaks a rule."""

    def __init__(self, field: str, value: Any, rule: str) -> None:
        self.field, self.value, self.rule = field, value, rule
        super().__init__(f"{_shortened(Described(field))} = {_shortened(value)}: {_shortened(Described(rule), 300)}")


class SeveralInputsError(InputError):
    """Several values break rules: one line for each. Field, value and rule are those of the first."""

    def __init__(self, errors: Sequence[InputError]) -> None:
        super().__init__(errors[0].field, errors[0].value, errors[0].rule)
        self.errors = tuple(errors)
        more = [f"… and {len(errors) - _MOST_LINES} more"] if len(errors) > _MOST_LINES else []
        self.args = ("\n".join([*map(str, errors[:_MOST_LINES]), *more]),)

    @staticmethod
    def joined(errors: Sequence[InputError]) -> InputError:
        """The error itself if there is one only. What is said twice is kept once."""
        once = list({str(error): error for error in errors}.values())
        return once[0] if len(once) == 1 else SeveralInputsError(once)


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """`; did you mean NAME?` if a known name is close to what was given, in any case and with - for _; or nothing.

    >>> did_you_mean("OTA-FD", ["ota_fd", "ota_fl"]), did_you_mean("x", ["ota_fd"])
    ('; did you mean ota_fd?', '')
    """
    plain = {_plain(name): name for name in known}
    close = difflib.get_close_matches(_plain(str(given)), plain, n=1, cutoff=0.65)
    return f"; did you mean {plain[close[0]]}?" if close else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")


class DataError(AirDistillError):
    """A data file is missing, damaged or of the wrong kind."""

    def __init__(self, message: str) -> None:
        super().__init__(_shortened(Described(message), 500))


def described(error: BaseException) -> str:
    """An exception of a user's own code in one line: its type, its message, and the line of that code it came from."""
    line = f"{type(error).__name__}: {' '.join(str(error).split())}"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(Path(frame.filename))]
    return f"{line} ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else line


def _is_users(file: Path) -> bool:
    """Whether a source file belongs neither to AirDistill nor to an installed package nor to Python itself."""
    installed = file.is_relative_to(_PACKAGE) or "site-packages" in file.parts or not file.is_file()
    return not (installed or file.is_relative_to(Path(traceback.__file__).parent))


def _shortened(value: Any, limit: int = 80) -> str:
    quoted = isinstance(value, str) and not isinstance(value, Described)
    try:
        text = f'"{value}"' if quoted else str(value)
    except ValueError:  # Python refuses to print integers of more than some thousand digits
        text = "(a number too long to be shown)"
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    if not quoted:
        return f"{text[: limit - 1]}…"
    tail = limit // 2  # the end of a path, its file name, says most
    return f"{text[: limit - tail - 1]}…{text[-tail:]}"
