"""What a run will have cost every device, under each sensitivity model: the exact ε at the end."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import FloatArray
from airdistill.privacy.sensitivity import JOINT_MODELS, AccumulatedShift, Shift, TrajectoryDynamics
from airdistill.privacy.targets import epsilon_of_mu


def spent_squared_mu(cost: FloatArray, model: str, relabel: bool) -> FloatArray:
    """μ² that a device has spent `[device]`, from the cost (w s)²/c of its classes `[device, class]`.

    One record moves one class, so per-class models pay for their dearest class, and with `relabel` for their two
    dearest; joint models pay for all.
    """
    if model in JOINT_MODELS:
        return np.asarray(cost.sum(axis=1))
    num_moved = min(2 if relabel else 1, cost.shape[1])
    return np.asarray(np.sort(cost, axis=1)[:, -num_moved:].sum(axis=1))


def epsilon_after(
    class_counts: ArrayLike,
    inverse_counted_noise: FloatArray,
    delta: FloatArray,
    num_rounds: int,
    model: str,
    relabel: bool = False,
    dynamics: TrajectoryDynamics | None = None,
) -> FloatArray:
    """The exact ε of every device after `num_rounds`, `[device]`.

    `inverse_counted_noise` `[device, class]` is the mean of 1/c over the rounds: privacy adds up in 1/c.
    """
    shift = AccumulatedShift(class_counts, model, dynamics)
    return epsilon_of_shift(shift, inverse_counted_noise, delta, num_rounds, model, relabel)


def epsilon_of_shift(
    accumulated: Shift,
    inverse_counted_noise: FloatArray,
    delta: FloatArray,
    num_rounds: int,
    model: str,
    relabel: bool = False,
    noise: str = "seeded",
) -> FloatArray:
    """The same for whatever moves what the server sees."""
    shift = accumulated.after(num_rounds)
    cost = shift * np.where(shift > 0, inverse_counted_noise, 0.0)
    mu = np.sqrt(spent_squared_mu(cost, model, relabel))
    return epsilon_of_mu(mu, delta, noise)
