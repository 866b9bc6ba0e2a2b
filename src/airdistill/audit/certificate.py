"""The guarantee of the audited device, round by round: the declared sensitivity and the certified μ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.audit.context import AuditContext
from airdistill.privacy.release import GroupedRelease
from airdistill.privacy.spending import Spending
from airdistill.privacy.targets import epsilon_of_mu


@dataclass(frozen=True)
class Guarantee:
    """Rounds 1..R: the declared bound on ‖q(D) − q(D')‖ of every row `[round, row]`, and the certified μ `[round]`."""

    model: str
    delta: float
    sensitivity: FloatArray
    mu: FloatArray
    noise: str

    @property
    def epsilon(self) -> FloatArray:
        """The certified ε at the device's δ, `[round]`."""
        return epsilon_of_mu(self.mu, self.delta, self.noise)


def guarantee_of(context: AuditContext) -> Guarantee:
    """The declared sensitivity and the μ certified for the counted noise of these rounds."""
    plan, device, privacy = context.plan, context.device, context.scenario.privacy
    model = privacy.sensitivity
    sensitivity = np.stack([plan.uplink.sensitivity(model, this.index)[device] for this in context.rounds])
    mu = certified_mu(context, model)[:, device]
    return Guarantee(model, float(plan.fleet.delta[device]), sensitivity, mu, privacy.noise)


def certified_mu(context: AuditContext, model: str) -> FloatArray:
    """μ of every device after each round, `[round, device]`, as the ledger of a run counts it."""
    plan, privacy = context.plan, context.scenario.privacy
    spending, spent = Spending.nothing(plan.fleet.num_devices), []
    for this in context.rounds:
        release = GroupedRelease.of(plan.uplink.release(this.design, this.known, this.index))
        spending = spending.after(release, plan.uplink.payload.neighbours.payload)
        spent.append(spending.squared_mu(model, privacy.trust, privacy.relabel))
    return np.sqrt(np.stack(spent))


def reference_bounds(context: AuditContext, guarantee: Guarantee) -> dict[str, FloatArray]:
    """Bounds to compare a measured shift with, by name, `[round, row]` each; the declared bound is the last."""
    num_rounds, bounds = len(context.rounds), context.plan.uplink.payload.reference_bounds(context.device)
    found = {name: np.tile(bound, (num_rounds, 1)) for name, bound in bounds.items()}
    return {**found, declared_name(guarantee): guarantee.sensitivity}


def declared_name(guarantee: Guarantee) -> str:
    return f"declared, {guarantee.model}"
