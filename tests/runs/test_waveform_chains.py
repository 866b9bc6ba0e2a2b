"""Chains of runs with and without a waveform: channel errors of every run take their part of δ, once."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from small_worlds import small_scenario

import airdistill as ad
from airdistill.audit.charges import Charges
from airdistill.planning.plan import Plan
from airdistill.privacy.gaussian import gaussian_mu
from airdistill.privacy.ledger import BudgetExceeded, Ledger
from airdistill.privacy.trust import trust_statement

WAVE = ["waveform.kind=ofdm", "waveform.observed=elements", "radio.fading=tdl-a", "radio.distance=100 m",
        "waveform.pilot_symbols=20"]  # fmt: skip
ROUNDS = ["learning.rounds=2", "privacy.delta=1e-5"]
PART = 1e-6  # a tenth of δ, which every run with a waveform keeps for channel errors


def played(folder, name, epsilon, *changes, before=None):
    scenario = small_scenario(folder, *ROUNDS, f"privacy.epsilon={epsilon}", *changes)
    return ad.run(scenario, "ota_fd", out=folder / name, ledger=None if before is None else folder / before)


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A waveform, another one, one tone, a third waveform: each continues the one before."""
    folder = tmp_path_factory.mktemp("chain")
    played(folder, "one", 4, *WAVE)
    played(folder, "two", 8, *WAVE, before="one")
    played(folder, "tone", 12, before="two")
    played(folder, "three", 16, *WAVE, before="tone")
    return folder


@pytest.mark.parametrize(
    ("name", "earlier", "own"), [("one", 0, PART), ("two", 1, PART), ("tone", 2, 0.0), ("three", 2, PART)]
)
def test_every_run_of_a_chain_takes_its_part_of_delta(chain, name, earlier, own):
    header = Ledger.read(chain / name / "ledger.jsonl").header
    assert header.delta == pytest.approx(1e-5 - earlier * PART - own, rel=1e-9)
    shown = ad.certify(chain / name)
    assert all(device.delta_in_all == pytest.approx(1e-5, rel=1e-12) for device in shown.devices)
    assert all(device.kept for device in shown.devices)
    assert "simulation" in shown.verdict
    plan = json.loads((chain / name / "plan.json").read_text())
    assert ("earlier_excess" in plan["privacy"]) == (earlier > 0)
    found = ad.audit_run(chain / name, ad.AuditOptions(parts=("recorded",)))
    assert found.violations == ()


def test_delta_of_earlier_runs_raises_the_noise(chain):
    """The same second run alone has the whole δ but its own tenth, and the same ε: less noise."""
    header = Ledger.read(chain / "two" / "ledger.jsonl").header
    assert header.mu == pytest.approx(gaussian_mu(8.0, 0.8e-5), rel=1e-6)


def test_the_ledger_refuses_a_run_that_was_planned_without_it(chain, tmp_path):
    """Headers as they were before: δ reserved for the run's own channel errors only."""
    one, two = (Ledger.read(chain / name / "ledger.jsonl") for name in ("one", "two"))
    first = Ledger.begin(one.header, tmp_path / "first.jsonl")
    for release in one.releases:
        first.charge(release)
    unaware = {name: value for name, value in two.header.terms.items() if name != "earlier_excess_delta"}
    header = replace(two.header, terms=unaware, delta=two.header.delta + PART)
    ledger = Ledger.begin(header, tmp_path / "second.jsonl", tmp_path / "first.jsonl")
    with pytest.raises(BudgetExceeded, match="would take 2e-06 of δ, and 1e-06 is kept for them"):
        ledger.charge(two.releases[0])
    assert ledger.num_releases == 0


def test_the_audit_finds_a_header_that_forgot_earlier_runs(chain):
    ledger, plan = (
        Ledger.read(chain / "two" / "ledger.jsonl"),
        Plan.from_dict(json.loads((chain / "two" / "plan.json").read_text())),
    )
    assert Charges(plan, ledger, own_gains=False).violations == []
    forgot = 1e-5 - PART
    ledger.header = replace(ledger.header, delta=np.full(3, forgot))
    plan = replace(plan, fleet=replace(plan.fleet, delta=np.full(3, forgot)))
    (found,) = Charges(plan, ledger, own_gains=False).violations
    assert "take 2e-06 of δ: with the noise device 0 has δ = 1.1e-05, and the scenario asks for 1e-05" in found


def test_a_resumed_run_is_charged_once(chain):
    path = chain / "three" / "ledger.jsonl"
    whole, resumed = Ledger.read(path), Ledger.read(path, recorded_rounds=1)
    resumed.charge(whole.releases[1])
    trust = trust_statement("fleet_noise")
    assert resumed.num_releases == whole.num_releases == 2
    assert resumed.excess_delta(trust) == whole.excess_delta(trust) == pytest.approx(3 * PART, rel=1e-9)


def test_a_run_with_own_noise_lends_no_other_noise_to_a_later_run(chain, tmp_path):
    """It takes nothing of δ, because it bounds no channel error: then none of the others' noise counts."""
    played(tmp_path, "own", 4, *WAVE, "privacy.trust=own_noise", "waveform.observed=samples")
    own = Ledger.read(tmp_path / "own" / "ledger.jsonl")
    for release in own.releases:
        for counted in release.counted_noise_var.values():
            np.testing.assert_array_equal(counted, release.counted_noise_var["own_noise"])
    assert ad.audit_run(tmp_path / "own", ad.AuditOptions(parts=("recorded",))).violations == ()
    assert own.excess_delta(trust_statement("fleet_noise")) == 0
    fleet = Ledger.read(chain / "three" / "ledger.jsonl")
    assert fleet.excess_delta(trust_statement("own_noise")) == 0


def test_a_target_that_earlier_channel_errors_have_used_up_is_refused(chain):
    scenario = small_scenario(chain, *ROUNDS, "privacy.epsilon=20", "privacy.delta=3e-6")
    with pytest.raises(BudgetExceeded, match=r"privacy.delta = 3e-06: channel errors of earlier runs .* 3e-06 of it"):
        ad.plan(scenario, "ota_fd", ledger=chain / "three")
