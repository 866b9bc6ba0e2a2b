"""The pages without a browser: numbers, rejected input and messages."""

import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from small_worlds import small_scenario
from streamlit.testing.v1 import AppTest

import airdistill as ad
import airdistill.web
from airdistill.report.wording import limiting_factor
from airdistill.runs.options import RunOptions
from airdistill.runs.results import Curve
from airdistill.scenario.loading import load, preset_names
from airdistill.web.figures import curves_figure
from airdistill.web.serving import LOOK_ONLY

SCRIPT = Path(airdistill.web.__file__).with_name("app.py")


@pytest.fixture
def open_page(tmp_path, monkeypatch):
    """Open the page of a folder at an address; `arguments` are passed by the server."""

    def opened(folder=tmp_path, *arguments, **address):
        monkeypatch.setattr(sys, "argv", ["app.py", str(folder), *arguments])
        page = AppTest.from_file(str(SCRIPT), default_timeout=600)  # only a failing test waits so long
        page.query_params.update(address)
        return page.run()

    return opened


def slider(page, label):
    return next(each for each in page.select_slider if each.label == label)


def choice(page, label):
    return next(each for each in page.selectbox if each.label == label)


def command_of(page):
    return page.code[-1].value


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_planned_without_changes(open_page, name):
    page = open_page()
    choice(page, "Scenario").set_value(name)
    page.run()
    assert not page.exception
    assert [each.value for each in page.error] == []
    assert command_of(page) == f"airdistill plan {name} --scheme ota_fd"
    assert page.metric[0].value == str(ad.plan(load(name), "ota_fd").num_rounds)


def test_every_slider_changes_its_field(open_page):
    """Each is moved by one position. The command then sets that field, and the plan is that of the scenario."""
    page = open_page()
    choice(page, "Scenario").set_value("quick")
    page.run()
    for number in range(len(page.select_slider)):
        moved = page.select_slider[number]
        start = moved.value
        moved.set_value((start[0], start[1] + 1) if isinstance(start, tuple) else start - 1 if start else start + 1)
        page.run()
        assert not page.exception
        assert not page.error
        *_, flag, change = shlex.split(command_of(page))
        assert flag == "--set"
        changed = load("quick", [change])
        assert changed != load("quick"), moved.label
        assert page.metric[0].value == str(ad.plan(changed, "ota_fd").num_rounds)
        page.select_slider[number].set_value(start)


def test_every_choice_offers_several_values(open_page):
    page = open_page()
    trust_models = ["receiver_noise", "fleet_noise", "own_noise", "trusted_aggregator"]
    assert choice(page, "Trust model: noise that counts").options == trust_models
    assert min(len(each.options) for each in page.selectbox) > 1


def test_a_choice_that_requires_another_field_shows_its_slider(open_page):
    page = open_page()
    choice(page, "Partition of classes").set_value("dirichlet")
    page.run()
    assert not page.error
    assert slider(page, "Concentration α")
    assert "data.alpha=0.5" in command_of(page)


def test_a_page_without_runs_says_how_to_get_one(open_page, tmp_path):
    page = open_page(tmp_path / "nowhere", page="Runs")
    assert "There are no runs" in page.info[0].value
    page = open_page(tmp_path / "nowhere", page="Compare")
    assert not page.exception


@pytest.fixture(scope="module")
def ended_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ended")
    ad.run(small_scenario(folder), "ota_fd", out=folder / "run", options=RunOptions(eval_every=3))
    return folder / "run"


@pytest.mark.parametrize(
    "name", ["run.json", "plan.json", "scenario.toml", "rounds.jsonl", "ledger.jsonl", "summary.json", "digests.json"]
)
@pytest.mark.parametrize("damage", ["gone", "empty", "garbage", "cut"])
def test_a_damaged_run_does_not_break_the_page(open_page, ended_run, tmp_path, name, damage):
    """A lost or overwritten file leads to a message or to missing parts, never to an exception."""
    shutil.copytree(ended_run, tmp_path / "run")
    path = tmp_path / "run" / name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "garbage": b"\xff\x00{]\n", "cut": content[: len(content) // 2]}[damage])
    page = open_page(tmp_path, page="Runs", run="run")
    assert not page.exception
    assert not any("failed unexpectedly" in each.value for each in page.error)
    assert page.error or page.metric
    if name == "rounds.jsonl":
        assert any("rounds.jsonl" in each.value.replace("\\", "") for each in page.warning)


def test_a_page_open_to_the_network_starts_no_runs_and_reads_no_files(open_page, tmp_path, few_digits):
    page = open_page(tmp_path, LOOK_ONLY)
    assert not any(each.label == "Start a run" for each in page.button)
    page.text_area[0].set_value(f"data.dataset={few_digits}")
    page.run()
    assert "does not read files" in page.error[0].value
    assert not page.metric


@pytest.mark.parametrize("field", ["learning.model", "overrides.ota_fl.learning.model"])
def test_a_page_open_to_the_network_does_not_import_code_to_plan(open_page, tmp_path, monkeypatch, field):
    """The plan of federated learning builds the model to count its parameters."""
    (tmp_path / "visitors.py").write_text(f"open({str(tmp_path / 'was_here')!r}, 'w').close()")
    monkeypatch.chdir(tmp_path)
    page = open_page(tmp_path, LOOK_ONLY)
    page.text_area[0].set_value(f"{field}=visitors:Model")
    choice(page, "Scheme").set_value("ota_fl")
    page.run()
    assert "code of your own" in page.error[0].value
    assert not (tmp_path / "was_here").exists()


def test_a_very_long_number_is_rejected_with_a_message(open_page):
    page = open_page()
    page.text_area[0].set_value("fleet.devices=0x" + "f" * 6000)
    page.run()
    assert "too long to be shown" in page.error[0].value


def test_a_run_of_foreign_code_is_not_started(open_page, tmp_path):
    page = open_page(tmp_path)
    page.text_area[0].set_value("learning.model=somewhere:Model")
    page.run()
    assert "Start a run" not in {each.label for each in page.button}
    assert "code of your own" in page.error[0].value.replace("\\", "")
    assert list(tmp_path.iterdir()) == []


def test_the_numbers_of_a_preset_are_those_of_the_command_line(open_page):
    page = open_page()
    plan = ad.plan(load("paper"), "ota_fd")
    shown = {each.label: each.value for each in page.metric}
    assert shown["Limiting factor"] == limiting_factor(plan.forecast.regime)
    assert shown["Worst ε, device"] == f"{np.max(plan.epsilon_by_model['device']):.3g}"


def test_selected_runs_are_kept_while_another_page_is_shown_unless_deleted(open_page, ended_run, tmp_path):
    for name in ("one", "other"):
        shutil.copytree(ended_run, tmp_path / name)
    page = open_page(tmp_path, page="Compare")
    page.multiselect[0].set_value(["one", "other"])
    page.run()
    for where in ("Plan", "Compare"):
        page.session_state["page"] = where
        page.run()
    assert page.multiselect[0].value == ["one", "other"]
    shutil.rmtree(tmp_path / "other")
    page.run()
    assert not page.exception
    assert not page.error


def test_markup_in_the_name_of_a_run_is_escaped_in_figures():
    level = np.array([0.5])
    curve = Curve(rounds=np.array([1.0]), seconds=np.array([1.0]), mean=level, low=level, high=level)
    names = [trace.name for trace in curves_figure({"<a href='https://a.example'>run</a>": curve}, "rounds").data]
    assert names == ["&lt;a href='https://a.example'&gt;run&lt;/a&gt;"]
