"""Federated averaging of small softmax regressions, and their training written out without PyTorch."""

import numpy as np
import torch
from small_worlds import small_scenario
from torch import nn

from airdistill.runs.options import RunOptions
from airdistill.runs.simulation import Simulation
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.registry import load_scheme

FLOAT64 = RunOptions(threads=1, dtype="float64", eval_every=100)


def planned(folder, scheme, *changes):
    chosen = load_scheme(scheme)
    return plan_scheme(chosen, as_run_by(chosen, small_scenario(folder, *changes))), chosen


def simulation_of(folder, scheme, *changes):
    plan, chosen = planned(folder, scheme, *changes)
    return Simulation(plan, chosen, FLOAT64)


def linear_weights(simulation, device=0):
    """Weights and biases of a softmax regression in one vector."""
    state = simulation.fleet.learners[device].model.state_dict()
    return np.concatenate([tensor.numpy().ravel() for tensor in state.values()])


def gradient(theta, x, y, num_classes=3):
    """The mean gradient of the cross-entropy of a softmax regression, weights first, written out."""
    weight, bias = np.split(theta, [num_classes * x.shape[1]])
    logits = x @ weight.reshape(num_classes, -1).T + bias
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    error = (shares / shares.sum(axis=1, keepdims=True) - np.eye(num_classes)[y]) / len(y)
    return np.concatenate([(error.T @ x).ravel(), error.sum(axis=0)])


def trained(theta, x, y, lr, orders, batch):
    for order in orders:
        for start in range(0, len(y), batch):
            chosen = order[start : start + batch]
            theta = theta - lr * gradient(theta, x[chosen], y[chosen])
    return theta


class Normalised(nn.Module):
    """A network with state beside its weights, and with randomness of its own."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.first, self.norm = nn.Linear(input_shape[0], 8), nn.BatchNorm1d(8)
        self.dropout, self.last = nn.Dropout(0.3), nn.Linear(8, num_classes)

    def forward(self, x):
        return self.last(self.dropout(torch.relu(self.norm(self.first(x)))))
