"""One round, equation by equation, against plain NumPy in float64."""

import math

import numpy as np
import pytest
import torch
from small_worlds import small_scenario

import airdistill as ad
from airdistill.channel import channel_source
from airdistill.data import assign_samples, load_dataset
from airdistill.privacy.gaussian import gaussian_mu
from airdistill.radio.superposition import RoundNoise
from airdistill.runs.options import RunOptions
from airdistill.runs.simulation import Simulation
from airdistill.schemes import load_scheme
from airdistill.streams import noise_seed, stream

GROUPS = "fleet.groups=[{count=2, model='softmax_regression'}, {count=1, model='mlp'}]"
SHARDS = ["data.partition=shards", "data.classes_per_device=2"]


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def loss_gradient_of_logits(logits, labels, target, weight):
    """∂/∂logits of the mean of −log p_v + γ‖p − q^v‖²: p − onehot, and the softmax's Jacobian for the rest."""
    p = softmax(logits)
    towards = 2 * weight * (p - target[labels])
    through = p * (towards - (towards * p).sum(axis=1, keepdims=True))
    return (p - np.eye(p.shape[1])[labels] + through) / len(labels)


class NumpyModel:
    """A softmax regression or a network of one hidden layer, with its gradient written out."""

    def __init__(self, module):
        self.layers = [
            (layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy())
            for layer in module
            if isinstance(layer, torch.nn.Linear)
        ]

    def activations(self, x):
        outputs = [x]
        for position, (weight, bias) in enumerate(self.layers):
            x = x @ weight.T + bias
            outputs.append(x if position == len(self.layers) - 1 else np.maximum(x, 0))
            x = outputs[-1]
        return outputs

    def step(self, x, labels, target, weight, lr):
        outputs = self.activations(x)
        gradient = loss_gradient_of_logits(outputs[-1], labels, target, weight)
        for position in reversed(range(len(self.layers))):
            matrix, bias = self.layers[position]
            below = outputs[position]
            next_gradient = (gradient @ matrix) * (below > 0)
            self.layers[position] = (matrix - lr * gradient.T @ below, bias - lr * gradient.sum(axis=0))
            gradient = next_gradient


def losses_of(model, x, labels, target):
    """The two means of eq. (1)."""
    p = softmax(model.activations(x)[-1])
    entropy = -np.log(p[np.arange(len(labels)), labels]).mean()
    return entropy, ((p - target[labels]) ** 2).sum(axis=1).mean()


def fleet_noise_gains(counts, channel, power, required):
    """λ, P1 and |P2|² of theory section 1 for `fleet_noise`, implemented a second time."""
    num_classes = counts.shape[1]
    weights, link = counts / counts.sum(axis=0), np.abs(channel) ** 2 * power
    scale, p1, p2 = np.zeros(num_classes), np.zeros(counts.shape, complex), np.zeros(counts.shape)
    for k in range(num_classes):
        holders = weights[:, k] > 0
        cap = min(num_classes * link[holders] / weights[holders, k] ** 2)
        needed = max(required[:, k])
        scale_sq = min(cap, link.sum() / (needed + (weights[:, k] ** 2).sum() / num_classes))
        headroom = link - scale_sq * weights[:, k] ** 2 / num_classes
        scale[k] = math.sqrt(scale_sq)
        p1[:, k] = weights[:, k] * scale[k] * channel.conj() / (math.sqrt(num_classes) * np.abs(channel) ** 2)
        p2[:, k] = needed * scale_sq * headroom / headroom.sum() / np.abs(channel) ** 2
    return scale, p1, p2


@pytest.mark.parametrize("axis", ["complex", "real"])
def test_a_round_follows_its_equations(tmp_path, axis):
    # Enough receiver noise to be visible next to the artificial noise.
    radio = [f"radio.noise={axis}", "radio.noise_power=1e-13 W", "learning.distill_weight=0.7"]
    scenario = small_scenario(tmp_path, GROUPS, *SHARDS, *radio)
    simulation = Simulation(
        ad.plan(scenario, "ota_fd"), load_scheme("ota_fd"), RunOptions(dtype="float64", chunk_samples=7)
    )
    models = [NumpyModel(module) for module in simulation.fleet.models()]
    dataset = load_dataset(scenario.data.dataset)
    shares = assign_samples(scenario, dataset.y_train)
    counts, held = shares.class_counts, shares.indices
    assert (counts == 0).any()
    assert len(models[0].layers) == 1
    assert len(models[2].layers) == 2

    record = simulation.advance()

    # Eq. (2) and eq. (3).
    local = np.zeros((3, 3, 3))
    for i in range(3):
        outputs = softmax(models[i].activations(dataset.x_train[held[i]])[-1])
        for k in range(3):
            if counts[i, k]:
                local[i, k] = outputs[dataset.y_train[held[i]] == k].mean(axis=0)
    weights = counts / counts.sum(axis=0)
    ideal = np.einsum("ik,ikd->kd", weights, local)
    # Theory section 1: req = T n (w√2)²/μ².
    mu = gaussian_mu(8.0, 1e-5)
    required = 6 * 2 * (weights * math.sqrt(2)) ** 2 / mu**2
    noise_var = 1e-13 * (0.5 if axis == "complex" else 1.0)
    channel = channel_source(scenario).round_channel(1)
    scale, p1, p2 = fleet_noise_gains(counts, channel, 1e-3, required)
    # Eqs. (7), (10), (12).
    seed = noise_seed(scenario.seed, simulation.ledger.noise_keys[0])
    noise = RoundNoise.seeded(seed, 1, ad.plan(scenario, "ota_fd").design(channel), 3, 1e-13, axis)
    phase = channel.conj() / np.abs(channel)
    sent = math.sqrt(3) * p1[:, :, None] * local + (np.sqrt(p2) * phase[:, None])[:, :, None] * noise.artificial
    received = (np.einsum("i,ikd->kd", channel, sent) + noise.receiver).real / scale[:, None]
    predicted = required.max(axis=0) + noise_var / scale**2
    assert record["predicted_noise_var"] == pytest.approx(predicted.tolist(), rel=1e-9)
    assert record["measured_noise_var"] == pytest.approx(((received - ideal) ** 2).mean(axis=1).tolist(), rel=1e-9)
    # Energy and power as section 0 defines them.
    slot = scenario.radio.slot
    assert record["planned_joules"] == pytest.approx(slot * 3 * (np.abs(p1) ** 2 + p2).sum(), rel=1e-9)
    assert record["measured_joules"] == pytest.approx(slot * (np.abs(sent) ** 2).sum(), rel=1e-9)
    assert record["uplink_seconds"] == pytest.approx(9 * slot)
    # Eq. (1), the mean over samples of both terms, and over devices.
    entropies, distances = zip(
        *(losses_of(models[i], dataset.x_train[held[i]], dataset.y_train[held[i]], received) for i in range(3)),
        strict=True,
    )
    assert record["training_loss"] == pytest.approx(np.mean(entropies), rel=1e-9)
    assert record["distillation_loss"] == pytest.approx(np.mean(distances), rel=1e-9)
    assert record["loss"] == pytest.approx(np.mean(entropies) + 0.7 * np.mean(distances), rel=1e-9)
    # Eq. (4) with η_1 = η0.
    for i, model in enumerate(models):
        model.step(dataset.x_train[held[i]], dataset.y_train[held[i]], received, 0.7, 0.1)
    for model, module in zip(models, simulation.fleet.models(), strict=True):
        for (weight, bias), (other, other_bias) in zip(model.layers, NumpyModel(module).layers, strict=True):
            assert weight == pytest.approx(other, rel=1e-9, abs=1e-12)
            assert bias == pytest.approx(other_bias, rel=1e-9, abs=1e-12)


def test_the_step_size_falls_with_the_root_of_the_round(tmp_path):
    simulation = Simulation(ad.plan(small_scenario(tmp_path), "local_only"), load_scheme("local_only"), RunOptions())
    assert [simulation.advance()["lr"] for _ in range(4)] == pytest.approx([0.1 / math.sqrt(t) for t in (1, 2, 3, 4)])


def test_minibatches_follow_their_order(tmp_path):
    """Two local epochs of batch 8 on 20 samples: steps of 8, 8 and 4, each epoch in its own order."""
    changes = ["learning.local_epochs=2", "learning.batch_size=8", "fleet.devices=1", "fleet.min_devices=1"]
    scenario = small_scenario(tmp_path, *changes)
    simulation = Simulation(
        ad.plan(scenario, "fd_error_free"), load_scheme("fd_error_free"), RunOptions(dtype="float64")
    )
    model = NumpyModel(simulation.fleet.models()[0])
    dataset = load_dataset(scenario.data.dataset)
    shares = assign_samples(scenario, dataset.y_train)
    local = np.stack(
        [
            [
                softmax(NumpyModel(m).activations(dataset.x_train[held])[-1])[dataset.y_train[held] == k].mean(axis=0)
                for k in range(3)
            ]
            for m, held in zip(simulation.fleet.models(), shares.indices, strict=True)
        ]
    )
    target = np.einsum("ik,ikd->kd", shares.class_counts / shares.class_counts.sum(axis=0), local)
    record = simulation.advance()
    rng, held = stream(scenario.seed, "batch-order", 1, 0), shares.indices[0]
    entropy = distance = 0.0
    orders = [rng.permutation(20), rng.permutation(20)]
    assert not np.array_equal(*orders)
    for order in orders:
        for batch in (order[:8], order[8:16], order[16:]):
            x, labels = dataset.x_train[held[batch]], dataset.y_train[held[batch]]
            losses = losses_of(model, x, labels, target)
            entropy, distance = entropy + losses[0] * len(batch) / 40, distance + losses[1] * len(batch) / 40
            model.step(x, labels, target, 1.0, 0.1)
    trained = NumpyModel(simulation.fleet.models()[0])
    assert model.layers[0][0] == pytest.approx(trained.layers[0][0], rel=1e-9)
    assert record["training_loss"] == pytest.approx(entropy, rel=1e-9)
    assert record["distillation_loss"] == pytest.approx(distance, rel=1e-9)
    # The next round has its own order.
    next_order = stream(scenario.seed, "batch-order", 2, 0).permutation(20)
    assert not np.array_equal(next_order, orders[0])
    simulation.advance()
    local = softmax(model.activations(dataset.x_train[held])[-1])
    target = np.stack([local[dataset.y_train[held] == k].mean(axis=0) for k in range(3)])
    rng = stream(scenario.seed, "batch-order", 2, 0)
    for order in (rng.permutation(20), rng.permutation(20)):
        for batch in (order[:8], order[8:16], order[16:]):
            x, labels = dataset.x_train[held[batch]], dataset.y_train[held[batch]]
            model.step(x, labels, target, 1.0, 0.1 / math.sqrt(2))
    trained = NumpyModel(simulation.fleet.models()[0])
    assert model.layers[0][0] == pytest.approx(trained.layers[0][0], rel=1e-8)


def test_a_restored_state_keeps_its_order(tmp_path):
    """Checkpoints of a resumed run are then the same bytes; a file's tensors are read in any order."""
    plan = ad.plan(small_scenario(tmp_path), "local_only")
    simulation = Simulation(plan, load_scheme("local_only"), RunOptions())
    while simulation.round_index < simulation.iterate_round:
        simulation.advance()
    tensors, numbers = simulation.state()
    simulation.restore(simulation.round_index, dict(reversed(tensors.items())), numbers)
    assert list(simulation.state()[0]) == list(tensors)
    assert any(name.startswith("iterate.") for name in tensors)
