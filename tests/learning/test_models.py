"""The built-in models beyond the paper's: shapes and sizes, and that they train like every other."""

from pathlib import Path

import numpy as np
import pytest
import torch

import airdistill as ad
from airdistill.data.datasets import Dataset
from airdistill.errors import InputError
from airdistill.learning.clipping import check_independent_samples
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.learning.gradients import Target
from airdistill.learning.models import build_model, count_parameters, num_parameters

RNG = np.random.default_rng(8)
GREY, COLOUR = (1, 28, 28), (3, 32, 32)


def model(name, shape=GREY, num_classes=10):
    return build_model(name, shape, num_classes, np.random.default_rng(0), torch.float64)


def parameters_of_resnet(layers, width, channels, classes):
    """Counted by hand: convolutions without bias, two numbers a channel of each normalisation, shortcuts of size 1."""
    per_stage, total, before = (layers - 2) // 6, 9 * channels * width + 2 * width, width
    for after in (width, 2 * width, 4 * width):
        for block in range(per_stage):
            total += 9 * before * after + 9 * after**2 + 4 * after
            total += before * after if block == 0 and before != after else 0
            before = after
    return total + 4 * width * classes + classes


@pytest.mark.parametrize("shape", [GREY, COLOUR, (1, 5, 7)])
@pytest.mark.parametrize(("name", "layers", "width"), [("resnet8", 8, 16), ("resnet14-8", 14, 8), ("resnet20", 20, 16)])
def test_residual_networks_take_grey_and_coloured_images_of_any_size(shape, name, layers, width):
    network = model(name, shape)
    assert num_parameters(network) == parameters_of_resnet(layers, width, shape[0], 10)
    assert sum(isinstance(part, torch.nn.Conv2d | torch.nn.Linear) and part.weight.shape[-1] != 1
               for part in network.modules()) == layers  # fmt: skip
    assert not list(network.buffers())
    check_independent_samples(network, torch.randn(3, *shape, dtype=torch.float64))


def test_a_perceptron_has_the_widths_that_its_name_gives():
    assert count_parameters("mlp-128-32", (784,), 10) == 785 * 128 + 129 * 32 + 33 * 10
    assert count_parameters("mlp", GREY, 10) == count_parameters("mlp-64", GREY, 10) == 785 * 64 + 65 * 10


@pytest.mark.parametrize(
    ("name", "shape", "rule"),
    [
        ("mlp-", GREY, "widths must be whole numbers from 1 to 4096, as in mlp-32"),
        ("mlp-0", GREY, "whole numbers"),
        ("mlp-5000", GREY, "whole numbers"),
        ("mlp-9-x", GREY, "whole numbers"),
        ("resnet8-12", GREY, "one width, a multiple of 8"),
        ("resnet8-8-8", GREY, "one width, a multiple of 8"),
        ("resnet9", GREY, "must be one of paper_cnn, mlp"),
        ("paper_cnn-8", GREY, "must be one of paper_cnn, mlp"),
        ("resnet8", (12,), "needs images"),
    ],
)
def test_names_that_describe_no_model_are_refused(name, shape, rule):
    with pytest.raises(InputError, match=rule) as caught:
        model(name, shape)
    assert caught.value.field == "learning.model"


def test_stacked_residual_networks_learn_as_one_by_one():
    samples = RNG.integers(0, 256, (24, 8, 8, 3)).astype(np.uint8)
    dataset = Dataset("noise", samples, np.arange(24) % 3, samples[:4], np.arange(4) % 3)
    indices, target = (
        [np.arange(12), np.arange(12, 24)],
        Target.of(np.full((3, 3), 1 / 3), torch.float64, torch.device("cpu")),
    )
    orders = [[np.random.default_rng(device).permutation(12)] for device in range(2)]
    states = []
    for stacked in (False, True):
        engine = Engine(dtype=torch.float64, stacked=stacked)
        fleet = LearningFleet.of(dataset, indices, ["resnet8-8"] * 2, 0, engine)
        assert (fleet.stacked is not None) == stacked
        fleet.local_epochs(target, 0.1, 1.0, orders, 5)
        fleet.full_batch_step(target, 0.1, 1.0)
        states.append({name: tensor.numpy().copy() for name, tensor in fleet.state().items()})
    for name, weights in states[0].items():
        assert states[1][name] == pytest.approx(weights, abs=1e-9), name


def test_a_fleet_mixes_models_and_the_server_has_one_of_its_own(tmp_path: Path):
    samples = RNG.integers(0, 256, (60, 8, 8)).astype(np.uint8)
    labels = np.arange(60) % 3
    np.savez(tmp_path / "a.npz", x_train=samples[:40], y_train=labels[:40], x_test=samples[40:], y_test=labels[40:])
    changes = [
        f"data.dataset={tmp_path / 'a.npz'}", "fleet.devices=3", "data.samples_per_device=12", "public.samples=8",
        'fleet.groups=[{count=2, model="resnet8-8"}, {count=1, model="mlp-16-8"}]', "public.server_model=resnet8-8",
        "learning.local_epochs=1", "public.distill_epochs=1",
    ]  # fmt: skip
    run = ad.run(ad.load("quick", changes), "airdistill_proxy", rounds=1, out=tmp_path / "run")
    assert np.isfinite(run.rounds[0]["loss"])
