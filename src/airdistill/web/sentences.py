"""Text on the page: errors as sentences, and what a user wrote shown as it was written."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import streamlit as st

from airdistill.errors import AirDistillError

logger = logging.getLogger(__name__)
_MARKS = re.compile(r"([\\`*_{}\[\]()#+\-.!|~$:<>&])")


def plain(text: str) -> str:
    """Text in which Markdown finds nothing to do."""
    return _MARKS.sub(r"\\\1", text)


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
        st.error(plain(" ".join(str(error).split())))
    except Exception:
        logger.exception("a part of the page failed")
        st.error("This part of the page failed in a way that nobody foresaw; the server's terminal has the details.")
