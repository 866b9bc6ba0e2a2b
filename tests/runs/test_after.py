"""Runs that start with the models of an ended run and continue its ledger."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from small_worlds import small_scenario, write_dataset

import airdistill as ad
from airdistill.audit import AuditOptions, audit_run
from airdistill.errors import InputError
from airdistill.learning.fleet import Engine
from airdistill.learning.server import Server, expected_rows
from airdistill.runs.accounts import trusted_ledger
from airdistill.runs.checkpoint import newest_checkpoint
from airdistill.runs.folder import RunError
from airdistill.runs.options import RunOptions

FAST = RunOptions(threads=1, eval_every=1, checkpoint_every=1)
VOTES = (
    "learning.local_epochs=5", "learning.batch_size=5", "learning.initial_lr=0.05", "public.distill_epochs=5",
    "public.train_copy=true",
)  # fmt: skip


def scenario_of_blobs(folder, *changes):
    """Twelve devices that hold two of four blobs each; 60 of 120 test samples are public."""
    path = folder / "skewed.npz"
    if not path.exists():
        write_dataset(path, num_classes=4, features=(8,), num_train=240, num_test=120)
    return small_scenario(
        folder, f"data.dataset={path}", "fleet.devices=12", "data.partition=shards", "data.classes_per_device=2",
        "learning.model=mlp-6", "public.samples=60", "learning.rounds=1", "radio.noise_power=1e-16",
        "privacy.epsilon=50", "privacy.sensitivity=device", *changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A folder with an ended run of feature means with ε = 25, whose model all devices took over."""
    folder = tmp_path_factory.mktemp("after")
    scenario = scenario_of_blobs(folder, "privacy.epsilon=25", "public.features=8", "public.broadcast=model")
    ad.run(scenario, "airdistill_features", out=folder / "first", options=FAST)
    return folder


def copied(first, folder):
    """A copy of the first run: a ledger can be continued once."""
    return shutil.copytree(first / "first", folder / "first")


def votes_after(first, folder, *changes, **arguments):
    after = copied(first, folder)
    scenario = scenario_of_blobs(first, *VOTES, *changes)
    return ad.run(scenario, "airdistill_proxy", out=folder / "votes", options=FAST, after=after, **arguments)


def mu_of(epsilon, delta=1e-5):
    """The Gaussian mechanism with this ε, from its exact curve (Balle and Wang, 2018)."""

    def excess(mu):
        return norm.cdf(-epsilon / mu + mu / 2) - np.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2) - delta

    return brentq(excess, 1e-3, 50)


def test_the_second_run_spends_exactly_the_rest_and_its_certificate_counts_both(first, tmp_path):
    record = votes_after(first, tmp_path)
    shares, ledger = record.summary["budget_shares"], trusted_ledger(tmp_path / "votes")
    assert shares["earlier_runs"] == pytest.approx((mu_of(25) / mu_of(50)) ** 2, rel=1e-6)
    assert shares["left"] == pytest.approx(0, abs=1e-9)
    assert (ledger.num_earlier, ledger.num_releases) == (1, 1)
    assert ledger.squared_mu().max() == pytest.approx(mu_of(50) ** 2, rel=1e-6)
    certificate = ad.certify(tmp_path / "votes").to_dict()
    text = str(certificate)
    assert record.summary["epsilon_spent"] == pytest.approx(50, rel=1e-6)
    assert "the initial weights are those with which an earlier run in the ledger left the devices" in text


def test_devices_start_with_their_models_and_keep_them_if_a_copy_votes(first, tmp_path):
    before = newest_checkpoint(first / "first").tensors
    votes_after(first, tmp_path, "public.distill_epochs=0")
    after = newest_checkpoint(tmp_path / "votes").tensors
    models = {name for name in before if name[0].isdigit()}
    assert len(models) == 12 * 4
    assert all(torch.equal(before[name], after[name]) for name in models)


def test_noisy_votes_correct_the_servers_model_and_are_not_read_without_it():
    """300 points in three clusters; the earlier model has every fifth label wrong, at random."""
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 3
    samples = (3 * np.eye(3)[labels] + rng.standard_normal((300, 3))).astype(np.float32)
    believed = np.where(rng.random(300) < 0.2, (labels + 1) % 3, labels)
    known = 0.7 * np.eye(3)[believed] + 0.1
    rows = 0.2 * np.eye(3)[labels] + 0.6 * rng.standard_normal((300, 3))
    server = Server("softmax_regression", samples, 3, Engine(), 0)
    noise = np.full(300, 0.36)
    with_model, without = (server.read(rows, noise, each).argmax(axis=1) for each in (known, None))
    assert (with_model == labels).mean() > (believed == labels).mean() + 0.05
    assert (with_model == labels).mean() > (without == labels).mean() + 0.05


def test_a_run_killed_before_its_first_round_keeps_the_models(first, tmp_path):
    """Also if the earlier run was moved away meanwhile."""
    whole = votes_after(first, tmp_path)
    expected = (tmp_path / "votes" / "rounds.jsonl").read_bytes(), whole.summary

    def killed(*_):
        raise KeyboardInterrupt

    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(KeyboardInterrupt):
        votes_after(first, other, on_round=killed)
    assert newest_checkpoint(other / "votes").round_index == 0
    (other / "first").rename(other / "moved")
    resumed = ad.resume(other / "votes")
    assert ((other / "votes" / "rounds.jsonl").read_bytes(), resumed.summary) == expected
    stored = json.loads((other / "votes" / "run.json").read_text())["after"]
    assert stored["run"] == str(other / "first")


def test_without_its_first_checkpoint_it_is_not_resumed(first, tmp_path):
    def killed(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        votes_after(first, tmp_path, on_round=killed)
    (tmp_path / "votes" / "checkpoint-00000000.safetensors").unlink()
    with pytest.raises(RunError, match="the models that it began with"):
        ad.resume(tmp_path / "votes")


@pytest.mark.parametrize(
    ("changes", "scheme", "words"),
    [
        ("seed=7", "airdistill_proxy", "seed was 0 in that run and is 7; set it to 0"),
        ("learning.model=mlp-7", "airdistill_proxy", "learning.model was ['mlp-6'] in that run"),
        ("data.samples_per_device=10", "airdistill_proxy", "its devices must hold the same samples"),
        ("privacy.epsilon=50", "fedavg", "both schemes must give every device a model of its own"),
        ("privacy.sensitivity=class_mean", "airdistill", 'privacy.sensitivity = "class_mean": with --after'),
    ],
)
def test_what_does_not_fit_the_earlier_run_is_refused(first, tmp_path, changes, scheme, words):
    after, scenario = copied(first, tmp_path), scenario_of_blobs(first, *VOTES, changes)
    with pytest.raises(InputError, match=re.escape(words)):
        ad.run(scenario, scheme, out=tmp_path / "refused", options=FAST, after=after)


def test_runs_with_and_without_the_models_never_share_noise(first, tmp_path):
    """One of them continues a copy of the first run, which no ledger can show: other vectors with the same noise would
    cost the noise, and not only a second charge."""
    scenario = scenario_of_blobs(first, *VOTES)
    ad.run(scenario, "airdistill_proxy", out=tmp_path / "without", options=FAST, ledger=copied(first, tmp_path))
    (tmp_path / "first").rename(tmp_path / "continued")
    votes_after(first, tmp_path)
    keys = [trusted_ledger(tmp_path / name).noise_keys for name in ("without", "votes")]
    assert all(len(each) == 1 for each in keys)
    assert keys[0] != keys[1]


@pytest.mark.parametrize("lost", [False, True])
def test_the_server_never_starts_from_a_model_that_a_device_has_trained(first, tmp_path, lost):
    """If every feature mean was lost, devices still have the models that they trained for the run before: predictions
    of one would reach the server, and no ledger counts them."""
    models = ("public.features=8", "public.broadcast=model", "privacy.epsilon=30")
    scenario = scenario_of_blobs(first, *VOTES, "public.train_copy=false", "privacy.epsilon=15")
    ad.run(scenario, "airdistill_proxy", out=tmp_path / "trained", options=FAST)
    joining = ("fleet.participation=0.005",) if lost else ()
    between = scenario_of_blobs(first, *models, *joining)
    record = ad.run(between, "airdistill_features", out=tmp_path / "r", options=FAST, after=tmp_path / "trained")
    assert ("features" in record.rounds[0]) != lost
    ad.run(
        scenario_of_blobs(first, *VOTES), "airdistill_proxy", out=tmp_path / "last", options=FAST, after=tmp_path / "r"
    )
    known = newest_checkpoint(tmp_path / "last").tensors.keys() & {"receiver.known"}
    assert bool(known) != lost


def test_an_audit_says_that_it_attacks_untrained_models(first, tmp_path):
    votes_after(first, tmp_path)
    options = AuditOptions(parts=("exact",), rounds=1, transcripts=2, candidates=2)
    found = audit_run(tmp_path / "votes", options)
    assert any(
        "started with the models of an earlier one, and the attacks with untrained" in each for each in found.notes
    )


def test_rows_are_expected_in_proportion_to_the_predictions():
    rng = np.random.default_rng(0)
    known = rng.dirichlet(np.ones(4), 50)
    rows = 0.3 * known + 0.01 * rng.standard_normal(known.shape)
    share = np.linalg.lstsq(known.reshape(-1, 1), rows.ravel(), rcond=None)[0][0]
    np.testing.assert_allclose(expected_rows(rows, known), share * known)
    assert (expected_rows(-rows, known) == 0).all()
