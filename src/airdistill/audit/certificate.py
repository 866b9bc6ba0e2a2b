"""What is promised to the audited device, round by round: the shift that was declared and the μ that it costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.audit.context import AuditContext
from airdistill.planning.uplinks import release_of
from airdistill.privacy.release import Spending
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


def promise_of(world: AuditContext) -> Promise:
    """The declared sensitivity model with the noise that these very rounds count."""
    plan, device, privacy = world.plan, world.device, world.scenario.privacy
    model = privacy.sensitivity
    sensitivity = np.stack([plan.uplink.sensitivity(model, this.index)[device] for this in world.rounds])
    mu = certified_mu(world, model)[:, device]
    return Promise(model, float(plan.fleet.delta[device]), sensitivity, mu, privacy.noise)


def certified_mu(world: AuditContext, model: str) -> FloatArray:
    """Of every device after each round, `[round, device]`: as the ledger of a run counts it."""
    plan, privacy = world.plan, world.scenario.privacy
    spending, spent = Spending(plan.fleet.num_devices), []
    for this in world.rounds:
        release = release_of(plan.uplink, this.design, this.known, this.index)
        spending = spending.after(release, plan.uplink.payload)
        spent.append(spending.squared_mu(model, privacy.trust, privacy.relabel))
    return np.sqrt(np.stack(spent))


def reference_bounds(world: AuditContext, promise: Promise) -> dict[str, FloatArray]:
    """Bounds to hold a measured shift against, `[round, row]` each: what was declared, and what is printed."""
    num_rounds, device = len(world.rounds), world.device
    found: dict[str, FloatArray] = {}
    if world.link.of_gradient:
        samples = len(world.own_labels)
        record = np.full((num_rounds, 1), 2 * world.scenario.learning.clip_norm / samples)
        found = {RECORD_GRADIENT: record}
    elif world.plan.uplink.payload == "knowledge":
        counts = world.plan.fleet.class_counts
        found = {
            name: np.tile(knowledge_sensitivity(counts, model)[device], (num_rounds, 1))
            for name, model in [(LEMMA_1, "paper"), (CLASS_MEAN, "class_mean")]
        }
    return {**found, declared_name(promise): promise.sensitivity}


def declared_name(promise: Promise) -> str:
    return f"declared, {promise.model}"
