"""The public set is disjoint from training and test samples."""

import numpy as np
import pytest
from small_worlds import small_scenario, write_dataset

from airdistill.data.datasets import load_dataset
from airdistill.data.partition import assign_samples, class_counts
from airdistill.data.public import load_data, private_labels
from airdistill.errors import InputError
from airdistill.scenario.loading import as_toml, load


def all_samples(dataset, public):
    return np.concatenate([dataset.x_train, dataset.x_test, public.samples])


@pytest.mark.parametrize(("source", "sizes"), [("test", (60, 18)), ("train", (48, 30))])
def test_the_public_set_is_disjoint_from_training_and_test_samples(tmp_path, source, sizes):
    scenario = small_scenario(
        tmp_path, "public.samples=12", f"public.source={source}", "fleet.devices=2", "data.samples_per_device=20"
    )
    whole = load_dataset(scenario.data.dataset)
    dataset, public = load_data(scenario)
    assert (len(dataset.y_train), len(dataset.y_test)) == sizes
    assert public.samples.shape == (12, 4)
    together = all_samples(dataset, public)
    assert len(np.unique(together, axis=0)) == len(together) == 90
    held_out = (whole.x_test, whole.y_test) if source == "test" else (whole.x_train[::-1], whole.y_train[::-1])
    labels = public.hidden_labels if source == "test" else public.hidden_labels[::-1]
    assert np.array_equal(labels, held_out[1][:12])
    shares = assign_samples(scenario, dataset.y_train)
    assert np.array_equal(private_labels(scenario), dataset.y_train)
    assert np.array_equal(class_counts(scenario), shares.class_counts)
    assert max(map(max, shares.indices)) < len(dataset.y_train)


def test_without_a_public_set_nothing_is_held_out(tmp_path):
    dataset, public = load_data(small_scenario(tmp_path))
    assert public is None
    assert (len(dataset.y_train), len(dataset.y_test)) == (60, 30)


def test_a_public_set_from_an_archive_has_no_labels(tmp_path):
    np.savez(tmp_path / "more.npz", x_public=np.ones((9, 4)), x_train=np.zeros((9, 4)))
    scenario = small_scenario(tmp_path, "public.samples=5", f"public.source={tmp_path / 'more.npz'}")
    dataset, public = load_data(scenario)
    assert public.hidden_labels is None
    assert np.array_equal(public.samples, np.ones((5, 4)))
    assert (len(dataset.y_train), len(dataset.y_test)) == (60, 30)
    again = tmp_path / "again.toml"
    again.write_text(as_toml(scenario))
    assert load(again) == scenario


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["public.samples=30"], "public.samples = 30: the test set has 30, and some must be left"),
        (["public.samples=60", "public.source=train"], "public.samples = 60: the training set has 60"),
        (["public.source=nowhere"], 'public.source = "nowhere": must be'),
        (["public.samples=3", "public.source=OTHER"], "its samples are float64 of shape (5,), the devices' float64 of"),
        (["public.samples=61", "public.source=BLOBS"], "public.samples = 61: "),
    ],
)
def test_an_unavailable_public_set_is_rejected(tmp_path, changes, message):
    other = write_dataset(tmp_path / "other.npz", features=(5,))
    named = [change.replace("OTHER", str(other)).replace("BLOBS", str(tmp_path / "blobs.npz")) for change in changes]
    with pytest.raises(InputError) as caught:
        load_data(small_scenario(tmp_path, *named))
    assert message in str(caught.value)
