"""Text on the page: errors as sentences, and what a user wrote shown as it was written."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import streamlit as st

from airdistill.errors import AirDistillError, DataError

logger = logging.getLogger(__name__)
# What the browser makes links, icons and arrows of when Markdown is done with the text: no backslash helps there, but a
# character that takes no room does.
_TURNED = re.compile(
    r"(https?:(?=//)|www(?=\.)|[\w.+-](?=@)|:(?=material/|streamlit:)|(?<!\S)[<>~-](?=(?:[=>-]|->)(?!\S)))",
    re.IGNORECASE,
)
_JOINER = "\N{WORD JOINER}"
_MARKS = re.compile(r"([\\`*_{}\[\]()#+\-.!|~$:<>&])")


def plain(text: str) -> str:
    """Text in which Markdown finds nothing to do."""
    return _MARKS.sub(r"\\\1", _TURNED.sub(f"\\1{_JOINER}", text))


def listed(lines: Sequence[str]) -> str:
    return "\n".join(f"* {plain(line)}" for line in lines)


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """What fails says so in its place; the rest of the page stays. What nobody foresaw is told in full to the log."""
    try:
        yield
    except AirDistillError as error:
        st.error(plain(str(error)))
    except OSError as error:
        st.error(plain(str(DataError(str(error)))))  # a name in it can be of any length
    except Exception:
        logger.exception("a part of the page failed")
        st.error("This part of the page failed in a way that nobody foresaw; the server's terminal has the details.")
