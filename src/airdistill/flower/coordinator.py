"""The server of a federation whose medium is emulated: it plays the channel, the receiver and the broadcast.

A device that is missing, late or answers nonsense costs its own share where privacy allows it: with noise that each
device has for itself, the others' weights are scaled up. Where devices count on each other's noise ("fleet_noise"), a
sum without one of them hides less than was charged: nothing of that round is broadcast, and the devices learn alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from airdistill import __version__
from airdistill.air.exchange import Noise
from airdistill.air.signal import receive, superpose
from airdistill.arrays import ComplexArray, FloatArray, divide_or
from airdistill.codesign.transceiver import RoundDesign
from airdistill.flower.station import EMULATED, Station, StationError
from airdistill.jsonable import jsonable
from airdistill.privacy.certificate import certificate_of
from airdistill.privacy.ledger import BudgetExceeded
from airdistill.runs.accounts import mark_of
from airdistill.runs.checkpoint import Checkpoint, newest_checkpoint, save_checkpoint
from airdistill.runs.folder import CERTIFICATE, ROUNDS, SUMMARY, RoundFile, write_json
from airdistill.schemes.receiving import receiver_of
from airdistill.schemes.sharing import step_size

Told = Mapping[str, float]


@dataclass(frozen=True)
class Introduction:
    """How a device presents itself: the digest of its terms, and the last round that it has paid for."""

    device: int
    terms: str
    last_round: int


class Devices(Protocol):
    """The devices as a server reaches them; a string in place of an answer says why there is none."""

    def introductions(self, num_devices: int) -> list[Introduction]: ...

    def signals(self, round_index: int) -> Mapping[int, ComplexArray | str]: ...

    def lessons(self, round_index: int, broadcast: FloatArray | None, evaluate: bool) -> Mapping[int, Told | str]: ...


class Coordinator:
    """A run, from what its folder says; `play` goes on to its end."""

    def __init__(self, folder: Path, scheme: str, devices: Devices, eval_every: int = 1) -> None:
        self.station = Station.open(folder, scheme)
        self._devices, self._eval_every = devices, eval_every
        self._receiver = receiver_of(self.station.plan, None, self.station.engine())
        checkpoint = newest_checkpoint(folder)
        self._rounds = RoundFile(folder / ROUNDS, 0, None) if checkpoint is None else self._restored(checkpoint)
        self._ended_because: str | None = None

    def _restored(self, checkpoint: Checkpoint) -> RoundFile:
        if self._receiver is not None:
            self._receiver.restore({name: tensor.numpy() for name, tensor in checkpoint.tensors.items()})
        return RoundFile(self.station.folder / ROUNDS, checkpoint.rounds_bytes, checkpoint.rounds_digest)

    def play(self) -> None:
        """All rounds that nobody has paid for yet: one that was cut off is lost, and is not asked for again."""
        known = self._devices.introductions(self.station.plan.fleet.num_devices)
        self._check_introductions(known)
        first = max([self.station.ledger.last_round, *(each.last_round for each in known)]) + 1
        for round_index in range(first, self.station.plan.num_rounds + 1):
            try:
                design, noise = self.station.pay_for(round_index)
            except BudgetExceeded as reason:
                self._ended_because = str(reason)
                break
            self._record(self._play_round(round_index, design, noise), round_index)
        self._end()

    def _check_introductions(self, known: Iterable[Introduction]) -> None:
        found: set[int] = set()
        for each in known:
            if each.terms != self.station.digest:
                raise StationError(f"device {each.device} has another scenario or scheme than the server")
            if each.device in found:
                raise StationError(f"two nodes say that they are device {each.device}")
            found.add(each.device)
        missing = sorted(set(range(self.station.plan.fleet.num_devices)) - found)
        if missing:
            raise StationError(f"the run does not begin: devices {', '.join(map(str, missing))} have not come")

    def _play_round(self, round_index: int, design: RoundDesign, noise: Noise) -> dict[str, Any]:
        plan = self.station.plan
        signals, missing = self._sound(self._devices.signals(round_index))
        if not signals:
            raise StationError(f"round {round_index}: no device has sent anything: {missing}")
        broadcast = self._heard(round_index, design, noise, signals)
        evaluate = round_index % self._eval_every == 0 or round_index == plan.num_rounds
        told = self._devices.lessons(round_index, broadcast, evaluate)
        lessons, silent = _readable(told, evaluate)
        return {
            "round": round_index,
            "lr": step_size(plan.scenario, round_index),
            **_mean_losses(lessons, plan.scenario.learning.distill_weight, broadcast is not None),
            "predicted_noise_var": design.effective_noise_var,
            "knowledge": broadcast,
            "without_signal": missing,
            "without_lesson": silent,
            "uplink_seconds": round_index * noise.receiver.size * plan.scenario.radio.slot,
            "epsilon_spent": float(self.station.ledger.epsilon().max()),
            **({"accuracy": _accuracy(lessons)} if evaluate and lessons else {}),
        }

    def _sound(self, answers: Mapping[int, ComplexArray | str]) -> tuple[dict[int, ComplexArray], dict[int, str]]:
        """The signals that can be summed, and for every other device the reason."""
        uplink = self.station.plan.uplink
        shape = (uplink.num_rows, uplink.vector_length)
        signals: dict[int, ComplexArray] = {}
        missing: dict[int, str] = {}
        for device in range(self.station.plan.fleet.num_devices):
            answer = answers.get(device, "no answer in time")
            if isinstance(answer, str):
                missing[device] = answer
            elif answer.shape != shape or answer.dtype.kind not in "fc":
                missing[device] = f"sent {answer.dtype} of shape {answer.shape} where {shape} was asked"
            elif not np.isfinite(answer).all():
                missing[device] = "sent what is no number"
            else:
                signals[device] = answer
        return signals, missing

    def _heard(
        self, round_index: int, design: RoundDesign, noise: Noise, signals: Mapping[int, ComplexArray]
    ) -> FloatArray | None:
        """What is broadcast; nothing if a sum of these would hide less than every device was charged for."""
        plan = self.station.plan
        all_there = len(signals) == plan.fleet.num_devices
        if not all_there and plan.scenario.privacy.trust == "fleet_noise":
            return None
        on_air = np.zeros((plan.fleet.num_devices, *noise.receiver.shape), dtype=np.complex128)
        for device, signal in signals.items():
            on_air[device] = signal
        channel = self.station.source.round_channel(round_index)
        received = receive(superpose(on_air, channel, noise.receiver), design.rx_scale)
        noise_var = design.effective_noise_var
        if not all_there:
            there = design.weights[sorted(signals)].sum(axis=0)
            share = divide_or(there, design.weights.sum(axis=0), 0.0)
            heard = share > 0
            received = np.where(heard[:, None], received / np.where(heard, share, 1.0)[:, None], np.nan)
            noise_var = np.where(heard, noise_var / np.where(heard, share, 1.0) ** 2, np.inf)
        return received if self._receiver is None else self._receiver.estimate(received, noise_var).knowledge

    def _record(self, record: dict[str, Any], round_index: int) -> None:
        """On the disk, with the receiver's memory, before the next round."""
        self._rounds.append(jsonable(record, nan_is_null=True))
        self._rounds.sync()
        memory = {} if self._receiver is None else self._receiver.state()
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in memory.items()}
        rounds, ledger = self._rounds, mark_of(self.station.ledger)
        save_checkpoint(
            self.station.folder, Checkpoint(round_index, tensors, {}, rounds.num_bytes, rounds.digest, ledger)
        )

    def _end(self) -> None:
        station = self.station
        write_json(station.folder / CERTIFICATE, certificate_of(station.ledger).to_dict())
        summary = {
            "airdistill": __version__,
            "name": station.plan.scenario.name,
            "scheme": station.scheme.name,
            "rounds": station.ledger.last_round,
            "ended_because": self._ended_because,
            "medium": "emulated",
            "epsilon_spent": float(station.ledger.epsilon().max()),
            "assumptions": list(dict.fromkeys([*station.plan.assumptions, EMULATED])),
        }
        write_json(station.folder / SUMMARY, jsonable(summary))


def _readable(told: Mapping[int, Told | str], evaluate: bool) -> tuple[dict[int, Told], dict[int, str]]:
    """The lessons that have all that was asked, and for every other device the reason."""
    asked = {"training", "distillation", *(("mean", "own_classes") if evaluate else ())}
    lessons: dict[int, Told] = {}
    silent: dict[int, str] = {}
    for device, each in told.items():
        if isinstance(each, str):
            silent[device] = each
        elif not asked <= each.keys() or not np.isfinite([each["training"], each["distillation"]]).all():
            silent[device] = "told no losses that could be read"
        else:
            lessons[device] = each
    return lessons, silent


def _mean_losses(lessons: Mapping[int, Told], distill_weight: float, heard: bool) -> dict[str, float | None]:
    """Over the devices that have told theirs."""
    if not lessons:
        return {"loss": None, "training_loss": None, "distillation_loss": None}
    training, distillation = (
        float(np.mean([lesson[name] for lesson in lessons.values()])) for name in ("training", "distillation")
    )
    return {
        "loss": training + distill_weight * distillation,
        "training_loss": training,
        "distillation_loss": distillation if heard and distill_weight else None,
    }


def _accuracy(lessons: Mapping[int, Told]) -> dict[str, float]:
    """Over the devices, as a simulation tells it; a device none of whose classes is tested has none on its own."""
    overall = [lesson["mean"] for lesson in lessons.values()]
    own = [lesson["own_classes"] for lesson in lessons.values() if np.isfinite(lesson["own_classes"])]
    mean = float(np.mean(own)) if own else float("nan")
    return {"mean": float(np.mean(overall)), "worst": min(overall), "best": max(overall), "own_classes": mean}
