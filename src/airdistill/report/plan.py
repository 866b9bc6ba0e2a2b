"""A plan as rows, on the terminal and as sections of a page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airdistill.arrays import FloatArray
from airdistill.planning.feature_means import CLUSTERS
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.superposed import SuperposedUplink
from airdistill.planning.what_if.feature_means import embedding_cost, feature_evidence
from airdistill.planning.what_if.public_set import PublicSetWhatIf
from airdistill.planning.what_if.steps import WhatIf, antenna_what_if
from airdistill.report.links import energy_rows, transmit_limit_rows, waveform_rows
from airdistill.report.page import Block, Bullets, DataTable, Facts, Paragraph, Section
from airdistill.report.terminal import bullets, facts_table, number_table, starred_table
from airdistill.report.wording import MOST_ROWS, SUMMARIES, device_rows, extent, limiting_factor, number, starred
from airdistill.units import with_prefix

Rows = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]  # columns, and rows of cells
RECEIVERS_NOTE = (
    "* the scenario's receiver. Gap: Theorem 1 for linear, the bound for biased receivers for the others. Error: "
    "expected for linear, a bound before projection for the others"
)
_SAME_TERMS = "at the same (ε, δ) and air time"
_RULES = {"fixed": "fixed by the scenario", "optimal": "the exact optimum", "paper": "the paper's formula"}


def print_plan(
    plan: Plan,
    console: Console,
    all_devices: bool = False,
    what_if: WhatIf | None = None,
    public: PublicSetWhatIf | None = None,
) -> None:
    """Print rounds, limiting factor, noise, power, time, energy, privacy, assumptions and warnings.

    `what_if` adds a comparison of the receivers and the gain of each design step. `public` adds forecasts for other
    fleets, public sets and numbers of rounds.
    """
    console.print(
        f"[bold]Plan of {escape(plan.scenario.name)}[/bold]", escape(fleet_in_words(plan)), sep="\n", highlight=False
    )
    console.print(
        facts_table(
            (label, f"[bold]{text}[/bold]" if label == "Rounds" else text) for label, text in summary_rows(plan)
        )
    )
    console.print("")
    console.print(
        f"[bold]Required and achieved noise[/bold]: variance per entry of the {plan.uplink.payload.words}, "
        f"median of {plan.forecast.num_draws} channel draws"
    )
    console.print(number_table(*noise_rows(plan)))
    if public is not None:
        console.print("[bold]Devices, public samples and rounds[/bold] at the same guarantee")
        console.print(_public_table(public))
        console.print(escape(public.advice), "", sep="\n", highlight=False)
    if what_if is not None:
        console.print(f"[bold]Receivers[/bold] at T = {plan.num_rounds}")
        console.print(starred_table(*receiver_rows(plan, what_if), caption=RECEIVERS_NOTE))
    if what_if is not None and what_if.steps:
        console.print(
            f"[bold]Gain of each step[/bold] at T = {plan.num_rounds}, the same (ε, δ), sensitivity, trust and link"
        )
        console.print(starred_table(*step_rows(what_if), caption=steps_note(what_if)))
    console.print("[bold]Privacy at the end[/bold]: exact ε at each device's δ under every sensitivity model")
    caption = "* declared in the scenario" + ("" if all_devices else "; --devices lists every device")
    console.print(starred_table(*privacy_rows(plan, all_devices), caption=caption))
    console.print("[bold]Assumptions[/bold]", bullets(plan.assumptions, "·"))
    if plan.warnings:
        console.print("[bold yellow]Warnings[/bold yellow]", bullets(plan.warnings, "[yellow]![/yellow]"))


def plan_section(plan: Plan, of: str = "") -> Section:
    """Return the plan and its warnings."""
    blocks: list[Block] = [
        Paragraph(f"{fleet_in_words(plan)}."),
        Facts(tuple((label.strip(), text) for label, text in summary_rows(plan))),
    ]
    if plan.warnings:
        blocks.append(Bullets(plan.warnings, "warning"))
    return Section(f"The plan{of}", tuple(blocks))


def privacy_section(plan: Plan, of: str = "") -> Section:
    """Return the planned ε of every device under each sensitivity model, and its assumptions."""
    columns, rows = privacy_rows(plan)
    table = DataTable(
        columns,
        rows,
        caption="Exact ε at each device's δ at the end, as planned; * is the model that the scenario declares.",
    )
    return Section(f"Planned privacy{of}", (table, Paragraph("Assumptions:"), Bullets(plan.assumptions)))


def fleet_in_words(plan: Plan) -> str:
    """Describe the devices and their data."""
    samples = plan.fleet.class_counts.sum(axis=1)
    data = plan.scenario.data
    source = "declared counts" if data.class_counts is not None else f"{data.dataset}, {data.partition}"
    return (
        f"{plan.fleet.num_devices} devices with {extent(samples, str)} samples each, "
        f"{plan.fleet.num_classes} classes ({source}), seed {plan.scenario.seed}"
    )


def _truncation(plan: Plan) -> float:
    """Return the threshold of |h|² below which a device is inactive; 0 if all devices always transmit."""
    return plan.uplink.truncation if isinstance(plan.uplink, SuperposedUplink) else 0.0


# Rows: labels and values. A label that begins with spaces belongs to the one above it.


def summary_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the main numbers of the plan with their labels."""
    payload, forecast, outage = plan.uplink.payload, plan.forecast, plan.scenario.radio.outage
    factor = limiting_factor(forecast.regime)
    signal, noise = _watts(forecast.signal_power_w), _watts(forecast.noise_power_w)
    slots = f"{plan.uplink.num_slots} slots = {with_prefix(plan.air_time.total_s, 's')}"
    return [
        ("Rounds", f"{plan.rounds.chosen}, {_RULES[plan.rounds.rule]}"),
        *_other_rounds(plan),
        ("Limiting factor", f"{factor} (privacy in {forecast.privacy_binds_share:.1%} of {payload.rounds_unit})"),
        (payload.error_label, f"{number(forecast.effective_noise)}, mean of all but the worst {outage:.0%} of rounds"),
        (
            "  median, quantile",
            f"{number(forecast.effective_noise_median)}, {number(forecast.effective_noise_quantile)}",
        ),
        *([("Convergence gap ΣΩ", number(plan.convergence_gap))] if payload.has_gap else []),
        *payload.summary(),
        *_embedding_rows(plan),
        *_evidence_rows(plan),
        *_participation_rows(plan),
        *_correlation_rows(plan),
        *_amplification_rows(plan),
        *_inactive_rows(plan),
        *_antenna_rows(plan),
        *([("Transmit power", f"signal {signal}, noise {noise} a device")] if plan.uplink.uses_radio else []),
        ("Uplink time", f"{with_prefix(plan.uplink_seconds, 's')} in all, {slots} a round"),
        *waveform_rows(plan),
        *transmit_limit_rows(plan),
        *(energy_rows(plan) if plan.uplink.uses_radio else [("Uplink", "a secure channel to a trusted aggregator")]),
    ]


def _watts(power_w: FloatArray) -> str:
    return extent(power_w, lambda value: with_prefix(value, "W"))


def _other_rounds(plan: Plan) -> list[tuple[str, str]]:
    """Return T under the other rules, if these apply to the payload."""
    rounds, payload = plan.rounds, plan.uplink.payload
    if not payload.has_gap:
        return []
    return [
        ("  exact optimum", f"{rounds.exact} of at most {rounds.largest}"),
        (f"  {payload.paper_rounds_label}", number(rounds.paper, ".10g")),
        ("  if L1, L2 were a tenth", f"{rounds.exact_smaller_constants}"),
    ]


def _evidence_rows(plan: Plan) -> list[tuple[str, str]]:
    """How far class sums of features exceed their noise; nothing for other payloads."""
    found = feature_evidence(plan)
    if found is None:
        return []
    extremes = f"{number(found.hard.evidence)} (hard data) to {number(found.easy.evidence)} (easy data)"
    likely = [
        f"{each.right:.0%} ({each.least:.0%} to {each.most:.0%}) like {each.like}" for each in (found.hard, found.easy)
    ]
    return [
        ("Evidence of a class", f"{found.verdict}: {extremes} standard deviations of the noise"),
        ("  labels right", f"{', '.join(likely)}: mean and range of measured runs, ten classes"),
    ]


def _embedding_rows(plan: Plan) -> list[tuple[str, str]]:
    """What the devices receive once before they send features; nothing for other payloads."""
    found = embedding_cost(plan)
    if found is None:
        return []
    named = f"{found.embedding}, {found.features} {'clusters' if found.embedding == CLUSTERS else 'features'}"
    if found.cpu_bytes is None or found.cuda_bytes is None:
        return [("Embedding", f"{named}, sent to the devices once: the size of your own network and of a projection")]
    size = with_prefix(found.cpu_bytes, "B")
    if found.cuda_bytes != found.cpu_bytes:
        size = f"{size}, or {with_prefix(found.cuda_bytes, 'B')} if a GPU fits it"
    return [("Embedding", f"{named}: {size}, sent to the devices once, beside the public samples")]


def _participation_rows(plan: Plan) -> list[tuple[str, str]]:
    """Compare sampling that the server knows with full participation; nothing if all devices participate."""
    found = plan.participation
    if found is None:
        return []
    devices = f"{found.least_devices} to {found.most_devices} of {plan.fleet.num_devices} devices a round"
    rounds = f"a device is charged for the {found.least_rounds} to {found.most_rounds} of {plan.num_rounds} rounds"
    against_all = _against_all(plan, found.effective_noise_of_all, found.round_joules_of_all)
    return [
        ("Participation", f"{devices}; {rounds} in which it participates"),
        ("  vs. all devices", against_all),
    ]


def _correlation_rows(plan: Plan) -> list[tuple[str, str]]:
    """Compare correlated noise with independent noise; nothing without it."""
    found, matrix = plan.correlation, plan.uplink.correlation
    if found is None or matrix is None:
        return []
    devices = f"{number(found.mean)} an entry from the devices' noise, {number(found.receiver)} from the receiver's"
    gain = (
        f"the devices' part {number(found.devices_gain)} times smaller ({number(found.last_gain)} after the last round)"
    )
    return [
        ("Correlated noise", f"{matrix.words}; every device sends noise in every round"),
        ("  error of the model", f"{devices}: mean over rounds, in units of the first step"),
        ("  vs. independent", f"{gain}, the whole {number(found.gain)} times, {_SAME_TERMS}"),
    ]


def _amplification_rows(plan: Plan) -> list[tuple[str, str]]:
    """Compare sampling that is secret from the server with its alternatives; nothing if it is not secret."""
    found = plan.amplification
    if found is None:
        return []
    joins = f"each device joins a round with probability {found.probability:g}, secret from the server"
    published = "does not apply: too few devices, or too small a probability"
    if np.isfinite(found.published_noise):
        over = f"some device would have {number(found.published_excess)} times its target ε"
        enough = "every device would keep its target ε" if found.published_excess <= 1 else over
        published = f"plans an error of {number(found.published_noise)}; {enough}"
    return [
        ("Participation", f"{joins}; all devices send noise"),
        ("  vs. all devices", _against_all(plan, found.effective_noise_of_all, found.round_joules_of_all)),
        ("  vs. known sampling", f"{_times(plan.forecast.effective_noise, found.effective_noise_if_seen)} the noise"),
        ("  published bound", published),
    ]


def _against_all(plan: Plan, noise_of_all: float, joules_of_all: float) -> str:
    noise, joules = (
        _times(plan.forecast.effective_noise, noise_of_all),
        _times(plan.forecast.round_joules, joules_of_all),
    )
    return f"{noise} the noise, {joules} the energy, {_SAME_TERMS}"


def _times(value: float, reference: float) -> str:
    return f"{number(value / reference if reference else np.inf)} times"


def _inactive_rows(plan: Plan) -> list[tuple[str, str]]:
    """Describe truncated channel inversion; nothing if all devices always transmit."""
    truncation, forecast = _truncation(plan), plan.forecast
    if truncation == 0:
        return []
    level = f"{10 * np.log10(truncation):.1f} dB"
    absent = "" if plan.participation is None else ", including devices that do not participate"
    share = f"{forecast.silent_share:.2%} of devices and rounds{absent}"
    return [("Inactive devices", f"|h|² below {level}: {share}; squared bias at most {number(forecast.squared_bias)}")]


def _antenna_rows(plan: Plan) -> list[tuple[str, str]]:
    """Compare several antennas with the first one alone; nothing for one antenna."""
    found = antenna_what_if(plan)
    if found is None:
        return []
    combiner = "one combiner for all classes" if found.combining == "joint" else "one combiner for each class"
    above = f"{found.gap:.1%} above its lower bound (median), {found.largest_gap:.1%} at worst"
    took = f"designing a round took {with_prefix(found.design_s, 's')} here"
    floors = f"{number(found.floor)}, with the first antenna alone {number(found.floor_alone)}"
    noises = f"{number(found.noise_var)}, with the first antenna alone {number(found.noise_var_alone)}"
    return [
        ("Antennas", f"{found.num_antennas}, {combiner}: its cost is {above}; {took}"),
        ("  benefit", f"channel noise {floors}"),
        ("  cost", f"noise with privacy {noises}, {_SAME_TERMS}; the signals of all antennas count"),
    ]


# Tables: columns and rows.


def noise_rows(plan: Plan) -> Rows:
    """Return the required and the achieved noise of every class or vector; many of them are summarised."""
    required, achieved = plan.forecast.required_noise_var, plan.forecast.effective_noise_var
    columns = (plan.uplink.payload.row_name, "required by privacy", "achieved")
    if len(required) <= MOST_ROWS:
        pairs = zip(required, achieved, strict=True)
        return columns, tuple((str(row), number(needed), number(got)) for row, (needed, got) in enumerate(pairs))
    return columns, tuple((name, number(pick(required)), number(pick(achieved))) for name, pick in SUMMARIES.items())


def receiver_rows(plan: Plan, what_if: WhatIf) -> Rows:
    """Return the error, gap and best T of every receiver."""
    own = plan.scenario.learning.receiver
    rows = tuple(
        (
            starred(receiver.name, own),
            number(receiver.squared_error),
            number(receiver.convergence_gap),
            str(receiver.best_rounds),
        )
        for receiver in what_if.receivers
    )
    if ":" in own:
        rows = (*rows, (starred(own, own), "not known", "as linear", "as linear"))
    return ("receiver", "squared error", "gap ΣΩ", "best T"), rows


def step_rows(what_if: WhatIf) -> Rows:
    """Return the noise after each step of the design, each step with all before it."""
    first = what_if.steps[0].noise_var
    rows = tuple(
        (
            step.name if place == 0 else f"+ {step.name}",
            number(step.noise_var),
            number(first / step.noise_var) if step.noise_var > 0 else "∞",
        )
        for place, step in enumerate(what_if.steps)
    )
    return ("step", "noise variance", "times below the first"), rows


def steps_note(what_if: WhatIf) -> str:
    """Explain the table of steps."""
    if not what_if.steps[0].holds:
        return "the paper's accountant leaves less noise here than (ε, δ) requires"
    return (
        "mean of all but the worst rounds, in which truncation applies; --scheme airdistill takes all steps, and its "
        "receiver filters the remaining noise"
    )


def privacy_rows(plan: Plan, all_devices: bool = False) -> Rows:
    """Return the target and the planned ε. Large fleets are summarised unless `all_devices` is set."""
    models = [starred(model, plan.scenario.privacy.sensitivity) for model in plan.epsilon_by_model]
    values: Sequence[FloatArray] = [plan.fleet.epsilon, plan.fleet.delta, *plan.epsilon_by_model.values()]
    return ("device", "target ε", "δ", *models), device_rows(values, all_devices)


def _public_table(public: PublicSetWhatIf) -> Table:
    own = public.forecasts[0]
    rows = [
        (
            f"{each.devices}",
            f"{each.samples}",
            f"{each.rounds}",
            with_prefix(each.seconds, "s"),
            number(each.noise_var),
            number(each.row_evidence),
            number(each.class_evidence),
            f"{each.verdict}{'*' if each is own else ''}",
        )
        for each in public.forecasts
    ]
    columns = ("devices", "samples", "rounds", "uplink", "noise variance", "of a row", "of a class", "evidence")
    caption = (
        "* the plan. Evidence: standard deviations by which the label of a row, and the rows\n"
        "of a class together, exceed the noise. A receiver that pools similar samples uses\n"
        f"the latter. At most {number(public.affordable_rounds)} rounds can each be read alone"
    )
    return starred_table(columns, rows, caption, narrow=True)
