"""Training of the server's models: against PyTorch's optimiser, by fused kernels, and beside another training."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from airdistill.learning.epochs import EpochTraining, FusedTraining, Schedule, epoch_training
from airdistill.learning.fleet import Engine
from airdistill.learning.mixed import Descent
from airdistill.learning.models import build_model
from airdistill.learning.server import Server

EPOCHS, STEPS, BATCH = 2, 3, 18
SERVER = Descent(0.9, 5e-4)
STUDENT = Descent(0.9, 5e-2, clip_norm=0.02, nesterov=True)


def training_of(descent, engine):
    """Of the paper's network on random images, each moved by adding a drawn number."""
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(1)
    inputs = torch.randn(30, 1, 28, 28, generator=generator, dtype=torch.float64).to(engine.dtype)
    targets = torch.rand(30, 10, generator=generator, dtype=torch.float64).to(engine.dtype).softmax(dim=1)
    draws = torch.randn(EPOCHS, STEPS, BATCH, generator=generator, dtype=torch.float64).to(engine.dtype)
    schedule = Schedule(
        rng.integers(30, size=(EPOCHS, STEPS, BATCH)),
        np.linspace(0.02, 0.05, EPOCHS * STEPS).reshape(EPOCHS, STEPS),
        draws,
        lambda samples, added: samples + added[:, None, None, None],
    )
    model = build_model("paper_cnn", (1, 28, 28), 10, np.random.default_rng(2), engine.dtype)
    return epoch_training(model, inputs, targets, schedule, descent, engine), (inputs, targets, schedule)


def weights_after_training(descent, engine, epochs=EPOCHS):
    training, _ = training_of(descent, engine)
    for _ in range(epochs):
        training.run_epoch()
    return torch.cat([weight.detach().flatten() for weight in training.model.parameters()])


@pytest.mark.parametrize("descent", [SERVER, STUDENT])
def test_steps_are_those_of_pytorch(descent):
    training, (inputs, targets, schedule) = training_of(descent, Engine(kernels="torch", dtype=torch.float64))
    model = training.model
    options = {"momentum": descent.momentum, "weight_decay": descent.decay, "nesterov": descent.nesterov}
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0, **options)
    steps = zip(schedule.batches.reshape(-1, BATCH), schedule.lr.ravel(), schedule.draws.flatten(0, 1), strict=True)
    for batch, lr, draws in steps:
        optimiser.param_groups[0]["lr"] = float(lr)
        optimiser.zero_grad()
        cross_entropy(model(inputs[batch] + draws[:, None, None, None]), targets[batch]).backward()
        if descent.clip_norm is not None:
            assert torch.nn.utils.clip_grad_norm_(model.parameters(), descent.clip_norm) > descent.clip_norm
        optimiser.step()
    expected = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    found = weights_after_training(descent, Engine(kernels="torch", dtype=torch.float64))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("descent", [SERVER, STUDENT])
def test_fused_kernels_make_the_same_steps(descent):
    assert isinstance(training_of(descent, Engine())[0], FusedTraining)
    assert type(training_of(descent, Engine(kernels="torch"))[0]) is EpochTraining
    expected = weights_after_training(descent, Engine(kernels="torch", dtype=torch.float64))
    found = weights_after_training(descent, Engine())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-5)


def test_a_training_can_be_set_back():
    training, _ = training_of(SERVER, Engine())
    training.run_kept(EPOCHS)
    training.set_back(1)
    found = torch.cat([weight.detach().flatten() for weight in training.model.parameters()])
    assert torch.equal(found, weights_after_training(SERVER, Engine(), epochs=1))
    assert not torch.equal(found, weights_after_training(SERVER, Engine()))


@pytest.mark.parametrize("chosen", [4, 20])
def test_two_threads_read_what_one_thread_reads(chosen, monkeypatch):
    """Whichever number of epochs early stopping chooses."""
    monkeypatch.setattr(Server, "_choose_epochs", lambda _server, _training, _held_out: chosen)
    rng = np.random.default_rng(1)
    labels = np.arange(120) % 10
    samples = 3 * np.eye(10)[labels] + rng.standard_normal((120, 10))
    rows = 0.18 * np.eye(10)[labels] + 0.1 * rng.standard_normal((120, 10))
    one, two = (
        Server("mlp", samples, 10, Engine(workers=workers), 0).read(rows, np.full(120, 0.01)) for workers in (1, 2)
    )
    assert np.array_equal(one, two)
