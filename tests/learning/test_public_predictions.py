"""Predictions on public samples, and the bound of their sensitivity, against brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airdistill.learning.public_predictions import check_answers, sharpened, surest_answers, votes
from airdistill.privacy.sensitivity import public_rows_sensitivity


def random_rows(rng, num_devices, num_samples, num_classes, most):
    """Predictions, votes or zeros; at most `most` of them are nonzero."""
    soft = rng.dirichlet(np.full(num_classes, rng.choice([0.05, 1.0])), (num_devices, num_samples))
    rows = votes(soft, rng.uniform(0, 1)) if rng.random() < 0.5 else soft
    return surest_answers(rows, soft.max(axis=-1), most)


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(2, 5), st.data())
def test_the_distance_of_two_devices_predictions_does_not_exceed_the_sensitivity(seed, num_samples, num_classes, data):
    most = data.draw(st.integers(1, num_samples))
    rows = random_rows(np.random.default_rng(seed), 8, num_samples, num_classes, most)
    check_answers(rows, most)
    distances = np.linalg.norm((rows[:, None] - rows[None]).reshape(8, 8, -1), axis=-1)
    assert distances.max() <= public_rows_sensitivity(most) * (1 + 1e-12)


@pytest.mark.parametrize("same_samples", [True, False])
def test_the_sensitivity_is_reached(same_samples):
    """The bound is tight: for different votes on the same samples, and for votes on different samples."""
    one, other = np.zeros((6, 3)), np.zeros((6, 3))
    one[:3, 0] = 1
    other[(slice(0, 3) if same_samples else slice(3, 6)), 1] = 1
    assert np.linalg.norm(one - other) == pytest.approx(public_rows_sensitivity(3))


def test_a_device_votes_if_its_confidence_reaches_the_threshold():
    predictions = np.array([[[0.6, 0.4, 0.0], [0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]])
    assert votes(predictions, 0.6).tolist() == [[[1, 0, 0], [0, 0, 0], [0, 0, 1]]]


def test_the_most_confident_votes_are_kept_and_abstentions_never_replace_them():
    predictions = np.array([[[0.9, 0.1], [0.45, 0.55], [0.2, 0.8], [0.7, 0.3]]])
    cast = votes(predictions, 0.6)
    kept = surest_answers(cast, predictions.max(axis=-1), 2)
    assert kept.any(axis=-1).tolist() == [[True, False, True, False]]
    # A device's only vote is kept, even if it is more confident of samples on which it abstains.
    only = np.zeros((1, 4, 2))
    only[0, 3, 0] = 1
    assert np.array_equal(surest_answers(only, np.array([[0.9, 0.8, 0.7, 0.1]]), 1), only)


def test_predictions_that_violate_the_bound_are_rejected():
    rows = np.zeros((2, 4, 3))
    rows[1, :3, 0] = 1
    check_answers(rows, 3)
    with pytest.raises(ValueError, match="device 1 answers 3 samples, where 2 were agreed"):
        check_answers(rows, 2)
    rows[0, 0] = [0.9, 0.9, 0]
    with pytest.raises(ValueError, match=r"device 0 has a prediction of norm 1\.27"):
        check_answers(rows, 3)
    rows[0, 0] = [-0.5, 0, 0]
    with pytest.raises(ValueError, match=r"device 0 has a prediction with an entry of -0\.5: must be 0 or more"):
        check_answers(rows, 4)
    rows[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="norm nan"):
        check_answers(rows, 4)


def test_sharpening_is_a_softmax_with_temperature():
    rows = np.array([[0.3, 0.5, 0.2], [-4.0, 400.0, 3.0]])
    found = sharpened(rows, 0.1)
    assert found[0] == pytest.approx(np.exp(rows[0] / 0.1) / np.exp(rows[0] / 0.1).sum())
    assert found.sum(axis=1) == pytest.approx([1, 1])
    assert found[1, 1] == 1.0
