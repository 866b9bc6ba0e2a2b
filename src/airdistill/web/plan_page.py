"""Plan: a scenario under sliders, and at once what comes of it."""

from __future__ import annotations

import streamlit as st

from airdistill.errors import AirDistillError
from airdistill.planning.plan import Plan
from airdistill.planning.what_if.steps import what_if
from airdistill.report.plan_table import (
    RECEIVERS_NOTE,
    fleet_in_words,
    privacy_rows,
    receiver_rows,
    step_rows,
    steps_note,
    summary_rows,
)
from airdistill.report.words import number
from airdistill.scenario.loading import as_toml, preset_names, preset_summary
from airdistill.scenario.model import Scenario
from airdistill.units import with_prefix
from airdistill.web.draft import (
    AS_IT_STANDS,
    Draft,
    Origin,
    as_changes,
    check_names_no_code,
    check_names_no_files,
    planned,
)
from airdistill.web.figures import CHART, METRIC_PX, epsilon_figure, gap_figure, noise_figure
from airdistill.web.knobs import SHEETS, Knobs
from airdistill.web.runs_page import scheme_names, show_start_form
from airdistill.web.serving import this_site
from airdistill.web.tables import errors_as_sentences, listed, plain, show_facts, show_table

_UPLOAD, _OPENED = "upload", "opened"


def show_plan() -> None:
    settings, results = st.columns([2, 5], gap="medium")
    with settings:
        origin = _origin()
        answer = st.container()
        draft = Draft(origin, (*_turned(origin), *_typed(origin)))
        scheme = _scheme(origin)
    with results, errors_as_sentences():
        plan = planned(_allowed(draft), scheme)
        answer.markdown(_in_a_line(plan))
        _show_headline(plan)
        _show_figures(plan)
        _show_details(plan)
        _show_outlook(plan)
        _show_ways_out(draft, scheme)


def _origin() -> Origin:
    """A preset, or the file that was opened."""
    choice = st.container()
    with st.expander("Open a scenario", icon=":material/folder_open:"):
        st.file_uploader("Open scenario", type="toml", key=_UPLOAD, label_visibility="collapsed", on_change=_take)
        opened = _opened()
    presets = preset_names()
    names = presets if opened is None else [opened.name, *presets]
    with choice:
        start = names.index("paper") if opened is None else 0
        identity = "" if opened is None else opened.identity
        chosen = st.selectbox("Scenario", names, start, key=f"scenario/{identity}", persist_state="session")
        if opened is not None and chosen == opened.name:
            return opened
        st.caption(plain(preset_summary(chosen)))
        return Origin(chosen)


def _take() -> None:
    """Keeps what was opened, also while another page is looked at."""
    uploaded = st.session_state[_UPLOAD]
    st.session_state[_OPENED] = None if uploaded is None else (uploaded.name, uploaded.getvalue())


def _opened() -> Origin | None:
    """None, and a sentence, for what is no scenario."""
    if st.session_state.get(_OPENED) is None:
        return None
    name, content = st.session_state[_OPENED]
    try:
        origin = Origin(name, content.decode("utf-8-sig"))
        _allowed(Draft(origin))
    except UnicodeDecodeError:
        st.error(plain(f"{name}: is not a text file"))
        return None
    except AirDistillError as error:
        st.error(plain(f"{name}: {error}"))
        return None
    return origin


def _allowed(draft: Draft) -> Scenario:
    scenario = draft.scenario
    if this_site().look_only:
        check_names_no_files(scenario)
        check_names_no_code(scenario)  # a plan for gradients builds the model, to count its parameters
    return scenario


def _turned(origin: Origin) -> tuple[str, ...]:
    """What the sliders change."""
    knobs = Knobs(origin.scenario(), origin.identity)
    for sheet, show in zip(st.tabs(list(SHEETS)), SHEETS.values(), strict=True):
        with sheet:
            show(knobs)
    return as_changes(knobs.changes)


def _typed(origin: Origin) -> list[str]:
    """What is typed, which has the last word."""
    typed = st.text_area(
        "Any other field, one a line",
        placeholder="radio.csi_error_db=-25",
        key=f"{origin.identity}/typed",
        help="As `--set` takes it: section.field=value.",
        persist_state="session",
    )
    return [line.strip() for line in typed.splitlines() if line.strip()]


def _scheme(origin: Origin) -> str:
    return st.selectbox(
        "Planned for",
        [AS_IT_STANDS, *scheme_names()],
        key=f"{origin.identity}/scheme",
        help="A scheme plans with its own overrides and receiver; `airdistill` takes some seconds.",
        persist_state="session",
    )


def _in_a_line(plan: Plan) -> str:
    """Beside the sliders: on a phone the rest is out of sight."""
    seconds = plain(with_prefix(plan.uplink_seconds, "s"))
    return f"**T \\= {plan.num_rounds}** · {plan.forecast.regime} binds · {seconds} of uplink"


def _show_headline(plan: Plan) -> None:
    forecast = plan.forecast
    # Whatever the scenario declares, what a whole device loses is said beside it.
    models = dict.fromkeys((plan.scenario.privacy.sensitivity, "device"))
    st.markdown(f"**{plain(plan.scenario.name)}**: {plain(fleet_in_words(plan))}")
    with st.container(horizontal=True):
        for label, value in [
            ("Rounds T", f"{plan.num_rounds}"),
            ("What binds", forecast.regime),
            ("Uplink time", with_prefix(plan.uplink_seconds, "s")),
            ("Uplink energy", with_prefix(plan.uplink_joules, "J")),
            ("Weakest device, SNR", f"{forecast.worst_snr_db:.1f} dB".replace("-", "−")),
            *[(f"Worst ε, {model}", number(float(plan.epsilon_by_model[model].max()))) for model in models],
        ]:
            st.metric(label, value, border=True, width=METRIC_PX)
    if plan.warnings:
        st.warning(listed(plan.warnings), icon=":material/warning:")


def _show_figures(plan: Plan) -> None:
    left, right = st.columns(2)
    with left:
        st.subheader("Gap against rounds")
        st.plotly_chart(gap_figure(plan), key="gap", config=CHART, alt="Convergence gap against the number of rounds")
    with right:
        st.subheader("Noise, required and got")
        st.plotly_chart(noise_figure(plan), key="noise", config=CHART, alt="Noise variance of every class")
        st.caption(f"Median of {plan.forecast.num_draws} channel draws.")
    st.subheader("Privacy at the end")
    figure = epsilon_figure(plan)
    if figure is not None:
        st.plotly_chart(figure, key="epsilon", config=CHART, alt="ε of the worst device under every sensitivity model")
    show_table(*privacy_rows(plan), note="* declared in the scenario. Exact ε at each device's δ.")
    st.info("This rests on\n\n" + listed(plan.assumptions), icon=":material/foundation:")


def _show_details(plan: Plan) -> None:
    with st.expander("All numbers of the plan"):
        show_facts(summary_rows(plan))
    with st.expander("Every device"):
        show_table(*privacy_rows(plan, all_devices=True))


def _show_outlook(plan: Plan) -> None:
    """On request: it takes seconds."""
    with st.expander("Receivers, and what each step of the co-design brings"):
        if not st.button("Compute", help="Takes some seconds."):
            return
        with st.spinner("Following the receivers along the planned rounds"):
            outlook = what_if(plan)
        if outlook is None:
            st.caption("Only for knowledge that devices send at once, by the optimal transceiver.")
            return
        show_table(*receiver_rows(plan, outlook), note=RECEIVERS_NOTE)
        if outlook.steps:
            show_table(*step_rows(outlook), note=steps_note(outlook))


def _show_ways_out(draft: Draft, scheme: str) -> None:
    """The scenario as a file, the command that says the same, and a run."""
    st.subheader("Take it with you")
    options = [] if scheme == AS_IT_STANDS else ["--scheme", scheme]
    st.code(draft.command("plan", *options), language="console", wrap_lines=True)
    scenario = draft.scenario
    st.download_button(
        "Download scenario", as_toml(scenario), f"{scenario.name}.toml", "application/toml", on_click="ignore",
        icon=":material/download:",
    )  # fmt: skip
    show_start_form(scenario, scheme)
