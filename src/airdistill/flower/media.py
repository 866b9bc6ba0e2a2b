"""How the server obtains the sum of the devices' signals, by medium.

A device that is missing, late or sends an invalid reply is left out of the average, if privacy allows this: the other
devices' weights are scaled up. If the sum without it would have less noise than the devices were charged for, the
server discards the round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from airdistill.arrays import BoolArray, ComplexArray, FloatArray, IntArray, divide_or
from airdistill.errors import AirDistillError, InputError
from airdistill.flower.endpoint import Endpoint
from airdistill.flower.records import Record, integer, octets, unpacked
from airdistill.flower.sums.messages import Roster, keys_question, sum_terms
from airdistill.flower.sums.server_side import ServerSide
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.plugins import load_object
from airdistill.radio.charged_round import ChargedRound
from airdistill.radio.discrete_noise import SecureNoise
from airdistill.radio.front_ends import FrontEnd
from airdistill.radio.superposition import receive, superpose

NO_ANSWER = "no answer in time"
_SLACK = 1e-9  # relative tolerance for rounding errors
# Noise alone exceeds the limit once in 10^9 rounds; this is the exponent in the bound of Laurent and Massart.
_LOG_INVERSE_RATE = float(np.log(1e9))


class DeviceLink(Protocol):
    """The server's link to the devices; a string in place of a reply says why there is none."""

    def ask(self, step: str, round_index: int, questions: Mapping[int, Record]) -> dict[int, Record | str]: ...


@dataclass(frozen=True)
class Collected:
    """A round at the server: the average of the devices' vectors `[row, entry]` and its noise variance `[row]`.

    `weights` `[device, row]` are those of the devices in the average. `missing` has the reason for each device that is
    not in it; `nothing_because` says why there is none.
    """

    received: FloatArray
    noise_var: FloatArray
    weights: FloatArray
    missing: dict[int, str]
    nothing_because: str | None = None

    @classmethod
    def nothing(cls, charged: ChargedRound, missing: dict[int, str], because: str) -> Collected:
        """A round without a result: nothing is known of any row."""
        shape = (charged.design.weights.shape[1], charged.plan.uplink.vector_length)
        unknown, weights = np.full(shape[0], np.inf), np.zeros_like(charged.design.weights)
        return cls(np.full(shape, np.nan), unknown, weights, missing, because)


class Medium(Protocol):
    def collect(self, charged: ChargedRound, present: list[int]) -> Collected:
        """Collect the round from these devices."""

    def close(self) -> None: ...


def medium_of(endpoint: Endpoint, devices: DeviceLink, radio: str) -> Medium:
    """The medium of the scenario; for the medium radio, `radio` names the server's front end."""
    if endpoint.medium == "secure_sum":
        return SecureSum(endpoint, devices)
    if endpoint.medium == "radio":
        if not radio:
            raise InputError("radio", "(not given)", "the medium is radio: name a front end")
        return OverTheAir(endpoint, devices, load_object(radio, "radio")(endpoint.plan.scenario))
    return Emulated(endpoint, devices)


class Emulated:
    """The server simulates the channel: it sees every single signal."""

    def __init__(self, endpoint: Endpoint, devices: DeviceLink) -> None:
        self._endpoint, self._devices = endpoint, devices

    def collect(self, charged: ChargedRound, present: list[int]) -> Collected:
        uplink = self._endpoint.plan.uplink
        shape = (uplink.num_rows, uplink.vector_length)
        replies = self._devices.ask("signal", charged.index, {device: {} for device in present})
        signals, missing = np.zeros((self._endpoint.plan.fleet.num_devices, *shape), dtype=np.complex128), {}
        for device in range(len(signals)):
            try:
                signal = unpacked(_reply_of(replies, device), "signal", "c16", shape)
                _check_signal(signal, _transmitted_design(charged), device, _rounding_error(charged, device))
                signals[device] = signal
            except AirDistillError as reason:
                missing[device] = str(reason)
        summed = superpose(signals, charged.channel, charged.on_air.receiver)
        return _averaged(self._endpoint, charged, summed, missing)

    def close(self) -> None:
        pass


class OverTheAir:
    """The air adds the signals; the server receives the sum, and a reply of each device that has transmitted."""

    def __init__(self, endpoint: Endpoint, devices: DeviceLink, front_end: FrontEnd) -> None:
        self._endpoint, self._devices, self._front_end = endpoint, devices, front_end

    def collect(self, charged: ChargedRound, present: list[int]) -> Collected:
        uplink = self._endpoint.plan.uplink
        if charged.was_begun:
            lost = "the server was killed in this round, and the signal that it had received is lost"
            return Collected.nothing(charged, {}, lost)
        self._front_end.listen(charged.index, (uplink.num_rows, uplink.vector_length))
        replies = self._devices.ask("send", charged.index, {device: {} for device in present})
        summed, missing = self._front_end.received(charged.index), {}
        for device in range(self._endpoint.plan.fleet.num_devices):
            try:
                _reply_of(replies, device)
            except AirDistillError as reason:
                missing[device] = str(reason)
        if uncertain := sorted(set(missing) & set(present)):
            names = ", ".join(map(str, uncertain))
            unknown = f"it is unknown whether the signals of devices {names} are in the sum"
            return Collected.nothing(charged, missing, unknown)
        return _averaged(self._endpoint, charged, summed, missing)

    def close(self) -> None:
        self._front_end.close()


class SecureSum:
    """The server forwards the messages of a secure aggregation and learns only the sum."""

    def __init__(self, endpoint: Endpoint, devices: DeviceLink) -> None:
        self._endpoint, self._devices = endpoint, devices
        self._roster = Roster.read(endpoint.folder)

    def collect(self, charged: ChargedRound, present: list[int]) -> Collected:
        grid, devices = charged.summed, range(self._endpoint.plan.fleet.num_devices)
        missing = {device: NO_ANSWER for device in devices if device not in present}
        side = ServerSide(sum_terms(grid, self._roster), self._roster.public_keys)
        try:
            total = self._total(side, charged, present, missing)
        except AirDistillError as reason:
            return Collected.nothing(charged, missing, str(reason))
        survivors = side.survivors
        received, noise_var = grid.received(total, survivors)
        absent = {device: why for device, why in missing.items() if device not in survivors}
        return Collected(received, noise_var, _weights_of(charged, survivors), absent)

    def _total(self, side: ServerSide, charged: ChargedRound, present: list[int], missing: dict[int, str]) -> IntArray:
        length = charged.summed.num_values

        def step(name: str, questions: Mapping[int, Record], take: Callable[[Record], None]) -> None:
            replies = self._devices.ask(name, charged.index, questions)
            for device in sorted(
                {*questions, *replies}
            ):  # replies from before a restart may be of devices that are gone now
                try:
                    take(_reply_of(replies, device))
                except AirDistillError as reason:
                    missing[device] = str(reason)

        def take_masked(record: Record) -> None:
            side.take_masked(integer(record, "device"), side.modulus.unpacked(octets(record, "words"), length))

        step("keys", {device: {} for device in present}, side.take_keys)
        step("shares", dict.fromkeys(side.with_keys, keys_question(side.keys_for_all())), side.take_shares)
        step("masked", {device: side.delivery_for(device) for device in side.with_shares}, take_masked)
        step("confirm", dict.fromkeys(side.survivors, side.survivors_question()), side.take_confirmation)
        step("reveal", dict.fromkeys(side.confirmed, side.reveal_question()), side.take_reveal)
        return side.total()

    def close(self) -> None:
        pass


def _reply_of(replies: Mapping[int, Record | str], device: int) -> Record:
    reply = replies.get(device, NO_ANSWER)
    if isinstance(reply, str):
        raise AirDistillError(reply)
    return reply


def _transmitted_design(charged: ChargedRound) -> RoundDesign:
    """The design with the noise that the devices add; on a grid, strong devices also add the share of weak ones."""
    if isinstance(charged.on_air, SecureNoise):
        grid = charged.on_air.grid
        return replace(charged.design, noise_gain=grid.deviation * grid.unit)
    return charged.design


def _rounding_error(charged: ChargedRound, device: int) -> FloatArray:
    """The largest rounding error of a device's signal in each entry, half a grid step, `[row]`."""
    if isinstance(charged.on_air, SecureNoise):
        grid = charged.on_air.grid
        return np.asarray(0.5 * grid.spacing * np.abs(grid.unit[device]))
    return np.zeros(len(charged.design.rx_scale))


def _check_signal(signal: ComplexArray, design: RoundDesign, device: int, rounding: FloatArray) -> None:
    """Raise unless the signal is finite and not stronger than knowledge and noise can explain."""
    if not np.isfinite(signal).all():
        raise AirDistillError("sent a signal that is not finite")
    num_slots = signal.shape[1]
    of_knowledge = np.abs(design.signal_gain[device]) * np.sqrt(num_slots)  # its norm is at most that planned for
    drawn = design.noise_axes * num_slots
    of_noise = np.abs(design.noise_gain[device]) * np.sqrt(
        drawn + 2 * np.sqrt(drawn * _LOG_INVERSE_RATE) + 2 * _LOG_INVERSE_RATE
    )
    limit = (of_knowledge + of_noise + rounding * np.sqrt(num_slots)) * (1 + _SLACK)
    norm = np.linalg.norm(signal, axis=1)
    if (norm > limit).any():
        row = int(np.argmax(norm - limit))
        power, most = norm[row] ** 2 / num_slots, limit[row] ** 2 / num_slots
        raise AirDistillError(f"sent row {row} with {power:.3g} W; knowledge and noise explain at most {most:.3g} W")


def _averaged(endpoint: Endpoint, charged: ChargedRound, summed: ComplexArray, missing: dict[int, str]) -> Collected:
    """The average over the present devices, if its noise is at least what they were charged for."""
    plan, design = endpoint.plan, charged.design
    received, noise_var = receive(summed, design.rx_scale), design.effective_noise_var
    if not missing:
        return Collected(received, noise_var, design.weights, missing)
    present = np.ones(plan.fleet.num_devices, dtype=bool)
    present[list(missing)] = False
    if not present.any():
        return Collected.nothing(charged, missing, "no device sent a valid signal")
    if _has_less_noise(endpoint, charged, present):
        rule = f"under trust {plan.scenario.privacy.trust} the guarantees rely on the noise of the missing devices"
        return Collected.nothing(charged, missing, rule)
    share = divide_or(design.weights[present].sum(axis=0), design.weights.sum(axis=0), 0.0)
    received_rows, safe = share > 0, np.where(share > 0, share, 1.0)
    received = np.where(received_rows[:, None], received / safe[:, None], np.nan)
    noise_var = np.where(received_rows, noise_var / safe**2, np.inf)
    return Collected(received, noise_var, _weights_of(charged, np.flatnonzero(present).tolist()), missing)


def _weights_of(charged: ChargedRound, present: list[int]) -> FloatArray:
    """The weights of the devices that are in the average, `[device, row]`: their sum in a row is that of all."""
    weights = np.zeros_like(charged.design.weights)
    weights[present] = charged.design.weights[present]
    return np.asarray(weights * divide_or(charged.design.weights.sum(axis=0), weights.sum(axis=0), 0.0))


def _has_less_noise(endpoint: Endpoint, charged: ChargedRound, present: BoolArray) -> bool:
    """Whether the sum has less noise than the release that the present devices were charged for."""
    uplink, trust, design = endpoint.plan.uplink, endpoint.plan.scenario.privacy.trust, _transmitted_design(charged)
    left = replace(design, noise_gain=np.where(present[:, None], design.noise_gain, 0.0))
    planned, achieved = (uplink.noise_by_trust(each, charged.channel)[trust] for each in (design, left))
    sends = present[:, None] & (design.weights > 0) & np.isfinite(planned)
    return bool((achieved < planned * (1 - _SLACK))[sends].any())
