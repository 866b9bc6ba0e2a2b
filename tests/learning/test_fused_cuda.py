"""The fused kernels on a GPU, against PyTorch in float64; skipped without a GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_worlds import small_scenario, write_dataset
from torch import nn

import airdistill as ad
from airdistill.data.datasets import Dataset
from airdistill.errors import InputError
from airdistill.learning.evaluation import TestSet as EvaluationSet
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.learning.fused.cuda import FusedLogits, loss_gradients
from airdistill.learning.fused.form import form_of, logits_by_form
from airdistill.learning.gradients import Target
from airdistill.learning.mixed import MixedSteps
from airdistill.learning.samples import to_tensor
from airdistill.learning.stacking import TorchLogits, mean_losses
from airdistill.runs.options import RunOptions

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA = torch.device("cuda")
DEVICES, SAMPLES, CLASSES = 3, 70, 4
RNG = np.random.default_rng(0)
DATASET = Dataset(
    "noise",
    RNG.integers(0, 256, (DEVICES * SAMPLES, 16, 14)).astype(np.uint8),
    np.sort(np.arange(DEVICES * SAMPLES) % CLASSES),  # sorted: devices lack classes
    RNG.integers(0, 256, (131, 16, 14)).astype(np.uint8),
    RNG.integers(0, CLASSES, 131),
)
RECEIVED = RNG.dirichlet(np.ones(CLASSES), CLASSES)
RECEIVED[1] = np.nan


def block(*sizes, **options):
    return nn.Sequential(nn.Conv2d(*sizes, **options), nn.MaxPool2d(2), nn.ReLU())


def network(blocks, *layers):
    return nn.Sequential(*blocks, nn.Flatten(), *layers)


FORMS = {
    "the paper's": (
        network([block(1, 10, 3), block(10, 20, 5)], nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10)),
        (1, 28, 28),
    ),
    "odd sizes, no bias": (
        network([block(3, 7, (4, 3)), block(7, 11, (2, 5), bias=False)], nn.Linear(220, 4, bias=False)),
        (3, 25, 28),
    ),
    "one block, a large kernel": (network([block(4, 13, 7)], nn.Linear(390, 3)), (4, 18, 17)),
    "three blocks": (network([block(1, 8, 3), block(8, 16, 3), block(16, 12, 3)], nn.Linear(12, 10)), (1, 28, 28)),
    "many channels": (network([block(3, 32, 3), block(32, 64, 3), block(64, 90, 3)], nn.Linear(360, 10)), (3, 32, 32)),
    "kernels of one": (network([block(1, 3, 1), block(3, 4, (1, 2))], nn.Linear(48, 5)), (1, 17, 16)),
    "a wide image": (network([block(2, 5, 3), block(5, 6, 3)], nn.Linear(6 * 18, 5)), (2, 12, 78)),
    "no blocks": (network([], nn.Linear(60, 10), nn.ReLU(), nn.Linear(10, 4)), (3, 4, 5)),
}


def error(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


DRAWS = 5  # of weights and samples; in few of them the two largest values of a pooling window are equal up to rounding


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("devices", "samples", "same"), [(3, 70, False), (2, 33, True), (1, 1, False)])
def test_logits_and_gradients_are_as_accurate_as_pytorchs(name, devices, samples, same):
    """In the median of several draws: gradients are discontinuous where rounding decides a pooling window's maximum."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    errors = np.array([errors_of(name, devices, samples, same, seed) for seed in range(DRAWS)])
    ours, theirs = np.median(errors, axis=0).T
    assert (ours <= 2 * theirs + 1e-6).all()


def errors_of(name, devices, samples, same, seed):
    """Errors of the logits and of every parameter's gradient, `[tensor, (ours, PyTorch's)]`, against float64."""
    torch.manual_seed(seed)
    model, shape = FORMS[name]
    form, count = form_of(model, shape), 1 if same else devices
    own = {n: torch.randn(devices, *p.shape, device=CUDA) * fan_in(p) ** -0.5 for n, p in model.named_parameters()}
    given = torch.randn(count, samples, *shape, device=CUDA)
    into = torch.randn(devices, samples, form.layers[-1].num_outputs, device=CUDA)
    fused = FusedLogits(form)

    def by_torch(parameters, dtype):
        each = given.to(dtype).expand(devices, *given.shape[1:])
        return torch.stack(
            [logits_by_form(form, {n: p[d] for n, p in parameters.items()}, each[d]) for d in range(devices)]
        )

    def results(logits_of, dtype):
        leaves = {n: p.to(dtype).requires_grad_() for n, p in own.items()}
        logits = logits_of(leaves)
        return [logits.detach(), *torch.autograd.grad((logits.tanh() * into).sum(), list(leaves.values()))]

    found, again = (results(lambda leaves: fused(leaves, fused.to_layout(given)), torch.float32) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    exact, pytorchs = (
        results(lambda leaves, d=dtype: by_torch(leaves, d), dtype) for dtype in (torch.float64, torch.float32)
    )
    return [
        (error(ours, expected), error(theirs, expected))
        for ours, theirs, expected in zip(found, pytorchs, exact, strict=True)
    ]


def fan_in(parameter):
    return parameter[0].numel()


@pytest.mark.parametrize("weight", [0.7, None])
@pytest.mark.parametrize(("devices", "samples", "classes"), [(3, 70, 4), (1, 1, 10), (2, 300, 40)])
def test_losses_and_their_gradients(weight, devices, samples, classes):
    torch.manual_seed(0)
    logits = 5 * torch.randn(devices, samples, classes, dtype=torch.float64, device=CUDA)
    labels = torch.randint(classes, (devices, samples), device=CUDA)
    received = np.random.default_rng(0).dirichlet(np.ones(classes), classes)
    received[1] = np.nan
    exactly, target = (Target.of(received, dtype, CUDA) for dtype in (torch.float64, torch.float32))
    leaf = logits.clone().requires_grad_()
    training, distillation = mean_losses(leaf, labels, None if weight is None else exactly)
    expected = torch.autograd.grad((training + (weight or 0.0) * distillation).sum(), leaf)[0]
    gradients, means = loss_gradients(logits.float(), labels, None if weight is None else target, weight or 0.0)
    assert error(gradients, expected) <= 1e-6
    assert means[0].tolist() == pytest.approx(training.tolist(), rel=1e-5)
    assert means[1].tolist() == pytest.approx(distillation.tolist(), rel=1e-5)


def fleet(kernels="fused", kept_bytes=4 << 30, model="paper_cnn"):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    indices = [np.arange(device * SAMPLES, (device + 1) * SAMPLES) for device in range(DEVICES)]
    engine = Engine(CUDA, torch.float32, 30, kept_bytes, stacked=True, kernels=kernels)
    made = LearningFleet.of(DATASET, indices, [model] * DEVICES, 0, engine)
    assert made.stacked is not None
    return made


def train(made, rounds=3):
    """Train for some rounds of full-batch steps; return the last class means, losses and weights."""
    for _ in range(rounds):
        known = made.knowledge(for_full_batch=True)
        losses = made.full_batch_step(Target.of(RECEIVED, torch.float32, CUDA), 0.3, 0.7)
        assert made.finite_weights() == [True] * DEVICES
    assert all(each._replay is not None for each in made.stacked._passes.values() if each._was_tried)
    return known, np.array([(loss.training, loss.distillation) for loss in losses]), made.parameters()


def test_full_batch_rounds():
    by_torch, kept, again, not_kept = (train(fleet(*how)) for how in (("torch",), ("fused",), ("fused",), ("fused", 0)))
    for expected, found in zip(by_torch, kept, strict=True):
        assert found == pytest.approx(expected, abs=1e-5, nan_ok=True)
    for others in (again, not_kept):
        assert all(np.array_equal(one, other, equal_nan=True) for one, other in zip(kept, others, strict=True))


def test_training_in_chunks(monkeypatch):
    expected = train(fleet())
    monkeypatch.setattr("airdistill.learning.stacked._FUSED_BYTES", 0)
    in_chunks = fleet()
    assert len(in_chunks.stacked._chunks) == 3
    for found, whole in zip(train(in_chunks), expected, strict=True):
        assert found == pytest.approx(whole, abs=1e-5, nan_ok=True)


def test_steps_with_and_without_a_target_on_the_same_kept_pass():
    fused, by_torch = fleet(), fleet("torch")
    for target in (None, Target.of(RECEIVED, torch.float32, CUDA), None):
        for made in (fused, by_torch):
            made.knowledge(for_full_batch=True)
            made.full_batch_step(target, 0.3, 0.7)
    assert fused.parameters() == pytest.approx(by_torch.parameters(), abs=1e-5)


def test_loading_weights_drops_a_kept_pass():
    fused, by_torch = fleet(), fleet("torch")
    for made in (fused, by_torch):
        made.knowledge(for_full_batch=True)
        made.load_state({name: 0.5 * tensor for name, tensor in made.state().items()})
        made.full_batch_step(None, 0.3, 0.0)
    assert fused.parameters() == pytest.approx(by_torch.parameters(), abs=1e-5)
    fused.full_batch_step(None, float("nan"), 0.0)
    assert fused.finite_weights() == [False] * DEVICES


def test_minibatches_and_mixed_steps():
    orders = [
        [np.random.default_rng([device, epoch]).permutation(SAMPLES) for epoch in range(2)] for device in range(3)
    ]
    mixed = MixedSteps(
        np.arange(20).reshape(2, 10), np.arange(14).reshape(2, 7), 0.5, 0.5, np.array([0.1, 0.2]), momentum=0.9
    )
    rows = Target.of(RNG.dirichlet(np.ones(CLASSES), 14), torch.float32, CUDA)
    found = []
    for kernels in ("fused", "fused", "torch"):
        made = fleet(kernels)
        made.public = to_tensor(DATASET.x_test[:14], torch.float32, CUDA)
        made.local_epochs(Target.of(RECEIVED, torch.float32, CUDA), 0.1, 0.7, orders, 33)
        made.mixed_steps([mixed] * DEVICES, rows, "mixed")
        found.append(made.parameters())
    assert np.array_equal(found[0], found[1])
    assert found[0] == pytest.approx(found[2], abs=1e-5)


def test_evaluation():
    tests = EvaluationSet.of(to_tensor(DATASET.x_test, torch.float32, CUDA), DATASET.y_test, CLASSES, 30)
    counts, predictions = zip(
        *(
            (made.stacked.correct_by_class(tests.chunks, tests.labels), made.stacked.predictions(tests.chunks))
            for made in (fleet(), fleet("torch"))
        ),
        strict=True,
    )
    assert np.array_equal(*counts)
    assert predictions[0] == pytest.approx(predictions[1], abs=1e-5)


class Sigmoid(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(16 * 14, 9), nn.Sigmoid(), nn.Linear(9, CLASSES))


def test_other_models_use_pytorchs_kernels_or_are_rejected():
    assert isinstance(fleet("auto", model=f"{__name__}:Sigmoid").stacked._logits, TorchLogits)
    with pytest.raises(InputError, match="not of the form"):
        fleet("fused", model=f"{__name__}:Sigmoid")


class StoppedError(Exception):
    pass


def stop_halfway(record, num_rounds):
    if record["round"] == num_rounds // 2:
        raise StoppedError


@pytest.mark.parametrize("epochs", [0, 2])
def test_a_run_is_bit_identical_when_repeated_or_resumed(tmp_path, epochs):
    write_dataset(tmp_path / "images.npz", features=(16, 15))
    changes = [f"data.dataset={tmp_path / 'images.npz'}", "learning.model=paper_cnn", f"learning.local_epochs={epochs}"]
    scenario, options = small_scenario(tmp_path, *changes), RunOptions(device="cuda", checkpoint_every=2)
    one = ad.run(scenario, out=tmp_path / "one", options=options)
    ad.run(scenario, out=tmp_path / "other", options=options)
    with pytest.raises(StoppedError):
        ad.run(scenario, out=tmp_path / "cut", options=options, on_round=stop_halfway)
    ad.resume(tmp_path / "cut")
    for name in ("other", "cut"):
        assert (tmp_path / name / "rounds.jsonl").read_bytes() == (tmp_path / "one" / "rounds.jsonl").read_bytes()
    by_torch = ad.run(scenario, out=tmp_path / "by_torch", options=replace(options, engine="torch"))
    losses = [[each["training_loss"] for each in record.rounds] for record in (one, by_torch)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
