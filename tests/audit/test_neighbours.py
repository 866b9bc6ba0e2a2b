import numpy as np
import pytest
from audit_contexts import small_context

from airdistill.audit.neighbours import neighbours_of


def test_a_neighbour_differs_in_one_record_or_in_all(tmp_path):
    context = small_context(tmp_path, rounds=1, device=1)
    found = neighbours_of(context, 12, seed=0)
    assert [neighbour.relation for neighbour in found] == ["record"] * 12 + ["device"] * 2
    own = context.own_samples
    for neighbour in found:
        changed = (neighbour.samples != own).any(axis=1)
        assert changed.sum() == (1 if neighbour.relation == "record" else len(own))
        assert neighbour.samples.dtype == own.dtype
        assert neighbour.samples.min() >= context.dataset.x_train.min() - 1e-12
        assert neighbour.samples.max() <= context.dataset.x_train.max() + 1e-12
    assert len({neighbour.samples.tobytes() for neighbour in found}) == 14


def test_labels_change_only_if_relabel_is_declared(tmp_path):
    plain = small_context(tmp_path, rounds=1)
    assert all((neighbour.labels == plain.own_labels).all() for neighbour in neighbours_of(plain, 8, 0))
    context = small_context(tmp_path, "ota_fd", "privacy.relabel=true", "data.partition=shards",
                        "data.classes_per_device=2", rounds=1)  # fmt: skip
    found = neighbours_of(context, 8, 0)
    moved = [int((neighbour.labels != context.own_labels).sum()) for neighbour in found]
    assert moved == [0, 1] * 4 + [0, 0]
    assert all(set(neighbour.labels) == set(context.own_labels) for neighbour in found)
    assert "under label" in found[1].description
    single = small_context(tmp_path, "ota_fd", "privacy.relabel=true", "data.samples_per_device=3",
                         "data.partition=shards", "data.classes_per_device=3", rounds=1)  # fmt: skip
    assert all((neighbour.labels == single.own_labels).all() for neighbour in neighbours_of(single, 8, 0))


def test_replacements_match_their_names(tmp_path):
    context = small_context(tmp_path, rounds=1)
    x_train, y_train = context.dataset.x_train, context.dataset.y_train
    other, outlier, inverse = neighbours_of(context, 3, seed=5)[:3]
    (record,) = np.flatnonzero((other.samples != context.own_samples).any(axis=1))
    label = context.own_labels[record]
    assert label == np.argmin(np.bincount(context.own_labels))  # the rarest class first
    assert y_train[(x_train == other.samples[record]).all(axis=1)] != label
    members = x_train[y_train == label]
    distances = np.linalg.norm(members - members.mean(axis=0), axis=1)
    assert (outlier.samples[record] == members[distances.argmax()]).all()
    flipped = x_train.min() + x_train.max() - context.own_samples[record]
    assert inverse.samples[record] == pytest.approx(flipped)


def test_a_permuted_device_holds_the_next_class_under_every_label(tmp_path):
    context = small_context(tmp_path, rounds=1)
    permuted = neighbours_of(context, 1, seed=0)[1]
    for sample, label in zip(permuted.samples, context.own_labels, strict=True):
        (place,) = np.flatnonzero((context.dataset.x_train == sample).all(axis=1))
        assert context.dataset.y_train[place] == (label + 1) % 3
