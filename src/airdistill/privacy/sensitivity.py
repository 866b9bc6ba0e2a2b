"""How far one neighbour change can move what a device sends, and the noise that hides it for T rounds.

| model        | L2 sensitivity of a class mean | classes moved | it holds if                                   |
|--------------|--------------------------------|---------------|-----------------------------------------------|
| `paper`      | √2/B_i                         | 1             | never in general: eq. (2) divides by B_i^k    |
| `class_mean` | √2/B_i^k                       | 1             | the local model does not depend on the record |
| `trajectory` | min(√2, √2/B_i^k + L2·D_t)     | held classes  | Assumptions 1–3, per-sample clipping at S     |
| `device`     | √2                             | held classes  | always: any two points of the simplex         |

Neighbours have the same class counts, which are public. With `relabel` the record may change its label too, between
classes that the device holds before and after: two classes move. The last two models cover that already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import FloatArray, divide_or

SENSITIVITY_MODELS = ("paper", "class_mean", "trajectory", "device")
JOINT_MODELS = ("trajectory", "device")
SIMPLEX_DIAMETER = np.sqrt(2.0)


@dataclass(frozen=True)
class TrajectoryDynamics:
    """What the `trajectory` model must know of local training.

    `local_epochs` = 0 is one full-batch step a round.
    """

    initial_lr: float
    grad_lipschitz: float
    model_lipschitz: float
    grad_norm_bound: float
    local_epochs: int = 0
    batch_size: int = 1

    def parameter_drift(self, samples_per_device: FloatArray) -> Iterator[FloatArray]:
        """D_1, D_2, …: how far apart two neighbours' parameters can be when round t starts, `[device]`.

        In a pass of n steps the record is in one batch of b: D ← (1+ηL1)^n D + (1+ηL1)^(n−1)·2ηS/b.
        """
        full_batch = self.local_epochs == 0
        batch = samples_per_device if full_batch else np.minimum(float(self.batch_size), samples_per_device)
        num_steps = np.ceil(samples_per_device / batch)
        drift = np.zeros(len(samples_per_device))
        round_index = 1
        while True:
            yield drift
            lr = self.initial_lr / np.sqrt(round_index)
            growth = 1 + lr * self.grad_lipschitz
            with np.errstate(over="ignore"):  # it explodes; the simplex's diameter caps it downstream
                for _ in range(max(1, self.local_epochs)):
                    kick = growth ** (num_steps - 1) * 2 * lr * self.grad_norm_bound / batch
                    drift = growth**num_steps * drift + kick
            round_index += 1


def aggregation_weights(class_counts: ArrayLike) -> FloatArray:
    """w_i^k = B_i^k/B^k, eq. (3), `[device, class]`; zero in a class that nobody holds."""
    counts = _checked_counts(class_counts)
    return divide_or(counts, counts.sum(axis=0), 0.0)


def knowledge_sensitivity(
    class_counts: ArrayLike,
    model: str,
    parameter_drift: FloatArray | None = None,
    model_lipschitz: float = 0.0,
) -> FloatArray:
    """L2 sensitivity of every class mean, `[device, class]`; zero where a device does not hold the class.

    `trajectory` needs the drift D_t `[device]` of the round in question and L2. As the record may be of any class,
    each class is given the record's own share √2/B_i^k.
    """
    counts = _checked_counts(class_counts)
    if model == "paper":
        # Lemma 1 as printed.
        per_class = np.broadcast_to(SIMPLEX_DIAMETER / counts.sum(axis=1, keepdims=True), counts.shape)
    elif model == "class_mean":
        per_class = divide_or(np.array(SIMPLEX_DIAMETER), counts, 0.0)
    elif model == "trajectory":
        if parameter_drift is None:
            raise ValueError("sensitivity = trajectory: needs the parameter drift of the round")
        own_share = divide_or(np.array(SIMPLEX_DIAMETER), counts, 0.0)
        moved = own_share + model_lipschitz * np.asarray(parameter_drift)[:, None]
        per_class = np.minimum(SIMPLEX_DIAMETER, moved)
    elif model == "device":
        per_class = np.full(counts.shape, SIMPLEX_DIAMETER)
    else:
        raise ValueError(f"sensitivity = {model!r}: must be one of {', '.join(SENSITIVITY_MODELS)}")
    return np.where(counts > 0, per_class, 0.0)


def classes_moved(class_counts: ArrayLike, model: str, relabel: bool) -> FloatArray:
    """n_i, how many classes one neighbour change moves, `[device]`."""
    counts = _checked_counts(class_counts)
    if model in JOINT_MODELS:
        return np.asarray(np.count_nonzero(counts, axis=1), dtype=np.float64)
    return np.full(len(counts), 2.0 if relabel else 1.0)


def cumulative_squared_shift(
    class_counts: ArrayLike, model: str, dynamics: TrajectoryDynamics | None = None
) -> Iterator[FloatArray]:
    """Σ_{t≤T} (w_i^k s_ik,t)² for T = 1, 2, …, `[device, class]`: what noise must cover after T rounds.

    It grows linearly in T but for `trajectory`, whose sensitivity depends on the round.
    """
    counts = _checked_counts(class_counts)
    weights = aggregation_weights(counts)
    if model != "trajectory":
        one_round = (weights * knowledge_sensitivity(counts, model)) ** 2
        num_rounds = 0
        while True:
            num_rounds += 1
            yield num_rounds * one_round
    if dynamics is None:
        raise ValueError("sensitivity = trajectory: needs the training dynamics")
    total = np.zeros(counts.shape)
    for drift in dynamics.parameter_drift(counts.sum(axis=1)):
        sensitivity = knowledge_sensitivity(counts, model, drift, dynamics.model_lipschitz)
        total = total + (weights * sensitivity) ** 2
        yield total


def squared_shift_after(
    class_counts: ArrayLike, model: str, num_rounds: int, dynamics: TrajectoryDynamics | None = None
) -> FloatArray:
    """The same for one T."""
    if model != "trajectory":
        return num_rounds * next(cumulative_squared_shift(class_counts, model))
    rounds = cumulative_squared_shift(class_counts, model, dynamics)
    return next(total for count, total in enumerate(rounds, start=1) if count == num_rounds)


def required_noise_var(
    class_counts: ArrayLike,
    mu: ArrayLike,
    num_rounds: int,
    model: str,
    relabel: bool = False,
    dynamics: TrajectoryDynamics | None = None,
) -> FloatArray:
    """req_ik = n_i Σ_t (w_i^k s_ik)²/μ_i², the counted noise per entry that each round needs, `[device, class]`.

    With `paper` and the paper's μ this is the right side of eq. (17) over λ²: 4T (w_i^k)² ρ_i.
    """
    counts = _checked_counts(class_counts)
    shift = squared_shift_after(counts, model, num_rounds, dynamics)
    return required_for_shift(shift, counts, mu, model, relabel)


def required_for_shift(
    squared_shift: FloatArray, class_counts: ArrayLike, mu: ArrayLike, model: str, relabel: bool
) -> FloatArray:
    """The noise that hides an accumulated squared shift `[device, class]` from the μ of each device."""
    share = classes_moved(class_counts, model, relabel)
    target = np.broadcast_to(np.asarray(mu, dtype=np.float64), share.shape)
    return np.asarray(squared_shift * (share / target**2)[:, None], dtype=np.float64)


def _checked_counts(class_counts: ArrayLike) -> FloatArray:
    counts = np.asarray(class_counts, dtype=np.float64)
    if counts.ndim != 2 or counts.size == 0:
        raise ValueError(f"class_counts of shape {counts.shape}: must be [device, class]")
    if not np.all(counts >= 0):
        raise ValueError("class_counts: must not be negative")
    if not np.all(counts.sum(axis=1) > 0):
        raise ValueError(f"class_counts: device {int(np.argmin(counts.sum(axis=1)))} has no data")
    return counts
