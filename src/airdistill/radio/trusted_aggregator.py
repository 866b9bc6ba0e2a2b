"""The trusted aggregator of votes: charge the ledger, then answer once.

The counterpart of `radio.charged_round` for votes that reach a party which adds the noise (`privacy.pate`). Nothing
else answers, and so no answer is missing from a ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray, IntArray
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.planning.trusted_uplink import TrustedUplink
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.pate import (
    UNANSWERED,
    ConfidentGnmax,
    data_dependent_rdp,
    epsilon_of_rdp,
    published_rdp,
)
from airdistill.radio.charged_round import check_vectors
from airdistill.radio.discrete_noise import discrete_gaussian
from airdistill.radio.superposition import Permission, Reception, weighted_sum
from airdistill.streams import Seed, noise_seed, stream


@dataclass
class ChargedVotes:
    """A round of votes that its ledger has charged in full: all checks, and as many answers as are allowed.

    `noise_seed` is that of the ledger's entry; None for noise of the operating system.
    """

    plan: Plan
    index: int
    design: RoundDesign
    noise_seed: Seed | None
    permission: Permission = field(repr=False)

    def transmit(self, vectors: FloatArray) -> Reception:
        """The aggregator's answers to every device's votes `[device, 1, query · class]`, one-hot; NaN where it gave
        none. Raise `AirDistillError` for anything but votes, or on a second call."""
        check_vectors(self.plan, _sent(self.design), vectors, self.index)
        self.permission.open()
        self.permission.use()
        settings, num_classes = settings_of(self.plan), self.plan.fleet.num_classes
        counts = vectors.sum(axis=0).reshape(settings.num_queries, num_classes).round().astype(np.int64)
        checks, noise = self._draws(settings, num_classes)
        labels = settings.answers(counts, checks, noise)
        answered = labels != UNANSWERED
        rows = np.where(answered[:, None], np.eye(num_classes)[labels], np.nan)
        used = noise[answered] / self.plan.fleet.num_devices
        return Reception(
            received=rows.reshape(1, -1),
            ideal=weighted_sum(self.design.weights, vectors),
            squared_error=np.array([np.mean(used**2) if answered.any() else 0.0]),
            predicted_noise_var=self.design.effective_noise_var,
            design=self.design,
            uplink_seconds=self.plan.air_time.total_s,
        )

    def _draws(self, settings: ConfidentGnmax, num_classes: int) -> tuple[FloatArray, FloatArray]:
        """Noise of the checks `[query]` and of the counts `[query, class]`, in votes."""
        shape = (settings.num_queries, num_classes)
        if self.noise_seed is None:
            whole = discrete_gaussian(settings.threshold_noise, settings.num_queries)
            return whole.astype(np.float64), discrete_gaussian(settings.vote_noise, shape).astype(np.float64)
        first, second = (stream(self.noise_seed, name, self.index) for name in ("threshold-noise", "vote-noise"))
        checks = settings.threshold_noise * first.standard_normal(settings.num_queries)
        return checks, settings.vote_noise * second.standard_normal(shape)


def charge_votes(plan: Plan, ledger: Ledger, round_index: int) -> ChargedVotes:
    """Charge a round of votes. Raise `BudgetExceeded` if it exceeds a device's budget."""
    nowhere = np.zeros(plan.fleet.num_devices, dtype=np.complex128)
    design = plan.design(nowhere, round_index)
    key = ledger.charge(plan.uplink.release(design, nowhere, round_index))
    seed = None if plan.scenario.privacy.noise == "secure" else noise_seed(plan.scenario.seed, key)
    return ChargedVotes(plan, round_index, design, seed, Permission(round_index))


def settings_of(plan: Plan) -> ConfidentGnmax:
    assert isinstance(plan.uplink, TrustedUplink)
    return plan.uplink.payload.settings


def facts_of_votes(plan: Plan, votes: FloatArray, answers: FloatArray) -> dict[str, Any]:
    """What a record keeps of a round: how many samples were answered, and the data-dependent ε of the worst device.

    `votes` are the mean votes and `answers` what was received, `[1, query · class]`. Both ε are functions of private
    votes. The first is a bound for these votes, the second the paper's formula and conversion.
    """
    settings, fleet = settings_of(plan), plan.fleet
    counts: IntArray = (fleet.num_devices * votes).round().astype(np.int64).reshape(settings.num_queries, -1)
    delta = float(fleet.delta.min())
    facts: dict[str, Any] = {
        "queries": settings.num_queries,
        "answered": int(np.isfinite(answers.reshape(counts.shape)).all(axis=1).sum()),
    }
    if settings.vote_noise > 0 and plan.scenario.privacy.noise == "seeded":  # the analysis is of continuous noise
        facts["data_dependent_epsilon"] = epsilon_of_rdp(data_dependent_rdp(settings, counts), delta)
        facts["published_epsilon"] = epsilon_of_rdp(published_rdp(settings, counts), delta, published=True)
    return facts


def _sent(design: RoundDesign) -> RoundDesign:
    """The design as if every device were on the air, for checks of what they send."""
    return replace(design, signal_gain=np.ones(design.signal_gain.shape, dtype=np.complex128))
