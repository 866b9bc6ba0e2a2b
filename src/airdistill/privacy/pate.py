"""Confident-GNMax of PATE (Papernot et al., "Scalable Private Learning with PATE", ICLR 2018, arXiv 1802.08908).

Devices vote on public samples, the queries. A trusted aggregator answers a query if its largest count plus N(0, σ1²)
reaches a threshold; the answer is then the class of the largest count after N(0, σ2²) was added to every count.

One device replaced by another moves one vote from one class to another: the largest count by at most 1, all counts of a
query by at most √2. The guarantee needs nothing else:

    μ² = N/σ1² + A·2/σ2²  for N queries of which at most A are answered.

Which queries are answered depends on earlier noise, but the sum of squared shifts over variances never exceeds μ².
With the rest filled up by noise that is not used, the privacy loss is that of one Gaussian mechanism: a martingale
whose quadratic variation is fixed. The exact Gaussian curve therefore holds. It is never above the paper's, which
composes Rényi divergences.

The *data-dependent* analysis is below `ConfidentGnmax`. It is smaller if devices agree, and it is itself a function of
private votes: to publish it reveals something about them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, logsumexp

from airdistill.arrays import FloatArray, IntArray

UNANSWERED = -1
ORDERS: FloatArray = np.concatenate([1 + np.geomspace(0.01, 1, 40, endpoint=False), np.geomspace(2, 1000, 240)])
_ONE_VOTE = 1.0  # how far one device moves the largest count


@dataclass(frozen=True)
class ConfidentGnmax:
    """The aggregator's settings: T, σ1 and σ2 in votes, N queries, and A, the most that are answered."""

    threshold: float
    threshold_noise: float
    vote_noise: float
    num_queries: int
    most_answers: int

    @property
    def squared_distance(self) -> float:
        """The largest squared shift by one device, with every count scaled to have noise σ2: μ²σ2²."""
        if self.vote_noise == 0:
            return 2.0 * self.most_answers
        return 2.0 * self.most_answers + self.num_queries * (self.vote_noise / self.threshold_noise) ** 2

    def answers(self, counts: IntArray, threshold_draws: FloatArray, vote_draws: FloatArray) -> IntArray:
        """The class of every query `[query]`, or `UNANSWERED`, from counts `[query, class]` and noise in votes.

        Queries are asked in order. After the last of A answers nothing is asked: later queries stay unanswered.
        """
        confident = counts.max(axis=1) + threshold_draws >= self.threshold
        answered = confident & (np.cumsum(confident) <= self.most_answers)
        return np.where(answered, (counts + vote_draws).argmax(axis=1), UNANSWERED)


def data_dependent_rdp(settings: ConfidentGnmax, counts: IntArray, orders: FloatArray = ORDERS) -> FloatArray:
    """A bound on D_λ(M(D)‖M(D')) for these very votes and every neighbour D', `[order]`.

    Votes are fixed before the first query, and the noise of queries is independent: divergences of queries add up. To
    stop after A answers only withholds later ones. Of one query, with Q the neighbour's probability of an answer,

        exp((λ−1)D) = (1−P)^λ (1−Q)^{1−λ} + P^λ Q^{1−λ} exp((λ−1)·`gnmax_rdp`),

    which is convex in Q and therefore largest where the neighbour's largest count is one vote higher or lower. The
    paper adds P·`gnmax_rdp` to the cost of the check instead, the mean over outcomes (`published_rdp`).
    """
    if settings.vote_noise == 0:
        return np.full(len(orders), np.inf)
    answer = gnmax_rdp(log_outvoted(counts, settings.vote_noise), settings.vote_noise, orders)
    margin = counts.max(axis=1) - settings.threshold
    mine = _log_answered(margin, settings.threshold_noise)
    worst = [
        _log_moment(mine, _log_answered(margin + moved, settings.threshold_noise), answer, orders)
        for moved in (-_ONE_VOTE, _ONE_VOTE)
    ]
    return np.asarray(np.maximum(*worst).sum(axis=0) / (orders - 1))


def published_rdp(settings: ConfidentGnmax, counts: IntArray, orders: FloatArray = ORDERS) -> FloatArray:
    """The paper's own accounting of the same votes, `[order]`: checks by Theorem 6, and P times an answer's cost."""
    log_answered, log_refused = _log_answered(counts.max(axis=1) - settings.threshold, settings.threshold_noise)
    # The largest count moves by 1, and all counts by √2: the same theorem with √2 σ1.
    check = gnmax_rdp(np.minimum(log_answered, log_refused), np.sqrt(2) * settings.threshold_noise, orders)
    answer = gnmax_rdp(log_outvoted(counts, settings.vote_noise), settings.vote_noise, orders)
    return np.asarray((check + np.exp(log_answered)[:, None] * answer).sum(axis=0))


def log_outvoted(counts: IntArray, deviation: float) -> FloatArray:
    """ln q̃ `[query]`, q̃ at least the probability that another class than the plurality wins: Proposition 7.

    q̃ = ½ Σ_{i≠i*} erfc((n_{i*} − n_i)/(2σ)), and never more than 1 − 1/K, because the plurality is the likeliest.
    """
    ordered = np.sort(counts, axis=1)
    gaps = ordered[:, -1:] - ordered[:, :-1]
    return np.asarray(
        np.minimum(logsumexp(log_ndtr(-gaps / (np.sqrt(2) * deviation)), axis=1), np.log1p(-1 / counts.shape[1]))
    )


def gnmax_rdp(log_outvoted: FloatArray, deviation: float, orders: FloatArray) -> FloatArray:
    """D_λ of one answer, `[query, order]`: Theorem 6 with the orders of Proposition 10, and never above λ/σ².

    With μ2 = σ√ln(1/q̃), μ1 = μ2 + 1 and ε_j = μ_j/σ²:
    D_λ ≤ ln((1−q̃)A^{λ−1} + q̃B^{λ−1})/(λ−1), A = (1−q̃)/(1−(q̃e^{ε2})^{1−1/μ2}), B = e^{ε1}/q̃^{1/(μ1−1)},
    if λ ≤ μ1 and q̃ ≤ e^{(μ2−1)ε2}/(μ1/(μ1−1)·μ2/(μ2−1))^{μ2}.
    """
    log_q, order = np.asarray(log_outvoted)[:, None], orders[None]
    variance = deviation**2
    independent = order / variance
    certain = np.isneginf(log_q)
    log_q = np.where(certain, -1.0, log_q)
    second = deviation * np.sqrt(-log_q)
    possible = second > 1
    second = np.where(possible, second, 2.0)
    first = second + 1
    log_limit = (second - 1) * second / variance - second * (np.log(first / second) + np.log(second / (second - 1)))
    inner = log_q + second / variance
    applies = possible & (log_q <= log_limit) & (inner < 0) & (order <= first)
    log_rest = np.log1p(-np.exp(log_q))
    shrunk = np.where(applies, inner * (1 - 1 / second), -1.0)
    log_a = log_rest - np.log(-np.expm1(shrunk))
    log_b = first / variance - log_q / second
    bound = np.logaddexp(log_rest + (order - 1) * log_a, log_q + (order - 1) * log_b) / (order - 1)
    found = np.where(applies, np.minimum(np.maximum(bound, 0.0), independent), independent)
    return np.where(certain, 0.0, found)


def epsilon_of_rdp(rdp: FloatArray, delta: float, orders: FloatArray = ORDERS, published: bool = False) -> float:
    """The smallest ε of Rényi divergences `[order]` at δ, by Canonne, Kamath and Steinke (2020).

    `published` converts as the paper does: ε = D_λ + ln(1/δ)/(λ−1).
    """
    epsilon = rdp - np.log(delta) / (orders - 1)
    if not published:
        epsilon = epsilon - np.log(orders) / (orders - 1) + np.log1p(-1 / orders)
    return max(0.0, float(epsilon.min()))


def _log_answered(margin: FloatArray, deviation: float) -> tuple[FloatArray, FloatArray]:
    """ln of the probabilities that the check is passed and failed, `[query]`, if the count exceeds T by `margin`."""
    return np.asarray(log_ndtr(margin / deviation)), np.asarray(log_ndtr(-margin / deviation))


def _log_moment(
    mine: tuple[FloatArray, FloatArray], theirs: tuple[FloatArray, FloatArray], answer: FloatArray, orders: FloatArray
) -> FloatArray:
    """(λ−1) D_λ of one query with these probabilities of answer and refusal, `[query, order]`."""
    answered, refused = (
        orders * one[:, None] + (1 - orders) * other[:, None] for one, other in zip(mine, theirs, strict=True)
    )
    return np.asarray(np.logaddexp(refused, answered + (orders - 1) * answer))
