"""From a plan to a run."""

from __future__ import annotations

import streamlit as st

from airdistill import DEFAULT_SCHEME
from airdistill.scenario.model import Scenario
from airdistill.web.address import PAGE, RUN
from airdistill.web.draft import AS_IT_STANDS, check_names_no_code
from airdistill.web.sentences import errors_as_sentences, plain
from airdistill.web.site import this_site
from airdistill.web.started import start_run


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
