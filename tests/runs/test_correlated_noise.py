"""Runs with correlated noise: resumed to the same bits, cut short, and continued by another run."""

import itertools

import pytest
from safetensors.numpy import load_file
from small_worlds import small_scenario

import airdistill as ad
from airdistill.privacy.ledger import Ledger
from airdistill.runs.options import RunOptions

OFTEN = RunOptions(eval_every=2, checkpoint_every=2, threads=1)


class PulledPlugError(Exception):
    """Ends a run as a crash would."""


def stop_after(num_rounds):
    def on_round(record, _):
        if record["round"] == num_rounds:
            raise PulledPlugError

    return on_round


def scenario_in(folder, kind, *changes):
    cyclic = ("fleet.devices=6", "data.samples_per_device=10", "fleet.sampling=cyclic", "fleet.cycle=3")
    return small_scenario(folder, *cyclic, f"privacy.correlation={kind}", *changes)


@pytest.mark.parametrize("kind", ["banded", "blt"])
@pytest.mark.parametrize("at", [2, 5])
def test_a_stopped_run_resumes_bit_identically(tmp_path, kind, at):
    """Every device's memory of its noise is in the checkpoints; a round that is played again is charged once."""
    scenario = scenario_in(tmp_path, kind)
    ad.run(scenario, "ota_fl", out=tmp_path / "whole", options=OFTEN)
    with pytest.raises(PulledPlugError):
        ad.run(scenario, "ota_fl", out=tmp_path / "cut", options=OFTEN, on_round=stop_after(at))
    assert ad.resume(tmp_path / "cut").summary["rounds"] == 6
    for name in ("rounds.jsonl", "ledger.jsonl", "certificate.json", "summary.json", "checkpoint-00000006.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert len(Ledger.read(tmp_path / "cut" / "ledger.jsonl").releases) == 6


def test_a_device_keeps_as_many_vectors_as_its_matrix_needs(tmp_path):
    kept = {}
    for kind in ("banded", "blt"):
        ad.run(scenario_in(tmp_path, kind), "ota_fl", out=tmp_path / kind, options=OFTEN)
        tensors = load_file(tmp_path / kind / "checkpoint-00000006.safetensors")
        kept[kind] = [tensor.shape for name, tensor in tensors.items() if name.startswith("noise.")]
    length = 15  # of a softmax regression of 4 features and 3 classes
    assert kept == {"banded": [(6, 1, length)] * 2, "blt": [(6, 1, length)]}


def test_a_run_that_was_cut_short_has_spent_less(tmp_path):
    """A prefix of the rounds is certified with what it has revealed, and no more."""
    whole = ad.run(scenario_in(tmp_path, "banded"), "ota_fl", out=tmp_path / "whole", options=OFTEN)
    spent = [line["epsilon_spent"] for line in whole.rounds]
    assert all(one < other for one, other in itertools.pairwise(spent))
    assert spent[-1] == pytest.approx(8)


def test_a_run_that_continues_the_ledger_adds_to_it(tmp_path):
    """Runs have noise of their own: their costs add up, and a later run may have independent noise."""
    ad.run(scenario_in(tmp_path, "banded", "privacy.epsilon=4"), "ota_fl", out=tmp_path / "first", options=OFTEN)
    first = Ledger.read(tmp_path / "first" / "ledger.jsonl")
    later = scenario_in(tmp_path, "none", "privacy.epsilon=8")
    ad.run(later, "ota_fl", out=tmp_path / "later", options=OFTEN, ledger=tmp_path / "first")
    both = Ledger.read(tmp_path / "later" / "ledger.jsonl")
    assert both.squared_mu_before() == pytest.approx(first.squared_mu(), rel=1e-12)
    assert (both.squared_mu() > first.squared_mu()).all()
    assert both.epsilon().max() == pytest.approx(8)
