"""Compare: runs side by side."""

from __future__ import annotations

import streamlit as st

from airdistill.report.accuracy_figure import curves_of
from airdistill.report.comparison_page import comparison_page
from airdistill.report.comparison_table import COLUMNS, EPSILON_COLUMNS, LINK_COLUMNS, NOTES, parts_of_table
from airdistill.reproduce.claims import Checked, claims_about
from airdistill.runs.comparison import ComparisonRecord
from airdistill.runs.finding import find_comparisons, find_runs, picked_comparison
from airdistill.web.figures import CHART, curves_figure
from airdistill.web.serving import this_site
from airdistill.web.tables import errors_as_sentences, listed, plain, show_report, show_table

BY_HAND = "runs picked by hand"
_SIGNS = {"holds": ":green[✓ holds]", "does not hold": ":red[✗ does not hold]", "undecided": ":gray[? undecided]"}


def show_compare() -> None:
    root = this_site().runs
    comparisons = {path.relative_to(root).as_posix(): path for path in find_comparisons(root)} if root.is_dir() else {}
    chosen = st.selectbox("Comparison", [*comparisons, BY_HAND], key="comparison", persist_state="session")
    with errors_as_sentences():
        if chosen != BY_HAND:
            record = ComparisonRecord.read(comparisons[chosen])
            _show_missing(record)
            _show_comparison(record)
            _show_report(record)
            return
        ended = {run.name: run.folder for run in find_runs(root) if run.state == "ended"} if root.is_dir() else {}
        names = st.multiselect(
            "Runs", list(ended), key="picked", placeholder="Choose runs that have ended", persist_state="session"
        )
        if not ended:
            st.info("No run has ended yet.", icon=":material/info:")
        elif names:
            _show_comparison(picked_comparison([ended[name] for name in names], root))


def _show_missing(record: ComparisonRecord) -> None:
    missing = len(record.comparison.tasks) - len(record.runs)
    if missing:
        st.info(f"{missing} of {len(record.comparison.tasks)} runs have not ended: they are not shown.")
    if record.failures:
        lines = [f"{task.label}, seed {task.seed}, failed: {reason}" for task, reason in record.failures.items()]
        st.warning(listed(lines))


def _show_comparison(record: ComparisonRecord) -> None:
    if not record.runs:
        return
    curves = curves_of(record)
    for column, (against, title) in zip(
        st.columns(2), {"rounds": "Against rounds", "seconds": "Against uplink time"}.items(), strict=True
    ):
        with column:
            st.subheader(title)
            st.plotly_chart(curves_figure(curves, against), key=f"curves-{against}", config=CHART, alt=title)
    st.subheader("Table")
    results, privacy = parts_of_table(record, (*COLUMNS, *LINK_COLUMNS), EPSILON_COLUMNS)
    show_table(*results)
    show_table(*privacy, note=" ".join(NOTES))
    _show_claims(claims_about(record))


def _show_claims(claims: list[Checked]) -> None:
    st.subheader("Claims")
    if not claims:
        st.caption("None of the paper's claims is about these schemes.")
    for claim in claims:
        st.markdown(f"**{_SIGNS[claim.verdict]}**  {plain(claim.statement)}")
        st.caption(plain(f"{claim.source}. {claim.numbers}"))


def _show_report(record: ComparisonRecord) -> None:
    if record.runs and st.toggle("Show the report"):
        show_report(comparison_page(record), record.folder.name)
