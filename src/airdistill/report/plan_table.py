"""A plan on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from rich.box import HEAVY_HEAD, SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airdistill.arrays import FloatArray
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.superposed import SuperposedUplink, public_predictions_of
from airdistill.planning.what_if.public_set import PublicSetWhatIf
from airdistill.planning.what_if.steps import WhatIf, antenna_what_if
from airdistill.privacy.assumptions import PUBLIC_KNOWLEDGE
from airdistill.report.words import number
from airdistill.units import with_prefix

_AS_BEFORE = "the same (ε, δ) and air time"
MOST_ROWS = 12  # more devices or classes than this are summed up


def print_plan(
    plan: Plan,
    console: Console,
    all_devices: bool = False,
    outlook: WhatIf | None = None,
    public: PublicSetWhatIf | None = None,
) -> None:
    """The whole answer: rounds, what binds, noise, power, time, energy, privacy, assumptions, warnings.

    With an outlook, also the receivers side by side and what each step of the co-design brings; of a public set, what
    other fleets, sets and rounds would bring.
    """
    console.print(
        f"[bold]Plan of {escape(plan.scenario.name)}[/bold]", escape(fleet_in_words(plan)), sep="\n", highlight=False
    )
    console.print(_summary_table(plan), "")
    console.print(
        f"[bold]Noise variance per entry of the {plan.uplink.payload}[/bold], "
        f"median of {plan.forecast.num_draws} channel draws"
    )
    console.print(_noise_table(plan))
    if public is not None:
        console.print("[bold]Devices, public samples and rounds[/bold] at the same guarantee")
        console.print(_public_table(public))
        console.print(escape(public.advice), "", sep="\n", highlight=False)
    if outlook is not None:
        console.print(f"[bold]Receivers[/bold] at T = {plan.num_rounds}")
        console.print(_receivers_table(plan, outlook))
    if outlook is not None and outlook.steps:
        console.print(
            f"[bold]What each step brings[/bold] at T = {plan.num_rounds}, the same (ε, δ), sensitivity, trust and link"
        )
        console.print(_steps_table(outlook))
    console.print("[bold]Privacy at the end[/bold]: exact ε at each device's δ under every sensitivity model")
    console.print(_privacy_table(plan, all_devices))
    console.print("[bold]This rests on[/bold]", bullets(plan.assumptions, "·"))
    if plan.warnings:
        console.print("[bold yellow]Beware[/bold yellow]", bullets(plan.warnings, "[yellow]![/yellow]"))


def bullets(lines: Sequence[str], bullet: str) -> Table:
    """A list whose lines hang under their own beginning."""
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=True)
    for line in lines:
        table.add_row(bullet, escape(line))
    return table


def fleet_in_words(plan: Plan) -> str:
    samples = plan.fleet.class_counts.sum(axis=1)
    data = plan.scenario.data
    source = "declared counts" if data.class_counts is not None else f"{data.dataset}, {data.partition}"
    return (
        f"{plan.fleet.num_devices} devices with {_range(samples, str)} samples each, "
        f"{plan.fleet.num_classes} classes ({source}), seed {plan.scenario.seed}"
    )


def _summary_table(plan: Plan) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for label, text in summary_rows(plan):
        table.add_row(label, f"[bold]{text}[/bold]" if label == "Rounds" else text)
    return table


def summary_rows(plan: Plan) -> list[tuple[str, str]]:
    """The plan's main numbers, each with its label."""
    error = {"knowledge": "Knowledge error Φ2", PUBLIC_KNOWLEDGE: "Error of a row"}
    forecast, rounds, outage = plan.forecast, plan.rounds, plan.scenario.radio.outage
    reason = {"fixed": "fixed by the scenario", "optimal": "the exact optimum", "paper": "the paper's formula"}[
        rounds.rule
    ]
    return [
        ("Rounds", f"{rounds.chosen}, {reason}"),
        *_other_rounds(plan),
        ("What binds", f"{forecast.regime} (privacy in {forecast.privacy_binds_share:.1%} of {_rows_in_words(plan)})"),
        (
            error.get(plan.uplink.payload, "Gradient error Φ"),
            f"{number(forecast.effective_noise)}, mean of all but the worst {outage:.0%} of rounds",
        ),
        (
            "  median, quantile",
            f"{number(forecast.effective_noise_median)}, {number(forecast.effective_noise_quantile)}",
        ),
        *([] if plan.uplink.payload == PUBLIC_KNOWLEDGE else [("Convergence gap ΣΩ", number(plan.convergence_gap))]),
        *_answers_rows(plan),
        *_taking_part_rows(plan),
        *_hidden_part_rows(plan),
        *_silence_rows(plan),
        *_antenna_rows(plan),
        (
            "Transmit power",
            f"signal {_watts(forecast.signal_power_w)}, noise {_watts(forecast.noise_power_w)} a device",
        ),
        ("Uplink time", f"{with_prefix(plan.uplink_seconds, 's')} in all, {_slots(plan)} a round"),
        ("Uplink energy", f"{with_prefix(plan.uplink_joules, 'J')} in all, for the whole fleet"),
        ("Weakest device", f"{forecast.worst_snr_db:.1f} dB SNR at full power (median round)"),
    ]


def _other_rounds(plan: Plan) -> list[tuple[str, str]]:
    """T under other rules, where these are for what is sent."""
    rounds, payload = plan.rounds, plan.uplink.payload
    if payload == PUBLIC_KNOWLEDGE:
        return []
    return [
        ("  exact optimum", f"{rounds.exact} of at most {rounds.largest}"),
        ("  paper, eq. (21)" if payload == "knowledge" else "  paper's accountant", number(rounds.paper, ".10g")),
        ("  if L1, L2 were a tenth", f"{rounds.exact_smaller_constants}"),
    ]


def _rows_in_words(plan: Plan) -> str:
    return "class-rounds" if plan.uplink.payload == "knowledge" else "rounds"


def _answers_rows(plan: Plan) -> list[tuple[str, str]]:
    """Nothing where no public set is answered."""
    shared = public_predictions_of(plan.uplink)
    if shared is None:
        return []
    return [("Answers", f"{shared.most_answers} of {shared.num_samples} public samples at most, a device and round")]


def _taking_part_rows(plan: Plan) -> list[tuple[str, str]]:
    """Nothing where everybody takes part; beside what everybody would have at the same T and (ε, δ)."""
    seen = plan.taking_part
    if seen is None:
        return []
    devices = f"{seen.least_devices} to {seen.most_devices} of {plan.fleet.num_devices} devices a round"
    rounds = (
        f"{seen.least_rounds} to {seen.most_rounds} of {plan.num_rounds} rounds a device, which are what it pays for"
    )
    noise = plan.forecast.effective_noise / seen.effective_noise_of_all if seen.effective_noise_of_all else np.inf
    joules = plan.forecast.round_joules / seen.round_joules_of_all if seen.round_joules_of_all else np.inf
    costs = f"{number(noise)} times the noise, {number(joules)} times the energy, {_AS_BEFORE}"
    return [("Taking part", f"{devices}, {rounds}"), ("  beside everybody", costs)]


def _hidden_part_rows(plan: Plan) -> list[tuple[str, str]]:
    """Nothing where the server sees who takes part; beside what else the same T and (ε, δ) would have."""
    hidden = plan.hidden_part
    if hidden is None:
        return []

    def beside(other: float) -> str:
        return f"{number(plan.forecast.effective_noise / other if other else np.inf)} times the noise"

    joules = plan.forecast.round_joules / hidden.round_joules_of_all if hidden.round_joules_of_all else np.inf
    published = "says nothing: too few devices, or too seldom"
    if np.isfinite(hidden.published_noise):
        over = f"some device would have {number(hidden.published_excess)} times the ε that it asked for"
        enough = "which here is enough" if hidden.published_excess <= 1 else over
        published = f"would plan {number(hidden.published_noise)} of error in place of this plan's, {enough}"
    return [
        ("Taking part", f"each device with probability {hidden.probability:g} a round, seen by nobody; all send noise"),
        (
            "  beside everybody",
            f"{beside(hidden.effective_noise_of_all)}, {number(joules)} times the energy, {_AS_BEFORE}",
        ),
        ("  beside seen coins", beside(hidden.effective_noise_if_seen)),
        ("  the published form", published),
    ]


def _antenna_rows(plan: Plan) -> list[tuple[str, str]]:
    """Nothing for one antenna."""
    found = antenna_what_if(plan)
    if found is None:
        return []
    one = "one combiner for all classes" if found.combining == "joint" else "a combiner for each class"
    within = f"{found.gap:.1%} above its bound (median), {found.largest_gap:.1%} at worst"
    took = f"a round's design took {with_prefix(found.design_s, 's')} here"
    floors = f"{number(found.floor)}, by the first antenna alone {number(found.floor_alone)}"
    noises = f"{number(found.noise_var)}, by the first antenna alone {number(found.noise_var_alone)}"
    return [
        ("Antennas", f"{found.num_antennas}, {one}: its cost is {within}; {took}"),
        ("  they buy", f"noise of the channel {floors}"),
        ("  they cost", f"noise with privacy {noises}: all that they hear is counted; {_AS_BEFORE}"),
    ]


def _silence_rows(plan: Plan) -> list[tuple[str, str]]:
    """Nothing where everybody always speaks."""
    uplink, forecast = plan.uplink, plan.forecast
    if not isinstance(uplink, SuperposedUplink) or uplink.truncation == 0:
        return []
    level = f"{10 * np.log10(uplink.truncation):.1f} dB"
    absent = "" if plan.taking_part is None else ", those who do not take part included"
    share = f"{forecast.silent_share:.2%} of devices and rounds{absent}"
    return [("Silent", f"below |h|² = {level}: {share}; squared bias at most {number(forecast.squared_bias)}")]


def _watts(power_w: FloatArray) -> str:
    return _range(power_w, lambda value: with_prefix(value, "W"))


def _slots(plan: Plan) -> str:
    num_slots = plan.uplink.num_slots
    return f"{num_slots} slots = {with_prefix(num_slots * plan.scenario.radio.slot, 's')}"


def _noise_table(plan: Plan) -> Table:
    table = Table()
    table.add_column("class" if plan.uplink.payload == "knowledge" else "vector")
    table.add_column("required by privacy", justify="right")
    table.add_column("got", justify="right")
    required, got = plan.forecast.required_noise_var, plan.forecast.effective_noise_var
    if len(required) <= MOST_ROWS:
        for klass, (needed, received) in enumerate(zip(required, got, strict=True)):
            table.add_row(str(klass), number(needed), number(received))
        return table
    for name, pick in SUMMARIES.items():
        table.add_row(name, number(pick(required)), number(pick(got)))
    return table


Rows = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]
RECEIVERS_NOTE = (
    "* the scenario's. Gap: Theorem 1 for linear, the bound for biased receivers for the others; error: expected for "
    "linear, bounds before projection for the others"
)


def receiver_rows(plan: Plan, outlook: WhatIf) -> Rows:
    """Columns and rows of the receivers side by side."""
    own = plan.scenario.learning.receiver
    rows = tuple(
        (
            f"{receiver.name}*" if receiver.name == own else receiver.name,
            number(receiver.squared_error),
            number(receiver.convergence_gap),
            str(receiver.best_rounds),
        )
        for receiver in outlook.receivers
    )
    return ("receiver", "squared error", "gap ΣΩ", "its best T"), rows


def _receivers_table(plan: Plan, outlook: WhatIf) -> Table:
    table = starred_table(*receiver_rows(plan, outlook))
    table.caption = RECEIVERS_NOTE
    return table


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
    table = starred_table(columns, rows, narrow=True)
    table.caption = (
        "* the plan. Evidence: deviations by which a row's label, and a class's rows\n"
        "together, stand out of the noise; who pools alike samples lives on the last.\n"
        f"Rounds of which each could be read by itself: {number(public.affordable_rounds)} at most"
    )
    return table


def step_rows(outlook: WhatIf) -> Rows:
    """Columns and rows of the steps of the co-design, each with all before it."""
    first = outlook.steps[0].noise_var
    rows = tuple(
        (
            step.name if place == 0 else f"+ {step.name}",
            number(step.noise_var),
            number(first / step.noise_var) if step.noise_var > 0 else "∞",
        )
        for place, step in enumerate(outlook.steps)
    )
    return ("step", "noise variance", "times below the first"), rows


def steps_note(outlook: WhatIf) -> str:
    if not outlook.steps[0].holds:
        return "the paper's accountant leaves less noise here than (ε, δ) needs"
    return (
        "mean of all but the worst rounds, which silence is there for; --scheme airdistill takes all steps, and its "
        "receiver filters what is left"
    )


def _steps_table(outlook: WhatIf) -> Table:
    table = starred_table(*step_rows(outlook))
    table.caption = steps_note(outlook)
    return table


def privacy_rows(plan: Plan, all_devices: bool = False) -> Rows:
    """Columns and rows of asked and planned ε; large fleets are summed up unless all devices are asked for."""
    declared = plan.scenario.privacy.sensitivity
    models = [f"{model}*" if model == declared else model for model in plan.epsilon_by_model]
    values = [plan.fleet.epsilon, plan.fleet.delta, *plan.epsilon_by_model.values()]
    return ("device", "asked ε", "δ", *models), device_rows(values, all_devices)


def device_rows(columns: Sequence[FloatArray], all_devices: bool) -> tuple[tuple[str, ...], ...]:
    """A row for every device from columns `[device]`; large fleets are summed up unless all devices are asked for."""
    num_devices = len(columns[0])
    if all_devices or num_devices <= MOST_ROWS:
        return tuple((str(device), *(number(column[device]) for column in columns)) for device in range(num_devices))
    return tuple((name, *(number(pick(column)) for column in columns)) for name, pick in SUMMARIES.items())


def _privacy_table(plan: Plan, all_devices: bool) -> Table:
    table = starred_table(*privacy_rows(plan, all_devices))
    table.caption = "* declared in the scenario" + ("" if all_devices else "; --devices lists every device")
    return table


def starred_table(columns: Sequence[str], rows: Sequence[Sequence[str]], narrow: bool = False) -> Table:
    """Numbers after a first column of names; what is declared bears a star. A narrow one has no lines to its sides."""
    table = Table(caption_justify="left", box=SIMPLE_HEAD if narrow else HEAVY_HEAD, padding=(0, 1 - narrow, 0, 1))
    for position, column in enumerate(columns):
        name = f"[bold]{column}[/bold]" if column.endswith("*") else column
        table.add_column(name, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


SUMMARIES: dict[str, Callable[[FloatArray], float]] = {
    "least": lambda values: float(np.min(values)),
    "median": lambda values: float(np.median(values)),
    "most": lambda values: float(np.max(values)),
}


def _range(values: FloatArray, show: Callable[[float], str]) -> str:
    low, high = values.min(), values.max()
    return show(low) if low == high else f"{show(low)}–{show(high)}"
