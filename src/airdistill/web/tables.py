"""Tables on the page: text, which a reader can copy."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from airdistill.web.sentences import plain


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
