import numpy as np
import pytest
from audited_worlds import small_world

from airdistill.audit.neighbours import neighbours_of


def test_a_neighbour_differs_in_one_record_or_in_all(tmp_path):
    world = small_world(tmp_path, rounds=1, device=1)
    found = neighbours_of(world, 12, seed=0)
    assert [neighbour.relation for neighbour in found] == ["record"] * 12 + ["device"] * 2
    own = world.own_samples
    for neighbour in found:
        changed = (neighbour.samples != own).any(axis=1)
        assert changed.sum() == (1 if neighbour.relation == "record" else len(own))
        assert neighbour.samples.dtype == own.dtype
        assert neighbour.samples.min() >= world.dataset.x_train.min() - 1e-12
        assert neighbour.samples.max() <= world.dataset.x_train.max() + 1e-12
    assert len({neighbour.samples.tobytes() for neighbour in found}) == 14


def test_a_label_changes_only_where_that_is_declared(tmp_path):
    plain = small_world(tmp_path, rounds=1)
    assert all((neighbour.labels == plain.own_labels).all() for neighbour in neighbours_of(plain, 8, 0))
    world = small_world(tmp_path, "ota_fd", "privacy.relabel=true", "data.partition=shards",
                        "data.classes_per_device=2", rounds=1)  # fmt: skip
    found = neighbours_of(world, 8, 0)
    moved = [int((neighbour.labels != world.own_labels).sum()) for neighbour in found]
    assert moved == [0, 1] * 4 + [0, 0]
    assert all(set(neighbour.labels) == set(world.own_labels) for neighbour in found)
    assert "under label" in found[1].description
    lonely = small_world(tmp_path, "ota_fd", "privacy.relabel=true", "data.samples_per_device=3",
                         "data.partition=shards", "data.classes_per_device=3", rounds=1)  # fmt: skip
    assert all((neighbour.labels == lonely.own_labels).all() for neighbour in neighbours_of(lonely, 8, 0))


def test_replacements_are_what_they_are_called(tmp_path):
    world = small_world(tmp_path, rounds=1)
    x_train, y_train = world.dataset.x_train, world.dataset.y_train
    other, outlier, inverse = neighbours_of(world, 3, seed=5)[:3]
    (record,) = np.flatnonzero((other.samples != world.own_samples).any(axis=1))
    label = world.own_labels[record]
    assert label == np.argmin(np.bincount(world.own_labels))  # the rarest class first
    assert y_train[(x_train == other.samples[record]).all(axis=1)] != label
    members = x_train[y_train == label]
    distances = np.linalg.norm(members - members.mean(axis=0), axis=1)
    assert (outlier.samples[record] == members[distances.argmax()]).all()
    flipped = x_train.min() + x_train.max() - world.own_samples[record]
    assert inverse.samples[record] == pytest.approx(flipped)


def test_a_permuted_device_holds_the_next_class_under_every_label(tmp_path):
    world = small_world(tmp_path, rounds=1)
    permuted = neighbours_of(world, 1, seed=0)[1]
    for sample, label in zip(permuted.samples, world.own_labels, strict=True):
        (place,) = np.flatnonzero((world.dataset.x_train == sample).all(axis=1))
        assert world.dataset.y_train[place] == (label + 1) % 3
