"""Commands for one run: `run`, `resume` and `report`; and `schemes`."""

from __future__ import annotations

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
    LedgerOption,
    OnOption,
    ScenarioArgument,
    SchemeOption,
    SetOption,
    Tf32Option,
    ThreadsOption,
    TrackOption,
    app,
    print_json,
    print_summaries,
    print_text,
    print_warnings,
    show_log_lines,
)
from airdistill.cli.comparing import follow_comparison, follow_leaderboard
from airdistill.errors import InputError

if TYPE_CHECKING:
    from airdistill.runs.record import RunRecord
    from airdistill.runs.tracking import OnRound


@app.command("run")
def run_command(
    scenario: ScenarioArgument,
    scheme: SchemeOption = DEFAULT_SCHEME,
    changes: SetOption = None,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Plan and run so many rounds.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="An empty folder; by default a new one under runs/.")
    ] = None,
    ledger: LedgerOption = None,
    after: Annotated[
        Path | None,
        typer.Option(
            "--after",
            metavar="RUN",
            help="An ended run of the same devices: they start with its models, and its ledger is continued.",
        ),
    ] = None,
    device: DeviceOption = "cpu",
    engine: EngineOption = "auto",
    tf32: Tf32Option = False,
    threads: ThreadsOption = 0,
    eval_every: EvalEveryOption = 20,
    eval_devices: EvalDevicesOption = None,
    eval_samples: EvalSamplesOption = None,
    checkpoint_every: CheckpointEveryOption = 5,
    track: TrackOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a fleet, and write a record that can be resumed, certified and plotted.

    Example: airdistill run quick --scheme fd_error_free --rounds 5 --out my-run
    """
    from airdistill.runs.options import RunOptions
    from airdistill.runs.runner import run
    from airdistill.scenario.loading import load

    options = RunOptions(
        device,
        engine,
        threads,
        tf32=tf32,
        eval_every=eval_every,
        checkpoint_every=checkpoint_every,
        eval_devices=eval_devices,
        eval_samples=eval_samples,
    )
    given = load(scenario, changes or [])

    def start(on_round: OnRound) -> RunRecord:
        return run(given, scheme, rounds, out, options, on_round, ledger, after, track or [])

    _follow(start, f"{given.name}, {scheme}", as_json)


@app.command("resume")
def resume_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, a comparison's, or a leaderboard's.")],
    jobs: JobsOption = 0,
    on: OnOption = "local",
    cpus: CpusOption = None,
    gpus: GpusOption = None,
    track: TrackOption = None,
    eval_devices: EvalDevicesOption = None,
    eval_samples: EvalSamplesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Resume a run, a comparison, a sweep or a leaderboard that was stopped or killed, bit-identically.

    Example: airdistill resume runs/quick-ota_fd
    """
    from airdistill.reproduce.leaderboard import LEADERBOARD, Question
    from airdistill.runs.comparison import COMPARISON, resume_comparison
    from airdistill.runs.executors import executor_for
    from airdistill.runs.runner import resume

    if on != "local" and not (folder / COMPARISON).exists():
        raise InputError("--on", on, "is for comparisons and sweeps; all others are resumed on this machine")
    sample = {"--eval-devices": eval_devices, "--eval-samples": eval_samples}
    for name, given in sample.items():
        if given is not None and ((folder / LEADERBOARD).exists() or (folder / COMPARISON).exists()):
            raise InputError(name, given, "is for a run; those of a comparison are measured as it was begun")
    if (folder / LEADERBOARD).exists():
        follow_leaderboard(Question.read(folder), folder, jobs, as_json)
        return
    if (folder / COMPARISON).exists():
        executor = executor_for(on, cpus, gpus)
        follow_comparison(lambda bar: resume_comparison(folder, jobs, bar, executor, track or []), as_json)
        return
    _follow(lambda on_round: resume(folder, on_round, track or [], eval_devices, eval_samples), str(folder), as_json)


def _follow(start: Callable[[OnRound], RunRecord], label: str, as_json: bool) -> None:
    """Run with a progress bar on standard error; Ctrl-C saves the finished rounds and exits with code 130."""
    from airdistill.report.progress import round_bar
    from airdistill.report.run import print_run, write_run_page
    from airdistill.report.terminal import Terminal
    from airdistill.runs.accounts import certify

    show_log_lines()
    try:
        with round_bar(Terminal(stderr=True), label) as on_round:
            record = start(on_round)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; finished rounds are saved: continue with airdistill resume\n")
        sys.exit(130)
    certificate = certify(record)
    page = write_run_page(record, certificate)
    if as_json:
        damage = {"damage": record.damage} if record.damage else {}
        print_json({"folder": str(record.folder), "report": str(page), **damage, **record.summary})
    else:
        print_run(record, Terminal(), certificate)


@app.command("report")
def report_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, a comparison's, or a leaderboard's.")],
) -> None:
    """Write the report of a run, a comparison or a leaderboard again: one HTML file.

    Example: airdistill report runs/quick-ota_fd
    """
    from airdistill.report.comparison import write_comparison_page
    from airdistill.report.leaderboard import problems_of, write_leaderboard
    from airdistill.report.run import write_run_page
    from airdistill.reproduce.leaderboard import LEADERBOARD
    from airdistill.runs.comparison import COMPARISON, ComparisonRecord
    from airdistill.runs.record import ended_run

    if (folder / LEADERBOARD).exists():
        board, page = write_leaderboard(folder)
        print_warnings(problems_of(board))
        print_text(str(page))
    elif (folder / COMPARISON).exists():
        comparison = ComparisonRecord.read(folder)
        print_warnings(comparison.problems)
        print_text(str(write_comparison_page(comparison)))
    else:
        record = ended_run(folder)
        print_warnings(record.damage)
        print_text(str(write_run_page(record)))


@app.command("schemes")
def schemes_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SCHEME]...", help="Show these only; your own as package.module:Scheme."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the schemes, or show those that are named.

    Example: airdistill schemes --json
    """
    from airdistill.schemes.registry import SCHEMES, load_scheme

    schemes = [load_scheme(name) for name in names or SCHEMES]
    print_summaries({scheme.name: " ".join((type(scheme).__doc__ or "").split()) for scheme in schemes}, as_json)
