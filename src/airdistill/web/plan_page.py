"""The page Plan: edit a scenario with sliders, see its plan at once, export it and start a run."""

from __future__ import annotations

import streamlit as st

from airdistill.errors import AirDistillError
from airdistill.planning.plan import Plan
from airdistill.planning.what_if.steps import what_if
from airdistill.report.plan import (
    RECEIVERS_NOTE,
    fleet_in_words,
    privacy_rows,
    receiver_rows,
    step_rows,
    steps_note,
    summary_rows,
)
from airdistill.report.wording import limiting_factor
from airdistill.scenario.loading import as_toml, preset_names, preset_summary
from airdistill.scenario.model import Scenario
from airdistill.units import rounded_up, with_prefix
from airdistill.web.controls import TABS, ScenarioControls
from airdistill.web.draft import Draft, Origin, as_changes, check_names_no_code, check_names_no_files, planned
from airdistill.web.elements import (
    PAGE,
    RUN,
    errors_shown,
    listed,
    plain,
    show_facts,
    show_metrics,
    show_table,
)
from airdistill.web.figures import CHART, epsilon_figure, gap_figure, noise_figure
from airdistill.web.run_processes import start_run
from airdistill.web.serving import this_site

_UPLOAD, _OPENED = "upload", "opened"  # keys of the session's state
_FIRST_SCHEME = "ota_fd"  # planned in a fraction of a second, and so sliders respond at once


def show_plan() -> None:
    """Show the controls on one side and the plan on the other."""
    settings, results = st.columns([2, 5], gap="medium")
    with settings:
        origin = _origin()
        summary = st.container()
        draft = Draft(origin, (*_changes_by_controls(origin), *_typed_changes(origin)))
        scheme = _scheme(origin)
    with results, errors_shown():
        plan = planned(_checked(draft), scheme)
        summary.markdown(_summary(plan))
        _show_headline(plan)
        _show_figures(plan)
        _show_details(plan)
        _show_what_if(plan)
        _show_export(draft, scheme)
        _show_start_form(draft.scenario, scheme)


def _origin() -> Origin:
    """The chosen preset, or the file that was opened."""
    choice = st.container()
    with st.expander("Open a scenario", icon=":material/folder_open:"):
        st.file_uploader("Open scenario", type="toml", key=_UPLOAD, label_visibility="collapsed", on_change=_keep_file)
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


def _keep_file() -> None:
    """Keep the opened file in the session, because a widget's value is lost while another page is shown."""
    uploaded = st.session_state[_UPLOAD]
    st.session_state[_OPENED] = None if uploaded is None else (uploaded.name, uploaded.getvalue())


def _opened() -> Origin | None:
    """The opened file; None without one. A file that is not a scenario is reported and not used."""
    if st.session_state.get(_OPENED) is None:
        return None
    name, content = st.session_state[_OPENED]
    try:
        origin = Origin(name, content.decode("utf-8-sig"))
        _checked(Draft(origin))
    except UnicodeDecodeError:
        st.error(plain(f"{name}: is not a text file"))
        return None
    except AirDistillError as error:
        st.error(plain(f"{name}: {error}"))
        return None
    return origin


def _checked(draft: Draft) -> Scenario:
    """The draft's scenario. Raise if it names code, or files where visitors may only look."""
    scenario = draft.scenario
    if this_site().look_only:
        check_names_no_files(scenario)
    check_names_no_code(scenario)  # a plan already builds a model of one's own, to see whether it takes the samples
    return scenario


def _changes_by_controls(origin: Origin) -> tuple[str, ...]:
    """The changes made with sliders and choices."""
    controls = ScenarioControls(origin.scenario(), origin.identity)
    for tab, show in zip(st.tabs(list(TABS)), TABS.values(), strict=True):
        with tab:
            show(controls)
    return as_changes(controls.changes)


def _typed_changes(origin: Origin) -> list[str]:
    """The changes that were typed. They come last and so override the sliders."""
    typed = st.text_area(
        "Other fields, one per line",
        placeholder="radio.csi_error_db=-25",
        key=f"{origin.identity}/typed",
        help="As `--set` takes it: section.field=value.",
        persist_state="session",
    )
    return [line.strip() for line in typed.splitlines() if line.strip()]


def _scheme(origin: Origin) -> str:
    names = _scheme_names()
    return st.selectbox(
        "Scheme",
        names,
        names.index(_FIRST_SCHEME),
        key=f"{origin.identity}/scheme",
        help="A scheme has its own overrides and receiver. `ota_fd`, the paper's scheme, is planned at once; "
        "`airdistill`, the default of `airdistill run`, takes some seconds.",
        persist_state="session",
    )


@st.cache_resource(show_spinner="Loading the schemes")
def _scheme_names() -> list[str]:
    from airdistill.schemes.registry import SCHEMES

    return list(SCHEMES)


def _summary(plan: Plan) -> str:
    """The plan in one line, next to the sliders: on a phone the rest is out of sight."""
    seconds = plain(with_prefix(plan.uplink_seconds, "s"))
    return f"**T \\= {plan.num_rounds}** · limited by {limiting_factor(plan.forecast.regime)} · {seconds} of uplink"


def _show_headline(plan: Plan) -> None:
    forecast = plan.forecast
    # The loss of a whole device is always shown, next to the sensitivity that the scenario declares.
    models = dict.fromkeys((plan.scenario.privacy.sensitivity, "device"))
    st.markdown(f"**{plain(plan.scenario.name)}**: {plain(fleet_in_words(plan))}")
    show_metrics(
        [
            ("Rounds T", f"{plan.num_rounds}"),
            ("Limiting factor", limiting_factor(forecast.regime)),
            ("Uplink time", with_prefix(plan.uplink_seconds, "s")),
            ("Uplink energy", with_prefix(plan.uplink_joules, "J")),
            ("Lowest SNR", f"{forecast.worst_snr_db:.1f} dB".replace("-", "−")),
            *[(f"Worst ε, {model}", rounded_up(float(plan.epsilon_by_model[model].max()))) for model in models],
        ]
    )
    if plan.warnings:
        st.warning(listed(plan.warnings), icon=":material/warning:")


def _show_figures(plan: Plan) -> None:
    left, right = st.columns(2)
    with left:
        st.subheader("Convergence gap")
        st.plotly_chart(gap_figure(plan), key="gap", config=CHART, alt="Convergence gap against the number of rounds")
    with right:
        st.subheader("Required and achieved noise")
        st.plotly_chart(noise_figure(plan), key="noise", config=CHART, alt="Noise variance of every class")
        st.caption(f"Median of {plan.forecast.num_draws} channel draws.")
    st.subheader("Privacy spent at the end")
    figure = epsilon_figure(plan)
    if figure is not None:
        st.plotly_chart(figure, key="epsilon", config=CHART, alt="ε of the worst device under every sensitivity model")
    show_table(*privacy_rows(plan), note="* declared in the scenario. Exact ε at each device's δ.")
    st.info("Assumptions\n\n" + listed(plan.assumptions), icon=":material/foundation:")


def _show_details(plan: Plan) -> None:
    with st.expander("All numbers of the plan"):
        show_facts(summary_rows(plan))
    with st.expander("All devices"):
        show_table(*privacy_rows(plan, all_devices=True))


def _show_what_if(plan: Plan) -> None:
    """Other receivers and planning steps, computed at the press of a button because it takes seconds."""
    with st.expander("What if: other receivers, and the gain of each planning step"):
        if not st.button("Compute", help="Takes some seconds."):
            return
        with st.spinner("Predicting the errors of the receivers"):
            found = what_if(plan)
        if found is None:
            st.caption("Available only for class averages that all devices send at once with the optimal transceiver.")
            return
        show_table(*receiver_rows(plan, found), note=RECEIVERS_NOTE)
        if found.steps:
            show_table(*step_rows(found), note=steps_note(found))


def _show_export(draft: Draft, scheme: str) -> None:
    """The equivalent command, and the scenario as a file."""
    st.subheader("Export")
    st.code(draft.command("plan", "--scheme", scheme), language="console", wrap_lines=True)
    scenario = draft.scenario
    st.download_button(
        "Download scenario", as_toml(scenario), f"{scenario.name}.toml", "application/toml", on_click="ignore",
        icon=":material/download:",
    )  # fmt: skip


def _show_start_form(scenario: Scenario, scheme: str) -> None:
    site = this_site()
    if site.look_only:
        st.caption("This page is open to the network: runs can be started on the machine itself only.")
        return
    with st.form("start"):
        left, right = st.columns(2)
        rounds = left.number_input("Rounds", 0, 10**6, 0, help="0: as planned.")
        eval_every = right.number_input("Rounds between evaluations", 1, 10**6, 5)
        started = st.form_submit_button("Start a run", icon=":material/play_arrow:", type="primary")
    if started:
        with errors_shown():
            check_names_no_code(scenario)
            folder = start_run(site.runs, scenario, scheme, int(rounds) or None, int(eval_every))
            st.success(plain(f"{folder.name} was started. It continues if this page is closed."))
            name = folder.relative_to(site.runs).as_posix()
            st.button("Show the run", icon=":material/monitoring:", on_click=_show_in_runs, args=(name,))


def _show_in_runs(name: str) -> None:
    st.session_state[PAGE], st.session_state[RUN] = "Runs", name
