"""The reference pages, generated from the program whenever the manual is built."""

from collections.abc import Iterator

import click
import typer.main
from pictures import PICTURES, Picture

from airdistill.cli import app
from airdistill.scenario.model import Scenario
from airdistill.scenario.reference import LEFT_OUT, REQUIRED, ScenarioField, fields_by_section

COMMANDS_INTRODUCTION = """# Commands

Made from the program itself: `airdistill COMMAND --help` says the same. What a user can put right is one line on
standard error and exit code 2; Ctrl-C is 130; `audit` ends with 1 if a guarantee was violated, `verify` if a
certificate is not verified.
"""

FIELDS_INTRODUCTION = """# Scenario fields

Made from the program itself: `airdistill scenarios fields` says the same. A scenario is a TOML file of these;
[the planner's page](../planner.md#a-scenario) has one to start from. On the command line any of them is changed by
`--set section.field=value`.

* **Quantities** may have a unit: `"1 mW"`, `"-113 dBm"`, `"915 MHz"`, `"3.6 us"`, `"0.5 km"`. A bare number is in the
  unit that stands here.
* **For each device**: one value for all, a range `[low, high]` from which each device draws, a list with one entry for
  each, or `{values = [first, second]}` for a fleet of two.
* **Left out** means: without this field there is none, or what its description says.
"""


PICTURES_INTRODUCTION = """# Pictures

Every picture of this manual was made by the project itself. `make pictures` makes the quick ones anew; the others take
a GPU or hours, and these commands.

| picture | commands | file | |
|---|---|---|---|"""


def reference_pages() -> dict[str, str]:
    return {
        "reference/commands.md": "\n".join([COMMANDS_INTRODUCTION, *_commands_in_words()]),
        "reference/scenario.md": "\n".join([FIELDS_INTRODUCTION, *_sections_in_words()]),
        "reference/pictures.md": "\n".join([PICTURES_INTRODUCTION, *map(_picture_row, PICTURES)]),
    }


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, groups before their commands."""
    yield from _from("airdistill", typer.main.get_command(app))


def _from(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    for word, below in command.commands.items() if isinstance(command, click.Group) else ():
        yield from _from(f"{name} {word}", below)


def help_and_example(command: click.Command) -> tuple[str, str]:
    text, _, example = (command.help or "").partition("Example: ")
    return text.strip(), " ".join(example.split())


def _commands_in_words() -> Iterator[str]:
    for name, command in every_command():
        text, example = help_and_example(command)
        yield f"## {name}\n\n{text}\n"
        if example:
            yield f"```console\n$ {example}\n```\n"
        rows = [_parameter_row(parameter, command) for parameter in command.params if parameter.name != "help"]
        if rows:
            yield "\n".join(["| argument or option | default | |", "|---|---|---|", *rows]) + "\n"


def _parameter_row(parameter: click.Parameter, command: click.Command) -> str:
    metavar = parameter.make_metavar(click.Context(command)).removesuffix(" RANGE")
    if isinstance(parameter, click.Option):
        written = parameter.opts[0] if parameter.is_flag else f"{parameter.opts[0]} {metavar}"
        default = "" if parameter.is_flag or parameter.default is None else f"`{_plain(parameter.default)}`"
    else:
        written, default = metavar, "" if not parameter.default else f"`{_plain(parameter.default)}`"
    needed = "required" if parameter.required else default
    return f"| <code>{_cell(written)}</code> | {needed} | {_cell(getattr(parameter, 'help', None) or '')} |"


def _plain(value: object) -> str:
    """The value of an enumeration, not its name in Python."""
    return str(getattr(value, "value", value))


def _sections_in_words() -> Iterator[str]:
    for section, fields in fields_by_section().items():
        if section:
            yield f"## [{section}]\n\n{_sentence(Scenario.model_fields[section].description or '')}\n"
        else:
            yield "## Of the whole scenario\n"
        yield "\n".join(["| field | default | kind | |", "|---|---|---|---|", *map(_field_row, fields)]) + "\n"


def _field_row(field: ScenarioField) -> str:
    name = f"`{field.name}`{{ #{field.name.replace('[]', '')} }}"  # other pages link to it
    default = field.default if field.default in (REQUIRED, LEFT_OUT) else f"`{field.default}`"
    return f"| {name} | {default} | {_cell(field.kind)} | {_cell(field.description)} |"


def _picture_row(picture: Picture) -> str:
    commands = "<br>".join(f"`{command}`" for command in picture.commands)
    cost = "`make pictures`" if picture.quick else "by hand"
    return f"| [{picture.name}](../images/{picture.name}) | {commands} | {picture.made} | {cost} |"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _cell(text: str) -> str:
    """Escape bars, which separate the cells of a table."""
    return text.replace("|", "&#124;")
