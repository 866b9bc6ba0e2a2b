"""The state of a run between two rounds, and the step from one to the next."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from airdistill.arrays import FloatArray, IntArray
from airdistill.channel.sources import ChannelSource, channel_source
from airdistill.data.datasets import Dataset
from airdistill.data.partition import assign_samples
from airdistill.data.public import PublicSet, load_data
from airdistill.errors import AirDistillError, InputError
from airdistill.learning.evaluation import TestSet
from airdistill.learning.fleet import LearningFleet, check_finite
from airdistill.learning.samples import to_tensor
from airdistill.planning.plan import Plan
from airdistill.planning.uplinks import declared_public
from airdistill.privacy.ledger import BudgetExceeded, Ledger
from airdistill.radio.superposition import Reception
from airdistill.runs.accounts import ledger_header
from airdistill.runs.folder import RunError
from airdistill.runs.options import RunOptions
from airdistill.runs.record import class_mean_tables, public_tables
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Outcome, Round, Scheme
from airdistill.schemes.payloads import rows_of_round
from airdistill.schemes.receivers import receiver_of
from airdistill.streams import stream

_ITERATE, _RECEIVER = "iterate.", "receiver."


class Simulation:
    """A fleet in the middle of its run. `advance` plays a round; `state` is all that a later start needs."""

    def __init__(self, plan: Plan, scheme: Scheme, options: RunOptions) -> None:
        scenario = plan.scenario
        check_has_data(scenario)
        self.plan, self.scheme, self.options = plan, scheme, options
        engine, (dataset, self._public) = options.engine(), load_data(scenario)
        shares = assign_samples(scenario, dataset.y_train)
        self.fleet = LearningFleet.of(
            dataset, shares.indices, scenario.model_names, scenario.seed, engine, scheme.one_model, public=self._public
        )
        test_samples = to_tensor(dataset.x_test, engine.dtype, engine.device)
        self._tests = TestSet.of(test_samples, dataset.y_test, dataset.num_classes, engine.chunk_samples)
        self._source = channel_source(scenario)
        self.inputs_digest = _digest(dataset, self._public, self._source, plan.num_rounds)
        self.ledger = Ledger(ledger_header(plan, scheme, self.inputs_digest))
        self._receiver = receiver_of(plan, self._public, engine)
        self._iterate: dict[str, Tensor] | None = None
        self.iterate_round = random_iterate_round(scenario.seed, plan.num_rounds)
        self.round_index = 0
        self.uplink_seconds = self.planned_joules = self.measured_joules = 0.0

    def advance(self) -> dict[str, Any]:
        """Plays the next round and returns its record; `BudgetExceeded` leaves all as it was before."""
        self.round_index += 1
        if self.round_index == self.iterate_round:
            self._iterate = {name: tensor.clone() for name, tensor in self.fleet.state().items()}
        seed_torch(self.plan.scenario, self.round_index)
        this = Round(
            self.round_index, self.plan.scenario, self.plan, self._source, self.fleet, self.ledger, self._receiver
        )
        try:
            outcome = self._play(this)
        except BudgetExceeded:
            self.round_index -= 1
            raise
        # Before the losses are asked for, on which a GPU may still be working.
        spent = self.ledger.highest_epsilon()
        check_finite(outcome.losses, self.fleet.finite_weights(), self.round_index)
        record = self._record(this, outcome, spent)
        if self._is_evaluated(self.round_index):
            record |= self._knowledge_tables(this, outcome.heard)
            record["accuracy"] = self.accuracy()
        return record

    def _is_evaluated(self, round_index: int) -> bool:
        due = round_index % self.options.eval_every == 0 or round_index in self.options.eval_also
        return due or round_index == self.plan.num_rounds

    def _play(self, this: Round) -> Outcome:
        """The scheme's round; where the user's own code fails in it, that is the user's to put right."""
        try:
            charged = self.ledger.num_releases
            outcome = self.scheme.play(this)
        except Exception as error:
            if isinstance(error, AirDistillError) or not self._has_user_code():
                raise
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise AirDistillError(f"round {this.index}: your model or scheme failed: {reason}") from error
        if not isinstance(outcome, Outcome):
            raise AirDistillError(f"scheme {self.scheme.name}: play must return an Outcome, not {outcome!r}")
        if outcome.heard is not None and self.ledger.num_releases == charged:
            rule = "draw its noise with this.noise(design), or say this.release_without_privacy()"
            raise AirDistillError(f"scheme {self.scheme.name}: sent what the ledger knows nothing of; {rule}")
        return outcome

    def _has_user_code(self) -> bool:
        public = self.plan.scenario.public
        servers = [] if public is None or public.server_model is None else [public.server_model]
        own_model = any(":" in name for name in (*self.plan.scenario.model_names, *servers))
        return own_model or not type(self.scheme).__module__.startswith("airdistill.")

    def accuracy(self) -> dict[str, float]:
        """Of the devices' own models on the common test set."""
        return asdict(self._tests.evaluate(self.fleet, self.plan.fleet.class_counts))

    def iterate_accuracy(self) -> dict[str, float] | None:
        """Of the random iterate of Theorem 1, if the run has passed it."""
        if self._iterate is None:
            return None
        present = {name: tensor.clone() for name, tensor in self.fleet.state().items()}
        self.fleet.load_state(self._iterate)
        accuracy = self.accuracy()
        self.fleet.load_state(present)
        return accuracy

    def _record(self, this: Round, outcome: Outcome, epsilon_spent: float) -> dict[str, Any]:
        weight = self.plan.scenario.learning.distill_weight
        training = float(np.mean([loss.training for loss in outcome.losses]))
        distillation = float(np.mean([loss.distillation for loss in outcome.losses]))
        record: dict[str, Any] = {
            "round": this.index,
            "lr": this.lr,
            "loss": training + weight * distillation,
            "training_loss": training,
            "distillation_loss": None if outcome.heard is None or weight == 0 else distillation,
        }
        heard = outcome.heard
        if heard is not None:
            self.uplink_seconds += heard.uplink_seconds
            self.planned_joules += heard.planned_joules
            self.measured_joules += heard.measured_joules
            record |= {
                "predicted_noise_var": heard.predicted_noise_var.tolist(),
                "measured_noise_var": heard.squared_error.tolist(),
                "planned_power_w": heard.planned_power_w,
                "measured_power_w": heard.measured_power_w,
                **_about_inactive_devices(heard),
                **self._about_knowledge(this, heard),
            }
        return record | {
            "uplink_seconds": self.uplink_seconds,
            "planned_joules": self.planned_joules,
            "measured_joules": self.measured_joules,
            "epsilon_spent": epsilon_spent,
        }

    def _about_knowledge(self, this: Round, heard: Reception) -> dict[str, Any]:
        """How good what is broadcast is: of class means its error; of public samples, where their labels are known,
        how many the sum, the received and the broadcast rows have right."""
        if self.plan.uplink.kind != "public_knowledge":
            return _about_estimate(heard)
        if self._public is None or self._public.hidden_labels is None:
            return {}
        labels, num_classes = self._public.hidden_labels, self.plan.fleet.num_classes
        asked = labels[self._samples_asked(this)]
        sums = {"ideal": heard.ideal, "received": heard.received}
        right = {name: _share_right(rows.reshape(-1, num_classes), asked) for name, rows in sums.items()}
        return {"labels_right": {**right, "broadcast": _share_right(heard.knowledge, labels)}}

    def _knowledge_tables(self, this: Round, heard: Reception | None) -> dict[str, Any]:
        """To look at; nothing of gradients, of silence, and of public samples whose labels nobody knows."""
        kind = self.plan.uplink.kind
        if heard is None or kind == "gradient":
            return {}
        if kind != "public_knowledge":
            return class_mean_tables(heard, self.plan.fleet.num_classes)
        if self._public is None or self._public.hidden_labels is None:
            return {}
        labels = self._public.hidden_labels
        return public_tables(heard, self.plan.fleet.num_classes, labels[self._samples_asked(this)], labels)

    def _samples_asked(self, this: Round) -> IntArray:
        return rows_of_round(declared_public(self.plan.scenario), this.index)

    def epsilon_spent(self, model: str) -> float:
        """The worst device's so far, under a sensitivity model."""
        return float(self.ledger.epsilon(model).max())

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Tensors and numbers from which `restore` goes on to the same bytes."""
        tensors = dict(self.fleet.state())
        tensors |= {_ITERATE + name: tensor for name, tensor in (self._iterate or {}).items()}
        if self._receiver is not None:
            tensors |= {_RECEIVER + name: torch.from_numpy(array) for name, array in self._receiver.state().items()}
        numbers = {
            "uplink_seconds": self.uplink_seconds,
            "planned_joules": self.planned_joules,
            "measured_joules": self.measured_joules,
        }
        return tensors, numbers

    def restore(self, round_index: int, tensors: dict[str, Tensor], numbers: dict[str, float]) -> None:
        """Puts the run back to where `state` was taken, after that round."""
        try:
            self.fleet.load_state({name: tensor for name, tensor in tensors.items() if name[0].isdigit()})
        except RuntimeError as error:
            raise AirDistillError(f"the model is not the one that the run began with: {error}") from None
        self._iterate = _part_of(tensors, _ITERATE) or None
        if self._receiver is not None:
            remembered = _part_of(tensors, _RECEIVER)
            self._receiver.restore({name: tensor.numpy() for name, tensor in remembered.items()})
        self.round_index = round_index
        self.uplink_seconds, self.planned_joules = numbers["uplink_seconds"], numbers["planned_joules"]
        self.measured_joules = numbers["measured_joules"]


def _about_inactive_devices(heard: Reception) -> dict[str, Any]:
    """Who was left out, and how far the others' average was from everybody's; nothing where all spoke."""
    if heard.design is None or heard.squared_bias is None:
        return {}
    silent = np.flatnonzero(~heard.design.weights.any(axis=1))
    return {"silent_devices": silent.tolist(), "measured_bias": heard.squared_bias.tolist()} if len(silent) else {}


def _about_estimate(heard: Reception) -> dict[str, Any]:
    """The error of what is broadcast, per entry, and what the receiver thinks of it; nothing if it is as received."""
    if heard.estimate is None:
        return {}
    expected = heard.estimate.expected_error
    return {
        "estimate_error": heard.estimate_error().tolist(),
        "expected_error": None if expected is None else expected.tolist(),
    }


def _share_right(rows: FloatArray, labels: IntArray) -> float:
    """Of rows `[row, class]` whose largest entry is at the label's place; of the rows that are known."""
    known = np.isfinite(rows).all(axis=1) & rows.any(axis=1)
    return float((rows[known].argmax(axis=1) == labels[known]).mean()) if known.any() else 0.0


def _part_of(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def seed_torch(scenario: Scenario, round_index: int) -> None:
    """For models that draw at random themselves: the same draws whether the run was resumed or not."""
    torch.manual_seed(int(stream(scenario.seed, "torch", round_index).integers(2**63)))


def check_has_data(scenario: Scenario) -> None:
    if scenario.data.class_counts is not None:
        raise InputError("data.class_counts", "declared", "a run needs data; declared counts are for planning")


def check_inputs(folder: Path, plan: Plan, stored: dict[str, Any], to_be: str) -> None:
    """That the data and channels of a run are still those with which it began."""
    dataset, public = load_data(plan.scenario)
    check_unchanged(folder, _digest(dataset, public, channel_source(plan.scenario), plan.num_rounds), stored, to_be)


def check_unchanged(folder: Path, inputs_digest: str, stored: dict[str, Any], to_be: str) -> None:
    if inputs_digest != stored["inputs"]:
        raise RunError(f"{folder}: cannot be {to_be}: its dataset or trace has changed since it began")


def _digest(dataset: Dataset, public: PublicSet | None, source: ChannelSource, num_rounds: int) -> str:
    """Of the data and of every round's channel: what a resumed run must find unchanged."""
    digest = hashlib.sha256()
    shared = () if public is None else (public.samples,)
    for array in (dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test, *shared):
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    for round_index in range(1, num_rounds + 1):
        digest.update(source.round_channel(round_index).tobytes())
    return digest.hexdigest()


def random_iterate_round(seed: int, num_rounds: int) -> int:
    """The round whose starting point is Theorem 1's θ̂: t with probability ∝ 1/η_t ∝ √t."""
    weights = np.sqrt(np.arange(1, num_rounds + 1))
    return int(stream(seed, "random-iterate").choice(num_rounds, p=weights / weights.sum())) + 1
