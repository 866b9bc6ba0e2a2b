"""How a device's payload leaves it, by medium: the steps of a round that end in a sum."""

from __future__ import annotations

import json
from typing import ClassVar, Protocol

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.errors import InputError
from airdistill.files import write_whole
from airdistill.flower.endpoint import Endpoint
from airdistill.flower.records import Record, packed
from airdistill.flower.sums.device_side import DeviceSide
from airdistill.flower.sums.messages import Roster, keys_in, own_identity, sum_terms
from airdistill.plugins import load_object
from airdistill.radio.charged_round import ChargedRound
from airdistill.radio.front_ends import Transmitter

SUM_STATE = "secure-sum.json"


class Sender(Protocol):
    """`begin` is called with a charged round, before the first of its `steps`."""

    steps: ClassVar[tuple[str, ...]]

    def begin(self, charged: ChargedRound, vectors: FloatArray) -> None: ...

    def answer(self, step: str, round_index: int, question: Record) -> Record: ...


def sender_of(endpoint: Endpoint, number: int, radio: str) -> Sender:
    """`radio` names the device's transmitter, for a medium that has one."""
    if endpoint.medium == "secure_sum":
        return SecureSumSender(endpoint, number)
    if endpoint.medium == "radio":
        if not radio:
            raise InputError("--node-config radio", "(not given)", "the medium is radio: name a transmitter")
        return RadioSender(endpoint, number, radio)
    return EmulatedSender(number)


class EmulatedSender:
    """Sends the signal to the server over the network."""

    steps: ClassVar[tuple[str, ...]] = ("signal",)

    def __init__(self, number: int) -> None:
        self._number = number
        self._signal: ComplexArray | None = None

    def begin(self, charged: ChargedRound, vectors: FloatArray) -> None:
        self._signal = charged.signal_of(self._number, vectors)

    def answer(self, step: str, round_index: int, question: Record) -> Record:  # noqa: ARG002
        assert self._signal is not None
        return {"signal": packed(self._signal)}


class RadioSender:
    """Sends the signal over the air, and confirms it to the server."""

    steps: ClassVar[tuple[str, ...]] = ("send",)

    def __init__(self, endpoint: Endpoint, number: int, radio: str) -> None:
        self._number = number
        self._radio: Transmitter = load_object(radio, "--node-config radio")(endpoint.plan.scenario, number)
        self._signal: ComplexArray | None = None

    def begin(self, charged: ChargedRound, vectors: FloatArray) -> None:
        self._signal = charged.signal_of(self._number, vectors)

    def answer(self, step: str, round_index: int, question: Record) -> Record:  # noqa: ARG002
        assert self._signal is not None
        self._radio.send(round_index, self._signal)
        return {}


class SecureSumSender:
    """Takes five steps, each possibly in a new process: the state between them is in a file of the device's own."""

    steps: ClassVar[tuple[str, ...]] = ("keys", "shares", "masked", "confirm", "reveal")

    def __init__(self, endpoint: Endpoint, number: int) -> None:
        self._number, self._folder = number, endpoint.folder
        self._identity, self._roster = own_identity(endpoint.folder), Roster.read(endpoint.folder)
        self._side: DeviceSide | None = None
        self._values = np.zeros(0, dtype=np.int64)

    def begin(self, charged: ChargedRound, vectors: FloatArray) -> None:
        """Make the vector, with its noise, when the round is charged; no later step makes another."""
        terms = sum_terms(charged.summed, self._roster)
        self._side = DeviceSide(terms, self._number, self._identity, self._roster.public_keys)
        self._values = charged.sum_values(self._number, vectors)

    def answer(self, step: str, round_index: int, question: Record) -> Record:
        side = self._side or self._restored()
        if step == "keys":
            answer = side.keys()
        elif step == "shares":
            answer = side.shares(keys_in(question, round_index))
        elif step == "masked":
            words = side.masked(question, self._values)
            answer = {"round": round_index, "device": self._number, "words": side.modulus.packed(words)}
            self._values = np.zeros(0, dtype=np.int64)  # not needed after masking
        else:
            answer = side.confirm(question) if step == "confirm" else side.reveal(question)
        state = {"side": side.to_json(), "values": self._values.tolist()}
        write_whole(self._folder / SUM_STATE, json.dumps(state).encode(), secret=True)
        return answer

    def _restored(self) -> DeviceSide:
        state = json.loads((self._folder / SUM_STATE).read_bytes())
        self._values = np.array(state["values"], dtype=np.int64)
        return DeviceSide.from_json(state["side"], self._identity, self._roster.public_keys)
