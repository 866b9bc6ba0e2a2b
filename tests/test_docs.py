"""Docs cannot go stale: their commands run in order, their code runs, their scenarios load."""

import re
import runpy
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
import tomli_w
from documents import PAGES, ROOT, blocks, console_lines, on_every_page
from in_process import exit_code, runs_in_this_process

from airdistill.scenario import load

# Commands on whose files nothing later depends: run on the first page that shows them.
ONCE = ("airdistill reproduce", "airdistill plan", "airdistill scenarios", "airdistill schemes")
# What they do is run in tests/flower, tests/web and tests/test_cli.py: a federation or a benchmark takes half a minute.
ELSEWHERE = ("airdistill flower demo", "airdistill bench", "airdistill serve")
# Options that make a command's work less, and its path the same.
LESS = {
    "audit": ["--candidates=2", "--transcripts=4", "--trials=100", "--shadows=4", "--shadow-devices=2"],
    "pilot": ["--rounds=2", "--repeats=1"],
    "reproduce": ["--quick", "--scenarios=paper"],
}
SMALL = ["fleet.devices=4", "data.samples_per_device=60", "learning.model=mlp", "learning.max_rounds=300"]
SMALLER = ("run", "compare", "sweep", "bench", "pilot", "audit", "plan")


def write_scenarios(page: Path) -> list[str]:
    """A page's scenarios whose first line is the name of a file, which a reader is asked to save."""
    named = [block for block in blocks(page, "toml") if block.startswith("# ")]
    names = [block.splitlines()[0].removeprefix("# ") for block in named]
    for name, block in zip(names, named, strict=True):
        Path(name).write_text(block)
    return names


def with_few_rounds(arguments: list[str]) -> list[str]:
    """Two at most: the third goes the way of the second."""
    return [
        str(min(2, int(word))) if before == "--rounds" else word
        for before, word in zip(["", *arguments], arguments, strict=False)
    ]


def write_small(scenario: str, few_digits: Path, path: Path) -> str:
    """The same with fewer devices, samples, tests and weights, and fewer rounds to choose from."""
    small = load(scenario, [*SMALL, f"data.dataset={few_digits}"])
    path.write_text(tomli_w.dumps(small.model_dump(mode="json", exclude_none=True)))
    return str(path)


@on_every_page
def test_every_airdistill_command_runs_in_order(page, tmp_path, few_digits, monkeypatch, capsys):
    """As printed, but for the size of what is planned and trained; the README's are as printed in that, too."""
    monkeypatch.chdir(tmp_path)
    own = {name: write_small(name, few_digits, tmp_path / f"small-{name}") for name in write_scenarios(page)}
    trained = {**own, "quick": write_small("quick", few_digits, tmp_path / "small-quick.toml")}
    earlier = {line for other in PAGES[: PAGES.index(page)] for line in console_lines(other)}
    for line in console_lines(page):
        if not line.startswith("airdistill ") or (line in earlier and line.startswith(ONCE) and ">" not in line):
            continue
        if line.startswith(ELSEWHERE):
            continue
        words, _, target = line.partition(" > ")
        name, *arguments = shlex.split(words, comments=True)[1:]
        if name in SMALLER[:-1]:
            arguments = with_few_rounds(arguments)
        if page != PAGES[0]:
            small = trained if name in SMALLER else own
            arguments = [small.get(word, word) for word in arguments]
        with runs_in_this_process():
            code = exit_code(name, *arguments, *LESS.get(name, []))
        out, err = capsys.readouterr()
        assert code == 0, f"{line}\n{err}"
        if target:
            Path(target.strip()).write_text(out)


@on_every_page
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


@on_every_page
def test_every_python_block_runs(page, tmp_path, monkeypatch, capsys):
    """Each as a main module of its own, and shows or asserts a result; a process would only take time to start."""
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(blocks(page, "python")):
        main = ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", main)
        exec(compile(block, f"{page.name}, block {number}", "exec"), vars(main))
        shown = capsys.readouterr().out.strip()
        assert shown or re.search(r"^ *assert ", block, re.MULTILINE), f"block {number} shows nothing"
        assert not re.search(r"\b(nan|None)\b", shown), shown


@on_every_page
def test_every_scenario_block_loads(page, tmp_path):
    for number, block in enumerate(blocks(page, "toml")):
        path = tmp_path / f"{number}.toml"
        path.write_text(block)
        assert load(path).num_devices > 0


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
