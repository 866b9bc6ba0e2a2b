"""What an address of the page says: which page, and which run."""

from __future__ import annotations

import streamlit as st

PAGE, RUN = "page", "run"


def named_in_address(what: str, names: list[str]) -> None:
    """What a widget of that key starts from: what was chosen before, what the page's address names, or the first."""
    if st.session_state.get(what) not in names:
        asked = st.query_params.get(what)
        st.session_state[what] = asked if asked in names else names[0]
