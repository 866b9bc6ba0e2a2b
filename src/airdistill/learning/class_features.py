"""Labels of public samples from received class sums of their whitened features (theory section 10, Receiver).

1. `lda`: linear discriminant analysis with the received class means.
2. `map_em`: a mixture of Gaussians on the unlabelled public features; the received means are the prior of its means.
3. `read_class_features`: chooses between both, and among numbers of features, by received rows held out of the fit.

Everything is a function of received rows and public samples, and so it costs no privacy. No label is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp, softmax

from airdistill.arrays import FloatArray, IntArray

_FLOOR = 0.05  # smallest eigenvalue of the covariance within classes; the total covariance is I
_SCALES = np.geomspace(0.5, 1.3, 15)  # candidates for s: clipping shrinks the rows, noisy weights may enlarge them
_DECAYS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # candidates for the decay of the means' variance over the features
_SIGNALS = np.geomspace(1e-4, 4.0, 37)  # candidates for the means' average variance per feature
_TEMPER = 0.3  # weight of a public sample: features of one class are not Gaussian, and their likelihood is too sure
_BALANCE = 0.1  # weight of the foreseen class shares, in public samples per public sample
_ITERATIONS = 30
_METHODS = ("lda", "map_em")
_DIMENSIONS = (32, 64, 128, 256)  # leading features, beside all
_SPLITS = 4
_SPLIT = 0.5  # standard deviation of the noise added before the fit, over that of the received rows


@dataclass(frozen=True)
class ReceivedMeans:
    """Received sums of class means, R_k = s·h_k·m_k + noise, pooled over the rounds.

    `rows` are R `[class, feature]` with noise of variance `noise_var` per entry. `weights` are h `[class]`, the sum of
    the devices' factors; 0 for a class that no device holds. `sampling` `[class]` is Σ_i a_ik²/n_ik, which multiplies
    the covariance within classes: devices have few samples. `shares` `[class]` sum to 1. `weights_var` is the variance
    of the noise of each weight, if counts are private.
    """

    rows: FloatArray
    weights: FloatArray
    noise_var: float
    sampling: FloatArray
    shares: FloatArray
    weights_var: float = 0.0


@dataclass(frozen=True)
class Reading:
    """Class probabilities `[public sample, class]`, and how they were computed."""

    probabilities: FloatArray
    method: str  # "lda" or "map_em"
    dimensions: int  # leading features that were used
    score: float  # evidence of the held-out rows, by which this was chosen


@dataclass(frozen=True)
class Prior:
    """Gaussian beliefs about class means: mean and variance `[class, feature]`, and class shares `[class]`."""

    mean: FloatArray
    var: FloatArray
    shares: FloatArray


def lda(received: ReceivedMeans, features: FloatArray, dimensions: int | None = None) -> FloatArray:
    """Class probabilities `[sample, class]` by linear discriminant analysis of features `[sample, feature]`."""
    return _read("lda", dimensions or features.shape[1], received, features)


def map_em(received: ReceivedMeans, features: FloatArray, dimensions: int | None = None) -> FloatArray:
    """Class probabilities `[sample, class]` by a mixture whose means have the received rows as prior."""
    return _read("map_em", dimensions or features.shape[1], received, features)


def read_class_features(received: ReceivedMeans, features: FloatArray, rng: np.random.Generator) -> Reading:
    """The reading, among both methods and several numbers of features, that predicts held-out rows best."""
    candidates = [(method, used) for method in _METHODS for used in _dimensions(features.shape[1])]
    scores = np.zeros(len(candidates))
    for _ in range(_SPLITS):
        fit, held_out = split(received, rng)
        scores += [evidence(_read(*candidate, fit, features), held_out, features) for candidate in candidates]
    best = int(scores.argmax())
    probabilities = _read(*candidates[best], received, features)
    return Reading(probabilities, *candidates[best], float(scores[best]) / _SPLITS)


def _dimensions(available: int) -> list[int]:
    """Numbers of features to try, in increasing order."""
    return [used for used in _DIMENSIONS if used < available] + [available]


def split(received: ReceivedMeans, rng: np.random.Generator) -> tuple[ReceivedMeans, ReceivedMeans]:
    """Two copies with independent noise: rows R + cZ to fit and R − Z/c to score, where Z has the variance of R.

    The variance of R includes the sampling of the devices, whose covariance is close to a multiple of I.
    """
    noise = rng.standard_normal(received.rows.shape) * np.sqrt(received.noise_var + received.sampling)[:, None]
    return _with_noise(received, _SPLIT, noise), _with_noise(received, -1 / _SPLIT, noise)


def _with_noise(received: ReceivedMeans, factor: float, noise: FloatArray) -> ReceivedMeans:
    grown = 1 + factor**2
    rows = received.rows + factor * noise
    return replace(received, rows=rows, noise_var=grown * received.noise_var, sampling=grown * received.sampling)


def evidence(probabilities: FloatArray, held_out: ReceivedMeans, features: FloatArray) -> float:
    """Log-likelihood of the held-out rows, with class means from the probabilities, over that with all means zero.

    The scale of the means is the likeliest one.
    """
    held = _held(held_out)
    mass = np.maximum(probabilities[:, held].sum(axis=0), 1e-9)
    predicted = held_out.weights[held, None] * (probabilities[:, held].T @ features) / mass[:, None]
    precision = 1 / np.maximum(held_out.noise_var + held_out.sampling[held, None], 1e-12)
    match = float((held_out.rows[held] * predicted * precision).sum())
    power = float((predicted**2 * precision).sum())
    return 0.5 * max(match, 0.0) ** 2 / max(power, 1e-30)


def _read(method: str, used: int, received: ReceivedMeans, features: FloatArray) -> FloatArray:
    held, public = _held(received), features[:, :used]
    prior = prior_of(received, held, public)
    found = _mixture(prior, public) if method == "map_em" else _discriminants(prior.mean, prior.shares, public)[0]
    probabilities = np.zeros((len(public), len(received.weights)))
    probabilities[:, held] = softmax(found, axis=1)
    return probabilities


def _held(received: ReceivedMeans) -> IntArray:
    """Indices of the classes that some device holds, as far as noisy weights show it."""
    held = np.flatnonzero((received.weights > np.sqrt(received.weights_var)) & (received.shares > 0))
    if len(held) == 0:
        raise ValueError(
            f"weights = {received.weights.tolist()}: no class has a weight above its noise; at least one device must "
            "hold a class. Add devices, or use public counts"
        )
    return held


def prior_of(received: ReceivedMeans, held: IntArray, public: FloatArray) -> Prior:
    """The beliefs about the means of the held classes that follow from the received rows.

    The means of feature j have variance g_j a priori, which the rows tell (`signal_var`).
    """
    weights, used = received.weights[held, None], public.shape[1]
    rows = received.rows[held, :used] / weights
    # The covariance within classes is below I. A wrong weight scales the mean, whose direction then is right.
    var = (received.noise_var + received.sampling[held, None] + received.weights_var * (rows**2).mean()) / weights**2
    var = np.maximum(var, 1e-12)
    shrink = (signal := signal_var(rows, var)) / (signal + var)
    shares = received.shares[held] / received.shares[held].sum()
    scale = _fitted_scale(shrink * rows, shares, public)
    return Prior(shrink * rows / scale, shrink * var / scale**2, shares)


def signal_var(rows: FloatArray, var: FloatArray) -> FloatArray:
    """The likeliest variance `[feature]` of the means in rows `[class, feature]` with noise of variance `[class, 1]`.

    It decays like a power of the feature's rank: leading features vary with the class more than later ones do.
    """
    rank = np.arange(1, rows.shape[1] + 1) + 4.0
    shapes = [rank**-decay / (rank**-decay).mean() for decay in _DECAYS]
    candidates = [level * shape for shape in shapes for level in _SIGNALS]

    def log_likelihood(signal: FloatArray) -> float:
        total = signal + var
        return -float((np.log(total) + rows**2 / total).sum())

    return max(candidates, key=log_likelihood)


def _fitted_scale(means: FloatArray, shares: FloatArray, public: FloatArray) -> float:
    """The scale s of means s·m under which the public features are likeliest."""

    def log_likelihood(scale: float) -> float:
        joint, rest = _discriminants(means / scale, shares, public)
        return float((logsumexp(joint, axis=1) + rest).mean())

    return float(max(_SCALES, key=log_likelihood))


def _discriminants(means: FloatArray, shares: FloatArray, public: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln(π_k N(z; m_k, S_w)), `[sample, class]` and what is common to all classes `[sample]`, up to a constant.

    The total covariance is I, and so S_w = I − Σ π_k m_k m_kᵀ. If the means are posterior means, their uncertainty is
    part of this S_w. It differs from I only in the space of the means.
    """
    _, singular, basis = np.linalg.svd(np.sqrt(shares)[:, None] * means, full_matrices=False)
    within = np.maximum(1 - singular**2, _FLOOR)
    low, points = means @ basis.T, public @ basis.T
    joint = points @ (low / within).T - 0.5 * (low**2 / within).sum(axis=1) + np.log(shares)
    rest = 0.5 * (points**2 * (1 - 1 / within)).sum(axis=1) - 0.5 * np.log(within).sum()
    return joint, rest


def _mixture(prior: Prior, public: FloatArray) -> FloatArray:
    """Logits `[sample, class]` of a mixture of Gaussians with one covariance, by expectation maximisation."""
    means, shares = prior.mean, prior.shares
    within = np.eye(public.shape[1]) - (means.T * shares) @ means
    for _ in range(_ITERATIONS):
        values, basis = np.linalg.eigh(within)
        inverse = (basis / np.maximum(values, _FLOOR)) @ basis.T
        joint = public @ (means @ inverse).T - 0.5 * ((means @ inverse) * means).sum(axis=1)
        logits = np.asarray(_TEMPER * joint + np.log(shares))
        assigned = softmax(logits, axis=1)
        means = map_means(assigned, public, inverse, prior, _TEMPER)
        counts = _TEMPER * assigned.sum(axis=0) + _BALANCE * len(public) * prior.shares
        shares = counts / counts.sum()
        within = _within(assigned, public, means)
    return logits


def map_means(assigned: FloatArray, public: FloatArray, inverse: FloatArray, prior: Prior, temper: float) -> FloatArray:
    """The likeliest means, (t·Σ_n r_nk S⁻¹ + V_k⁻¹) m_k = t·S⁻¹ Σ_n r_nk z_n + V_k⁻¹ m⁰_k; `inverse` is S⁻¹."""
    counts, sums = assigned.sum(axis=0), assigned.T @ public
    matrices = temper * counts[:, None, None] * inverse
    diagonal = np.arange(len(inverse))
    matrices[:, diagonal, diagonal] += 1 / prior.var
    right = temper * sums @ inverse + prior.mean / prior.var
    return np.asarray(np.linalg.solve(matrices, right[..., None])[..., 0])


def _within(assigned: FloatArray, public: FloatArray, means: FloatArray) -> FloatArray:
    """Σ_nk r_nk (z_n − m_k)(z_n − m_k)ᵀ / n, where Σ_n z_n z_nᵀ / n = I."""
    share, cross = assigned.mean(axis=0), (assigned.T @ public).T @ means / len(public)
    return np.asarray(np.eye(public.shape[1]) - cross - cross.T + (means.T * share) @ means)
