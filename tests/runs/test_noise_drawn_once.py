"""Protecting noise is never drawn twice: not by a run that continues another, nor by one with other terms or data."""

import importlib
import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
from small_worlds import small_scenario, write_dataset

import airdistill as ad
from airdistill.channel.sources import channel_source
from airdistill.errors import AirDistillError
from airdistill.files import write_whole
from airdistill.privacy.ledger import Ledger
from airdistill.radio import charged_round
from airdistill.radio.charged_round import charge_round
from airdistill.radio.sum_grid import SumGrid
from airdistill.radio.superposition import Permission
from airdistill.radio.trusted_aggregator import ChargedVotes
from airdistill.runs.accounts import ledger_header
from airdistill.runs.folder import RUN, RunError, read_sealed, seal
from airdistill.runs.options import RunOptions
from airdistill.streams import stream

OPTIONS = RunOptions(threads=1, eval_every=1, checkpoint_every=2)
SEEDED = ["fleet_noise", "own_noise", "receiver_noise"]


def noise_of(record, round_index=1):
    """The noise of one round as received, `[class, entry]`, whitened by its planned variance."""
    line = record.rounds[round_index - 1]
    ideal, received = (np.array(line["knowledge"][name], dtype=float) for name in ("ideal", "received"))
    return (received - ideal) / np.sqrt(line["predicted_noise_var"])[:, None]


def correlation(one, other):
    kept = np.isfinite(one) & np.isfinite(other)
    assert kept.sum() >= 9
    return float(np.corrcoef(one[kept], other[kept])[0, 1])


def test_the_measure_sees_equal_noise(tmp_path):
    record = ad.run(small_scenario(tmp_path), out=tmp_path / "run", options=OPTIONS)
    assert correlation(noise_of(record), noise_of(record)) == pytest.approx(1)
    assert abs(correlation(noise_of(record, 1), noise_of(record, 2))) < 0.95


@pytest.mark.parametrize("trust", SEEDED)
def test_a_run_that_continues_a_ledger_draws_other_noise(tmp_path, trust):
    """The difference of two first rounds with the same noise would contain none: ε = 12 was certified, and it was ∞."""
    scenario = small_scenario(tmp_path, f"privacy.trust={trust}", "privacy.epsilon=4", "learning.rounds=2")
    later = small_scenario(tmp_path, f"privacy.trust={trust}", "privacy.epsilon=12", "learning.rounds=2")
    first = ad.run(scenario, "ota_fd", out=tmp_path / "c1", options=OPTIONS)
    again = ad.run(later, "ota_fd", out=tmp_path / "c2", options=OPTIONS, ledger=tmp_path / "c1")
    same_terms = ad.run(later, "ota_fd", out=tmp_path / "alone", options=OPTIONS)
    noises = [noise_of(each) for each in (first, again, same_terms)]
    for index, one in enumerate(noises):
        assert all(abs(correlation(one, other)) < 0.95 for other in noises[index + 1 :])


@pytest.mark.parametrize(
    "changes", [["privacy.epsilon=3"], ["learning.initial_lr=0.02"], ["privacy.trust=own_noise"], ["seed=1"]]
)
def test_runs_with_other_terms_draw_other_noise(tmp_path, changes):
    first = ad.run(small_scenario(tmp_path), out=tmp_path / "first", options=OPTIONS)
    other = ad.run(small_scenario(tmp_path, *changes), out=tmp_path / "other", options=OPTIONS)
    assert abs(correlation(noise_of(first), noise_of(other))) < 0.95


def test_a_run_on_other_data_draws_other_noise_and_the_same_data_elsewhere_the_same(tmp_path):
    scenario = small_scenario(tmp_path)
    first = ad.run(scenario, out=tmp_path / "first", options=OPTIONS)
    source = tmp_path / "elsewhere.npz"
    shutil.copyfile(scenario.data.dataset, source)
    moved = small_scenario(tmp_path, f"data.dataset={source}", 'name="renamed"')
    assert np.array_equal(noise_of(first), noise_of(ad.run(moved, out=tmp_path / "moved", options=OPTIONS)))
    with np.load(source) as stored:
        arrays = dict(stored)
    arrays["x_train"][0] = arrays["x_train"][0] + 1
    np.savez(source, **arrays)
    changed = ad.run(moved, out=tmp_path / "changed", options=OPTIONS)
    assert abs(correlation(noise_of(first), noise_of(changed))) < 0.95


class Charging:
    """A plan of `ota_fd` and a ledger, in memory or on disk."""

    def __init__(self, folder, *changes, path=None):
        scenario = small_scenario(folder, *changes)
        self.plan, self.path = ad.plan(scenario, "ota_fd"), path
        header = ledger_header(self.plan, "ota_fd", "private")
        self.ledger = Ledger(header) if path is None else Ledger.begin(header, path)
        self.source = channel_source(scenario)

    def noise(self, round_index=1, secure_sum=False):
        charged = charge_round(self.plan, self.ledger, self.source, round_index, secure_sum=secure_sum)
        if not secure_sum:
            return charged.on_air.artificial
        shape = (self.plan.uplink.num_rows, self.plan.uplink.vector_length)
        return charged.sum_values(0, np.zeros(shape)).astype(float)

    def read_again(self, recorded_rounds):
        self.ledger = Ledger.read(self.path, recorded_rounds)


@pytest.mark.parametrize("secure_sum", [False, True])
def test_two_charges_of_one_round_have_different_noise(tmp_path, secure_sum):
    charging = Charging(tmp_path, "learning.rounds=4")
    first, second = (charging.noise(1, secure_sum) for _ in range(2))
    assert charging.ledger.num_releases == 2
    assert abs(correlation(first.ravel(), second.ravel())) < 0.95


def test_a_repeated_entry_has_its_noise_again_and_a_changed_one_has_not(tmp_path, monkeypatch, caplog):
    """A resumed run repeats what it has charged; if a design has changed meanwhile, a new entry has new noise."""
    charging = Charging(tmp_path, "learning.rounds=4", path=tmp_path / "ledger.jsonl")
    sent = [charging.noise(index) for index in (1, 2)]
    charging.read_again(recorded_rounds=0)
    assert np.array_equal(charging.noise(1), sent[0])
    assert charging.ledger.charged_ahead

    charging.read_again(recorded_rounds=0)
    planned = charging.plan.design(charging.source.round_channel(1), 1)
    monkeypatch.setattr(type(charging.plan), "design", lambda *_: _with_more_noise(planned))
    changed = charging.noise(1)
    assert "is charged again" in caplog.text
    assert charging.ledger.num_releases == 3
    for earlier in sent:
        assert abs(correlation(changed.ravel(), earlier.ravel())) < 0.95


def _with_more_noise(design):
    return replace(design, noise_gain=design.noise_gain * 1.1)


def test_a_run_of_an_earlier_version_repeats_the_noise_that_it_drew(tmp_path):
    """Its ledger has no noise key: other noise in a repeated round would be a second release of the same entry."""
    charging = Charging(tmp_path, "learning.rounds=4")
    terms = {name: value for name, value in charging.ledger.header.terms.items() if name != "noise_key"}
    charging.ledger = Ledger(replace(charging.ledger.header, terms=terms))
    shape = charging.plan.uplink.num_rows, charging.plan.uplink.vector_length
    seed = charging.plan.scenario.seed
    drawn = [stream(seed, "artificial-noise", 1, each).standard_normal(shape) for each in range(3)]
    assert np.array_equal(charging.noise(1)[:3], drawn)


def test_no_two_entries_of_any_chain_share_a_key(tmp_path):
    """Three runs in a row, with the same and with other terms, two branches from a copied ledger, and a repeat."""
    keys = []

    class Kept(Ledger):
        def charge(self, release):
            keys.append(super().charge(release))
            return keys[-1]

    plan = ad.plan(small_scenario(tmp_path, "learning.rounds=9"), "ota_fd")
    source = channel_source(plan.scenario)

    def play(name, given=None, rounds=2, scheme="ota_fd"):
        folder = tmp_path / name
        folder.mkdir()
        ledger = Kept.begin(ledger_header(plan, scheme, "private"), folder / "ledger.jsonl", given)
        for index in range(1, rounds + 1):
            charge_round(plan, ledger, source, index)
        return folder / "ledger.jsonl"

    first = play("first")
    for name in ("ledger.jsonl", "ledger.head"):
        copy = tmp_path / "copied" / name
        copy.parent.mkdir(exist_ok=True)
        write_whole(copy, (tmp_path / "first" / name).read_bytes())
    second = play("second", first, rounds=1)
    play("third", second)
    play("branch", tmp_path / "copied" / "ledger.jsonl", scheme="ota_fd_fixed")
    play("unchained", scheme="ota_fd_fixed")
    assert all(keys)
    assert len(set(keys)) == len(keys) == 9


def test_a_sum_that_was_not_charged_has_no_values(tmp_path):
    charging = Charging(tmp_path)
    channel = charging.source.round_channel(1)
    grid = SumGrid.of(charging.plan, charging.plan.design(channel, 1), channel, 1)
    shape = (charging.plan.uplink.num_rows, charging.plan.uplink.vector_length)
    with pytest.raises(AirDistillError, match="was not charged, and so it has no noise"):
        grid.values(0, np.zeros(shape))


def test_the_key_does_not_depend_on_computed_numbers(tmp_path):
    """They differ in the last bit on another type of processor, and all noise would differ with them."""
    charging = Charging(tmp_path)
    header = charging.ledger.header
    nearly = Ledger(replace(header, mu=np.nextafter(header.mu, np.inf)))
    release = charging.plan.uplink.release(charging.plan.design(np.full(3, 1e-5), 1), np.full(3, 1e-5), 1)
    assert nearly.charge(release) == charging.ledger.charge(release) != ""


class KilledError(Exception):
    """In place of a SIGKILL, after which nothing runs in the process either."""


@pytest.fixture
def transmissions(monkeypatch):
    """What was sent as (round, ideal, noise), in order; `killed_in` stops a run after it has sent that round."""
    transmit = charged_round.ChargedRound.transmit

    class Sent(list):
        killed_in = 0

    sent = Sent()

    def sending(this, vectors):
        reception = transmit(this, vectors)
        ideal, received = np.array(reception.ideal), np.array(reception.received)
        sent.append((this.index, ideal, received - ideal))
        if this.index == sent.killed_in:
            sent.killed_in = 0
            raise KilledError
        return reception

    monkeypatch.setattr(charged_round.ChargedRound, "transmit", sending)
    return sent


def interrupted(scenario, folder, sent, in_round=2, scheme="ota_fd"):
    """A run that is killed after it has sent a round, before its first checkpoint."""
    sent.killed_in = in_round
    # With code of the user's own, any exception is reported as one of that code.
    with pytest.raises((KilledError, AirDistillError), match=r"^$|KilledError"):
        ad.run(scenario, scheme, out=folder, options=replace(OPTIONS, checkpoint_every=3))
    assert [index for index, *_ in sent] == list(range(1, in_round + 1))


LAYERS = """
import torch

class Scaled(torch.nn.Linear):
    def forward(self, x):
        return {scale} * super().forward(x)
"""
NETWORK = """
import torch
from own_layers import Scaled

class Net(torch.nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.last = Scaled(input_shape[0], num_classes)

    def forward(self, x):
        return self.last(x)
"""


@pytest.fixture
def own_network(tmp_path, monkeypatch):
    """A function that writes a network of the user's own, whose layer is in another file, and forgets the old one."""
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "code").mkdir()

    def written(scale):
        (tmp_path / "code/own_network.py").write_text(NETWORK)
        (tmp_path / "code/own_layers.py").write_text(LAYERS.format(scale=scale))
        for name in ("own_network", "own_layers"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()

    yield written
    for name in ("own_network", "own_layers"):
        sys.modules.pop(name, None)


def test_a_run_whose_own_code_has_changed_is_neither_resumed_nor_audited(tmp_path, own_network, transmissions):
    """Rounds 1 and 2 were sent twice with equal noise and vectors 0.4 apart, and were charged once."""
    own_network(scale=1.0)
    scenario = small_scenario(tmp_path, "learning.model=own_network:Net", "learning.rounds=4")
    interrupted(scenario, tmp_path / "run", transmissions)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}

    own_network(scale=3.0)
    for refused in (ad.resume, ad.audit_run):
        with pytest.raises(RunError, match=r"your own code has changed since it began: own_layers; .*restore these"):
            refused(tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    assert len(transmissions) == 2

    own_network(scale=1.0)
    assert ad.resume(tmp_path / "run").summary["rounds"] == 4
    assert [index for index, *_ in transmissions] == [1, 2, 1, 2, 3, 4]
    for first, again in zip(transmissions[:2], transmissions[2:], strict=False):
        assert all(np.array_equal(one, other, equal_nan=True) for one, other in zip(first, again, strict=True))


def _not_recorded(stored):
    """As a run of a version that did not compare own code."""
    del stored["own_code"]


def _of_another_version(stored):
    stored["airdistill"] = "0.0.9"


def _sealed_again(folder, change):
    stored, _ = read_sealed(folder)
    body = {name: value for name, value in stored.items() if name not in ("digest", "digests")}
    change(body)
    seal(folder, body)


@pytest.mark.parametrize("change", [_not_recorded, _of_another_version])
def test_rounds_of_another_program_are_charged_again_with_new_noise(
    tmp_path, own_network, transmissions, caplog, change
):
    own_network(scale=1.0)
    scenario = small_scenario(tmp_path, "learning.model=own_network:Net", "learning.rounds=4")
    interrupted(scenario, tmp_path / "run", transmissions)
    _sealed_again(tmp_path / "run", change)
    if change is _not_recorded:
        own_network(scale=3.0)
    ad.resume(tmp_path / "run")
    assert "are charged again with new noise" in caplog.text
    again = transmissions[2:]
    for _, _, noise in again:
        for _, _, earlier in transmissions[:2]:
            assert abs(correlation(noise.ravel(), earlier.ravel())) < 0.95
    ledger = Ledger.read(tmp_path / "run/ledger.jsonl")
    assert [release.round_index for release in ledger.releases] == [index for index, *_ in transmissions]
    assert [index for index, *_ in again][:2] == [1, 2]
    assert ledger.epsilon().max() <= ledger.header.epsilon.max()
    assert not ad.audit_run(tmp_path / "run", ad.AuditOptions(parts=("recorded",))).violations


def test_a_run_without_own_code_is_repeated_and_says_nothing_of_it(tmp_path, transmissions, caplog):
    interrupted(small_scenario(tmp_path, "learning.rounds=4"), tmp_path / "run", transmissions)
    assert "own_code" not in json.loads((tmp_path / "run" / RUN).read_text())
    assert ad.resume(tmp_path / "run").summary["rounds"] == 4
    assert [index for index, *_ in transmissions] == [1, 2, 1, 2, 3, 4]
    assert "again" not in caplog.text


def test_own_code_without_a_file_is_charged_again(tmp_path, own_network, transmissions, monkeypatch):
    """A class from an interactive session may be another one the next time."""
    own_network(scale=1.0)
    scenario = small_scenario(tmp_path, "learning.model=own_network:Net", "learning.rounds=4")
    importlib.import_module("own_network")
    monkeypatch.delattr(sys.modules["own_network"], "__file__")
    interrupted(scenario, tmp_path / "run", transmissions)
    assert read_sealed(tmp_path / "run")[0]["own_code"]["own_network"] is None
    ad.resume(tmp_path / "run")
    charged = [release.round_index for release in Ledger.read(tmp_path / "run/ledger.jsonl").releases]
    assert charged == [index for index, *_ in transmissions]
    assert charged[:4] == [1, 2, 1, 2]


CORRELATED = ("privacy.correlation=blt", "fleet.sampling=cyclic", "fleet.cycle=3")
UPDATES = ("learning.local_epochs=1", "federated.clip_quantile=0.5", "federated.server_optimizer=adam")


@pytest.mark.parametrize("same_program", [True, False])
@pytest.mark.parametrize(
    ("scheme", "changes"), [("ota_fl", CORRELATED), ("ota_fedavg", (*CORRELATED, *UPDATES)), ("ota_fedavg", UPDATES)]
)
def test_what_is_sent_again_is_the_same_or_charged_again_with_new_noise(
    tmp_path, transmissions, scheme, changes, same_program
):
    """Correlated noise, whose memory is restored, and clips and optimisers of the server, which are too."""
    scenario = small_scenario(tmp_path, "learning.rounds=6", *changes)
    interrupted(scenario, tmp_path / "run", transmissions, scheme=scheme)
    if not same_program:
        _sealed_again(tmp_path / "run", _of_another_version)
    ad.resume(tmp_path / "run")
    for (index, _, noise), (repeated, _, other) in zip(transmissions[:2], transmissions[2:4], strict=True):
        assert index == repeated
        assert np.array_equal(noise, other) is same_program
    charged = [release.round_index for release in Ledger.read(tmp_path / "run/ledger.jsonl").releases]
    assert charged == ([1, 2, 3, 4, 5, 6] if same_program else [index for index, *_ in transmissions])
    assert not ad.audit_run(tmp_path / "run", ad.AuditOptions(parts=("recorded",))).violations


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_votes_that_were_charged_are_answered_once_or_with_the_same_noise(tmp_path, monkeypatch, noise):
    """Killed after the answer: seeded votes are repeated, and secure ones would be a second release."""
    write_dataset(tmp_path / "blobs.npz", num_train=300, num_test=300)
    scenario = small_scenario(
        tmp_path, "fleet.devices=12", "public.samples=60", "public.distill_epochs=1", "learning.local_epochs=1",
        f"privacy.noise={noise}",
    )  # fmt: skip
    answer, answers = ChargedVotes.transmit, []

    def answering(this, votes):
        answers.append(np.array(answer(this, votes).received))
        if len(answers) == 1:
            raise KilledError
        return answer(replace(this, permission=Permission(1)), votes)

    monkeypatch.setattr(ChargedVotes, "transmit", answering)
    with pytest.raises(KilledError):
        ad.run(scenario, "pate", out=tmp_path / "run", options=OPTIONS)
    record = ad.resume(tmp_path / "run")
    assert Ledger.read(tmp_path / "run/ledger.jsonl").num_releases == 1
    if noise == "seeded":
        assert np.array_equal(*answers, equal_nan=True)
    else:
        assert len(answers) == 1
        assert record.summary["rounds"] == 0
        assert "above its target" in record.summary["ended_because"]
