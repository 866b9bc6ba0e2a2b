"""The three pages and the way between them."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from airdistill.web.compare_page import show_compare
from airdistill.web.plan_page import show_plan
from airdistill.web.runs_page import show_runs
from airdistill.web.tables import PAGE, errors_as_sentences, named_in_address

_PAGES = {"Plan": show_plan, "Runs": show_runs, "Compare": show_compare}


def show() -> None:
    st.set_page_config("AirDistill", str(Path(__file__).with_name("icon.svg")), layout="wide")
    st.html(_STYLE)
    # Not Streamlit's own navigation: a phone hides it, and at its addresses a browser asks for what is not there.
    named_in_address(PAGE, list(_PAGES))
    picked = st.segmented_control("Page", list(_PAGES), required=True, key=PAGE, label_visibility="collapsed")
    chosen = st.query_params[PAGE] = picked or "Plan"
    with errors_as_sentences():
        _PAGES[chosen]()


# The head of the page is kept free for a toolbar that is not there; a wide table scrolls by itself.
_STYLE = """<style>
.stMainBlockContainer {padding-top: 3.2rem; padding-bottom: 3rem}
.stMarkdown table {display: block; overflow-x: auto; white-space: nowrap}
</style>"""
