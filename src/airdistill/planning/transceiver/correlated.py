"""Vectors of which a model is the sum, with correlated noise: every device adds the same share of it in every round.

Shares are in units of the estimate, |h_j P2_j|²/λ², so that the sum of the devices' noise is E⁻¹z again whatever the
channels are. Each round scales all of it, signal and noise, to what the weakest device can send: the closed form of
`own_noise`, with every device's share in place of its requirement.

A model is a sum over rounds, and so its error is that of Σ_{s≤t} n_s. At equal privacy the mean over t of that variance
is L(E) = S(E) · mean_t ‖row t of A E⁻¹‖², with A the lower triangle of ones and S = Σ_t (Σ_s e_{t−s} p_s)² for a device
that joins rounds p. E minimises L: over banded Toeplitz matrices (BandMF), or over sums of exponentials (BLT).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy.optimize import minimize

from airdistill.arrays import ComplexArray, FloatArray, divide_or
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.payload import Payload
from airdistill.planning.transceiver.design import (
    Links,
    RoundDesign,
    design_shares,
    noise_by_trust,
)
from airdistill.planning.uplink import Uplink
from airdistill.privacy.correlation import Correlation
from airdistill.privacy.participation import Participation
from airdistill.privacy.release import Release
from airdistill.privacy.trust import FleetNoise, OwnNoise

_BANDS_OF_EVERYONE = 8  # with all devices in every round; with cycles a device has as many bands as rounds in a cycle
_MOST_BUFFERS = 3
_WORTH_A_BUFFER = 1e-3  # of ln L; a buffer is as much memory as a vector, on every device
_LARGEST_DECAY = 0.9999
_DIGITS = 6  # of the matrix: the last bits of a search depend on the processor


@dataclass(frozen=True)
class CorrelatedShift:
    """Σ_{u≤t} (Σ_{s≤u} e_{u−s} w_s s)², what t rounds reveal of a shift that is the same in every round."""

    uplink: CorrelatedUplink
    sensitivity: FloatArray

    def after(self, num_rounds: int) -> FloatArray:
        return np.asarray(self._squared(num_rounds).sum(axis=0)[:, None])

    def at(self, round_index: int) -> FloatArray:
        return np.asarray(self._squared(round_index)[-1][:, None])

    def linear_from(self, most: int) -> int:
        return min(1, most)

    def _squared(self, num_rounds: int) -> FloatArray:
        return np.asarray((self.uplink.revealed(num_rounds) * self.sensitivity) ** 2)


@dataclass(frozen=True)
class CorrelatedUplink(Uplink):
    """One vector of every participating device, with noise E⁻¹z of all devices.

    What is required and counted is the variance of z, in units of the estimate. `typical_power_w` |h_j|²P_j `[device]`
    is what the shares are planned for; devices that a round leaves out send their noise all the same.
    """

    fleet: RealisedFleet
    channel_noise_var: float
    trust: str
    payload: Payload
    participation: Participation
    matrix: Correlation
    typical_power_w: FloatArray

    @cached_property
    def correlation(self) -> Correlation:
        return self.matrix

    carry_over = False

    def shift(self, model: str) -> CorrelatedShift:
        return CorrelatedShift(self, self._sensitivity(model))

    def _sensitivity(self, model: str) -> FloatArray:
        """s of a payload whose bound is the same in every round, `[device]`."""
        return np.asarray(np.sqrt(self.payload.shift(model).at(1)) / self.nominal_weights)[:, 0]

    def sensitivity(self, model: str, round_index: int) -> FloatArray:  # noqa: ARG002
        return self._sensitivity(model)[:, None]

    def weights(self, round_index: int) -> FloatArray:
        return self.participation.weights(self.nominal_weights[:, 0], round_index)[:, None]

    def revealed(self, num_rounds: int) -> FloatArray:
        """Σ_s e_{t−s} w_s, `[round, device]`."""
        size = max(64, 1 << (num_rounds - 1).bit_length())
        if size not in self._revealed:
            self._revealed[size] = self.correlation.revealed(self._weights_until(size))
        return self._revealed[size][:num_rounds]

    @cached_property
    def _revealed(self) -> dict[int, FloatArray]:
        return {}

    def _weights_until(self, num_rounds: int) -> FloatArray:
        """The weights of rounds 1 to T, `[round, device]`."""
        for index in range(len(self._weights_of_rounds) + 1, num_rounds + 1):
            self._weights_of_rounds.append(self.weights(index)[:, 0])
        return np.array(self._weights_of_rounds[:num_rounds]).reshape(num_rounds, self.fleet.num_devices)

    @cached_property
    def _weights_of_rounds(self) -> list[FloatArray]:
        return []

    def required(self, num_rounds: int) -> FloatArray:
        return np.asarray(self.shift(self.model).after(num_rounds) / self.fleet.mu[:, None] ** 2)

    def required_at(self, num_rounds: int, round_index: int, spent: FloatArray | None = None) -> FloatArray:
        del round_index, spent
        return self.required(num_rounds)

    def shares(self, num_rounds: int) -> FloatArray:
        """The variance of each device's new noise in every round, `[device, row]`.

        If the whole fleet's noise counts, in proportion to the power that a typical signal leaves.
        """
        required = self.required(num_rounds)
        if self.counts_own_only:
            return required
        variance = float(self.correlation.noise_variance(num_rounds).mean())
        weights = self._weights_until(num_rounds).max(axis=0)[:, None]
        links = Links(weights, self.typical_power_w, self.channel_noise_var, self.energy_slots)
        rule, needed = FleetNoise(), np.full_like(required, required.max() * variance)
        inverse = rule.inverse_scale_sq(links, needed)
        scale_sq = divide_or(np.ones(()), inverse, 0.0)
        divided = rule.received_noise(links, needed, scale_sq)
        return np.asarray(required.max() * divide_or(divided, divided.sum(axis=0), 1.0 / len(divided)))

    def design(
        self, channel: ComplexArray, num_rounds: int, round_index: int, spent: FloatArray | None = None
    ) -> RoundDesign:
        del spent
        links = self._links(channel, self.weights(round_index))
        shares, variance = self._shares_of(num_rounds), self._variance(num_rounds, round_index)
        made = design_shares(links, channel, shares * variance)
        counted = np.where(made.rx_scale > 0, shares if self.counts_own_only else shares.sum(axis=0), np.inf)
        return replace(
            made,
            counted_noise_var=np.broadcast_to(counted, shares.shape),
            required_noise_var=shares.sum(axis=0) * variance,
            new_noise_share=1.0 / variance,
        )

    def _shares_of(self, num_rounds: int) -> FloatArray:
        if num_rounds not in self._shares:
            self._shares[num_rounds] = self.shares(num_rounds)
        return self._shares[num_rounds]

    @cached_property
    def _shares(self) -> dict[int, FloatArray]:
        return {}

    def _variance(self, num_rounds: int, round_index: int) -> float:
        return float(self.correlation.noise_variance(max(num_rounds, round_index))[round_index - 1])

    def _links(self, channel: ComplexArray, weights: FloatArray) -> Links:
        return Links.weighted(weights, self.energy_slots, channel, self.fleet.peak_power_w, self.channel_noise_var)

    def noise_over(self, channels: ComplexArray) -> Callable[[int], FloatArray]:
        def noise_var(num_rounds: int) -> FloatArray:
            shares, variance = self._shares_of(num_rounds), self.correlation.noise_variance(num_rounds)
            found = []
            for draw, channel in enumerate(channels):
                links = self._links(channel, self.weights(draw % num_rounds + 1))
                found.append(OwnNoise().effective_noise_var(links, shares * variance[draw % num_rounds]))
            return np.stack(found)

        return noise_var

    def channel_floor(self, channels: ComplexArray) -> FloatArray:
        floors = [self._links(channel, self.weights(draw + 1)).channel_floor for draw, channel in enumerate(channels)]
        return np.stack(floors)

    def squared_bias(self, channels: ComplexArray) -> FloatArray:
        return np.zeros((len(channels), 1))

    def fleet_noise(self, noise_var: FloatArray) -> FloatArray:
        return np.asarray(self.vector_length * self.payload.over_fleet(noise_var))

    def linear_from(self, max_rounds: int) -> int:
        return min(1, max_rounds)

    def privacy_noise_var(self, num_rounds: int) -> FloatArray:
        variance = self.correlation.noise_variance(num_rounds).mean()
        return np.asarray(self._shares_of(num_rounds).sum(axis=0) * variance)

    def noise_by_trust(self, design: RoundDesign, channel: ComplexArray) -> dict[str, FloatArray]:
        """Of the new noise only. The receiver noise is white: no trust model counts it."""
        return noise_by_trust(design, channel, 0.0, self.trust)

    def release(self, design: RoundDesign, channel: ComplexArray, round_index: int) -> Release:
        carried = self.correlation.carried(self._weights_until(round_index - 1))[:, None]
        return replace(super().release(design, channel, round_index), carried_weights=carried)

    @property
    def counts_own_only(self) -> bool:
        return self.trust == OwnNoise.name

    def new_noise_var(self, num_rounds: int) -> float:
        """The variance of all devices' new noise in a round, in units of the estimate."""
        return float(self._shares_of(num_rounds).sum())

    def independent_noise_var(self, num_rounds: int) -> float:
        """What independent noise would need in its place, with the same participation and trust."""
        squared = (self._weights_until(num_rounds) ** 2).sum(axis=0)
        alone = squared * self._sensitivity(self.model) ** 2 / self.fleet.mu**2
        return float(alone.sum() if self.counts_own_only else alone.max())


@lru_cache(maxsize=64)
def best_correlation(kind: str, num_rounds: int, cycle: int = 1) -> Correlation:
    """The best matrix of that kind for T rounds of which a device joins every `cycle`-th one."""
    joined = np.zeros(num_rounds)
    joined[::cycle] = 1.0
    if num_rounds == 1:
        return Correlation(kind, ())
    weights, decays = _best_banded(joined, cycle) if kind == "banded" else _best_buffered(joined)
    return Correlation(kind, _rounded(weights), _rounded(decays))


def _rounded(values: FloatArray) -> tuple[float, ...]:
    return tuple(float(np.round(value, _DIGITS)) for value in values)


def _best_banded(joined: FloatArray, cycle: int) -> tuple[FloatArray, FloatArray]:
    num_bands = min(len(joined), cycle if cycle > 1 else _BANDS_OF_EVERYONE)
    later = np.arange(1, num_bands)
    square_root = np.asarray(
        np.cumprod((2 * later - 1) / (2 * later)), dtype=np.float64
    )  # the square root of A, arXiv 2202.11205
    weights = _minimised(lambda x: _log_loss(np.append(1.0, x), joined), square_root, [(0.0, None)] * len(later))
    kept = np.flatnonzero(np.round(weights, _DIGITS))
    return weights[: kept[-1] + 1 if len(kept) else 0], np.zeros(0)


def _best_buffered(joined: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The fewest buffers to which one more adds nothing."""
    least, best = _with_buffers(joined, 1)
    for count in range(2, _MOST_BUFFERS + 1):
        loss, found = _with_buffers(joined, count)
        if loss > least - _WORTH_A_BUFFER:
            break
        least, best = loss, found
    weights, decays = np.split(best, 2)
    used = np.round(weights, _DIGITS) > 0
    return weights[used], decays[used]


def _with_buffers(joined: FloatArray, count: int) -> tuple[float, FloatArray]:
    """The least ln L, and the weights and decays that have it."""
    num_rounds, power = len(joined), np.arange(len(joined) - 1)

    def log_loss(x: FloatArray) -> tuple[float, FloatArray]:
        weights, decays = np.split(x, 2)
        powers = decays[:, None] ** power
        value, gradient = _log_loss(np.append(1.0, weights @ powers), joined)
        by_decay = np.zeros_like(powers)  # of the powers
        by_decay[:, 1:] = power[1:] * powers[:, :-1]
        return value, np.append(powers @ gradient, weights * (by_decay @ gradient))

    slowest = min(1 - 1 / num_rounds, _LARGEST_DECAY)
    start = np.append(np.full(count, 0.5 / count), 1 - np.geomspace(0.5, 1 - slowest, count))
    found = _minimised(log_loss, start, [*[(0.0, None)] * count, *[(0.0, _LARGEST_DECAY)] * count])
    return log_loss(found)[0], found


def _minimised(
    log_loss: Callable[[FloatArray], tuple[float, FloatArray]],
    start: FloatArray,
    limits: Sequence[tuple[float, float | None]],
) -> FloatArray:
    found = minimize(log_loss, start, jac=True, method="L-BFGS-B", bounds=limits, options={"maxiter": 1000})
    return np.asarray(found.x)


def _log_loss(coefficients: FloatArray, joined: FloatArray) -> tuple[float, FloatArray]:
    """ln L and its derivatives by e_1, e_2, …, from e_0, e_1, … of at most T entries."""
    from scipy.signal import lfilter

    num_rounds, bands = len(joined), len(coefficients)
    remaining = 1 - np.arange(num_rounds) / num_rounds
    sums = lfilter([1.0], coefficients, np.ones(num_rounds))  # the first column of A E⁻¹
    error = float(sums**2 @ remaining)
    back = lfilter([1.0], coefficients, (2 * sums * remaining)[::-1])[::-1]
    revealed = np.convolve(coefficients, joined)[:num_rounds]
    squared = float(revealed @ revealed)
    by_lag = [(back[k:] @ sums[: num_rounds - k], revealed[k:] @ joined[: num_rounds - k]) for k in range(1, bands)]
    gradients = np.array(by_lag).reshape(-1, 2)
    return float(np.log(error) + np.log(squared)), -gradients[:, 0] / error + 2 * gradients[:, 1] / squared


def prefix_variance(correlation: Correlation, step_sizes: FloatArray) -> FloatArray:
    """The variance of Σ_{s≤t} (η_s/η_1) n_s for new noise of variance 1, `[round]`, from η `[round]`."""
    relative, noise = step_sizes / step_sizes[0], correlation.noise_coefficients(len(step_sizes))
    found = np.zeros(len(relative))
    for start in range(len(relative)):  # the part of the new noise of one round
        found[start:] += np.cumsum(relative[start:] * noise[: len(noise) - start]) ** 2
    return found
