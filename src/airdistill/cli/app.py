"""The application itself: how a command starts, fails and prints."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, Any

import typer
from click.exceptions import Abort, ClickException, NoArgsIsHelpError

from airdistill import __version__
from airdistill.cli.plain_help import print_plain_help
from airdistill.errors import AirDistillError

print_plain_help()
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


def main() -> None:
    """Runs a command; what a user can put right is one line on standard error and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show ε still shows the rest
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except NoArgsIsHelpError as asked:
        print_text(asked.format_message())
        sys.exit(2)
    except (AirDistillError, ClickException) as error:
        message = error.format_message() if isinstance(error, ClickException) else str(error)
        sys.stderr.write(f"error: {message}\n")
        sys.exit(2)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)  # as the shell says of a broken pipe; 1 is an audit's word
    except OSError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        sys.exit(2)
    except (Abort, KeyboardInterrupt):
        sys.stderr.write("stopped\n")
        sys.exit(130)


def _print_version(asked: bool) -> None:
    if asked:
        print_text(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def print_summaries(summaries: dict[str, str], as_json: bool) -> None:
    if as_json:
        print_json(summaries)
        return
    width = max(len(name) for name in summaries)
    for name, summary in summaries.items():
        print_text(f"{name:<{width}}  {summary}")


def print_json(value: Any) -> None:
    from airdistill.jsonable import json_text

    print_text(json_text(value).rstrip("\n"))


def print_text(text: str) -> None:
    typer.echo(text)
