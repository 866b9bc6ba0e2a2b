"""The pages without a browser: what they compute, refuse and say."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from small_worlds import small_scenario
from streamlit.testing.v1 import AppTest

import airdistill as ad
import airdistill.web
from airdistill.runs.options import RunOptions
from airdistill.runs.results import Curve
from airdistill.scenario.loading import load, preset_names
from airdistill.web.figures import curves_figure
from airdistill.web.serving import LOOK_ONLY

SCRIPT = Path(airdistill.web.__file__).with_name("app.py")


@pytest.fixture
def open_page(tmp_path, monkeypatch):
    """The page of a folder, as a visitor of its first address sees it; more arguments are the server's."""

    def opened(folder=tmp_path, *arguments, **address):
        monkeypatch.setattr(sys, "argv", ["app.py", str(folder), *arguments])
        page = AppTest.from_file(str(SCRIPT), default_timeout=60)
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
def test_every_preset_is_planned_and_nothing_is_changed_that_was_not_touched(open_page, name):
    page = open_page()
    choice(page, "Scenario").set_value(name)
    page.run()
    assert not page.exception
    assert [each.value for each in page.error] == []
    assert command_of(page) == f"airdistill plan {name}"
    assert page.metric[0].value == str(ad.plan(load(name)).num_rounds)


def test_every_slider_makes_the_change_that_its_label_says(open_page):
    """Each is moved by one place; the command line then has that field, and the plan is the one of that scenario."""
    page = open_page()
    choice(page, "Scenario").set_value("quick")
    page.run()
    for number in range(len(page.select_slider)):
        knob = page.select_slider[number]
        start = knob.value
        knob.set_value((start[0], start[1] + 1) if isinstance(start, tuple) else start - 1 if start else start + 1)
        page.run()
        assert not page.exception
        assert not page.error
        _, _, _, flag, change = command_of(page).split(" ", 4)
        assert flag == "--set"
        changed = load("quick", [change.strip("'")])
        assert changed != load("quick"), knob.label
        assert page.metric[0].value == str(ad.plan(changed).num_rounds)
        page.select_slider[number].set_value(start)


def test_a_choice_that_needs_another_field_brings_it(open_page):
    page = open_page()
    choice(page, "How classes fall to devices").set_value("dirichlet")
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
    "name", ["run.json", "plan.json", "scenario.toml", "rounds.jsonl", "ledger.jsonl", "summary.json"]
)
@pytest.mark.parametrize("harm", ["gone", "empty", "garbage", "cut"])
def test_no_harm_to_a_run_breaks_the_page(open_page, ended_run, tmp_path, name, harm):
    """Whatever was lost or overwritten: a sentence, or less to see, and never an exception."""
    shutil.copytree(ended_run, tmp_path / "run")
    path = tmp_path / "run" / name
    content = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "garbage": b"\xff\x00{]\n", "cut": content[: len(content) // 2]}[harm])
    page = open_page(tmp_path, page="Runs", run="run")
    assert not page.exception
    assert not any("nobody foresaw" in each.value for each in page.error)
    assert page.error or page.metric


def test_a_page_open_to_the_network_starts_nothing_and_reads_no_files(open_page, tmp_path, few_digits):
    page = open_page(tmp_path, LOOK_ONLY)
    assert not any(each.label == "Start a run" for each in page.button)
    page.text_area[0].set_value(f"data.dataset={few_digits}")
    page.run()
    assert "takes none" in page.error[0].value
    assert not page.metric


@pytest.mark.parametrize("field", ["learning.model", "overrides.ota_fl.learning.model"])
def test_a_page_open_to_the_network_plans_without_a_visitors_code(open_page, tmp_path, monkeypatch, field):
    """Federated learning's plan counts a model's parameters, and for that builds it."""
    (tmp_path / "visitors.py").write_text(f"open({str(tmp_path / 'was_here')!r}, 'w').close()")
    monkeypatch.chdir(tmp_path)
    page = open_page(tmp_path, LOOK_ONLY)
    page.text_area[0].set_value(f"{field}=visitors:Model")
    choice(page, "Planned for").set_value("ota_fl")
    page.run()
    assert "code of your own" in page.error[0].value
    assert not (tmp_path / "was_here").exists()


def test_a_number_of_any_length_is_refused_in_a_sentence(open_page):
    page = open_page()
    page.text_area[0].set_value("fleet.devices=0x" + "f" * 6000)
    page.run()
    assert "too long to be shown" in page.error[0].value


def test_code_of_a_visitor_is_not_run(open_page, tmp_path):
    page = open_page(tmp_path)
    page.text_area[0].set_value("learning.model=somewhere:Model")
    page.run()
    next(each for each in page.button if each.label == "Start a run").click()
    page.run()
    assert "code of your own" in page.error[0].value.replace("\\", "")
    assert list(tmp_path.iterdir()) == []


def test_numbers_of_a_preset_are_those_of_the_command_line(open_page):
    page = open_page()
    plan = ad.plan(load("paper"))
    shown = {each.label: each.value for each in page.metric}
    assert shown["What binds"] == plan.forecast.regime
    assert shown["Worst ε, device"] == f"{np.max(plan.epsilon_by_model['device']):.3g}"


def test_picked_runs_are_kept_while_another_page_is_looked_at_and_none_that_is_gone(open_page, ended_run, tmp_path):
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


def test_a_name_in_a_picture_is_no_markup():
    level = np.array([0.5])
    curve = Curve(rounds=np.array([1.0]), seconds=np.array([1.0]), mean=level, low=level, high=level)
    names = [trace.name for trace in curves_figure({"<a href='https://a.example'>run</a>": curve}, "rounds").data]
    assert names == ["&lt;a href='https://a.example'&gt;run&lt;/a&gt;"]
