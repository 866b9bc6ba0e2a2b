import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airdistill.data import assign_samples, class_counts
from airdistill.data.partition import partition_dirichlet, partition_iid, partition_shards
from airdistill.errors import InputError
from airdistill.scenario import load

KINDS = {
    "iid": partition_iid,
    "dirichlet": lambda labels, sizes, rng: partition_dirichlet(labels, sizes, 0.3, rng),
    "shards": lambda labels, sizes, rng: partition_shards(labels, sizes, 2, rng),
}


def rng(seed=0):
    return np.random.default_rng(seed)


def labels_of(supply):
    return rng().permutation(np.repeat(np.arange(len(supply)), supply))


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 10_000), sizes=st.lists(st.integers(2, 30), min_size=1, max_size=8))
def test_every_sample_belongs_to_at_most_one_device_and_the_counts_are_correct(kind, seed, sizes):
    labels = labels_of([70, 100, 90, 0, 80])
    sizes = np.array(sizes)
    result = KINDS[kind](labels, sizes, rng(seed))
    assigned = np.concatenate(result.indices)
    assert len(np.unique(assigned)) == len(assigned)
    assert [len(held) for held in result.indices] == sizes.tolist()
    for held, counts in zip(result.indices, result.class_counts, strict=True):
        assert np.bincount(labels[held], minlength=5).tolist() == counts.tolist()


RESAMPLED = {
    "iid": (),
    "dirichlet": ("data.partition=dirichlet", "data.alpha=0.3"),
    "shards": ("data.partition=shards", "data.classes_per_device=2"),
}


@pytest.mark.parametrize("kind", RESAMPLED)
def test_resampled_devices_share_samples_and_hold_none_twice(kind):
    changes = ["fleet.devices=300", "data.samples_per_device=[4, 9]", "data.resample=true", *RESAMPLED[kind]]
    labels = labels_of([70, 100, 90, 0, 80])
    result = assign_samples(load("quick", changes), labels)
    sizes = [len(held) for held in result.indices]
    assert (min(sizes), max(sizes)) == (4, 9)
    assert sum(sizes) > len(labels)
    assert all(len(np.unique(held)) == len(held) for held in result.indices)
    for held, counts in zip(result.indices, result.class_counts, strict=True):
        assert np.bincount(labels[held], minlength=5).tolist() == counts.tolist()
    if kind == "shards":
        assert (np.count_nonzero(result.class_counts, axis=1) == 2).all()
        held = result.class_counts[result.class_counts > 0].reshape(-1, 2)
        assert np.abs(held[:, 0] - held[:, 1]).max() <= 1
    again = assign_samples(load("quick", changes), labels)
    assert all((one == other).all() for one, other in zip(result.indices, again.indices, strict=True))


def test_every_sample_is_equally_likely_to_be_resampled():
    """Each of 340 samples is on Binomial(2000, 17/340) devices: 100 of them, within six standard deviations of 9.75."""
    changes = ["fleet.devices=2000", "data.samples_per_device=17", "data.resample=true"]
    result = assign_samples(load("quick", changes), labels_of([70, 100, 90, 0, 80]))
    times = np.bincount(np.concatenate(result.indices), minlength=340)
    assert np.abs(times - 100).max() < 6 * 9.75
    # The sum of (times − 100)² over samples follows its expectation 340 · 95 within six of its standard deviations.
    assert np.sum((times - 100.0) ** 2) == pytest.approx(340 * 95, rel=6 * np.sqrt(2 / 340))


def test_iid_devices_have_similar_class_counts():
    labels = labels_of([3000] * 4)
    counts = partition_iid(labels, np.full(30, 400), rng()).class_counts
    # Hypergeometric: mean 100, standard deviation √(400·¼·¾·(1 − 400/12000)) = 8.5; the bound is five of them.
    assert np.abs(counts - 100).max() < 5 * 8.6


def test_a_small_alpha_gives_skewed_classes_and_a_large_one_even_classes():
    labels = labels_of([3000] * 4)
    sizes = np.full(20, 200)
    top_share = {
        alpha: partition_dirichlet(labels, sizes, alpha, rng()).class_counts.max(axis=1).mean() / 200
        for alpha in (0.05, 1000.0)
    }
    assert top_share[0.05] > 0.8
    assert top_share[1000.0] < 0.35


def test_dirichlet_assigns_the_whole_set_if_classes_are_exhausted():
    labels = labels_of([10, 50, 40])
    counts = partition_dirichlet(labels, np.full(10, 10), 0.05, rng()).class_counts
    assert counts.sum(axis=0).tolist() == [10, 50, 40]


@pytest.mark.parametrize("per_device", [1, 2, 3, 5])
def test_shards_have_exactly_the_given_number_of_classes(per_device):
    labels = labels_of([120, 100, 80, 110, 90])
    counts = partition_shards(labels, np.full(50, 10), per_device, rng()).class_counts
    assert np.count_nonzero(counts, axis=1).tolist() == [per_device] * 50
    assert counts.sum(axis=0).tolist() == [120, 100, 80, 110, 90]


def test_shards_of_mnist_are_nearly_even_and_pair_classes_at_random():
    counts = class_counts(load("paper", ["data.partition=shards", "data.classes_per_device=2"]))
    assert np.count_nonzero(counts, axis=1).tolist() == [2] * 50
    assert counts[counts > 0].min() >= 0.7 * 600
    pairs = {tuple(np.flatnonzero(row)) for row in counts}
    assert len(pairs) > 20  # 45 are possible


@pytest.mark.parametrize(
    ("sizes", "per_device", "rule"),
    [([5, 5], 4, "has 3 classes"), ([1, 5], 2, "only 1 samples"), ([20, 10], 1, "in all")],
)
def test_impossible_shards_are_rejected(sizes, per_device, rule):
    with pytest.raises(InputError, match=rule):
        partition_shards(labels_of([10, 10, 10]), np.array(sizes), per_device, rng())


def test_more_samples_than_available_are_rejected():
    with pytest.raises(InputError, match="training set has 60000"):
        class_counts(load("paper", ["data.samples_per_device=1201"]))


def test_more_devices_than_samples_are_rejected():
    scenario = load("paper", ["fleet.devices=40"])
    scenario = scenario.model_copy(update={"data": load("quick").data.model_copy(update={"samples_per_device": None})})
    with pytest.raises(InputError, match="more devices"):
        assign_samples(scenario, np.arange(10))


def test_without_a_size_the_set_is_divided_evenly(tmp_path):
    path = tmp_path / "even.toml"
    path.write_text("[fleet]\ndevices = 7\n[privacy]\nepsilon = 1\ndelta = 0.1\n")
    assert set(class_counts(load(path)).sum(axis=1)) == {60000 // 7}


def test_the_seed_determines_the_partition():
    first, same, other = (class_counts(load("quick", [f"seed={seed}"])) for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_declared_counts_do_not_need_data():
    changes = ["fleet.devices=2", "data.class_counts=[[3, 0], [1, 4]]", "data.dataset=nowhere"]
    assert class_counts(load("quick", changes)).tolist() == [[3, 0], [1, 4]]
