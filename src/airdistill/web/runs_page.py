"""From a plan to a run.

Runs: what a folder holds, live while it trains.
"""

from __future__ import annotations

import streamlit as st

from airdistill import DEFAULT_SCHEME
from airdistill.runs.finding import FoundRun, find_runs
from airdistill.scenario.model import Scenario
from airdistill.web.draft import AS_IT_STANDS, check_names_no_code
from airdistill.web.run_view import show_run
from airdistill.web.serving import this_site
from airdistill.web.started import is_starting, start_run
from airdistill.web.tables import PAGE, RUN, errors_as_sentences, named_in_address, plain, show_table


@st.cache_resource(show_spinner="Loading the schemes")
def scheme_names() -> list[str]:
    from airdistill.schemes.registry import SCHEMES

    return list(SCHEMES)


def show_start_form(scenario: Scenario, scheme: str) -> None:
    site = this_site()
    if site.look_only:
        st.caption("This page is open to the network: runs are started on the machine itself.")
        return
    with st.form("start"):
        names = scheme_names()
        asked = DEFAULT_SCHEME if scheme == AS_IT_STANDS else scheme
        chosen = st.selectbox("Scheme", names, names.index(asked))
        left, right = st.columns(2)
        rounds = left.number_input("Rounds", 0, 10**6, 0, help="0: as planned for that scheme.")
        evaluated = right.number_input("Evaluated every so many rounds", 1, 10**6, 5, help="Accuracy and knowledge.")
        started = st.form_submit_button("Start a run", icon=":material/play_arrow:", type="primary")
    if started:
        with errors_as_sentences():
            check_names_no_code(scenario)
            folder = start_run(site.runs, scenario, chosen, int(rounds) or None, int(evaluated))
            st.success(plain(f"{folder.name} was started; it goes on when this page is closed."))
            name = folder.relative_to(site.runs).as_posix()
            st.button("Watch it", icon=":material/monitoring:", on_click=_watch, args=(name,))


def _watch(name: str) -> None:
    st.session_state[PAGE], st.session_state[RUN] = "Runs", name


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
