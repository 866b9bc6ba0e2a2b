"""One run on the page: how far it is, its pictures, its certificate, its report."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import streamlit as st

from airdistill.planning.plan import Plan
from airdistill.privacy.certificate import FAILS, HOLDS, Certificate
from airdistill.report.certificate_table import account_rows, assumption_lines, model_rows
from airdistill.report.run_page import run_page
from airdistill.report.words import number
from airdistill.runs.accounts import certify
from airdistill.runs.finding import FoundRun, found_run
from airdistill.runs.folder import PLAN, TIMINGS
from airdistill.runs.record import RunRecord
from airdistill.units import with_prefix
from airdistill.web.figures import (
    CHART,
    METRIC_PX,
    accuracy_figure,
    knowledge_figure,
    off_by,
    privacy_figure,
    run_noise_figure,
)
from airdistill.web.serving import this_site
from airdistill.web.started import go_on, is_starting, last_words, stop_run
from airdistill.web.tables import errors_as_sentences, listed, plain, show_report, show_table

_LOOK_S = 1.0  # between two looks at a run that goes on
_CERTIFY_S = 10.0  # between two certificates of it, which take longer
_LAST_ROUNDS = 20  # that the time left is guessed from


def show_run(run: FoundRun) -> None:
    if run.state == "broken":
        st.error(plain(run.trouble), icon=":material/broken_image:")
        return
    if run.state == "federation":
        st.info("This is one end of a federation. Its rounds are in rounds.jsonl; what it guarantees:")
        _show_certificate(run)
        return
    _show_live(run)
    if run.state in ("ended", "stopped", "running"):
        st.fragment(_show_certificate, run_every=_CERTIFY_S if run.goes_on else None)(run)
    if run.state == "ended":
        _show_report(run)


def _show_live(run: FoundRun) -> None:
    starting = is_starting(run.folder)

    @st.fragment(run_every=_LOOK_S if run.goes_on or starting else None)
    def live() -> None:
        now = found_run(run.folder, this_site().runs)
        if (now.state, is_starting(now.folder)) != (run.state, starting):
            st.rerun()  # all of the page: what stands below has changed, too
        with errors_as_sentences():
            _show_progress(now)

    live()


def _show_progress(run: FoundRun) -> None:
    if run.state in ("starting", "not begun"):
        _show_beginning(run)
        return
    record, plan = RunRecord.read(run.folder), _plan_in(run.folder)
    _show_headline(run, record, plan)
    _show_controls(run)
    left, right = st.columns(2)
    with left:
        st.subheader("Accuracy")
        _chart(accuracy_figure(record, plan.num_rounds), "accuracy", "Test accuracy against rounds")
    with right:
        st.subheader("Privacy spent")
        spent = privacy_figure(record, plan)
        if spent is None:
            st.caption("Nothing was spent that could be drawn: nothing is sent, or nothing hidden.")
        else:
            _chart(spent, "privacy", "ε of the worst device against rounds")
    _show_knowledge(record)
    noise = run_noise_figure(record)
    if noise is not None:
        st.subheader("Noise")
        _chart(noise, "noise", "Squared error of what was received and broadcast against rounds")


def _chart(figure: object, key: str, alt: str) -> None:
    st.plotly_chart(figure, key=f"run-{key}", config=CHART, alt=alt)


def _show_beginning(run: FoundRun) -> None:
    if run.goes_on or is_starting(run.folder):
        st.info("It is starting: the fleet is planned and its data are loaded.", icon=":material/hourglass_top:")
        return
    said = last_words(run.folder)
    st.error(plain(f"{run.name} did not begin. {said}".strip()), icon=":material/error:")


@lru_cache(maxsize=8)
def _stored_plan(path: Path, _changed_ns: int) -> Plan:
    return Plan.from_dict(json.loads(path.read_text()))


def _plan_in(folder: Path) -> Plan:
    path = folder / PLAN
    return _stored_plan(path, path.stat().st_mtime_ns)


def _show_headline(run: FoundRun, record: RunRecord, plan: Plan) -> None:
    last, accuracy = record.rounds[-1] if record.rounds else {}, record.accuracy
    done = len(record.rounds)
    metrics = [
        ("State", run.state),
        ("Round", f"{done} of {plan.num_rounds}"),
        ("Accuracy", "not yet" if accuracy is None else f"{accuracy['mean']:.2%}"),
        (f"ε spent ({plan.scenario.privacy.sensitivity})", number(last["epsilon_spent"]) if last else "0"),
        ("Uplink so far", with_prefix(last.get("uplink_seconds", 0.0), "s")),
    ]
    if run.goes_on:
        metrics.append(("Time left", _time_left(run.folder, plan.num_rounds - done)))
    with st.container(horizontal=True):
        for label, value in metrics:
            st.metric(label, value, border=True, width=METRIC_PX)
    st.progress(min(1.0, done / plan.num_rounds))
    if record.summary.get("ended_because"):
        st.warning(plain(record.summary["ended_because"]))


def _time_left(folder: Path, rounds: int) -> str:
    path = folder / TIMINGS
    lines = path.read_bytes().split(b"\n")[:-1][-_LAST_ROUNDS:] if path.exists() else []
    if not lines:
        return "…"
    seconds = rounds * sum(json.loads(line)["seconds"] for line in lines) / len(lines)
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _show_controls(run: FoundRun) -> None:
    if this_site().look_only:
        return
    if run.state == "running" and st.button(
        "Stop", icon=":material/stop:", help="The round in progress ends and is saved."
    ):
        stop_run(run.folder)
        st.toast("It stops after the round in progress.")
    if run.state == "stopped" and not is_starting(run.folder):
        said = last_words(run.folder)
        if said.startswith("error:"):
            st.error(plain(said))
        if st.button("Resume", icon=":material/play_arrow:"):
            go_on(run.folder)
            st.rerun()


def _show_knowledge(record: RunRecord) -> None:
    """Ideal, received and broadcast, of any round that was evaluated."""
    seen = {line["round"]: line["knowledge"] for line in record.rounds if "knowledge" in line}
    if not seen:
        return
    st.subheader("Shared knowledge")
    rounds = list(seen)
    chosen = rounds[-1]
    if len(rounds) > 1:
        chosen = st.select_slider("Round", rounds, chosen, key=f"knowledge-of-{len(rounds)}")
    tables = seen[chosen]
    largest = max((entry for row in tables["ideal"] for entry in row if entry is not None), default=1.0)
    titles = {
        "ideal": "Ideal: everybody's average",
        "received": f"Received: off by {off_by(tables, 'received'):.2g} an entry",
        "broadcast": f"Broadcast: off by {off_by(tables, 'broadcast'):.2g} an entry",
    }
    for column, (name, title) in zip(st.columns(3), titles.items(), strict=True):
        with column:
            st.markdown(f"**{title}**")
            _chart(knowledge_figure(tables[name], largest), f"knowledge-{name}", f"{title}, classes by classes")
    st.caption("Row: a class; column: what the fleet gives for each. What lies beyond the scale has its end's colour.")


def _show_certificate(run: FoundRun) -> None:
    st.subheader("Certificate")
    with errors_as_sentences():
        certificate = certify(run.folder)
        _show_verdict(certificate)
        with st.expander("What it says and assumes", expanded=True):
            st.markdown(listed(certificate.statement))
            st.markdown("It assumes")
            st.markdown(listed(assumption_lines(certificate)))
        show_table(
            *model_rows(certificate),
            note="ε of the worst device, by sensitivity model and by whose noise counts; * is declared.",
        )
        with st.expander("Every device"):
            show_table(*account_rows(certificate, all_devices=True))


def _show_verdict(certificate: Certificate) -> None:
    box = {HOLDS: st.success, FAILS: st.error}.get(certificate.verdict, st.warning)
    box(plain(f"{certificate.releases_in_words}: {certificate.verdict_in_words}"))
    if certificate.reasons:
        st.markdown(listed(certificate.reasons))


def _show_report(run: FoundRun) -> None:
    st.subheader("Report")
    if not st.toggle("Show the report", key=f"report/{run.name}"):
        return
    with errors_as_sentences():
        show_report(run_page(RunRecord.read(run.folder)), run.folder.name)
