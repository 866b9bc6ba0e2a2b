"""Secure noise: exact discrete Gaussians on a public grid, drawn by OpenDP from the operating system's randomness.

Floating-point noise can leak a signal through its last digits. Here every device rounds its part of the sum to whole
multiples of a public spacing g and adds whole multiples of g as noise (theory section 7). The grid is in units of the
server's estimate r̂ = Re(r)/λ. Rounding moves two neighbours slightly further apart, which the release counts.

Secure noise cannot be seeded or repeated. Seeded noise, for simulation, is in `superposition`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from airdistill.arrays import BoolArray, ComplexArray, FloatArray, IntArray, divide_or
from airdistill.errors import AirDistillError, Described, InputError
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.planning.uplink import Uplink
from airdistill.privacy.concentrated import sum_closeness
from airdistill.privacy.release import Release
from airdistill.privacy.targets import ROUNDING
from airdistill.privacy.trust import trust_named
from airdistill.radio.superposition import Permission

LEAST_UNITS = 8.0  # grid units of noise from which a sum of discrete Gaussians is one to far below float precision
MOST_UNITS = 2.0**48  # grid units of noise up to which every draw is an exact integer as a float
LARGEST_SIGNAL = 2.0**46  # grid units of a signal's entry up to which floats represent it to 1/128 of a unit
_FLOAT_SLACK = 1.02  # the entries of two neighbours are rounded by at most 1/2 + 1/128 of a unit each
_NEGLIGIBLE = 1e-200
_ALIGNED = 1e-9  # relative, of the imaginary part of an aligned signal
_FALSE_ALARM = 1e-12  # the probability that sound noise of a round is refused
_EXACT = 2**53  # a float represents every integer up to here
_SATURATED = np.iinfo(np.int64)


@dataclass(frozen=True)
class SecureGrid:
    """The grid of one round. `spacing` g `[row]` are powers of two; the other arrays are `[device, row]`.

    `unit` is the transmitted value of 1 in r̂: λ/h, or 0 if nothing is sent. `amplitude` is the weight of a device's
    vector in r̂. `deviation` is the standard deviation of its noise in r̂: 0, or at least 8 g. With `own` a device counts
    on its own noise only, because of the trust model or because it has its own slots.
    """

    spacing: FloatArray
    amplitude: FloatArray
    deviation: FloatArray
    unit: ComplexArray
    vector_length: int
    own: bool = False

    @classmethod
    def of(
        cls,
        design: RoundDesign,
        channel: ComplexArray,
        sensitivity: ArrayLike,
        vector_length: int,
        energy_slots: float,
        own: bool = False,
    ) -> SecureGrid:
        """For a design, its channel `[device]` and the L2 sensitivity of every device's vectors, `[device, row]`.

        `energy_slots` is K for class means and D/C² for gradients. `own` must be set for own noise and for TDMA.
        """
        unit = _unit(design, channel)
        amplitude = _aligned(design.signal_gain * np.sqrt(energy_slots), unit)
        spacing = _spacing(amplitude, np.asarray(sensitivity, dtype=np.float64), vector_length)
        deviation = np.abs(_quotient(design.noise_gain, unit))
        on_grid = _own_noise if own else _common_noise
        return cls(spacing, amplitude, on_grid(deviation, spacing), unit, vector_length, own)

    def only(self, device: int) -> SecureGrid:
        """The part of one device, as if it were the whole fleet."""
        one = slice(device, device + 1)
        return replace(self, amplitude=self.amplitude[one], deviation=self.deviation[one], unit=self.unit[one])

    def added_shift(self) -> FloatArray:
        """How much further rounding can move the sums of two neighbours apart, in r̂, `[row]`.

        It is g√length, plus 2 % for the rounding of floats.
        """
        return np.asarray(_FLOAT_SLACK * self.spacing * np.sqrt(self.vector_length))

    def noise_var(self) -> FloatArray:
        """The variance of each device's noise in r̂, `[device, row]`."""
        return np.asarray(self.deviation**2)

    def closeness(self) -> float:
        """The largest τ of any row: how far the sum of its noise is from one discrete Gaussian. Own noise is one."""
        if self.own or self.deviation.size == 0:
            return 0.0
        largest = float(np.max(sum_closeness(self.deviation / self.spacing)))
        if not largest < _NEGLIGIBLE:
            raise RuntimeError(f"closeness = {largest}: must be under {_NEGLIGIBLE} for the accounting to hold")
        return largest


def _unit(design: RoundDesign, channel: ComplexArray) -> ComplexArray:
    """λ/h, `[device, row]`; 0 for a device without a channel and for a row that is not sent."""
    gain = np.asarray(channel, dtype=np.complex128)[:, None]
    scale = np.broadcast_to(design.rx_scale, design.signal_gain.shape)
    return np.asarray(np.where(gain != 0, scale / np.where(gain != 0, gain, 1.0), 0.0))


def _quotient(gain: ComplexArray, unit: ComplexArray) -> ComplexArray:
    sent = unit != 0
    return np.asarray(np.where(sent, gain / np.where(sent, unit, 1.0), 0.0))


def _aligned(gain: ComplexArray, unit: ComplexArray) -> FloatArray:
    """gain/unit, which must be real: noise on the real axis would not protect an imaginary part."""
    ratio = _quotient(gain, unit)
    if (np.abs(ratio.imag) > _ALIGNED * np.abs(ratio)).any() or (ratio.real < 0).any():
        raise ValueError("signal_gain: must arrive in phase with the estimate")
    return np.asarray(ratio.real)


def _spacing(amplitude: FloatArray, sensitivity: FloatArray, vector_length: int) -> FloatArray:
    """The largest power of two with which rounding adds at most `ROUNDING` to every device's shift, `[row]`."""
    # A vector that is the same for all neighbours is rounded to the same value: any grid serves it, and unsent rows.
    shift = amplitude * np.where(sensitivity > 0, sensitivity, 1.0)
    least = np.where(shift > 0, shift, np.inf).min(axis=0, initial=np.inf)
    limit = ROUNDING * np.where(np.isfinite(least), least, 1.0) / (_FLOAT_SLACK * np.sqrt(vector_length))
    # limit = m·2^e with ½ ≤ m < 1.
    _, exponent = np.frexp(limit)
    return np.asarray(np.ldexp(1.0, exponent - 1))


def _own_noise(deviation: FloatArray, spacing: FloatArray) -> FloatArray:
    """Check that every device's noise is strong enough for the grid: no other device can add it instead."""
    _refuse_small((deviation > 0) & (deviation < LEAST_UNITS * spacing), deviation / spacing)
    return _refuse_large(deviation, spacing)


def _common_noise(deviation: FloatArray, spacing: FloatArray) -> FloatArray:
    """Move noise that is too small for the grid to the other devices; the total variance of a row stays."""
    large = np.where(deviation >= LEAST_UNITS * spacing, deviation, 0.0)
    total, kept = (deviation**2).sum(axis=0), (large**2).sum(axis=0)
    _refuse_small((total > 0) & (kept == 0), np.sqrt(total) / spacing)
    # Slightly more, because of rounding.
    factor = np.where(kept < total, np.sqrt(divide_or(total, kept, 1.0)) * (1 + 1e-15), 1.0)
    return _refuse_large(large * factor, spacing)


def _refuse_small(small: BoolArray, units: FloatArray) -> None:
    if small.any():
        rule = f"too large for secure noise, which must be at least {LEAST_UNITS:g} grid units strong"
        raise InputError("privacy.epsilon", Described("(as given)"), f"{rule}; it would be {units[small].min():.3g}")


def _refuse_large(deviation: FloatArray, spacing: FloatArray) -> FloatArray:
    units = deviation / spacing
    if (units > MOST_UNITS).any():
        rule = f"too small for secure noise, which must be at most {MOST_UNITS:.3g} grid units strong"
        raise InputError("privacy.epsilon", Described("(as given)"), f"{rule}; it would be {units.max():.3g}")
    return deviation


def secure_grid(plan: Plan, design: RoundDesign, channel: ComplexArray, round_index: int) -> SecureGrid:
    """The grid of a round, fine enough for the sensitivity that the scenario declares."""
    uplink, privacy = plan.uplink, plan.scenario.privacy
    sensitivity = uplink.sensitivity(privacy.sensitivity, round_index)
    own = trust_named(privacy.trust).counts_own_only or uplink.uses_tdma
    return SecureGrid.of(design, channel, sensitivity, uplink.vector_length, uplink.energy_slots, own=own)


def release_on_grid(
    uplink: Uplink, grid: SecureGrid, design: RoundDesign, channel: ComplexArray, round_index: int
) -> Release:
    """The release with the noise that the grid really sends, and sensitivities raised by what rounding can add."""
    grid.closeness()  # raises unless the noise of a row sums to a discrete Gaussian to far below float precision
    planned = uplink.release(replace(design, noise_gain=grid.deviation * grid.unit), channel, round_index)
    # Sensitivities are in units of a device's vector, before its weight.
    added = divide_or(grid.added_shift(), grid.amplitude, 0.0)
    return replace(planned, sensitivity={model: bound + added for model, bound in planned.sensitivity.items()})


@dataclass(frozen=True)
class SecureNoise:
    """The noise of one round: devices draw theirs when they transmit; n `[row, slot]` is the receiver noise.

    Noise of a charged round has a `permission`.
    """

    grid: SecureGrid
    receiver: ComplexArray
    permission: Permission | None = field(default=None, compare=False, repr=False)

    def transmit(self, design: RoundDesign, vectors: FloatArray, energy_slots: float) -> ComplexArray:  # noqa: ARG002
        return self._transmit_on(self.grid, vectors)

    def transmit_alone(self, device: int, vectors: FloatArray) -> ComplexArray:
        """The signal of one device `[row, slot]`, from its vectors `[row, entry]`."""
        return np.asarray(self._transmit_on(self.grid.only(device), vectors[None])[0])

    def _transmit_on(self, grid: SecureGrid, vectors: FloatArray) -> ComplexArray:
        if self.permission is not None:
            self.permission.use()
        return transmit_on_grid(grid, vectors)


def transmit_on_grid(grid: SecureGrid, vectors: FloatArray) -> ComplexArray:
    """x = unit·g·(round(amplitude·q/g) + Z), Z ~ N_Z(0, (deviation/g)²), from q `[device, row, entry]`, same shape.

    In a row with amplitude 0 a device sends no signal, but may add noise.
    """
    if vectors.shape[2] != grid.vector_length or vectors.shape[:2] != grid.amplitude.shape:
        raise ValueError(f"vectors of shape {vectors.shape}: must be {(*grid.amplitude.shape, grid.vector_length)}")
    noise = _drawn(grid)
    check_noise_sources(grid.deviation / grid.spacing, noise)
    whole = rounded_on_grid(grid, vectors) + noise
    if not ((whole > -_EXACT) & (whole < _EXACT)).all():
        raise AirDistillError("secure noise: signal and noise exceed 2^53 grid units, where the grid is not exact")
    # g is a power of two, and so this product is exact; only the last one, with a public factor, rounds.
    on_grid = whole * grid.spacing[:, None]
    return np.asarray(grid.unit[:, :, None] * on_grid)


def rounded_on_grid(grid: SecureGrid, vectors: FloatArray) -> IntArray:
    """round(amplitude·q/g), `[device, row, entry]`, and 0 for rows that a device does not send."""
    amplitude = grid.amplitude[:, :, None]
    share = amplitude * np.where(amplitude != 0, vectors, 0.0) / grid.spacing[:, None]
    if not (np.abs(share) <= LARGEST_SIGNAL).all():  # also true for NaN
        raise AirDistillError(f"secure noise: entries must be numbers of at most {LARGEST_SIGNAL:.3g} grid units")
    return np.asarray(np.rint(share).astype(np.int64))


def _drawn(grid: SecureGrid) -> IntArray:
    noise = np.zeros((*grid.deviation.shape, grid.vector_length), dtype=np.int64)
    units = grid.deviation / grid.spacing
    for device, row in np.argwhere(units > 0):
        noise[device, row] = discrete_gaussian(float(units[device, row]), grid.vector_length)
    return noise


def check_noise_sources(units: FloatArray, noise: IntArray, alone: str = "the device") -> None:
    """Raise `AirDistillError` unless every device has noise, and noise of its own: in each row, and in all its rows.

    `noise` is `[device, row, entry]`, and `units` its deviation in grid units, `[device, row]`. Without one of 30 equal
    devices 29/30 of the variance is left, which no test of variances sees.
    """
    num_devices, num_rows, length = noise.shape
    # A discrete Gaussian takes any one value with probability at most P(0) ≤ 1/(σ√2π): by Poisson summation
    # Σ exp(−z²/2σ²) ≥ σ√2π. With Z and Z' independent, P(Z = Z') ≤ max P(Z = z) has the same bound. Entries are
    # independent, and so ln P ≤ −L ln(σ√2π) for a row of L entries to be zero, or to equal another device's.
    chance = -length * np.log(np.maximum(units * np.sqrt(2 * np.pi), 1.0))
    # Every device against zero and against each other one, in each row and in all: what is compared is so unlikely that
    # all comparisons of a round together go wrong with probability `_FALSE_ALARM` at most. Others are left out.
    comparisons = (num_rows + 1) * num_devices * (num_devices + 1) / 2
    limit = np.log(_FALSE_ALARM / comparisons)
    rows = [(chance[:, row], noise[:, row]) for row in range(num_rows)]
    for unlikely, drawn in [*rows, (chance.sum(axis=1), noise.reshape(num_devices, -1))]:
        compared = np.flatnonzero(unlikely < limit)
        silent = compared[~drawn[compared].any(axis=1)]
        if len(silent) or len({drawn[device].tobytes() for device in compared}) < len(compared):
            source = f"device {silent[0]}" if len(silent) and num_devices > 1 else alone
            named = f"{source} has no noise" if len(silent) else "two devices share noise"
            rule = "all noise is counted, and each source must add its own"
            way_out = "nothing was transmitted; do not use this installation of OpenDP"
            raise AirDistillError(f"secure noise: {named}; {rule}; {way_out}")


def discrete_gaussian(deviation: float, shape: int | tuple[int, ...]) -> IntArray:
    """Fresh draws of N_Z(0, deviation²), the deviation in grid units: P(z) ∝ exp(−z²/(2 deviation²)).

    OpenDP samples without approximation, in whole and rational numbers (Canonne, Kamath and Steinke 2020, algorithm 3).
    """
    if not 0 <= deviation < np.inf:
        raise ValueError(f"deviation = {deviation}: must be finite and not negative")
    if deviation == 0:
        return np.zeros(shape, dtype=np.int64)
    count = int(np.prod(shape))
    drawn = np.array(_mechanism()(float(deviation))([0] * count), dtype=np.int64)
    # OpenDP saturates at 64 bits: saturated draws would have another distribution.
    if ((drawn == _SATURATED.max) | (drawn == _SATURATED.min)).any():
        raise AirDistillError(f"secure noise of {deviation:.3g} grid units does not fit into 64 bits")
    return drawn.reshape(shape)


@cache
def _mechanism() -> Callable[[float], Any]:
    """A function from a deviation to OpenDP's mechanism, which adds such noise to a list of integers."""
    try:
        import opendp.prelude as dp
    except ImportError as error:
        raise AirDistillError("secure noise needs OpenDP: pip install 'airdistill[secure]'") from error
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="i64")
    return lambda deviation: dp.m.make_gaussian(*space, scale=deviation)
