"""Runs: what a folder holds, live while it trains."""

from __future__ import annotations

import streamlit as st

from airdistill.runs.finding import FoundRun, find_runs
from airdistill.web.run_view import show_run
from airdistill.web.sentences import plain
from airdistill.web.site import RUN, this_site
from airdistill.web.started import is_starting


def show_runs() -> None:
    root = this_site().runs
    found = {run.name: run for run in find_runs(root)} if root.is_dir() else {}
    if not found:
        st.info(
            f"There are no runs in {plain(str(root))} yet. Start one on the page *Plan*, or with `airdistill run`.",
            icon=":material/info:",
        )
        return
    if st.session_state.get(RUN) not in found:
        st.session_state.pop(RUN, None)
    chosen = st.selectbox(
        "Run", list(found), format_func=lambda name: f"{name} · {state_in_words(found[name])}", key=RUN,
        bind="query-params",
    )  # fmt: skip
    show_run(found[chosen])


def state_in_words(run: FoundRun) -> str:
    return "starting" if run.state == "not begun" and is_starting(run.folder) else run.state
