"""The page Runs: the runs of a folder, with progress, figures, certificate and report of the chosen one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import streamlit as st

from airdistill.errors import AirDistillError
from airdistill.planning.plan import Plan
from airdistill.privacy.certificate import FAILS, HOLDS, Certificate
from airdistill.report.certificate import account_rows, assumption_lines, model_rows
from airdistill.report.run import run_page
from airdistill.runs.accounts import certify
from airdistill.runs.finding import FoundRun, find_run, find_runs
from airdistill.runs.folder import PLAN, TIMINGS
from airdistill.runs.record import RunRecord
from airdistill.units import rounded_up, with_prefix
from airdistill.web.elements import (
    RUN,
    errors_shown,
    listed,
    plain,
    select_from_address,
    show_metrics,
    show_report,
    show_table,
)
from airdistill.web.figures import (
    CHART,
    accuracy_figure,
    class_table_figure,
    privacy_figure,
    rms_error,
    run_noise_figure,
)
from airdistill.web.run_processes import CHANGING, ShownState, last_error, resume_run, state_of, stop_run
from airdistill.web.serving import this_site

_POLL_S = 1.0  # between two readings of a run that is changing
_CERTIFY_S = 10.0  # between two certificates of it, which take longer
_LAST_ROUNDS = 20  # from which the remaining time is estimated
_PROBLEM = "problem"  # in the session's state: why a button had no effect


def show_runs() -> None:
    """Show the list of runs and the chosen one."""
    root = this_site().runs
    found = {run.name: run for run in find_runs(root)} if root.is_dir() else {}
    if not found:
        st.info(
            f"There are no runs in {plain(str(root))} yet. Start one on the page *Plan*, or with `airdistill run`.",
            icon=":material/info:",
        )
        return
    names = list(found)
    select_from_address(RUN, names)
    chosen = st.selectbox("Run", names, key=RUN)
    st.query_params[RUN] = chosen
    with st.expander(f"All runs ({len(names)})"):
        show_table(("run", "state"), [(name, state_of(run)) for name, run in found.items()])
    _show_run(found[chosen])


def _show_run(run: FoundRun) -> None:
    if run.state == "broken":
        st.error(plain(run.problem), icon=":material/broken_image:")
        return
    if run.state == "federation":
        st.info("This folder belongs to an endpoint of a federation. Its rounds are in rounds.jsonl.")
        _show_certificate(run)
        return
    state = state_of(run)
    _show_live(run, state)
    if run.state in ("ended", "stopped", "running"):
        st.fragment(_show_certificate, run_every=_CERTIFY_S if state in CHANGING else None)(run)
    if run.state == "ended":
        _show_report(run)


def _show_live(run: FoundRun, state: ShownState) -> None:
    @st.fragment(run_every=_POLL_S if state in CHANGING else None)
    def live() -> None:
        now = find_run(run.folder, this_site().runs)
        now_state = state_of(now)
        if (now.state, now_state) != (run.state, state):
            st.rerun()  # the whole page: the parts below depend on the state, too
        with errors_shown():
            _show_progress(now, now_state)

    live()


def _show_progress(run: FoundRun, state: ShownState) -> None:
    if run.state in ("starting", "not begun"):
        _show_start(run, state)
        return
    record, plan = RunRecord.read(run.folder), _plan_in(run.folder)
    if record.damage:
        st.warning(listed(record.damage), icon=":material/broken_image:")
    _show_headline(run, state, record, plan)
    _show_controls(run, state)
    left, right = st.columns(2)
    with left:
        st.subheader("Accuracy")
        _chart(accuracy_figure(record, plan.num_rounds), "accuracy", "Test accuracy against rounds")
    with right:
        st.subheader("Privacy spent")
        spent = privacy_figure(record, plan)
        if spent is None:
            st.caption("There is no finite ε to draw: the scheme does not transmit, or its release is non-private.")
        else:
            _chart(spent, "privacy", "ε of the worst device against rounds")
    _show_class_tables(record)
    noise = run_noise_figure(record)
    if noise is not None:
        st.subheader("Noise")
        _chart(noise, "noise", "Squared error of the received and the broadcast payload against rounds")


def _show_start(run: FoundRun, state: ShownState) -> None:
    if state in CHANGING:
        st.info("The run is starting: the fleet is planned and the data are loaded.", icon=":material/hourglass_top:")
        return
    st.error(plain(f"{run.name} did not begin. {last_error(run.folder)}".strip()), icon=":material/error:")


def _show_headline(run: FoundRun, state: ShownState, record: RunRecord, plan: Plan) -> None:
    last: Mapping[str, Any] = record.rounds[-1] if record.rounds else {}
    accuracy = record.accuracy
    done = len(record.rounds)
    metrics = [
        ("State", state),
        ("Round", f"{done} of {plan.num_rounds}"),
        ("Accuracy", "not yet" if accuracy is None else f"{accuracy['mean']:.2%}"),
        (f"ε spent ({plan.scenario.privacy.sensitivity})", rounded_up(last["epsilon_spent"]) if last else "0"),
        ("Uplink time", with_prefix(last.get("uplink_seconds", 0.0), "s")),
    ]
    if run.is_active:
        metrics.append(("Time left", _time_left(run.folder, plan.num_rounds - done)))
    show_metrics(metrics)
    st.progress(min(1.0, done / plan.num_rounds))
    reason = record.summary.get("ended_because")
    if reason:
        st.warning(plain(reason))


def _time_left(folder: Path, rounds: int) -> str:
    path = folder / TIMINGS
    lines = path.read_bytes().split(b"\n")[:-1][-_LAST_ROUNDS:] if path.exists() else []
    if not lines:
        return "…"
    try:
        seconds = rounds * sum(float(json.loads(line)["seconds"]) for line in lines) / len(lines)
    except (ValueError, KeyError, TypeError):  # damaged, and no more than an estimate
        return "…"
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _show_controls(run: FoundRun, state: ShownState) -> None:
    """Stop and Resume, as callbacks: a click counts even if the state changes before the page is drawn again."""
    if this_site().look_only:
        return
    folder, problem = st.session_state.get(_PROBLEM, (None, ""))
    if folder == run.folder:
        st.error(plain(problem))
    if state == "running":
        help_text = "The round in progress is completed and saved."
        st.button("Stop", icon=":material/stop:", help=help_text, on_click=_attempt, args=(stop_run, run.folder))
    elif state == "stopping":
        st.caption("The run stops after the round in progress. It can be resumed when its process has ended.")
    elif state == "resuming":
        st.caption("The run resumes from its last checkpoint.")
    elif state == "stopped":
        error = last_error(run.folder)
        if error.startswith("error:"):
            st.error(plain(error))
        st.button("Resume", icon=":material/play_arrow:", on_click=_attempt, args=(resume_run, run.folder))


def _attempt(action: Callable[[Path], None], folder: Path) -> None:
    """Do what a button says; if it cannot be done, keep the reason for the page."""
    st.session_state.pop(_PROBLEM, None)
    try:
        action(folder)
    except (AirDistillError, OSError) as error:
        st.session_state[_PROBLEM] = (folder, str(error))


def _chart(figure: object, key: str, alt: str) -> None:
    st.plotly_chart(figure, key=f"run-{key}", config=CHART, alt=alt)


def _plan_in(folder: Path) -> Plan:
    path = folder / PLAN
    return _stored_plan(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _stored_plan(path: Path, _changed_ns: int) -> Plan:
    return Plan.from_dict(json.loads(path.read_text()))


def _show_class_tables(record: RunRecord) -> None:
    """The class averages of a chosen evaluated round: ideal, received and broadcast."""
    tables_by_round = {line["round"]: line["knowledge"] for line in record.rounds if "knowledge" in line}
    if not tables_by_round:
        return
    st.subheader("Class-average predictions")
    rounds = list(tables_by_round)
    chosen = rounds[-1]
    if len(rounds) > 1:
        chosen = st.select_slider("Round", rounds, chosen, key=f"knowledge-of-{len(rounds)}")
    tables = tables_by_round[chosen]
    shown: Mapping[str, Any] = tables
    largest = max((entry for row in tables["ideal"] for entry in row if entry is not None), default=1.0)
    titles = {
        "ideal": "Ideal: average over devices",
        "received": f"Received: RMS error {rms_error(tables, 'received'):.2g} per entry",
        "broadcast": f"Broadcast: RMS error {rms_error(tables, 'broadcast'):.2g} per entry",
    }
    for column, (name, title) in zip(st.columns(3), titles.items(), strict=True):
        with column:
            st.markdown(f"**{title}**")
            _chart(class_table_figure(shown[name], largest), f"knowledge-{name}", f"{title}, classes by classes")
    st.caption(
        "Row: true class. Column: mean predicted probability. Entries beyond the colour scale are clipped to it."
    )


def _show_certificate(run: FoundRun) -> None:
    st.subheader("Certificate")
    with errors_shown():
        certificate = certify(run.folder)
        _show_verdict(certificate)
        with st.expander("Statement and assumptions", expanded=True):
            st.markdown(listed(certificate.statement))
            st.markdown("Assumptions:")
            st.markdown(listed(assumption_lines(certificate)))
        show_table(
            *model_rows(certificate),
            note="ε of the worst device, by sensitivity model and by counted noise; * is declared.",
        )
        with st.expander("All devices"):
            show_table(*account_rows(certificate, all_devices=True))


def _show_verdict(certificate: Certificate) -> None:
    box = {HOLDS: st.success, FAILS: st.error}.get(certificate.verdict, st.warning)
    box(plain(f"{certificate.headline} — {certificate.releases_in_words}: {certificate.verdict_in_words}"))
    if certificate.reasons:
        st.markdown(listed(certificate.reasons))


def _show_report(run: FoundRun) -> None:
    st.subheader("Report")
    if not st.toggle("Show the report", key=f"report/{run.name}"):
        return
    with errors_shown():
        show_report(run_page(RunRecord.read(run.folder)), run.folder.name)
