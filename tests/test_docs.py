"""Docs cannot go stale: their commands run, their links lead somewhere, their names exist."""

import importlib
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w
from in_process import exit_code, runs_in_this_process

from airdistill.scenario import load

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").glob("*.md")]

# Commands that take long and on whose files nothing later depends: run on the first page that shows them.
LONG = ("airdistill reproduce",)
# What they do is run in tests/flower and tests/test_cli.py: a federation or a benchmark takes half a minute.
ELSEWHERE = ("airdistill flower demo", "airdistill bench")
# Options that make a command's work less, and its path the same.
LESS = {
    "audit": ["--candidates=2", "--transcripts=4", "--trials=100", "--shadows=4", "--shadow-devices=2"],
    "reproduce": ["--quick", "--scenarios=paper"],
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def console_lines(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


@pytest.fixture
def small_quick(few_digits, tmp_path):
    """The preset `quick` with fewer devices, samples and tests."""
    path = tmp_path / "small-quick.toml"
    scenario = load("quick", ["fleet.devices=4", "data.samples_per_device=60", f"data.dataset={few_digits}"])
    path.write_text(tomli_w.dumps(scenario.model_dump(mode="json", exclude_none=True)))
    return str(path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_airdistill_command_runs_in_order(page, tmp_path, small_quick, monkeypatch, capsys):
    """As printed, but for the size of what is trained; the first run of the README is as printed in that, too."""
    monkeypatch.chdir(tmp_path)
    earlier = {line for other in PAGES[: PAGES.index(page)] for line in console_lines(other)}
    for line in console_lines(page):
        if not line.startswith("airdistill ") or (line in earlier and line.startswith(LONG)):
            continue
        if line.startswith(ELSEWHERE):
            continue
        words, _, target = line.partition(" > ")
        name, *arguments = shlex.split(words, comments=True)[1:]
        if name in ("run", "compare", "bench") and "first-run" not in arguments:
            assert arguments[0] == "quick"
            arguments[0] = small_quick
        code = exit_code(name, *arguments, *LESS.get(name, []))
        out, err = capsys.readouterr()
        assert code == 0, f"{line}\n{err}"
        if target:
            Path(target.strip()).write_text(out)


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


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FEW = ["1", "fleet.devices=3", "data.samples_per_device=60"]
ARGUMENTS = {  # of the others: few devices with a small model on few digits
    "demonstration.py": [*FEW, "data.dataset=DIGITS"],
    "own_model_and_dataset.py": FEW,
    "plan_a_deployment.py": ["8", "learning.rounds=2"],
}


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_every_example_runs(script, tmp_path, few_digits, monkeypatch, capfd):
    """As `python SCRIPT ARGUMENTS` does, but for a process of its own, which would only take time to start."""
    asked = ARGUMENTS.get(script.name, [*FEW, "data.dataset=DIGITS", "learning.model=mlp"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(script.parent)
    monkeypatch.setattr(sys, "argv", [str(script), *(each.replace("DIGITS", str(few_digits)) for each in asked)])
    with runs_in_this_process():
        runpy.run_path(str(script), run_name="__main__")
    assert capfd.readouterr().out.strip()
    assert len(script.read_text().splitlines()) < 60


def test_doctests_pass():
    import doctest

    import airdistill
    import airdistill.units

    for module in (airdistill, airdistill.units):
        outcome = doctest.testmod(module)
        assert outcome.attempted > 0
        assert outcome.failed == 0
