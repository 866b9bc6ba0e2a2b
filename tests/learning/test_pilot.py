import itertools

import numpy as np
import pytest
import torch
from torch import nn

from airdistill.data.datasets import Dataset
from airdistill.errors import AirDistillError
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.learning.gradients import Target
from airdistill.learning.learner import Learner
from airdistill.learning.pilot import ConstantEstimator, MeasuredConstants, jacobian_norms, measured_round

DOUBLE = torch.float64
CPU = torch.device("cpu")


def softmax(logits):
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


class Regression:
    """Softmax regression with eq. (1) written out in NumPy; weights are one vector, as a model's parameters."""

    def __init__(self, num_samples=40, num_features=3, num_classes=4, gamma=2.0, seed=0):
        rng = np.random.default_rng(seed)
        self.x = rng.standard_normal((num_samples, num_features)) * [3.0, 1.0, 0.3]
        self.y = rng.integers(num_classes, size=num_samples)
        self.rows = rng.dirichlet(np.ones(num_classes), num_classes)
        self.known = np.arange(num_classes) != 1  # the row of one class was not received
        self.gamma, self.num_classes = gamma, num_classes
        self.weights = rng.standard_normal(num_classes * (num_features + 1))

    def predictions(self, weights):
        matrix, bias = np.split(weights, [self.num_classes * self.x.shape[1]])
        return softmax(self.x @ matrix.reshape(self.num_classes, -1).T + bias)

    def losses(self, weights):
        p = self.predictions(weights)
        training = -np.log(p[np.arange(len(self.y)), self.y])
        return training + self.gamma * self.known[self.y] * ((p - self.rows[self.y]) ** 2).sum(axis=1)

    def gradients(self, weights):
        """Per-sample gradients `[sample, parameter]`, by the Jacobian diag(p) − ppᵀ of the softmax."""
        p = self.predictions(weights)
        outer = (self.gamma * self.known[self.y])[:, None] * 2 * (p - self.rows[self.y])
        of_logits = p - np.eye(self.num_classes)[self.y] + p * (outer - (p * outer).sum(axis=1, keepdims=True))
        return np.concatenate([(of_logits[:, :, None] * self.x[:, None]).reshape(len(self.y), -1), of_logits], axis=1)

    def hessian(self, weights, step=1e-5):
        """Central differences of the mean gradient, `[parameter, parameter]`."""
        shifts = step * np.eye(len(weights))
        ends = [[self.gradients(weights + sign * shift).mean(axis=0) for shift in shifts] for sign in (1, -1)]
        return (np.array(ends[0]) - np.array(ends[1])) / (2 * step)

    def model(self):
        model = nn.Sequential(nn.Flatten(), nn.Linear(self.x.shape[1], self.num_classes)).to(DOUBLE)
        nn.utils.vector_to_parameters(torch.from_numpy(self.weights.copy()), model.parameters())
        return model

    def learner(self, model=None):
        return Learner(model or self.model(), torch.from_numpy(self.x), self.y, self.num_classes, chunk=17)

    def target(self):
        return Target.of(np.where(self.known[:, None], self.rows, np.nan), DOUBLE, CPU)

    def estimator(self, learner=None, gamma=None):
        return ConstantEstimator(
            learner or self.learner(), self.gamma if gamma is None else gamma, np.random.default_rng(0)
        )


class Scaled(nn.Module):
    """The same regression by a layer without a rule for per-sample gradients."""

    def __init__(self, weights, num_classes, num_features):
        super().__init__()
        matrix, bias = torch.from_numpy(weights.copy()).split([num_classes * num_features, num_classes])
        self.matrix, self.bias = nn.Parameter(matrix.reshape(num_classes, -1)), nn.Parameter(bias)

    def forward(self, samples):
        return samples @ self.matrix.T + self.bias


def vector(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()


def learn(learner, target, gamma, lr, estimator=None, rounds=1):
    """Make full-batch steps; return the weights before each and after the last."""
    visited = [vector(learner.model)]
    for _ in range(rounds):
        if estimator is not None:
            estimator.before_update(target)
        learner.full_batch_step(target, lr, gamma)
        if estimator is not None:
            estimator.after_update()
        visited.append(vector(learner.model))
    return visited


def test_the_reference_gradient_equals_differences_of_the_reference_loss():
    regression = Regression()
    shifts = 1e-6 * np.eye(len(regression.weights))
    differences = [
        (regression.losses(regression.weights + s) - regression.losses(regression.weights - s)) / 2e-6 for s in shifts
    ]
    np.testing.assert_allclose(np.array(differences).T, regression.gradients(regression.weights), atol=1e-7)


@pytest.mark.parametrize("own_layer", [False, True])
@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_s_is_the_largest_gradient_of_a_single_sample(gamma, own_layer):
    regression = Regression(gamma=gamma)
    model = Scaled(regression.weights, 4, 3) if own_layer else None
    estimator = regression.estimator(regression.learner(model))
    estimator.before_update(regression.target())
    expected = np.linalg.norm(regression.gradients(regression.weights), axis=1).max()
    assert estimator.largest.grad_norm_bound == pytest.approx(expected, rel=1e-9)
    # The mean gradient has a smaller norm: S bounds the gradient of every sample.
    assert expected > 1.2 * np.linalg.norm(regression.gradients(regression.weights).mean(axis=0))


def test_the_distillation_term_contributes_to_all_constants_but_l2():
    """Without γ these would be equal."""
    regression = Regression(gamma=2.0)
    seen = {}
    for gamma in (0.0, 2.0):
        learner = regression.learner()
        estimator = regression.estimator(learner, gamma)
        learn(learner, regression.target(), gamma, 1e-3, estimator, rounds=2)
        seen[gamma] = estimator.largest
    for name in ("grad_lipschitz", "grad_norm_bound", "loss_bound"):
        assert getattr(seen[2.0], name) > 1.05 * getattr(seen[0.0], name), name


def test_f_max_is_the_largest_local_loss_along_the_run():
    regression = Regression()
    for lr in (0.05, 2.0):  # the second one increases the loss
        learner = regression.learner()
        estimator = regression.estimator(learner)
        visited = learn(learner, regression.target(), regression.gamma, lr, estimator, rounds=4)
        expected = [regression.losses(weights).mean() for weights in visited]
        assert estimator.largest.loss_bound == pytest.approx(max(expected), rel=1e-9)


def test_l1_reaches_the_largest_curvature_and_never_exceeds_it():
    regression = Regression()
    learner = regression.learner()
    estimator = regression.estimator(learner)
    visited = learn(learner, regression.target(), regression.gamma, 2e-3, estimator, rounds=8)
    curvatures = [np.abs(np.linalg.eigvalsh(regression.hessian(weights))).max() for weights in visited]
    assert 0.99 * min(curvatures) <= estimator.largest.grad_lipschitz <= 1.01 * max(curvatures)
    steps = list(itertools.pairwise(visited))
    gradients = [[regression.gradients(weights).mean(axis=0) for weights in step] for step in steps]
    secants = [
        np.linalg.norm(there - here) / np.linalg.norm(end - start)
        for (here, there), (start, end) in zip(gradients, steps, strict=True)
    ]
    assert estimator.largest.path_lipschitz == pytest.approx(max(secants), rel=1e-6)
    assert estimator.largest.path_lipschitz <= estimator.largest.grad_lipschitz


@pytest.mark.parametrize("lr", [0.1, 3.0])
def test_l1_is_below_the_analytic_bound_of_softmax_regression(lr):
    """For the cross-entropy: ‖∇²F‖ ≤ ½ λ_max(XᵀX/B), with a column of ones for the bias, at any weights."""
    regression = Regression(gamma=0.0)
    learner = regression.learner()
    estimator = regression.estimator(learner)
    learn(learner, None, 0.0, lr, estimator, rounds=5)
    design = np.concatenate([regression.x, np.ones((len(regression.x), 1))], axis=1)
    bound = 0.5 * np.linalg.eigvalsh(design.T @ design / len(design)).max()
    assert 0.02 * bound < estimator.largest.grad_lipschitz <= bound


def test_a_step_dominated_by_rounding_is_not_used_as_a_secant():
    regression = Regression()
    learner = regression.learner()
    estimator = regression.estimator(learner)
    learn(learner, regression.target(), regression.gamma, 1e-12, estimator, rounds=8)
    assert estimator.largest.path_lipschitz == 0
    curvature = np.abs(np.linalg.eigvalsh(regression.hessian(regression.weights))).max()
    assert estimator.largest.grad_lipschitz == pytest.approx(curvature, rel=0.01)


def test_l2_is_the_spectral_norm_of_a_regressions_jacobian():
    """J = (diag(p) − ppᵀ) ⊗ (x, 1), and so its norm is the product of two norms."""
    regression = Regression()
    start = torch.from_numpy(np.random.default_rng(1).standard_normal((len(regression.x), 4)))
    found = jacobian_norms(regression.model(), torch.from_numpy(regression.x), start).numpy()
    p = regression.predictions(regression.weights)
    norms = [np.linalg.norm(np.diag(each) - np.outer(each, each), 2) for each in p]
    expected = np.array(norms) * np.sqrt((regression.x**2).sum(axis=1) + 1)
    assert (found <= expected * (1 + 1e-9)).all()
    np.testing.assert_allclose(found, expected, rtol=1e-2)
    assert found.max() == pytest.approx(expected.max(), rel=1e-4)


def test_l2_equals_the_norm_of_a_jacobian_by_finite_differences():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)).to(DOUBLE)
    samples = 2 * torch.randn(5, 1, 4, 4, dtype=DOUBLE)
    weights, step = vector(model), 1e-6

    def predict(at):
        nn.utils.vector_to_parameters(torch.from_numpy(at), model.parameters())
        with torch.no_grad():
            return softmax(model(samples).numpy())

    shifts = step * np.eye(len(weights))
    columns = [(predict(weights + shift) - predict(weights - shift)) / (2 * step) for shift in shifts]
    nn.utils.vector_to_parameters(torch.from_numpy(weights), model.parameters())
    jacobians = np.stack(columns, axis=2)  # [sample, class, parameter]
    expected = [np.linalg.svd(jacobian, compute_uv=False)[0] for jacobian in jacobians]
    found = jacobian_norms(model, samples, torch.randn(5, 3, dtype=DOUBLE)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-2)


def test_measuring_does_not_change_training():
    regression = Regression()
    measured, alone = regression.learner(), regression.learner()
    estimator = regression.estimator(measured)
    paths = [
        learn(learner, regression.target(), regression.gamma, 0.1, e, rounds=3)
        for learner, e in [(measured, estimator), (alone, None)]
    ]
    np.testing.assert_array_equal(paths[0], paths[1])
    assert measured.model.training


def test_random_layers_are_measured_in_evaluation_mode():
    """With dropout, gradients would differ even at equal weights, and short secants would be huge."""
    regression = Regression()
    model = nn.Sequential(regression.model(), nn.Dropout(0.9))
    learner = regression.learner(model)
    estimator = regression.estimator(learner)
    learn(learner, regression.target(), regression.gamma, 1e-3, estimator, rounds=2)
    assert (
        estimator.largest.grad_lipschitz
        <= 1.5 * np.abs(np.linalg.eigvalsh(regression.hessian(regression.weights))).max()
    )


def test_batch_normalisation_is_rejected():
    regression = Regression()
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4)).to(DOUBLE)
    with pytest.raises(AirDistillError, match="batch normalisation"):
        regression.estimator(regression.learner(model))


def test_measurements_do_not_depend_on_the_number_of_workers():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 5)).astype(np.float32), np.arange(60) % 3
    seen = []
    for workers in (1, 3):
        engine = Engine(workers=workers)
        indices = np.split(np.arange(60), 3)
        fleet = LearningFleet.of(Dataset("", x, y, x, y), indices, ["mlp"] * 3, 1, engine)
        estimators = [
            ConstantEstimator(one, 1.0, np.random.default_rng(device)) for device, one in enumerate(fleet.learners)
        ]
        target = Target.of(np.eye(3), engine.dtype, CPU)
        measured_round(
            fleet, estimators, target, lambda fleet=fleet, target=target: fleet.full_batch_step(target, 0.1, 1.0)
        )
        seen.append(MeasuredConstants.of(estimator.largest for estimator in estimators))
        assert seen[-1] == MeasuredConstants(
            *(max(v) for v in zip(*(vars(e.largest).values() for e in estimators), strict=True))
        )
    assert seen[0] == seen[1]
