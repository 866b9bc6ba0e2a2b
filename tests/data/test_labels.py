"""Labels that are texts or have gaps: which label is which class, and that it stays so in a part of the data."""

import json

import numpy as np
import pytest

import airdistill as ad
from airdistill.data import load_dataset, load_train_labels
from airdistill.errors import DataError

RNG = np.random.default_rng(6)


def stored(path, train, test, samples=None):
    x_train = RNG.standard_normal((len(train), 3)) if samples is None else samples
    np.savez(path, x_train=x_train, y_train=train, x_test=RNG.standard_normal((len(test), 3)), y_test=test)
    return str(path)


@pytest.mark.parametrize(
    ("labels", "known"),
    [
        ([0, 10, 20, 30], (0, 10, 20, 30)),
        ([1, 2, 3, 4], (1, 2, 3, 4)),
        (["cat", "dog", "horse", "ship"], ("cat", "dog", "horse", "ship")),
        ([b"cat", b"dog", b"horse", b"ship"], ("cat", "dog", "horse", "ship")),
        (["{0}", "é", "ß", "Z"], ("Z", "{0}", "ß", "é")),
        ([0, 1, 2, 3], None),
    ],
)
def test_classes_are_the_sorted_labels(tmp_path, labels, known):
    order = RNG.permutation(np.arange(40) % 4)
    dataset = load_dataset(stored(tmp_path / "a.npz", np.array(labels)[order], np.array(labels)[:3]))
    assert dataset.class_labels == known
    assert dataset.num_classes == 4
    places = np.argsort(np.argsort(np.array(labels)))
    assert np.array_equal(dataset.y_train, places[order])
    assert np.array_equal(dataset.y_test, places[:3])
    assert np.array_equal(load_train_labels(dataset.name), dataset.y_train)


@pytest.mark.parametrize(
    ("train", "test", "rule"),
    [
        ([0, 10, 20], [0, 10, 5], "test label 5 has no training sample"),
        ([0, 10, 20], [40], "test label 40 has no training sample"),
        (["a", "b"], ["b", "c"], "test label c has no training sample"),
        (["a", "b"], ["{x}"], r"test label \{x\} has no training sample"),
        ([0, 1], ["0", "1"], "test label 0 has no training sample"),
        (["a", ""], ["a"], "label 1 is empty"),
        ([b"\xff", b"a"], [b"a"], "store them as str"),
        ([-1, 1], [1], "label -1 is negative"),
    ],
)
def test_labels_without_a_class_are_refused(tmp_path, train, test, rule):
    with pytest.raises(DataError, match=rule):
        load_dataset(stored(tmp_path / "a.npz", np.array(train), np.array(test)))


def test_a_part_of_a_dataset_keeps_the_classes_of_the_whole(tmp_path):
    part = stored(tmp_path / "part.npz", np.array([20, 0, 20]), np.array([0]))
    dataset = load_dataset(part, (0, 10, 20, 30))
    assert dataset.y_train.tolist() == [2, 0, 2]
    plain = load_dataset(stored(tmp_path / "plain.npz", np.array([3, 7]), np.array([3])), range(10))
    assert plain.y_train.tolist() == [3, 7]
    with pytest.raises(DataError, match="label 20 is none of the labels 0, 1, 2"):
        load_dataset(part, range(3))


def test_tables_may_have_texts_as_labels(tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text("width,label\n1,dog\n2, cat\n3,7\n")
    dataset = load_dataset(str(tmp_path))
    assert dataset.class_labels == ("7", "cat", "dog")
    assert dataset.y_train.tolist() == [2, 1, 0]


def test_a_run_records_which_label_is_which_class_and_has_the_numbers_of_the_plain_labels(tmp_path):
    plain, samples, weights = np.arange(60) % 3, RNG.standard_normal((60, 3)), []
    for name, labels in {"plain": [0, 1, 2], "gapped": [0, 10, 30], "texts": ["a", "b", "c"]}.items():
        path = stored(tmp_path / f"{name}.npz", np.array(labels)[plain], np.array(labels), samples)
        changes = [f"data.dataset={path}", "learning.model=softmax_regression", "fleet.devices=2"]
        scenario = ad.load("quick", [*changes, "data.samples_per_device=30", "learning.local_epochs=0"])
        run = ad.run(scenario, "local_only", rounds=2, out=tmp_path / name)
        assert run.summary.get("class_labels") == (None if name == "plain" else labels)
        weights.append(json.dumps([record["loss"] for record in run.rounds]))
    assert len(set(weights)) == 1
