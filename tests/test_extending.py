"""Every line that docs/extending.md says one is told, provoked."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_worlds import small_scenario, write_dataset
from torch import nn

from airdistill.errors import AirDistillError
from airdistill.radio import error_free, over_the_air
from airdistill.runs.options import RunOptions
from airdistill.runs.runner import run
from airdistill.schemes import Outcome, Scheme

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()


class Nameless(Scheme):
    def play(self, this):
        return Outcome(this.learn(None))


class Uncharged(Scheme):
    name = "uncharged"

    def play(self, this):
        heard = error_free(this.plan.fleet.class_counts, this.local_knowledge(), this.scenario.radio.slot)
        return Outcome(this.learn(heard.knowledge), heard)


class Undeclared(Uncharged):
    name = "undeclared"

    def play(self, this):
        this.release_without_privacy()
        return super().play(this)


class Quiet(Scheme):
    """With half the noise that was planned."""

    name = "quiet"

    def play(self, this):
        planned = this.design()
        design = replace(planned, noise_gain=planned.noise_gain / 2)
        noise = this.noise(design)
        counts, slot = this.plan.fleet.class_counts, this.scenario.radio.slot
        heard = over_the_air(counts, this.local_knowledge(), design, this.channel(), noise, slot, this.there())
        return Outcome(this.learn(heard.received), heard)


class Forgetful(Scheme):
    name = "forgetful"

    def play(self, this):
        this.learn(None)


class Failing(Scheme):
    name = "failing"

    def play(self, this):
        return this.knowledge


def too_wide(num_classes):
    return nn.Linear(4, num_classes + 1)


def too_narrow(num_classes):
    return nn.Linear(3, num_classes)


def no_model():
    return "a model"


def told(scenario_of, scheme="ota_fd"):
    with pytest.raises(AirDistillError) as caught:
        run(scenario_of(), scheme, rounds=2, options=RunOptions(threads=1))
    return str(caught.value)


@pytest.mark.parametrize("scheme", [Nameless, Uncharged, Undeclared, Quiet, Forgetful, Failing])
def test_schemes(scheme, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = told(lambda: small_scenario(tmp_path), f"{__name__}:{scheme.__name__}")
    assert is_on_the_page(line)


@pytest.mark.parametrize("model", [too_wide, too_narrow, no_model])
def test_models(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = told(lambda: small_scenario(tmp_path, f"learning.model={__name__}:{model.__name__}"))
    assert is_on_the_page(line)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: {**data, "y_train": data["y_train"][:50]},
        lambda data: {**data, "y_train": data["y_train"] / 1.0},
        lambda data: {**data, "y_test": data["y_test"] + 3},
        lambda data: {**data, "x_train": data["x_train"] * np.nan},
        lambda data: {name: data[name] for name in ("x_train", "y_train", "x_test")},
    ],
)
def test_datasets(change, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with np.load(write_dataset(tmp_path / "good.npz")) as good:
        np.savez("mine.npz", **change(dict(good)))
    line = told(lambda: small_scenario(tmp_path, "data.dataset=mine.npz"))
    assert is_on_the_page(line)


@pytest.fixture
def short_folder():
    """An error shows so much of a path."""
    with tempfile.TemporaryDirectory() as name:
        yield name


@pytest.mark.parametrize(
    "change",
    [
        "radio.gains=[[1e-6, 0], [0, 1e-6]]",
        "radio.trace=two-arrays.npz",
        "radio.trace=endless.npz",
        "radio.trace=none.npz",
    ],
)
def test_channels(change, tmp_path, monkeypatch, short_folder):
    monkeypatch.chdir(short_folder)
    np.savez("two-arrays.npz", h=np.full((7, 3), 1e-6), time=np.arange(7))
    np.savez("endless.npz", channel=np.full((7, 3), np.inf))
    line = told(lambda: small_scenario(tmp_path, change))
    assert is_on_the_page(line)


def is_on_the_page(line):
    """But for where files lie and which module things are in."""
    shown = line.replace(f"{__name__}:", "mine:").replace(f"{Path.cwd()}/", "")
    return shown in PAGE
