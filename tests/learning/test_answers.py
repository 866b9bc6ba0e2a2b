"""What devices say of public samples, and the bound that their privacy rests on, against brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airdistill.learning.public_predictions import check_answers, sharpened, surest_answers, votes
from airdistill.privacy.sensitivity import public_rows_sensitivity


def random_answers(rng, num_devices, num_samples, num_classes, most):
    """Predictions, votes or zeros; at most `most` of them."""
    soft = rng.dirichlet(np.full(num_classes, rng.choice([0.05, 1.0])), (num_devices, num_samples))
    said = votes(soft, rng.uniform(0, 1)) if rng.random() < 0.5 else soft
    return surest_answers(said, soft.max(axis=-1), most)


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(2, 5), st.data())
def test_no_two_devices_answers_are_farther_apart_than_the_sensitivity(seed, num_samples, num_classes, data):
    most = data.draw(st.integers(1, num_samples))
    answers = random_answers(np.random.default_rng(seed), 8, num_samples, num_classes, most)
    check_answers(answers, most)
    apart = np.linalg.norm((answers[:, None] - answers[None]).reshape(8, 8, -1), axis=-1)
    assert apart.max() <= public_rows_sensitivity(most) * (1 + 1e-12)


@pytest.mark.parametrize("same_samples", [True, False])
def test_the_sensitivity_is_reached(same_samples):
    """By other votes on the same samples, and by votes on other samples: the bound can be no smaller."""
    one, other = np.zeros((6, 3)), np.zeros((6, 3))
    one[:3, 0] = 1
    other[(slice(0, 3) if same_samples else slice(3, 6)), 1] = 1
    assert np.linalg.norm(one - other) == pytest.approx(public_rows_sensitivity(3))


def test_a_vote_is_cast_from_the_confidence_on():
    predictions = np.array([[[0.6, 0.4, 0.0], [0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]])
    assert votes(predictions, 0.6).tolist() == [[[1, 0, 0], [0, 0, 0], [0, 0, 1]]]


def test_the_surest_answers_stay_and_silence_never_takes_their_place():
    predictions = np.array([[[0.9, 0.1], [0.45, 0.55], [0.2, 0.8], [0.7, 0.3]]])
    said = votes(predictions, 0.6)
    kept = surest_answers(said, predictions.max(axis=-1), 2)
    assert kept.any(axis=-1).tolist() == [[True, False, True, False]]
    # Someone who has only one vote casts it, even if it is surer of what it abstains from.
    only = np.zeros((1, 4, 2))
    only[0, 3, 0] = 1
    assert np.array_equal(surest_answers(only, np.array([[0.9, 0.8, 0.7, 0.1]]), 1), only)


def test_answers_beyond_the_bound_are_refused():
    answers = np.zeros((2, 4, 3))
    answers[1, :3, 0] = 1
    check_answers(answers, 3)
    with pytest.raises(ValueError, match="device 1 answers 3 samples, where 2 were agreed"):
        check_answers(answers, 2)
    answers[0, 0] = [0.9, 0.9, 0]
    with pytest.raises(ValueError, match=r"device 0 has an answer of norm 1\.27"):
        check_answers(answers, 3)
    answers[0, 0] = [-0.5, 0, 0]
    with pytest.raises(ValueError, match=r"device 0 has an answer with an entry of -0\.5: must be 0 or more"):
        check_answers(answers, 4)
    answers[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="norm nan"):
        check_answers(answers, 4)


def test_sharpening_is_a_softmax_and_keeps_the_order():
    rows = np.array([[0.3, 0.5, 0.2], [-4.0, 400.0, 3.0]])
    found = sharpened(rows, 0.1)
    assert found[0] == pytest.approx(np.exp(rows[0] / 0.1) / np.exp(rows[0] / 0.1).sum())
    assert found.sum(axis=1) == pytest.approx([1, 1])
    assert found[1, 1] == 1.0
