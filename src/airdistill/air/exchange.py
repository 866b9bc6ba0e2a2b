"""One round's exchange of knowledge, with what was planned beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from airdistill.air.signal import ideal_knowledge, receive, superpose, transmit
from airdistill.arrays import ComplexArray, FloatArray
from airdistill.codesign.transceiver import RoundDesign
from airdistill.streams import stream


@dataclass(frozen=True)
class Heard:
    """What the server got, `[class, class]`, and how. Powers are of the fleet, averaged over classes and slots.

    `squared_error` ‖r̂ − q‖²/K is the measured variance per entry, `[class]`, next to the predicted one; an error-free
    exchange has no design, no power and no error.
    """

    received: FloatArray
    ideal: FloatArray
    squared_error: FloatArray
    predicted_noise_var: FloatArray
    design: RoundDesign | None = None
    planned_power_w: float = 0.0
    measured_power_w: float = 0.0
    uplink_seconds: float = 0.0
    planned_joules: float = 0.0
    measured_joules: float = 0.0


def error_free(class_counts: ArrayLike, local_knowledge: FloatArray) -> Heard:
    """Everything arrives as it was sent."""
    ideal = ideal_knowledge(class_counts, local_knowledge)
    nothing = np.zeros(len(ideal))
    return Heard(received=ideal, ideal=ideal, squared_error=nothing, predicted_noise_var=nothing)


def over_the_air(
    class_counts: ArrayLike,
    local_knowledge: FloatArray,
    design: RoundDesign,
    channel: ComplexArray,
    noise: RoundNoise,
    slot_s: float,
) -> Heard:
    """Local knowledge `[device, class, class]` through one round's channel `[device]`."""
    num_classes = local_knowledge.shape[1]
    transmitted = transmit(design, local_knowledge, noise.artificial)
    received = receive(superpose(transmitted, channel, noise.receiver), design.rx_scale)
    ideal = ideal_knowledge(class_counts, local_knowledge)
    planned_w, measured_w = float(design.mean_power_w().sum()), float((np.abs(transmitted) ** 2).sum())
    return Heard(
        received=received,
        ideal=ideal,
        squared_error=((received - ideal) ** 2).mean(axis=1),
        predicted_noise_var=design.effective_noise_var,
        design=design,
        planned_power_w=planned_w / num_classes,
        measured_power_w=measured_w / num_classes**2,
        uplink_seconds=num_classes**2 * slot_s,
        planned_joules=slot_s * num_classes * planned_w,
        measured_joules=slot_s * measured_w,
    )


@dataclass(frozen=True)
class RoundNoise:
    """One round's draws: m `[device, class, slot]`, standard Gaussian, and n `[class, slot]`, of the noise power."""

    artificial: FloatArray
    receiver: ComplexArray

    @classmethod
    def seeded(
        cls, seed: int, round_index: int, num_devices: int, num_classes: int, noise_power_w: float, axis: str
    ) -> RoundNoise:
        """Noise for simulation. `axis` "complex" spreads the noise power over both axes, "real" puts it on one."""
        shape = (num_classes, num_classes)
        artificial = [
            stream(seed, "artificial-noise", round_index, device).standard_normal(shape)
            for device in range(num_devices)
        ]
        draws = stream(seed, "receiver-noise", round_index).standard_normal((2, *shape))
        thermal = (draws[0] + 1j * draws[1]) / np.sqrt(2) if axis == "complex" else draws[0] + 0j
        return cls(np.stack(artificial), np.sqrt(noise_power_w) * thermal)
