"""Provoke every error message that docs/extending-errors.md and docs/own-models-and-data.md list."""

import json
import re
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from small_worlds import small_scenario, write_dataset
from torch import nn

import airdistill as ad
from airdistill import certify
from airdistill.errors import AirDistillError
from airdistill.planning.payloads import OneVector
from airdistill.privacy.neighbours import Neighbours
from airdistill.privacy.participation import Participation
from airdistill.privacy.trust import FleetNoise, OwnNoise
from airdistill.radio import Estimate
from airdistill.radio.superposition import error_free
from airdistill.report.plan import receiver_rows
from airdistill.runs.options import RunOptions
from airdistill.runs.runner import run
from airdistill.runs.simulation import own_code
from airdistill.schemes import Outcome, Scheme
from airdistill.schemes.distillation import OtaFd
from airdistill.schemes.payloads import BaseProtocol

DOCS = Path(__file__).parent.parent / "docs"
PAGES = "".join((DOCS / name).read_text() for name in ("extending-errors.md", "own-models-and-data.md"))


class Nameless(Scheme):
    def play(self, this):
        return Outcome(this.learn(None))


class Uncharged(Scheme):
    """Makes up a reception without a charge."""

    name = "uncharged"

    def play(self, this):
        num_classes = this.plan.fleet.num_classes
        reception = error_free(np.full((num_classes, num_classes), 1 / num_classes), this.scenario.radio.slot)
        return Outcome(this.learn(None), reception)


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


class Renamed(OtaFd):
    """Forgets to name itself."""


class Unsent(OtaFd):
    """Averages the vectors instead of sending them."""

    name = "unsent"

    def play(self, this):
        return Outcome(this.learn(np.nanmean(this.vectors(), axis=0)))


class Noiseless(OtaFd):
    name = "noiseless"

    def play(self, this):
        reception = this.transmit(this.vectors())
        return Outcome(this.learn(reception.ideal), reception)


class Unprotected(OtaFd):
    """Its plan is not private, and its certificate stated no assumption."""

    name = "unprotected"
    releases = "bare"


class Signs(OtaFd):
    """Sends which class is likeliest, which one record can change; in place."""

    name = "signs"

    def play(self, this):
        vectors = this.vectors()
        vectors[...] = vectors == vectors.max(axis=-1, keepdims=True)
        reception = this.transmit(vectors)
        return Outcome(this.learn(reception.received), reception)


class Unmade(OtaFd):
    """Sends vectors of its own."""

    name = "unmade"

    def play(self, this):
        reception = this.transmit(np.ones((3, 3, 3)) / 3)
        return Outcome(this.learn(reception.received), reception)


class Unchanged(OtaFd):
    name = "unchanged"


class Twofold(OtaFd):
    """Pays for two transmissions."""

    name = "twofold"

    def play(self, this):
        vectors = this.vectors()
        this.charge(this.design())
        return Outcome(this.learn(this.transmit(vectors).received))


class Loud(OtaFd):
    """A hundred times the planned power: signal, noise and scale are consistent, but no transmitter sends them."""

    name = "loud"

    def play(self, this):
        planned = this.design()
        gains = {name: 10 * getattr(planned, name) for name in ("signal_gain", "noise_gain", "rx_scale")}
        this.charge(replace(planned, **gains))
        return super().play(this)


class Wrapped(OtaFd):
    """Broadcasts the reception in place of an array."""

    name = "wrapped"

    def play(self, this):
        reception = this.transmit(this.vectors())
        return Outcome(this.learn(reception), reception)


class Cut(OtaFd):
    """Broadcasts too few entries."""

    name = "cut"

    def play(self, this):
        reception = this.transmit(this.vectors())
        return Outcome(this.learn(reception.received[:, :2]), reception)


class LossesOnly(OtaFd):
    name = "losses_only"

    def play(self, this):
        return this.learn(this.transmit(this.vectors()).received)


class NotTrust:
    """Not derived from Trust."""


class Honest(FleetNoise):
    name = "honest"
    sentence = "Every device adds its noise."


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


class OwnSlots(SendsTooLong):
    name = "own_slots"
    tdma = True


@dataclass(frozen=True)
class Misnamed(TooLong):
    kind = "knowledge"


class SendsMisnamed(OtaFd):
    name = "sends_misnamed"
    payload = Misnamed


@dataclass(frozen=True)
class Disguised(TooLong):
    """Its certificate would state what holds for class means."""

    kind = f"{__name__}:Disguised"
    neighbours = Neighbours("knowledge", basis={"device": "Clipped."})


class SendsDisguised(OtaFd):
    name = "sends_disguised"
    payload = Disguised


@dataclass(frozen=True)
class Endless(TooLong):
    kind = f"{__name__}:Endless"
    largest_norm = float("inf")


class SendsEndless(OtaFd):
    name = "sends_endless"
    payload = Endless


@dataclass(frozen=True)
class Misspelt(TooLong):
    kind = f"{__name__}:Misspelt"
    neighbours = Neighbours("misspelt vectors", basis={"devices": "Clipped."})


class SendsMisspelt(OtaFd):
    name = "sends_misspelt"
    payload = Misspelt


class Relay(OwnNoise):
    """Half of the receiver noise is a relay's. Its flags do not say that other noise counts."""

    name = "relay"
    sentence = "A device's own noise counts, and half of the receiver noise, which is a relay's."
    assumption = "independent relay"

    def counted(self, own, together, receiver_var):
        return own + 0 * together + receiver_var / 2


class HonestRelay(Relay):
    name = "honest_relay"
    counts_receiver = True


class Anchors(OwnNoise):
    """The first two devices add the noise for all."""

    sentence = "The noise of devices 0 and 1 protects all devices."
    assumption = "honest anchors"
    counts_others = True

    def added(self, required):
        shares = np.zeros_like(required)
        shares[..., :2, :] = required.max(axis=-2, keepdims=True) / 2
        return shares

    def counted(self, own, together, receiver_var):  # noqa: ARG002
        return own[:2].sum(axis=0)


class Unscaled(OwnNoise):
    sentence = "A device's own noise counts."

    def inverse_scale_sq(self, links, required):  # noqa: ARG002
        return 1.0


class Overpowered(OwnNoise):
    """Scales all signals beyond the power limits."""

    sentence = "A device's own noise counts."

    def inverse_scale_sq(self, links, required):
        return super().inverse_scale_sq(links, required) / 4


class Flattened(Honest):
    def counted(self, own, together, receiver_var):
        return super().counted(own, together, receiver_var).sum()


class Unassuming(FleetNoise):
    name = "unassuming"
    assumption = None


class Maskless(Participation):
    """Does not say which devices join."""


class Rolling(Participation):
    def mask(self, round_index):  # noqa: ARG002
        return np.random.default_rng().random(self.num_devices) < 0.5


class Plain:
    """The sum as received, but for what a test replaces."""

    def __init__(self, plan):
        pass

    def estimate(self, received, noise_var):  # noqa: ARG002
        return received

    def state(self):
        return {}

    def restore(self, state):
        pass


class Counting(Plain):
    def state(self):
        return {"rounds": 1}


class Overwriting(Plain):
    """Writes into what it was given."""

    def estimate(self, received, noise_var):  # noqa: ARG002
        received[:] = 1 / received.shape[1]
        return Estimate(received)


class Cheating(OtaFd):
    name = "cheating"

    def play(self, this):
        reception = this.transmit(this.vectors())
        reception.received[:] = reception.ideal
        return Outcome(this.learn(reception.received), reception)


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
    [
        Nameless,
        Uncharged,
        Undeclared,
        Quiet,
        TenTimes,
        Twice,
        Shifted,
        Flat,
        Forgetful,
        Failing,
        SendsTooLong,
        Renamed,
        Unsent,
        Noiseless,
        Unprotected,
        Twofold,
        Loud,
        Wrapped,
        Cut,
        LossesOnly,
        SendsMisspelt,
        OwnSlots,
        SendsMisnamed,
        SendsDisguised,
        SendsEndless,
    ],
)
def test_schemes_and_payloads(scheme, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_documented(message(lambda: small_scenario(tmp_path), f"{__name__}:{scheme.__name__}"))


@pytest.mark.parametrize("sensitivity", ["class_mean", "trajectory"])
@pytest.mark.parametrize("scheme", [Signs, Unmade])
def test_a_bound_on_one_record_is_for_unchanged_vectors(scheme, sensitivity, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own, change = f"{__name__}:{scheme.__name__}", f"privacy.sensitivity={sensitivity}"
    line = message(lambda: small_scenario(tmp_path, change), own)
    assert_documented(line.replace(scheme.name, "signs").replace("class_mean", "trajectory"))
    run(small_scenario(tmp_path), own, rounds=1, out=tmp_path / "device", options=RunOptions(threads=1))
    assert "sends them unchanged" in " ".join(each.sentence for each in certify(tmp_path / "device").assumptions)


@pytest.mark.parametrize("sensitivity", ["class_mean", "trajectory"])
def test_a_scheme_that_sends_what_was_made_has_the_bound_on_one_record(sensitivity, tmp_path):
    scenario = small_scenario(tmp_path, f"privacy.sensitivity={sensitivity}")
    record = run(scenario, f"{__name__}:Unchanged", 2, tmp_path / "own", RunOptions(threads=1))
    built_in = run(scenario, "ota_fd", 2, tmp_path / "built-in", RunOptions(threads=1))
    assert record.summary["epsilon_spent"] == pytest.approx(built_in.summary["epsilon_spent"])


def test_the_papers_lemma_is_compared_with_any_vectors(tmp_path):
    """Its certificate does not hold, whatever a scheme sends."""
    scenario = small_scenario(tmp_path, "privacy.sensitivity=paper")
    run(scenario, f"{__name__}:Signs", rounds=2, out=tmp_path / "run", options=RunOptions(threads=1))
    assert certify(tmp_path / "run").verdict == "does not hold"


def test_a_certificate_names_the_users_own_receiver(tmp_path):
    scenario = small_scenario(tmp_path, f"learning.receiver={__name__}:Overwriting")
    run(scenario, "ota_fd", rounds=1, out=tmp_path / "run", options=RunOptions(threads=1))
    [own] = [each for each in certify(tmp_path / "run").assumptions if each.name == "user's own code"]
    assert "in this run (receiver)" in own.sentence


def test_a_relay_whose_noise_counts_with_the_receivers(tmp_path):
    """The ledger counts a device's own noise and half of what the receiver adds to that of the fleet."""
    own = f"{__name__}:HonestRelay"
    scenario = small_scenario(tmp_path, f"privacy.trust={own}")
    run(scenario, "ota_fd", rounds=1, out=tmp_path / "run", options=RunOptions(threads=1))
    assert "independent relay" in [each.name for each in certify(tmp_path / "run").assumptions]
    release = json.loads((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()[1])
    counted = {name: np.array(rows) for name, rows in release["counted_noise_var"].items()}
    of_receiver = counted["receiver_noise"] - counted["fleet_noise"]
    assert (of_receiver > 0).all()
    np.testing.assert_allclose(counted[own], counted["own_noise"] + of_receiver / 2)


@pytest.mark.parametrize("trust", [NotTrust, Underestimating, Unassuming, Flattened, Relay, Unscaled, Overpowered])
def test_trust_models(trust, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_documented(message(lambda: small_scenario(tmp_path, f"privacy.trust={__name__}:{trust.__name__}")))


@pytest.mark.parametrize(
    ("field", "own"),
    [
        ("fleet.sampling", Rolling),
        ("fleet.sampling", Maskless),
        ("learning.receiver", Plain),
        ("learning.receiver", Counting),
    ],
)
def test_participation_models_and_receivers(field, own, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_documented(message(lambda: small_scenario(tmp_path, f"{field}={__name__}:{own.__name__}")))


def test_a_receiver_cannot_overwrite_what_was_received(tmp_path):
    scenario = small_scenario(tmp_path, f"learning.receiver={__name__}:Overwriting")
    record = run(scenario, "ota_fd", rounds=1, out=tmp_path / "run", options=RunOptions(threads=1))
    tables = record.rounds[-1]["knowledge"]
    np.testing.assert_allclose(tables["broadcast"], 1 / 3, rtol=1e-5)
    assert np.ptp(tables["received"]) > 0.01


def test_a_scheme_cannot_write_the_ideal_sum_into_what_was_received(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = message(lambda: small_scenario(tmp_path), f"{__name__}:Cheating")
    assert "would broadcast reception.ideal, which has no noise" in line


def test_a_fleet_whose_noise_counts_names_the_antennas(tmp_path):
    """A user's own sentence need not say it."""
    scenario = small_scenario(tmp_path, f"privacy.trust={__name__}:Honest")
    run(scenario, "ota_fd", rounds=1, out=tmp_path / "run", options=RunOptions(threads=1))
    assert "number of antennas" in certify(tmp_path / "run").verdict_in_words


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"geometry": "orthagonal"}, 'Neighbours.geometry = "orthagonal": must be orthogonal or opposite'),
        ({"basis": "clipped"}, "Neighbours.basis = clipped: must be sentences by sensitivity model"),
    ],
)
def test_neighbours(change, said):
    with pytest.raises(AirDistillError) as caught:
        Neighbours("long vectors", **change)
    assert str(caught.value).startswith(said)


def test_a_plan_lists_the_users_own_receiver(tmp_path):
    own = f"{__name__}:Overwriting"
    plan = ad.plan(small_scenario(tmp_path, f"learning.receiver={own}"), "ota_fd")
    assert receiver_rows(plan, ad.what_if(plan))[1][-1][0] == f"{own}*"


def test_a_plan_is_not_made_for_a_receiver_that_no_run_can_find(tmp_path):
    scenario = small_scenario(tmp_path, f"learning.receiver={__name__}:Overwritin")
    with pytest.raises(AirDistillError, match=f"has no Overwritin; did you mean {__name__}:Overwriting"):
        ad.plan(scenario, "ota_fd")


def test_code_that_was_not_needed_yet_is_not_taken_for_changed_code(tmp_path, monkeypatch):
    """An audit compares a run's own modules before anything has imported them."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "median_of_rounds.py").write_text(f"from {__name__} import Overwriting\n")
    scenario = small_scenario(tmp_path, "learning.receiver=median_of_rounds:Overwriting")
    plan = ad.plan(scenario, "ota_fd")
    known = own_code(plan, OtaFd())
    assert known["median_of_rounds"] is not None
    monkeypatch.delitem(sys.modules, "median_of_rounds")
    assert own_code(plan, OtaFd()) == known
    del sys.modules["median_of_rounds"]


def test_two_methods_are_a_trust_model(tmp_path):
    """What devices add and what counts of it: the plan expects what the ledger then counts, and limits are kept."""
    own = f"{__name__}:Anchors"
    plan = ad.plan(small_scenario(tmp_path, f"privacy.trust={own}"), "ota_fd")
    channel = np.array([3e-5, 2e-5 + 1e-5j, 4e-5j])
    design = plan.design(channel)
    amplitude = np.abs(channel)[:, None] * np.abs(design.noise_gain) / design.rx_scale
    expected = np.broadcast_to((amplitude[:2] ** 2).sum(axis=0), design.weights.shape)
    np.testing.assert_allclose(design.counted_noise_var, expected)
    np.testing.assert_allclose(plan.uplink.noise_by_trust(design, channel)[own], expected)
    needed = plan.uplink.required(plan.num_rounds)
    assert (expected >= needed * (1 - 1e-9)).all()
    assert not design.noise_gain[2].any()
    assert plan.uplink.trust_model.name == own
    slack = 1 - (np.abs(design.signal_gain) ** 2 + np.abs(design.noise_gain) ** 2) / plan.fleet.peak_power_w[:, None]
    np.testing.assert_allclose(slack.min(axis=0), 0, atol=1e-9)  # the optimum uses all power of one device


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
    line = re.sub(r"test_extending\.py, line \d+", "mine.py, line 12", line)
    shown = line.replace(f"{__name__}:", "mine:").replace(f"{Path.cwd()}/", "")
    assert shown in PAGES, shown
