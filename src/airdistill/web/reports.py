"""A report inside the page, made anew from the records: what lies in a folder could be anybody's."""

from __future__ import annotations

import streamlit as st

from airdistill.report.page import Page, render


def show_report(page: Page, name: str) -> None:
    html = render(page)
    st.download_button(
        "Download report", html, f"{name}.html", "text/html", on_click="ignore", icon=":material/download:"
    )
    st.iframe(html, height=900)
