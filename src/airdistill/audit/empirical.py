"""The likelihood-ratio attack on noise that is really drawn: does it hide as much as is counted?

The exact part trusts the counted variance c. This part draws the noise by the production path, round for round, keeps
of it what the trust model counts, and attacks the worst pair with the best test there is,
Λ = Σ⟨y − (m + m')/2, m' − m⟩/c, which is N(∓μ²/2, μ²) for Gaussian noise of variance c. Two things are looked at:

* the attack's AUC against Φ(μ/√2). For a tiny or a huge μ every noise gives the same AUC, so that the pair is
  also moved along its own line to a distance of μ = 1.5, where the AUC reacts most;
* the variance of all noise entries over c, which sees a few per cent with few trials, and the lowest of all rows;
* the variance of sums of noise, over rounds and over rows, against that of independent draws: noise that is used twice
  hides the first use and gives the second away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import chdtri, ndtr

from airdistill.arrays import FloatArray, IntArray
from airdistill.audit.exact import transcript_seed
from airdistill.audit.link import AirRound, NoiseSource
from airdistill.audit.neighbours import Neighbour
from airdistill.audit.options import AuditOptions, OnProgress
from airdistill.audit.scores import LEVEL, Interval, Roc, auc, roc
from airdistill.audit.twins import follow
from airdistill.audit.world import World

TESTED_MU = 1.5
_MOST_STREAMS = 600_000  # generators that all trials together may start: one for each device and round
_MOST_NUMBERS = {"seeded": 2 * 10**8, "secure": 2 * 10**6}  # that all trials together may send
_FEWEST_TRIALS = 20
_MOST_POINTS = 400  # of a curve that is kept
_SUM_LOOKS = 10  # widens the intervals of sums, so that all looks together raise a false alarm in well under 1 %


@dataclass(frozen=True)
class EmpiricalAudit:
    """`pair` was attacked over `num_rounds` rounds in `num_trials` trials of each world."""

    pair: str
    num_rounds: int
    num_trials: int
    mu: float
    auc: Interval
    tested_auc: Interval
    roc: Roc
    variance: Interval
    lowest_row: Interval
    lowest_row_round: int
    sums: dict[str, Interval]

    @property
    def expected_auc(self) -> float:
        return float(ndtr(self.mu / np.sqrt(2)))

    @property
    def expected_tested_auc(self) -> float:
        return float(ndtr(TESTED_MU / np.sqrt(2)))

    @property
    def violations(self) -> tuple[str, ...]:
        found = []
        for at, measured, expected in [
            (self.mu, self.auc, self.expected_auc),
            (TESTED_MU, self.tested_auc, self.expected_tested_auc),
        ]:
            if measured.low > expected:
                found.append(
                    f"Noise lower than counted: at μ = {at:.3g} the likelihood-ratio attack has an AUC of "
                    f"{measured.value:.4f}, at least {measured.low:.4f}; counted noise would leave {expected:.4f}."
                )
        for what, measured in [
            ("of all entries", self.variance),
            (f"of a row in round {self.lowest_row_round}", self.lowest_row),
        ]:
            if measured.high < 1:
                found.append(
                    f"Noise lower than counted: the variance {what} is {measured.value:.4f} of the counted one, "
                    f"{measured.high:.4f} at most."
                )
        for over, measured in self.sums.items():
            if not measured.low <= 1 <= measured.high:
                found.append(
                    f"Noise is used again: its sum over {over} has {measured.value:.3g} times the variance of "
                    f"independent draws, {measured.low:.3g} to {measured.high:.3g}."
                )
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        return {
            "pair": self.pair,
            "rounds": self.num_rounds,
            "trials": self.num_trials,
            "level": LEVEL,
            "mu": self.mu,
            "auc": vars(self.auc),
            "expected_auc": self.expected_auc,
            "tested_mu": TESTED_MU,
            "tested_auc": vars(self.tested_auc),
            "expected_tested_auc": self.expected_tested_auc,
            "roc": vars(self.roc),
            "variance": vars(self.variance),
            "lowest_row": {**vars(self.lowest_row), "round": self.lowest_row_round},
            "sums": {over: vars(interval) for over, interval in self.sums.items()},
        }


@dataclass(frozen=True)
class _PairRound:
    """A round's two vectors before any weight `[row, entry]`, their means as seen, and c `[row]`, where rows count."""

    this: AirRound
    vectors: tuple[FloatArray, FloatArray]
    means: tuple[FloatArray, FloatArray]
    counted: FloatArray
    rows: IntArray

    @property
    def whitened_shift(self) -> FloatArray:
        """(m' − m)/√c, `[row, entry]`."""
        return np.asarray((self.means[1] - self.means[0]) / np.sqrt(self.counted)[:, None])


def audit_empirically(
    world: World,
    neighbour: Neighbour,
    options: AuditOptions,
    on_progress: OnProgress,
    noise_source: NoiseSource | None = None,
) -> EmpiricalAudit | None:
    """Attacks fresh noise from the source, by default as a run draws it; None where no noise is counted."""
    seed = transcript_seed(options, "audit-attacked", 0)
    followed = follow(world, [neighbour], seed, world.link.seeded_noise, keep_vectors=True)
    pairs = [
        pair
        for this, vectors in zip(world.rounds, followed.vectors, strict=True)
        if (pair := _pair_round(world, this, vectors)) is not None
    ]
    if not pairs:
        return None
    num_trials, num_rounds = _affordable(world, options.trials, len(pairs))
    source = noise_source or _production_source(world)
    return _attack(world, pairs[:num_rounds], num_trials, neighbour.description, options, source, on_progress)


def _production_source(world: World) -> NoiseSource:
    channels = {this.index: this.channel for this in world.rounds}
    return lambda seed, index, design: world.link.production_noise(seed, index, design, channels[index])


def _pair_round(world: World, this: AirRound, vectors: FloatArray) -> _PairRound | None:
    """None where the device sends nothing, or nothing that noise is counted for."""
    counted = this.design.counted_noise_var[world.device]
    now, usual = world.link.weights(this.index)[world.device], world.link.usual_weights()[world.device]
    rows = np.flatnonzero((now > 0) & np.isfinite(counted) & (counted > 0))
    if not len(rows):
        return None
    # Counted noise is in units of the usual weight; a round's sum has the weight of that round.
    as_sent = counted[rows] * (now[rows] / usual[rows]) ** 2
    means = [now[rows][:, None] * vector[rows] for vector in vectors]
    return _PairRound(this, (vectors[0], vectors[1]), (means[0], means[1]), as_sent, rows)


def _affordable(world: World, asked: int, num_rounds: int) -> tuple[int, int]:
    """Trials in each world and rounds of each, within the budget; first trials are given up, then rounds."""
    fleet, uplink = world.plan.fleet, world.plan.uplink
    makes_noise = any(this.design.noise_gain.any() for this in world.rounds)
    num_senders = fleet.num_devices if makes_noise else 1
    numbers = num_senders * uplink.num_rows * uplink.vector_length
    most_rounds = int(
        min(_MOST_STREAMS / (2 * num_senders), _MOST_NUMBERS[world.scenario.privacy.noise] / (2 * numbers))
    )  # of each world
    num_trials = max(min(_FEWEST_TRIALS, asked), min(asked, most_rounds // num_rounds))
    return num_trials, max(1, min(num_rounds, most_rounds // num_trials))


def _attack(
    world: World,
    pairs: list[_PairRound],
    num_trials: int,
    name: str,
    options: AuditOptions,
    source: NoiseSource,
    on_progress: OnProgress,
) -> EmpiricalAudit:
    mu = float(np.sqrt(sum(float((pair.whitened_shift**2).sum()) for pair in pairs)))
    lines, along = _unit_line(pairs, mu), np.zeros((2, num_trials))
    squares, sums = [np.zeros(len(pair.rows)) for pair in pairs], _Sums()
    for trial in range(num_trials):
        for side in (0, 1):
            seed = transcript_seed(options, f"audit-trial-{side}", trial)
            residuals = [_residual(world, pair, side, seed, source) for pair in pairs]
            for place, residual in enumerate(residuals):
                along[side, trial] += float((residual * lines[place]).sum())
                squares[place] += (residual**2).sum(axis=1)
            sums.add(pairs, residuals)
        on_progress("noise attacked", trial + 1, num_trials)
    entries = 2 * num_trials * world.plan.uplink.vector_length
    row_variances = np.concatenate(squares) / entries
    lowest = int(np.argmin(row_variances))
    owners = np.repeat([pair.this.index for pair in pairs], [len(pair.rows) for pair in pairs])
    ratios = _ratios(along, mu)
    return EmpiricalAudit(
        pair=name,
        num_rounds=len(pairs),
        num_trials=num_trials,
        mu=mu,
        auc=auc(ratios[1], ratios[0]),
        tested_auc=_tested(along),
        roc=_thinned(roc(ratios[1], ratios[0])),
        variance=variance_interval(float(np.concatenate(squares).sum()), entries * len(row_variances)),
        lowest_row=variance_interval(float(np.concatenate(squares)[lowest]), entries, len(row_variances)),
        lowest_row_round=int(owners[lowest]),
        sums=sums.intervals(float(row_variances.mean())),
    )


class _Sums:
    """Sums of whitened noise over rounds and over rows, each scaled to the variance that independent noise gives it."""

    def __init__(self) -> None:
        self._squares = {"rounds": 0.0, "rows": 0.0}
        self._sizes = {"rounds": 0, "rows": 0}

    def add(self, pairs: list[_PairRound], residuals: list[FloatArray]) -> None:
        """One trial's residuals `[row, entry]` of every round."""
        by_row: dict[int, list[FloatArray]] = {}
        for pair, residual in zip(pairs, residuals, strict=True):
            self._note("rows", residual)
            for row, noise in zip(pair.rows.tolist(), residual, strict=True):
                by_row.setdefault(row, []).append(noise)
        for noises in by_row.values():
            self._note("rounds", np.stack(noises))

    def _note(self, over: str, noise: FloatArray) -> None:
        if len(noise) > 1:
            self._squares[over] += float((noise.sum(axis=0) ** 2).sum() / len(noise))
            self._sizes[over] += noise.shape[1]

    def intervals(self, variance: float) -> dict[str, Interval]:
        """Over the variance of single entries, so that weak noise does not pass for noise used again."""
        return {
            over: variance_interval(self._squares[over] / variance, size, _SUM_LOOKS)
            for over, size in self._sizes.items()
            if size
        }


def _unit_line(pairs: list[_PairRound], mu: float) -> list[FloatArray]:
    """From one world's whitened means to the other's, of length 1 over all rounds; any direction if nothing moved."""
    if mu > 0:
        return [pair.whitened_shift / mu for pair in pairs]
    size = sum(pair.means[0].size for pair in pairs)
    return [np.full(pair.means[0].shape, size**-0.5) for pair in pairs]


def _residual(world: World, pair: _PairRound, side: int, seed: int, source: NoiseSource) -> FloatArray:
    """(y − m)/√c of one trial's round in the world of D (0) or D' (1), `[row, entry]`: through the real air."""
    noise = world.link.counted_part(source(seed, pair.this.index, pair.this.design))
    seen = world.link.seen(pair.this, pair.vectors[side], noise)[pair.rows]
    return np.asarray((seen - pair.means[side]) / np.sqrt(pair.counted)[:, None])


def _ratios(along: FloatArray, mu: float) -> tuple[FloatArray, FloatArray]:
    """Λ in both worlds `[trial]`, from the noise along the line between the means, for a distance of μ."""
    return mu * along[0] - mu**2 / 2, mu * along[1] + mu**2 / 2


def _tested(along: FloatArray) -> Interval:
    ratios = _ratios(along, TESTED_MU)
    return auc(ratios[1], ratios[0])


def variance_interval(sum_of_squares: float, num_entries: int, num_looks: int = 1) -> Interval:
    """χ² interval of a variance; for the lowest of several, wide enough that all of them hold at once."""
    tail = (1 - LEVEL) / 2 / num_looks
    low, high = (sum_of_squares / float(chdtri(num_entries, share)) for share in (tail, 1 - tail))
    return Interval(sum_of_squares / num_entries, low, high)


def _thinned(curve: Roc) -> Roc:
    """At most so many points, the ends among them."""
    size = len(curve.false_positive)
    chosen = np.unique(np.linspace(0, size - 1, min(size, _MOST_POINTS)).round().astype(np.int64))
    return Roc(curve.false_positive[chosen], curve.true_positive[chosen])
