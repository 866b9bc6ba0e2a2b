"""Runs of feature means: both guarantees in the certificate, and rounds from which nothing can be read."""

import json

import numpy as np
import pytest
from small_worlds import small_scenario

import airdistill as ad
from airdistill.privacy.gaussian import gaussian_epsilon
from airdistill.runs.options import RunOptions
from airdistill.runs.runner import resume, run
from airdistill.units import rounded_up

ONCE = ("public.samples=12", "public.distill_epochs=1", "learning.rounds=1", "learning.local_epochs=1")
OPTIONS = RunOptions(threads=1, eval_every=1)


def played(folder, scheme, *changes, out="run", **how):
    return run(small_scenario(folder, *ONCE, *changes), scheme, out=folder / out, options=OPTIONS, **how).folder


def test_the_certificate_states_what_one_record_costs(tmp_path):
    folder = played(tmp_path, "feature_means")
    certificate, (_, line) = ad.certify(folder), (folder / "ledger.jsonl").read_text().splitlines()
    payload, counted = ad.plan(small_scenario(tmp_path, *ONCE), "feature_means").uplink.payload, json.loads(line)
    counts = payload.fleet.class_counts
    smallest = np.where(counts > 0, counts, 10**9).min(axis=1)
    shift = 2 * payload.sample_bound / np.sqrt(smallest * counts.sum(axis=1)) / len(counts)
    noise = np.array(counted["counted_noise_var"]["fleet_noise"])[:, 0]
    epsilon = max(gaussian_epsilon(mu, 1e-5) for mu in shift / np.sqrt(noise))
    assert certificate.record_epsilon == pytest.approx(epsilon, rel=1e-6)
    assert f"simulated; with secret noise it would be (ε = {rounded_up(epsilon)}, δ = 1e-5)" in certificate.statement[0]
    assert certificate.record_epsilon < certificate.devices[0].evidence / 4


def test_votes_in_the_same_ledger_void_the_figure_for_one_record(tmp_path):
    first = played(tmp_path, "feature_means")
    second = played(tmp_path, "airdistill_proxy", "privacy.epsilon=20", out="votes", ledger=first)
    certificate = ad.certify(second)
    assert certificate.record_epsilon is None
    assert "there is no separate figure for one record" in certificate.statement[0]


@pytest.mark.parametrize("broadcast", ["predictions", "model"])
def test_a_round_in_which_no_class_is_above_the_noise_teaches_nothing_and_is_resumed(tmp_path, broadcast):
    """Private counts, so weak that their noise hides every weight."""
    changes = ("privacy.counts=private", "privacy.epsilon=0.01", "learning.rounds=2", f"public.broadcast={broadcast}")
    folder = played(tmp_path, "airdistill_features", *changes)
    readings = [json.loads(line)["features"]["reading"] for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert readings == ["none", "none"]
    assert np.isfinite(ad.certify(folder).devices[0].evidence)
    assert resume(folder).accuracy["mean"] > 0
