"""The whole audit: invalid input, notes and progress."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from audit_contexts import planned
from small_worlds import small_scenario, write_dataset

from airdistill.audit import AuditOptions, audit, audit_run
from airdistill.errors import AirDistillError, InputError
from airdistill.runs.accounts import certify
from airdistill.runs.options import RunOptions
from airdistill.runs.runner import run
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.registry import load_scheme

ONE = RunOptions(threads=1)
LITTLE = AuditOptions(transcripts=1, candidates=2, trials=10, rounds=2, shadows=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transcripts": 0}, "--transcripts = 0: must be at least 1"),
        ({"shadows": 5}, "--shadows = 5: must be even"),
        ({"parts": ()}, "--parts = none: must be some of recorded, exact, empirical, membership"),
        ({"parts": ("exact", "magic")}, "--parts = exact, magic"),
        ({"rounds": 7}, "--rounds = 7: must lie between 1 and the plan's 6"),
        ({"device": 3}, "--audited-device = 3: the fleet's devices are 0 to 2"),
    ],
)
def test_invalid_options_are_rejected(tmp_path, changes, message):
    plan, chosen = planned(tmp_path)
    with pytest.raises(InputError, match=message):
        audit(plan, chosen, AuditOptions(**changes), ONE)


@pytest.mark.parametrize("scheme", ["fd_error_free", "local_only", "fedavg"])
def test_schemes_without_a_guarantee_are_rejected(tmp_path, scheme):
    plan, chosen = planned(tmp_path, scheme)
    with pytest.raises(InputError, match="there is no guarantee to audit"):
        audit(plan, chosen, LITTLE, ONE)


def test_a_plan_for_another_uplink_is_rejected(tmp_path):
    plan, _ = planned(tmp_path, "ota_fl")
    with pytest.raises(InputError, match="sends knowledge, the plan is for gradient"):
        audit(plan, load_scheme("ota_fd"), LITTLE, ONE)


def test_parts_can_be_left_out_and_gradients_have_no_membership_inference(tmp_path):
    plan, chosen = planned(tmp_path, "ota_fl")
    found = audit(plan, chosen, AuditOptions(transcripts=1, candidates=1, rounds=2, parts=("membership",)), ONE)
    assert (found.exact, found.empirical, found.membership) == (None, None, None)
    assert any("Membership inference is left out" in note for note in found.notes)
    assert found.violations == ()


def test_without_a_target_there_is_no_guarantee_and_no_violation(tmp_path):
    plan, chosen = planned(tmp_path, "ota_fd", "privacy.epsilon=inf")
    found = audit(plan, chosen, LITTLE, ONE)
    assert np.isinf(found.epsilon)
    assert np.isinf(found.exact.pairs[0].mu).all()
    assert found.violations == ()
    assert found.to_dict()["epsilon"] is None
    assert any("there is no guarantee to violate" in note for note in found.notes)


@pytest.mark.parametrize("scheme", ["ota_fd", "orthogonal_fd", "ota_fl"])
def test_a_fleet_that_cannot_be_received_reveals_nothing(tmp_path, scheme):
    """One device without a channel prevents over-the-air aggregation; under TDMA the others are still received."""
    plan, chosen = planned(tmp_path, scheme, "radio.gains=[[1e-4, 0], [0, 0], [1e-4, 0]]")
    found = audit(plan, chosen, LITTLE, ONE)
    assert found.violations == ()
    assert (found.exact.pairs[1].mu.max() > 0) == (scheme == "orthogonal_fd")
    assert (found.empirical is None) == (scheme != "orthogonal_fd")
    unreachable = audit(plan, chosen, replace(LITTLE, device=1), ONE)
    assert unreachable.exact.pairs[1].mu.max() == 0
    assert unreachable.empirical is None


def test_a_custom_scheme_is_audited_as_ota_fd(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from airdistill.schemes.distillation import OtaFd\n\n\nclass Mine(OtaFd):\n    name = 'mine'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plan, _ = planned(tmp_path)
    chosen = load_scheme("mine:Mine")
    own_plan = plan_scheme(chosen, as_run_by(chosen, plan.scenario))
    found, plain = (audit(own_plan, scheme, LITTLE, ONE) for scheme in (chosen, load_scheme("ota_fd")))
    assert any(
        "mine is a custom scheme, audited as if it sent every device's class means" in note for note in found.notes
    )
    assert found.to_dict()["exact"] == plain.to_dict()["exact"]
    sys.modules.pop("mine")


def test_progress_is_reported_and_an_interruption_propagates(tmp_path):
    plan, chosen = planned(tmp_path)
    reported = []
    audit(plan, chosen, LITTLE, ONE, lambda *step: reported.append(step))
    last = {stage: (done, total) for stage, done, total in reported}
    assert list(last) == [
        "the fleet replayed", "candidates tried", "transcripts followed", "noise attacked", "shadow fleets trained",
    ]  # fmt: skip
    assert all(done == total for done, total in last.values())

    def interrupt(*_step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(plan, chosen, LITTLE, ONE, interrupt)


def test_trials_are_limited_and_a_note_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("airdistill.audit.empirical._MOST_STREAMS", 72_000)
    plan, chosen = planned(tmp_path, "ota_fd", "data.samples_per_device=2", "fleet.devices=30", "learning.rounds=40")
    options = AuditOptions(transcripts=1, candidates=1, trials=5000, parts=("empirical",))
    found = audit(plan, chosen, options, ONE)
    assert found.empirical.num_trials == 72_000 // (2 * 30 * 40)
    assert any("30 of 5000 trials" in note for note in found.notes)


def test_an_audit_of_a_run_is_included_in_its_certificate(tmp_path):
    folder = run(small_scenario(tmp_path), rounds=2, out=tmp_path / "run", options=ONE).folder
    found = audit_run(folder, replace(LITTLE, parts=("exact",)))
    assert (found.scheme, found.num_rounds) == ("airdistill", 2)
    assert certify(folder).audit["audits"][0]["parts"] == ["exact"]
    with pytest.raises(InputError, match="is not a run folder"):
        audit_run("quick")


def test_a_run_whose_data_changed_is_not_audited(tmp_path):
    folder = run(small_scenario(tmp_path), "ota_fd", rounds=2, out=tmp_path / "run", options=ONE).folder
    write_dataset(tmp_path / "blobs.npz", seed=1)
    with pytest.raises(AirDistillError, match="cannot be audited: its dataset, trace or embedding has changed"):
        audit_run(folder, LITTLE)
