"""Commands for many runs: `compare`, `leaderboard` and `reproduce`."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airdistill import DEFAULT_SCHEME
from airdistill.cli.app import (
    CheckpointEveryOption,
    CpusOption,
    DeviceOption,
    EngineOption,
    EvalDevicesOption,
    EvalEveryOption,
    EvalSamplesOption,
    GpusOption,
    JobsOption,
    JsonOption,
    OnOption,
    ScenarioArgument,
    SetOption,
    Tf32Option,
    TrackOption,
    app,
    print_json,
    print_text,
    print_warnings,
    show_log_lines,
)
from airdistill.errors import NOT_GIVEN, InputError

if TYPE_CHECKING:
    from airdistill.reproduce.leaderboard import Question
    from airdistill.runs.comparison import ComparisonRecord, OnProgress
    from airdistill.runs.planned import PlannedSweep

SchemesOption = Annotated[str, typer.Option("--schemes", metavar="A,B", help="Schemes, separated by commas.")]
SeedsOption = Annotated[
    int, typer.Option("--seeds", min=1, help="Number of seeds, starting with the scenario's; the same for all runs.")
]
RoundsOption = Annotated[
    int | None, typer.Option("--rounds", min=1, help="Plan and run so many rounds of each scheme.")
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="An empty folder, or that of the same comparison, which is resumed."),
]


@app.command("compare")
def compare_command(
    scenario: ScenarioArgument,
    schemes: SchemesOption = f"{DEFAULT_SCHEME},ota_fd,local_only",
    changes: SetOption = None,
    seeds: SeedsOption = 1,
    rounds: RoundsOption = None,
    out: OutOption = None,
    device: DeviceOption = "cpu",
    engine: EngineOption = "auto",
    tf32: Tf32Option = False,
    jobs: JobsOption = 0,
    on: OnOption = "local",
    cpus: CpusOption = None,
    gpus: GpusOption = None,
    track: TrackOption = None,
    eval_every: EvalEveryOption = 20,
    eval_devices: EvalDevicesOption = None,
    eval_samples: EvalSamplesOption = None,
    checkpoint_every: CheckpointEveryOption = 5,
    as_json: JsonOption = False,
) -> None:
    """Run several schemes with several seeds: a table, curves and a report.

    Example: airdistill compare quick --schemes ota_fd,local_only --seeds 3 --rounds 10
    """
    from airdistill.runs.comparison import compare
    from airdistill.runs.executors import executor_for
    from airdistill.runs.options import RunOptions
    from airdistill.scenario.loading import load

    options = RunOptions(
        device,
        engine,
        tf32=tf32,
        eval_every=eval_every,
        checkpoint_every=checkpoint_every,
        eval_devices=eval_devices,
        eval_samples=eval_samples,
    )
    executor = executor_for(on, cpus, gpus)
    given, names = load(scenario, changes or []), [name.strip() for name in schemes.split(",")]
    follow_comparison(
        lambda bar: compare(given, names, seeds, rounds, out, options, jobs, bar, executor, track or []), as_json
    )


@app.command("sweep")
def sweep_command(
    scenario: ScenarioArgument,
    over: Annotated[
        list[str] | None,
        typer.Option("--over", metavar="FIELD=A,B", help="A field and its values: privacy.epsilon=1,2,4. Repeatable."),
    ] = None,
    over_file: Annotated[
        Path | None,
        typer.Option("--over-file", metavar="FILE", help="A TOML file of fields, each with the list of its values."),
    ] = None,
    schemes: SchemesOption = DEFAULT_SCHEME,
    changes: SetOption = None,
    seeds: SeedsOption = 1,
    rounds: RoundsOption = None,
    out: OutOption = None,
    plans: Annotated[bool, typer.Option("--plans", help="Only plan every point; nothing is trained.")] = False,
    device: DeviceOption = "cpu",
    engine: EngineOption = "auto",
    tf32: Tf32Option = False,
    jobs: JobsOption = 0,
    on: OnOption = "local",
    cpus: CpusOption = None,
    gpus: GpusOption = None,
    track: TrackOption = None,
    eval_every: EvalEveryOption = 20,
    eval_devices: EvalDevicesOption = None,
    eval_samples: EvalSamplesOption = None,
    checkpoint_every: CheckpointEveryOption = 5,
    as_json: JsonOption = False,
) -> None:
    """Run schemes at every point of a grid of scenario fields: tables, figures by facet and a report.

    Example: airdistill sweep quick --over privacy.epsilon=1,4 --over fleet.devices=10,20 --plans
    """
    from airdistill.runs.comparison import sweep
    from airdistill.runs.executors import executor_for
    from airdistill.runs.grid import parsed_grid
    from airdistill.runs.options import RunOptions
    from airdistill.scenario.loading import load

    grid = parsed_grid(over or [], over_file)
    if not grid.axes:
        raise InputError("--over", NOT_GIVEN, "is required, or --over-file; without a grid use airdistill compare")
    given, names = load(scenario, changes or []), [name.strip() for name in schemes.split(",")]
    show_log_lines()
    if plans:
        from airdistill.runs.planned import sweep_plans

        _show_plans(sweep_plans(given, grid, names, seeds, rounds, out), as_json)
        return
    options = RunOptions(
        device,
        engine,
        tf32=tf32,
        eval_every=eval_every,
        checkpoint_every=checkpoint_every,
        eval_devices=eval_devices,
        eval_samples=eval_samples,
    )
    executor = executor_for(on, cpus, gpus)
    follow_comparison(
        lambda bar: sweep(given, grid, names, seeds, rounds, out, options, jobs, bar, executor, track or []), as_json
    )


def _show_plans(planned: PlannedSweep, as_json: bool) -> None:
    from airdistill.report.comparison import terminal_table
    from airdistill.report.sweep import plan_cells, plans_to_dict, problems_of, write_plans_page
    from airdistill.report.terminal import Terminal

    page = write_plans_page(planned)
    if as_json:
        print_json(plans_to_dict(planned))
        return
    Terminal().print(terminal_table(*plan_cells(planned)))
    print_warnings(problems_of(planned))
    print_text(f"Report: {page}")


def follow_comparison(start: Callable[[OnProgress], ComparisonRecord], as_json: bool) -> None:
    """Run a comparison with progress bars on standard error and show its results; exit code 2 if a run failed."""
    from airdistill.report.comparison import comparison_to_dict, print_comparison, write_comparison_page
    from airdistill.report.progress import comparison_bar
    from airdistill.report.terminal import Terminal

    try:
        with comparison_bar(Terminal(stderr=True)) as bar:
            record = start(bar)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; finished rounds are saved: continue with airdistill resume\n")
        sys.exit(130)
    page = write_comparison_page(record)
    if as_json:
        print_json(comparison_to_dict(record))
    else:
        print_comparison(record, Terminal())
        print_text(f"Report: {page}")
    missing = [task for task in record.comparison.tasks if task not in record.runs]
    if missing:
        tasks = ", ".join(f"{task.label} (seed {task.seed})" for task in missing)
        sys.stderr.write(f"error: {len(missing)} of {len(record.comparison.tasks)} runs did not finish: {tasks}\n")
        sys.exit(2)


@app.command("leaderboard")
def leaderboard_command(
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="An empty folder, or one to resume; by default leaderboard/."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="NAME=SOURCE", help="A dataset, repeatable; by default mnist, which is a name."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="SETTING/SCHEME",
            help="Run these only, such as mnist-iid-2/ota_head; * stands for any. Repeatable.",
        ),
    ] = None,
    changes: SetOption = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds, starting with the preset's.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few devices, samples and rounds: shows that all runs, not who is ahead.")
    ] = False,
    device: DeviceOption = "cpu",
    engine: EngineOption = "auto",
    tf32: Tf32Option = False,
    jobs: JobsOption = 0,
    eval_every: EvalEveryOption = 100,
    redraw: Annotated[bool, typer.Option("--redraw", help="Do not train, show the runs in DIR.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare all schemes, each as it was tuned, on the same settings: data, split and ε, with a verdict on each.

    Example: airdistill leaderboard --only mnist-two-classes-8/ota_head --seeds 3 --out board
    """
    from airdistill.reproduce.leaderboard import Question, sources_of
    from airdistill.runs.options import RunOptions

    folder = out or Path("leaderboard")
    if redraw:
        show_leaderboard(folder, as_json)
        return
    sources = sources_of(data or [])
    options = RunOptions(device, engine, tf32=tf32, eval_every=eval_every).resolved()
    question = Question(sources, seeds, tuple(changes or []), quick, options, tuple(only or []))
    follow_leaderboard(question, folder, jobs, as_json)


def follow_leaderboard(question: Question, folder: Path, jobs: int, as_json: bool) -> None:
    """Run a leaderboard with progress bars on standard error and show it; exit code 2 if a run failed."""
    from airdistill.report.progress import comparison_bar
    from airdistill.report.terminal import Terminal
    from airdistill.reproduce.leaderboard import run_leaderboard

    try:
        with comparison_bar(Terminal(stderr=True)) as bar:
            run_leaderboard(question, folder, jobs, bar)
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped; finished rounds are saved: continue with airdistill resume {folder}\n")
        sys.exit(130)
    missing = show_leaderboard(folder, as_json)
    if missing:
        sys.stderr.write(f"error: {len(missing)} schemes did not finish: {', '.join(missing)}\n")
        sys.exit(2)


def show_leaderboard(folder: Path, as_json: bool) -> list[str]:
    """Write the page and the table of a leaderboard and print them; return what has not finished."""
    from airdistill.report.leaderboard import leaderboard_to_dict, print_leaderboard, unfinished, write_leaderboard
    from airdistill.report.terminal import Terminal

    board, page = write_leaderboard(folder)
    if as_json:
        print_json(leaderboard_to_dict(board, folder))
    else:
        print_leaderboard(board, Terminal())
        print_text(f"Report: {page}")
    return unfinished(board)


class Figure(enum.StrEnum):
    """The paper's figures."""

    FIG2A = "fig2a"
    FIG2B = "fig2b"


@app.command("reproduce")
def reproduce_command(
    figure: Annotated[Figure, typer.Argument(help="fig2a: noise against ε. fig2b: accuracy against uplink time.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="By default figures/.")] = None,
    scenarios: Annotated[
        str, typer.Option("--scenarios", metavar="A,B", help="One or both of these presets.")
    ] = "paper,paper-literal",
    changes: SetOption = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer devices, samples and rounds.")] = False,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="fig2b: number of seeds.")] = 1,
    device: DeviceOption = "cpu",
    engine: EngineOption = "auto",
    tf32: Tf32Option = False,
    jobs: JobsOption = 0,
    eval_every: EvalEveryOption = 20,
    redraw: Annotated[bool, typer.Option("--redraw", help="fig2b: do not train, draw the runs in DIR.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compute the paper's figures again, and check its claims one by one.

    Example: airdistill reproduce fig2a --out figures
    """
    from airdistill.report.reproduction import redraw_fig2b, reproduce_fig2a, reproduce_fig2b
    from airdistill.runs.options import RunOptions

    folder, names = out or Path("figures"), [name.strip() for name in scenarios.split(",")]
    command = "airdistill " + " ".join(sys.argv[1:])
    if figure is Figure.FIG2A:
        claims = reproduce_fig2a(names, quick, changes or [], folder, command, quiet=as_json)
    elif redraw:
        claims = redraw_fig2b(names, folder, command, quiet=as_json)
    else:
        options = RunOptions(device, engine, tf32=tf32, eval_every=eval_every, checkpoint_every=20)
        try:
            claims = reproduce_fig2b(names, quick, changes or [], seeds, folder, options, jobs, command, quiet=as_json)
        except KeyboardInterrupt:
            sys.stderr.write("stopped; finished rounds are saved: continue with the same command\n")
            sys.exit(130)
    if as_json:
        print_json({name: [vars(claim) for claim in found] for name, found in claims.items()})
