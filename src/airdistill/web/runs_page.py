"""Runs: what a folder holds, live while it trains."""

from __future__ import annotations

import streamlit as st

from airdistill.runs.finding import FoundRun, find_runs
from airdistill.web.address import RUN, named_in_address
from airdistill.web.run_view import show_run
from airdistill.web.sentences import plain
from airdistill.web.site import this_site
from airdistill.web.started import is_starting
from airdistill.web.tables import show_table


def show_runs() -> None:
    root = this_site().runs
    found = {run.name: run for run in find_runs(root)} if root.is_dir() else {}
    if not found:
        st.info(
            f"There are no runs in {plain(str(root))} yet. Start one on the page *Plan*, or with `airdistill run`.",
            icon=":material/info:",
        )
        return
    chosen = _chosen(found)
    show_run(found[chosen])


def _chosen(found: dict[str, FoundRun]) -> str:
    names = list(found)
    named_in_address(RUN, names)
    chosen = st.selectbox("Run", names, key=RUN)
    st.query_params[RUN] = chosen
    with st.expander(f"All {len(names)} of them"):
        show_table(("run", "state"), [(name, state_in_words(run)) for name, run in found.items()])
    return chosen


def state_in_words(run: FoundRun) -> str:
    return "starting" if run.state == "not begun" and is_starting(run.folder) else run.state
