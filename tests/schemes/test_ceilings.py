"""What is possible without privacy and noise: FedOpt, FedDF, and one model trained on all data."""

import math

import numpy as np
import pytest
from feature_worlds import FAST, played
from scipy.special import softmax
from update_worlds import gradient, linear_weights, simulation_of, trained

from airdistill.data.datasets import load_dataset
from airdistill.data.partition import assign_samples
from airdistill.data.public import load_data
from airdistill.errors import InputError
from airdistill.schemes.ceilings import mean_logits
from airdistill.schemes.protocol import learn_from
from airdistill.streams import stream

UNEQUAL = ("data.samples_per_device=[20, 14, 9]",)
PUBLIC = ("public.samples=9", "public.distill_epochs=40", "public.distill_lr=0.2")


def held_by(simulation):
    dataset = load_dataset(simulation.plan.scenario.data.dataset)
    return dataset, assign_samples(simulation.plan.scenario, dataset.y_train).indices


def test_fedopt_moves_by_the_mean_of_unclipped_updates_with_momentum(tmp_path):
    changes = (*UNEQUAL, "federated.server_optimizer=momentum", "federated.server_momentum=0.6")
    simulation = simulation_of(tmp_path, "fedopt", *changes, "federated.update_norm=1e-3", "learning.rounds=2")
    (dataset, held), theta, velocity = held_by(simulation), linear_weights(simulation), 0.0
    shares = np.array([20, 14, 9]) / 43
    for index in (1, 2):
        steps = [gradient(theta, dataset.x_train[own], dataset.y_train[own]) for own in held]
        velocity = 0.6 * velocity - 0.1 / math.sqrt(index) * shares @ np.array(steps)
        theta = theta + velocity
        record = simulation.advance()
        for device in range(3):
            assert linear_weights(simulation, device) == pytest.approx(theta, rel=1e-9, abs=1e-12)
    assert record["epsilon_spent"] == math.inf


def test_centralised_training_is_one_learner_on_all_samples(tmp_path):
    changes = (*UNEQUAL, "learning.local_epochs=2", "learning.batch_size=8", "learning.rounds=2")
    simulation = simulation_of(tmp_path, "centralised", *changes)
    (dataset, held), theta = held_by(simulation), linear_weights(simulation)
    everything = np.concatenate(held)
    x, y = dataset.x_train[everything], dataset.y_train[everything]
    for index in (1, 2):
        rng = stream(simulation.plan.scenario.seed, "batch-order", index, 0)
        theta = trained(theta, x, y, 0.1 / math.sqrt(index), [rng.permutation(43) for _ in range(2)], 8)
        record = simulation.advance()
        assert linear_weights(simulation, 2) == pytest.approx(theta, rel=1e-9, abs=1e-12)
    assert record["epsilon_spent"] == math.inf


def test_feddf_teaches_the_mean_model_the_mean_logits(tmp_path):
    """Before it, the mean model of networks with a hidden layer disagrees with the mean of their logits."""
    changes = (*UNEQUAL, *PUBLIC, "learning.local_epochs=20", "learning.initial_lr=0.5", "learning.rounds=1")
    names = ("feddf", "fedavg", "fedavg")
    distilled, averaged, apart = (simulation_of(tmp_path, name, *changes, "learning.model=mlp-8") for name in names)
    learn_from(apart.fleet, apart.plan.scenario, 1, None, range(3))
    ensemble = mean_logits(apart.fleet, np.array([20, 14, 9]) / 43)
    for simulation in (distilled, averaged):
        simulation.advance()
    distances = [divergence(ensemble, each.fleet.public_predictions(np.arange(9))[2]) for each in (distilled, averaged)]
    assert 0 < distances[0] < 0.5 * distances[1]
    weights = distilled.fleet.parameters()
    assert np.array_equal(weights[0], weights[2])


def divergence(rows, predictions):
    """The mean Kullback-Leibler divergence of predictions from rows."""
    return (rows * np.log(rows / predictions)).sum(axis=1).mean()


def logits_of(theta, x):
    weight, bias = np.split(theta, [3 * x.shape[1]])
    return x @ weight.reshape(3, -1).T + bias


def test_mean_logits_are_those_of_the_models(tmp_path):
    simulation = simulation_of(tmp_path, "local_only", *UNEQUAL, *PUBLIC)
    _, public = load_data(simulation.plan.scenario)
    x, shares = np.asarray(public.samples, dtype=np.float64), np.array([0.5, 0.3, 0.2])
    expected = sum(shares[n] * logits_of(linear_weights(simulation, n), x) for n in range(3))
    assert mean_logits(simulation.fleet, shares) == pytest.approx(softmax(expected, axis=1), rel=1e-9)


def test_feddf_needs_a_public_set(tmp_path):
    with pytest.raises(InputError, match="this scheme needs a public set"):
        simulation_of(tmp_path, "feddf")


def test_all_data_together_are_best(tmp_path):
    """On skewed blobs, with the same passes over the data: the order of the ceilings."""
    changes = ("learning.rounds=6", "learning.initial_lr=0.3", "learning.batch_size=10")
    found = {
        name: played(tmp_path, name, *changes, name=name).summary["accuracy"]["mean"]
        for name in ("centralised", "fedopt", "local_only")
    }
    assert FAST.dtype == "float64"
    assert found["centralised"] >= found["fedopt"] > found["local_only"]
