"""The likelihood-ratio attack on noise that is really drawn: does it hide as much as is counted?

The exact part trusts the counted variance c. This part draws the noise by the production path, round for round, keeps
of it what the trust model counts, and attacks the worst pair with the best test there is,
Λ = Σ⟨y − (m + m')/2, m' − m⟩/c, which is N(∓μ²/2, μ²) for Gaussian noise of variance c. Two things are looked at:

* the attack's AUC against Φ(μ/√2). For a tiny or a huge μ every noise gives the same AUC, so that the pair is
  also moved along its own line to a distance of μ = 1.5, where the AUC reacts most;
* the variance of all noise entries over c, which sees a few per cent with few trials, and the lowest of all rows;
* the largest correlation between any two rows of any rounds, between entries of a row, and between squares, which no
  change of sign hides: noise that is used twice hides the first use and gives the second away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import chdtri, ndtr, ndtri

from airdistill.arrays import FloatArray, IntArray
from airdistill.audit.context import AirRound, AuditContext, NoiseSource
from airdistill.audit.exact import transcript_seed
from airdistill.audit.membership import LEVEL, Interval, Roc, auc, roc
from airdistill.audit.neighbours import Neighbour, follow
from airdistill.audit.options import AuditOptions, OnProgress

TESTED_MU = 1.5
_MOST_STREAMS = 600_000  # generators that all trials together may start: one for each device and round
_MOST_NUMBERS = {"seeded": 2 * 10**8, "secure": 2 * 10**6}  # that all trials together may send
_FEWEST_TRIALS = 20
_MOST_POINTS = 400  # of a curve that is kept
_MOST_ENTRIES = 100  # of a row whose entries are held against each other
# Squares have heavy tails: ten standard errors, and from enough draws on.
_SQUARES_NEED, _SQUARES_ERRORS = 400, 10.0


@dataclass(frozen=True)
class Correlation:
    """The largest that was measured, and what that of independent draws stays below."""

    value: float
    limit: float


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
    correlations: dict[str, Correlation]

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
        for between, largest in self.correlations.items():
            if largest.value > largest.limit:
                found.append(
                    f"Noise is used again: the largest correlation between {between} is {largest.value:.3f}; of "
                    f"independent draws it stays below {largest.limit:.3f}."
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
            "correlations": {between: vars(measured) for between, measured in self.correlations.items()},
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
    world: AuditContext,
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


def _production_source(world: AuditContext) -> NoiseSource:
    channels = {this.index: this.known for this in world.rounds}
    return lambda seed, index, design: world.link.production_noise(seed, index, design, channels[index])


def _pair_round(world: AuditContext, this: AirRound, vectors: FloatArray) -> _PairRound | None:
    """None where the device sends nothing, or nothing that noise is counted for."""
    counted = world.link.counted_noise_var(this)
    now, usual = this.design.weights[world.device], world.link.nominal_weights()[world.device]
    rows = np.flatnonzero((now > 0) & np.isfinite(counted) & (counted > 0))
    if not len(rows):
        return None
    # Counted noise is in units of the usual weight; a round's sum has the weight of that round, as it arrives.
    slip = world.link.slip(this)
    as_sent = counted[rows] * (np.abs(slip) * now[rows] / usual[rows]) ** 2
    means = [(np.abs(slip) * now[rows])[:, None] * vector[rows] for vector in vectors]
    return _PairRound(this, (vectors[0], vectors[1]), (means[0], means[1]), as_sent, rows)


def _affordable(world: AuditContext, asked: int, num_rounds: int) -> tuple[int, int]:
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
    world: AuditContext,
    pairs: list[_PairRound],
    num_trials: int,
    name: str,
    options: AuditOptions,
    source: NoiseSource,
    on_progress: OnProgress,
) -> EmpiricalAudit:
    mu = float(np.sqrt(sum(float((pair.whitened_shift**2).sum()) for pair in pairs)))
    lines, along = _unit_line(pairs, mu), np.zeros((2, num_trials))
    squares, products = [np.zeros(len(pair.rows)) for pair in pairs], _Products()
    for trial in range(num_trials):
        for side in (0, 1):
            seed = transcript_seed(options, f"audit-trial-{side}", trial)
            residuals = [_residual(world, pair, side, seed, source) for pair in pairs]
            for place, residual in enumerate(residuals):
                along[side, trial] += float((residual * lines[place]).sum())
                squares[place] += (residual**2).sum(axis=1)
            products.add(np.concatenate(residuals))
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
        correlations=products.correlations(),
    )


class _Products:
    """Products of whitened noise, added up over trials: between all rows of all rounds, and between entries of rows."""

    def __init__(self) -> None:
        self._rows = self._squares = self._entries = np.zeros((0, 0))
        self._num_trials = 0
        self._length = 0

    def add(self, noise: FloatArray) -> None:
        """One trial's `[row of any round, entry]`."""
        power = (noise**2 - 1) / np.sqrt(2)
        first = self._num_trials == 0
        self._rows = noise @ noise.T if first else self._rows + noise @ noise.T
        self._squares = power @ power.T if first else self._squares + power @ power.T
        if noise.shape[1] <= _MOST_ENTRIES:
            self._entries = noise.T @ noise if first else self._entries + noise.T @ noise
        self._num_trials += 1
        self._length = noise.shape[1]

    def correlations(self) -> dict[str, Correlation]:
        """The largest of each kind, where there are pairs, and what independent draws stay below."""
        per_row = self._num_trials * self._length
        found = {"rows": _largest(self._rows, per_row)}
        if per_row >= _SQUARES_NEED:
            value = _largest(self._squares, per_row).value
            found["squares of rows"] = Correlation(value, _SQUARES_ERRORS / float(np.sqrt(per_row)))
        found["entries"] = _largest(self._entries, self._num_trials * len(self._rows))
        return {between: measured for between, measured in found.items() if np.isfinite(measured.value)}


def _largest(products: FloatArray, num_draws: int) -> Correlation:
    """Of a symmetric matrix of sums of products; not a number where there is no pair."""
    scale = np.sqrt(np.maximum(np.diag(products), np.finfo(np.float64).tiny))
    apart = np.abs(products / np.outer(scale, scale))[~np.eye(len(products), dtype=np.bool_)]
    if not len(apart):
        return Correlation(float("nan"), 1.0)
    # Bonferroni over all pairs; each correlation is normal with variance 1/n to good approximation.
    limit = -float(ndtri((1 - LEVEL) / 10 / len(apart))) / np.sqrt(num_draws)
    return Correlation(float(apart.max()), float(min(1.0, limit)))


def _unit_line(pairs: list[_PairRound], mu: float) -> list[FloatArray]:
    """From one world's whitened means to the other's, of length 1 over all rounds; any direction if nothing moved."""
    if mu > 0:
        return [pair.whitened_shift / mu for pair in pairs]
    size = sum(pair.means[0].size for pair in pairs)
    return [np.full(pair.means[0].shape, size**-0.5) for pair in pairs]


def _residual(world: AuditContext, pair: _PairRound, side: int, seed: int, source: NoiseSource) -> FloatArray:
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
