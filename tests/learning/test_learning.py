import sys

import numpy as np
import pytest
import torch
from torch import nn

from airdistill.data import load_dataset
from airdistill.errors import InputError
from airdistill.learning.evaluation import TestSet as EvaluationSet
from airdistill.learning.fleet import Engine, LearningFleet, TrainingDivergedError, check_finite
from airdistill.learning.gradients import Target
from airdistill.learning.learner import Learner, Losses
from airdistill.learning.models import build_model, num_parameters
from airdistill.learning.samples import channels_last, input_shape, to_tensor

RNG = np.random.default_rng(0)
CPU, F32, F64 = torch.device("cpu"), torch.float32, torch.float64
TORCH = Engine(kernels="torch")
TARGET = RNG.dirichlet(np.ones(10), 10) + 0.3 * RNG.standard_normal((10, 10))


@pytest.fixture(scope="module")
def mnist():
    return load_dataset("mnist")


def fleet_of(mnist, engine=None, devices=3, samples=130):
    indices = [np.arange(device * samples, (device + 1) * samples) for device in range(devices)]
    return LearningFleet.of(mnist, indices, ["paper_cnn"] * devices, 0, engine or Engine())


def target(dtype=F32):
    return Target.of(TARGET, dtype, CPU)


def weights_of(fleet):
    return torch.cat([tensor.flatten() for tensor in fleet.state().values()])


def test_the_papers_network_has_its_21680_parameters():
    model = build_model("paper_cnn", (1, 28, 28), 10, RNG, F32)
    assert num_parameters(model) == 21680
    kinds = [type(module).__name__ for module in model.children()]
    assert kinds == ["Conv2d", "Conv2d", "Linear", "Linear"]


@pytest.mark.parametrize(("name", "size"), [("mlp", 784 * 64 + 64 + 640 + 10), ("softmax_regression", 7850)])
def test_smaller_models(name, size):
    assert num_parameters(build_model(name, (1, 28, 28), 10, RNG, F32)) == size


def test_initial_weights_depend_only_on_the_stream():
    torch.manual_seed(5)
    first, again, other = (
        build_model("mlp", (4,), 3, np.random.default_rng(seed), F32).state_dict()["1.weight"] for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    before = torch.get_rng_state()
    build_model("mlp", (4,), 3, RNG, F32)
    assert torch.equal(before, torch.get_rng_state())


def test_a_users_own_model(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        "from torch import nn\n"
        "def wide(num_classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, num_classes))\n"
        "def fixed():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 7))\n"
        "def nothing():\n    return 3\n"
        "def fails(input_shape):\n    raise KeyError('oh')\n"
        "def everything(**given):\n    return wide(given['num_classes'])\n"
        "class Pair(nn.Module):\n    def forward(self, x):\n        return x, x\n"
        "def frozen():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).requires_grad_(False)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("my_models:wide", "my_models:everything"):
        assert num_parameters(build_model(name, (1, 28, 28), 10, RNG, F32)) == 7850
    (tmp_path / "broken_models.py").write_text("def x(:\n")
    with pytest.raises(InputError, match="SyntaxError"):
        build_model("broken_models:x", (1, 28, 28), 10, RNG, F32)
    for name, rule in [
        ("my_models:fixed", "must give 10 outputs a sample, not"),
        ("my_models:nothing", "must return an nn.Module"),
        ("my_models:missing", "has no missing"),
        ("my_models:fails", "failed: KeyError"),
        ("my_models:Pair", "outputs a sample, not tuple"),
        ("my_models:frozen", "no parameters to train"),
        ("no_such_module:x", "cannot be imported"),
        ("unknown", "must be one of paper_cnn, mlp"),
    ]:
        with pytest.raises(InputError, match=rule):
            build_model(name, (1, 28, 28), 10, RNG, F32)


@pytest.mark.parametrize(("shape", "rule"), [((4,), "needs images"), ((1, 10, 10), "14 × 14")])
def test_the_cnn_rejects_unsupported_shapes(shape, rule):
    with pytest.raises(InputError, match=rule):
        build_model("paper_cnn", shape, 10, RNG, F32)


def test_samples_are_scaled_and_in_channels_last_layout(mnist):
    tensor = to_tensor(mnist.x_train[:1000], F32, CPU)
    assert tensor.shape == (1000, 1, 28, 28)
    assert tensor.stride() == (784, 1, 28, 1)
    assert abs(float(tensor.mean())) < 0.05
    colour = RNG.integers(0, 256, (5, 8, 6, 3)).astype(np.uint8)
    assert input_shape(colour) == (3, 8, 6)
    converted = to_tensor(colour, F64, CPU)
    assert converted[2, 1, 4, 3] == pytest.approx((colour[2, 4, 3, 1] / 255 - 0.1307) / 0.3081)
    plain = RNG.standard_normal((5, 7)).astype(np.float32)
    assert np.array_equal(to_tensor(plain, F64, CPU).numpy(), plain)


def test_single_channel_images_get_channels_last_strides():
    images = torch.zeros(4, 1, 28, 28)
    assert channels_last(images).stride() == (784, 1, 28, 1)
    learner = Learner(build_model("paper_cnn", (1, 28, 28), 10, RNG, F32), images, np.zeros(4, np.int64), 10, 3)
    assert [chunk.stride() for chunk, _ in learner._batches()] == [(784, 1, 28, 1)] * 2


def test_knowledge_is_the_mean_prediction_of_each_class(mnist):
    fleet = fleet_of(mnist, devices=1)
    learner = fleet.learners[0]
    knowledge = learner.knowledge()
    images, labels = to_tensor(mnist.x_train[:130], F32, CPU), mnist.y_train[:130]
    with torch.no_grad():
        predictions = learner.model(images).to(F64).softmax(1).numpy()
    for klass in range(10):
        assert knowledge[klass] == pytest.approx(predictions[labels == klass].mean(axis=0), abs=1e-6)
    assert knowledge.sum(axis=1) == pytest.approx(np.ones(10))
    few = fleet_of(mnist, devices=1, samples=3).learners[0].knowledge()
    assert np.isnan(few[0] if 0 not in mnist.y_train[:3] else few[1]).all()


def test_a_kept_forward_pass_gives_identical_weights(mnist):
    weights, passes = [], []
    for kept_bytes in (4 << 30, 0):
        fleet = fleet_of(mnist, Engine(kept_bytes=kept_bytes, chunk_samples=50, kernels="torch"))
        calls = []
        for model in fleet.models():
            model.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        fleet.knowledge(for_full_batch=True)
        fleet.full_batch_step(target(), 0.1, 0.5)
        weights.append(weights_of(fleet))
        passes.append(len(calls))
    assert torch.equal(*weights)
    # Three chunks on three devices, once or twice, and one more chunk to measure the memory.
    assert passes == [9 + 1, 18 + 1]


def test_as_many_devices_keep_their_pass_as_fit_into_memory(mnist):
    fleet = fleet_of(mnist, TORCH)
    need = fleet.learners[0].kept_bytes_per_sample() * 130
    assert need > 130 * 10 * 26 * 26 * 4  # at least the output of the first convolution
    mixed = LearningFleet.of(mnist, [np.arange(130)] * 3, ["softmax_regression", "paper_cnn", "paper_cnn"], 0, TORCH)
    assert mixed._kept_bytes_per_sample(mixed.learners[1]) > 10 * mixed._kept_bytes_per_sample(mixed.learners[0])
    tight = fleet_of(mnist, Engine(kept_bytes=int(2.5 * need), kernels="torch"))
    tight.knowledge(for_full_batch=True)
    assert [learner._kept is not None for learner in tight.learners] == [True, True, False]


def test_the_number_of_workers_does_not_change_the_result(mnist):
    results = []
    for workers in (1, 2, 3):
        fleet = fleet_of(mnist, Engine(workers=workers))
        fleet.full_batch_step(target(), 0.1, 0.5)
        orders = [[np.random.default_rng(device).permutation(130)] for device in range(3)]
        fleet.local_epochs(target(), 0.1, 0.5, orders, 32)
        results.append(weights_of(fleet))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_the_chunk_size_changes_only_rounding(mnist):
    results = []
    for chunk in (130, 50, 7):
        fleet = fleet_of(mnist, Engine(chunk_samples=chunk, dtype=F64))
        fleet.full_batch_step(target(F64), 0.1, 0.5)
        results.append(weights_of(fleet))
    assert results[0].numpy() == pytest.approx(results[1].numpy(), abs=1e-13)
    assert results[0].numpy() == pytest.approx(results[2].numpy(), abs=1e-13)


def plain_gradient(model, images, labels, dtype):
    """The gradient of eq. (1), written directly and in PyTorch's default layout."""
    reference = build_model("paper_cnn", (1, 28, 28), 10, np.random.default_rng(0), dtype)
    reference.load_state_dict(model.state_dict())
    predictions = torch.softmax(reference(images.to(dtype).contiguous()), dim=1)
    rows = torch.from_numpy(TARGET).to(dtype)[labels]
    loss = nn.functional.nll_loss(torch.log(predictions), labels) + 0.5 * ((predictions - rows) ** 2).sum(1).mean()
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in reference.parameters()]).to(F64)


def test_gradients_are_as_accurate_as_those_of_direct_code(mnist):
    """Rounding can change the maximum of a pooling window, and so single entries may differ, but not the whole."""
    ours, plain = [], []
    for device, learner in enumerate(fleet_of(mnist, devices=4, samples=200).learners):
        held = slice(device * 200, (device + 1) * 200)
        images, labels = to_tensor(mnist.x_train[held], F64, CPU), torch.from_numpy(mnist.y_train[held])
        true = plain_gradient(learner.model, images, labels, F64)
        gradient = learner.gradient(target(), 0.5)[0].to(F64)
        ours.append(float((gradient - true).norm() / true.norm()))
        plain.append(float((plain_gradient(learner.model, images, labels, F32) - true).norm() / true.norm()))
    assert max(ours) < 1e-3
    assert np.median(ours) < 5 * np.median(plain) + 1e-7


def test_a_class_that_was_not_received_has_no_distillation_term(mnist):
    received = TARGET.copy()
    received[3] = np.nan
    learner = fleet_of(mnist, Engine(dtype=F64), devices=1).learners[0]
    with_gap, losses = learner.gradient(Target.of(received, F64, CPU), 0.5)
    labels = mnist.y_train[:130]
    images = to_tensor(mnist.x_train[:130], F64, CPU)
    predictions = torch.softmax(learner.model(images), dim=1)
    squared = ((predictions - torch.from_numpy(np.nan_to_num(received))[labels]) ** 2).sum(1)
    mask = torch.from_numpy(labels != 3)
    loss = nn.functional.nll_loss(torch.log(predictions), torch.from_numpy(labels)) + 0.5 * (squared * mask).mean()
    expected = torch.autograd.grad(loss, list(learner.model.parameters()))
    assert torch.allclose(with_gap, torch.cat([part.flatten() for part in expected]), rtol=1e-9, atol=1e-12)
    assert losses.training + 0.5 * losses.distillation == pytest.approx(float(loss.detach()))


def test_accuracy_over_devices():
    class Always(nn.Module):
        def __init__(self, klass):
            super().__init__()
            self.klass = klass

        def forward(self, x):
            return nn.functional.one_hot(torch.full((len(x),), self.klass), 3).float()

    labels = np.array([0, 0, 0, 1, 1, 2])
    tests = EvaluationSet.of(torch.zeros(6, 4), labels, 3, 4)
    learners = [Learner(Always(klass), torch.zeros(1, 4), np.zeros(1, np.int64), 3, 4) for klass in (0, 1)]
    accuracy = tests.evaluate(LearningFleet(learners, Engine()), np.array([[5, 0, 5], [0, 5, 0]]))
    assert accuracy.mean == pytest.approx((3 / 6 + 2 / 6) / 2)
    assert (accuracy.worst, accuracy.best) == (pytest.approx(2 / 6), pytest.approx(3 / 6))
    # Device 0 holds classes 0 and 2: three of four right; device 1 holds class 1: both right.
    assert accuracy.own_classes == pytest.approx((3 / 4 + 1) / 2)


def test_a_loss_that_is_not_finite_names_round_and_device():
    check_finite([Losses(1.0, 2.0)], [True], 3)
    for losses, finite_weights in [
        ([Losses(1.0, 2.0), Losses(float("nan"), 0.0)], [True, True]),
        ([Losses(1.0, 2.0), Losses(1.0, float("inf"))], [True, True]),
        ([Losses(1.0, 2.0), Losses(1.0, 2.0)], [True, False]),
    ]:
        with pytest.raises(TrainingDivergedError, match="round 7, device 1"):
            check_finite(losses, finite_weights, 7)


def test_a_weight_that_is_not_finite_is_found(mnist):
    fleet = fleet_of(mnist, samples=5)
    with torch.no_grad():
        fleet.models()[1].out.bias[0] = float("inf")
    assert fleet.finite_weights() == [True, False, True]
