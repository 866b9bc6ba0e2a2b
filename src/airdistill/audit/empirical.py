"""The likelihood-ratio attack on drawn noise: does the noise protect as much as is counted?

The exact audit trusts the counted variance c. This part draws the noise by the production code, round by round, keeps
the noise that the trust model counts, and attacks the worst pair with the optimal test,
Λ = Σ⟨y − (m + m')/2, m' − m⟩/c, which is N(∓μ²/2, μ²) for Gaussian noise of variance c. Of noise that is correlated
over rounds the repeated part is removed first, from y and from the means alike. Three statistics are checked:

* the attack's AUC against Φ(μ/√2). For a tiny or a huge μ the AUC does not depend on the noise, and so the pair is also
  moved along its own line to a distance of μ = 1.5, where the AUC is most sensitive;
* the variance of all noise entries over c, which detects a few per cent with few trials, and the lowest of all rows;
* the largest correlation between any two rows of any rounds, between entries of a row, and between squares, which a
  change of sign does not affect. Reused noise can be cancelled between the two uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import chdtri, ndtr, ndtri

from airdistill.arrays import FloatArray, IntArray
from airdistill.audit.context import AirRound, AuditContext, NoiseSource
from airdistill.audit.exact import constant, transcript_seed
from airdistill.audit.membership import LEVEL, Interval, Roc, auc, roc
from airdistill.audit.neighbours import Neighbour, follow
from airdistill.audit.options import AuditOptions, OnProgress
from airdistill.schemes.protocol import ConstructedPair

TESTED_MU = 1.5
_MOST_STREAMS = 600_000  # random generators in all trials together: one for each device and round
_MOST_NUMBERS = {"seeded": 2 * 10**8, "secure": 2 * 10**6}  # random numbers in all trials together
_FEWEST_TRIALS = 20
_MOST_POINTS = 400  # of a stored ROC curve
_MOST_ENTRIES = 100  # of a row; longer rows are not tested for correlation between entries
# Squares have heavy tails: tested at ten standard errors, and only with enough draws.
_SQUARES_NEED, _SQUARES_ERRORS = 400, 10.0


@dataclass(frozen=True)
class Correlation:
    """The largest measured correlation, and the limit for independent draws."""

    value: float
    limit: float


@dataclass(frozen=True)
class EmpiricalAudit:
    """`pair` was attacked over `num_rounds` rounds, with `num_trials` trials for each of its datasets."""

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
                    f"{measured.value:.4f}, at least {measured.low:.4f}; with the counted noise it is {expected:.4f}."
                )
        for what, measured in [
            ("of all entries", self.variance),
            (f"of a row in round {self.lowest_row_round}", self.lowest_row),
        ]:
            if measured.high < 1:
                found.append(
                    f"Noise lower than counted: the variance {what} is {measured.value:.4f} of the counted one, "
                    f"at most {measured.high:.4f}."
                )
        for between, largest in self.correlations.items():
            if largest.value > largest.limit:
                found.append(
                    f"Noise is reused: the largest correlation between {between} is {largest.value:.3f}; for "
                    f"independent draws it is below {largest.limit:.3f}."
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
    """Unweighted vectors of the pair in a round `[row, entry]`, their means as received, and c `[row]`.

    Vectors have all rows; `means` and `counted` have the `rows` with counted noise.
    """

    this: AirRound
    vectors: tuple[FloatArray, FloatArray]
    means: tuple[FloatArray, FloatArray]
    counted: FloatArray
    rows: IntArray

    @property
    def deviation(self) -> FloatArray:
        """√c, `[row, 1]`."""
        return np.asarray(np.sqrt(self.counted)[:, None])


def _whitened(context: AuditContext, pairs: list[_PairRound], rounds: list[FloatArray]) -> list[FloatArray]:
    """What was received in rounds, `[row, entry]` each, in units of independent noise of variance 1."""
    new = context.without_repeated_noise(rounds)
    return [np.asarray(each / pair.deviation) for each, pair in zip(new, pairs, strict=True)]


def audit_empirically(
    context: AuditContext,
    neighbour: Neighbour | ConstructedPair,
    options: AuditOptions,
    on_progress: OnProgress,
    noise_source: NoiseSource | None = None,
) -> EmpiricalAudit | None:
    """Attack fresh noise from the source, by default as a run draws it; None if no noise is counted."""
    seed = transcript_seed(options, "audit-attacked", 0)
    if isinstance(neighbour, ConstructedPair):
        followed = constant(context, neighbour)
    else:
        followed = follow(context, [neighbour], seed, context.link.transcript_noise(), keep_vectors=True)
    pairs = [
        pair
        for this, vectors in zip(context.rounds, followed.vectors, strict=True)
        if (pair := _pair_round(context, this, vectors)) is not None
    ]
    if not pairs:
        return None
    num_trials, num_rounds = affordable(context, options.trials, len(pairs))
    source = noise_source or production_source(context)
    return _attack(context, pairs[:num_rounds], num_trials, neighbour.description, options, source, on_progress)


def production_source(context: AuditContext) -> NoiseSource:
    """The noise as a run draws it, for the channels of the audited rounds."""
    channels = {this.index: this.known for this in context.rounds}
    return context.link.transcript_noise(
        lambda seed, index, design: context.link.production_noise(seed, index, design, channels[index])
    )


def _pair_round(context: AuditContext, this: AirRound, vectors: FloatArray) -> _PairRound | None:
    """The pair in one round; None if the device sends no row with counted noise.

    A round with correlated noise reveals earlier vectors, whether the device sends one or not.
    """
    counted = context.link.counted_noise_var(this)
    now, nominal = this.design.weights[context.device], context.link.nominal_weights()[context.device]
    is_joint = context.plan.uplink.correlation is not None
    rows = np.flatnonzero(((now > 0) | is_joint) & np.isfinite(counted) & (counted > 0))
    if not len(rows):
        return None
    # Counted noise is in units of the nominal weight; the received sum has the weight of this round, scaled by the
    # residual CSI misalignment.
    gain = context.link.gain(this)[rows]
    as_sent = counted[rows] * (np.ones(len(rows)) if is_joint else (gain / nominal[rows]) ** 2)
    means = [gain[:, None] * vector[rows] for vector in vectors]
    return _PairRound(this, (vectors[0], vectors[1]), (means[0], means[1]), as_sent, rows)


def affordable(context: AuditContext, asked: int, num_rounds: int) -> tuple[int, int]:
    """Trials for each dataset, and rounds, within the limits on computation; trials are reduced before rounds."""
    fleet, uplink = context.plan.fleet, context.plan.uplink
    makes_noise = any(this.design.noise_gain.any() for this in context.rounds)
    num_senders = fleet.num_devices if makes_noise else 1
    numbers = num_senders * uplink.num_rows * uplink.vector_length
    most_rounds = int(
        min(_MOST_STREAMS / (2 * num_senders), _MOST_NUMBERS[context.scenario.privacy.noise] / (2 * numbers))
    )  # for each dataset
    num_trials = max(min(_FEWEST_TRIALS, asked), min(asked, most_rounds // num_rounds))
    return num_trials, max(1, min(num_rounds, most_rounds // num_trials))


def _attack(
    context: AuditContext,
    pairs: list[_PairRound],
    num_trials: int,
    name: str,
    options: AuditOptions,
    source: NoiseSource,
    on_progress: OnProgress,
) -> EmpiricalAudit:
    shifts = _whitened(context, pairs, [pair.means[1] - pair.means[0] for pair in pairs])
    mu = float(np.sqrt(sum(float((shift**2).sum()) for shift in shifts)))
    lines, along = _unit_line(shifts, mu), np.zeros((2, num_trials))
    squares, products = [np.zeros(len(pair.rows)) for pair in pairs], _Products()
    for trial in range(num_trials):
        for side in (0, 1):
            seed = transcript_seed(options, f"audit-trial-{side}", trial)
            residuals = _whitened(context, pairs, [_residual(context, pair, side, seed, source) for pair in pairs])
            for place, residual in enumerate(residuals):
                along[side, trial] += float((residual * lines[place]).sum())
                squares[place] += (residual**2).sum(axis=1)
            products.add(np.concatenate(residuals))
        on_progress("noise attacked", trial + 1, num_trials)
    entries = 2 * num_trials * context.plan.uplink.vector_length
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
    """Products of whitened noise, summed over trials: between all rows of all rounds, and between entries of rows."""

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
        """The largest correlation of each kind that has pairs, with its limit for independent draws."""
        per_row = self._num_trials * self._length
        found = {"rows": _largest(self._rows, per_row)}
        if per_row >= _SQUARES_NEED:
            value = _largest(self._squares, per_row).value
            found["squares of rows"] = Correlation(value, _SQUARES_ERRORS / float(np.sqrt(per_row)))
        found["entries"] = _largest(self._entries, self._num_trials * len(self._rows))
        return {between: measured for between, measured in found.items() if np.isfinite(measured.value)}


def _largest(products: FloatArray, num_draws: int) -> Correlation:
    """The largest correlation in a symmetric matrix of sums of products; NaN without a pair."""
    scale = np.sqrt(np.maximum(np.diag(products), np.finfo(np.float64).tiny))
    off_diagonal = np.abs(products / np.outer(scale, scale))[~np.eye(len(products), dtype=np.bool_)]
    if not len(off_diagonal):
        return Correlation(float("nan"), 1.0)
    # Bonferroni over all pairs; each correlation is normal with variance 1/n to good approximation.
    limit = -float(ndtri((1 - LEVEL) / 10 / len(off_diagonal))) / np.sqrt(num_draws)
    return Correlation(float(off_diagonal.max()), float(min(1.0, limit)))


def _unit_line(shifts: list[FloatArray], mu: float) -> list[FloatArray]:
    """Unit direction, over all rounds, from the whitened means of D to those of D'; arbitrary if they are equal."""
    if mu > 0:
        return [shift / mu for shift in shifts]
    size = sum(shift.size for shift in shifts)
    return [np.full(shift.shape, size**-0.5) for shift in shifts]


def _residual(context: AuditContext, pair: _PairRound, side: int, seed: int, source: NoiseSource) -> FloatArray:
    """y − m of one round and trial with D (side 0) or D' (side 1), `[row, entry]`, by the production code."""
    noise = context.link.counted_part(source(seed, pair.this.index, pair.this.design))
    seen = context.link.seen(pair.this, pair.vectors[side], noise)[pair.rows]
    return np.asarray(seen - pair.means[side])


def _ratios(along: FloatArray, mu: float) -> tuple[FloatArray, FloatArray]:
    """Λ for D and for D' `[trial]`, from the noise along the line between the means, for a distance of μ."""
    return mu * along[0] - mu**2 / 2, mu * along[1] + mu**2 / 2


def _tested(along: FloatArray) -> Interval:
    ratios = _ratios(along, TESTED_MU)
    return auc(ratios[1], ratios[0])


def variance_interval(sum_of_squares: float, num_entries: int, num_looks: int = 1) -> Interval:
    """χ² interval of a variance; for the lowest of several, simultaneous over all of them."""
    tail = (1 - LEVEL) / 2 / num_looks
    low, high = (sum_of_squares / float(chdtri(num_entries, share)) for share in (tail, 1 - tail))
    return Interval(sum_of_squares / num_entries, low, high)


def _thinned(curve: Roc) -> Roc:
    """At most `_MOST_POINTS` points, including both ends."""
    size = len(curve.false_positive)
    chosen = np.unique(np.linspace(0, size - 1, min(size, _MOST_POINTS)).round().astype(np.int64))
    return Roc(curve.false_positive[chosen], curve.true_positive[chosen])
