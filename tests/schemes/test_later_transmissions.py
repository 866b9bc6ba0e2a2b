"""Class means in the features of the server's own model, as transmissions after the first."""

import re

import numpy as np
import pytest
import torch
from small_worlds import small_scenario, write_dataset
from torch import nn

import airdistill as ad
from airdistill.errors import AirDistillError, InputError
from airdistill.learning.own_features import OwnFeatures, hidden_features
from airdistill.privacy.certificate import certificate_of
from airdistill.runs.accounts import trusted_ledger
from airdistill.runs.options import RunOptions

FAST = RunOptions(threads=1, eval_every=1, checkpoint_every=1)


def features_scenario(folder, *changes):
    """Twelve devices that hold two of four blobs each; 60 of 120 test samples are public."""
    path = folder / "skewed.npz"
    if not path.exists():
        write_dataset(path, num_classes=4, features=(8,), num_train=240, num_test=120)
    return small_scenario(
        folder, f"data.dataset={path}", "fleet.devices=12", "data.partition=shards", "data.classes_per_device=2",
        "learning.model=mlp-6", "public.samples=60", "public.features=8", "public.broadcast=model",
        "learning.rounds=3", "radio.noise_power=1e-16", "privacy.epsilon=50", "privacy.sensitivity=device", *changes,
    )  # fmt: skip


WITHOUT_LINEAR_LAYER = """
import torch
class Bare(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(8, 4))
    def forward(self, samples):
        return samples @ self.weights
"""


def own_features_run(folder, *changes):
    scenario = features_scenario(folder, "public.later=features", *changes)
    return ad.run(scenario, "airdistill_features", out=folder / "run", options=FAST)


def test_hidden_features_are_the_input_of_the_last_linear_layer_that_is_called():
    class Unordered(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.body = nn.Linear(3, 2), nn.Linear(4, 3)

        def forward(self, samples):
            return self.head(torch.tanh(self.body(samples)))

    model, samples = Unordered(), torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    expected = torch.tanh(samples @ model.body.weight.T + model.body.bias)
    torch.testing.assert_close(hidden_features(model, samples, chunk=2), expected)
    assert model.training


def test_own_features_are_white_on_the_public_samples_and_zero_beyond_their_rank():
    torch.manual_seed(0)
    model, public = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 2)), torch.randn(40, 6)
    own = OwnFeatures.fit(model, public, width=5, chunk=16)
    rows = own.features(public)
    assert own.rank == 3
    np.testing.assert_allclose(rows[:, :3].T @ rows[:, :3] / 40, np.eye(3), atol=1e-5)
    np.testing.assert_allclose(rows[:, :3].mean(axis=0), 0, atol=1e-5)
    assert (rows[:, 3:] == 0).all()


def test_later_rounds_are_read_in_the_features_of_the_model_sent_before(tmp_path):
    record = own_features_run(tmp_path)
    assert [line["features"]["read_dimensions"] for line in record.rounds] == [8, 6, 6]
    assert record.accuracy["worst"] > 0.75
    assert record.rounds[-1]["labels_right"]["received"] > 0.75


def test_a_resumed_run_is_bit_identical(tmp_path):
    whole = own_features_run(tmp_path)
    expected = (tmp_path / "run" / "rounds.jsonl").read_bytes(), whole.summary
    stopped = features_scenario(tmp_path, "public.later=features")

    def stop(record, _):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ad.run(stopped, "airdistill_features", out=tmp_path / "stopped", options=FAST, on_round=stop)
    resumed = ad.resume(tmp_path / "stopped")
    assert ((tmp_path / "stopped" / "rounds.jsonl").read_bytes(), resumed.summary) == expected


def test_the_certificate_says_which_embedding_private_samples_have_influenced(tmp_path):
    own_features_run(tmp_path)
    certificate = certificate_of(trusted_ledger(tmp_path / "run"))
    text = str(certificate.to_dict())
    assert "depends on private samples through charged releases alone" in text
    assert "an embedding that no private sample has influenced. Every" not in text


def test_the_first_round_is_that_of_a_run_without_later_features(tmp_path):
    """The noise differs, because the scenario does; what the devices hold and the plan do not."""
    plain = ad.plan(features_scenario(tmp_path), "airdistill_features")
    later = ad.plan(features_scenario(tmp_path, "public.later=features"), "airdistill_features")
    assert (plain.required_noise_var() == later.required_noise_var()).all()
    assert plain.epsilon_by_model["class_mean"] == pytest.approx(later.epsilon_by_model["class_mean"])
    assert plain.scenario.model_dump()["public"].keys() == later.scenario.model_dump()["public"].keys() - {"later"}


MIXES_SAMPLES = """
import torch
class Mixing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = torch.nn.Linear(8, 6), torch.nn.Linear(6, 4)
    def forward(self, samples):
        hidden = torch.tanh(self.hidden(samples))
        return self.head(hidden - hidden.mean(dim=0))
"""

TRAINS_FIRST = """
from airdistill.schemes.public_set import AirDistillFeatures
class TrainsFirst(AirDistillFeatures):
    name = "trains_first"
    def play(self, this):
        this.learn(None)
        return super().play(this)
"""


def test_a_model_that_mixes_samples_has_no_features_of_single_records(tmp_path, monkeypatch):
    """A record's certified ε was 4.4 for it, and one record changed the features of all."""
    (tmp_path / "mixing_samples.py").write_text(MIXES_SAMPLES)
    monkeypatch.syspath_prepend(tmp_path)
    words = 'public.later = "features": Mixing gives a sample features that depend on the other samples'
    with pytest.raises(InputError, match=re.escape(words)):
        own_features_run(tmp_path, "learning.model=mixing_samples:Mixing")
    assert not (tmp_path / "run" / "ledger.jsonl").exists()  # before anything is charged


def test_no_features_are_read_from_a_model_that_a_device_has_trained(tmp_path, monkeypatch):
    """Device 0's model would be the embedding of all devices, and its samples have influenced it without a charge."""
    (tmp_path / "trains_first.py").write_text(TRAINS_FIRST)
    monkeypatch.syspath_prepend(tmp_path)
    scenario = features_scenario(tmp_path, "public.later=features")
    with pytest.raises(AirDistillError, match="round 2: devices have other models than the server sent"):
        ad.run(scenario, "trains_first:TrainsFirst", out=tmp_path / "trained", options=FAST)


def test_what_has_no_own_features_is_refused(tmp_path, monkeypatch):
    (tmp_path / "without_linear_layer.py").write_text(WITHOUT_LINEAR_LAYER)
    monkeypatch.syspath_prepend(tmp_path)
    refused = {
        "public.broadcast=predictions": 'public.later = "features": devices need the server\'s model',
        "learning.model=without_linear_layer:Bare": 'public.later = "features": Bare calls no torch.nn.Linear',
    }
    for change, words in refused.items():
        with pytest.raises(InputError, match=re.escape(words)):
            own_features_run(tmp_path, change)
