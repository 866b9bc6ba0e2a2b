"""The page Compare: a stored comparison, or selected runs as one comparison."""

from __future__ import annotations

import streamlit as st

from airdistill.report.comparison import (
    COLUMNS,
    EPSILON_COLUMNS,
    LINK_COLUMNS,
    comparison_page,
    curves_of,
    notes_of,
    parts_of_table,
)
from airdistill.reproduce.claims import Checked, claims_about
from airdistill.runs.comparison import ComparisonRecord
from airdistill.runs.finding import compare_runs, find_comparisons, find_runs
from airdistill.web.elements import errors_shown, listed, plain, show_report, show_table
from airdistill.web.figures import CHART, curves_figure
from airdistill.web.serving import this_site

SELECTED = "selected runs"
_VERDICTS = {"holds": ":green[✓ holds]", "does not hold": ":red[✗ does not hold]", "undecided": ":gray[? undecided]"}


def show_compare() -> None:
    """Show the chosen comparison."""
    root = this_site().runs
    comparisons = {path.relative_to(root).as_posix(): path for path in find_comparisons(root)} if root.is_dir() else {}
    chosen = st.selectbox("Comparison", [*comparisons, SELECTED], key="comparison", persist_state="session")
    with errors_shown():
        if chosen != SELECTED:
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
            _show_comparison(compare_runs([ended[name] for name in names], root))


def _show_missing(record: ComparisonRecord) -> None:
    missing = len(record.comparison.tasks) - len(record.runs)
    if missing:
        st.info(f"{missing} of {len(record.comparison.tasks)} runs have not ended and are not shown.")
    if record.problems:
        st.warning(listed(record.problems))


def _show_comparison(record: ComparisonRecord) -> None:
    if not record.runs:
        return
    curves = curves_of(record)
    titles = {"rounds": "Accuracy against rounds", "seconds": "Accuracy against uplink time"}
    for column, (against, title) in zip(st.columns(2), titles.items(), strict=True):
        with column:
            st.subheader(title)
            st.plotly_chart(curves_figure(curves, against), key=f"curves-{against}", config=CHART, alt=title)
    st.subheader("Results")
    results, privacy = parts_of_table(record, (*COLUMNS, *LINK_COLUMNS), EPSILON_COLUMNS)
    show_table(*results)
    show_table(*privacy, note=" ".join(notes_of(record)))
    _show_claims(claims_about(record))


def _show_claims(claims: list[Checked]) -> None:
    st.subheader("Claims of the paper")
    if not claims:
        st.caption("None of the paper's claims is about these schemes.")
    for claim in claims:
        st.markdown(f"**{_VERDICTS[claim.verdict]}**  {plain(claim.statement)}")
        st.caption(plain(f"{claim.source}. {claim.numbers}"))


def _show_report(record: ComparisonRecord) -> None:
    if record.runs and st.toggle("Show the report"):
        show_report(comparison_page(record), record.folder.name)
