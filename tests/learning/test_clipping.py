import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from airdistill.data.datasets import Dataset
from airdistill.errors import AirDistillError
from airdistill.learning import clipping
from airdistill.learning import stacked as stacked_module
from airdistill.learning.clipping import check_independent_samples, clipped_sum, trainable
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.learning.learner import Learner
from airdistill.learning.models import build_model

F64 = torch.float64
GROUPS, SAMPLES, CLASSES = 3, 7, 4
IMAGE = (2, 15, 14)
RNG = np.random.default_rng(0)


class UsedTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.out(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x)))))


def on_images(*layers):
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.LazyLinear(CLASSES))


def frozen():
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    model[0].weight.requires_grad_(False)
    return model


# By name: the model, the shape of its samples, and whether the rules for single layers apply to it.
MODELS = {
    "paper_cnn": (lambda: build_model("paper_cnn", IMAGE, CLASSES, np.random.default_rng(0), F64), IMAGE, True),
    "mlp": (lambda: build_model("mlp", IMAGE, CLASSES, np.random.default_rng(0), F64), IMAGE, True),
    "in place": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.LazyLinear(8),
            nn.ReLU(inplace=True),
            nn.Linear(8, CLASSES),
        ),
        IMAGE,
        False,
    ),
    "sequences": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Flatten(), nn.LazyLinear(CLASSES)),
        (3, 6),
        False,
    ),
    "padding and stride": (
        lambda: on_images(nn.Conv2d(2, 3, (5, 3), stride=(2, 3), padding=(1, 2)), nn.Conv2d(3, 4, 2)),
        IMAGE,
        True,
    ),
    "no bias": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, bias=False), nn.Tanh(), nn.Flatten(), nn.LazyLinear(CLASSES, bias=False)
        ),
        IMAGE,
        True,
    ),
    "dilation": (lambda: on_images(nn.Conv2d(2, 3, 3, dilation=2)), IMAGE, False),
    "padding by name": (lambda: on_images(nn.Conv2d(2, 3, 3, padding="same")), IMAGE, False),
    "padding with copies": (lambda: on_images(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")), IMAGE, False),
    "groups": (lambda: on_images(nn.Conv2d(2, 4, 3, groups=2)), IMAGE, False),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, CLASSES)),
        (6,),
        False,
    ),
    "a layer used twice": (UsedTwice, (6,), False),
    "tied weights": (Tied, (6,), False),
    "frozen weights": (frozen, (6,), False),
}


def created(name):
    """The model, samples `[group, sample, ...]` of very different norms, and labels `[group, sample]`."""
    factory, shape, _ = MODELS[name]
    torch.manual_seed(0)
    model = factory().to(F64)
    scale = np.geomspace(0.01, 10, GROUPS * SAMPLES).reshape(GROUPS, SAMPLES, *(1 for _ in shape))
    samples = torch.from_numpy(RNG.permuted(scale, axis=1) * RNG.standard_normal((GROUPS, SAMPLES, *shape)))
    model(samples[0])  # initialises lazy layers
    return model, samples, torch.from_numpy(RNG.integers(0, CLASSES, (GROUPS, SAMPLES)))


def one_gradient(model, sample, label):
    loss = cross_entropy(model(sample[None]), label[None])
    gradients = torch.autograd.grad(loss, trainable(model))
    return torch.cat([gradient.flatten() for gradient in gradients]), loss.detach()


def naive(model, samples, labels, clip_norm):
    """Sums over one group, sample by sample, and the number of gradients that were clipped."""
    total, loss_sum, num_clipped = 0.0, 0.0, 0
    for sample, label in zip(samples, labels, strict=True):
        gradient, loss = one_gradient(model, sample, label)
        length = float(gradient.norm())
        total, loss_sum, num_clipped = (
            total + gradient * min(1.0, clip_norm / length),
            loss_sum + loss,
            num_clipped + (length > clip_norm),
        )
    return total, loss_sum, num_clipped


def gradient_norms(model, samples, labels):
    pairs = zip(samples.flatten(0, 1), labels.flatten(), strict=True)
    return [float(one_gradient(model, sample, label)[0].norm()) for sample, label in pairs]


@pytest.mark.parametrize(
    ("name", "which", "channels_last"),
    [
        *(
            (name, which, False)
            for which in ("none are clipped", "some are clipped", "all are clipped")
            for name in MODELS
        ),
        *((name, "some are clipped", True) for name, (_, shape, _) in MODELS.items() if shape == IMAGE),
    ],
)
def test_clipped_sums_equal_a_loop_over_samples(monkeypatch, name, which, channels_last):
    model, samples, labels = created(name)
    all_norms = sorted(gradient_norms(model, samples, labels))
    clip_norm = {"none": 2 * all_norms[-1], "some": float(np.median(all_norms)), "all": 0.5 * all_norms[0]}[
        which.split()[0]
    ]
    if channels_last and samples.ndim == 5:
        samples = samples.flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, labels.shape)
        model = model.to(memory_format=torch.channels_last)
    by_vmap_calls = []
    monkeypatch.setattr(
        clipping,
        "_clipped_sum_by_vmap",
        lambda *args, by_vmap=clipping._clipped_sum_by_vmap: by_vmap_calls.append(1) or by_vmap(*args),
    )
    found = clipped_sum(model, samples, labels, clip_norm)
    assert bool(by_vmap_calls) != MODELS[name][2]
    assert found.gradient.shape == (GROUPS, sum(parameter.numel() for parameter in trainable(model)))
    num_clipped = 0
    for group in range(GROUPS):
        gradient, loss, clipped = naive(model, samples[group], labels[group], clip_norm)
        num_clipped += clipped
        assert found.gradient[group].numpy() == pytest.approx(gradient.numpy(), abs=1e-10)
        assert float(found.loss[group]) == pytest.approx(float(loss), abs=1e-10)
    assert {
        "none": num_clipped == 0,
        "some": 0 < num_clipped < GROUPS * SAMPLES,
        "all": num_clipped == GROUPS * SAMPLES,
    }[which.split()[0]]
    assert not any(parameter.grad is not None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_vmap_in_several_chunks_gives_the_same_sums(monkeypatch):
    model, samples, labels = created("layer norm")
    expected = clipped_sum(model, samples, labels, 0.3)
    monkeypatch.setattr(clipping, "_MAX_ELEMENTS", 3 * sum(parameter.numel() for parameter in model.parameters()))
    found = clipped_sum(model, samples, labels, 0.3)
    assert found.gradient.numpy() == pytest.approx(expected.gradient.numpy(), abs=1e-12)
    assert found.loss.numpy() == pytest.approx(expected.loss.numpy(), abs=1e-12)


def test_a_zero_gradient_does_not_divide_by_zero():
    model = nn.Linear(3, 2).to(F64)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([1e4, 0.0]))
    found = clipped_sum(model, torch.zeros(1, 1, 3, dtype=F64), torch.zeros(1, 1, dtype=torch.int64), 1.0)
    assert torch.equal(found.gradient, torch.zeros(1, 8, dtype=F64))


def test_batch_norm_is_rejected():
    with pytest.raises(AirDistillError, match="batch normalisation"):
        check_independent_samples(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), torch.zeros(4, 3))


def fleets(name, one_model=True):
    """The same fleet, trained one device at a time and stacked."""
    per_device = 23
    dataset = Dataset(
        "noise",
        np.random.default_rng(1).integers(0, 256, (GROUPS * per_device, 16, 14)).astype(np.uint8),
        np.arange(GROUPS * per_device) % CLASSES,
        np.zeros((1, 16, 14), np.uint8),
        np.zeros(1, np.int64),
    )
    indices = np.split(np.arange(GROUPS * per_device), GROUPS)
    built = [
        LearningFleet.of(
            dataset, indices, [name] * GROUPS, 0, Engine(dtype=F64, chunk_samples=10, stacked=stacked), one_model
        )
        for stacked in (False, True)
    ]
    assert [fleet.stacked is not None for fleet in built] == [False, True]
    return built


@pytest.mark.parametrize("name", ["paper_cnn", "mlp", "softmax_regression"])
@pytest.mark.parametrize(
    ("clip_norm", "at_once"),  # part of a device, one device, two, all
    [(None, 1), (None, 1000), (0.5, 1), (0.5, 10), (0.5, 50), (0.5, 1000), (1e6, 50)],
)
def test_stacked_gradients_equal_those_of_single_devices(monkeypatch, name, clip_norm, at_once):
    monkeypatch.setattr(stacked_module, "_CLIPPING_CHUNK", at_once)
    one_by_one, stacked = fleets(name)
    for round_index in range(2):
        monkeypatch.setattr(Learner, "clipped_gradient", CLIPPED_ALONE)
        expected, losses = one_by_one.gradients(clip_norm)
        monkeypatch.setattr(Learner, "clipped_gradient", None)  # must not be called for each device
        found, stacked_losses = stacked.gradients(clip_norm)
        assert found.dtype == np.float64
        assert found == pytest.approx(expected, abs=1e-10)
        assert [loss.training for loss in stacked_losses] == pytest.approx(
            [loss.training for loss in losses], abs=1e-10
        )
        assert all(loss.distillation == 0 for loss in stacked_losses)
        for fleet in (one_by_one, stacked):
            fleet.descend(expected.mean(axis=0), 0.3 / (1 + round_index))
        assert stacked.parameters() == pytest.approx(one_by_one.parameters(), abs=1e-10)


CLIPPED_ALONE = Learner.clipped_gradient


def test_devices_with_different_weights_are_clipped_one_by_one():
    one_by_one, stacked = fleets("mlp", one_model=False)
    assert stacked.gradients(0.5)[0] == pytest.approx(one_by_one.gradients(0.5)[0], abs=1e-10)


def test_a_stacked_average_equals_that_of_single_devices():
    one_by_one, stacked = fleets("paper_cnn", one_model=False)
    weights = np.array([0.2, 0.5, 0.3])
    for fleet in (one_by_one, stacked):
        fleet.average(weights)
    assert stacked.parameters() == pytest.approx(one_by_one.parameters(), abs=1e-12)
    assert np.ptp(stacked.parameters(), axis=0).max() == 0
