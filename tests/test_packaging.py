"""What the package imports is declared, with bounds where later versions break it; and how its command starts."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest
from click.shell_completion import ShellComplete
from documents import ROOT
from in_process import exit_code
from packaging.requirements import Requirement
from typer.main import get_command

from airdistill import __version__
from airdistill.cli import app

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OF_THE_SYSTEM = {"SoapySDR", "gnuradio"}  # from Debian's packages, not from PyPI
# Packages that are loaded only with their extra; all others may import at their top only what is always installed.
OPTIONAL = ("flower", "web")


def normal(requirement):
    return re.split(r"[\[<>=!~ ]", requirement)[0].lower().replace("_", "-")


REQUIRED = {normal(each) for each in PROJECT["dependencies"]}
EXTRAS = {name: {normal(each) for each in listed} for name, listed in PROJECT["optional-dependencies"].items()}


def imported(tree):
    """Yield the modules that a file imports when it runs, and whether it does so at its top level."""
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module, id(node) in top
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from ((each.value, False) for each in node.args if isinstance(each, ast.Constant))


def third_party():
    """Yield file, distribution and whether the import is at the top level, for all files of the package."""
    distributions = packages_distributions()
    for path in sorted((ROOT / "src").rglob("*.py")):
        for module, at_top in imported(ast.parse(path.read_text())):
            name = module.split(".")[0]
            if name in sys.stdlib_module_names or name == "airdistill" or name in OF_THE_SYSTEM:
                continue
            yield path, {normal(each) for each in distributions.get(name, [name])}, at_top


FOUND = list(third_party())


def test_every_import_is_of_a_declared_distribution():
    declared = REQUIRED.union(*(listed for name, listed in EXTRAS.items() if name != "dev"))
    undeclared = {(path.name, *sorted(names)) for path, names, _ in FOUND if not names & declared}
    assert undeclared == set()


def test_what_is_imported_at_the_top_is_installed_without_extras():
    for path, names, at_top in FOUND:
        package = path.relative_to(ROOT / "src/airdistill").parts[0]
        allowed = REQUIRED | (EXTRAS[package] if package in OPTIONAL else set())
        assert not at_top or names & allowed, (path.name, names)


def test_every_required_distribution_is_imported():
    used = set().union(*(names for _, names, _ in FOUND))
    assert REQUIRED - used == set()


def test_the_tested_versions_are_within_the_declared_ranges():
    exact = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"
    )
    optional = [each for listed in PROJECT["optional-dependencies"].values() for each in listed]
    for given in [*PROJECT["dependencies"], *optional]:
        wanted = Requirement(given)
        tested = {normal(name): version for name, version in exact.items()}.get(normal(wanted.name))
        assert tested is None or wanted.specifier.contains(tested), given


def test_the_declared_versions_of_python():
    classifiers = [each for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert [each.rpartition(" ")[2] for each in classifiers] == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == ">=3.11"


def test_the_citation_is_of_this_version():
    cited = dict(re.findall(r"^(version|license|title): (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    assert cited["version"] == __version__
    assert cited["license"] in PROJECT["license"]


@pytest.mark.parametrize("command", [[], ["plan"], ["bench"], ["scenarios", "fields"], ["flower", "demo"]])
def test_help_is_short_or_long(command, capsys):
    shown = []
    for option in ("-h", "--help"):
        assert exit_code(*command, option) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert "Usage: airdistill" in shown[0]


def completed(words):
    """What a shell is offered for the last of these words."""
    *before, last = words.split(" ")
    completion = ShellComplete(get_command(app), {}, "airdistill", "_AIRDISTILL_COMPLETE")
    return [each.value for each in completion.get_completions(before, last)]


def test_a_shell_completes_commands_presets_and_schemes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paper-like.toml").touch()
    (tmp_path / "paper.txt").touch()
    assert completed("pla") == ["plan"]
    assert completed("plan paper") == ["paper", "paper-literal", "paper-like.toml"]
    assert completed("run quick --scheme ota_p") == ["ota_proxy_fd"]
    # Not the shell that started the tests.
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: ("bash", "/bin/bash"))
    assert exit_code("--show-completion") == 0
    assert "_AIRDISTILL_COMPLETE=complete_bash" in capsys.readouterr().out


def test_verbose_may_stand_anywhere_and_shows_where_an_error_was_found(capsys, caplog):
    for words in (["--verbose", "plan", "qick"], ["plan", "--verbose", "qick"], ["plan", "qick"]):
        caplog.clear()
        assert exit_code(*words) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith('error: scenario = "qick"')
        told = [record for record in caplog.records if record.exc_info and record.name.startswith("airdistill")]
        assert bool(told) == ("--verbose" in words)
