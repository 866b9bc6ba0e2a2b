"""The command line. No logic of its own: each command reads one value and writes another.

Imports stand inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import enum
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click.exceptions import Abort, ClickException, NoArgsIsHelpError

from airdistill import __version__
from airdistill.errors import AirDistillError

if TYPE_CHECKING:
    from airdistill.codesign.plan import Plan
    from airdistill.runs.comparison import ComparisonRecord, OnProgress
    from airdistill.runs.record import RunRecord
    from airdistill.runs.runner import OnRound
    from airdistill.scenario.model import Scenario

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
LedgerOption = Annotated[
    Path | None,
    typer.Option("--ledger", metavar="RUN", help="An earlier run of the same devices: go on from what they spent."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def main() -> None:
    """Runs a command; what a user can put right is one line on standard error and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show ε still shows the rest
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except NoArgsIsHelpError as asked:
        _print_text(asked.format_message())
        sys.exit(2)
    except (AirDistillError, ClickException) as error:
        message = error.format_message() if isinstance(error, ClickException) else str(error)
        sys.stderr.write(f"error: {message}\n")
        sys.exit(2)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        sys.exit(2)
    except (Abort, KeyboardInterrupt):
        sys.stderr.write("stopped\n")
        sys.exit(130)


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
    if as_json:
        _print_json(made.to_dict())
        return
    from rich.console import Console

    from airdistill.report.plan_table import print_plan

    print_plan(made, Console(), devices)


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


SchemeOption = Annotated[
    str, typer.Option("--scheme", metavar="NAME", help="A scheme's name, or your own as package.module:Scheme.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")]
ThreadsOption = Annotated[int, typer.Option("--threads", help="Devices worked on at once; 0: one for each core.")]
EvalEveryOption = Annotated[int, typer.Option("--eval-every", help="Rounds between two evaluations.")]
CheckpointEveryOption = Annotated[int, typer.Option("--checkpoint-every", help="Rounds between checkpoints.")]
JobsOption = Annotated[int, typer.Option("--jobs", min=0, help="Runs at once; 0: one for each core.")]


@app.command("run")
def run_command(
    scenario: ScenarioArgument,
    scheme: SchemeOption = "ota_fd",
    changes: SetOption = None,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Plan and run so many rounds.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="An empty folder; by default under runs/.")
    ] = None,
    ledger: LedgerOption = None,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = 0,
    eval_every: EvalEveryOption = 20,
    checkpoint_every: CheckpointEveryOption = 5,
    as_json: JsonOption = False,
) -> None:
    """Train a fleet; leaves a record that can be resumed and plotted.

    Example: airdistill run quick --scheme fd_error_free --rounds 5 --out my-run
    """
    from airdistill.runs.options import RunOptions
    from airdistill.runs.runner import run
    from airdistill.scenario.loading import load

    options = RunOptions(device=device, threads=threads, eval_every=eval_every, checkpoint_every=checkpoint_every)
    given = load(scenario, changes or [])

    def start(on_round: OnRound) -> RunRecord:
        return run(given, scheme, rounds, out, options, on_round, ledger)

    _follow(start, f"{given.name}, {scheme}", as_json)


@app.command("compare")
def compare_command(
    scenario: ScenarioArgument,
    schemes: Annotated[str, typer.Option("--schemes", metavar="A,B", help="Schemes, with commas between them.")],
    changes: SetOption = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many, counted from the scenario's own.")] = 1,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Plan and run so many rounds of each.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="An empty folder, or the same comparison's to go on with."),
    ] = None,
    device: DeviceOption = "cpu",
    jobs: JobsOption = 0,
    eval_every: EvalEveryOption = 20,
    checkpoint_every: CheckpointEveryOption = 5,
    as_json: JsonOption = False,
) -> None:
    """Run schemes side by side over seeds: a table, curves and a report.

    Example: airdistill compare quick --schemes ota_fd,local_only --seeds 3 --rounds 10
    """
    from airdistill.runs.comparison import compare
    from airdistill.runs.options import RunOptions
    from airdistill.scenario.loading import load

    options = RunOptions(device=device, eval_every=eval_every, checkpoint_every=checkpoint_every)
    given, names = load(scenario, changes or []), [name.strip() for name in schemes.split(",")]
    _follow_comparison(lambda bar: compare(given, names, seeds, rounds, out, options, jobs, bar), as_json)


class Figure(enum.StrEnum):
    """The paper's figures."""

    FIG2A = "fig2a"
    FIG2B = "fig2b"


@app.command("reproduce")
def reproduce_command(
    figure: Annotated[Figure, typer.Argument(help="fig2a: noise against ε. fig2b: accuracy against uplink time.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="By default figures/.")] = None,
    scenarios: Annotated[
        str, typer.Option("--scenarios", metavar="A,B", help="One of them, or both.")
    ] = "paper,paper-literal",
    changes: SetOption = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small: fewer devices, samples and rounds.")] = False,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="fig2b: how many.")] = 1,
    device: DeviceOption = "cpu",
    jobs: JobsOption = 0,
    eval_every: EvalEveryOption = 20,
    redraw: Annotated[bool, typer.Option("--redraw", help="fig2b: train nothing, show what DIR holds.")] = False,
    as_json: JsonOption = False,
) -> None:
    """The paper's figures computed anew, and its claims checked one by one.

    Example: airdistill reproduce fig2a --out figures
    """
    from airdistill.report.reproduction import redraw_fig2b, reproduce_fig2a, reproduce_fig2b
    from airdistill.runs.options import RunOptions

    folder, names = out or Path("figures"), [name.strip() for name in scenarios.split(",")]
    command = "airdistill " + " ".join(sys.argv[1:])
    if figure is Figure.FIG2A:
        claims = reproduce_fig2a(names, quick, changes or [], folder, command, silent=as_json)
    elif redraw:
        claims = redraw_fig2b(names, folder, command, silent=as_json)
    else:
        options = RunOptions(device=device, eval_every=eval_every, checkpoint_every=20)
        try:
            claims = reproduce_fig2b(names, quick, changes or [], seeds, folder, options, jobs, command, silent=as_json)
        except KeyboardInterrupt:
            sys.stderr.write("stopped; what there is was kept: the same command goes on with it\n")
            sys.exit(130)
    if as_json:
        _print_json({name: [vars(claim) for claim in found] for name, found in claims.items()})


@app.command("resume")
def resume_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or a comparison's.")],
    jobs: JobsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run or a comparison that was stopped or killed, to the same bytes.

    Example: airdistill resume runs/quick-ota_fd
    """
    from airdistill.runs.comparison import COMPARISON, go_on
    from airdistill.runs.runner import resume

    if (folder / COMPARISON).exists():
        _follow_comparison(lambda bar: go_on(folder, jobs, bar), as_json)
        return
    _follow(lambda on_round: resume(folder, on_round), str(folder), as_json)


@app.command("certify")
def certify_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    devices: Annotated[bool, typer.Option("--devices", help="List every device.")] = False,
    second_opinion: Annotated[
        bool, typer.Option("--second-opinion", help="Ask Google's dp-accounting for the worst device's ε as well.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """What a run guarantees, to whom, under which assumption; writes certificate.json and certificate.html.

    Example: airdistill certify runs/quick-ota_fd --devices
    """
    from rich.console import Console

    from airdistill.report.certificate_page import write_certificate_page
    from airdistill.report.certificate_table import print_certificate
    from airdistill.runs.accounts import certify
    from airdistill.runs.folder import CERTIFICATE, write_json

    certificate = certify(folder)
    write_json(folder / CERTIFICATE, certificate.to_dict())
    page = write_certificate_page(certificate, folder)
    if as_json:
        _print_json(certificate.to_dict())
        return
    print_certificate(certificate, Console(), devices)
    if second_opinion:
        from airdistill.audit.second_opinion import opinion_in_words

        _print_text(opinion_in_words(folder))
    _print_text(f"Certificate: {page}")


@app.command("audit")
def audit_command(
    subject: Annotated[str, typer.Argument(metavar="RUN|SCENARIO", help="A run's folder, a preset or a TOML file.")],
    scheme: Annotated[str | None, typer.Option("--scheme", metavar="NAME", help="Of a scenario; ota_fd.")] = None,
    changes: SetOption = None,
    audited: Annotated[int, typer.Option("--audited-device", help="Whose data is replaced.")] = 0,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Audit so many; by default 50 at most.")] = None,
    transcripts: Annotated[int, typer.Option("--transcripts", help="Fresh broadcasts to follow pairs along.")] = 20,
    candidates: Annotated[int, typer.Option("--candidates", help="Records to try; the worst is followed.")] = 12,
    trials: Annotated[int, typer.Option("--trials", help="Of the attack on drawn noise, in each world.")] = 1000,
    shadows: Annotated[int, typer.Option("--shadows", help="Shadow fleets of membership inference; even.")] = 8,
    shadow_devices: Annotated[int, typer.Option("--shadow-devices", help="Devices of a shadow fleet, at most.")] = 10,
    parts: Annotated[
        str, typer.Option("--parts", metavar="A,B", help="Which attacks to make.")
    ] = "exact,empirical,membership",
    seed: Annotated[int, typer.Option("--seed", help="Of the attacks' own draws.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="By default the run's folder, or one under audits/.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda or auto; by default as the run.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Attack what the server sees and hold it against the certificate; exit code 1 if that is violated.

    Example: airdistill audit runs/quick-ota_fd --rounds 10
    """
    from rich.console import Console

    from airdistill.audit import AuditOptions, audit
    from airdistill.audit.subject import subject_of
    from airdistill.report.audit_page import write_audit
    from airdistill.report.audit_table import print_audit
    from airdistill.report.progress import stage_bar

    chosen = tuple(part.strip() for part in parts.split(","))
    options = AuditOptions(audited, rounds, transcripts, candidates, trials, shadows, shadow_devices, seed, chosen)
    found = subject_of(subject, scheme, changes, device)
    folder = out or found.folder or Path("audits") / f"{found.plan.scenario.name}-{found.scheme.name}"
    with stage_bar(Console(stderr=True)) as tell:
        measured = audit(found.plan, found.scheme, options, found.run_options, tell)
    page = write_audit(measured, folder)
    if as_json:
        _print_json(measured.to_dict())
    else:
        print_audit(measured, Console())
        _print_text(f"Audit: {page}")
    if measured.violations:
        sys.exit(1)


@app.command("schemes")
def schemes_command(as_json: JsonOption = False) -> None:
    """What can be run.

    Example: airdistill schemes --json
    """
    import inspect

    from airdistill.schemes.registry import SCHEMES

    summaries = {name: " ".join((inspect.getdoc(scheme) or "").split()) for name, scheme in SCHEMES.items()}
    _print_summaries(summaries, as_json)


@app.command("bench")
def bench_command(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="Whose fleet is measured.")] = "paper",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds of each engine; the fastest counts.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Seconds and memory of a full-batch round, against the naive loop and the machine's floor.

    Example: airdistill bench quick --json
    """
    from airdistill.bench.engines import measure_engines

    measured = measure_engines(scenario, repeats)
    if as_json:
        _print_json(measured)
        return
    from rich.console import Console

    from airdistill.report.bench_table import print_bench

    print_bench(measured, Console())


def _follow(start: Callable[[OnRound], RunRecord], label: str, as_json: bool) -> None:
    """Runs with a bar on standard error; Ctrl-C leaves what there is, with exit code 130."""
    import logging

    from rich.console import Console

    from airdistill.report.progress import print_run, round_bar
    from airdistill.report.run_page import write_run_page

    logging.basicConfig(format="%(message)s")
    try:
        with round_bar(Console(stderr=True), label) as on_round:
            record = start(on_round)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; what there is was kept: airdistill resume goes on with it\n")
        sys.exit(130)
    page = write_run_page(record)
    if as_json:
        _print_json({"folder": str(record.folder), "report": str(page), **record.summary})
    else:
        print_run(record, Console())


def _follow_comparison(start: Callable[[OnProgress], ComparisonRecord], as_json: bool) -> None:
    """Runs with bars on standard error, then shows what there is; exit code 2 if a run failed."""
    from rich.console import Console

    from airdistill.report.comparison_json import comparison_to_dict
    from airdistill.report.comparison_page import write_comparison_page
    from airdistill.report.comparison_table import print_comparison
    from airdistill.report.progress import comparison_bar

    try:
        with comparison_bar(Console(stderr=True)) as bar:
            record = start(bar)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; what there is was kept: airdistill resume goes on with it\n")
        sys.exit(130)
    page = write_comparison_page(record)
    if as_json:
        _print_json(comparison_to_dict(record))
    else:
        print_comparison(record, Console())
        _print_text(f"Report: {page}")
    missing = [task for task in record.comparison.tasks if task not in record.runs]
    if missing:
        tasks = ", ".join(f"{task.label} (seed {task.seed})" for task in missing)
        sys.stderr.write(f"error: {len(missing)} of {len(record.comparison.tasks)} runs did not end: {tasks}\n")
        sys.exit(2)


@app.command("report")
def report_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or a comparison's.")],
) -> None:
    """Write the report of a run or a comparison anew, from what there is: one HTML file.

    Example: airdistill report runs/quick-ota_fd
    """
    from airdistill.report.comparison_page import write_comparison_page
    from airdistill.report.run_page import write_run_page
    from airdistill.runs.comparison import COMPARISON, ComparisonRecord
    from airdistill.runs.record import ended_run

    if (folder / COMPARISON).exists():
        _print_text(str(write_comparison_page(ComparisonRecord.read(folder))))
    else:
        _print_text(str(write_run_page(ended_run(folder))))


@scenarios_app.callback()
def scenarios_command(context: typer.Context, as_json: JsonOption = False) -> None:
    """The presets: list them, or print one to start from.

    Example: airdistill scenarios show paper > mine.toml
    """
    if context.invoked_subcommand is not None:
        return
    from airdistill.scenario.loading import preset_names, preset_summary

    _print_summaries({name: preset_summary(name) for name in preset_names()}, as_json)


@scenarios_app.command("show")
def show_command(name: Annotated[str, typer.Argument(metavar="NAME", help="A preset's name.")]) -> None:
    """Print a preset's TOML.

    Example: airdistill scenarios show paper > mine.toml
    """
    from airdistill.scenario.loading import preset_text

    _print_text(preset_text(name).rstrip("\n"))


def _print_summaries(summaries: dict[str, str], as_json: bool) -> None:
    if as_json:
        _print_json(summaries)
        return
    width = max(len(name) for name in summaries)
    for name, summary in summaries.items():
        _print_text(f"{name:<{width}}  {summary}")


def _print_json(value: Any) -> None:
    from airdistill.jsonable import json_text

    _print_text(json_text(value).rstrip("\n"))


def _print_text(text: str) -> None:
    typer.echo(text)
