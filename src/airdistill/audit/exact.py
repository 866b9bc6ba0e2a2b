"""The exact privacy loss along a transcript: the shift between the neighbours, relative to the noise.

Given the past broadcasts, round t releases a Gaussian whose mean differs by w(q(D) − q(D')) between the neighbours. The
log-likelihood ratio of the whole transcript is therefore known exactly, and μ_t² = Σ_s Σ_k ‖shift_s,k‖²/c_s,k is the
privacy loss of the rounds up to t along this transcript. If the bounds that the certificate composes are valid, no
transcript exceeds the certified μ_t. The smallest μ_t over many transcripts estimates a lower bound on the true one.
With noise that is correlated over rounds the ratio is that of all rounds jointly: shifts and noise are multiplied by E,
which makes the noise independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from airdistill.arrays import FloatArray, divide_or
from airdistill.audit.context import AuditContext
from airdistill.audit.neighbours import Followed, Neighbour, NeighbouringPair, squared_joint_shift
from airdistill.audit.options import AuditOptions, OnProgress
from airdistill.privacy.gaussian import gaussian_epsilon
from airdistill.privacy.release import GroupedRelease
from airdistill.privacy.spending import Spending
from airdistill.privacy.targets import epsilon_of_mu
from airdistill.schemes.protocol import BaseProtocol, ConstructedPair
from airdistill.streams import stream

TOLERANCE = 1e-6  # relative: limits may be met exactly, up to rounding


@dataclass(frozen=True)
class PairAudit:
    """D and one neighbour: measured μ_t, shift of the row that moves most, and its ratio to each bound.

    All are `[transcript, round]`. `compared` states whether the certificate covers such neighbours, and `guaranteed`
    names the bounds that it rests on. A `constructed` pair is of embedded data, the same along every transcript.
    """

    relation: str
    description: str
    compared: bool
    mu: FloatArray
    shift: FloatArray
    ratios: dict[str, FloatArray]
    guaranteed: tuple[str, ...] = ()
    constructed: bool = False

    def epsilon(self, delta: float) -> FloatArray:
        """Estimated lower bound on the true ε after each round, `[round]`, from the smallest μ."""
        return np.asarray(gaussian_epsilon(self.mu.min(axis=0), delta))


@dataclass(frozen=True)
class ExactAudit:
    """The worst pair by one record and the worst by the whole device. `bounds` are `[round]`, of the largest row."""

    guarantee: Guarantee
    pairs: tuple[PairAudit, ...]
    bounds: dict[str, FloatArray]
    num_candidates: int
    num_transcripts: int
    tolerance: float

    @property
    def num_rounds(self) -> int:
        return len(self.guarantee.mu)

    def certified_ratio(self, pair: PairAudit) -> FloatArray:
        """Smallest μ_t of all transcripts, divided by the certified μ_t, `[round]`; zero if that is infinite."""
        finite = np.isfinite(self.guarantee.mu)
        return divide_or(pair.mu.min(axis=0), np.where(finite, self.guarantee.mu, 0.0), 0.0)

    @property
    def violations(self) -> tuple[str, ...]:
        found: list[str] = []
        for pair in self.pairs:
            if pair.compared:
                found += [*(line for name in pair.guaranteed for line in self._moved(pair, name)), *self._leaked(pair)]
        return tuple(found)

    def _moved(self, pair: PairAudit, name: str) -> list[str]:
        """Violation of a guaranteed bound. A shift is not random, and so a single transcript is enough."""
        ratios = pair.ratios[name]
        exceeded = ratios > 1 + self.tolerance
        if not exceeded.any():
            return []
        every = ratios.min(axis=0)
        worst = int(np.argmax(every)) if exceeded.all(axis=0).any() else int(np.argmax(ratios.max(axis=0)))
        return [
            f"The {self._in_words(name)} is not a valid bound: with {pair.description}, the "
            f"shift in round {worst + 1} was {every[worst]:.3g} to {ratios[:, worst].max():.3g} times it, and "
            f"exceeded it in {np.count_nonzero(exceeded[:, worst])} of {len(ratios)} transcripts."
        ]

    def _in_words(self, name: str) -> str:
        is_declared = name == declared_name(self.guarantee)
        return f"declared sensitivity ({self.guarantee.model})" if is_declared else f"certified bound of {name}"

    def _leaked(self, pair: PairAudit) -> list[str]:
        """Violation of the certificate: the smallest μ exceeds the certified one."""
        ratio = self.certified_ratio(pair)
        worst = int(np.argmax(ratio))
        if ratio[worst] <= 1 + self.tolerance:
            return []
        measured, certified = pair.epsilon(self.guarantee.delta)[worst], self.guarantee.epsilon[worst]
        return [
            f"The certificate does not hold: with {pair.description}, μ after round {worst + 1} was "
            f"{pair.mu.min(axis=0)[worst]:.3g} or more in each of {len(pair.mu)} transcripts, "
            f"and the certified μ is {self.guarantee.mu[worst]:.3g}; ε is at least {measured:.3g} (estimated), and the "
            f"certified ε is {certified:.3g}."
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "sensitivity": self.guarantee.model,
            "delta": self.guarantee.delta,
            "candidates": self.num_candidates,
            "transcripts": self.num_transcripts,
            "certified_mu": self.guarantee.mu,
            "certified_epsilon": self.guarantee.epsilon,
            "bounds": self.bounds,
            "pairs": [self._pair_to_dict(pair) for pair in self.pairs],
        }

    def _pair_to_dict(self, pair: PairAudit) -> dict[str, Any]:
        return {
            "relation": pair.relation,
            "description": pair.description,
            "compared": pair.compared,
            "constructed": pair.constructed,
            "mu": _spread(pair.mu),
            "shift": _spread(pair.shift),
            "ratio_to": {name: _spread(ratio) for name, ratio in pair.ratios.items()},
            "ratio_to_certified_mu": self.certified_ratio(pair),
            "estimate_of_a_lower_bound_on_epsilon": pair.epsilon(self.guarantee.delta),
        }


def _spread(values: FloatArray) -> dict[str, FloatArray]:
    return {"smallest": values.min(axis=0), "median": np.median(values, axis=0), "largest": values.max(axis=0)}


def choose_worst(
    context: AuditContext, candidates: Sequence[Neighbour], options: AuditOptions, on_progress: OnProgress
) -> list[Neighbour]:
    """The neighbours by record and by device with the largest μ, on a transcript that is used for nothing else."""

    def tell(done: int) -> None:
        on_progress("candidates tried", done, len(context.rounds))

    seed = transcript_seed(options, "audit-choice", 0)
    followed = NeighbouringPair(context, candidates).follow(seed, context.link.transcript_noise(), on_round=tell)
    mu = measured_mu(context, followed)[-1]
    chosen = []
    for relation in ("record", "device"):
        among = [place for place, candidate in enumerate(candidates) if candidate.relation == relation]
        chosen.append(candidates[max(among, key=lambda place: float(mu[place]))])
    return chosen


def measured_mu(context: AuditContext, followed: Followed) -> FloatArray:
    """μ_t after each round, `[round, neighbour]`; infinite if a row moved without counted noise."""
    weights = context.link.nominal_weights()[context.device]
    joint = followed.squared_joint_shift
    moved = weights**2 * followed.squared_shift if joint is None else joint
    counted = context.counted_noise_var()[:, None]
    cost = np.where(moved > 0, divide_or(moved, np.broadcast_to(counted, moved.shape), np.inf), 0.0)
    return np.asarray(np.sqrt(np.cumsum(cost.sum(axis=-1), axis=0)))


def transcript_seed(options: AuditOptions, purpose: str, index: int) -> int:
    return int(stream(options.seed, purpose, index).integers(2**63))


def audit_exactly(
    context: AuditContext, chosen: Sequence[Neighbour], options: AuditOptions, on_progress: OnProgress
) -> ExactAudit:
    """Follow the chosen pairs along fresh transcripts."""
    guarantee, learners, transcripts = guarantee_of(context), NeighbouringPair(context, chosen), []
    for index in range(options.transcripts):
        seed = transcript_seed(options, "audit-transcript", index)
        transcripts.append(learners.follow(seed, context.link.transcript_noise()))
        on_progress("transcripts followed", index + 1, options.transcripts)
    bounds = reference_bounds(context, guarantee)
    pairs = [_pair(context, transcripts, place, pair, guarantee, bounds) for place, pair in enumerate(chosen)]
    for built in constructed_pairs(context, options):
        made = _pair(context, [constant(context, built)], 0, built, guarantee, bounds)
        pairs.append(replace(made, constructed=True))
    return ExactAudit(
        guarantee,
        tuple(pairs),
        {name: bound.max(axis=1) for name, bound in bounds.items()},
        options.candidates,
        options.transcripts,
        _tolerance(context),
    )


def constructed_pairs(context: AuditContext, options: AuditOptions) -> list[ConstructedPair]:
    """The constructed pairs with the largest μ by record and by device; empty if the payload has none."""
    protocol = context.protocol
    rng = stream(options.seed, "audit-constructed")
    built = protocol.constructed_pairs(context.device, rng) if isinstance(protocol, BaseProtocol) else ()
    mu = {id(pair): float(measured_mu(context, constant(context, pair))[-1, 0]) for pair in built}
    by_relation = [[pair for pair in built if pair.relation == relation] for relation in ("record", "device")]
    return [max(among, key=lambda pair: mu[id(pair)]) for among in by_relation if among]


def constant(context: AuditContext, pair: ConstructedPair) -> Followed:
    """A pair of vectors that is the same in every round, along any transcript."""
    moved = (pair.vectors[1] - pair.vectors[0])[None]
    num_rounds, weighted = len(context.rounds), list[FloatArray]()
    if context.plan.uplink.correlation is not None:
        weighted = [this.design.weights[context.device][:, None] * moved for this in context.rounds]
    shift = np.tile((moved**2).sum(axis=-1), (num_rounds, 1, 1))
    return Followed(shift, (pair.vectors,) * num_rounds, squared_joint_shift(context, weighted))


def _pair(
    context: AuditContext,
    transcripts: Sequence[Followed],
    place: int,
    neighbour: Neighbour | ConstructedPair,
    guarantee: Guarantee,
    bounds: dict[str, FloatArray],
) -> PairAudit:
    participating = np.stack([this.design.weights[context.device] > 0 for this in context.rounds])
    shift = np.sqrt(np.stack([followed.squared_shift[:, place] for followed in transcripts])) * participating
    return PairAudit(
        neighbour.relation,
        neighbour.description,
        neighbour.relation == "record" or guarantee.model == "device",
        np.stack([measured_mu(context, followed)[:, place] for followed in transcripts]),
        shift.max(axis=-1),
        {
            name: divide_or(shift, np.broadcast_to(bound, shift.shape), 0.0).max(axis=-1)
            for name, bound in bounds.items()
        },
        _guaranteed(context, neighbour.relation, guarantee, bounds),
    )


def _guaranteed(
    context: AuditContext, relation: str, guarantee: Guarantee, bounds: dict[str, FloatArray]
) -> tuple[str, ...]:
    """The bounds that the certificate states for such a pair: the declared one, and an exact one for records."""
    if relation == "record" and context.plan.uplink.payload.neighbours.record_is_exact:
        return tuple(bounds)
    return (declared_name(guarantee),)


def _tolerance(context: AuditContext) -> float:
    """Relative tolerance of shifts: a gradient has the engine's rounding error, relative to a record's share 1/B_i."""
    if context.plan.uplink.payload.is_knowledge:
        return TOLERANCE
    return TOLERANCE + 8 * float(torch.finfo(context.engine.dtype).eps) * len(context.own_labels)


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
