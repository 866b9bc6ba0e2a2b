"""The server of a federation: it plans, collects what a medium makes of the devices' answers, estimates, broadcasts and
records. What it knows of a device is what the device has said."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from airdistill import __version__
from airdistill.arrays import FloatArray
from airdistill.files import jsonable
from airdistill.flower.device import LEARN
from airdistill.flower.endpoint import ChargedRound, Endpoint, EndpointError
from airdistill.flower.media import NO_ANSWER, Asker, Collected, medium_of
from airdistill.flower.records import Record, packed
from airdistill.flower.reply_cache import CollectedAnswers
from airdistill.privacy.assumptions import EMULATED
from airdistill.privacy.certificate import certificate_of
from airdistill.privacy.ledger import BudgetExceeded
from airdistill.radio.receivers import Estimate
from airdistill.runs.accounts import mark_of
from airdistill.runs.checkpoint import Checkpoint, newest_checkpoint, save_checkpoint
from airdistill.runs.folder import CERTIFICATE, ROUNDS, SUMMARY, RoundFile, write_json
from airdistill.schemes.payloads import step_size
from airdistill.schemes.receivers import receiver_of

logger = logging.getLogger(__name__)
_TOLD = ("training", "distillation")
_MEASURED = ("mean", "own_classes")


@dataclass(frozen=True)
class Introduction:
    """How a device presents itself: its number, and the digest of its terms."""

    device: int
    terms: str


class Devices(Asker, Protocol):
    """All of them, as they come."""

    def introductions(self, expected: Set[int]) -> list[Introduction | str]:
        """Of those who come before the expected ones are all there, or late. A string says what is wrong with one."""

    def newcomers(self) -> list[Introduction | str]:
        """Who has come since, without waiting for more."""


class Coordinator:
    """A run, from what its folder says; `play` goes on to its end."""

    def __init__(self, folder: Path, scheme: str, devices: Devices, eval_every: int = 1, radio: str = "") -> None:
        checkpoint = newest_checkpoint(folder)
        self._recorded = 0 if checkpoint is None else checkpoint.round_index
        self.station = Endpoint.open(folder, scheme, self._recorded)
        self._devices, self._eval_every = devices, eval_every
        self._answers = CollectedAnswers(folder, devices, self._needed)
        self._medium = medium_of(self.station, self._answers, radio)
        self._receiver = receiver_of(self.station.plan, None, self.station.engine())
        self._rounds = RoundFile(folder / ROUNDS, 0, None) if checkpoint is None else self._restored(checkpoint)
        self._last = self._rounds.last() if self._recorded else None
        self._present: list[int] = []
        self._ended_because: str | None = None

    def _restored(self, checkpoint: Checkpoint) -> RoundFile:
        if self._receiver is not None:
            self._receiver.restore({name: tensor.numpy() for name, tensor in checkpoint.tensors.items()})
        return RoundFile(self.station.folder / ROUNDS, checkpoint.rounds_bytes, checkpoint.rounds_digest)

    def play(self) -> None:
        """All rounds that are not recorded yet; one that was cut off is asked for again, and devices that have answered
        in it answer the same."""
        try:
            self._welcome(self._devices.introductions(self._expected()))
            for round_index in range(self._recorded + 1, self.station.plan.num_rounds + 1):
                self._welcome_late(self._devices.newcomers())
                try:
                    paid = self.station.charge_through(round_index)
                except BudgetExceeded as reason:
                    self._ended_because = str(reason)
                    break
                self._record(self._play_round(paid), round_index)
            self._end()
        finally:
            self._medium.close()

    def _expected(self) -> set[int]:
        """All devices, but those that were gone in the last round that is recorded."""
        gone = {} if self._last is None else self._last["without_signal"]
        return {device for device in range(self.station.plan.fleet.num_devices) if gone.get(str(device)) != NO_ANSWER}

    @property
    def _needed(self) -> int:
        return self.station.plan.scenario.fleet.min_devices

    def _welcome(self, known: Sequence[Introduction | str]) -> None:
        wrong = [each for each in known if isinstance(each, str)]
        for each in known:
            if isinstance(each, str):
                continue
            if each.terms != self.station.digest:
                raise EndpointError(f"device {each.device} has another scenario or scheme than the server")
            if each.device in self._present:
                raise EndpointError(f"two nodes say that they are device {each.device}")
            self._present.append(each.device)
        self._present.sort()
        missing = sorted(set(range(self.station.plan.fleet.num_devices)) - set(self._present))
        if len(self._present) < self._needed:
            names = ", ".join(map(str, missing))
            reasons = "".join(f"; {each}" for each in wrong)
            raise EndpointError(
                f"the run does not begin: devices {names} have not come, and {self._needed} are needed{reasons}"
            )
        if missing:
            logger.warning("begun without devices %s", ", ".join(map(str, missing)))

    def _welcome_late(self, known: Iterable[Introduction | str]) -> None:
        for each in known:
            if isinstance(each, str):
                logger.warning("a node is left out: %s", each)
            elif each.terms == self.station.digest and each.device not in self._present:
                self._present = sorted([*self._present, each.device])
            else:
                logger.warning(
                    "a node that says it is device %d is left out: wrong terms, or a second one", each.device
                )

    def _play_round(self, paid: ChargedRound) -> dict[str, Any]:
        plan = self.station.plan
        collected = self._medium.collect(paid, self._present)
        estimate = self._estimated(collected)
        broadcast = collected.received if estimate is None else estimate.knowledge
        evaluate = paid.index % self._eval_every == 0 or paid.index == plan.num_rounds
        lessons, silent = self._taught(paid.index, broadcast, evaluate, collected.missing)
        return {
            "round": paid.index,
            "lr": step_size(plan.scenario, paid.index),
            **_mean_losses(lessons, plan.scenario.learning.distill_weight, broadcast is not None),
            "predicted_noise_var": collected.noise_var,
            "knowledge": broadcast,
            "nothing_because": collected.nothing_because,
            "without_signal": collected.missing,
            "without_lesson": silent,
            "uplink_seconds": paid.index * plan.uplink.num_rows * plan.uplink.vector_length * plan.scenario.radio.slot,
            "epsilon_spent": float(self.station.ledger.epsilon().max()),
            **({"accuracy": _accuracy(lessons)} if evaluate and lessons else {}),
        }

    def _estimated(self, collected: Collected) -> Estimate | None:
        if self._receiver is None or collected.received is None:
            return None
        return self._receiver.estimate(collected.received, collected.noise_var)

    def _taught(
        self, round_index: int, broadcast: FloatArray | None, evaluate: bool, missing: Mapping[int, str]
    ) -> tuple[dict[int, Record], dict[int, str]]:
        """What the devices tell of their lessons, and for every other device the reason; who did not answer in this
        round is not waited for again."""
        question: Record = {"evaluate": int(evaluate)}
        if broadcast is not None:
            question["broadcast"] = packed(broadcast)
        asked = [device for device in self._present if missing.get(device) != NO_ANSWER]
        told = self._answers.ask(LEARN, round_index, dict.fromkeys(asked, question))
        return _readable(told, evaluate, tells=self.station.tells_lessons)

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
        self._answers.forget()

    def _end(self) -> None:
        station = self.station
        write_json(station.folder / CERTIFICATE, certificate_of(station.ledger).to_dict())
        emulated = [EMULATED] if station.medium == "emulated" else []
        summary = {
            "airdistill": __version__,
            "name": station.plan.scenario.name,
            "scheme": station.scheme.name,
            "rounds": station.ledger.num_releases,
            "ended_because": self._ended_because,
            "medium": station.medium,
            "epsilon_spent": float(station.ledger.epsilon().max()),
            "assumptions": list(dict.fromkeys([*station.plan.assumptions, *emulated])),
        }
        write_json(station.folder / SUMMARY, jsonable(summary))


def _readable(
    told: Mapping[int, Record | str], evaluate: bool, tells: bool
) -> tuple[dict[int, Record], dict[int, str]]:
    """The lessons that have all that was asked, and for every other device the reason; none where nothing is told."""
    asked = (*_TOLD, *(_MEASURED if evaluate else ()))
    lessons: dict[int, Record] = {}
    silent: dict[int, str] = {}
    for device, each in told.items():
        if isinstance(each, str):
            silent[device] = each
        elif tells and all(isinstance(each.get(name), float) for name in asked) and np.isfinite(_losses(each)).all():
            lessons[device] = each
        elif tells:
            silent[device] = "told no losses that could be read"
    return lessons, silent


def _losses(lesson: Record) -> FloatArray:
    return np.array([lesson[name] for name in _TOLD], dtype=np.float64)


def _mean_losses(lessons: Mapping[int, Record], distill_weight: float, heard: bool) -> dict[str, float | None]:
    """Over the devices that have told theirs."""
    if not lessons:
        return {"loss": None, "training_loss": None, "distillation_loss": None}
    training, distillation = np.mean([_losses(lesson) for lesson in lessons.values()], axis=0).tolist()
    return {
        "loss": training + distill_weight * distillation,
        "training_loss": training,
        "distillation_loss": distillation if heard and distill_weight else None,
    }


def _accuracy(lessons: Mapping[int, Record]) -> dict[str, float]:
    """Over the devices, as a simulation tells it; a device none of whose classes is tested has none on its own."""
    overall, own = (np.array([lesson[name] for lesson in lessons.values()], dtype=np.float64) for name in _MEASURED)
    tested = own[np.isfinite(own)]
    mean = float(np.mean(tested)) if len(tested) else float("nan")
    return {
        "mean": float(np.mean(overall)),
        "worst": float(overall.min()),
        "best": float(overall.max()),
        "own_classes": mean,
    }
