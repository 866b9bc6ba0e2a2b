"""What is promised to the audited device, round by round: the shift that was declared and the μ that it costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airdistill.arrays import FloatArray, divide_or
from airdistill.audit.world import World
from airdistill.privacy.forecast import spent_squared_mu
from airdistill.privacy.sensitivity import knowledge_sensitivity
from airdistill.privacy.targets import epsilon_of_mu

LEMMA_1, CLASS_MEAN, RECORD_GRADIENT = "Lemma 1, √2/B_i", "class mean, √2/B_i^k", "one record, 2C/B_i"


@dataclass(frozen=True)
class Promise:
    """For rounds 1..R: the bound on ‖q(D) − q(D')‖ of every row `[round, row]`, and the certified μ `[round]`."""

    model: str
    delta: float
    sensitivity: FloatArray
    mu: FloatArray
    noise: str

    @property
    def epsilon(self) -> FloatArray:
        """`[round]`, at the device's δ."""
        return epsilon_of_mu(self.mu, self.delta, self.noise)


def promise_of(world: World) -> Promise:
    """The declared sensitivity model with the noise that these very rounds count."""
    plan, device = world.plan, world.device
    model, weights = plan.scenario.privacy.sensitivity, world.link.usual_weights()[device]
    squared = squared_bounds(world, model)[:, device]
    mu = certified_mu(world, model)[:, device]
    sensitivity, noise = divide_or(np.sqrt(squared), weights, 0.0), plan.scenario.privacy.noise
    return Promise(model, float(plan.fleet.delta[device]), sensitivity, mu, noise)


def squared_bounds(world: World, model: str) -> FloatArray:
    """(w s)² of every round, `[round, device, row]`."""
    shift = world.plan.uplink.shift(model)
    return np.stack([shift.at(this.index) for this in world.rounds])


def certified_mu(world: World, model: str) -> FloatArray:
    """Of every device after each round, `[round, device]`."""
    relabel = world.scenario.privacy.relabel
    cost, spent = np.zeros(()), []
    for this, squared in zip(world.rounds, squared_bounds(world, model), strict=True):
        counted = np.broadcast_to(this.design.counted_noise_var, squared.shape)
        cost = cost + np.where(squared > 0, divide_or(squared, counted, np.inf), 0.0)
        spent.append(spent_squared_mu(cost, model, relabel))
    return np.sqrt(np.stack(spent))


def reference_bounds(world: World, promise: Promise) -> dict[str, FloatArray]:
    """Bounds to hold a measured shift against, `[round, row]` each: what was declared, and what is printed."""
    num_rounds, device = len(world.rounds), world.device
    if world.link.of_gradient:
        samples = len(world.own_labels)
        record = np.full((num_rounds, 1), 2 * world.scenario.learning.clip_norm / samples)
        found = {RECORD_GRADIENT: record}
    else:
        counts = world.plan.fleet.class_counts
        found = {
            name: np.tile(knowledge_sensitivity(counts, model)[device], (num_rounds, 1))
            for name, model in [(LEMMA_1, "paper"), (CLASS_MEAN, "class_mean")]
        }
    return {**found, declared_name(promise): promise.sensitivity}


def declared_name(promise: Promise) -> str:
    return f"declared, {promise.model}"
