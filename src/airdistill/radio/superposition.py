"""The complex baseband of one round, equation by equation: noise, transmit, superpose, receive.

These functions compute; they charge no ledger. `radio.charged_round` is the only way for a scheme to transmit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn, Protocol

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import BoolArray, ComplexArray, FloatArray
from airdistill.errors import AirDistillError
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.privacy.sensitivity import aggregation_weights
from airdistill.radio.receivers import Estimate, Receiver, estimate_by
from airdistill.streams import Seed, stream


def ideal_knowledge(class_counts: ArrayLike, local_knowledge: FloatArray) -> FloatArray:
    """Eq. (3): Σ_i w_i^k q_i^k, `[class, class]`, from `[device, class, class]`; NaN for a class no device holds."""
    return weighted_sum(aggregation_weights(class_counts), local_knowledge)


def weighted_sum(weights: FloatArray, vectors: FloatArray) -> FloatArray:
    """Σ_i w_i^k q_i^k, `[row, entry]`, from `[device, row, entry]`; NaN for one of several rows without any weight."""
    if vectors.shape[1] == 1:  # one long vector of every device: a matrix product
        return np.asarray((weights[:, 0] @ vectors[:, 0])[None])
    held = np.asarray(weights > 0)
    total = np.einsum("ik,ikd->kd", weights, np.where(held[:, :, None], vectors, 0.0))
    return np.where(np.asarray(held.any(axis=0))[:, None], total, np.nan)


def transmit(
    design: RoundDesign, vectors: FloatArray, artificial_noise: FloatArray | ComplexArray, energy_slots: float
) -> ComplexArray:
    """Eq. (7): x = P1 √K q + P2 m, `[device, row, slot]`; a device sends nothing of a class it lacks.

    `energy_slots` is the vector length over the squared norm bound: K for class means, D/C² for a gradient.
    """
    sent = np.where(design.signal_gain[:, :, None] != 0, vectors, 0.0)
    signal = design.signal_gain[:, :, None] * np.sqrt(energy_slots) * sent
    if not design.noise_gain.any():
        return np.asarray(signal)
    return np.asarray(signal + design.noise_gain[:, :, None] * artificial_noise)


def superpose(transmitted: ComplexArray, channel: ComplexArray, receiver_noise: ComplexArray) -> ComplexArray:
    """Eqs. (10), (11): y = Σ_i h_i x_i + n, `[row, slot]`; with several antennas `[antenna, row, slot]`."""
    if channel.ndim == 2:
        return np.asarray(np.einsum("in,ikd->nkd", channel, transmitted, optimize=True) + receiver_noise)
    return np.asarray(np.einsum("i,ikd->kd", channel, transmitted) + receiver_noise)


def superpose_tdma(transmitted: ComplexArray, channel: ComplexArray, receiver_noise: ComplexArray) -> ComplexArray:
    """TDMA, every device in its own slots: r_i = h_i x_i + n_i, `[device, row, slot]`."""
    return np.asarray(channel[:, None, None] * transmitted + receiver_noise)


def combine(signal: ComplexArray, combiner: ComplexArray | None) -> ComplexArray:
    """f^H Y, `[row, slot]`, from `[antenna, row, slot]`; the signal of a single antenna is returned unchanged."""
    return signal if combiner is None else np.asarray(np.einsum("kn,nkd->kd", combiner.conj(), signal))


def receive(received: ComplexArray, rx_scale: FloatArray) -> FloatArray:
    """Eq. (12): r̂ = Re(r)/λ, `[..., row, slot]`; NaN for a row that was not sent (λ = 0)."""
    sent = rx_scale > 0
    scaled = received.real / np.where(sent, rx_scale, 1.0)[..., None]
    return np.where(sent[..., None], scaled, np.nan)


@dataclass(frozen=True)
class Reception:
    """What the server received in a round, `[row, entry]`, with what was planned beside what was measured.

    `ideal` is the weighted sum over all devices, eq. (3). `squared_error` ‖r̂ − q'‖²/K is the measured noise variance
    per entry, `[row]`; q' is the weighted sum over the active devices. `squared_bias` ‖q' − q‖²/K is the distance of
    q' from the ideal sum. `estimate` is set if a receiver processed what was received. An error-free exchange has no
    design, no power and no error, but takes as many slots. Powers are of the whole fleet, averaged over rows and slots.
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
    def broadcast(self) -> FloatArray:
        """What the server broadcasts, `[row, entry]`: the receiver's estimate, or the received sum without one."""
        return self.received if self.estimate is None else self.estimate.knowledge

    def estimated_by(self, receiver: Receiver | None) -> Reception:
        """Add a receiver's estimate, if there is a receiver."""
        if receiver is None:
            return self
        assert self.design is not None  # an exchange without privacy has no receiver
        estimate = estimate_by(receiver, self.received, self.predicted_noise_var, self.design.weights)
        return replace(self, estimate=estimate)

    def estimate_error(self) -> FloatArray:
        """Mean squared error per entry of the broadcast against the ideal sum, `[row]`."""
        return np.asarray(((self.broadcast - self.ideal) ** 2).mean(axis=1))


def error_free(ideal: FloatArray, uplink_seconds: float) -> Reception:
    """The exchange of a sum `[row, entry]` without noise, in the time that an analogue sum would take."""
    zero = np.zeros(len(ideal))
    return Reception(ideal, ideal, squared_error=zero, predicted_noise_var=zero, uplink_seconds=uplink_seconds)


def mean_of_answers(answers: FloatArray) -> FloatArray:
    """The mean of each row over the devices that answered it, as one vector `[1, row · class]`.

    `answers` is `[device, row, class]`; a device answers a row if any entry is not zero. The mean needs the number of
    devices that answered, which only an exchange without privacy may reveal.
    """
    answered = answers.any(axis=2).sum(axis=0)
    mean = np.where(answered[:, None] > 0, answers.sum(axis=0) / np.maximum(answered, 1)[:, None], np.nan)
    return mean.reshape(1, -1)


class Superposition(Protocol):
    """A medium that adds the devices' signals: from what they send, `[device, row, slot]`, to the sum with noise."""

    def __call__(self, transmitted: ComplexArray) -> ComplexArray: ...


def over_the_air(
    weights: FloatArray,
    vectors: FloatArray,
    design: RoundDesign,
    channel: ComplexArray,
    noise: Noise,
    number_s: float,
    largest_norm: float = 1.0,
    signal_mask: BoolArray | None = None,
    air: Superposition | None = None,
    uplink_seconds: float | None = None,
) -> Reception:
    """The physics of one round: transmit, superpose, receive. It charges no ledger; `ChargedRound.transmit` does.

    `vectors` `[device, row, entry]` have rows of at most `largest_norm`; `weights` `[device, row]` are those of the
    ideal sum. Devices outside `signal_mask` `[device]` send noise only. A device is on the air for `number_s` with
    every number; a round takes `uplink_seconds`, by default that for each number. `air` is by default eq. (10).
    """
    sent = vectors if signal_mask is None else np.where(signal_mask[:, None, None], vectors, 0.0)
    transmitted = noise.transmit(design, sent, vectors.shape[2] / largest_norm**2)
    ideal = weighted_sum(weights, vectors)
    if design.uses_tdma:
        each = receive(superpose_tdma(transmitted, channel, noise.receiver), design.rx_scale)
        took = each.size * number_s
        return _measured(weighted_sum(weights, each), ideal, ideal, design, transmitted, number_s, took)
    summed = superpose(transmitted, channel, noise.receiver) if air is None else air(transmitted)
    combined = combine(summed, design.combiner)
    received, aimed = receive(combined, design.rx_scale), weighted_sum(design.weights, sent)
    took = ideal.size * number_s if uplink_seconds is None else uplink_seconds
    return _measured(received, ideal, aimed, design, transmitted, number_s, took)


def _measured(
    received: FloatArray,
    ideal: FloatArray,
    aimed: FloatArray,
    design: RoundDesign,
    transmitted: ComplexArray,
    number_s: float,
    uplink_seconds: float,
) -> Reception:
    """Compare what was received with `aimed`, the weighted sum over the devices that sent a signal.

    A device is on the air for as many slots as the sum has entries. With secret participation the planned power is the
    mean over participation masks: the power of one round's own mask would reveal the mask.
    """
    num_rows, length = ideal.shape
    unsent = (1 - design.signal_probability) * np.abs(design.signal_gain) ** 2
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
        uplink_seconds=uplink_seconds,
        planned_joules=number_s * length * planned_w,
        measured_joules=number_s * measured_w,
    )


class Permission:
    """The permission to transmit once that a charge gives. Copies of a round and of its noise share it.

    The charged round opens it when it has checked the vectors; drawing or adding the noise uses it up. With noise that
    was added twice, the difference of two receptions would be that of the vectors.
    """

    def __init__(self, round_index: int) -> None:
        self.round_index = round_index
        self._state: Literal["unused", "open", "used"] = "unused"

    def open(self) -> None:
        """Allow one use of the noise. Raise if there was one."""
        if self._state != "unused":
            rule = "its noise protects one transmission; send all rows in one call"
            raise AirDistillError(f"round {self.round_index} was transmitted already: {rule}")
        self._state = "open"

    def use(self) -> None:
        """Use it up. Raise unless the charged round has opened it."""
        if self._state != "open":
            rule = "noise is added by the charged round, once: use its transmit(vectors)"
            raise AirDistillError(f"round {self.round_index}: {rule}")
        self._state = "used"

    def __deepcopy__(self, _: object) -> Permission:
        return self

    def __reduce__(self) -> NoReturn:
        raise AirDistillError(f"round {self.round_index}: charged noise cannot be pickled: a copy could be sent again")


class Noise(Protocol):
    """The noise of one round: what devices add to their signals, and the receiver noise."""

    @property
    def receiver(self) -> ComplexArray: ...

    def transmit(self, design: RoundDesign, vectors: FloatArray, energy_slots: float) -> ComplexArray:
        """The devices' signals, `[device, row, slot]`, from their vectors `[device, row, entry]`."""


@dataclass(frozen=True)
class RoundNoise:
    """Draws of one round: standard Gaussian m `[device, row, slot]`, and n `[row, slot]` of the receiver's noise power.

    m is complex if devices add noise on both axes; each part is then standard Gaussian. With TDMA n is
    `[device, row, slot]`, with several antennas `[antenna, row, slot]`. Noise of a charged round has a `permission`.
    """

    artificial: FloatArray | ComplexArray
    receiver: ComplexArray
    permission: Permission | None = field(default=None, compare=False, repr=False)

    def transmit(self, design: RoundDesign, vectors: FloatArray, energy_slots: float) -> ComplexArray:
        if self.permission is not None:
            self.permission.use()
        return transmit(design, vectors, self.artificial, energy_slots)

    @classmethod
    def seeded(
        cls, seed: Seed, round_index: int, design: RoundDesign, length: int, noise_power_w: float, axis: str
    ) -> RoundNoise:
        """Draw the noise of a simulated round with rows of `length` entries, from the seed of its ledger entry.

        `axis` "complex" spreads the receiver noise over both axes, "real" puts all of it on the real one. The
        artificial part can be large and is drawn only if the design sends any.
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


def _artificial(seed: Seed, purpose: str, round_index: int, num_devices: int, shape: tuple[int, ...]) -> FloatArray:
    drawn = [stream(seed, purpose, round_index, device).standard_normal(shape) for device in range(num_devices)]
    return np.stack(drawn)


def seeded_noise(
    seed: Seed, round_index: int, device: int, shape: tuple[int, ...], purpose: str = "artificial-noise"
) -> FloatArray:
    """Standard Gaussian draws of one device."""
    return stream(seed, purpose, round_index, device).standard_normal(shape)


def receiver_noise(
    seed: Seed, round_index: int, design: RoundDesign, length: int, noise_power_w: float, axis: str
) -> ComplexArray:
    """n of one round, `[row, slot]`; `[device, row, slot]` with TDMA, `[antenna, row, slot]` with several antennas."""
    num_devices, num_rows = design.noise_gain.shape
    shape = (num_devices, num_rows, length) if design.uses_tdma else (num_rows, length)
    if design.combiner is not None:
        shape = (design.combiner.shape[1], num_rows, length)
    return thermal_noise(seed, round_index, shape, noise_power_w, axis)


def thermal_noise(
    seed: Seed, round_index: int, shape: tuple[int, ...], noise_power_w: float, axis: str
) -> ComplexArray:
    """Draw receiver noise of that power, on both axes ("complex") or on the real axis only."""
    draws = stream(seed, "receiver-noise", round_index).standard_normal((2, *shape))
    thermal = (draws[0] + 1j * draws[1]) / np.sqrt(2) if axis == "complex" else draws[0] + 0j
    return np.asarray(np.sqrt(noise_power_w) * thermal)
