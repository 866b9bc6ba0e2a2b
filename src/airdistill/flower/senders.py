"""How a device's knowledge leaves it, by medium: the steps of a round that end in a sum."""

from __future__ import annotations

import json
from typing import ClassVar, Protocol

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.errors import InputError
from airdistill.files import write_whole
from airdistill.flower.endpoint import ChargedRound, Endpoint
from airdistill.flower.records import Record, packed
from airdistill.flower.sums.device_side import DeviceSide
from airdistill.flower.sums.messages import Roster, keys_in, own_identity, sum_terms
from airdistill.plugins import load_object
from airdistill.radio.discrete_noise import SecureNoise, transmit_on_grid
from airdistill.radio.front_ends import Transmitter

SUM_STATE = "secure-sum.json"


class Sender(Protocol):
    """`begin` is called with a round that has been paid for, before the first of its `steps`."""

    steps: ClassVar[tuple[str, ...]]

    def begin(self, paid: ChargedRound, knowledge: FloatArray) -> None: ...

    def answer(self, step: str, round_index: int, question: Record) -> Record: ...


def sender_of(station: Endpoint, number: int, radio: str) -> Sender:
    """`radio` names the device's transmitter, for a medium that has one."""
    if station.medium == "secure_sum":
        return SecureSumSender(station, number)
    if station.medium == "radio":
        if not radio:
            raise InputError("--node-config radio", "(not given)", "the medium is radio: name a transmitter")
        return RadioSender(station, number, radio)
    return EmulatedSender(station, number)


class EmulatedSender:
    """The signal goes to the server as it is."""

    steps: ClassVar[tuple[str, ...]] = ("signal",)

    def __init__(self, station: Endpoint, number: int) -> None:
        self._station, self._number = station, number
        self._signal: ComplexArray | None = None

    def begin(self, paid: ChargedRound, knowledge: FloatArray) -> None:
        self._signal = signal_of(self._station, self._number, paid, knowledge)

    def answer(self, step: str, round_index: int, question: Record) -> Record:  # noqa: ARG002
        assert self._signal is not None
        return {"signal": packed(self._signal)}


class RadioSender:
    """The signal goes on the air; the server is told that it did."""

    steps: ClassVar[tuple[str, ...]] = ("send",)

    def __init__(self, station: Endpoint, number: int, radio: str) -> None:
        self._station, self._number = station, number
        self._radio: Transmitter = load_object(radio, "--node-config radio")(station.plan.scenario, number)
        self._signal: ComplexArray | None = None

    def begin(self, paid: ChargedRound, knowledge: FloatArray) -> None:
        self._signal = signal_of(self._station, self._number, paid, knowledge)

    def answer(self, step: str, round_index: int, question: Record) -> Record:  # noqa: ARG002
        assert self._signal is not None
        self._radio.send(round_index, self._signal)
        return {}


class SecureSumSender:
    """Five steps, each of which may find a new process: what lies between them is in a file of the device's own."""

    steps: ClassVar[tuple[str, ...]] = ("keys", "shares", "masked", "confirm", "reveal")

    def __init__(self, station: Endpoint, number: int) -> None:
        self._number, self._folder = number, station.folder
        self._identity, self._roster = own_identity(station.folder), Roster.read(station.folder)
        self._side: DeviceSide | None = None
        self._values = np.zeros(0, dtype=np.int64)

    def begin(self, paid: ChargedRound, knowledge: FloatArray) -> None:
        """The vector is made, with its noise, when the round is paid for; no later step makes another."""
        terms = sum_terms(paid.summed, self._roster)
        self._side = DeviceSide(terms, self._number, self._identity, self._roster.public_keys)
        self._values = paid.summed.values(self._number, knowledge)

    def answer(self, step: str, round_index: int, question: Record) -> Record:
        side = self._side or self._restored()
        if step == "keys":
            answer = side.keys()
        elif step == "shares":
            answer = side.shares(keys_in(question, round_index))
        elif step == "masked":
            words = side.masked(question, self._values)
            answer = {"round": round_index, "device": self._number, "words": packed(words)}
            self._values = np.zeros(0, dtype=np.int64)  # once it is masked, nobody needs it again
        else:
            answer = side.confirm(question) if step == "confirm" else side.reveal(question)
        state = {"side": side.to_json(), "values": self._values.tolist()}
        write_whole(self._folder / SUM_STATE, json.dumps(state).encode(), secret=True)
        return answer

    def _restored(self) -> DeviceSide:
        state = json.loads((self._folder / SUM_STATE).read_bytes())
        self._values = np.array(state["values"], dtype=np.int64)
        return DeviceSide.from_json(state["side"], self._identity, self._roster.public_keys)


def signal_of(station: Endpoint, number: int, paid: ChargedRound, knowledge: FloatArray) -> ComplexArray:
    """`[row, slot]`: precoded knowledge and the device's own share of the artificial noise."""
    if isinstance(paid.on_air, SecureNoise):
        return np.asarray(transmit_on_grid(paid.on_air.grid.only(number), knowledge[None])[0])
    # The others' places stay empty: a signal takes nothing from them.
    vectors = np.zeros((station.plan.fleet.num_devices, *knowledge.shape))
    vectors[number] = knowledge
    return np.asarray(paid.on_air.transmit(paid.design, vectors, knowledge.shape[1])[number])
