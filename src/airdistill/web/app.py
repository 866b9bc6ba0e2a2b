"""The script that Streamlit runs from top to bottom at every interaction: three pages and the choice between them."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from airdistill.web.compare_page import show_compare
from airdistill.web.elements import PAGE, errors_shown, select_from_address
from airdistill.web.plan_page import show_plan
from airdistill.web.runs_page import show_runs

_PAGES = {"Plan": show_plan, "Runs": show_runs, "Compare": show_compare}
# Streamlit reserves space for a toolbar that this page does not have. Wide tables scroll on their own.
_STYLE = """<style>
.stMainBlockContainer {padding-top: 3.2rem; padding-bottom: 3rem}
.stMarkdown table {display: block; overflow-x: auto; white-space: nowrap}
</style>"""


def show() -> None:
    """Draw the page that the visitor has chosen."""
    st.set_page_config("AirDistill", str(Path(__file__).with_name("icon.svg")), layout="wide")
    st.html(_STYLE)
    # Streamlit's own navigation is out of sight on a phone, and its addresses make a browser request missing files.
    select_from_address(PAGE, list(_PAGES))
    picked = st.segmented_control("Page", list(_PAGES), required=True, key=PAGE, label_visibility="collapsed")
    chosen = st.query_params[PAGE] = picked or "Plan"
    with errors_shown():
        _PAGES[chosen]()


show()
