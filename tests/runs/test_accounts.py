"""Runs and their ledgers: charged before transmission, ended by the budget, continued, rejected when changed."""

import io
import json
import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import tomli_w
from rich.console import Console
from small_worlds import small_scenario, write_dataset

import airdistill as ad
from airdistill.channel import channel_source
from airdistill.data.partition import assign_samples
from airdistill.data.public import load_data
from airdistill.planning.plan import Plan
from airdistill.privacy import chain
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.targets import epsilon_of_mu
from airdistill.radio.discrete_noise import secure_grid
from airdistill.report.run import print_run
from airdistill.runs import runner
from airdistill.runs.accounts import note_audit
from airdistill.runs.folder import locked
from airdistill.runs.options import RunOptions
from airdistill.schemes.base import Round

FAST = RunOptions(threads=1, eval_every=100, checkpoint_every=2)
FINAL = ("rounds.jsonl", "ledger.jsonl", "ledger.head", "summary.json", "certificate.json")

# A scheme that dies between ledger and release, or between release and record, and logs what it transmitted.
DYING = '''
import os, signal
from pathlib import Path
from airdistill.schemes import Outcome, Round, Scheme

class Dying(Scheme):
    """Dies twice in every round: before it transmits, and after it has transmitted."""
    name = "dying"

    def play(self, this: Round) -> Outcome:
        tries = Path(f"tries-{this.index}")
        count = len(tries.read_text()) if tries.exists() else 0
        tries.write_text("x" * (count + 1))
        vectors = this.vectors()
        if count % 3 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        with open("released", "a") as log:
            log.write(f"{this.index}\\n")
        reception = this.transmit(vectors)
        if count % 3 == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return Outcome(this.learn(reception.received), reception)
'''
# Forks for every try, because Python and PyTorch take seconds to start: the runner imports PyTorch beforehand.
KILL_MANY = """
import os, sys
import airdistill as ad
import airdistill.runs.runner
from airdistill.runs.options import RunOptions

kills = 0
while True:
    child = os.fork()
    if child == 0:
        started = os.path.exists("run/run.json")
        options = RunOptions(threads=1, eval_every=100, checkpoint_every=3)
        ad.resume("run") if started else ad.run(ad.load("small.toml"), "dying:Dying", out="run", options=options)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        break
    assert os.WIFSIGNALED(status), status
    kills += 1
print(kills)
"""


def killed_many_times(folder, *changes):
    scenario = small_scenario(folder, *changes)
    (folder / "small.toml").write_text(tomli_w.dumps(scenario.model_dump(mode="json", exclude_none=True)))
    (folder / "dying.py").write_text(DYING)
    done = subprocess.run(
        [sys.executable, "-c", KILL_MANY], cwd=folder, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    charged = Counter(release.round_index for release in Ledger.read(folder / "run" / "ledger.jsonl").releases)
    released = Counter(int(line) for line in (folder / "released").read_text().split())
    return int(done.stdout.split()[-1]), charged, released


def test_kills_between_ledger_and_release_with_seeded_noise_charge_every_round_once(tmp_path, monkeypatch):
    """Repeated rounds transmit the same numbers again, and so each round is one release."""
    kills, charged, released = killed_many_times(tmp_path, "learning.rounds=4")
    assert kills >= 8
    assert charged == dict.fromkeys(range(1, 5), 1)
    assert set(released) == set(charged)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for index in range(1, 5):
        (tmp_path / f"tries-{index}").write_text("xx")  # the next try is the third, which lives
    whole = ad.run(ad.load("small.toml"), "dying:Dying", out=tmp_path / "whole", options=FAST)
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == (whole.folder / "rounds.jsonl").read_bytes()
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").epsilon() == pytest.approx(
        Ledger.read(whole.folder / "ledger.jsonl").epsilon(), rel=0
    )


def test_kills_between_ledger_and_release_with_secure_noise_charge_every_try(tmp_path):
    """Every try draws new noise: each is charged, and the budget ends the run before its last round."""
    kills, charged, released = killed_many_times(tmp_path, "learning.rounds=8", "privacy.noise=secure")
    assert kills >= 4
    assert all(charged[t] >= released[t] for t in released)
    assert sum(charged.values()) >= 8
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert (ledger.epsilon() <= 8).all()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] < 8
    assert "would take device" in summary["ended_because"]


def test_the_ledger_contains_the_noise_that_was_transmitted(tmp_path):
    scenario = small_scenario(tmp_path)
    record = ad.run(scenario, "ota_fd", out=tmp_path / "run", options=FAST)
    ledger = Ledger.read(record.folder / "ledger.jsonl")
    assert [release.round_index for release in ledger.releases] == [1, 2, 3, 4, 5, 6]
    for line, release in zip(record.rounds, ledger.releases, strict=True):
        # All noise at the receiver is v; the fleet's is what the plan requires.
        assert release.counted_noise_var["receiver_noise"][0] == pytest.approx(line["predicted_noise_var"], rel=1e-9)
        required = ad.plan(scenario, "ota_fd").required_noise_var().max(axis=0)
        assert release.counted_noise_var["fleet_noise"][1] == pytest.approx(required, rel=1e-9)
        own = release.counted_noise_var["own_noise"]
        assert own.sum(axis=0) == pytest.approx(required, rel=1e-9)
        assert release.participants.tolist() == [0, 1, 2]
    assert record.summary["epsilon_spent"] == ledger.epsilon().max()


@pytest.mark.parametrize("scheme", ["airdistill", "ota_fd", "orthogonal_fd", "ota_fl"])
@pytest.mark.parametrize("trust", ["receiver_noise", "fleet_noise", "own_noise"])
def test_planned_rounds_fit_the_budget_with_every_uplink(tmp_path, scheme, trust):
    record = ad.run(small_scenario(tmp_path, f"privacy.trust={trust}"), scheme, out=tmp_path / "run", options=FAST)
    assert record.summary["rounds"] == 6
    assert record.summary["ended_because"] is None
    spent = Ledger.read(record.folder / "ledger.jsonl").epsilon()
    assert (spent <= 8 * (1 + 1e-8)).all()


@pytest.mark.parametrize("trust", ["fleet_noise", "own_noise"])
@pytest.mark.parametrize("scheme", ["airdistill", "ota_fd", "orthogonal_fd", "ota_fl"])
def test_secure_noise_fits_the_budget_and_is_as_strong_as_planned(tmp_path, scheme, trust):
    scenario = small_scenario(tmp_path, f"privacy.trust={trust}", "privacy.noise=secure", "learning.rounds=40")
    record = ad.run(scenario, scheme, out=tmp_path / "run", options=FAST)
    assert record.summary["ended_because"] is None
    assert (Ledger.read(record.folder / "ledger.jsonl").epsilon() <= 8).all()
    ratios = [np.divide(line["measured_noise_var"], line["predicted_noise_var"]) for line in record.rounds]
    num_entries = np.size(ratios) * (3 if scheme != "ota_fl" else 15)
    assert abs(np.mean(ratios) - 1) < 5 * np.sqrt(2 / num_entries)


def test_secure_noise_is_new_in_every_run_and_seeded_noise_is_not(tmp_path):
    for noise, same in [("seeded", True), ("secure", False)]:
        scenario = small_scenario(tmp_path, f"privacy.noise={noise}")
        first, second = (ad.run(scenario, out=tmp_path / f"{noise}-{n}", options=FAST) for n in (1, 2))
        assert (first.rounds == second.rounds) is same


def test_secure_noise_is_rejected_if_devices_add_no_noise(tmp_path):
    with pytest.raises(ad.AirDistillError, match=r'privacy\.noise = "secure": with privacy\.trust = "receiver_noise"'):
        small_scenario(tmp_path, "privacy.noise=secure", "privacy.trust=receiver_noise")


OWN_SCHEMES = '''
from airdistill.radio.superposition import error_free, ideal_knowledge
from airdistill.schemes import Outcome, Round, Scheme

class TooLittleNoise(Scheme):
    """Plans its noise for half of the rounds."""
    name = "too_little_noise"

    def play(self, this: Round) -> Outcome:
        channel = this.source.round_channel(this.index)
        this.charge(this.plan.uplink.design(channel, this.plan.num_rounds // 2, this.index))
        reception = this.transmit(this.vectors())
        return Outcome(this.learn(reception.received), reception)

class Uncharged(Scheme):
    """Releases an aggregate without a charge."""
    name = "uncharged"

    def play(self, this: Round) -> Outcome:
        vectors = this.protocol.vectors(this.fleet, this.index, range(len(this.fleet.learners)))
        aggregate = ideal_knowledge(this.plan.fleet.class_counts, vectors)
        reception = error_free(aggregate, this.scenario.radio.slot)
        return Outcome(this.learn(reception.received), reception)

class TenTimes(Scheme):
    """Multiplies its vectors by ten, and so exceeds the power and the sensitivity that its noise was planned for."""
    name = "ten_times"

    def play(self, this: Round) -> Outcome:
        reception = this.transmit(10 * this.vectors())
        return Outcome(this.learn(reception.received), reception)
'''


@pytest.fixture
def own_schemes(tmp_path, monkeypatch):
    (tmp_path / "own_schemes.py").write_text(OWN_SCHEMES)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_schemes", None)


@pytest.mark.usefixtures("own_schemes")
def test_a_run_ends_before_the_round_that_its_budget_does_not_allow(tmp_path):
    scenario = small_scenario(tmp_path, "learning.rounds=11")
    record = ad.run(scenario, "own_schemes:TooLittleNoise", out=tmp_path / "run", options=FAST)
    summary, ledger = record.summary, Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert 5 <= summary["rounds"] < 11
    assert len(ledger.releases) == summary["rounds"] == len(record.rounds)
    assert (ledger.epsilon() <= 8 * (1 + 1e-8)).all()
    assert summary["ended_because"].startswith(f"round {summary['rounds'] + 1} would take device")
    assert 0 < summary["accuracy"]["mean"] < 1
    assert ad.certify(record.folder).verdict == "simulation"
    before = {name: (record.folder / name).read_bytes() for name in FINAL}
    ad.resume(record.folder)
    assert {name: (record.folder / name).read_bytes() for name in FINAL} == before


@pytest.mark.usefixtures("own_schemes")
def test_a_scheme_that_transmits_without_a_charge_is_stopped(tmp_path):
    with pytest.raises(ad.AirDistillError, match="uncharged would let devices learn from what was never sent"):
        ad.run(small_scenario(tmp_path), "own_schemes:Uncharged", out=tmp_path / "run", options=FAST)


@pytest.mark.usefixtures("own_schemes")
def test_a_scheme_that_multiplies_its_vectors_by_ten_is_refused(tmp_path):
    """The error names device, norm and bound. Nothing is recorded, and the charge of the round stays."""
    named = r"round 1: device \d would send a vector of norm [3-9]\.\d+; the round was planned for 1 at most: clip it"
    with pytest.raises(ad.AirDistillError, match=named):
        ad.run(small_scenario(tmp_path), "own_schemes:TenTimes", out=tmp_path / "run", options=FAST)
    rounds = tmp_path / "run" / "rounds.jsonl"
    assert not rounds.exists() or not rounds.read_text()
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").num_releases == 1


def test_a_second_run_of_the_same_devices_has_the_remaining_budget(tmp_path):
    scenario = small_scenario(tmp_path, "privacy.epsilon=4")
    first = ad.run(scenario, out=tmp_path / "first", options=FAST)
    spent = Ledger.read(first.folder / "ledger.jsonl").squared_mu()
    more = small_scenario(tmp_path, "privacy.epsilon=8", "learning.rounds=3")
    second = ad.run(more, out=tmp_path / "second", options=FAST, ledger=first.folder)
    ledger = Ledger.read(second.folder / "ledger.jsonl")
    assert second.summary["rounds"] == 3
    assert (ledger.epsilon() <= 8 * (1 + 1e-8)).all()
    assert ledger.epsilon().max() > 7
    alone = ad.plan(more).fleet.mu ** 2
    stored = json.loads((second.folder / "plan.json").read_text())["privacy"]["devices"]
    assert [device["mu"] ** 2 for device in stored] == pytest.approx(alone - spent, rel=1e-9)
    assert ad.certify(second.folder).devices[0].spent == ledger.epsilon()[0]
    with pytest.raises(ad.AirDistillError, match="another run continues it"):
        ad.run(more.model_copy(update={"seed": 5}), out=tmp_path / "third", options=FAST, ledger=first.folder)
    with pytest.raises(ad.BudgetExceeded, match="has spent its ε = 4"):
        ad.run(scenario, out=tmp_path / "fourth", options=FAST, ledger=second.folder)


def test_a_second_run_that_is_stopped_resumes_bit_identically(tmp_path):
    def stop_at_3(record, _):
        if record["round"] == 3:
            raise KeyboardInterrupt

    scenario, more = small_scenario(tmp_path, "privacy.epsilon=4"), small_scenario(tmp_path)
    for name in ("a", "b"):
        ad.run(scenario, out=tmp_path / f"first-{name}", options=FAST)
    whole = ad.run(more, out=tmp_path / "whole", options=FAST, ledger=tmp_path / "first-a")
    with pytest.raises(KeyboardInterrupt):
        ad.run(more, out=tmp_path / "cut", options=FAST, ledger=tmp_path / "first-b", on_round=stop_at_3)
    cut = ad.resume(tmp_path / "cut")
    for name in FINAL:
        assert (cut.folder / name).read_bytes() == (whole.folder / name).read_bytes(), name


@pytest.mark.parametrize("given", ["nothing", "blobs.npz"])
def test_a_file_that_is_not_a_ledger_cannot_be_continued(tmp_path, given):
    with pytest.raises(ad.AirDistillError, match=r"--ledger = .* is neither a run's folder nor the ledger in it"):
        ad.run(small_scenario(tmp_path), out=tmp_path / "run", options=FAST, ledger=tmp_path / given)
    assert not (tmp_path / "run").exists()


def stopped_run(tmp_path):
    def stop_at_5(record, _):
        if record["round"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ad.run(small_scenario(tmp_path), out=tmp_path / "run", options=FAST, on_round=stop_at_5)
    return tmp_path / "run"


def edited(path):
    path.write_text(path.read_text().replace('"round":2', '"round":3', 1))


def truncated(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def reordered(path):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[3], lines[2], *lines[4:]]))


def rolled_back(path):
    """Ledger and head together in an older state, which the checkpoint contradicts."""
    ledger = Ledger.read(path)
    first, second = path.read_bytes().splitlines(keepends=True)[:2]
    path.write_bytes(first + second)
    path.with_suffix(".head").write_text(json.dumps({"lines": 2, "digest": ledger.chain.digest_at(2)}))


def beheaded(path):
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    path.with_suffix(".head").unlink()


def removed(path):
    path.unlink()


@pytest.mark.parametrize("damage", [edited, truncated, reordered, rolled_back, beheaded, removed])
def test_a_changed_ledger_is_rejected_by_every_reader(tmp_path, damage):
    folder = stopped_run(tmp_path)
    damage(folder / "ledger.jsonl")
    rule = r"ledger\.jsonl: (line|has|is not the ledger|cannot be read|its head)"
    for read in (
        lambda: ad.resume(folder),
        lambda: ad.certify(folder),
        lambda: ad.run(small_scenario(tmp_path), out=tmp_path / "next", options=FAST, ledger=folder),
    ):
        with pytest.raises(ad.AirDistillError, match=rule if damage is not removed else r"ledger"):
            read()


def test_the_ledger_of_another_run_is_rejected(tmp_path):
    folder = stopped_run(tmp_path)
    other = ad.run(small_scenario(tmp_path, "privacy.epsilon=7"), out=tmp_path / "other", options=FAST)
    for name in ("ledger.jsonl", "ledger.head"):
        (folder / name).write_bytes((other.folder / name).read_bytes())
    with pytest.raises(ad.AirDistillError, match="is not the ledger of this run"):
        ad.certify(folder)


def test_an_unfinished_run_is_certified_for_what_it_has_transmitted(tmp_path):
    folder = stopped_run(tmp_path)
    certificate = ad.certify(folder)
    assert certificate.num_releases == 5
    assert 0 < certificate.devices[0].spent < 8


def test_schemes_without_privacy_and_without_transmission_are_certified(tmp_path):
    scenario = small_scenario(tmp_path)
    verdicts = {}
    for scheme in ("fd_error_free", "local_only", "fedavg"):
        ad.run(scenario, scheme, out=tmp_path / scheme, options=FAST)
        verdicts[scheme] = ad.certify(tmp_path / scheme).verdict
    assert verdicts == {
        "fd_error_free": "does not hold", "local_only": "holds", "fedavg": "does not hold",
    }  # fmt: skip


def test_releases_are_never_overwritten(tmp_path):
    """A folder with a ledger that has releases is not empty, even without other files."""
    first = ad.run(small_scenario(tmp_path, "privacy.epsilon=4"), out=tmp_path / "first", options=FAST)
    archive = tmp_path / "archive"
    archive.mkdir()
    for name in ("ledger.jsonl", "ledger.head"):
        (archive / name).write_bytes((first.folder / name).read_bytes())
    before = (archive / "ledger.jsonl").read_bytes()
    for given in (None, archive):
        with pytest.raises(ad.AirDistillError, match=r"--out|--ledger"):
            ad.run(small_scenario(tmp_path), out=archive, options=FAST, ledger=given)
    assert (archive / "ledger.jsonl").read_bytes() == before


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_a_second_start_that_was_killed_can_be_repeated(tmp_path, monkeypatch, noise):
    """Killed after the first ledger was closed and before the run started: only the same folder may continue."""

    def killed(*_):
        raise KeyboardInterrupt

    kind = f"privacy.noise={noise}"
    ad.run(small_scenario(tmp_path, "privacy.epsilon=4", kind), out=tmp_path / "first", options=FAST)
    more = small_scenario(tmp_path, "learning.rounds=3", kind)
    with monkeypatch.context() as patched:
        patched.setattr(runner, "seal", killed)
        with pytest.raises(KeyboardInterrupt):
            ad.run(more, out=tmp_path / "second", options=FAST, ledger=tmp_path / "first")
    assert Ledger.read(tmp_path / "first" / "ledger.jsonl").closed
    with pytest.raises(ad.AirDistillError, match="is neither a run's folder nor the ledger in it"):
        ad.run(more, out=tmp_path / "third", options=FAST, ledger=tmp_path / "second")
    other = small_scenario(tmp_path, "learning.rounds=4", kind)
    for wrong, out in [(other, "second"), (more, "fourth")]:  # another scenario; another folder
        with pytest.raises(ad.AirDistillError, match=r"repeat its command with --out .*second"):
            ad.run(wrong, out=tmp_path / out, options=FAST, ledger=tmp_path / "first")
    record = ad.run(more, out=tmp_path / "second", options=FAST, ledger=tmp_path / "first")
    ledger = Ledger.read(record.folder / "ledger.jsonl")
    assert (ledger.num_earlier, ledger.num_releases) == (6, 3)


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_a_killed_start_cannot_be_repeated_without_the_releases_that_it_continued(tmp_path, monkeypatch, noise):
    """Without --ledger, or with the ledger of other devices, the first run's releases would be forgotten."""

    def killed(*_):
        raise KeyboardInterrupt

    first = small_scenario(tmp_path, "privacy.epsilon=4", f"privacy.noise={noise}")
    more = small_scenario(tmp_path, "learning.rounds=3", f"privacy.noise={noise}")
    for name in ("first", "other"):
        ad.run(first.model_copy(update={"name": name}), out=tmp_path / name, options=FAST)
    with monkeypatch.context() as patched:
        patched.setattr(runner, "seal", killed)
        with pytest.raises(KeyboardInterrupt):
            ad.run(more, out=tmp_path / "second", options=FAST, ledger=tmp_path / "first")
    left = (tmp_path / "second" / "ledger.jsonl").read_bytes()
    for given, named in [(None, "without --ledger"), (tmp_path / "other", r"with --ledger .*other")]:
        with pytest.raises(ad.AirDistillError, match=rf"second.ledger\.jsonl: was left by .*{named}.*choose another"):
            ad.run(more, out=tmp_path / "second", options=FAST, ledger=given)
    assert (tmp_path / "second" / "ledger.jsonl").read_bytes() == left
    assert not Ledger.read(tmp_path / "other" / "ledger.jsonl").closed
    record = ad.run(more, out=tmp_path / "second", options=FAST, ledger=tmp_path / "first")
    assert Ledger.read(record.folder / "ledger.jsonl").num_earlier == 6


def test_a_folder_whose_ledger_was_deleted_is_not_empty(tmp_path):
    """Its head still counts releases."""
    first = ad.run(small_scenario(tmp_path, "privacy.epsilon=4"), out=tmp_path / "first", options=FAST)
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / "ledger.head").write_bytes((first.folder / "ledger.head").read_bytes())
    with pytest.raises(ad.AirDistillError, match=r"--out = .*archive.* is not empty"):
        ad.run(small_scenario(tmp_path), out=archive, options=FAST)


def test_a_second_start_killed_twice_can_be_repeated(tmp_path, monkeypatch):
    """The second time it is killed while it writes its ledger: the token of the first start must not be lost."""

    def killed(*_):
        raise KeyboardInterrupt

    secure = "privacy.noise=secure"
    ad.run(small_scenario(tmp_path, "privacy.epsilon=4", secure), out=tmp_path / "first", options=FAST)
    more = small_scenario(tmp_path, "learning.rounds=3", secure)
    for place, name in [(runner, "seal"), (chain, "write_whole"), (chain.Chain, "_write"), (chain.shutil, "copyfile")]:
        with monkeypatch.context() as patched:
            patched.setattr(place, name, killed)
            with pytest.raises(KeyboardInterrupt):
                ad.run(more, out=tmp_path / "second", options=FAST, ledger=tmp_path / "first")
    record = ad.run(more, out=tmp_path / "second", options=FAST, ledger=tmp_path / "first")
    ledger = Ledger.read(record.folder / "ledger.jsonl")
    assert (ledger.num_earlier, ledger.num_releases) == (6, 3)


def test_a_ledger_with_fewer_rounds_than_the_records_is_rejected(tmp_path):
    """Truncated to its header before the first checkpoint, with a head that matches."""
    options = RunOptions(threads=1, eval_every=100, checkpoint_every=100)

    def killed_at_4(record, _):
        if record["round"] == 4:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        ad.run(small_scenario(tmp_path), out=tmp_path / "run", options=options, on_round=killed_at_4)
    path = tmp_path / "run" / "ledger.jsonl"
    digest = Ledger.read(path).chain.digest_at(1)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    path.with_suffix(".head").write_text(json.dumps({"lines": 1, "digest": digest}))
    with pytest.raises(ad.AirDistillError, match="round 4 is recorded but was never charged"):
        ad.certify(tmp_path / "run")


def test_a_ledger_is_continued_once_even_with_other_data(tmp_path):
    first = ad.run(small_scenario(tmp_path, "privacy.epsilon=4"), out=tmp_path / "first", options=FAST)
    more = small_scenario(tmp_path, "learning.rounds=2")
    ad.run(more, out=tmp_path / "second", options=FAST, ledger=first.folder)
    write_dataset(tmp_path / "blobs.npz", seed=1)
    with pytest.raises(ad.AirDistillError, match="another run continues it"):
        ad.run(more, out=tmp_path / "third", options=FAST, ledger=first.folder)


def test_a_ledger_is_locked_while_it_is_continued(tmp_path):
    first = ad.run(small_scenario(tmp_path, "privacy.epsilon=4"), out=tmp_path / "first", options=FAST)
    with locked(first.folder), pytest.raises(ad.AirDistillError, match="another process is running in it"):
        ad.run(small_scenario(tmp_path), out=tmp_path / "second", options=FAST, ledger=first.folder)
    assert not Ledger.read(first.folder / "ledger.jsonl").closed


def test_a_second_run_without_a_privacy_target_has_none(tmp_path):
    free = small_scenario(tmp_path, "privacy.epsilon=inf")
    first = ad.run(free, out=tmp_path / "first", options=FAST)
    second = ad.run(free, out=tmp_path / "second", options=FAST, ledger=first.folder)
    assert ad.certify(second.folder).verdict == "nothing asked"


def test_the_papers_accountant_cannot_spend_more_than_the_target(tmp_path):
    """Above ε of about 7 it grants too much: the ledger ends the run when (ε, δ) is spent."""
    changes = ["privacy.accountant=paper", "privacy.epsilon=100", "privacy.delta=1e-3", "privacy.trust=own_noise"]
    scenario = small_scenario(tmp_path, *changes, "learning.rounds=12")
    record = ad.run(scenario, "ota_fd", out=tmp_path / "run", options=FAST)
    assert 0 < record.summary["rounds"] < 12
    assert "would take device" in record.summary["ended_because"]
    certificate = ad.certify(record.folder)
    assert all(account.spent <= 100 for account in certificate.devices)
    assert certificate.verdict == "simulation"


@pytest.mark.parametrize(
    ("scheme", "reason"), [("ota_fd", "would take device"), ("airdistill", "no privacy budget left")]
)
def test_a_run_that_lost_its_only_secure_round_ends_without_rounds(tmp_path, monkeypatch, scheme, reason):
    """The only planned round is charged and lost: no budget remains for another one."""

    def killed(*_):
        raise KeyboardInterrupt

    scenario = small_scenario(tmp_path, "learning.rounds=1", "privacy.noise=secure", "privacy.trust=own_noise")
    with monkeypatch.context() as patched:
        patched.setattr(Round, "learn", killed)
        with pytest.raises(KeyboardInterrupt):
            ad.run(scenario, scheme, out=tmp_path / "run", options=FAST)
    record = ad.resume(tmp_path / "run")
    assert record.summary["rounds"] == 0
    assert reason in record.summary["ended_because"]
    assert ad.certify(record.folder).num_releases == 1
    print_run(record, Console(file=io.StringIO()))


def test_rounding_to_the_grid_is_charged(tmp_path):
    """The sensitivity of every device grows by g√K; with TDMA, by that of its own vector."""
    for scheme in ("ota_fd", "orthogonal_fd"):
        record = ad.run(small_scenario(tmp_path, "privacy.noise=secure"), scheme, out=tmp_path / scheme, options=FAST)
        made = Plan.from_dict(json.loads((record.folder / "plan.json").read_text()))
        channel = channel_source(made.scenario).round_channel(1)
        grid = secure_grid(made, made.design(channel, 1), channel, 1)
        assert grid.own is (scheme == "orthogonal_fd")
        charged = Ledger.read(record.folder / "ledger.jsonl").releases[0].sensitivity["device"]
        weights = made.uplink.weights(1) if scheme == "ota_fd" else np.ones_like(grid.amplitude)
        expected = math.sqrt(2) + 1.02 * grid.spacing * math.sqrt(3) / weights
        held = made.fleet.class_counts > 0
        assert charged[held] - math.sqrt(2) == pytest.approx((expected - math.sqrt(2))[held], rel=1e-6)


def run_audit(folder, *violations):
    note_audit(
        folder,
        {"device": 0, "num_rounds": 3, "seed": 0, "violations": list(violations)}
        | {"exact": {}, "empirical": None, "membership": None},
    )


def test_an_audit_that_finds_less_does_not_replace_a_previous_one(tmp_path):
    folder = stopped_run(tmp_path)
    assert ad.certify(folder).verdict == "simulation"
    run_audit(folder)
    assert ad.certify(folder).verdict == "simulation"
    run_audit(folder, "a shift of 26 times the bound")
    run_audit(folder)
    certificate = ad.certify(folder)
    assert certificate.verdict == "does not hold"
    assert len(certificate.audit["audits"]) == 3


def test_an_audit_of_another_run_does_not_count(tmp_path):
    folder = stopped_run(tmp_path)
    other = ad.run(small_scenario(tmp_path, "privacy.epsilon=7"), out=tmp_path / "other", options=FAST)
    run_audit(other.folder, "a shift of 26 times the bound")
    (folder / "audits.jsonl").write_bytes((other.folder / "audits.jsonl").read_bytes())
    assert ad.certify(folder).verdict == "simulation"
    assert ad.certify(other.folder).verdict == "does not hold"


def test_an_incomplete_line_of_an_audit_is_ignored(tmp_path):
    folder = stopped_run(tmp_path)
    run_audit(folder, "a shift of 26 times the bound")
    with (folder / "audits.jsonl").open("ab") as file:
        file.write(b'{"run": "half a li')
    assert ad.certify(folder).verdict == "does not hold"
    run_audit(folder)
    assert len(ad.certify(folder).audit["audits"]) == 2


@pytest.mark.parametrize("content", ["{\n", "{}\n", "[1]\n"])
def test_a_damaged_list_of_audits_is_rejected(tmp_path, content):
    folder = stopped_run(tmp_path)
    (folder / "audits.jsonl").write_text(content)
    with pytest.raises(ad.AirDistillError, match=r"audits\.jsonl: is damaged"):
        ad.certify(folder)


def test_a_record_that_moves_to_another_device_costs_what_all_its_runs_cost(tmp_path):
    """Another seed gives the devices other records: row by row, the record's runs would be in several accounts."""
    changes = [
        "privacy.trust=own_noise", "privacy.sensitivity=class_mean", "learning.rounds=1", "data.partition=shards",
        "data.classes_per_device=1",
    ]  # fmt: skip
    held, folder = [], None
    for seed, epsilon in enumerate([4, 6, 8]):
        scenario = small_scenario(tmp_path, *changes, f"seed={seed}", f"privacy.epsilon={epsilon}")
        dataset, _ = load_data(scenario)
        held.append(assign_samples(scenario, dataset.y_train).indices)
        folder = ad.run(scenario, "ota_fd", out=tmp_path / str(seed), options=FAST, ledger=folder).folder
    certificate, ledger = ad.certify(folder), Ledger.read(folder / "ledger.jsonl")
    cost = [release.cost("class_mean", "own_noise") for _, release in ledger.history()]
    labels, devices = dataset.y_train, range(len(held[0]))
    of_record = [
        sum(cost[run][device, label] for run in range(3) for device in devices if record in held[run][device])
        for record, label in enumerate(labels)
    ]
    truth = float(epsilon_of_mu(np.sqrt([max(of_record)]), ledger.header.delta[:1], "seeded")[0])
    assert max(account.evidence for account in certificate.devices) >= truth * (1 - 1e-9)
    assert "data stay with their device" in certificate.verdict_in_words


def test_runs_on_the_same_data_assume_nothing_of_where_they_are(tmp_path):
    first = ad.run(small_scenario(tmp_path, "learning.rounds=1", "privacy.epsilon=4"), out=tmp_path / "a", options=FAST)
    second = ad.run(
        small_scenario(tmp_path, "learning.rounds=2"), out=tmp_path / "b", options=FAST, ledger=first.folder
    )
    assert "data stay with their device" not in ad.certify(second.folder).verdict_in_words


SHARED_LAYERS = """
from torch import nn

LAYER = nn.Linear(4, 3)

def model():
    return nn.Sequential(nn.Flatten(), LAYER)
"""


def test_a_model_of_the_users_own_is_named_because_devices_may_share_its_weights(tmp_path, monkeypatch):
    (tmp_path / "shared_layers.py").write_text(SHARED_LAYERS)
    monkeypatch.syspath_prepend(tmp_path)
    scenario = small_scenario(tmp_path, "learning.rounds=1", "learning.model=shared_layers:model")
    certificate = ad.certify(ad.run(scenario, out=tmp_path / "run", options=FAST).folder)
    assert "user's own code" in certificate.fallible
    assert any("(model)" in each.sentence and "share no weights" in each.sentence for each in certificate.assumptions)
