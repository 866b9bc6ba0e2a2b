"""Text on the page: errors as sentences, and what a user wrote shown as it was written.

Tables on the page: text, which a reader can copy.

A report inside the page, made anew from the records: what lies in a folder could be anybody's.

What an address of the page says: which page, and which run.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import streamlit as st

from airdistill.errors import AirDistillError, DataError
from airdistill.report.page import Page, render

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


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> None:
    """The first column names the rows; the others are numbers."""
    marks = [":---", *["---:"] * (len(columns) - 1)]
    st.markdown("\n".join([_row(columns), f"| {' | '.join(marks)} |", *map(_row, rows)]))
    if note:
        st.caption(plain(note))


def show_facts(rows: Sequence[tuple[str, str]]) -> None:
    """Labels and values."""
    st.markdown("\n".join(["| | |", "| :--- | :--- |", *(_row((label.strip(), text)) for label, text in rows)]))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(plain(cell) for cell in cells)} |"


def show_report(page: Page, name: str) -> None:
    html = render(page)
    st.download_button(
        "Download report", html, f"{name}.html", "text/html", on_click="ignore", icon=":material/download:"
    )
    st.iframe(html, height=900)


PAGE, RUN = "page", "run"


def named_in_address(what: str, names: list[str]) -> None:
    """What a widget of that key starts from: what was chosen before, what the page's address names, or the first."""
    if st.session_state.get(what) not in names:
        asked = st.query_params.get(what)
        st.session_state[what] = asked if asked in names else names[0]
