"""What docs name exists: files, headings, fields, functions, commands with their options, pictures, messages."""

import importlib
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import click
import pytest
from documents import DOCS, PAGES, ROOT, blocks, fenced, inline_code, on_every_page, prose
from in_process import exit_code
from pictures import IMAGES, PICTURES
from reference_pages import every_command, help_and_example

from airdistill.scenario.reference import fields_by_section, scenario_fields

# What is run, loaded or parsed, here or in test_docs.py; `text` is output, and commands that take a GPU or hours.
CHECKED_LANGUAGES = {"console", "python", "toml", "bash", "text"}
PACKAGES = {path.parent.name for path in (ROOT / "src/airdistill").glob("*/__init__.py")}
FIELDS = {field.name for field in scenario_fields()} | {"overrides"}
COMMANDS = dict(every_command())


def slug(heading):
    """The anchor that code hosts give to a heading; the manual's own is made likewise (mkdocs.yml)."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def anchors(page):
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)}


@on_every_page
def test_every_link_leads_to_a_file_and_a_heading(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", prose(page)):
        path = (page.parent / target).resolve() if target else page
        assert path.is_file(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


@on_every_page
def test_every_test_that_is_named_exists(page):
    for file, name in re.findall(r"`((?:[\w/]+/)?test_\w+\.py)(?:::(\w+))?`", page.read_text()):
        found = [path for path in (ROOT / "tests").rglob(Path(file).name) if path.as_posix().endswith(f"/{file}")]
        assert found, f"{page.name} names {file}"
        assert not name or f"def {name}(" in found[0].read_text(), f"{page.name} names {file}::{name}"


@on_every_page
def test_every_code_block_has_a_language_that_is_checked(page):
    assert {language for language, _ in fenced(page)} <= CHECKED_LANGUAGES


@on_every_page
def test_every_field_that_is_named_exists(page):
    sections = "|".join(filter(None, fields_by_section()))
    for code in inline_code(page):
        named = re.match(rf"({sections})\.(\w+)(?= =|=|$)", code)
        assert not named or named[0] in FIELDS or is_importable(named[0]), code


@on_every_page
def test_every_function_that_is_named_exists(page):
    for code in inline_code(page):
        if re.fullmatch(rf"(airdistill\.)?({'|'.join(PACKAGES)})(\.\w+){{2,}}", code):
            assert is_importable(code.removeprefix("airdistill.")), code


def is_importable(name):
    """A module, or what is reached from one by dots."""
    words = name.split(".")
    for length in range(len(words), 0, -1):
        try:
            found = importlib.import_module(".".join(["airdistill", *words[:length]]))
        except ModuleNotFoundError:
            continue
        for word in words[length:]:
            if not hasattr(found, word):
                return False
            found = getattr(found, word)
        return True
    return False


def command_and_arguments(line):
    words = shlex.split(line, comments=True)
    length = max(number for number in (1, 2, 3) if " ".join(words[:number]) in COMMANDS)
    return COMMANDS[" ".join(words[:length])], words[length:]


def check_parses(line):
    """Commands exist and have these options; nothing is run."""
    command, arguments = command_and_arguments(line.partition(" > ")[0])
    if isinstance(command, click.Group):
        assert not [word for word in arguments if not word.startswith("-")], line
        return
    try:
        command.make_context("airdistill", arguments)
    except click.exceptions.ClickException as error:
        pytest.fail(f"{line}: {error.format_message()}")


@on_every_page
def test_every_command_parses_also_those_that_take_hours(page):
    for language, block in fenced(page):
        for line in block.splitlines():
            if language in ("console", "text") and line.removeprefix("$ ").startswith("airdistill "):
                check_parses(line.removeprefix("$ "))
    for code in inline_code(page):
        words = code.split()
        if len(words) > 1 and words[0] == "airdistill" and words[1].islower() and words[1].isalpha():
            assert f"airdistill {words[1]}" in COMMANDS, code


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_parses(name):
    if name == "airdistill":
        return
    _, example = help_and_example(COMMANDS[name])
    assert example.startswith(name.split(" ")[0])
    check_parses(example)


@on_every_page
def test_every_shell_block_parses_and_its_extras_exist(page):
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    for block in blocks(page, "bash"):
        subprocess.run(["bash", "-n"], input=block, text=True, check=True)
        for file in re.findall(r"pip install -c (\S+)", block):
            assert (ROOT / file).is_file()
    for named in re.findall(r"airdistill\[([\w,]+)\]", page.read_text()):
        assert set(named.split(",")) <= set(extras), named


def test_flowers_programs_have_the_options_that_the_deployment_gives_them():
    shell = "".join(blocks(DOCS / "deploy.md", "bash"))
    for program in ("flower-superlink", "flower-supernode"):
        (given,) = re.findall(rf"^{program} .*$", shell.replace("\\\n", " "), re.MULTILINE)
        options = re.findall(r" (--[\w-]+)", given)
        help_text = subprocess.run(
            [Path(sys.executable).with_name(program), "--help"], capture_output=True, text=True
        ).stdout
        assert options
        assert [option for option in options if option not in help_text] == []


def equation_rows():
    table = (DOCS / "equations.md").read_text().split("## Every equation")[1].split("## Beyond the paper")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return rows[1:]


def test_every_equation_has_a_function_and_a_status():
    numbered = []
    for name, functions, status in equation_rows():
        assert functions == "none" or is_importable(functions.split("`")[1]), name
        assert status.startswith(("as printed", "corrected: ", "wrong", "declared or measured")), name
        found = [int(number) for number in re.findall(r"\((\d+)\)", name)]
        numbered += range(found[0], found[1] + 1) if " to (" in name else found
    assert sorted(numbered) == list(range(1, 52))  # as many as the paper has
    named = " ".join(name for name, *_ in equation_rows())
    for statement in ("Definition 1", "Lemma 1", "Theorem 1", "Theorem 2", "Proposition 1", "Proposition 2"):
        assert statement in named
    assert all(f"Assumption {number}" in named for number in (1, 2, 3))


def test_every_picture_is_shown_and_has_a_maker():
    shown = {Path(name).name for page in PAGES for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text())}
    kept = {path.name for path in IMAGES.iterdir()}
    assert kept == {picture.name for picture in PICTURES} == shown & kept
    for picture in PICTURES:
        for command in picture.commands:
            if command.startswith("airdistill "):
                check_parses(command)
            else:
                assert (ROOT / command.split()[1]).is_file()


# Lines of what goes wrong that need no run to be provoked: a command for each line of a field, in the page's order.
PROVOKED = {
    "scenario": "plan qick",
    "privacy.epsilo": "plan quick --set privacy.epsilo=2",
    "radio.peak_power": "plan quick --set radio.peak_power='10 mHz'\nplan quick --set radio.peak_power='10 mw'",
    "radio.distance": """plan quick --set 'radio.distance=["500 m", "100 m"]'""",
    "data.samples_per_device": "plan quick --set data.samples_per_device=5000",
    "data.alpha": "plan quick --set data.partition=dirichlet",
    "data.dataset": "plan quick --set data.dataset=nowhere.npz",
    "public": "plan quick --scheme airdistill_proxy",
    "fleet.groups": "plan quick --scheme ota_fl --set "
    """'fleet.groups=[{count = 10, model = "mlp"}, {count = 10, model = "paper_cnn"}]'""",
    "privacy.noise": "plan quick --set privacy.noise=secure --set privacy.trust=receiver_noise",
    "--scheme": "plan quick --scheme mine:Scheme",
}


@pytest.mark.parametrize("field", PROVOKED)
def test_messages_are_told_as_they_are_printed(field, capsys):
    told = [code for code in inline_code(DOCS / "faq.md") if code.startswith(f"error: {field} = ")]
    for code, command in zip(told, PROVOKED[field].splitlines(), strict=True):
        assert exit_code(*shlex.split(command)) == 2
        assert re.match(re.escape(code).replace("…", ".*"), capsys.readouterr().err)
