"""The protected part of a round, for simulator, Flower and audit alike: charge the ledger, then transmit once.

`charge_round` designs the round for its channel, charges the ledger with what the design really sends, and draws the
noise for that ledger entry. What it returns can transmit, and nothing else can: there is no way to send a payload that
the ledger does not know of.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray, IntArray
from airdistill.channel.csi import round_estimate
from airdistill.channel.link_budget import noise_power_w
from airdistill.channel.selective import WideChannel
from airdistill.channel.sources import ChannelSource
from airdistill.channel.waveform import number_seconds
from airdistill.errors import AirDistillError
from airdistill.planning.fleet import counted_share
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.design import TOLERANCE, RoundDesign
from airdistill.planning.uplink import Uplink
from airdistill.planning.waveform import design_of_round, observed, round_link
from airdistill.privacy.ledger import Ledger
from airdistill.radio.discrete_noise import SecureNoise, release_on_grid, secure_grid
from airdistill.radio.noise_memory import NoiseMemory
from airdistill.radio.sum_grid import SumGrid
from airdistill.radio.superposition import (
    Noise,
    Permission,
    Reception,
    RoundNoise,
    Superposition,
    error_free,
    over_the_air,
    receiver_noise,
)
from airdistill.radio.waveform_link import WaveformRound, superpose_waveform
from airdistill.streams import Seed, noise_seed, stream

_ROUNDING = 1e-4  # relative, of norms: gradients are clipped in single precision
_ALIGNED = 1e-9  # relative, of received amplitudes
_COMPARED = 4  # entries of every device's noise that are looked at before a transmission


class NotFiniteError(AirDistillError):
    """A vector that is not finite was refused: training has diverged, or a scheme sends NaN."""


@dataclass
class ChargedRound:
    """A round that its ledger has charged: its channel and design, and the noise that protects it.

    `noise` is for the air, emulated or real; `sum_grid` is for a secure sum. One of them is set. `was_begun` says that
    the ledger had charged this round before, and devices may have sent their vectors already. `air` adds the signals
    sample by sample if the medium is a waveform.
    """

    plan: Plan
    index: int
    channel: ComplexArray
    design: RoundDesign
    noise: Noise | None = None
    sum_grid: SumGrid | None = None
    was_begun: bool = False
    permission: Permission | None = field(default=None, repr=False)
    air: Superposition | None = field(default=None, repr=False)

    @property
    def on_air(self) -> Noise:
        """The noise of a round that is not a secure sum."""
        assert self.noise is not None
        return self.noise

    @property
    def summed(self) -> SumGrid:
        """The grid of a secure sum."""
        assert self.sum_grid is not None
        return self.sum_grid

    def transmit(self, vectors: FloatArray) -> Reception:
        """Send every device's vectors `[device, row, entry]` over the air and return what the server receives.

        Raise `AirDistillError` if a vector exceeds the bound that its noise was made for, or on a second call.
        """
        self._use(vectors)
        assert self.noise is not None  # a secure sum takes values, not vectors
        uplink = self.plan.uplink
        round_s, number_s = self.plan.air_time.total_s, number_seconds(self.plan.scenario)
        return over_the_air(
            uplink.weights(self.index),
            vectors,
            self.design,
            self.channel,
            self.noise,
            number_s,
            uplink.largest_norm,
            uplink.participation.signal_mask(self.index),
            self.air,
            None if uplink.uses_tdma else round_s,
        )

    def signal_of(self, device: int, vectors: FloatArray) -> ComplexArray:
        """The signal of one device from its vectors `[row, entry]`, `[row, slot]`, with its own share of the noise."""
        everyone = self._alone(device, vectors)
        if isinstance(self.on_air, SecureNoise):
            return self.on_air.transmit_alone(device, vectors)
        return np.asarray(self.on_air.transmit(self.design, everyone, self.plan.uplink.energy_slots)[device])

    def sum_values(self, device: int, vectors: FloatArray) -> IntArray:
        """What one device submits to the secure sum, from its vectors `[row, entry]`."""
        self._alone(device, vectors)
        return self.summed.values(device, vectors)

    def _alone(self, device: int, vectors: FloatArray) -> FloatArray:
        """The vectors of one device among zeros for the others, checked."""
        _check_real(vectors, self.index)
        everyone = np.zeros((self.plan.fleet.num_devices, *vectors.shape))
        everyone[device] = vectors
        self._use(everyone)
        return everyone

    def _use(self, vectors: FloatArray) -> None:
        if self.permission is None:
            raise AirDistillError(f"round {self.index}: was not charged; use charge_round")
        check_vectors(self.plan, self.design, vectors, self.index)
        if isinstance(self.noise, RoundNoise):
            _check_noise_sources(self.design, self.noise, self.index)
        self.permission.open()


def charge_round(
    plan: Plan,
    ledger: Ledger,
    source: ChannelSource,
    round_index: int,
    design: RoundDesign | None = None,
    secure_sum: bool = False,
    memory: NoiseMemory | None = None,
) -> ChargedRound:
    """Charge a round and draw its noise. Raise `BudgetExceeded` if it exceeds a device's budget.

    A plan with correlated noise needs the run's `memory` of the noise before.

    1. draw the channel, and what devices and server know of it;
    2. design the round, unless a `design` of the caller's own is given, whose gains must send what its weights state;
    3. charge the ledger;
    4. draw the noise, seeded or secure, or make the grid of a secure sum.
    """
    if not plan.uplink.uses_radio:
        rule = "go to a trusted aggregator in a simulation only, not over the air: choose another scheme"
        raise AirDistillError(f"round {round_index}: {plan.uplink.payload.words} {rule}")
    scenario, was_begun, permission = plan.scenario, ledger.charged_ahead, Permission(round_index)
    channel = source.round_channel(round_index)
    known = round_estimate(scenario, channel, round_index)
    if design is not None:
        design = _frozen(design)
        _check_gains(plan, design, known, round_index)
    if secure_sum:
        # The plan counts the noise of all devices, the ledger that of the devices which cannot be missing.
        spent = ledger.cost_of_run * counted_share(scenario)
        made = plan.design(known, round_index, spent) if design is None else design
        grid = SumGrid.of(plan, made, known, round_index)
        seed = noise_seed(plan.scenario.seed, ledger.charge(grid.release()))
        charged = replace(grid, noise_seed=seed, permission=permission)
        return ChargedRound(plan, round_index, known, made, None, charged, was_begun, permission)
    if design is None:
        made, uplink = design_of_round(plan, source, known, round_index, ledger.cost_of_run)
    else:
        made, uplink = design, observed(scenario, plan.uplink, source, design, known, round_index)
    if design is not None or ":" in plan.uplink.trust:
        _check_power(plan, made, round_index)
    noise, seed = _charged_noise(plan, uplink, ledger, made, known, round_index, memory)
    noise = replace(noise, permission=permission)
    air = _air(plan, source, made, round_index, seed) if scenario.air.medium == "waveform" else None
    return ChargedRound(plan, round_index, channel, made, noise, None, was_begun, permission, air)


def _charged_noise(
    plan: Plan,
    uplink: Uplink,
    ledger: Ledger,
    design: RoundDesign,
    known: ComplexArray,
    round_index: int,
    memory: NoiseMemory | None,
) -> tuple[RoundNoise | SecureNoise, Seed]:
    """Charge what a design releases through this uplink, and draw its noise from the seed of that entry."""
    _check_memory(plan, memory, round_index)
    scenario = plan.scenario
    drawn_as = (round_index, design, uplink.vector_length, noise_power_w(scenario), scenario.radio.noise)
    if plan.scenario.privacy.noise == "secure":
        grid = secure_grid(plan, design, known, round_index)
        seed = noise_seed(plan.scenario.seed, ledger.charge(release_on_grid(uplink, grid, design, known, round_index)))
        return SecureNoise(grid, receiver_noise(seed, *drawn_as)), seed
    seed = noise_seed(plan.scenario.seed, ledger.charge(uplink.release(design, known, round_index)))
    drawn = RoundNoise.seeded(seed, *drawn_as)
    if memory is None:
        return drawn, seed
    return replace(drawn, artificial=memory.correlated(round_index, drawn.artificial.real)), seed


def _air(plan: Plan, source: ChannelSource, design: RoundDesign, round_index: int, seed: Seed) -> Superposition:
    """The medium that carries a round as samples; its receiver noise has a stream of its own under the entry's seed."""
    this = waveform_round(plan, source, round_index, seed)

    def add(transmitted: ComplexArray) -> ComplexArray:
        num_numbers = transmitted[0].size
        received = superpose_waveform(this, filled_symbols(this, design, transmitted.real)).numbers
        return received[:num_numbers].reshape(transmitted.shape[1:]).astype(np.complex128)

    return add


def filled_symbols(this: WaveformRound, design: RoundDesign, signals: FloatArray) -> FloatArray:
    """The numbers of whole symbols `[device, number]`, from signals `[device, row, slot]`: noise where none is sent.

    Signals of deep fades and channel errors spread over all numbers of a symbol, and must meet noise in each: also in
    rows that are not sent, and in what fills up the last symbol. It is that of a device's last row that is sent.
    """
    num_devices, _, length = signals.shape
    flat, sent = signals.reshape(num_devices, -1), design.rx_scale > 0
    empty = np.ones(this.grid.num_symbols(flat.shape[1]) * this.grid.numbers_per_symbol, dtype=np.bool_)
    empty[: flat.shape[1]] = np.repeat(~sent, length)
    filled = np.zeros((num_devices, len(empty)))
    filled[:, : flat.shape[1]] = flat
    if sent.any():
        for device, gain in enumerate(design.noise_gain[:, np.flatnonzero(sent)[-1]].real):
            if gain:
                rng = stream(this.noise_seed, "padding-noise", this.round_index, device)
                filled[device, empty] = gain * rng.standard_normal(np.count_nonzero(empty))
    return filled


def waveform_round(plan: Plan, source: ChannelSource, round_index: int, seed: Seed) -> WaveformRound:
    """What the samples of a round depend on, apart from the signals."""
    assert isinstance(source, WideChannel)  # the rules of scenarios ask for a waveform
    scenario, num_numbers = plan.scenario, plan.uplink.num_slots
    link = round_link(scenario, plan.uplink, source, round_index)
    scale = np.ones(len(link.gain)) if link.scale is None else link.scale
    age_s = plan.air_time.total_s - plan.air_time.data_s
    return WaveformRound(
        grid=source.grid,
        wave=scenario.waveform,
        taps=source.taps_of_symbols(round_index, num_numbers),
        tone_gains=link.known,
        gains=link.gain * scale,
        peak_power=plan.fleet.peak_power_w,
        noise_power=noise_power_w(scenario),
        round_index=round_index,
        seed=scenario.seed,
        noise_seed=seed,
        pilot_age_s=age_s,
    )


def _check_memory(plan: Plan, memory: NoiseMemory | None, round_index: int) -> None:
    """Raise before anything is charged if noise would be correlated in another way than is counted."""
    if plan.uplink.correlation != (None if memory is None else memory.correlation):
        rule = "its plan and the memory of earlier noise must have the same correlation; use NoiseMemory.of(plan)"
        raise AirDistillError(f"round {round_index}: cannot be charged: {rule}")


def release_without_privacy(plan: Plan, ledger: Ledger, round_index: int, aggregate: FloatArray) -> Reception:
    """Charge a non-private release, and return the error-free exchange of an aggregate `[row, entry]`."""
    ledger.charge(plan.uplink.non_private_release(round_index))
    seconds = aggregate.size * plan.scenario.radio.slot
    wide = plan.scenario.waveform.kind == "ofdm"
    return error_free(aggregate, plan.air_time.total_s if wide else seconds)


def _check_gains(plan: Plan, design: RoundDesign, known: ComplexArray, round_index: int) -> None:
    """Raise `AirDistillError` unless the gains of a design send what the ledger will count: its weights and its noise.

    Signals must be received with the design's weights, and on the real axis, where the noise is. A row of scale zero
    is counted as not sent.
    """
    gain = known[:, None] if design.combiner is None else known @ design.combiner.conj().T
    received = gain * design.signal_gain * np.sqrt(plan.uplink.energy_slots)
    # With TDMA the server applies the weights itself.
    stated = design.rx_scale * ((design.weights > 0) if design.uses_tdma else design.weights)
    wrong = np.abs(received - stated) > _ALIGNED * np.maximum(np.abs(received), stated)
    if wrong.any():
        device, row = np.argwhere(wrong)[0]
        rule = f"would be received with amplitude {received[device, row]:.6g}, and the design states"
        named = f"row {row} of device {device} {rule} {stated[device, row]:.6g}"
        raise AirDistillError(f"round {round_index}: the design cannot be charged: {named}; the ledger counts weights")
    noise = gain * design.noise_gain
    if design.noise_axes == 1 and design.combiner is None and (np.abs(noise.imag) > _ALIGNED * np.abs(noise)).any():
        rule = "noise_gain must bring all noise to the real axis, on which it is counted"
        raise AirDistillError(f"round {round_index}: the design cannot be charged: {rule}")


def _check_power(plan: Plan, design: RoundDesign, round_index: int) -> None:
    """Raise unless a design that the user's own code made keeps the power limits, eq. (9).

    A real transmitter would clip what is beyond them, and so add less noise than the ledger counts.
    """
    slack = design.power_slack(plan.fleet.peak_power_w)
    if (slack < -TOLERANCE).any():
        device, row = np.unravel_index(int(np.argmin(slack)), slack.shape)
        limit = plan.fleet.peak_power_w[device]
        named = f"device {device} would send {design.mean_power_w()[device, row]:.6g} W in row {row}"
        rule = f"above its radio.peak_power of {limit:.6g} W: the scale or the noise of the design is too large"
        raise AirDistillError(f"round {round_index}: the design cannot be charged: {named}, {rule}")


def _check_noise_sources(design: RoundDesign, noise: RoundNoise, round_index: int) -> None:
    """Raise `AirDistillError` unless every device whose noise is counted has noise, and noise of its own."""
    counted = np.flatnonzero(design.noise_gain.any(axis=1))
    first = noise.artificial[counted, 0, :_COMPARED]
    absent = ~first.any(axis=1)
    if absent.any() or len(np.unique(first, axis=0)) < len(counted):
        named = f"device {counted[int(np.argmax(absent))]} has no noise" if absent.any() else "two devices share noise"
        rule = "the ledger counts the noise of every device whose noise gain is not zero"
        raise AirDistillError(f"round {round_index}: cannot be transmitted: {named}; {rule}")


def _frozen(design: RoundDesign) -> RoundDesign:
    """A copy whose arrays cannot be written: what was charged is what is sent."""
    arrays = {name: value.copy() for name, value in vars(design).items() if isinstance(value, np.ndarray)}
    for array in arrays.values():
        array.flags.writeable = False
    changes: dict[str, Any] = arrays
    return replace(design, **changes)


def _check_real(vectors: FloatArray, round_index: int) -> None:
    if np.iscomplexobj(vectors):
        rule = "noise on the real axis does not protect an imaginary part"
        raise AirDistillError(f"round {round_index}: vectors must be real: {rule}")


def check_vectors(plan: Plan, design: RoundDesign, vectors: FloatArray, round_index: int) -> None:
    """Raise `AirDistillError` unless all vectors that a design sends keep the bounds that the plan counts on.

    A longer vector exceeds the power limit and the sensitivity. For payloads whose neighbours are bounded by vectors
    without negative entries, a negative entry would double the distance.
    """
    _check_real(vectors, round_index)
    payload = plan.uplink.payload
    expected = (plan.fleet.num_devices, payload.num_rows, payload.vector_length)
    if vectors.shape != expected:
        rule = f"the round was planned for [device, row, entry] = {list(expected)}"
        raise AirDistillError(f"round {round_index}: vectors of shape {list(vectors.shape)} cannot be sent; {rule}")
    sent = design.signal_gain != 0
    norms = np.where(sent, np.linalg.norm(vectors, axis=2), 0.0)
    if not (norms <= payload.largest_norm * (1 + _ROUNDING)).all():
        device, row = np.unravel_index(int(np.argmax(np.nan_to_num(norms, nan=np.inf))), norms.shape)
        rule = f"the round was planned for {payload.largest_norm:.6g} at most: clip it"
        named = f"device {device} would send a vector of norm {norms[device, row]:.6g}"
        kind = AirDistillError if np.isfinite(norms[device, row]) else NotFiniteError
        raise kind(f"round {round_index}: {named}; {rule}")
    if payload.neighbours.forbids_negative_entries and (vectors < 0)[sent].any():
        first = int(np.argmax(((vectors < 0).any(axis=2) & sent).any(axis=1)))
        rule = f"the guarantee for {payload.words} holds for vectors without negative entries"
        way_out = "shift or clip them, or send a payload of your own whose neighbours are opposite"
        raise AirDistillError(f"round {round_index}: device {first} would send a negative entry; {rule}: {way_out}")
    problem = payload.problem(np.where(sent[..., None], vectors, 0.0))
    if problem is not None:
        raise AirDistillError(f"round {round_index}: {problem}; the guarantee for {payload.words} rests on it")
