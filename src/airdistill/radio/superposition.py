"""The complex baseband of one round, equation by equation.

One round's exchange of knowledge, with what was planned beside what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import BoolArray, ComplexArray, FloatArray
from airdistill.errors import AirDistillError
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.privacy.sensitivity import aggregation_weights
from airdistill.radio.receivers import Estimate, Receiver
from airdistill.streams import stream


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


def superpose_tdma(transmitted: ComplexArray, channel: ComplexArray, receiver_noise: ComplexArray) -> ComplexArray:
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


_ROUNDING = 1e-4  # of norms: gradients are clipped in single precision


@dataclass(frozen=True)
class Reception:
    """What the server got, `[class, class]`, and how. Powers are of the fleet, averaged over classes and slots.

    `squared_error` ‖r̂ − q'‖²/K is the measured variance per entry, `[class]`, next to the predicted one, q' being the
    average of those who spoke; `squared_bias` ‖q' − q‖²/K says how far that is from everybody's. An error-free exchange
    has no design, no power and no error, but takes as many slots. A gradient is one row, `[1, parameter]`. `estimate`
    is what a receiver made of `received`, if it did anything.
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
    squared_bias: FloatArray | None = None
    estimate: Estimate | None = None

    @property
    def knowledge(self) -> FloatArray:
        """What the server broadcasts, `[class, class]`."""
        return self.received if self.estimate is None else self.estimate.knowledge

    def estimated_by(self, receiver: Receiver | None) -> Reception:
        """The same with a receiver's estimate, if there is a receiver."""
        if receiver is None:
            return self
        return replace(self, estimate=receiver.estimate(self.received, self.predicted_noise_var))

    def estimate_error(self) -> FloatArray:
        """Mean squared error per entry of what is broadcast against everybody's average, `[class]`."""
        return np.asarray(((self.knowledge - self.ideal) ** 2).mean(axis=1))


def error_free(class_counts: ArrayLike, local_knowledge: FloatArray, slot_s: float) -> Reception:
    """Every device's knowledge arrives as it was sent, in the slots that an analogue sum would take."""
    return _without_error(ideal_knowledge(class_counts, local_knowledge), slot_s)


def mean_without_error(weights: FloatArray, vectors: FloatArray, slot_s: float) -> Reception:
    """The same for one vector of each device, `[device, entry]`."""
    return _without_error((weights @ vectors)[None], slot_s)


def mean_of_answers(answers: FloatArray, slot_s: float) -> Reception:
    """Answers `[device, row, class]` on public samples over a perfect channel, each row the mean of those who gave one.

    The mean over those who answered needs their number, which only an exchange without privacy may tell.
    """
    answered = answers.any(axis=2).sum(axis=0)
    mean = np.where(answered[:, None] > 0, answers.sum(axis=0) / np.maximum(answered, 1)[:, None], np.nan)
    return _without_error(mean.reshape(1, -1), slot_s)


def _without_error(ideal: FloatArray, slot_s: float) -> Reception:
    nothing = np.zeros(len(ideal))
    seconds = ideal.size * slot_s
    return Reception(ideal, ideal, squared_error=nothing, predicted_noise_var=nothing, uplink_seconds=seconds)


def over_the_air(
    class_counts: ArrayLike,
    local_knowledge: FloatArray,
    design: RoundDesign,
    channel: ComplexArray,
    noise: Noise,
    slot_s: float,
    there: BoolArray | None = None,
) -> Reception:
    """Local knowledge `[device, class, class]` through one round's channel `[device]`.

    Who is not `there`, `[device]`, sends noise alone.
    """
    spoken = _of_those(there, local_knowledge, design)
    if design.chance_of_signal < 1 and (spoken < 0).any():
        raise AirDistillError("hidden coins are accounted for knowledge without negative entries, and this has some")
    transmitted = noise.transmit(design, spoken, local_knowledge.shape[2])
    received = receive(combine(superpose(transmitted, channel, noise.receiver), design.combiner), design.rx_scale)
    ideal = ideal_knowledge(class_counts, local_knowledge)
    aimed = weighted_sum(design.weights, spoken)
    return _measured(received, ideal, design, transmitted, slot_s, ideal.size, aimed)


def vector_over_the_air(
    weights: FloatArray,
    vectors: FloatArray,
    design: RoundDesign,
    channel: ComplexArray,
    noise: Noise,
    slot_s: float,
    largest_norm: float,
    there: BoolArray | None = None,
) -> Reception:
    """One vector of each device, `[device, entry]`, of that norm at most, through one round's channel: a gradient, or
    all predictions on a public set. They are to be summed with these weights, `[device]`. Who is not `there`,
    `[device]`, sends noise alone.

    A longer one would break the power limit, and the bound that its noise was made for: it is refused.
    """
    norms = np.linalg.norm(vectors, axis=1)
    if not (norms <= largest_norm * (1 + _ROUNDING)).all():
        loudest = int(np.argmax(np.nan_to_num(norms, nan=np.inf)))
        rule = f"was planned for {largest_norm:.6g} at most"
        raise AirDistillError(f"device {loudest} would send a vector of norm {norms[loudest]:.6g}; the round {rule}")
    spoken = _of_those(there, vectors, design)
    transmitted = noise.transmit(design, spoken[:, None], vectors.shape[1] / largest_norm**2)
    received = receive(combine(superpose(transmitted, channel, noise.receiver), design.combiner), design.rx_scale)
    ideal, aimed = (weights @ vectors)[None], (design.weights[:, 0] @ spoken)[None]
    return _measured(received, ideal, design, transmitted, slot_s, ideal.size, aimed)


def _of_those(there: BoolArray | None, vectors: FloatArray, design: RoundDesign) -> FloatArray:
    """Nothing of who is not there; None: all are."""
    if there is None and design.chance_of_signal < 1:
        # The ledger has counted on coins: vectors of everybody would tell more than it charged.
        raise AirDistillError("this round has hidden coins: say who is there, with this.there()")
    return vectors if there is None else np.where(there.reshape(-1, *[1] * (vectors.ndim - 1)), vectors, 0.0)


def over_tdma(
    class_counts: ArrayLike,
    local_knowledge: FloatArray,
    design: RoundDesign,
    channel: ComplexArray,
    noise: Noise,
    slot_s: float,
) -> Reception:
    """The same from every device in slots of its own; the server weighs and sums what it got."""
    transmitted = noise.transmit(design, local_knowledge, local_knowledge.shape[2])
    each = receive(superpose_tdma(transmitted, channel, noise.receiver), design.rx_scale)
    received, ideal = (ideal_knowledge(class_counts, knowledge) for knowledge in (each, local_knowledge))
    return _measured(received, ideal, design, transmitted, slot_s, num_slots=each.size)


def _measured(
    received: FloatArray,
    ideal: FloatArray,
    design: RoundDesign,
    transmitted: ComplexArray,
    slot_s: float,
    num_slots: int,
    aimed: FloatArray | None = None,
) -> Reception:
    """What was planned beside what came out; a device is on the air for as many slots as the sum has entries.

    `aimed` is the sum of those who spoke, if that may be another than `ideal`. What is planned of hidden coins is their
    mean, as in the plan: a round's own power would tell how they fell.
    """
    num_rows, length = ideal.shape
    aimed = ideal if aimed is None else aimed
    unsent = (1 - design.chance_of_signal) * np.abs(design.signal_gain) ** 2
    planned_w = float((design.mean_power_w() - unsent).sum())
    measured_w = float((np.abs(transmitted) ** 2).sum())
    return Reception(
        received=received,
        ideal=ideal,
        squared_error=((received - aimed) ** 2).mean(axis=1),
        squared_bias=((aimed - ideal) ** 2).mean(axis=1),
        predicted_noise_var=design.effective_noise_var,
        design=design,
        planned_power_w=planned_w / num_rows,
        measured_power_w=measured_w / ideal.size,
        uplink_seconds=num_slots * slot_s,
        planned_joules=slot_s * length * planned_w,
        measured_joules=slot_s * measured_w,
    )


class Noise(Protocol):
    """One round's noise: what the devices add to their signals, and the receiver's own."""

    @property
    def receiver(self) -> ComplexArray: ...

    def transmit(self, design: RoundDesign, vectors: FloatArray, energy_slots: float) -> ComplexArray:
        """The devices' signals, `[device, row, slot]`, from their vectors `[device, row, entry]`."""


@dataclass(frozen=True)
class RoundNoise:
    """One round's draws: m `[device, class, slot]`, standard Gaussian, and n `[class, slot]`, of the noise power.

    Where devices add noise on both axes m is complex, each part of it standard Gaussian. For one device after the
    other n is `[device, class, slot]`.
    """

    artificial: FloatArray | ComplexArray
    receiver: ComplexArray

    def transmit(self, design: RoundDesign, vectors: FloatArray, energy_slots: float) -> ComplexArray:
        return transmit(design, vectors, self.artificial, energy_slots)

    @classmethod
    def seeded(
        cls, seed: int, round_index: int, design: RoundDesign, length: int, noise_power_w: float, axis: str
    ) -> RoundNoise:
        """For simulation: rows of `length` entries. `axis` "complex" spreads the power over both axes, "real" not.

        The artificial part is drawn only if the design sends any, for it can be large.
        """
        num_devices, num_rows = design.noise_gain.shape
        shape = (num_rows, length)
        receiver = receiver_noise(seed, round_index, design, length, noise_power_w, axis)
        if not design.noise_gain.any():
            return cls(np.broadcast_to(0.0, (num_devices, *shape)), receiver)
        artificial = _artificial(seed, "artificial-noise", round_index, num_devices, shape)
        if design.noise_axes == 1:
            return cls(artificial, receiver)
        return cls(artificial + 1j * _artificial(seed, "imaginary-noise", round_index, num_devices, shape), receiver)


def _artificial(seed: int, purpose: str, round_index: int, num_devices: int, shape: tuple[int, ...]) -> FloatArray:
    return np.stack([seeded_noise(seed, round_index, device, shape, purpose) for device in range(num_devices)])


def seeded_noise(
    seed: int, round_index: int, device: int, shape: tuple[int, ...], purpose: str = "artificial-noise"
) -> FloatArray:
    """One device's draws, standard Gaussian."""
    return stream(seed, purpose, round_index, device).standard_normal(shape)


def receiver_noise(
    seed: int, round_index: int, design: RoundDesign, length: int, noise_power_w: float, axis: str
) -> ComplexArray:
    """n of one round, `[row, slot]`; `[device, row, slot]` one after the other, `[antenna, row, slot]` of several."""
    num_devices, num_rows = design.noise_gain.shape
    shape = (num_devices, num_rows, length) if design.rx_scale.ndim == 2 else (num_rows, length)
    if design.combiner is not None:
        shape = (design.combiner.shape[1], num_rows, length)
    return thermal_noise(seed, round_index, shape, noise_power_w, axis)


def thermal_noise(seed: int, round_index: int, shape: tuple[int, ...], noise_power_w: float, axis: str) -> ComplexArray:
    """Of a receiver of that noise power, on both axes ("complex") or all of it on the real one."""
    draws = stream(seed, "receiver-noise", round_index).standard_normal((2, *shape))
    thermal = (draws[0] + 1j * draws[1]) / np.sqrt(2) if axis == "complex" else draws[0] + 0j
    return np.asarray(np.sqrt(noise_power_w) * thermal)
