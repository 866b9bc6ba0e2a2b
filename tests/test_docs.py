"""Docs cannot go stale: their commands run, their links lead somewhere, their names exist."""

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").glob("*.md")]

# Commands that take long and on whose files nothing later depends: run on the first page that shows them.
LONG = ("airdistill bench", "airdistill reproduce")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def console_lines(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_airdistill_command_runs_in_order(page, tmp_path):
    earlier = {line for other in PAGES[: PAGES.index(page)] for line in console_lines(other)}
    for line in console_lines(page):
        if not line.startswith("airdistill ") or (line in earlier and line.startswith(LONG)):
            continue
        words, _, target = line.partition(" > ")
        arguments = shlex.split(words, comments=True)[1:]
        done = subprocess.run(
            [sys.executable, "-m", "airdistill", *arguments], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        if target:
            (tmp_path / target.strip()).write_text(done.stdout)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_and_script_exists(page):
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in console_lines(page):
        words = shlex.split(line, comments=True)
        if words[0] == "make":
            assert words[1] in targets
        elif words[0] == "python":
            assert (ROOT / words[1]).is_file()
        else:
            assert words[0] == "airdistill", line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_runs(page):
    for block in blocks(page, "python"):
        done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_scenario_block_loads(page, tmp_path):
    from airdistill.scenario import load

    for number, block in enumerate(blocks(page, "toml")):
        path = tmp_path / f"{number}.toml"
        path.write_text(block)
        assert load(path).num_devices > 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_function_of_the_equation_table_exists():
    table = (
        (ROOT / "docs" / "planner.md").read_text().split("## Which equation stands where")[1].split("\n\nThe closed")[0]
    )
    names = re.findall(r"`((?:privacy|codesign)\.[\w.]+)`", table)
    assert len(names) > 8
    for name in names:
        parts = name.split(".")
        found = importlib.import_module("airdistill." + ".".join(parts[:2]))
        for attribute in parts[2:]:
            found = getattr(found, attribute)


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_every_example_runs(script, tmp_path):
    arguments = {"demonstration.py": ["1", "fleet.devices=3"], "own_scheme.py": ["1", "fleet.devices=3"]}.get(
        script.name, []
    )
    done = subprocess.run(
        [sys.executable, script, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip()
    assert len(script.read_text().splitlines()) <= 60


def test_doctests_pass():
    import doctest

    import airdistill
    import airdistill.units

    for module in (airdistill, airdistill.units):
        outcome = doctest.testmod(module)
        assert outcome.attempted > 0
        assert outcome.failed == 0
