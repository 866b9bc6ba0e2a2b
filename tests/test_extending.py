"""Provoke every error message that docs/extending.md and docs/own-models-and-data.md list."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from small_worlds import small_scenario, write_dataset
from torch import nn

from airdistill.errors import AirDistillError
from airdistill.planning.payloads import OneVector
from airdistill.privacy.neighbours import Neighbours
from airdistill.privacy.trust import FleetNoise
from airdistill.radio.superposition import error_free
from airdistill.runs.options import RunOptions
from airdistill.runs.runner import run
from airdistill.schemes import Outcome, Scheme
from airdistill.schemes.distillation import OtaFd
from airdistill.schemes.payloads import BaseProtocol

DOCS = Path(__file__).parent.parent / "docs"
PAGES = "".join((DOCS / name).read_text() for name in ("extending.md", "own-models-and-data.md"))


class Nameless(Scheme):
    def play(self, this):
        return Outcome(this.learn(None))


class Uncharged(Scheme):
    """Makes up a reception without a charge."""

    name = "uncharged"

    def play(self, this):
        num_classes = this.plan.fleet.num_classes
        reception = error_free(np.full((num_classes, num_classes), 1 / num_classes), this.scenario.radio.slot)
        return Outcome(this.learn(reception.broadcast), reception)


class Undeclared(Scheme):
    """A non-private release in a scheme that declares a private one."""

    name = "undeclared"

    def play(self, this):
        reception = this.release_without_privacy(np.nanmean(this.vectors(), axis=0))
        return Outcome(this.learn(reception.broadcast), reception)


class Quiet(Scheme):
    """Half the planned noise."""

    name = "quiet"

    def play(self, this):
        planned = this.design()
        this.charge(replace(planned, noise_gain=planned.noise_gain / 2))
        reception = this.transmit(this.vectors())
        return Outcome(this.learn(reception.received), reception)


class TenTimes(OtaFd):
    """Ten times the norm that the noise was made for."""

    name = "ten_times"

    def play(self, this):
        reception = this.transmit(10 * this.vectors())
        return Outcome(this.learn(reception.received), reception)


class Twice(OtaFd):
    name = "twice"

    def play(self, this):
        this.transmit(this.vectors())
        return super().play(this)


class Shifted(OtaFd):
    """Negative entries of an allowed norm."""

    name = "shifted"

    def play(self, this):
        reception = this.transmit(this.vectors() - 0.5)
        return Outcome(this.learn(reception.received), reception)


class Flat(OtaFd):
    """Rows in the wrong shape."""

    name = "flat"

    def play(self, this):
        vectors = this.vectors()
        reception = this.transmit(vectors.reshape(len(vectors), 1, -1))
        return Outcome(this.learn(reception.received), reception)


class Forgetful(Scheme):
    name = "forgetful"

    def play(self, this):
        this.learn(None)


class Failing(Scheme):
    name = "failing"

    def play(self, this):
        return this.knowledge


class NotTrust:
    """Not derived from Trust."""


class Underestimating(FleetNoise):
    """Designs an eighth of the noise that its own `counted` requires."""

    name = "underestimating"

    def received_noise(self, links, required, scale_sq):
        return super().received_noise(links, required / 8, scale_sq)


@dataclass(frozen=True)
class TooLong(OneVector):
    """Its protocol sends vectors beyond its norm bound."""

    kind = f"{__name__}:TooLong"
    words = "long vectors"
    neighbours = Neighbours("long vectors")
    vector_length = 4
    largest_norm = 1.0

    def protocol(self, plan):  # noqa: ARG002
        return _SendsTwos()


class _SendsTwos(BaseProtocol):
    def vectors(self, fleet, round_index, devices):  # noqa: ARG002
        return np.full((len(fleet.learners), 1, 4), 2.0)

    def learn(self, fleet, round_index, broadcast, devices):  # noqa: ARG002
        return []


class SendsTooLong(OtaFd):
    name = "sends_too_long"
    payload = TooLong


def too_wide(num_classes):
    return nn.Linear(4, num_classes + 1)


def too_narrow(num_classes):
    return nn.Linear(3, num_classes)


def no_model():
    return "a model"


def message(scenario_of, scheme="ota_fd"):
    with pytest.raises(AirDistillError) as caught:
        run(scenario_of(), scheme, rounds=2, options=RunOptions(threads=1))
    return str(caught.value)


@pytest.mark.parametrize(
    "scheme",
    [Nameless, Uncharged, Undeclared, Quiet, TenTimes, Twice, Shifted, Flat, Forgetful, Failing, SendsTooLong],
)
def test_schemes_and_payloads(scheme, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_documented(message(lambda: small_scenario(tmp_path), f"{__name__}:{scheme.__name__}"))


@pytest.mark.parametrize("trust", [NotTrust, Underestimating])
def test_trust_models(trust, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_documented(message(lambda: small_scenario(tmp_path, f"privacy.trust={__name__}:{trust.__name__}")))


@pytest.mark.parametrize("field", ["privacy.trust", "fleet.sampling", "learning.receiver"])
def test_a_name_that_is_neither_built_in_nor_a_reference(field, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_documented(message(lambda: small_scenario(tmp_path, f"{field}=mine")))


@pytest.mark.parametrize("model", [too_wide, too_narrow, no_model])
def test_models(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_documented(message(lambda: small_scenario(tmp_path, f"learning.model={__name__}:{model.__name__}")))


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
    assert_documented(message(lambda: small_scenario(tmp_path, "data.dataset=mine.npz")))


@pytest.fixture
def short_folder():
    """A folder with a short path: an error cuts long ones."""
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
    assert_documented(message(lambda: small_scenario(tmp_path, change)))


def assert_documented(line):
    """On one of the pages, except for folders and the module's name."""
    shown = line.replace(f"{__name__}:", "mine:").replace(f"{Path.cwd()}/", "")
    assert shown in PAGES, shown
