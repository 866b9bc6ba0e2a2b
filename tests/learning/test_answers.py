"""A model taught by a few answers and many unanswered samples."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from airdistill.learning.answers import AnsweredStudent, spread
from airdistill.learning.patches import neighbour_graph
from airdistill.learning.student import Student
from airdistill.runs.options import RunOptions


def two_moons(count, seed=0):
    rng = np.random.default_rng(seed)
    angle, side = rng.uniform(0, np.pi, count), np.arange(count) % 2
    x = np.where(side == 0, np.cos(angle), 1 - np.cos(angle))
    y = np.where(side == 0, np.sin(angle), 0.5 - np.sin(angle))
    return np.stack([x, y], axis=1) + 0.05 * rng.standard_normal((count, 2)) + [3.0, 3.0], side


def test_answers_spread_as_the_dense_solution():
    samples, _ = two_moons(40)
    graph, answers = neighbour_graph(samples, 5), np.zeros((40, 3))
    answers[[0, 1, 2, 7], [0, 1, 0, 2]] = 1
    dense = np.linalg.solve(np.eye(40) - 0.99 * graph.toarray(), answers)
    shares = dense / dense.sum(axis=0)
    expected = shares / shares.sum(axis=1, keepdims=True)
    assert spread(answers, graph) == pytest.approx(expected, abs=1e-3)


def test_a_class_without_answers_gets_nothing_and_an_unreached_sample_is_uniform():
    graph = csr_array(np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], dtype=float))
    one = spread(np.array([[1.0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]), graph)
    assert one[:, 0] == pytest.approx(np.ones(4))
    both = spread(np.array([[1.0, 0, 0], [0, 0, 0], [0, 1.0, 0], [0, 0, 0]]), graph)
    assert both[:, :2].argmax(axis=1).tolist() == [0, 0, 1, 1]
    assert not both[:, 2].any()


def test_a_few_answers_and_all_samples_teach_more_than_the_answers_alone():
    draws, labels = np.random.default_rng(1), np.arange(400) % 2
    centres = 2.5 * draws.standard_normal((2, 20))
    samples = centres[labels] + 1.5 * draws.standard_normal((400, 20))
    engine = RunOptions(threads=1).resolved().learning_engine()
    student = Student("mlp-32", samples.astype(np.float32), 2, engine, seed=0)
    answered = np.full(400, -1)
    answered[:10] = labels[:10]
    model, probabilities = AnsweredStudent(student).taught(answered)
    assert (probabilities.argmax(axis=1) == labels).mean() > 0.9
    assert (student.predictions(model).argmax(axis=1) == labels).mean() > 0.85
