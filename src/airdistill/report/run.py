"""A run on the terminal and as one page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from rich.console import Console
from rich.markup import escape

from airdistill import __version__
from airdistill.files import write_whole
from airdistill.planning.plan import Plan
from airdistill.privacy.certificate import Certificate
from airdistill.report.certificate import certificate_section, devices_section
from airdistill.report.drawing import count_rounds, looks_for, new_figure, svg_of
from airdistill.report.links import links_section
from airdistill.report.page import Bullets, Command, Drawing, Facts, Page, Paragraph, Section, render
from airdistill.report.plan import plan_section, privacy_section
from airdistill.report.terminal import bullets, facts_table
from airdistill.report.wording import (
    accuracy_in_words,
    antennas_in_words,
    number,
    participation_in_words,
    sample_in_words,
)
from airdistill.runs.accounts import certify
from airdistill.runs.folder import PLAN, RUN, SCENARIO
from airdistill.runs.record import RunRecord
from airdistill.runs.results import accuracy_curve, received_noise
from airdistill.schemes.base import BLUE, GREEN, ORANGE
from airdistill.units import rounded_up, with_prefix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPORT = "report.html"


def print_run(record: RunRecord, console: Console, certificate: Certificate | None = None) -> None:
    """Print the results and the folder of a run; its `certificate`, if known, takes seconds for a large fleet."""
    certificate = certificate or certify(record.folder)
    summary = record.summary
    accuracy, iterate = summary["accuracy"], summary["random_iterate"]
    rows = [
        (
            "Accuracy",
            f"{accuracy_in_words(accuracy)} mean over devices, {accuracy['worst']:.2%} to {accuracy['best']:.2%}",
        ),
        *_sample_row("  measured on", accuracy),
        ("  on own classes", f"{accuracy['own_classes']:.2%}"),
        *_about_iterate(iterate, summary["rounds"]),
        ("Rounds", _rounds_and_end(summary)),
        ("Uplink", f"{with_prefix(summary['uplink_seconds'], 's')}, {with_prefix(summary['measured_joules'], 'J')}"),
        ("Privacy spent", f"ε {rounded_up(summary['epsilon_spent'])} at most, sensitivity {summary['sensitivity']}"),
        *_vote_facts(record),
        *_budget_row(summary),
        ("Certificate", escape(certificate.verdict_in_words)),
        ("Record", escape(str(record.folder))),
        *(("Damage", escape(line)) for line in record.damage),
    ]
    title = f"[bold]{escape(summary['name'])}, {escape(summary['scheme'])}[/bold]"
    console.print(title, facts_table(rows), sep="\n")
    if summary["epsilon_spent"] not in (0, None):
        console.print("[bold]Assumptions[/bold]", bullets(summary["assumptions"], "·"))


def _sample_row(label: str, accuracy: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The sample on which accuracy was measured; nothing if that is everything."""
    words = sample_in_words(accuracy)
    return () if words is None else ((label, words),)


def _budget_row(summary: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """How runs of one ledger shared the privacy budget; nothing of a run that took no models over."""
    shares = summary.get("budget_shares")
    if shares is None:
        return ()
    words = f"{shares['earlier_runs']:.1%} earlier runs, {shares['this_run']:.1%} this one"
    return (("  shares of μ²", f"{words}, {max(shares['left'], 0.0):.1%} left"),)


def _about_iterate(iterate: Mapping[str, Any], rounds: int) -> list[tuple[str, str]]:
    """The row on Theorem 1's random iterate; none in a run of one round, which starts with it."""
    start = f"the start of round {iterate['round']}"
    if iterate["accuracy"]:
        return [("  random iterate", f"{accuracy_in_words(iterate['accuracy'])}, {start}")]
    return [("  random iterate", f"{start}, which did not happen")] if iterate["round"] > rounds else []


def _rounds_and_end(summary: Mapping[str, Any]) -> str:
    early = "" if summary["ended_because"] is None else f"; then the budget was spent: {summary['ended_because']}"
    return f"{summary['rounds']}{escape(early)}"


def write_run_page(record: RunRecord, certificate: Certificate | None = None) -> Path:
    """Write `report.html` to the run's folder, and return its path."""
    path = record.folder / REPORT
    write_whole(path, render(run_page(record, certificate)).encode())
    return path


def run_page(record: RunRecord, certificate: Certificate | None = None) -> Page:
    """Return the results, the plan, the certificate and the commands of a run."""
    plan, certificate = plan_of(record), certificate or certify(record.folder)
    summary = record.summary
    return Page(
        title=f"{summary['name']}, {summary['scheme']}",
        subtitle=f"One run, seed {plan.scenario.seed}, {_rounds_in_words(summary, plan)}",
        sections=(
            Section("Results", (*_damage(record), Facts(_result_facts(record)), *_drawings(record))),
            plan_section(plan),
            *links_section(plan),
            certificate_section(certificate),
            devices_section(certificate),
            privacy_section(plan),
            Section("How to reproduce", _commands(record, plan)),
        ),
        made_by=f"airdistill {__version__}",
    )


def _damage(record: RunRecord) -> tuple[Bullets, ...]:
    return (Bullets(record.damage, "warning"),) if record.damage else ()


def _rounds_in_words(summary: Mapping[str, Any], plan: Plan) -> str:
    if summary["ended_because"] is None:
        return f"{summary['rounds']} round{'' if summary['rounds'] == 1 else 's'}"
    return f"{summary['rounds']} of {plan.num_rounds} rounds: the privacy budget was spent"


def plan_of(record: RunRecord) -> Plan:
    """Read the plan that is stored with the run."""
    return Plan.from_dict(json.loads((record.folder / PLAN).read_text()))


def _result_facts(record: RunRecord) -> tuple[tuple[str, str], ...]:
    summary, accuracy = record.summary, record.summary["accuracy"]
    return (
        ("Accuracy", f"{accuracy_in_words(accuracy)}, mean over the devices' own models on the common test set"),
        *_sample_row("Measured on", accuracy),
        ("Worst and best device", f"{accuracy['worst']:.2%} and {accuracy['best']:.2%}"),
        ("On own classes", f"{accuracy['own_classes']:.2%}"),
        ("Uplink time", with_prefix(summary["uplink_seconds"], "s")),
        ("Energy", f"{with_prefix(summary['measured_joules'], 'J')} measured, for the whole fleet"),
        ("Privacy spent", f"ε {rounded_up(summary['epsilon_spent'])} of the worst device ({summary['sensitivity']})"),
        *_link_facts(record),
        *_label_facts(record),
        *_vote_facts(record),
    )


def _link_facts(record: RunRecord) -> list[tuple[str, str]]:
    """Describe the link; nothing if the scheme does not transmit, or if the summary is from an older version."""
    link, noise = record.summary.get("link"), received_noise(record)
    if link is None:
        return []
    measured = [] if noise is None else [("Noise", f"variance {number(noise)} per received entry (median)")]
    return [("Antennas", antennas_in_words(link)), ("Participation", participation_in_words(link)), *measured]


def _label_facts(record: RunRecord) -> list[tuple[str, str]]:
    """Say how many labels of a public set are correct after each step, if its labels are known."""
    right = record.rounds[-1].get("labels_right") if record.rounds else None
    if right is None:
        return []
    words = {"ideal": "in the sum without noise", "received": "as received", "broadcast": "as broadcast"}
    known = cast("dict[str, float]", right)
    shares = [f"{known[name]:.1%} {text}" for name, text in words.items() if name in known]
    return [("Correct labels", f"{', '.join(shares)} (public samples, last round)")]


def _vote_facts(record: RunRecord) -> list[tuple[str, str]]:
    """How many public samples a trusted aggregator answered, and the data-dependent ε; nothing for other schemes."""
    found = cast("dict[str, Any] | None", record.rounds[-1].get("pate")) if record.rounds else None
    if found is None:
        return []
    rows = [("Answered", f"{found['answered']} of {found['queries']} public samples that were asked about")]
    if "data_dependent_epsilon" in found:
        numbers = f"ε {rounded_up(found['data_dependent_epsilon'])}, by the published formula "
        numbers += rounded_up(found["published_epsilon"])
        rows.append(("  data-dependent", f"{numbers}: computed from private votes, not sanitised, no guarantee"))
    return rows


def _drawings(record: RunRecord) -> tuple[Drawing, ...]:
    drawings = [Drawing(svg_of(_accuracy_figure(record)), "Test accuracy after every evaluated round.", "Accuracy")]
    if any("measured_noise_var" in line for line in record.rounds):
        caption = "Noise at the server, mean over the received entries: predicted by the design, and measured."
        if record.rounds[-1].get("estimate_error") is not None:
            caption += " Below it the error that remains after the receiver."
        drawings.append(Drawing(svg_of(_noise_figure(record)), caption, "Predicted and measured noise by round"))
    return tuple(drawings)


def _accuracy_figure(record: RunRecord) -> Figure:
    figure, (axes,) = new_figure(height=3.6)
    rounds, accuracy = accuracy_curve(record)
    look = looks_for([record.summary["scheme"]])[record.summary["scheme"]]
    axes.plot(rounds, 100 * accuracy, **look.style())
    count_rounds(axes)
    axes.set_ylabel("test accuracy (%)")
    return figure


def _noise_figure(record: RunRecord) -> Figure:
    figure, (axes,) = new_figure(height=3.6)
    lines = [line for line in record.rounds if "measured_noise_var" in line]
    rounds = [line["round"] for line in lines]
    for key, label, colour, style in [
        ("measured_noise_var", "measured", ORANGE, "."),
        ("predicted_noise_var", "predicted", BLUE, "-"),
        ("estimate_error", "of the broadcast", GREEN, "."),
        ("expected_error", "expected by the receiver", GREEN, "--"),
    ]:
        if lines[-1].get(key) is not None:
            values = [
                np.mean([value for value in cast("Any", line)[key] if value is not None] or [np.nan]) for line in lines
            ]
            axes.plot(rounds, values, style, color=colour, label=label)
    count_rounds(axes)
    axes.set_ylabel("squared error per entry")
    if len(lines) == 1:
        axes.set_ylim(0, 1.25 * axes.dataLim.y1)
    elif any(max(filter(None, line["predicted_noise_var"]), default=0) > 0 for line in lines):
        axes.set_yscale("log")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _commands(record: RunRecord, plan: Plan) -> tuple[Paragraph | Command, ...]:
    scheme = json.loads((record.folder / RUN).read_text())["scheme"]
    return (
        Paragraph("The same command gives the same numbers on the same machine. The full scenario:"),
        Command(f"airdistill run scenario.toml --scheme {scheme} --rounds {plan.num_rounds}"),
        Command((record.folder / SCENARIO).read_text()),
    )
