"""An edited scenario is the same on the page, in its file and on the command line; sliders have distinct values."""

import shlex

import pytest

from airdistill.errors import AirDistillError
from airdistill.scenario.loading import as_toml, load, load_text
from airdistill.web.controls import DELTA, EPSILON, NOISE_POWER, POWER
from airdistill.web.draft import Draft, Origin, as_changes, check_names_no_code, check_names_no_files

CHANGES = {
    "radio.peak_power": 0.0063,
    "radio.distance": [20.0, 300.0],
    "privacy.epsilon": "inf",
    "privacy.relabel": True,
    "learning.rounds": 7,
    "learning.receiver": "tracking",
}


def test_the_command_and_the_file_give_the_same_scenario():
    draft = Draft(Origin("quick"), as_changes(CHANGES))
    words = shlex.split(draft.command("plan"))
    assert words[:3] == ["airdistill", "plan", "quick"]
    assert set(words[3::2]) == {"--set"}
    assert load("quick", words[4::2]) == draft.scenario
    assert load_text(as_toml(draft.scenario), "file") == draft.scenario
    assert draft.scenario.radio.peak_power.numbers == (0.0063,)


def test_an_opened_scenario_has_its_own_name_or_that_of_its_file():
    text = "[fleet]\ndevices = 5\n[privacy]\nepsilon = 8\ndelta = 1e-5\n"
    assert Origin("my plan (2).toml", text).scenario().name == "my-plan--2-"
    assert Origin("x.toml", 'name = "mine"\n' + text).scenario().name == "mine"
    assert Origin("a.toml", text).identity != Origin("a.toml", text + "\n").identity


def test_scenarios_that_name_files_or_code_are_rejected():
    check_names_no_files(load("skewed"))
    check_names_no_code(load("skewed"))
    for change, field in [
        ("data.dataset=/etc/passwd", "data.dataset"),
        ("radio.trace=trace.npz", "radio.trace"),
        ("public.source=elsewhere.npz", "public.source"),
        ("overrides.ota_fl.data.dataset=/etc/passwd", "overrides.ota_fl.data.dataset"),
        ("overrides.airdistill.radio.trace=trace.npz", "overrides.airdistill.radio.trace"),
        ("overrides.proxy_fd.public.source=elsewhere.npz", "overrides.proxy_fd.public.source"),
    ]:
        with pytest.raises(AirDistillError, match=field):
            check_names_no_files(load("skewed", [change]))
    for change in (
        "learning.model=mine:Net",
        "learning.receiver=mine:Receiver",
        "privacy.trust=mine:Trust",
        "fleet.sampling=mine:Draws",
        "public.server_model=mine:Net",
        "data.dataset=mine:samples",
        "overrides.ota_fl.learning.model=mine:Net",
        'overrides.ota_fl.fleet.groups=[{count = 200, model = "mine:Net"}]',
        "overrides.airdistill_proxy.public.server_model=mine:Net",
    ):
        with pytest.raises(AirDistillError, match="code of your own"):
            check_names_no_code(load("skewed", [change]))


@pytest.mark.parametrize("slider", [POWER, NOISE_POWER, EPSILON, DELTA])
def test_the_values_of_a_slider_are_sorted_and_look_different(slider):
    shown = [slider.show(value) for value in slider.values]
    assert len(set(shown)) == len(shown)
    assert list(slider.values) == sorted(slider.values)


def test_a_slider_contains_the_exact_value_of_the_scenario():
    assert 5.123e-15 in NOISE_POWER.with_own([5.123e-15])
    assert len(NOISE_POWER.with_own([1e-15])) == len(NOISE_POWER.values)
    assert POWER.show(1e-3) == "0 dBm (1 mW)"
