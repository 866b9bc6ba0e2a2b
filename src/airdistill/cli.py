"""The command line. No logic of its own: each command reads one value and writes another.

Imports stand inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from airdistill import __version__
from airdistill.errors import AirDistillError

app = typer.Typer(
    name="airdistill",
    help="Differentially private over-the-air federated distillation: plan, simulate, certify, deploy.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
scenarios_app = typer.Typer(rich_markup_mode=None)
app.add_typer(scenarios_app, name="scenarios", invoke_without_command=True)

ScenarioArgument = Annotated[str, typer.Argument(metavar="SCENARIO", help="A preset's name or a TOML file.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help='Change a field: --set radio.peak_power="10 mW". Repeatable.'),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def main() -> None:
    """Runs a command; what a user can put right is one line on standard error and exit code 2."""
    try:
        app()
    except AirDistillError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


def _print_version(asked: bool) -> None:
    if asked:
        _print_text(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command("plan")
def plan_command(
    scenario: ScenarioArgument,
    changes: SetOption = None,
    rounds: Annotated[
        str | None,
        typer.Option("--rounds", metavar="N", help='Fix the rounds: a number, "optimal" or "paper".'),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the gap against T (.png, .svg, .pdf).")
    ] = None,
    devices: Annotated[bool, typer.Option("--devices", help="List the privacy of every device.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Rounds, powers, what binds, and what privacy costs.

    Example: airdistill plan paper --set radio.peak_power="10 mW" --plot gap.png
    """
    from airdistill.codesign.plan import plan
    from airdistill.scenario.loading import load

    asked = [*(changes or []), *([f"learning.rounds={rounds}"] if rounds is not None else [])]
    made = plan(load(scenario, asked))
    if plot is not None:
        from airdistill.report.plan_figure import plot_gap

        plot_gap(made, plot)
    if as_json:
        _print_json(made.to_dict())
        return
    from rich.console import Console

    from airdistill.report.plan_table import print_plan

    print_plan(made, Console(), devices)


@scenarios_app.callback()
def scenarios_command(context: typer.Context, as_json: JsonOption = False) -> None:
    """The presets: list them, or print one to start from.

    Example: airdistill scenarios show paper > mine.toml
    """
    if context.invoked_subcommand is not None:
        return
    from airdistill.scenario.loading import preset_names, preset_summary

    summaries = {name: preset_summary(name) for name in preset_names()}
    if as_json:
        _print_json(summaries)
        return
    width = max(len(name) for name in summaries)
    for name, summary in summaries.items():
        _print_text(f"{name:<{width}}  {summary}")


@scenarios_app.command("show")
def show_command(name: Annotated[str, typer.Argument(metavar="NAME", help="A preset's name.")]) -> None:
    """Print a preset's TOML.

    Example: airdistill scenarios show paper > mine.toml
    """
    from airdistill.scenario.loading import preset_text

    _print_text(preset_text(name).rstrip("\n"))


def _print_json(value: Any) -> None:
    import json

    _print_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def _print_text(text: str) -> None:
    typer.echo(text)
