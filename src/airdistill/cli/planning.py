"""Plans, and the scenarios that they start from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airdistill import DEFAULT_SCHEME
from airdistill.cli.app import app, print_json, print_summaries, print_text, scenarios_app
from airdistill.cli.options import JsonOption, LedgerOption, ScenarioArgument, SetOption

if TYPE_CHECKING:
    from airdistill.codesign.plan import Plan
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
    from airdistill.codesign.outlook import outlook_of
    from airdistill.codesign.public_outlook import public_outlook_of
    from airdistill.jsonable import jsonable

    outlook, public = outlook_of(made, with_steps=ledger is None), public_outlook_of(made)
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
        from airdistill.codesign.plan import plan

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
