"""The command-line application: how commands start, fail and print, and the options that several of them share."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from click.exceptions import Abort, ClickException, NoArgsIsHelpError
from typer import core

from airdistill import __version__
from airdistill.errors import AirDistillError

logger = logging.getLogger(__name__)
_VERBOSE = "--verbose"
_make_argument = core.TyperArgument.__init__


def _argument_with_help(self: core.TyperArgument, *, help: str | None = None, **given: Any) -> None:
    _make_argument(self, help=help, **given)
    self.help = help


def _list_no_arguments(_command: core.TyperCommand, _context: click.Context, _formatter: click.HelpFormatter) -> None:
    """Print nothing, because typer lists the arguments among the options."""


def print_plain_help() -> None:
    """Make typer 0.20 with click 8.5 print complete help as plain text. Call this before the first command is added.

    Typer escapes brackets for rich even if rich is not used. It sets an argument's help before it calls click's
    constructor, which since 8.5 overwrites it; and both libraries would list the arguments.
    """
    changes: list[tuple[Any, str, Any]] = [
        (core, "HAS_RICH", False),
        (core.TyperArgument, "__init__", _argument_with_help),
        (core.TyperCommand, "format_arguments", _list_no_arguments),
    ]
    for owner, name, stand_in in changes:
        setattr(owner, name, stand_in)


print_plain_help()
app = typer.Typer(
    name="airdistill",
    help="Differentially private over-the-air federated distillation: plan, simulate, certify, deploy.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},  # all commands below inherit them
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
scenarios_app = typer.Typer(rich_markup_mode=None)
app.add_typer(scenarios_app, name="scenarios", invoke_without_command=True)


def main() -> None:
    """Run a command; what the user can correct is one line for each fault on standard error, and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show ε still shows the rest
    try:
        # Wherever it stands: it belongs to all commands.
        given = [word for word in sys.argv[1:] if word != _VERBOSE]
        first = [_VERBOSE] if _VERBOSE in sys.argv else []
        sys.exit(app([*first, *given], prog_name="airdistill", standalone_mode=False) or 0)
    except NoArgsIsHelpError as asked:
        print_text(asked.format_message())
        sys.exit(2)
    except (AirDistillError, ClickException) as error:
        if isinstance(error, AirDistillError):
            logger.debug("where it was found:", exc_info=error)
        for line in (_usage_message(error) if isinstance(error, ClickException) else str(error)).splitlines():
            sys.stderr.write(f"error: {line}\n")
        sys.exit(2)
    except BrokenPipeError:  # the reader of the output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)  # the shell's code for a broken pipe; 1 means a violation found by an audit
    except OSError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        sys.exit(2)
    except (Abort, KeyboardInterrupt):
        sys.stderr.write("stopped\n")
        sys.exit(130)
    finally:
        logging.getLogger("airdistill").setLevel(logging.NOTSET)  # --verbose is for this command only


def _usage_message(error: ClickException) -> str:
    """What click says of a wrong command line, in plain words, once, and with the command that shows the right one."""
    message = error.format_message()
    message = re.sub(r"is not a valid (integer|float)( range)?\.?", "must be a whole number", message)
    message = re.sub(r"is not in the range x>=(\d+)\.?", r"must be at least \1", message)
    message = re.sub(r"is not in the range (\d+)<=x<=(\d+)\.?", r"must lie between \1 and \2", message)
    message = re.sub(r"( Did you mean [^?]*\?)\1", r"\1", message)  # click and typer both say it
    context = getattr(error, "ctx", None)
    way_out = "" if context is None else f"; {context.command_path} --help shows how"
    return message.rstrip(".") + way_out


def _print_version(asked: bool) -> None:
    if asked:
        print_text(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(_VERBOSE, help="Print what is done, versions, and where an error was found; after any command."),
    ] = False,
) -> None:
    if verbose:
        show_log_lines(logging.DEBUG)
        logger.debug("airdistill %s, Python %s on %s", __version__, sys.version.split()[0], sys.platform)


def _complete_scenario(given: str) -> list[str]:
    from airdistill.scenario.loading import preset_names

    files = (str(path) for path in Path().glob(f"{given}*") if path.suffix == ".toml" or path.is_dir())
    return [*(name for name in preset_names() if name.startswith(given)), *files]


def _complete_scheme(given: str) -> list[str]:
    from airdistill.schemes.registry import SCHEMES

    return [name for name in SCHEMES if name.startswith(given)]


def print_summaries(summaries: dict[str, str], as_json: bool) -> None:
    """Print names and their summaries in two columns, or as JSON."""
    if as_json:
        print_json(summaries)
        return
    width = max(len(name) for name in summaries)
    for name, summary in summaries.items():
        print_text(f"{name:<{width}}  {summary}")


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    from airdistill.files import json_text

    print_text(json_text(value).rstrip("\n"))


def print_text(text: str) -> None:
    """Print a text to standard output."""
    typer.echo(text)


def show_log_lines(level: int = logging.WARNING) -> None:
    """Let what the package logs appear on standard error: warnings as their message, with --verbose everything."""
    logging.basicConfig(format="%(message)s" if level >= logging.WARNING else "%(relativeCreated)d ms %(message)s")
    if level < logging.WARNING:
        logging.getLogger("airdistill").setLevel(level)


def print_warnings(lines: Iterable[str]) -> None:
    """Print a line on standard error for each warning."""
    for line in lines:
        sys.stderr.write(f"warning: {line}\n")


ScenarioArgument = Annotated[
    str,
    typer.Argument(metavar="SCENARIO", help="A preset's name or a TOML file.", autocompletion=_complete_scenario),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help='Change a field: --set radio.peak_power="10 mW". Repeatable.'),
]
LedgerOption = Annotated[
    Path | None,
    typer.Option(
        "--ledger", metavar="RUN", help="An earlier run of the same devices, whose privacy budget is continued."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SchemeOption = Annotated[
    str,
    typer.Option(
        "--scheme",
        metavar="NAME",
        help="A scheme's name, or your own as package.module:Scheme.",
        autocompletion=_complete_scheme,
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")]
EngineOption = Annotated[
    str,
    typer.Option("--engine", help="fused: compiled kernels for networks of the paper's form; torch: any model; auto."),
]
Tf32Option = Annotated[
    bool, typer.Option("--tf32", help="On a GPU: faster products, with factors rounded to ten bits.")
]
ThreadsOption = Annotated[int, typer.Option("--threads", help="Devices trained in parallel; 0: one per core.")]
EvalEveryOption = Annotated[int, typer.Option("--eval-every", help="Rounds between evaluations.")]
EvalDevicesOption = Annotated[
    int | None,
    typer.Option(
        "--eval-devices", help="Devices on which accuracy is measured; by default all, or 100 of a large fleet."
    ),
]
EvalSamplesOption = Annotated[
    int | None, typer.Option("--eval-samples", help="Test samples on which accuracy is measured, drawn at random.")
]
CheckpointEveryOption = Annotated[int, typer.Option("--checkpoint-every", help="Rounds between checkpoints.")]
JobsOption = Annotated[int, typer.Option("--jobs", min=0, help="Runs in parallel; 0: one per core, or as many as fit.")]
OnOption = Annotated[
    str, typer.Option("--on", metavar="WHERE", help="local; ray; or a Ray cluster as host:port or ray://host:port.")
]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--track", metavar="NAME", help="csv, tensorboard, mlflow, or your own as package.module:function. Repeatable."
    ),
]
CpusOption = Annotated[float | None, typer.Option("--cpus", help="On Ray: CPUs of each run; 1 by default.")]
GpusOption = Annotated[float | None, typer.Option("--gpus", help="On Ray: share of a GPU of each run, as 0.25.")]
