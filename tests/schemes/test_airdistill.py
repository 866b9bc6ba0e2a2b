"""The scheme airdistill: its settings, tracking receiver, records, truncated channel inversion and audit."""

import json

import numpy as np
import pytest
from audit_contexts import FLOAT64, no_progress, planned, small_context
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


def test_it_takes_every_step_and_keeps_the_declared_guarantee(tmp_path):
    adapted = load_scheme("airdistill").adapt(small_scenario(tmp_path, base="paper"))
    assert (adapted.privacy.accountant, adapted.privacy.carry_over, adapted.privacy.class_budget) == (
        "exact", True, "optimal",
    )  # fmt: skip
    assert (adapted.radio.truncation, adapted.learning.receiver) == ("optimal", "tracking")
    given = small_scenario(tmp_path, base="paper").privacy
    assert (adapted.privacy.sensitivity, adapted.privacy.trust) == (given.sensitivity, given.trust)


def test_a_chosen_receiver_and_a_chosen_threshold_stay(tmp_path):
    chosen = small_scenario(tmp_path, "learning.receiver=projected", "radio.truncation=-100 dB")
    adapted = load_scheme("airdistill").adapt(chosen)
    assert (adapted.radio.truncation, adapted.learning.receiver) == (pytest.approx(1e-10), "projected")


def test_it_is_the_default_scheme(tmp_path):
    record = ad.run(small_scenario(tmp_path), rounds=1, out=tmp_path / "run", options=FAST)
    assert record.summary["scheme"] == "airdistill"


def test_it_spends_the_whole_target_and_no_more(tmp_path):
    """Equal shares leave budget unspent on most devices; here one device spends its whole target."""
    changes = ("data.partition=dirichlet", "data.alpha=0.7")
    ours = ad.run(small_scenario(tmp_path, *changes), out=tmp_path / "ours", options=FAST)
    theirs = ad.run(small_scenario(tmp_path, *changes), "ota_fd", out=tmp_path / "theirs", options=FAST)
    spent = Ledger.read(ours.folder / "ledger.jsonl").epsilon()
    assert (spent <= 8 * (1 + 1e-8)).all()
    assert spent.max() == pytest.approx(8, rel=1e-6)
    assert theirs.summary["epsilon_spent"] < 8
    noise = [np.mean([np.mean(line["predicted_noise_var"]) for line in run.rounds]) for run in (ours, theirs)]
    assert noise[0] < noise[1]


def test_the_record_has_the_error_of_the_broadcast_and_the_receivers_estimate_of_it(tmp_path):
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


def test_inactive_devices_are_recorded_and_not_charged(tmp_path):
    """A threshold that makes devices inactive in some rounds: the other weights sum to one, the bias is recorded."""
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
        inactive = np.flatnonzero(row < threshold)
        assert line.get("silent_devices", []) == inactive.tolist()
        assert not release.weights[inactive].any()
        assert not release.cost("device", "fleet_noise")[inactive].any()
        if len(inactive) < 3:
            assert release.weights.sum(axis=0) == pytest.approx(np.ones(3))
    partial = [line for line in record.rounds if 0 < len(line.get("silent_devices", [])) < 3]
    assert partial
    assert all(0 < np.mean(line["measured_bias"]) <= 2 for line in partial)


def test_with_csi_errors_the_design_uses_the_channel_estimate(tmp_path):
    """The design uses ĥ, the signal passes through h: the measured error is the predicted one, with misalignment."""
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
        WEAK,
        ("radio.csi_error_db=-20", "privacy.trust=own_noise"),
        ("privacy.sensitivity=trajectory",),
    ],
)
def test_the_audit_replays_the_run_and_finds_no_violation(tmp_path, changes):
    context = small_context(tmp_path, "airdistill", *changes, rounds=6, device=1)
    run = ad.run(context.scenario, "airdistill", out=tmp_path / "run", options=FLOAT64)
    for this, broadcast, line in zip(context.rounds, context.broadcasts, run.rounds, strict=True):
        assert this.design.effective_noise_var == pytest.approx(line["predicted_noise_var"], rel=1e-9)
        assert np.isfinite(broadcast).all()
    plan, scheme = planned(tmp_path, "airdistill", *changes)
    options = AuditOptions(device=1, transcripts=3, candidates=4, trials=300, parts=("exact", "empirical"))
    assert audit(plan, scheme, options, FLOAT64, no_progress).violations == ()


def test_a_device_without_a_channel_in_some_rounds_can_be_audited(tmp_path):
    gains = np.random.default_rng(0).normal(size=(6, 3, 2)) @ np.array([1e-5, 1e-5j])
    gains[::2, 1] = 0
    np.savez(tmp_path / "trace.npz", channel=gains)
    changes = (f"radio.trace={tmp_path / 'trace.npz'}", "radio.csi_error_db=-20")
    plan, scheme = planned(tmp_path, "ota_fd", *changes)
    options = AuditOptions(device=1, transcripts=2, candidates=2, trials=100, parts=("exact", "empirical"))
    assert audit(plan, scheme, options, FLOAT64, no_progress).violations == ()


def test_the_audit_has_the_same_designs_as_the_run_with_secure_noise(tmp_path):
    changes = ("privacy.noise=secure", "privacy.trust=own_noise")
    context = small_context(tmp_path, "airdistill", *changes, rounds=6)
    run = ad.run(context.scenario, "airdistill", out=tmp_path / "run", options=FLOAT64)
    for this, line in zip(context.rounds, run.rounds, strict=True):
        assert this.design.effective_noise_var.tolist() == line["predicted_noise_var"]


def test_a_plan_without_truncation_fields_can_be_read(tmp_path):
    stored = ad.plan(small_scenario(tmp_path)).to_dict()
    for name in ("squared_bias", "silent_share"):
        del stored["forecast"][name]
    for name in ("truncation", "floor"):
        del stored["uplink"][name]
    channel = channel_source(small_scenario(tmp_path)).round_channel(1)
    assert np.isfinite(Plan.from_dict(stored).design(channel).effective_noise_var).all()


def test_a_second_run_of_the_same_devices_has_the_remaining_budget(tmp_path):
    """Budget is carried over within each run, and by the ledger from the first run to the second."""
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
def test_unsupported_settings_are_refused(tmp_path, scheme, change, field):
    with pytest.raises(ad.AirDistillError, match=r"overrides\.") as refused:
        ad.run(small_scenario(tmp_path, change), scheme, out=tmp_path / "run", options=FAST)
    assert refused.value.field == field
