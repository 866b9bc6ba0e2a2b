"""The exact loss of privacy along a transcript: how far the twins drift apart, against the noise between them.

Given the past broadcasts, round t releases a Gaussian whose mean moves by w(q(D) − q(D')) between the two worlds. So
the log-likelihood ratio of the whole transcript is known exactly, and μ_t² = Σ_s Σ_k ‖shift_s,k‖²/c_s,k is what the
rounds up to t gave away along this transcript. If the bounds that the certificate composes held, no transcript could
exceed the certified μ_t; the smallest over many transcripts is an estimate of a lower bound on what is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from airdistill.arrays import FloatArray, divide_or
from airdistill.audit.certificate import Promise, declared_name, promise_of, reference_bounds
from airdistill.audit.context import AuditContext
from airdistill.audit.neighbours import Followed, Neighbour, NeighbouringPair
from airdistill.audit.options import AuditOptions, OnProgress
from airdistill.privacy.gaussian import gaussian_epsilon
from airdistill.streams import stream

TOLERANCE = 1e-6  # relative, for limits that can be met exactly but for rounding


@dataclass(frozen=True)
class PairAudit:
    """D and one neighbour: measured μ_t, shift of the most moved row, and its ratio to each bound.

    All are `[transcript, round]`. `compared` says whether the certificate speaks of such neighbours at all.
    """

    relation: str
    description: str
    compared: bool
    mu: FloatArray
    shift: FloatArray
    ratios: dict[str, FloatArray]

    def epsilon(self, delta: float) -> FloatArray:
        """Estimate of a lower bound on the true ε after each round, `[round]`: from the smallest μ."""
        return np.asarray(gaussian_epsilon(self.mu.min(axis=0), delta))


@dataclass(frozen=True)
class ExactAudit:
    """The worst pair by one record and the worst by the whole device. `bounds` are `[round]`, each its largest row."""

    promise: Promise
    pairs: tuple[PairAudit, ...]
    bounds: dict[str, FloatArray]
    num_candidates: int
    num_transcripts: int
    tolerance: float

    @property
    def num_rounds(self) -> int:
        return len(self.promise.mu)

    def certified_ratio(self, pair: PairAudit) -> FloatArray:
        """Smallest μ_t over transcripts over the certified μ_t, `[round]`; zero where none is certified."""
        finite = np.isfinite(self.promise.mu)
        return divide_or(pair.mu.min(axis=0), np.where(finite, self.promise.mu, 0.0), 0.0)

    @property
    def violations(self) -> tuple[str, ...]:
        return tuple(
            sentence for pair in self.pairs if pair.compared for sentence in (*self._moved(pair), *self._leaked(pair))
        )

    def _moved(self, pair: PairAudit) -> list[str]:
        """Where the declared bound was exceeded: nothing is random about a shift, so that once is enough."""
        ratios = pair.ratios[declared_name(self.promise)]
        exceeded = ratios > 1 + self.tolerance
        if not exceeded.any():
            return []
        every = ratios.min(axis=0)
        worst = int(np.argmax(every)) if exceeded.all(axis=0).any() else int(np.argmax(ratios.max(axis=0)))
        return [
            f"The declared sensitivity ({self.promise.model}) is no bound: with {pair.description}, the shift in round "
            f"{worst + 1} was {every[worst]:.3g} to {ratios[:, worst].max():.3g} times it, and exceeded it in "
            f"{np.count_nonzero(exceeded[:, worst])} of {self.num_transcripts} transcripts."
        ]

    def _leaked(self, pair: PairAudit) -> list[str]:
        """Where the smallest μ exceeds the certified one."""
        ratio = self.certified_ratio(pair)
        worst = int(np.argmax(ratio))
        if ratio[worst] <= 1 + self.tolerance:
            return []
        measured, promised = pair.epsilon(self.promise.delta)[worst], self.promise.epsilon[worst]
        return [
            f"The certificate does not hold: with {pair.description}, μ after round {worst + 1} was "
            f"{pair.mu.min(axis=0)[worst]:.3g} or more in each of {self.num_transcripts} transcripts, "
            f"certified {self.promise.mu[worst]:.3g}; that is ε of at least {measured:.3g} (estimated) "
            f"against {promised:.3g}."
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "sensitivity": self.promise.model,
            "delta": self.promise.delta,
            "candidates": self.num_candidates,
            "transcripts": self.num_transcripts,
            "certified_mu": self.promise.mu,
            "certified_epsilon": self.promise.epsilon,
            "bounds": self.bounds,
            "pairs": [self._pair_to_dict(pair) for pair in self.pairs],
        }

    def _pair_to_dict(self, pair: PairAudit) -> dict[str, Any]:
        return {
            "relation": pair.relation,
            "description": pair.description,
            "compared": pair.compared,
            "mu": _spread(pair.mu),
            "shift": _spread(pair.shift),
            "ratio_to": {name: _spread(ratio) for name, ratio in pair.ratios.items()},
            "ratio_to_certified_mu": self.certified_ratio(pair),
            "estimate_of_a_lower_bound_on_epsilon": pair.epsilon(self.promise.delta),
        }


def _spread(values: FloatArray) -> dict[str, FloatArray]:
    return {"smallest": values.min(axis=0), "median": np.median(values, axis=0), "largest": values.max(axis=0)}


def choose_worst(
    world: AuditContext, candidates: Sequence[Neighbour], options: AuditOptions, on_progress: OnProgress
) -> list[Neighbour]:
    """The record's and the device's neighbour with the largest μ, on a transcript that serves for nothing else."""

    def tell(done: int) -> None:
        on_progress("candidates tried", done, len(world.rounds))

    seed = transcript_seed(options, "audit-choice", 0)
    mu = measured_mu(world, NeighbouringPair(world, candidates).follow(seed, world.link.seeded_noise, on_round=tell))[
        -1
    ]
    chosen = []
    for relation in ("record", "device"):
        among = [place for place, candidate in enumerate(candidates) if candidate.relation == relation]
        chosen.append(candidates[max(among, key=lambda place: float(mu[place]))])
    return chosen


def measured_mu(world: AuditContext, followed: Followed) -> FloatArray:
    """μ_t after each round, `[round, neighbour]`; infinite where something moved and no noise is counted."""
    weights = world.link.nominal_weights()[world.device]
    moved = weights**2 * followed.squared_shift
    counted = world.counted_noise_var()[:, None]
    cost = np.where(moved > 0, divide_or(moved, np.broadcast_to(counted, moved.shape), np.inf), 0.0)
    return np.asarray(np.sqrt(np.cumsum(cost.sum(axis=-1), axis=0)))


def transcript_seed(options: AuditOptions, purpose: str, index: int) -> int:
    return int(stream(options.seed, purpose, index).integers(2**63))


def audit_exactly(
    world: AuditContext, chosen: Sequence[Neighbour], options: AuditOptions, on_progress: OnProgress
) -> ExactAudit:
    """Follows the chosen pairs along fresh transcripts."""
    promise, twins, transcripts = promise_of(world), NeighbouringPair(world, chosen), []
    for index in range(options.transcripts):
        seed = transcript_seed(options, "audit-transcript", index)
        transcripts.append(twins.follow(seed, world.link.seeded_noise))
        on_progress("transcripts followed", index + 1, options.transcripts)
    bounds = reference_bounds(world, promise)
    pairs = [_pair(world, transcripts, place, pair, promise, bounds) for place, pair in enumerate(chosen)]
    return ExactAudit(
        promise,
        tuple(pairs),
        {name: bound.max(axis=1) for name, bound in bounds.items()},
        options.candidates,
        options.transcripts,
        _tolerance(world),
    )


def _pair(
    world: AuditContext,
    transcripts: Sequence[Followed],
    place: int,
    neighbour: Neighbour,
    promise: Promise,
    bounds: dict[str, FloatArray],
) -> PairAudit:
    taking_part = np.stack([this.design.weights[world.device] > 0 for this in world.rounds])
    shift = np.sqrt(np.stack([followed.squared_shift[:, place] for followed in transcripts])) * taking_part
    return PairAudit(
        neighbour.relation,
        neighbour.description,
        neighbour.relation == "record" or promise.model == "device",
        np.stack([measured_mu(world, followed)[:, place] for followed in transcripts]),
        shift.max(axis=-1),
        {
            name: divide_or(shift, np.broadcast_to(bound, shift.shape), 0.0).max(axis=-1)
            for name, bound in bounds.items()
        },
    )


def _tolerance(world: AuditContext) -> float:
    """A gradient is summed in the engine's own numbers: its rounding, held against a record's share of 1/B_i."""
    if not world.link.of_gradient:
        return TOLERANCE
    return TOLERANCE + 8 * float(torch.finfo(world.engine.dtype).eps) * len(world.own_labels)
