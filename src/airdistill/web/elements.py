"""Elements that all pages share: escaped text, error messages, tables, reports, and the page's address."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import streamlit as st

from airdistill.errors import AirDistillError, DataError
from airdistill.report.page import Page, render

logger = logging.getLogger(__name__)
PAGE, RUN = "page", "run"  # names in the page's address, and keys of the widgets that set them
_METRIC_PX = 170  # two of this width fit next to each other on a phone
_LONG = 12  # a longer value needs a box of its own width

# The browser turns these into links, icons and arrows after Markdown is done. A backslash does not prevent this; an
# invisible character does.
_CONVERTED = re.compile(
    r"(https?:(?=//)|www(?=\.)|[\w.+-](?=@)|:(?=material/|streamlit:)|(?<!\S)[<>~-](?=(?:[=>-]|->)(?!\S)))",
    re.IGNORECASE,
)
_JOINER = "\N{WORD JOINER}"
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|~$:<>&])")


def plain(text: str) -> str:
    """Escape text: Markdown and the browser show it as it is."""
    return _MARKDOWN.sub(r"\\\1", _CONVERTED.sub(f"\\1{_JOINER}", text))


def listed(lines: Sequence[str]) -> str:
    """A Markdown list of escaped lines."""
    return "\n".join(f"* {plain(line)}" for line in lines)


@contextmanager
def errors_shown() -> Iterator[None]:
    """Show an error in place of the part that failed; the rest of the page stays. Log unexpected ones in full."""
    try:
        yield
    except AirDistillError as error:
        st.error(plain(str(error)))
    except OSError as error:
        st.error(plain(str(DataError(str(error)))))  # shortened: a file name can be of any length
    except Exception:
        logger.exception("a part of the page failed")
        st.error("This part of the page failed unexpectedly. The server's terminal shows the details.")


def show_metrics(metrics: Sequence[tuple[str, str]]) -> None:
    """Show labels and values in boxes next to each other."""
    with st.container(horizontal=True):
        for label, value in metrics:
            st.metric(label, value, border=True, width="content" if len(value) > _LONG else _METRIC_PX)


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> None:
    """Show a table as text that can be copied. The first column names the rows; the others are numbers."""
    alignment = [":---", *["---:"] * (len(columns) - 1)]
    st.markdown("\n".join([_row(columns), f"| {' | '.join(alignment)} |", *map(_row, rows)]))
    if note:
        st.caption(plain(note))


def show_facts(rows: Sequence[tuple[str, str]]) -> None:
    """Show a table of labels and values."""
    st.markdown("\n".join(["| | |", "| :--- | :--- |", *(_row((label.strip(), text)) for label, text in rows)]))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(plain(cell) for cell in cells)} |"


def show_report(page: Page, name: str) -> None:
    """Show a report with a download button.

    It is rendered from the records. A report file in a folder is not shown, because anyone may have written it.
    """
    html = render(page)
    st.download_button(
        "Download report", html, f"{name}.html", "text/html", on_click="ignore", icon=":material/download:"
    )
    st.iframe(html, height=900)


def select_from_address(key: str, names: list[str]) -> None:
    """Initialise the widget `key`: the earlier choice, else the one in the page's address, else the first name."""
    if st.session_state.get(key) not in names:
        named = st.query_params.get(key)
        st.session_state[key] = named if named in names else names[0]
