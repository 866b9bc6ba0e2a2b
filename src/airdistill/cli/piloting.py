"""Pilots: the constants that a plan needs, measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from airdistill.cli.app import app, print_json, print_text
from airdistill.cli.options import JsonOption, ScenarioArgument, SetOption
from airdistill.errors import InputError


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
