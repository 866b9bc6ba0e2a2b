"""A run's round as recordings: the run is not changed, and what is decoded is what it received."""

import json
from pathlib import Path

import numpy as np
import pytest
from in_process import exit_code

pytest.importorskip("sigmf")

from airdistill.errors import AirDistillError
from airdistill.radio.decoding import decode_file
from airdistill.radio.waveform_link import superpose_waveform
from airdistill.runs.exporting import export_round
from airdistill.runs.options import RunOptions
from airdistill.runs.runner import run
from airdistill.scenario import load

SEED = 918273  # must not be in any file
SET = [
    "waveform.kind=ofdm", "air.medium=waveform", "privacy.trust=own_noise", "fleet.devices=3",
    "data.samples_per_device=60", "radio.noise_power=1e-17", f"seed={SEED}",
]  # fmt: skip


def small(few_digits, *more):
    return load("quick", [*SET, f"data.dataset={few_digits}", *more])


@pytest.fixture(scope="module")
def folder(few_digits, tmp_path_factory):
    """Four rounds, with checkpoints after the second and the last."""
    out = tmp_path_factory.mktemp("run") / "exported"
    run(small(few_digits), "ota_fd", 4, out, RunOptions(checkpoint_every=2, threads=1))
    return out


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("round_index", [1, 2, 3, 4])
def test_every_round_decodes_to_what_the_run_received(folder, round_index, tmp_path):
    """Rounds 1 and 2 are replayed from the start, 3 and 4 from a checkpoint. The folder stays as it is."""
    before = contents(folder)
    exported = export_round(folder, round_index, tmp_path / "out")
    assert contents(folder) == before
    assert exported.difference < 1e-6
    decoded = decode_file(exported.reception, start=0)
    line = json.loads((folder / "rounds.jsonl").read_text().splitlines()[round_index - 1])
    assert list(decoded.contents.noise_var) == pytest.approx(line["predicted_noise_var"])
    assert ("knowledge" in line) == (round_index == 4)  # the last round was evaluated, and kept what was received
    if round_index == 4:
        received = np.array(line["knowledge"]["received"], dtype=float)
        np.testing.assert_allclose(decoded.knowledge, received, rtol=0, atol=1e-6 * np.abs(received).max())
    assert sorted(exported.transmissions) == [0, 1, 2]


def test_all_numbers_of_the_symbols_are_those_of_the_run(few_digits, tmp_path, monkeypatch):
    """Also where no number of the payload is sent: a recording without that noise would show what leaks there."""
    sent = []

    def watched(this, signals):
        sent.append(signals)
        return superpose_waveform(this, signals)

    monkeypatch.setattr("airdistill.radio.charged_round.superpose_waveform", watched)
    monkeypatch.setattr("airdistill.radio.frames.superpose_waveform", watched)
    one_class = ("data.partition=shards", "data.classes_per_device=1")  # seven rows are not sent
    fleet = ("privacy.trust=fleet_noise", "waveform.observed=elements", "waveform.csi=perfect", "waveform.tones=64")
    run(small(few_digits, *one_class, *fleet), "ota_fd", 1, tmp_path / "run", RunOptions(threads=1))
    export_round(tmp_path / "run", 1, tmp_path / "out")
    in_run, exported = sent[0], sent[-1]
    assert len(sent) == 3  # the round is replayed once
    assert np.array_equal(in_run, exported)
    assert in_run.shape == (3, 128)
    assert in_run.all()


def test_files_are_the_same_again_and_hold_no_seed(folder, tmp_path):
    first, second = (export_round(folder, 3, tmp_path / name, [1]) for name in "ab")
    assert contents(first.reception.parent) == contents(second.reception.parent)
    keys = [entry for entry in json.loads((folder / "run.json").read_text())["ledger"].values() if entry]
    for path in first.reception.parent.glob("*.sigmf-meta"):
        text = path.read_text()
        assert str(SEED) not in text
        assert json.loads((folder / "ledger.jsonl").read_text().splitlines()[0])["terms"]["noise_key"] not in text
    assert keys
    digest = json.loads(first.reception.read_text())["global"]["airdistill:ledger"]
    assert json.loads((folder / "ledger.jsonl").read_text().splitlines()[-1])["digest"] == digest


def test_commands_export_and_decode(folder, tmp_path, capsys):
    assert exit_code("radio", "export", folder, "--round", 2, "--devices", "0,2", "--out", tmp_path, "--json") == 0
    out, err = capsys.readouterr()
    assert sorted(json.loads(out)["transmissions"]) == ["0", "2"]
    assert "contains its own signal" in err
    meta = json.loads(out)["reception"]
    assert exit_code("radio", "decode", meta, "--start", 0, "--out", tmp_path / "k.npz", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    stored = np.load(tmp_path / "k.npz")
    np.testing.assert_allclose(np.array(shown["knowledge"]), stored["knowledge"])
    assert exit_code("radio", "decode", meta) == 0
    assert "in unused tones" in capsys.readouterr().out
    assert exit_code("radio", "decode", meta, "--out", tmp_path / "k.txt") == 2
    assert capsys.readouterr().err.count("\n") == 1


def refused(folder, message, **given):
    with pytest.raises(AirDistillError, match=message) as error:
        export_round(folder, **{"round_index": 1, "out": Path("never"), **given})
    assert "\n" not in str(error.value)
    assert not Path("never").exists()


def test_rounds_and_devices_that_are_not_there_are_refused(folder):
    refused(folder, "--round = 5: .* has rounds 1 to 4", round_index=5)
    refused(folder, "--round = 0", round_index=0)
    refused(folder, "--devices = 3: the run has devices 0 to 2", devices=[0, 3])


@pytest.mark.parametrize(
    ("changes", "scheme", "message"),
    [
        (["privacy.noise=secure"], "ota_fd", "secure noise is new each time"),
        (["air.medium=emulated"], "ota_fd", 'air.medium = "emulated": the run has no samples'),
        ([], "local_only", "transmits nothing"),
    ],
)
def test_runs_that_cannot_be_repeated_are_refused(changes, scheme, message, few_digits, tmp_path):
    out = tmp_path / "run"
    run(small(few_digits, *changes), scheme, 1, out, RunOptions(threads=1))
    refused(out, message)


def test_a_ledger_of_other_charges_is_noticed(few_digits, tmp_path, monkeypatch):
    """Another version that designs other rounds must not write files that this run never sent."""
    out = tmp_path / "run"
    run(small(few_digits), "ota_fd", 2, out, RunOptions(threads=1))
    from airdistill.privacy.release import Release

    monkeypatch.setattr(Release, "same_as", lambda *_: False)
    refused(out, "round 1 comes out differently here")
