"""The server of a federation: it plans, collects the sum of the devices' signals, estimates, broadcasts and records.

It knows about a device only what the device has sent.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from airdistill import __version__
from airdistill.arrays import FloatArray
from airdistill.data.public import Comparison, PublicSet, normalisation
from airdistill.files import jsonable, write_whole
from airdistill.flower.account import SERVER, Account
from airdistill.flower.device import LEARN
from airdistill.flower.endpoint import Endpoint, EndpointError
from airdistill.flower.media import NO_ANSWER, Collected, DeviceLink, medium_of
from airdistill.flower.records import Record, packed
from airdistill.flower.reply_cache import ServerReplyCache
from airdistill.privacy.assumptions import EMULATED
from airdistill.privacy.certificate import certificate_of
from airdistill.privacy.ledger import BudgetExceeded
from airdistill.radio.charged_round import ChargedRound
from airdistill.radio.receivers import Estimate, estimate_by
from airdistill.runs.accounts import check_repeatable, mark_of
from airdistill.runs.checkpoint import Checkpoint, newest_checkpoint, save_checkpoint
from airdistill.runs.folder import CERTIFICATE, ROUNDS, RUN, SUMMARY, RoundFile, write_json, write_summary
from airdistill.schemes.payloads import receiver_of

logger = logging.getLogger(__name__)
_LOSSES = ("training", "distillation")
_ACCURACIES = ("mean", "own_classes")
BROADCAST = "broadcast.npy"  # the last one on a public set: predictions, or the server's model as one vector


@dataclass(frozen=True)
class Introduction:
    """The identification of a device: its number and the digest of its scheme and scenario."""

    device: int
    terms: str


class Devices(DeviceLink, Protocol):
    """The devices of the federation, which join at different times."""

    def introductions(self, expected: Set[int]) -> list[Introduction | str]:
        """Wait for the expected devices, up to a timeout, and return all introductions; a string is an error."""

    def newcomers(self) -> list[Introduction | str]:
        """The introductions since the last call, without waiting."""


class Coordinator:
    """A run, restored from its folder; `play` runs the remaining rounds."""

    def __init__(
        self, folder: Path, scheme: str, devices: Devices, eval_every: int = 1, radio: str = "", account: str = ""
    ) -> None:
        checkpoint, self._has_ended = newest_checkpoint(folder), (folder / SUMMARY).exists()
        if checkpoint is None and (folder / RUN).exists() and not self._has_ended:
            check_repeatable(folder, checkpoint_every=1)
        self._recorded = 0 if checkpoint is None else checkpoint.round_index
        self.endpoint = Endpoint.open(folder, scheme, self._recorded, Account.of(account, SERVER))
        self._devices, self._eval_every = devices, eval_every
        self._replies = ServerReplyCache(folder, devices, self._min_devices)
        self._medium = medium_of(self.endpoint, self._replies, radio)
        self._receiver = receiver_of(self.endpoint.plan, _public_set(self.endpoint), self.endpoint.engine())
        self._checkpoint = checkpoint
        self._present: list[int] = []
        self._ended_because: str | None = None

    def _restored(self) -> RoundFile:
        checkpoint = self._checkpoint
        if checkpoint is None:
            return RoundFile(self.endpoint.folder / ROUNDS, 0, None)
        if self._receiver is not None:
            self._receiver.restore({name: tensor.numpy() for name, tensor in checkpoint.tensors.items()})
        return RoundFile(self.endpoint.folder / ROUNDS, checkpoint.rounds_bytes, checkpoint.rounds_digest)

    def play(self) -> None:
        """Run all rounds that are not recorded yet; nothing happens if the federation has ended.

        An interrupted round is repeated: the devices that had replied in it send the same replies again.
        """
        try:
            if self._has_ended:
                logger.warning("%s: has ended; nothing is left to do", self.endpoint.folder)
                return
            self._rounds = self._restored()
            self._last = self._rounds.last() if self._recorded else None
            self._admit(self._devices.introductions(self._expected()))
            for round_index in range(self._recorded + 1, self.endpoint.plan.num_rounds + 1):
                self._admit_late(self._devices.newcomers())
                try:
                    charged = self.endpoint.charge_through(round_index)
                except BudgetExceeded as reason:
                    self._ended_because = str(reason)
                    break
                self._record(self._play_round(charged), round_index)
            self._end()
        finally:
            self._medium.close()

    def _expected(self) -> set[int]:
        """All devices except those that did not reply in the last recorded round."""
        gone = {} if self._last is None else self._last["without_signal"]
        return {device for device in range(self.endpoint.plan.fleet.num_devices) if gone.get(str(device)) != NO_ANSWER}

    @property
    def _min_devices(self) -> int:
        return self.endpoint.plan.scenario.fleet.min_devices

    def _admit(self, known: Sequence[Introduction | str]) -> None:
        errors = [each for each in known if isinstance(each, str)]
        for each in known:
            if isinstance(each, str):
                continue
            if each.terms != self.endpoint.digest:
                raise EndpointError(f"device {each.device} has a different scenario or scheme from the server")
            if each.device in self._present:
                raise EndpointError(f"two nodes claim to be device {each.device}")
            self._present.append(each.device)
        self._present.sort()
        missing = sorted(set(range(self.endpoint.plan.fleet.num_devices)) - set(self._present))
        if len(self._present) < self._min_devices:
            names = ", ".join(map(str, missing))
            reasons = "".join(f"; {each}" for each in errors)
            raise EndpointError(
                f"the run does not start: devices {names} are missing, and {self._min_devices} are required{reasons}"
            )
        if missing:
            logger.warning("started without devices %s", ", ".join(map(str, missing)))

    def _admit_late(self, known: Iterable[Introduction | str]) -> None:
        for each in known:
            if isinstance(each, str):
                logger.warning("a node is ignored: %s", each)
            elif each.terms == self.endpoint.digest and each.device not in self._present:
                self._present = sorted([*self._present, each.device])
            else:
                logger.warning(
                    "a node that claims to be device %d is ignored: different scenario or scheme, or a duplicate",
                    each.device,
                )

    def _play_round(self, charged: ChargedRound) -> dict[str, Any]:
        plan = self.endpoint.plan
        collected = self._medium.collect(charged, self._present)
        estimate = self._estimated(collected)
        broadcast = self._broadcast_of(collected, estimate)
        evaluate = charged.index % self._eval_every == 0 or charged.index == plan.num_rounds
        reports, failed = self._update_reports(charged.index, broadcast, evaluate, collected.missing)
        return {
            "round": charged.index,
            "lr": plan.scenario.learning.step_size(charged.index),
            **_mean_losses(reports, plan.scenario.learning.distill_weight, broadcast is not None),
            "predicted_noise_var": collected.noise_var,
            **self._kept_broadcast(broadcast, estimate),
            "nothing_because": collected.nothing_because,
            "without_signal": collected.missing,
            "without_lesson": failed,
            "uplink_seconds": charged.index * plan.air_time.total_s,
            "epsilon_spent": float(self.endpoint.ledger.epsilon().max()),
            **({"accuracy": _accuracy(reports)} if evaluate and reports else {}),
        }

    def _estimated(self, collected: Collected) -> Estimate | None:
        """The receiver's estimate. On a public set it also follows from earlier rounds if this one has no result."""
        is_lost = collected.nothing_because is not None
        if self._receiver is None or (is_lost and not self._has_public_set):
            return None
        return estimate_by(self._receiver, collected.received, collected.noise_var, collected.weights)

    def _broadcast_of(self, collected: Collected, estimate: Estimate | None) -> FloatArray | None:
        if estimate is None:
            return collected.received if collected.nothing_because is None else None
        knows_nothing = self._has_public_set and not np.isfinite(estimate.knowledge).any()
        return None if knows_nothing else estimate.knowledge

    @property
    def _has_public_set(self) -> bool:
        return self.endpoint.plan.uplink.payload.needs_public_set

    def _kept_broadcast(self, broadcast: FloatArray | None, estimate: Estimate | None) -> dict[str, Any]:
        """What a record keeps of the broadcast: class means themselves, and of anything longer the digest of a file."""
        if not self._has_public_set:
            return {"knowledge": broadcast}
        facts = {"features": estimate.facts} if estimate is not None and estimate.facts else {}
        if broadcast is None:
            return {"broadcast": None, **facts}
        content = io.BytesIO()
        np.save(content, broadcast)
        write_whole(self.endpoint.folder / BROADCAST, content.getvalue())
        digest = hashlib.sha256(content.getvalue()).hexdigest()
        return {"broadcast": {"file": BROADCAST, "shape": list(broadcast.shape), "sha256": digest}, **facts}

    def _update_reports(
        self, round_index: int, broadcast: FloatArray | None, evaluate: bool, missing: Mapping[int, str]
    ) -> tuple[dict[int, Record], dict[int, str]]:
        """Broadcast, and return the devices' update reports and, for each device without one, the reason.

        A device that has not replied in this round is not asked again.
        """
        question: Record = {"evaluate": int(evaluate)}
        if broadcast is not None:
            question["broadcast"] = packed(broadcast)
        asked = [device for device in self._present if missing.get(device) != NO_ANSWER]
        replies = self._replies.ask(LEARN, round_index, dict.fromkeys(asked, question))
        return _valid_reports(replies, evaluate, expected=self.endpoint.sends_update_reports)

    def _record(self, record: dict[str, Any], round_index: int) -> None:
        """Write the record and the receiver's state to disk before the next round."""
        self._rounds.append(jsonable(record, nan_is_null=True))
        self._rounds.sync()
        state = {} if self._receiver is None else self._receiver.state()
        tensors = {name: torch.from_numpy(np.array(array, order="C")) for name, array in state.items()}
        rounds, ledger = self._rounds, mark_of(self.endpoint.ledger)
        save_checkpoint(
            self.endpoint.folder, Checkpoint(round_index, tensors, {}, rounds.num_bytes, rounds.digest, ledger)
        )
        self._replies.clear()

    def _end(self) -> None:
        endpoint = self.endpoint
        write_json(endpoint.folder / CERTIFICATE, certificate_of(endpoint.ledger).to_dict())
        emulated = [EMULATED] if endpoint.medium == "emulated" else []
        summary = {
            "airdistill": __version__,
            "name": endpoint.plan.scenario.name,
            "scheme": endpoint.scheme.name,
            "rounds": endpoint.ledger.num_releases,
            "ended_because": self._ended_because,
            "medium": endpoint.medium,
            "epsilon_spent": float(endpoint.ledger.epsilon().max()),
            "assumptions": list(dict.fromkeys([*endpoint.plan.assumptions, *emulated])),
        }
        write_summary(endpoint.folder, jsonable(summary))


def _public_set(endpoint: Endpoint) -> PublicSet | None:
    """The public set as a receiver takes it. The server has no other data: it compares it with none."""
    shared = endpoint.public()
    if shared is None:
        return None
    samples = normalisation(endpoint.plan.scenario, shared.samples)(shared.samples)
    return PublicSet(samples, Comparison(len(samples), private=0, test=0, skipped=0, private_in_test=0))


def _valid_reports(
    replies: Mapping[int, Record | str], evaluate: bool, expected: bool
) -> tuple[dict[int, Record], dict[int, str]]:
    """The complete update reports and, for each other device, the reason; no reports unless they are expected."""
    fields = (*_LOSSES, *(_ACCURACIES if evaluate else ()))
    reports: dict[int, Record] = {}
    failed: dict[int, str] = {}
    for device, each in replies.items():
        if isinstance(each, str):
            failed[device] = each
        elif expected and all(isinstance(each.get(name), float) for name in fields) and _has_finite_losses(each):
            reports[device] = each
        elif expected:
            failed[device] = "sent an invalid update report"
    return reports, failed


def _has_finite_losses(report: Record) -> bool:
    return bool(np.isfinite(_losses(report)).all())


def _losses(report: Record) -> FloatArray:
    return np.array([report[name] for name in _LOSSES], dtype=np.float64)


def _mean_losses(reports: Mapping[int, Record], distill_weight: float, has_broadcast: bool) -> dict[str, float | None]:
    """The mean losses of the devices that sent update reports."""
    if not reports:
        return {"loss": None, "training_loss": None, "distillation_loss": None}
    training, distillation = np.mean([_losses(report) for report in reports.values()], axis=0).tolist()
    return {
        "loss": training + distill_weight * distillation,
        "training_loss": training,
        "distillation_loss": distillation if has_broadcast and distill_weight else None,
    }


def _accuracy(reports: Mapping[int, Record]) -> dict[str, float]:
    """Accuracy over the devices, as a simulation records it.

    A device without any of its own classes in the test set is not in the mean of `own_classes`.
    """
    overall, own = (np.array([report[name] for report in reports.values()], dtype=np.float64) for name in _ACCURACIES)
    tested = own[np.isfinite(own)]
    mean = float(np.mean(tested)) if len(tested) else float("nan")
    return {
        "mean": float(np.mean(overall)),
        "worst": float(overall.min()),
        "best": float(overall.max()),
        "own_classes": mean,
    }
