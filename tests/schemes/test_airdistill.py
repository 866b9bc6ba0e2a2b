"""This project's own scheme: what it changes, that it learns from what it tracked, and what it leaves in the record."""

import json

import numpy as np
import pytest
from audited_worlds import FLOAT64, planned, quiet, small_world
from small_worlds import small_scenario

import airdistill as ad
from airdistill.audit.auditing import audit
from airdistill.audit.options import AuditOptions
from airdistill.channel.csi import round_estimate
from airdistill.channel.sources import channel_source
from airdistill.planning.plan import Plan
from airdistill.privacy.ledger import Ledger
from airdistill.runs.options import RunOptions
from airdistill.schemes.registry import load_scheme

FAST = RunOptions(threads=1, eval_every=100, dtype="float64")
WEAK = ("radio.csi_error_db=-20", "privacy.trust=receiver_noise")


def test_it_takes_every_step_and_keeps_what_was_declared(tmp_path):
    adapted = load_scheme("airdistill").adapt(small_scenario(tmp_path, base="paper"))
    assert (adapted.privacy.accountant, adapted.privacy.carry_over, adapted.privacy.class_budget) == (
        "exact", True, "optimal",
    )  # fmt: skip
    assert (adapted.radio.truncation, adapted.learning.receiver) == ("optimal", "tracking")
    given = small_scenario(tmp_path, base="paper").privacy
    assert (adapted.privacy.sensitivity, adapted.privacy.trust) == (given.sensitivity, given.trust)


def test_a_receiver_and_a_threshold_of_ones_own_stay(tmp_path):
    chosen = small_scenario(tmp_path, "learning.receiver=projected", "radio.truncation=-100 dB")
    adapted = load_scheme("airdistill").adapt(chosen)
    assert (adapted.radio.truncation, adapted.learning.receiver) == (pytest.approx(1e-10), "projected")


def test_it_is_what_runs_without_being_named(tmp_path):
    record = ad.run(small_scenario(tmp_path), rounds=1, out=tmp_path / "run", options=FAST)
    assert record.summary["scheme"] == "airdistill"


def test_it_spends_all_that_was_granted_and_no_more(tmp_path):
    """Equal shares leave something over for most devices; here somebody spends to the last bit of the target."""
    changes = ("data.partition=dirichlet", "data.alpha=0.7")
    ours = ad.run(small_scenario(tmp_path, *changes), out=tmp_path / "ours", options=FAST)
    theirs = ad.run(small_scenario(tmp_path, *changes), "ota_fd", out=tmp_path / "theirs", options=FAST)
    spent = Ledger.read(ours.folder / "ledger.jsonl").epsilon()
    assert (spent <= 8 * (1 + 1e-8)).all()
    assert spent.max() == pytest.approx(8, rel=1e-6)
    assert theirs.summary["epsilon_spent"] < 8
    noise = [np.mean([np.mean(line["predicted_noise_var"]) for line in run.rounds]) for run in (ours, theirs)]
    assert noise[0] < noise[1]


def test_the_record_has_the_broadcasts_error_beside_the_receivers_own_idea_of_it(tmp_path):
    record = ad.run(small_scenario(tmp_path, "learning.rounds=40"), out=tmp_path / "run", options=FAST)
    raw = np.mean([line["measured_noise_var"] for line in record.rounds])
    error = np.mean([line["estimate_error"] for line in record.rounds])
    expected = np.mean([line["expected_error"] for line in record.rounds])
    assert error < 0.5 * raw
    assert 0.2 * error < expected < 5 * error
    linear = ad.run(small_scenario(tmp_path), "ota_fd", out=tmp_path / "linear", options=FAST)
    assert not any("estimate_error" in line for line in linear.rounds)


@pytest.mark.parametrize("receiver", ["projected", "tracking"])
@pytest.mark.parametrize("scheme", ["ota_fd", "orthogonal_fd"])
def test_other_schemes_take_a_receiver_from_the_scenario(tmp_path, scheme, receiver):
    scenario = small_scenario(tmp_path, f"learning.receiver={receiver}")
    record = ad.run(scenario, scheme, out=tmp_path / "run", options=FAST)
    assert all(np.mean(line["estimate_error"]) < np.mean(line["measured_noise_var"]) for line in record.rounds)
    assert (record.rounds[-1]["expected_error"] is None) == (receiver == "projected")


def test_who_is_silent_is_recorded_not_charged_and_measured(tmp_path):
    """A threshold that silences somebody in some rounds: weights of the others sum to one, the bias is the record's."""
    free = small_scenario(tmp_path, "learning.rounds=20")
    source = channel_source(free)
    gains = np.abs([source.round_channel(index) for index in range(1, 21)]) ** 2
    threshold = float(np.quantile(gains, 0.3))
    record = ad.run(
        small_scenario(tmp_path, "learning.rounds=20", f"radio.truncation={threshold}"), "ota_fd",
        out=tmp_path / "run", options=FAST,
    )  # fmt: skip
    releases = Ledger.read(record.folder / "ledger.jsonl").releases
    for line, release, row in zip(record.rounds, releases, gains, strict=True):
        silent = np.flatnonzero(row < threshold)
        assert line.get("silent_devices", []) == silent.tolist()
        assert not release.weights[silent].any()
        assert not release.cost("device", "fleet_noise")[silent].any()
        if len(silent) < 3:
            assert release.weights.sum(axis=0) == pytest.approx(np.ones(3))
    heard = [line for line in record.rounds if 0 < len(line.get("silent_devices", [])) < 3]
    assert heard
    assert all(0 < np.mean(line["measured_bias"]) <= 2 for line in heard)


def test_with_errors_of_the_channel_the_run_uses_what_is_known(tmp_path):
    """The design is of ĥ, what arrives of h: the measured error is the predicted one, slips included."""
    scenario = small_scenario(tmp_path, *WEAK, "radio.csi_error_db=-12", "learning.rounds=60")
    record = ad.run(scenario, "ota_fd", out=tmp_path / "run", options=FAST)
    plan = Plan.from_dict(json.loads((record.folder / "plan.json").read_text()))
    channel = channel_source(plan.scenario).round_channel(1)
    design = plan.design(round_estimate(plan.scenario, channel, 1), 1)
    assert record.rounds[0]["predicted_noise_var"] == pytest.approx(design.effective_noise_var, rel=1e-12)
    measured = np.array([line["measured_noise_var"] for line in record.rounds])
    predicted = np.array([line["predicted_noise_var"] for line in record.rounds])
    ratio = (measured / predicted).mean(axis=1)
    assert ratio.mean() == pytest.approx(1, abs=5 * ratio.std() / np.sqrt(len(ratio)))
    assumed = {assumption.name for assumption in ad.certify(record.folder).assumptions}
    assert "bounded channel error" in assumed
    assert "exact channels" not in assumed


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("privacy.trust=receiver_noise",),
        WEAK,
        ("radio.csi_error_db=-20",),
        ("radio.csi_error_db=-20", "privacy.trust=own_noise"),
        ("privacy.sensitivity=trajectory",),
    ],
)
def test_the_audit_replays_the_run_and_finds_nothing(tmp_path, changes):
    world = small_world(tmp_path, "airdistill", *changes, rounds=6, device=1)
    run = ad.run(world.scenario, "airdistill", out=tmp_path / "run", options=FLOAT64)
    for this, broadcast, line in zip(world.rounds, world.broadcasts, run.rounds, strict=True):
        assert this.design.effective_noise_var == pytest.approx(line["predicted_noise_var"], rel=1e-9)
        assert np.isfinite(broadcast).all()
    plan, scheme = planned(tmp_path, "airdistill", *changes)
    options = AuditOptions(device=1, transcripts=3, candidates=4, trials=300, parts=("exact", "empirical"))
    assert audit(plan, scheme, options, FLOAT64, quiet).violations == ()


def test_a_device_without_a_channel_in_some_rounds_can_be_audited(tmp_path):
    gains = np.random.default_rng(0).normal(size=(6, 3, 2)) @ np.array([1e-5, 1e-5j])
    gains[::2, 1] = 0
    np.savez(tmp_path / "trace.npz", channel=gains)
    changes = (f"radio.trace={tmp_path / 'trace.npz'}", "radio.csi_error_db=-20")
    plan, scheme = planned(tmp_path, "ota_fd", *changes)
    options = AuditOptions(device=1, transcripts=2, candidates=2, trials=100, parts=("exact", "empirical"))
    assert audit(plan, scheme, options, FLOAT64, quiet).violations == ()


def test_the_audit_counts_rounding_to_the_grid_as_the_run_does(tmp_path):
    changes = ("privacy.noise=secure", "privacy.trust=own_noise")
    world = small_world(tmp_path, "airdistill", *changes, rounds=6)
    run = ad.run(world.scenario, "airdistill", out=tmp_path / "run", options=FLOAT64)
    for this, line in zip(world.rounds, run.rounds, strict=True):
        assert this.design.effective_noise_var.tolist() == line["predicted_noise_var"]


def test_a_plan_of_before_there_was_silence_can_still_be_read(tmp_path):
    stored = ad.plan(small_scenario(tmp_path)).to_dict()
    for name in ("squared_bias", "silent_share"):
        del stored["forecast"][name]
    for name in ("truncation", "floor"):
        del stored["uplink"][name]
    channel = channel_source(small_scenario(tmp_path)).round_channel(1)
    assert np.isfinite(Plan.from_dict(stored).design(channel).effective_noise_var).all()


def test_a_second_run_of_the_same_devices_has_the_rest(tmp_path):
    """Carried over within each run, and from the first to the second by the ledger; the sum keeps the promise."""
    first = ad.run(small_scenario(tmp_path, "privacy.epsilon=2"), out=tmp_path / "first", options=FAST)
    second = ad.run(small_scenario(tmp_path), out=tmp_path / "second", options=FAST, ledger=first.folder)
    spent = Ledger.read(second.folder / "ledger.jsonl").epsilon()
    assert (spent <= 8 * (1 + 1e-8)).all()
    assert spent.max() == pytest.approx(8, rel=1e-3)


@pytest.mark.parametrize(
    ("scheme", "change", "field"),
    [
        ("ota_fl", "radio.truncation=optimal", "radio.truncation"),
        ("ota_fl", "radio.csi_error_db=-20", "radio.csi_error_db"),
        ("ota_fl", "privacy.carry_over=true", "privacy.carry_over"),
        ("orthogonal_fd", "radio.truncation=-90 dB", "radio.truncation"),
        ("orthogonal_fd", "radio.csi_error_db=-20", "radio.csi_error_db"),
    ],
)
def test_what_a_scheme_cannot_do_it_refuses(tmp_path, scheme, change, field):
    with pytest.raises(ad.AirDistillError, match=r"overrides\.") as refused:
        ad.run(small_scenario(tmp_path, change), scheme, out=tmp_path / "run", options=FAST)
    assert refused.value.field == field
