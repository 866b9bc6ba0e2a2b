"""The complex baseband of one round, equation by equation."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.codesign.transceiver import RoundDesign
from airdistill.privacy.sensitivity import aggregation_weights


def ideal_knowledge(class_counts: ArrayLike, local_knowledge: FloatArray) -> FloatArray:
    """Eq. (3): Σ_i w_i^k q_i^k, `[class, class]`, from `[device, class, class]`; not a number where nobody has any."""
    return weighted_sum(aggregation_weights(class_counts), local_knowledge)


def weighted_sum(weights: FloatArray, vectors: FloatArray) -> FloatArray:
    """Σ_i w_i^k q_i^k, `[row, entry]`, from `[device, row, entry]`; not a number for a row in which nobody weighs."""
    held = np.asarray(weights > 0)
    spoken = np.where(held[:, :, None], vectors, 0.0)
    total = np.einsum("ik,ikd->kd", weights, spoken)
    return np.where(np.asarray(held.any(axis=0))[:, None], total, np.nan)


def transmit(
    design: RoundDesign, vectors: FloatArray, artificial_noise: FloatArray | ComplexArray, energy_slots: float
) -> ComplexArray:
    """Eq. (7): x = P1 √K q + P2 m, `[device, class, slot]`; a device sends no knowledge of a class it lacks.

    `energy_slots` is K; for a gradient √K is √D/C, and it is D/C².
    """
    spoken = np.where(design.signal_gain[:, :, None] != 0, vectors, 0.0)
    signal = design.signal_gain[:, :, None] * np.sqrt(energy_slots) * spoken
    if not design.noise_gain.any():
        return np.asarray(signal)
    return np.asarray(signal + design.noise_gain[:, :, None] * artificial_noise)


def superpose(transmitted: ComplexArray, channel: ComplexArray, receiver_noise: ComplexArray) -> ComplexArray:
    """Eqs. (10), (11): y = Σ_i h_i x_i + n, `[class, slot]`; of several antennas `[antenna, class, slot]`."""
    if channel.ndim == 2:
        return np.asarray(np.einsum("in,ikd->nkd", channel, transmitted, optimize=True) + receiver_noise)
    return np.asarray(np.einsum("i,ikd->kd", channel, transmitted) + receiver_noise)


def superpose_apart(transmitted: ComplexArray, channel: ComplexArray, receiver_noise: ComplexArray) -> ComplexArray:
    """One device after the other: r_i = h_i x_i + n_i, `[device, class, slot]`."""
    return np.asarray(channel[:, None, None] * transmitted + receiver_noise)


def combine(heard: ComplexArray, combiner: ComplexArray | None) -> ComplexArray:
    """f^H Y, `[class, slot]`, from `[antenna, class, slot]`; what one antenna hears is left as it is."""
    return heard if combiner is None else np.asarray(np.einsum("kn,nkd->kd", combiner.conj(), heard))


def receive(received: ComplexArray, rx_scale: FloatArray) -> FloatArray:
    """Eq. (12): r̂ = Re(r)/λ, `[..., class, slot]`; not a number for a class that was not sent (λ = 0)."""
    sent = rx_scale > 0
    scaled = received.real / np.where(sent, rx_scale, 1.0)[..., None]
    return np.where(sent[..., None], scaled, np.nan)
