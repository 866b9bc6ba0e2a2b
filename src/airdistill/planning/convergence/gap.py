"""The convergence gap of Theorem 1, from misalignment Φ1 and noise Φ2 of the received class means, and eq. (21).

The gap Ω omits the constant 8γL2S. It is a bound for one full-batch step per round with η0 ≤ 1/L1, and a proxy
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import ComplexArray, FloatArray, fields_of
from airdistill.planning.transceiver.paper import privacy_stringency
from airdistill.privacy.sensitivity import aggregation_weights
from airdistill.scenario.model import Scenario


@dataclass(frozen=True)
class LearningConstants:
    """γ, η0, L1, L2, S and f_max of Theorem 1; `loss_bound` may be one number or one for each device."""

    distill_weight: float
    initial_lr: float
    grad_lipschitz: float
    model_lipschitz: float
    loss_bound: float | FloatArray
    grad_norm_bound: float = float("inf")

    @classmethod
    def of(cls, given: Any) -> LearningConstants:
        """Read the constants from a mapping, or from an object with attributes of these names."""
        return given if isinstance(given, cls) else cls(**fields_of(given, cls))

    @classmethod
    def of_scenario(cls, scenario: Scenario) -> LearningConstants:
        return cls.of(scenario.learning_numbers())

    @property
    def misalignment_factor(self) -> float:
        """A1 = 6γη0L2, below eq. (41)."""
        return 6 * self.distill_weight * self.initial_lr * self.model_lipschitz

    @property
    def noise_factor(self) -> float:
        """A2 = 6η0γ²L2²L1, below eq. (41)."""
        return 6 * self.initial_lr * self.distill_weight**2 * self.model_lipschitz**2 * self.grad_lipschitz

    @property
    def gradient_noise_factor(self) -> float:
        """3η0L1/2, the factor of a gradient's noise in the gap of federated learning."""
        return 1.5 * self.initial_lr * self.grad_lipschitz

    def total_loss_bound(self, num_devices: int) -> float:
        """Σ_i f_max,i."""
        return float(np.sum(np.broadcast_to(self.loss_bound, (num_devices,))))


def class_shares(class_counts: ArrayLike) -> FloatArray:
    """B_i^k/B_i, `[device, class]`."""
    counts = np.asarray(class_counts, dtype=np.float64)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def effective_noise(class_counts: ArrayLike, effective_noise_var: FloatArray) -> FloatArray:
    """Φ2 of eq. (14): K Σ_k (B_i^k/B_i) v_k, `[device]`, over the classes that a device holds."""
    shares = class_shares(class_counts)
    reached = np.where(shares > 0, effective_noise_var, 0.0)
    return np.asarray(shares.shape[1] * (shares * reached).sum(axis=1))


def over_fleet(class_counts: ArrayLike, of_class: FloatArray) -> FloatArray:
    """Σ_iΣ_k (B_i^k/B_i) x_k = Σ_k α_k x_k with α_k = Σ_i B_i^k/B_i, for x `[..., class]`.

    Classes that no device holds do not count.
    """
    return weighted_sum(class_weight(class_counts), of_class)


def class_weight(class_counts: ArrayLike) -> FloatArray:
    """α_k = Σ_i B_i^k/B_i, `[class]`."""
    return np.asarray(class_shares(class_counts).sum(axis=0))


def weighted_sum(weight: FloatArray, of_class: FloatArray) -> FloatArray:
    """Σ_k α_k x_k over the classes that any device holds, for x `[..., class]`."""
    reached = np.where(weight > 0, of_class, 0.0)
    return np.asarray((reached * weight).sum(axis=-1))


def misalignment(
    class_counts: ArrayLike,
    channel: ComplexArray,
    signal_gain: ComplexArray,
    rx_scale: FloatArray,
    local_knowledge: FloatArray,
) -> FloatArray:
    """Φ1 of eq. (14), `[device]`, for class means `[device, class, class]`; zero for the gains of eq. (18)."""
    shares = class_shares(class_counts)
    received = np.sqrt(shares.shape[1]) * np.asarray(channel)[:, None] * signal_gain
    error = received / np.where(rx_scale > 0, rx_scale, np.inf) - aggregation_weights(class_counts)
    # ‖Σ_i error_i^k q_i^k‖ for every class k.
    missed = np.linalg.norm(np.einsum("ik,ikd->kd", error, local_knowledge), axis=1)
    return np.asarray(shares @ missed)


def convergence_gap(
    num_rounds: int,
    constants: LearningConstants,
    effective_noise: FloatArray,
    misalignment: FloatArray | None = None,
) -> FloatArray:
    """Ω_i of Theorem 1, `[device]`, from Φ2 and Φ1 of every round, `[round, device]` or one row for all rounds.

    The factor ‖∇F‖ of Φ1 is replaced by its bound S. Φ1 and Φ2 are given for all T rounds or once; η_t = η0/√t with t
    from 1.
    """
    noise = np.atleast_2d(np.asarray(effective_noise, dtype=np.float64))
    noise = np.broadcast_to(noise, (num_rounds, noise.shape[1]))
    bias = np.zeros_like(noise) if misalignment is None else np.broadcast_to(misalignment, noise.shape)
    start = 3 * np.broadcast_to(constants.loss_bound, noise.shape[1:]) / (constants.initial_lr * np.sqrt(num_rounds))
    per_round = constants.noise_factor * (bias**2 + noise)
    if misalignment is not None:
        lr = constants.initial_lr / np.sqrt(np.arange(1, num_rounds + 1))[:, None]
        first_order = (constants.grad_lipschitz * lr + 1) / lr * constants.grad_norm_bound
        per_round = per_round + constants.misalignment_factor * first_order * bias
    return np.asarray(start + per_round.sum(axis=0) / num_rounds**1.5)


def fleet_gap(
    num_rounds: float,
    constants: LearningConstants,
    num_devices: int,
    fleet_noise: float,
    noise_factor: float | None = None,
) -> float:
    """Σ_iΩ_i without misalignment and with the same Σ_iΦ2_i in every round: (3Σf_max/η0 + A2 ΣΦ2)/√T.

    `noise_factor` replaces A2 for payloads other than class means.
    """
    start = 3 * constants.total_loss_bound(num_devices) / constants.initial_lr
    factor = constants.noise_factor if noise_factor is None else noise_factor
    # Without distillation (γ = 0) even infinite noise has no effect: avoid 0 · inf.
    noise_term = factor * fleet_noise if factor > 0 else 0.0
    return float((start + noise_term) / np.sqrt(num_rounds))


def misalignment_gap(num_rounds: int, constants: LearningConstants, fleet_misalignment: float) -> float:
    """The first-order term of Σ_iΦ1_i, the same in every round, in Σ_iΩ_i: A1 S Φ1 T^{-3/2} Σ_t (L1 + 1/η_t)."""
    if fleet_misalignment == 0:
        return 0.0
    # 1/η_t = √t/η0.
    rates = num_rounds * constants.grad_lipschitz + _sum_of_roots(num_rounds) / constants.initial_lr
    factor = constants.misalignment_factor * constants.grad_norm_bound
    return float(factor * fleet_misalignment * rates / num_rounds**1.5)


def biased_gap(num_rounds: int, constants: LearningConstants, num_devices: int, weighted_error: float) -> float:
    """Σ_iΩ_i for a biased receiver: 3Σf_max/(η0√T) + 6γ²L2² T^{-3/2} Σ_t √t Σ_iE_{i,t}; `weighted_error` is the sum.

    It follows from −η⟨a, a+ξ⟩ + L1η²/2 ‖a+ξ‖² ≤ −η/2 ‖a‖² + η/2 ‖ξ‖² for η ≤ 1/L1, whatever the mean of ξ.
    """
    factor = 6 * (constants.distill_weight * constants.model_lipschitz) ** 2
    error_term = factor * weighted_error if factor > 0 else 0.0
    return fleet_gap(num_rounds, constants, num_devices, 0.0) + float(error_term / num_rounds**1.5)


def _sum_of_roots(num_rounds: int) -> float:
    return float(np.sqrt(np.arange(1, num_rounds + 1)).sum())


def paper_rounds(class_counts: ArrayLike, epsilon: ArrayLike, delta: ArrayLike, constants: Any) -> int | float:
    """Eq. (21) with i inside the maximum, rounded and at least 1; infinite without a privacy target.

    It is the optimum of a balanced, privacy-limited fleet with the paper's sensitivity and accountant.
    """
    constants = LearningConstants.of(constants)
    weights = aggregation_weights(class_counts)
    stringency = privacy_stringency(class_counts, epsilon, delta)
    strictest = float(np.max(stringency * (weights**2).sum(axis=1)))
    # 24 η0² γ² L2² L1 = 4 η0 A2
    growth = 4 * constants.initial_lr * constants.noise_factor * strictest
    if growth == 0:
        return float("inf")
    mean_loss = constants.total_loss_bound(len(weights)) / len(weights)
    return max(1, int(np.floor(3 * mean_loss / growth + 0.5)))
