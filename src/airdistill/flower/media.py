"""How the devices' contributions become one sum at the server, by medium.

A device that is missing, late or answers nonsense costs its own share where privacy allows it: the others' weights are
scaled up. Where a sum without it would hide less than every device was charged for, nothing comes of the round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from airdistill.arrays import BoolArray, ComplexArray, FloatArray, IntArray, divide_or
from airdistill.errors import AirDistillError, InputError
from airdistill.flower.endpoint import ChargedRound, Endpoint
from airdistill.flower.records import Record, integer, unpacked
from airdistill.flower.sums.messages import Roster, keys_question, sum_terms
from airdistill.flower.sums.server_side import ServerSide
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.plugins import load_object
from airdistill.radio.discrete_noise import SecureNoise
from airdistill.radio.front_ends import FrontEnd
from airdistill.radio.superposition import receive, superpose

NO_ANSWER = "no answer in time"
_SLACK = 1e-9  # relative: what rounding may take of noise
# A loudness that noise explains once in 10^9 rounds, as the logarithm of that in the bound of Laurent and Massart.
_RARE = float(np.log(1e9))


class Asker(Protocol):
    """The devices as a server reaches them; a string in place of an answer says why there is none."""

    def ask(self, step: str, round_index: int, questions: Mapping[int, Record]) -> dict[int, Record | str]: ...


@dataclass(frozen=True)
class Collected:
    """A round at the server: the average of those who are in it `[row, entry]` and its noise's variance `[row]`.

    `missing` says for every other device why; `nothing_because` why there is no average.
    """

    received: FloatArray | None
    noise_var: FloatArray
    missing: dict[int, str]
    nothing_because: str | None = None


class Medium(Protocol):
    def collect(self, paid: ChargedRound, present: list[int]) -> Collected:
        """From these devices."""

    def close(self) -> None: ...


def medium_of(station: Endpoint, devices: Asker, radio: str) -> Medium:
    """`radio` names the server's front end, for a medium that has one."""
    if station.medium == "secure_sum":
        return SecureSum(station, devices)
    if station.medium == "radio":
        if not radio:
            raise InputError("radio", "(not given)", "the medium is radio: name a front end")
        return OnRadio(station, devices, load_object(radio, "radio")(station.plan.scenario))
    return Emulated(station, devices)


class Emulated:
    """The server plays the channel: it sees every signal by itself."""

    def __init__(self, station: Endpoint, devices: Asker) -> None:
        self._station, self._devices = station, devices

    def collect(self, paid: ChargedRound, present: list[int]) -> Collected:
        uplink = self._station.plan.uplink
        shape = (uplink.num_rows, uplink.vector_length)
        answers = self._devices.ask("signal", paid.index, {device: {} for device in present})
        signals, missing = np.zeros((self._station.plan.fleet.num_devices, *shape), dtype=np.complex128), {}
        for device in range(len(signals)):
            try:
                signal = unpacked(_answered(answers, device), "signal", "c16", shape)
                _check_signal(signal, _sent_design(paid), device, uplink.largest_norm, _rounding(paid, device))
                signals[device] = signal
            except AirDistillError as reason:
                missing[device] = str(reason)
        summed = superpose(signals, paid.channel, paid.on_air.receiver)
        return _averaged(self._station, paid, summed, missing)

    def close(self) -> None:
        pass


class OnRadio:
    """The air adds the signals up; the server hears the sum, and who says that it has sent."""

    def __init__(self, station: Endpoint, devices: Asker, front_end: FrontEnd) -> None:
        self._station, self._devices, self._front_end = station, devices, front_end

    def collect(self, paid: ChargedRound, present: list[int]) -> Collected:
        uplink = self._station.plan.uplink
        if paid.was_begun:
            lost = "the server was killed in this round, and what it had heard is lost"
            return Collected(None, np.full(uplink.num_rows, np.inf), {}, lost)
        self._front_end.listen(paid.index, (uplink.num_rows, uplink.vector_length))
        answers = self._devices.ask("send", paid.index, {device: {} for device in present})
        summed, missing = self._front_end.heard(paid.index), {}
        for device in range(self._station.plan.fleet.num_devices):
            try:
                _answered(answers, device)
            except AirDistillError as reason:
                missing[device] = str(reason)
        if doubtful := sorted(set(missing) & set(present)):
            names = ", ".join(map(str, doubtful))
            unknown = f"nobody knows whether what devices {names} send is in the sum"
            return Collected(None, np.full(uplink.num_rows, np.inf), missing, unknown)
        return _averaged(self._station, paid, summed, missing)

    def close(self) -> None:
        self._front_end.close()


class SecureSum:
    """The server carries the messages of a secure aggregation and learns the sum."""

    def __init__(self, station: Endpoint, devices: Asker) -> None:
        self._station, self._devices = station, devices
        self._roster = Roster.read(station.folder)

    def collect(self, paid: ChargedRound, present: list[int]) -> Collected:
        grid, everybody = paid.summed, range(self._station.plan.fleet.num_devices)
        missing = {device: NO_ANSWER for device in everybody if device not in present}
        side = ServerSide(sum_terms(grid, self._roster), self._roster.public_keys)
        try:
            total = self._total(side, paid, present, missing)
        except AirDistillError as reason:
            return Collected(None, np.full(len(grid.grid.spacing), np.inf), missing, str(reason))
        survivors = side.survivors
        received, noise_var = grid.received(total, survivors)
        return Collected(received, noise_var, {d: why for d, why in missing.items() if d not in survivors})

    def _total(self, side: ServerSide, paid: ChargedRound, present: list[int], missing: dict[int, str]) -> IntArray:
        length = paid.summed.num_values

        def step(name: str, questions: Mapping[int, Record], take: Callable[[Record], None]) -> None:
            answers = self._devices.ask(name, paid.index, questions)
            for device in sorted({*questions, *answers}):  # of before a restart, some may be gone by now
                try:
                    take(_answered(answers, device))
                except AirDistillError as reason:
                    missing[device] = str(reason)

        def take_masked(record: Record) -> None:
            side.take_masked(integer(record, "device"), unpacked(record, "words", "u8", (length,)))

        step("keys", {device: {} for device in present}, side.take_keys)
        step("shares", dict.fromkeys(side.with_keys, keys_question(side.keys_for_all())), side.take_shares)
        step("masked", {device: side.delivery_for(device) for device in side.with_shares}, take_masked)
        step("confirm", dict.fromkeys(side.survivors, side.survivors_question()), side.take_confirmation)
        step("reveal", dict.fromkeys(side.confirmed, side.reveal_question()), side.take_reveal)
        return side.total()

    def close(self) -> None:
        pass


def _answered(answers: Mapping[int, Record | str], device: int) -> Record:
    answer = answers.get(device, NO_ANSWER)
    if isinstance(answer, str):
        raise AirDistillError(answer)
    return answer


def _sent_design(paid: ChargedRound) -> RoundDesign:
    """With the noise that devices really add: on a grid the loud ones add that of the quiet."""
    if isinstance(paid.on_air, SecureNoise):
        grid = paid.on_air.grid
        return replace(paid.design, noise_gain=grid.deviation * grid.unit)
    return paid.design


def _rounding(paid: ChargedRound, device: int) -> FloatArray:
    """How far a device's signal may be from what it says, entry by entry, `[row]`: half a step of the grid."""
    if isinstance(paid.on_air, SecureNoise):
        grid = paid.on_air.grid
        return np.asarray(0.5 * grid.spacing * np.abs(grid.unit[device]))
    return np.zeros(len(paid.design.rx_scale))


def _check_signal(
    signal: ComplexArray, design: RoundDesign, device: int, largest_norm: float, rounding: FloatArray
) -> None:
    """Numbers, and not louder than knowledge and noise explain."""
    if not np.isfinite(signal).all():
        raise AirDistillError("sent what is no number")
    num_slots = signal.shape[1]
    of_knowledge = np.abs(design.signal_gain[device]) * np.sqrt(num_slots) * largest_norm
    drawn = design.noise_axes * num_slots
    of_noise = np.abs(design.noise_gain[device]) * np.sqrt(drawn + 2 * np.sqrt(drawn * _RARE) + 2 * _RARE)
    loudest = (of_knowledge + of_noise + rounding * np.sqrt(num_slots)) * (1 + _SLACK)
    loudness = np.linalg.norm(signal, axis=1)
    if (loudness > loudest).any():
        row = int(np.argmax(loudness - loudest))
        power, most = loudness[row] ** 2 / num_slots, loudest[row] ** 2 / num_slots
        raise AirDistillError(f"sent row {row} with {power:.3g} W, where {most:.3g} W can be explained")


def _averaged(station: Endpoint, paid: ChargedRound, summed: ComplexArray, missing: dict[int, str]) -> Collected:
    """The estimate of those who are there, if what hides it is what they were charged for."""
    plan, design = station.plan, paid.design
    received, noise_var = receive(summed, design.rx_scale), design.effective_noise_var
    if not missing:
        return Collected(received, noise_var, missing)
    present = np.ones(plan.fleet.num_devices, dtype=bool)
    present[list(missing)] = False
    nothing = Collected(None, np.full(len(noise_var), np.inf), missing)
    if not present.any():
        return replace(nothing, nothing_because="nobody sent anything that could be added up")
    if _hides_less(station, paid, present):
        rule = f"under trust {plan.scenario.privacy.trust} the others count on the noise of those who are missing"
        return replace(nothing, nothing_because=rule)
    share = divide_or(design.weights[present].sum(axis=0), design.weights.sum(axis=0), 0.0)
    heard, safe = share > 0, np.where(share > 0, share, 1.0)
    received = np.where(heard[:, None], received / safe[:, None], np.nan)
    return Collected(received, np.where(heard, noise_var / safe**2, np.inf), missing)


def _hides_less(station: Endpoint, paid: ChargedRound, present: BoolArray) -> bool:
    """Than the release that the present devices have paid for."""
    uplink, trust, design = station.plan.uplink, station.plan.scenario.privacy.trust, _sent_design(paid)
    left = replace(design, noise_gain=np.where(present[:, None], design.noise_gain, 0.0))
    charged, there = (uplink.noise_by_trust(each, paid.channel)[trust] for each in (design, left))
    sends = present[:, None] & (design.weights > 0) & np.isfinite(charged)
    return bool((there < charged * (1 - _SLACK))[sends].any())
