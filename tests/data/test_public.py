"""The public set is disjoint from training and test samples, and no public sample is a copy of one of them."""

import numpy as np
import pytest
from small_worlds import small_scenario

from airdistill.data.datasets import load_dataset
from airdistill.data.partition import assign_samples, class_counts
from airdistill.data.public import Comparison, load_data, private_labels
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
    np.savez(tmp_path / "more.npz", x_public=np.ones((9, 4)), x_train=np.zeros((9, 4)))  # x_train is not read
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
        (["public.samples=61", "public.source=MORE"], "public.samples = 61: "),
        (
            ["public.samples=3", "public.source=BLOBS"],
            "must have an array x_public: numpy.savez(file, x_public=samples)",
        ),
    ],
)
def test_an_unavailable_public_set_is_rejected(tmp_path, changes, message):
    other = tmp_path / "other.npz"
    np.savez(other, x_public=np.ones((9, 5)))
    np.savez(tmp_path / "more.npz", x_public=np.ones((60, 4)))
    named = [
        change.replace("OTHER", str(other))
        .replace("BLOBS", str(tmp_path / "blobs.npz"))
        .replace("MORE", str(tmp_path / "more.npz"))
        for change in changes
    ]
    with pytest.raises(InputError) as caught:
        load_data(small_scenario(tmp_path, *named))
    assert message in str(caught.value)


def given(folder, x_train, x_test, x_public=None):
    """A scenario on these samples, with a public set of 4 or of all in `x_public`."""
    path, labels = folder / "given.npz", {"y_train": np.arange(len(x_train)) % 3, "y_test": np.arange(len(x_test)) % 3}
    np.savez(path, x_train=x_train, x_test=x_test, **labels)
    changes = [f"data.dataset={path}", "data.samples_per_device=4", "public.samples=4"]
    if x_public is not None:
        np.savez(folder / "public.npz", x_public=x_public)
        changes = [*changes[:2], f"public.samples={len(x_public)}", f"public.source={folder / 'public.npz'}"]
    return small_scenario(folder, *changes)


def distinct(count, dtype="float64", features=(4,), seed=0):
    """Samples that all differ, also from those of another seed."""
    rng = np.random.default_rng(seed)
    if dtype == "uint8":
        samples = rng.integers(0, 256, (count, *features), dtype=np.uint8)
        samples.reshape(count, -1)[:, 0] = np.arange(count) + 40 * seed
        return samples
    return rng.standard_normal((count, *features)).astype(dtype)


def test_private_records_cannot_be_declared_public(tmp_path):
    private, test = distinct(400), distinct(20, seed=1)
    with pytest.raises(InputError) as caught:
        load_data(given(tmp_path, private, test, private[::-1]))
    message = str(caught.value)
    assert message.startswith('public.source = "')
    assert "400 of its 400 samples are copies (sample 0 is training sample 399, 1 is training sample 398, " in message
    assert message.endswith(
        'public samples must be neither private nor tested: remove them, or hold some out ("train", "test")'
    )


def test_test_samples_cannot_be_declared_public(tmp_path):
    private, test, public = distinct(30), distinct(20, seed=1), distinct(9, seed=2)
    public[5], public[7] = test[11], test[2]
    with pytest.raises(InputError, match=r"2 of its 9 .*\(sample 5 is test sample 11, 7 is test sample 2\);"):
        load_data(given(tmp_path, private, test, public))


def test_samples_beyond_those_requested_are_not_compared(tmp_path):
    private, public = distinct(30), distinct(9, seed=2)
    public[5] = private[3]
    scenario = given(tmp_path, private, distinct(20, seed=1), public)
    within = [f"public.{name}={value}" for name, value in [("samples", 5), ("source", scenario.public.source)]]
    _, found = load_data(small_scenario(tmp_path, f"data.dataset={scenario.data.dataset}", *within))
    assert found.comparison == Comparison(public=5, private=30, test=20, skipped=0, private_in_test=0)
    with pytest.raises(InputError, match="1 of its 9 samples"):
        load_data(scenario)


def test_public_samples_may_be_copies_of_each_other(tmp_path):
    _, public = load_data(given(tmp_path, distinct(30), distinct(20, seed=1), np.ones((6, 4))))
    assert public.comparison == Comparison(public=6, private=30, test=20, skipped=0, private_in_test=0)


STORED = {  # how a private sample is stored, and how its public copy is
    "bytes": ("uint8", "uint8"),
    "single": ("float32", "float32"),
    "double": ("float64", "float64"),
    "single-of-double": ("float64", "float32"),
    "double-of-single": ("float32", "float64"),
    "other-byte-order": ("float32", ">f4"),
    "whole-numbers": ("int32", "float64"),
}


@pytest.mark.parametrize("stored", STORED)
def test_a_single_copy_is_found_wherever_it_is(tmp_path, stored):
    """In 12 datasets with one copy at a random place, of a private or of a test sample; and not without it."""
    rng = np.random.default_rng(7)
    kind, public_kind = STORED[stored]
    features = (6, 5)

    def drawn(count, seed):
        if kind == "int32":
            return distinct(count, "uint8", features, seed).astype(kind)
        return distinct(count, kind, features, seed)

    for _ in range(12):
        private, test, public = drawn(40, 0), drawn(20, 1), drawn(15, 2).astype(public_kind)
        _, found = load_data(given(tmp_path, private, test, public))
        assert found.comparison.public == 15
        part, name = [(private, "training"), (test, "test")][rng.integers(2)]
        place, original = rng.integers(15), rng.integers(len(part))
        public[place] = part[original]
        with pytest.raises(
            InputError, match=rf"1 of its 15 samples are copies \(sample {place} is {name} sample {original}\);"
        ):
            load_data(given(tmp_path, private, test, np.asfortranarray(public)))


def test_signs_of_zero_do_not_hide_a_copy(tmp_path):
    private, public = distinct(30), distinct(5, seed=2)
    private[4], public[3] = [0.0, -0.0, 1.0, 2.0], [-0.0, 0.0, 1.0, 2.0]
    with pytest.raises(InputError, match=r"\(sample 3 is training sample 4\)"):
        load_data(given(tmp_path, private, distinct(20, seed=1), public))


def test_a_folder_of_idx_files_is_compared_too(tmp_path):
    private, test = distinct(40, "uint8", (5, 4)), distinct(20, "uint8", (5, 4), seed=1)
    scenario = given(tmp_path, private, test)

    def from_folder(images):
        header = bytes([0, 0, 8, 3]) + np.array(images.shape, ">u4").tobytes()
        (tmp_path / "train-images-idx3-ubyte").write_bytes(header + images.tobytes())
        named = [f"data.dataset={scenario.data.dataset}", f"public.source={tmp_path}", "public.samples=15"]
        return load_data(small_scenario(tmp_path, *named))[1]

    public = distinct(15, "uint8", (5, 4), seed=2)
    assert np.array_equal(from_folder(public).samples, public)
    public[14] = private[39]
    with pytest.raises(InputError, match=r"\(sample 14 is training sample 39\)"):
        from_folder(public)


@pytest.mark.parametrize("source", ["test", "train"])
def test_held_out_samples_have_no_copy_elsewhere_in_the_dataset(tmp_path, source):
    """A sample with another copy stays where it is, and the next one is held out in its place."""
    train, test = distinct(30), distinct(20, seed=1)
    test[1] = train[2]  # a private sample in the test set
    test[3] = test[9]
    train[29] = train[5]
    train[27] = test[12]
    scenario = given(tmp_path, train, test)
    scenario = scenario.model_copy(update={"public": scenario.public.model_copy(update={"source": source})})
    dataset, public = load_data(scenario)
    chosen = [0, 2, 4, 5] if source == "test" else [24, 25, 26, 28]
    part, labels = (test, np.arange(20) % 3) if source == "test" else (train, np.arange(30) % 3)
    assert np.array_equal(public.samples, part[chosen])
    assert np.array_equal(public.hidden_labels, labels[chosen])
    left = {"x_train": train, "x_test": test} | {f"x_{source}": np.delete(part, chosen, axis=0)}
    assert np.array_equal(dataset.x_train, left["x_train"])
    assert np.array_equal(dataset.x_test, left["x_test"])
    assert len(dataset.y_train) + len(dataset.y_test) == 46
    sizes = (30, 16) if source == "test" else (26, 20)
    assert public.comparison == Comparison(4, *sizes, skipped=2, private_in_test=2)
    assert np.array_equal(private_labels(scenario), dataset.y_train)
    apart = {row.tobytes() for row in public.samples} & {row.tobytes() for row in [*dataset.x_train, *dataset.x_test]}
    assert not apart


def test_a_dataset_of_copies_has_nothing_to_hold_out(tmp_path):
    test = np.repeat(distinct(10, seed=1), 2, axis=0)
    test[0] = 7
    with pytest.raises(InputError, match=r"public.samples = 4: the test set has 2 samples of which the dataset has no"):
        load_data(given(tmp_path, distinct(30), test))


def test_bytes_and_other_numbers_cannot_be_compared(tmp_path):
    with pytest.raises(InputError, match=r"its test samples are float64 of .* the devices' uint8 of .*; store both"):
        load_data(given(tmp_path, distinct(30, "uint8"), distinct(20) / 255))


@pytest.mark.parametrize("source", ["test", "train"])
def test_the_embedded_digits_have_no_copies(source):
    """The first of the test set and the last of the training set are public, as they always were."""
    whole = load_dataset("mnist")
    dataset, public = load_data(load("skewed", [f"public.source={source}"]))
    sizes = (60000, 7000) if source == "test" else (57000, 10000)
    assert public.comparison == Comparison(3000, *sizes, skipped=0, private_in_test=0)
    held_out = whole.x_test[:3000] if source == "test" else whole.x_train[57000:]
    assert np.array_equal(public.samples, held_out)
    assert np.array_equal(dataset.y_train, whole.y_train[: sizes[0]])
