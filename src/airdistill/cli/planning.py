"""Commands before a run: `plan`, `scenarios` and `pilot`."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from airdistill import DEFAULT_SCHEME
from airdistill.cli.app import (
    JsonOption,
    LedgerOption,
    ScenarioArgument,
    SchemeOption,
    SetOption,
    app,
    print_json,
    print_summaries,
    print_text,
    scenarios_app,
)
from airdistill.errors import AirDistillError, InputError
from airdistill.stages import listening

_WHAT_IFS = "what-if designs"


@app.command("plan")
def plan_command(
    scenario: ScenarioArgument,
    changes: SetOption = None,
    scheme: SchemeOption = DEFAULT_SCHEME,
    rounds: Annotated[
        str | None,
        typer.Option("--rounds", metavar="N", help='The number of rounds, "optimal", or "paper" for eq. (21).'),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the gap against T (.png, .svg, .pdf).")
    ] = None,
    ledger: LedgerOption = None,
    devices: Annotated[
        bool,
        typer.Option("--devices", help="List every device's privacy and link, and draw a map of letters."),
    ] = False,
    map_file: Annotated[
        Path | None, typer.Option("--map", metavar="FILE", help="Draw a map of the devices (.png, .svg, .pdf).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Plan what `run` runs: rounds, powers, limiting factor, and the cost of privacy. --scheme ota_fd is the paper's.

    Example: airdistill plan paper --scheme ota_fd --set radio.peak_power="10 mW" --plot gap.png
    """
    from airdistill.files import jsonable
    from airdistill.planning.what_if.feature_means import embedding_cost, feature_evidence
    from airdistill.planning.what_if.public_set import public_set_what_if
    from airdistill.planning.what_if.steps import what_if
    from airdistill.report.progress import stage_bar
    from airdistill.report.terminal import Terminal
    from airdistill.runs.options import plan
    from airdistill.scenario.loading import load

    given = load(scenario, changes or [])
    for option, path in (("--plot", plot), ("--map", map_file)):
        if path is not None:
            from airdistill.report.plan_figure import check_figure_path

            check_figure_path(option, path)  # before the work, not after it
    with stage_bar(Terminal(stderr=True), transient=True) as show, listening(show):
        made = plan(given, scheme, _rounds(rounds), ledger)
        show(_WHAT_IFS, 0, 2)
        ablation = what_if(made, with_steps=ledger is None)
        show(_WHAT_IFS, 1, 2)
        public = public_set_what_if(made)
    if plot is not None:
        from airdistill.report.plan_figure import plot_gap

        plot_gap(made, plot)
    if map_file is not None:
        from airdistill.report.links import plot_map

        plot_map(made, map_file)
    if as_json:
        what_ifs: dict[str, Any] = {"outlook": ablation, "public_outlook": public}
        what_ifs |= {"evidence_forecast": feature_evidence(made), "embedding_cost": embedding_cost(made)}
        found = {name: None if each is None else jsonable(asdict(each)) for name, each in what_ifs.items()}
        if devices:
            from airdistill.report.links import links_json

            found |= links_json(made)
        print_json(made.to_dict() | found)
        return
    from airdistill.report.plan import print_plan

    print_plan(made, Terminal(), devices, ablation, public)
    if devices:
        from airdistill.report.links import print_links

        print_links(made, Terminal())
    print_text(f"This plans --scheme {scheme}; the paper's scheme is ota_fd.")


def _rounds(given: str | None) -> Any:
    """Return a number of rounds as an integer; other texts are left to the scenario's rule for `learning.rounds`."""
    return int(given) if given is not None and given.isdecimal() else given


@scenarios_app.callback()
def scenarios_command(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the presets, or print one of them.

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
    section: Annotated[str, typer.Argument(metavar="SECTION", help="One section, such as radio; by default all.")] = "",
    as_json: JsonOption = False,
) -> None:
    """List every field of a scenario with its type, default and meaning.

    Example: airdistill scenarios fields radio
    """
    from airdistill.scenario.reference import fields_of_section

    fields = fields_of_section(section)
    if as_json:
        print_json([asdict(field) for field in fields])
        return
    from airdistill.report.terminal import Terminal, print_fields

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
            help="synthetic; public: the scenario's test set; private: the devices' own; or a public dataset's path.",
        ),
    ] = "synthetic",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds of each repeat.")] = 10,
    devices: Annotated[
        int | None, typer.Option("--devices", min=1, help="Devices of each repeat; by default 2, or one of each model.")
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Repeats with other weights, samples and devices.")
    ] = 3,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the scenario with the measured constants.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure L1, L2, S and f_max in short runs, and show the optimal number of rounds for them.

    Example: airdistill pilot paper --data public --out measured.toml
    """
    _check_free(out)
    from airdistill.report.pilot import print_pilot
    from airdistill.report.progress import stage_bar
    from airdistill.report.terminal import Terminal
    from airdistill.runs.piloting import pilot
    from airdistill.scenario.loading import load

    given = load(scenario, changes or [])
    try:
        with stage_bar(Terminal(stderr=True)) as report_stage:
            record = pilot(
                given,
                data,
                rounds,
                devices,
                repeats,
                on_progress=lambda done, total: report_stage("rounds", done, total),
            )
    except KeyboardInterrupt:
        sys.stderr.write("stopped; nothing was written\n")
        sys.exit(130)
    # The constants are printed even if they cannot be written any more: measuring them took minutes.
    problem = None if out is None else _written(out, record.to_toml())
    if as_json:
        print_json({**record.to_dict(), "written": None if out is None or problem else str(out)})
    else:
        print_pilot(record, Terminal())
    if problem is not None:
        raise problem
    if out is not None and not as_json:
        print_text(f"Scenario: {out}")


def _check_free(out: Path | None) -> None:
    """Reject an existing file, before and after the work: it may contain comments that would be lost.

    Also reject a folder in which no file can be written.
    """
    if out is None:
        return
    if out.exists():
        raise InputError("--out", str(out), "exists already; choose another file")
    if not out.parent.is_dir():
        raise InputError("--out", str(out), "its folder does not exist")
    try:
        tempfile.TemporaryFile(dir=out.parent).close()
    except OSError as error:
        raise InputError("--out", str(out), f"cannot be written: {error.strerror}; choose another folder") from None


def _written(out: Path, text: str) -> Exception | None:
    """Write the file; the error if that is not possible."""
    from airdistill.files import write_whole

    try:
        _check_free(out)
        write_whole(out, text.encode())
    except (AirDistillError, OSError) as error:
        return error
    return None
