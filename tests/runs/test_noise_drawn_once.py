"""Protecting noise is never drawn twice: not by a run that continues another, nor by one with other terms or data."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from small_worlds import small_scenario

import airdistill as ad
from airdistill.channel.sources import channel_source
from airdistill.errors import AirDistillError
from airdistill.files import write_whole
from airdistill.privacy.ledger import Ledger
from airdistill.radio.charged_round import charge_round
from airdistill.radio.sum_grid import SumGrid
from airdistill.runs.accounts import ledger_header
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
