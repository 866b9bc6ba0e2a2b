"""Plans, and the scenarios that they start from.

Pilots: the constants that a plan needs, measured.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airdistill import DEFAULT_SCHEME
from airdistill.cli.app import (
    JsonOption,
    LedgerOption,
    ScenarioArgument,
    SetOption,
    app,
    print_json,
    print_summaries,
    print_text,
    scenarios_app,
)
from airdistill.errors import InputError

if TYPE_CHECKING:
    from airdistill.planning.plan import Plan
    from airdistill.scenario.model import Scenario


@app.command("plan")
def plan_command(
    scenario: ScenarioArgument,
    changes: SetOption = None,
    scheme: Annotated[
        str | None, typer.Option("--scheme", metavar="NAME", help="Plan for a scheme; by default ota_fd's knowledge.")
    ] = None,
    rounds: Annotated[
        str | None,
        typer.Option("--rounds", metavar="N", help='Fix the rounds: a number, "optimal" or "paper".'),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the gap against T (.png, .svg, .pdf).")
    ] = None,
    ledger: LedgerOption = None,
    devices: Annotated[bool, typer.Option("--devices", help="List the privacy of every device.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Rounds, powers, what binds, and what privacy costs.

    Example: airdistill plan paper --set radio.peak_power="10 mW" --plot gap.png
    """
    from airdistill.scenario.loading import load

    asked = [*(changes or []), *([f"learning.rounds={rounds}"] if rounds is not None else [])]
    fixed = int(rounds) if rounds is not None and rounds.isdigit() else None
    made = _planned(load(scenario, asked), scheme, fixed, ledger)
    if plot is not None:
        from airdistill.report.plan_figure import plot_gap

        plot_gap(made, plot)
    from airdistill.files import jsonable
    from airdistill.planning.what_if.public_set import public_set_what_if
    from airdistill.planning.what_if.steps import what_if

    outlook, public = what_if(made, with_steps=ledger is None), public_set_what_if(made)
    if as_json:
        told = {"outlook": outlook, "public_outlook": public}
        found = {name: None if each is None else jsonable(asdict(each)) for name, each in told.items()}
        print_json(made.to_dict() | found)
        return
    from airdistill.report.plan_table import print_plan
    from airdistill.report.terminal import Terminal

    print_plan(made, Terminal(), devices, outlook, public)
    if scheme is None:
        print_text(
            f"Planned as the scenario stands. A run trains with {DEFAULT_SCHEME}: --scheme {DEFAULT_SCHEME} plans that."
        )


def _planned(scenario: Scenario, scheme: str | None, rounds: int | None, ledger: Path | None) -> Plan:
    """Without a scheme nothing is loaded that only training needs; with one, a number of rounds has the last word."""
    if scheme is None and ledger is None:
        from airdistill.planning.plan import plan

        return plan(scenario)
    from airdistill.runs.accounts import spent_by_earlier_runs
    from airdistill.schemes.planning import as_run_by, plan_scheme
    from airdistill.schemes.registry import load_scheme

    chosen = load_scheme(scheme or "ota_fd")
    adapted = as_run_by(chosen, scenario, rounds)
    return plan_scheme(chosen, adapted, spent_by_earlier_runs(ledger, adapted))


@scenarios_app.callback()
def scenarios_command(context: typer.Context, as_json: JsonOption = False) -> None:
    """The presets: list them, or print one to start from.

    Example: airdistill scenarios show paper > mine.toml
    """
    if context.invoked_subcommand is not None:
        return
    from airdistill.scenario.loading import preset_names, preset_summary

    print_summaries({name: preset_summary(name) for name in preset_names()}, as_json)


@scenarios_app.command("show")
def show_command(name: Annotated[str, typer.Argument(metavar="NAME", help="A preset's name.")]) -> None:
    """Print a preset's TOML.

    Example: airdistill scenarios show paper > mine.toml
    """
    from airdistill.scenario.loading import preset_text

    print_text(preset_text(name).rstrip("\n"))


@scenarios_app.command("fields")
def fields_command(
    section: Annotated[str, typer.Argument(metavar="SECTION", help="Of one alone, such as radio.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Every field that a scenario can have: its kind, its default, what it means.

    Example: airdistill scenarios fields radio
    """
    from airdistill.scenario.reference import fields_of_section

    fields = fields_of_section(section)
    if as_json:
        print_json([asdict(field) for field in fields])
        return
    from airdistill.report.fields_table import print_fields
    from airdistill.report.terminal import Terminal

    print_fields(fields, Terminal())


@app.command("pilot")
def pilot_command(
    scenario: ScenarioArgument,
    changes: SetOption = None,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="DATA",
            help="synthetic; public: the test half of the scenario's dataset; private: the devices' own; or a path.",
        ),
    ] = "synthetic",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Of each repeat.")] = 10,
    devices: Annotated[
        int | None, typer.Option("--devices", min=1, help="Of each repeat; by default 2, and one of each model.")
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="With other weights, samples and devices.")] = 3,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the scenario with the measured constants.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure L1, L2, S and f_max in a short run, and see how the optimal rounds move.

    Example: airdistill pilot paper --data public --out measured.toml
    """
    _check_free(out)
    from airdistill.files import write_whole
    from airdistill.report.pilot_table import print_pilot
    from airdistill.report.progress import stage_bar
    from airdistill.report.terminal import Terminal
    from airdistill.runs.piloting import pilot
    from airdistill.scenario.loading import load

    given = load(scenario, changes or [])
    try:
        with stage_bar(Terminal(stderr=True)) as tell:
            record = pilot(
                given, data, rounds, devices, repeats, on_progress=lambda done, in_all: tell("rounds", done, in_all)
            )
    except KeyboardInterrupt:
        sys.stderr.write("stopped; nothing was written\n")
        sys.exit(130)
    if out is not None:
        _check_free(out)
        write_whole(out, record.to_toml().encode())
    if as_json:
        print_json({**record.to_dict(), "written": None if out is None else str(out)})
        return
    print_pilot(record, Terminal())
    if out is not None:
        print_text(f"Scenario: {out}")


def _check_free(out: Path | None) -> None:
    """Before the work and after it: a scenario is a person's own, and may carry comments that a new one would not."""
    if out is not None and out.exists():
        raise InputError("--out", str(out), "exists already; name another file")
    if out is not None and not out.parent.is_dir():
        raise InputError("--out", str(out), "its folder does not exist")
