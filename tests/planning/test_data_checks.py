"""A plan refuses models that cannot take the data, and says what it makes of labels and of large numbers."""

import numpy as np
import pytest
import torch
from small_worlds import small_scenario, write_dataset
from torch import nn

import airdistill as ad
from airdistill.data.datasets import dataset_summary, load_train_labels
from airdistill.errors import AirDistillError, InputError
from airdistill.learning.learner import Learner, batches_of
from airdistill.scenario.networks import NETWORKS, check_takes, input_shape_of

OWN = """
from torch import nn
def normed(input_shape, num_classes):
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, num_classes))
def narrow(num_classes):
    return nn.Linear(5, num_classes)
def wide():
    return nn.Linear(4, 7)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_networks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ("learning.model=paper_cnn", r'learning.model = "paper_cnn": needs images .* not samples of shape \(4,\)'),
        ("learning.model=resnet8-16", "needs images"),
        ("fleet.groups=[{count=2,model='mlp'},{count=1,model='resnet8'}]", 'fleet.groups = "resnet8": needs images'),
        ("learning.model=own_networks:narrow", r"cannot take samples of shape \(4,\): RuntimeError"),
        ("learning.model=own_networks:wide", "must give 3 outputs a sample, not"),
        ("learning.model=own_networks:absent", "own_networks has no absent"),
    ],
)
def test_a_plan_refuses_a_model_that_cannot_take_the_samples(own, change, rule):
    with pytest.raises(InputError, match=rule):
        ad.plan(small_scenario(own, change))


@pytest.mark.parametrize(
    "name", ["paper_cn", "Paper_CNN", "mpl", "softmax-regression", "resnet18", "mlp-0", "resnet8-5"]
)
def test_a_scenario_refuses_a_model_without_a_name_that_exists(name):
    with pytest.raises(InputError) as caught:
        ad.load("quick", [f"learning.model={name}"])
    assert caught.value.field == "learning.model"
    meant = {
        "paper_cn": "paper_cnn",
        "Paper_CNN": "paper_cnn",
        "mpl": "mlp",
        "softmax-regression": "softmax_regression",
    }
    if name in meant:
        assert str(caught.value).endswith(f"did you mean {meant[name]}?")


@pytest.mark.parametrize("shape", [(4,), (28, 28), (13, 40), (32, 32, 3), (3, 14, 14), (2, 3, 4, 5)])
def test_the_rule_without_pytorch_is_what_pytorch_accepts(shape):
    from airdistill.learning.models import build_model

    taken = input_shape_of(shape)
    for name in NETWORKS:
        try:
            check_takes(name, taken, "learning.model")
            accepted = True
        except InputError:
            accepted = False
        try:
            build_model(name, taken, 3, np.random.default_rng(0), torch.float32)
            built = True
        except InputError:
            built = False
        assert accepted == built, (name, shape)


def test_a_sample_that_is_left_over_joins_the_batch_before_it_under_batch_normalisation():
    normed, plain = nn.BatchNorm1d(2), nn.Linear(2, 2)
    order = torch.arange(7)
    assert [batch.tolist() for batch in batches_of(order, 3, normed)] == [[0, 1, 2], [3, 4, 5, 6]]
    assert [len(batch) for batch in batches_of(order, 3, plain)] == [3, 3, 1]
    assert [len(batch) for batch in batches_of(order, 5, normed)] == [5, 2]
    assert [batch.shape[1] for batch in batches_of(order.expand(2, 7), 6, normed, dim=1)] == [7]


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_run_with_batch_normalisation_takes_any_number_of_samples(own, epochs):
    changes = ["learning.model=own_networks:normed", "data.samples_per_device=16", "learning.batch_size=5"]
    scenario = small_scenario(own, *changes, f"learning.local_epochs={epochs}")
    assert len(ad.run(scenario, "local_only", rounds=1, out=own / "run").rounds) == 1
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    assert np.isfinite(Learner(model, torch.randn(11, 4), np.arange(11) % 3, 3, chunk=5).knowledge()).all()


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ("data.samples_per_device={values=[20,1,20]}", "device 1 has one sample"),
        ("learning.batch_size=1", "learning.batch_size is 1"),
    ],
)
def test_batches_of_one_sample_are_refused_for_batch_normalisation_only(own, change, cause):
    changes = [change, "learning.local_epochs=1", "learning.rounds=2"]
    with pytest.raises(InputError, match=f"needs two samples in a batch, and {cause}"):
        ad.plan(small_scenario(own, *changes, "learning.model=own_networks:normed"))
    ad.plan(small_scenario(own, *changes))


def stored(path, scale=1.0, labels=(0, 1, 2), dtype=np.float64):
    rng, classes = np.random.default_rng(3), np.array(labels)[np.arange(60) % 3]
    samples = np.clip(scale * rng.standard_normal((60, 4)), -scale, scale).astype(dtype)
    np.savez(path, x_train=samples, x_test=samples[:30] / 2, y_train=classes, y_test=classes[:30])
    return f"data.dataset={path}"


def test_a_plan_says_what_it_makes_of_labels_and_of_large_numbers(tmp_path):
    def about_data(change):
        return [line for line in ad.plan(small_scenario(tmp_path, change)).warnings if line.startswith("data.dataset")]

    assert about_data(stored(tmp_path / "plain.npz")) == []
    assert about_data(stored(tmp_path / "texts.npz", labels=("a", "b", "c"))) == []
    (line,) = about_data(stored(tmp_path / "gapped.npz", labels=(0, 10, 30)))
    assert line == "data.dataset: its labels 0, 10, 30 are the classes 0 to 2, in this order."
    (line,) = about_data(stored(tmp_path / "pixels.npz", scale=255, dtype=np.int64))
    assert "samples are int64 up to 255" in line
    assert "store pixels as uint8" in line


def test_divergence_names_the_scale_of_the_samples(tmp_path):
    scenario = small_scenario(tmp_path, stored(tmp_path / "large.npz", scale=1e30), "learning.initial_lr=1")
    rule = r"diverged.*samples reach 1e\+30: scale them to about 1, or lower learning"
    with pytest.raises(AirDistillError, match=rule):
        ad.run(scenario, "local_only", rounds=3, out=tmp_path / "run")


def test_a_summary_is_read_again_when_the_file_has_changed(tmp_path):
    path = write_dataset(tmp_path / "blobs.npz")
    first = dataset_summary(str(path))
    assert dataset_summary(str(path)) is first
    write_dataset(path, num_classes=4, num_train=80)
    assert dataset_summary(str(path)).sample_shape == (4,)
    assert load_train_labels(str(path)).max() == 3
    with pytest.raises(ValueError, match="read-only"):
        first.y_train[0] = 1
