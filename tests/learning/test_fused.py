"""The fused kernels against PyTorch in float64, for all sizes of partial tiles, groups and vectors."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from block_networks import CLASSES, network
from torch import nn

from airdistill.data.datasets import Dataset
from airdistill.errors import InputError
from airdistill.learning.evaluation import TestSet as EvaluationSet
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.learning.fused.form import form_of, logits_by_form
from airdistill.learning.fused.learner import FusedLearner
from airdistill.learning.gradients import Target
from airdistill.learning.learner import Learner, predictions_of
from airdistill.learning.learner_maker import LearnerMaker
from airdistill.learning.mixed import MixedSteps, passes_in_batches
from airdistill.learning.models import build_model

CPU, F32, F64 = torch.device("cpu"), torch.float32, torch.float64

FORMS = {
    "the paper's kind": ((1, 16, 16), {"blocks": [(10, 3, 3), (20, 5, 5)], "dense": [50]}),
    "one block": ((1, 9, 9), {"blocks": [(7, 4, 4)], "dense": [5]}),
    "three blocks, three channels in": ((3, 22, 24), {"blocks": [(6, 3, 3), (9, 3, 2), (11, 2, 3)], "dense": []}),
    "wide, uneven, ReLU first": (
        (2, 15, 11),
        {"blocks": [(16, 1, 6), (33, 5, 1)], "dense": [17, 3], "pool_first": False},
    ),
    "no bias": ((1, 12, 12), {"blocks": [(4, 3, 3), (5, 3, 3)], "dense": [6], "bias": False}),
    "tiny inputs": ((1, 6, 6), {"blocks": [(2, 3, 3), (3, 1, 1)], "dense": []}),
    "long kernels": ((1, 24, 24), {"blocks": [(3, 7, 9), (2, 7, 7)], "dense": [2]}),
    "no blocks": ((1, 5, 7), {"blocks": [], "dense": [40, 21]}),
}
NUM_SAMPLES = (1, 16, 37)


def device_data(name, num_samples, seed=0):
    shape, sizes = FORMS[name]
    torch.manual_seed(seed)
    model = network(*shape, **sizes)
    rng = np.random.default_rng(seed)
    samples = torch.from_numpy(rng.standard_normal((num_samples, *shape)).astype(np.float32))
    return model, samples, rng.integers(0, CLASSES, num_samples)


def three_learners(name, num_samples, chunk=32):
    """The same device with fused kernels, with PyTorch in float32, and with PyTorch in float64."""
    made = []
    for dtype, kernels in ((F32, "fused"), (F32, "torch"), (F64, "torch")):
        model, samples, labels = device_data(name, num_samples)
        engine = Engine(dtype=dtype, kernels=kernels, chunk_samples=chunk)
        made.append(LearnerMaker(engine).learner(model.to(dtype), samples.to(dtype), labels, CLASSES))
    assert [type(learner) for learner in made] == [FusedLearner, Learner, Learner]
    return made


def goal(dtype, rows=CLASSES):
    received = np.random.default_rng(3).dirichlet(np.ones(CLASSES), rows)
    received[1] = np.nan  # this row was not received
    return Target.of(received, dtype, CPU)


def weights_of(learner):
    return torch.cat([parameter.detach().flatten().to(F64) for parameter in learner.model.parameters()])


def assert_as_close_as_torch(fused, single, double, floor=1e-6):
    """The error relative to float64 is at most twice that of PyTorch's float32, plus a few rounding errors."""
    size = float(torch.as_tensor(double).norm())
    error, theirs = (float((torch.as_tensor(x).to(F64) - double).norm()) for x in (fused, single))
    assert error <= 2 * theirs + floor * size, (error / size, theirs / size)


@pytest.mark.parametrize("num_samples", NUM_SAMPLES)
@pytest.mark.parametrize("name", FORMS)
def test_logits_and_knowledge(name, num_samples):
    fused, single, double = three_learners(name, num_samples)
    samples = double.samples_and_labels()[0]
    logits = [
        learner.logits(torch.split(samples.to(dtype), 20))
        for learner, dtype in zip((fused, single, double), (F32, F32, F64), strict=True)
    ]
    assert_as_close_as_torch(*logits)
    assert fused.knowledge() == pytest.approx(double.knowledge(), abs=1e-6, nan_ok=True)
    assert fused.knowledge(keep=True) == pytest.approx(fused.knowledge(), abs=0, nan_ok=True)


@pytest.mark.parametrize("with_target", [True, False])
@pytest.mark.parametrize("num_samples", NUM_SAMPLES)
@pytest.mark.parametrize("name", FORMS)
def test_gradient_and_losses(name, num_samples, with_target):
    learners = three_learners(name, num_samples)
    found = [
        learner.gradient(goal(dtype) if with_target else None, 0.7 if with_target else 0.0)
        for learner, dtype in zip(learners, (F32, F32, F64), strict=True)
    ]
    gradients, losses = zip(*found, strict=True)
    assert_as_close_as_torch(*gradients)
    assert losses[0].training == pytest.approx(losses[2].training, rel=1e-5)
    assert losses[0].distillation == pytest.approx(losses[2].distillation, rel=1e-5)
    assert (losses[0].distillation > 0) == with_target or num_samples == 1


@pytest.mark.parametrize("name", FORMS)
def test_a_kept_pass_gives_identical_results_and_is_used_once(name):
    (kept, *_), (again, *_) = three_learners(name, 37), three_learners(name, 37)
    for _ in range(2):
        knowledge = [kept.knowledge(keep=True), again.knowledge()]
        assert np.array_equal(*knowledge, equal_nan=True)
        assert kept.full_batch_step(goal(F32), 0.3, 0.5) == again.full_batch_step(goal(F32), 0.3, 0.5)
        assert torch.equal(weights_of(kept), weights_of(again))
    # A gradient is always at the current weights, even if a pass was kept before they changed.
    kept.knowledge(keep=True)
    for learner in (kept, again):
        learner.descend(torch.full_like(weights_of(learner), 0.01, dtype=F32), 1.0)
    assert torch.equal(kept.gradient(None, 0.0)[0], again.gradient(None, 0.0)[0])


@pytest.mark.parametrize("name", FORMS)
def test_minibatch_steps(name):
    learners = three_learners(name, 37)
    orders = [np.random.default_rng(n).permutation(37) for n in range(2)]
    losses = [
        learner.local_epochs(goal(dtype), 0.05, 0.5, orders, 10)
        for learner, dtype in zip(learners, (F32, F32, F64), strict=True)
    ]
    assert_as_close_as_torch(*(weights_of(learner) for learner in learners))
    assert losses[0].training == pytest.approx(losses[2].training, rel=1e-4)
    assert losses[0].distillation == pytest.approx(losses[2].distillation, rel=1e-4)


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("most_moved", [0, 2])
@pytest.mark.parametrize("name", ["the paper's kind", "three blocks, three channels in", "no blocks"])
def test_mixed_steps(name, most_moved, clip_norm):
    learners, public = three_learners(name, 37), device_data(name, 30, seed=5)[1]
    rng = np.random.default_rng(1)
    steps = MixedSteps(
        passes_in_batches(37, 6, 11, rng),
        passes_in_batches(30, 6, 9, rng),
        0.7,
        1.3,
        np.linspace(0.05, 0.01, 6),
        momentum=0.9,
        offsets=rng.integers(0, 2 * most_moved + 1, (6, 20, 2)) if most_moved else None,
        most_moved=most_moved,
        clip_norm=clip_norm,
    )
    losses = [
        learner.mixed_steps(steps, public.to(dtype), goal(dtype, rows=30))
        for learner, dtype in zip(learners, (F32, F32, F64), strict=True)
    ]
    assert_as_close_as_torch(*(weights_of(learner) for learner in learners))
    assert losses[0].training == pytest.approx(losses[2].training, rel=1e-4)
    assert losses[0].distillation == pytest.approx(losses[2].distillation, rel=1e-4)


@pytest.mark.parametrize("clip_norm", [0.05, 0.8, 1e6])
@pytest.mark.parametrize("name", FORMS)
def test_per_sample_clipping(name, clip_norm):
    learners = three_learners(name, 37)
    (fused, loss), (single, _), (double, expected) = (learner.clipped_gradient(clip_norm) for learner in learners)
    assert_as_close_as_torch(fused, single, double)
    assert loss.training == pytest.approx(expected.training, rel=1e-5)


def test_each_samples_gradient_is_clipped_and_not_their_mean():
    """Every sample alone is clipped, and the mean of these is the gradient of all."""
    model, samples, labels = device_data("the paper's kind", 20)
    form = form_of(model, tuple(samples.shape[1:]))
    together = FusedLearner(model, form, samples, labels, CLASSES, 32).clipped_gradient(0.3)[0]
    alone = []
    for number in range(20):
        copy = device_data("the paper's kind", 20)[0]
        one = FusedLearner(copy, form, samples[number : number + 1], labels[number : number + 1], CLASSES, 32)
        gradient, limit = one.gradient(None, 0.0)[0], one.clipped_gradient(0.3)[0]
        assert float(limit.norm()) == pytest.approx(min(0.3, float(gradient.norm())), rel=1e-5)
        alone.append(limit)
    assert torch.allclose(together, torch.stack(alone).mean(dim=0), atol=1e-6)


def test_ties_in_pooling_are_resolved_as_in_pytorch():
    """Constant images: all four values of every pooling window are equal, in both blocks."""
    labels = device_data("the paper's kind", 5)[2]
    shape = FORMS["the paper's kind"][0]
    samples = torch.ones(5, *shape) * torch.linspace(-1, 1, 5)[:, None, None, None]
    found = []
    for dtype, kernels in ((F32, "fused"), (F64, "torch")):
        copy = device_data("the paper's kind", 5)[0].to(dtype)
        learner = LearnerMaker(Engine(dtype=dtype, kernels=kernels)).learner(copy, samples.to(dtype), labels, CLASSES)
        found.append(learner.gradient(None, 0.0)[0].to(F64))
    assert torch.allclose(*found, atol=1e-6)


def test_nan_is_propagated():
    model, samples, labels = device_data("the paper's kind", 20)
    samples[3] = float("nan")
    learner = LearnerMaker(Engine()).learner(model, samples, labels, CLASSES)
    assert np.isnan(learner.knowledge()[labels[3]]).all()
    assert np.isnan(learner.full_batch_step(None, 0.1, 0.0).training)
    fleet = LearningFleet([learner], Engine())
    assert fleet.finite_weights() == [False]


def test_invalid_indices_are_rejected():
    learner = three_learners("no blocks", 16)[0]
    with pytest.raises(IndexError, match="0 to 15"):
        learner.local_epochs(None, 0.1, 0.0, [np.array([16])], 5)
    model, samples, labels = device_data("no blocks", 16)
    with pytest.raises(IndexError, match="0 to 3"):
        LearnerMaker(Engine(kernels="fused")).learner(model, samples, labels + CLASSES, CLASSES)


def test_loaded_weights_are_used():
    first, second = (three_learners("the paper's kind", 16)[0] for _ in range(2))
    second.full_batch_step(None, 0.5, 0.0)
    before = first.knowledge()
    first.model.load_state_dict(second.model.state_dict())
    assert not np.array_equal(first.knowledge(), before)
    assert np.array_equal(first.knowledge(), second.knowledge())


def fleet_of(kernels, workers):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (200, 16, 16), dtype=np.uint8)
    dataset = Dataset("random", images[:160], rng.integers(0, CLASSES, 160), images[160:], rng.integers(0, CLASSES, 40))
    shares = np.split(rng.permutation(160), 4)
    return dataset, LearningFleet.of(dataset, shares, ["paper_cnn"] * 4, 0, Engine(kernels=kernels, workers=workers))


def test_a_fleet_learns_the_same_with_any_kernels_and_number_of_threads():
    states = []
    for kernels, workers in (("torch", 1), ("auto", 1), ("auto", 3)):
        dataset, fleet = fleet_of(kernels, workers)
        for _ in range(3):
            knowledge = fleet.knowledge(for_full_batch=True)
            fleet.full_batch_step(Target.of(knowledge.mean(axis=0), F32, CPU), 0.1, 0.5)
        tests = EvaluationSet.of(torch.from_numpy(dataset.x_test[:, None] / 255).to(F32), dataset.y_test, CLASSES, 7)
        states.append((fleet.parameters(), tests.evaluate(fleet, np.ones((4, CLASSES), np.int64))))
    assert states[0][0] == pytest.approx(states[1][0], abs=1e-5)
    assert np.array_equal(states[1][0], states[2][0])
    assert states[0][1] == states[1][1] == states[2][1]


@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_loading_weights_drops_a_kept_pass(kernels):
    steps = []
    for keeps in (True, False):
        fleet, other = (fleet_of(kernels, 1)[1] for _ in range(2))
        other.full_batch_step(None, 0.5, 0.0)
        fleet.knowledge(for_full_batch=keeps)
        fleet.load_state(other.state())
        fleet.full_batch_step(None, 0.5, 0.0)
        steps.append(fleet.parameters())
    assert np.array_equal(*steps)


def test_predictions_on_public_samples():
    fused, _, double = three_learners("the paper's kind", 16)
    samples = device_data("the paper's kind", 40, seed=9)[1]
    found = predictions_of(fused.logits(torch.split(samples, 12)))
    assert found == pytest.approx(predictions_of(double.logits([samples.to(F64)])), abs=1e-6)


def form_of_layers(*layers, shape=(1, 8, 8)):
    return form_of(nn.Sequential(*layers), shape)


def test_supported_models():
    for name in ("paper_cnn", "mlp", "softmax_regression"):
        model = build_model(name, (1, 28, 28), 10, np.random.default_rng(0), F32)
        form = form_of(model, (1, 28, 28))
        samples = torch.randn(3, 1, 28, 28)
        assert torch.allclose(logits_by_form(form, dict(model.named_parameters()), samples), model(samples), atol=1e-5)
    dense = nn.Linear(3 * 9, 2)
    assert form_of_layers(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d((2, 2), 2), nn.Identity(), nn.Flatten(), dense)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(1, 3, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)],
        [nn.Conv2d(1, 3, 3, stride=2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 2)],
        [nn.Conv2d(1, 3, 3), nn.MaxPool2d(3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)],
        [nn.Conv2d(1, 3, 3), nn.AvgPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2)],
        [nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2)],
        [nn.Conv2d(1, 3, 4), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2)],
        [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2)],
        [nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 2)],
        [nn.Flatten(), nn.Linear(64, 2), nn.ReLU()],
        [nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(64, 2))],
    ],
)
def test_unsupported_models(layers):
    assert form_of_layers(*layers) is None


def test_unsupported_forward_code_is_detected():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.out = nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.out(self.layer(self.layer(x).relu()).relu())

    class Scaled(Twice):
        def forward(self, x):
            return 2 * self.out(self.layer(x).relu())

    class InTraining(Twice):
        def forward(self, x):
            hidden = self.layer(x)
            return self.out(hidden.relu() if self.training else hidden)

    class Branching(Twice):
        def forward(self, x):
            return self.out(self.layer(x).relu()) if x.sum() > 0 else self.out(x)

    class Residual(Twice):
        def forward(self, x):
            return self.out(self.layer(x).relu() + x)

    class Frozen(Twice):
        def __init__(self):
            super().__init__()
            self.layer.requires_grad_(False)

        def forward(self, x):
            return self.out(self.layer(x).relu())

    for kind in (Twice, Scaled, InTraining, Branching, Residual, Frozen):
        assert form_of(kind(), (8,)) is None, kind


def test_the_requested_engine_is_used_or_rejected():
    model, samples, labels = device_data("no blocks", 8)
    other = nn.Sequential(nn.Flatten(), nn.Linear(35, CLASSES), nn.Sigmoid())
    assert type(LearnerMaker(Engine(kernels="torch")).learner(model, samples, labels, CLASSES)) is Learner
    assert type(LearnerMaker(Engine()).learner(other, samples, labels, CLASSES)) is Learner
    assert type(LearnerMaker(Engine()).learner(model, samples, labels, CLASSES)) is Learner  # without convolutions
    assert type(LearnerMaker(Engine(dtype=F64)).learner(model.to(F64), samples.to(F64), labels, CLASSES)) is Learner
    with pytest.raises(InputError, match="--engine"):
        LearnerMaker(Engine(kernels="fused")).learner(other, samples, labels, CLASSES)
    with pytest.raises(InputError, match="float32"):
        LearnerMaker(Engine(kernels="fused", dtype=F64)).learner(model, samples.to(F64), labels, CLASSES)


def test_processors_without_avx512():
    """Tests of gradients and of Winograd tiles, compiled for a processor with 16 registers of 8 floats."""
    selected = "test_gradient_and_losses or test_tiled_logits"
    narrow = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+sse4.2,+bmi,+bmi2"}
    check = "from airdistill.learning.fused.lanes import LANES; assert LANES == 8, LANES"
    environment = {**os.environ, **narrow}
    subprocess.run([sys.executable, "-c", check], env=environment, check=True)
    files = [__file__, str(Path(__file__).with_name("test_winograd.py"))]
    call = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files, "-k", selected]
    done = subprocess.run(call, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
