"""Theorem 1: how misaligned and how noisy the shared knowledge is, and what that does to the gradient norm.

The gap Ω leaves out the constant 8γL2S. It is a bound for one full-batch step a round with η0 ≤ 1/L1, and a
proxy for anything else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.codesign.constants import LearningConstants
from airdistill.privacy.sensitivity import aggregation_weights


def class_shares(class_counts: ArrayLike) -> FloatArray:
    """B_i^k/B_i, `[device, class]`."""
    counts = np.asarray(class_counts, dtype=np.float64)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def effective_noise(class_counts: ArrayLike, effective_noise_var: FloatArray) -> FloatArray:
    """Φ2 of eq. (14): K Σ_k (B_i^k/B_i) v_k, `[device]`; classes that a device does not hold do not reach it."""
    shares = class_shares(class_counts)
    reached = np.where(shares > 0, effective_noise_var, 0.0)
    return np.asarray(shares.shape[1] * (shares * reached).sum(axis=1))


def fleet_effective_noise(class_counts: ArrayLike, effective_noise_var: FloatArray) -> FloatArray:
    """Σ_iΦ2_i = K Σ_k α_k v_k with α_k = Σ_i B_i^k/B_i, for v `[..., class]`; an unheld class does not count."""
    weight = class_shares(class_counts).sum(axis=0)
    reached = np.where(weight > 0, effective_noise_var, 0.0)
    return np.asarray(len(weight) * (reached * weight).sum(axis=-1))


def misalignment(
    class_counts: ArrayLike,
    channel: ComplexArray,
    signal_gain: ComplexArray,
    rx_scale: FloatArray,
    local_knowledge: FloatArray,
) -> FloatArray:
    """Φ1 of eq. (14), `[device]`, for local knowledge `[device, class, class]`: zero for the gains of eq. (18)."""
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

    Where the paper has ‖∇F‖ beside Φ1, its bound S stands. A device's Φ1 and Φ2 must be given for all T rounds or
    once; η_t = η0/√t with t from 1.
    """
    noise = np.atleast_2d(np.asarray(effective_noise, dtype=np.float64))
    noise = np.broadcast_to(noise, (num_rounds, noise.shape[1]))
    bias = np.zeros_like(noise) if misalignment is None else np.broadcast_to(misalignment, noise.shape)
    start = 3 * np.broadcast_to(constants.loss_bound, noise.shape[1:]) / (constants.initial_lr * np.sqrt(num_rounds))
    per_round = constants.noise_factor * (bias**2 + noise)
    if misalignment is not None:
        lr = constants.initial_lr / np.sqrt(np.arange(1, num_rounds + 1))[:, None]
        slope = (constants.grad_lipschitz * lr + 1) / lr * constants.grad_norm_bound
        per_round = per_round + constants.misalignment_factor * slope * bias
    return np.asarray(start + per_round.sum(axis=0) / num_rounds**1.5)


def fleet_gap(
    num_rounds: float,
    constants: LearningConstants,
    num_devices: int,
    fleet_noise: float,
    noise_factor: float | None = None,
) -> float:
    """Σ_iΩ_i for an aligned receiver whose Σ_iΦ2_i is the same in every round: (3Σf_max/η0 + A2 ΣΦ2)/√T.

    `noise_factor` stands for A2 where not knowledge is sent.
    """
    start = 3 * constants.total_loss_bound(num_devices) / constants.initial_lr
    factor = constants.noise_factor if noise_factor is None else noise_factor
    # Without distillation (γ = 0) noise does no harm, not even an infinite one.
    harm = factor * fleet_noise if factor > 0 else 0.0
    return float((start + harm) / np.sqrt(num_rounds))
