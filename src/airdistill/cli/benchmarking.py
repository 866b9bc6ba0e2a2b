"""The commands `airdistill bench` (speed and memory of the engines) and `airdistill bench receivers` (their errors)."""

from __future__ import annotations

from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from airdistill.cli.app import JsonOption, SetOption, app, print_json

_DEFAULT = "engines"


class _WithDefault(TyperGroup):
    """`airdistill bench [SCENARIO]` measures the engines: their command's name can be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in self.commands or args[0] in ("-h", "--help"))
        return super().parse_args(ctx, args if named else [_DEFAULT, *args])


bench_app = typer.Typer(cls=_WithDefault, rich_markup_mode=None)
app.add_typer(bench_app, name="bench")


@bench_app.callback()
def _bench() -> None:
    """Measure the learning engines (`airdistill bench [SCENARIO]`), or the errors of receivers.

    Example: airdistill bench receivers small-data --epsilon 8
    """


@bench_app.command(_DEFAULT)
def engines_command(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="A preset's name or a TOML file, whose fleet is measured.")
    ] = "paper",
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Rounds of each engine; the fastest one counts.")
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """Measure time and memory of a round, full-batch and minibatch, against a naive loop and the machine's limit.

    Example: airdistill bench engines quick --json
    """
    from airdistill.bench.engines import measure_engines

    measured = measure_engines(scenario, repeats)
    if as_json:
        print_json(measured)
        return
    from airdistill.report.terminal import Terminal, print_bench

    print_bench(measured, Terminal())


@bench_app.command("receivers")
def receivers_command(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="A preset's name or a TOML file, whose class means are estimated.")
    ] = "small-data",
    epsilon: Annotated[
        list[float] | None,
        typer.Option("--epsilon", help="Privacy target whose design noise is received. Repeatable. [default: 0.5 2 8]"),
    ] = None,
    changes: SetOption = None,
    rounds: Annotated[int, typer.Option("--rounds", min=3, help="Rounds of every run.")] = 100,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Error-free runs that are reported.")] = 3,
    tuning_seeds: Annotated[
        int, typer.Option("--tuning-seeds", min=1, help="Error-free runs with other seeds, to fit constants to.")
    ] = 3,
    paths: Annotated[int, typer.Option("--paths", min=2, help="Simulated runs of each fitted process.")] = 20,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Noise draws of every recorded run.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Compare the squared errors of receivers of class means at equal ε, in dB, with a lower bound.

    Example: airdistill bench receivers quick --epsilon 8 --seeds 2
    """
    from airdistill.bench.receivers import EPSILONS, Work, measure_receivers
    from airdistill.report.progress import stage_bar
    from airdistill.report.receivers import print_receivers
    from airdistill.report.terminal import Terminal
    from airdistill.scenario.loading import load
    from airdistill.stages import listening

    work = Work(rounds, seeds, tuning_seeds, paths, repeats)
    with stage_bar(Terminal(stderr=True)) as bar, listening(bar):
        measured = measure_receivers(load(scenario, changes or []), epsilon or EPSILONS, work)
    if as_json:
        print_json(measured)
    else:
        print_receivers(measured, Terminal())
