"""The simulation: the state of a run between two rounds, and the step from one to the next."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from airdistill import __version__
from airdistill.arrays import IntArray
from airdistill.channel.sources import ChannelSource, channel_source
from airdistill.data.datasets import Dataset
from airdistill.data.partition import assign_samples
from airdistill.data.public import Comparison, PublicSet, load_data
from airdistill.errors import AirDistillError, InputError, described
from airdistill.files import jsonable
from airdistill.learning.evaluation import EvaluationSample, TestSet
from airdistill.learning.fleet import CPU, LOWER_THE_STEP, LearningFleet, TrainingDivergedError, check_finite
from airdistill.learning.learner import Losses, logits_of, predictions_of
from airdistill.learning.samples import channels_last, to_tensor
from airdistill.planning.plan import Plan
from airdistill.planning.slips import scale_hint
from airdistill.plugins import load_object, source_digests
from airdistill.privacy.assumptions import copies_in_dataset
from airdistill.privacy.ledger import BudgetExceeded, Ledger
from airdistill.radio.charged_round import NotFiniteError
from airdistill.radio.noise_memory import NoiseMemory
from airdistill.radio.superposition import Reception
from airdistill.runs.accounts import Inputs, ledger_header
from airdistill.runs.earlier import EarlierModels
from airdistill.runs.folder import RunError
from airdistill.runs.options import RunOptions
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Outcome, Round, Scheme
from airdistill.schemes.feature_means import own_embedding_digest
from airdistill.schemes.payloads import dataset_of_models, receiver_of
from airdistill.schemes.planning import has_own_code, is_users, named_code
from airdistill.schemes.receivers import StartingReceiver
from airdistill.streams import stream

logger = logging.getLogger(__name__)
_ITERATE, _RECEIVER, _NOISE = "iterate.", "receiver.", "noise."
OWN_CODE = "own_code"  # a key of run.json


class Simulation:
    """A fleet in the middle of its run. `advance` plays a round; `state` is all that resuming needs."""

    def __init__(self, plan: Plan, scheme: Scheme, options: RunOptions) -> None:
        scenario = plan.scenario
        check_has_data(scenario)
        self.plan, self.scheme, self.options = plan, scheme, options
        engine, (dataset, self._public) = options.learning_engine(), load_data(scenario)
        shares = assign_samples(scenario, dataset.y_train)
        self._source = channel_source(scenario)
        inputs = _inputs(plan, dataset, self._public, self._source, shares.indices)
        self.inputs_digest, self.class_labels = inputs.digest, dataset.class_labels
        dataset = dataset_of_models(plan, dataset, self._public, engine, shares.indices)
        self.fleet = LearningFleet.of(
            dataset, shares.indices, scenario.model_names, scenario.seed, engine, scheme.one_model, public=self._public
        )
        self._tests = TestSet.of_dataset(dataset, engine, _evaluation_sample(scenario, options, len(dataset.y_test)))
        header = ledger_header(plan, scheme.name, scheme.releases, inputs, is_users(scheme))
        if scenario.data.resample:
            header = replace(header, terms={**header.terms, "resampled": True})
        self.ledger = Ledger(header)
        self._receiver = receiver_of(plan, self._public, engine)
        self._noise_memory = NoiseMemory.of(plan) if scheme.releases == "private" else None
        self._iterate: dict[str, Tensor] | None = None
        self._iterate_accuracy: dict[str, Any] | None = None
        self.iterate_round = random_iterate_round(scenario.seed, plan.num_rounds)
        self.round_index = 0
        self.uplink_seconds = self.planned_joules = self.measured_joules = 0.0

    def start_from(self, models: EarlierModels) -> None:
        """Give every device the model that it had at the end of an earlier run; the ledger's header says so."""
        header = self.ledger.header
        models.check_fits(self.scheme, self.plan, header)
        self.fleet.load_state(models.tensors)
        self.ledger = Ledger(models.continued(header))
        # Models that differ were trained by their devices: the server does not have them, and may not read one.
        has_theirs = models.server_sent_them and self.fleet.are_equal()
        if has_theirs and isinstance(self._receiver, StartingReceiver):
            chunks = torch.split(channels_last(self.fleet.public_samples()), self.options.chunk_samples)
            self._receiver.start_from(predictions_of(logits_of(self.fleet.models()[0], chunks)))

    def advance(self) -> dict[str, Any]:
        """Play the next round and return its record; `BudgetExceeded` leaves the state unchanged.

        1. keep the random iterate of Theorem 1, if this is its round; if accuracy is measured on a sample, measure the
           iterate here, because its weights would double the memory of a large fleet;
        2. let the scheme play: devices make vectors, the ledger is charged, the air adds, devices learn;
        3. check that losses and weights are finite;
        4. record losses, noise, power, energy and the privacy spent;
        5. evaluate, if this round is due.
        """
        if self._tests.sample is not None and self._next_is_iterate():
            self._iterate_accuracy = self.accuracy()
        this = self.begin_round()
        try:
            outcome = self._play(this)
        except BudgetExceeded:
            self.round_index -= 1
            raise
        # Before the losses are read: a GPU may still be computing them.
        spent = self.ledger.highest_epsilon()
        check_finite(outcome.losses, self.fleet.finite_weights(), self.round_index, self._way_out)
        record = self._record(this, outcome, spent)
        if self._is_evaluated(self.round_index):
            if outcome.reception is not None:
                record |= this.protocol.tables(outcome.reception, this.index, self._public)
            record["accuracy"] = self.accuracy()
        return record

    def _next_is_iterate(self) -> bool:
        return self.plan.num_rounds > 1 and self.round_index + 1 == self.iterate_round

    def _way_out(self) -> str:
        return f"{scale_hint(self.plan.scenario)}{LOWER_THE_STEP}"

    def begin_round(self, kind: type[Round] = Round) -> Round:
        """The next round, for the scheme to play."""
        self.round_index += 1
        if self.round_index == self.iterate_round and self._tests.sample is None:
            self._iterate = {name: tensor.clone() for name, tensor in self.fleet.state().items()}
        seed_torch(self.plan.scenario, self.round_index)
        run = (self.plan.scenario, self.plan, self._source, self.fleet, self.ledger, self._receiver)
        return kind(self.round_index, *run, self._noise_memory)

    def _is_evaluated(self, round_index: int) -> bool:
        due = round_index % self.options.eval_every == 0 or round_index in self.options.eval_also
        return due or round_index == self.plan.num_rounds

    def _play(self, this: Round) -> Outcome:
        """Let the scheme play a round; an exception in the user's own code becomes an error that names it."""
        try:
            charged = self.ledger.num_releases
            outcome = self.scheme.play(this)
        except Exception as error:
            if isinstance(error, NotFiniteError):
                rule = f"training diverged; {self._way_out()}"
                if has_own_code(self.scheme, self.plan.scenario):
                    rule += ", or find it in your own code"
                sent = re.sub(r"^(round \d+): ", r"\1, ", str(error)).split(";")[0]
                raise TrainingDivergedError(f"{sent}; {rule}") from error
            if isinstance(error, AirDistillError) or not has_own_code(self.scheme, self.plan.scenario):
                raise
            raise AirDistillError(f"round {this.index}: your own code failed: {described(error)}") from error
        if not isinstance(outcome, Outcome):
            what = None if outcome is None else f"a {type(outcome).__name__}"
            raise AirDistillError(f"scheme {self.scheme.name}: play must return an Outcome, not {what}")
        _check_outcome(outcome, len(self.fleet.learners), f"scheme {self.scheme.name}: play")
        if outcome.reception is not None and self.ledger.num_releases == charged:
            rule = "send with this.transmit(vectors), or with this.release_without_privacy(aggregate)"
            raise AirDistillError(
                f"scheme {self.scheme.name}: returned a reception that no ledger entry covers; {rule}"
            )
        return outcome

    def accuracy(self) -> dict[str, Any]:
        """Accuracy of the devices' own models on the common test set."""
        return self._tests.evaluate(self.fleet, self.plan.fleet.class_counts).to_dict()

    def iterate_accuracy(self) -> dict[str, Any] | None:
        """Accuracy of the random iterate of Theorem 1, if the run has passed its round; of one round it is no news."""
        if self._iterate_accuracy is not None:
            return self._iterate_accuracy
        if self._iterate is None or self.plan.num_rounds == 1:
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
            "distillation_loss": None if outcome.reception is None or weight == 0 else distillation,
        }
        reception = outcome.reception
        if reception is not None:
            self.uplink_seconds += reception.uplink_seconds
            self.planned_joules += reception.planned_joules
            self.measured_joules += reception.measured_joules
            record |= {
                "predicted_noise_var": reception.predicted_noise_var.tolist(),
                "measured_noise_var": reception.squared_error.tolist(),
                "planned_power_w": reception.planned_power_w,
                "measured_power_w": reception.measured_power_w,
                **_about_inactive_devices(reception),
            }
            own = this.protocol.record(reception, this.index, self._public)
            if taken := sorted(own.keys() & record.keys()):
                rule = f"a round's record has these keys already: {', '.join(taken)}"
                raise AirDistillError(f"round {this.index}: what the payload's protocol records must be new; {rule}")
            record |= own
        return record | {
            "uplink_seconds": self.uplink_seconds,
            "planned_joules": self.planned_joules,
            "measured_joules": self.measured_joules,
            "epsilon_spent": epsilon_spent,
        }

    def epsilon_spent(self, model: str) -> float:
        """ε of the worst device so far, under a sensitivity model."""
        return float(self.ledger.epsilon(model).max())

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and numbers from which `restore` resumes bit-identically."""
        tensors = dict(self.fleet.state())
        tensors |= {_ITERATE + name: tensor for name, tensor in (self._iterate or {}).items()}
        if self._receiver is not None:
            tensors |= {_RECEIVER + name: torch.from_numpy(array) for name, array in self._receiver.state().items()}
        if self._noise_memory is not None:
            tensors |= {_NOISE + name: torch.from_numpy(array) for name, array in self._noise_memory.state().items()}
        numbers: dict[str, Any] = {
            "uplink_seconds": self.uplink_seconds,
            "planned_joules": self.planned_joules,
            "measured_joules": self.measured_joules,
        }
        if self._iterate_accuracy is not None:
            numbers["iterate_accuracy"] = jsonable(self._iterate_accuracy, nan_is_null=True)
        return tensors, numbers

    def restore(self, round_index: int, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Restore the state after that round."""
        try:
            others = (_ITERATE, _RECEIVER, _NOISE)
            self.fleet.load_state({name: tensor for name, tensor in tensors.items() if not name.startswith(others)})
        except RuntimeError as error:
            raise AirDistillError(f"the model is not the one that the run began with: {error}") from None
        iterate = _part_of(tensors, _ITERATE)
        # In the order of the fleet, in which they are written again: a file is read in any order.
        self._iterate = {name: iterate[name] for name in self.fleet.state() if name in iterate} or None
        if self._receiver is not None:
            remembered = _part_of(tensors, _RECEIVER)
            self._receiver.restore({name: tensor.numpy() for name, tensor in remembered.items()})
        if self._noise_memory is not None:
            kept = _part_of(tensors, _NOISE)
            self._noise_memory.restore(round_index, {name: tensor.numpy() for name, tensor in kept.items()})
        self.round_index = round_index
        self.uplink_seconds, self.planned_joules = numbers["uplink_seconds"], numbers["planned_joules"]
        self.measured_joules = numbers["measured_joules"]
        self._iterate_accuracy = numbers.get("iterate_accuracy")


def _evaluation_sample(scenario: Scenario, options: RunOptions, num_tests: int) -> EvaluationSample | None:
    """The devices and test samples on which accuracy is measured; None if it is measured on all of them."""
    chosen = options.eval_devices, options.eval_samples
    return (
        None
        if chosen == (None, None)
        else EvaluationSample.draw(scenario.seed, scenario.num_devices, num_tests, *chosen)
    )


def _check_outcome(outcome: Outcome, num_devices: int, who: str) -> None:
    """Raise unless an outcome has the losses of every device, and a reception if anything."""
    if not isinstance(outcome.reception, Reception | None):
        rule = "what this.transmit(vectors) returned, or None"
        raise AirDistillError(f"{who} returned a reception of type {type(outcome.reception).__name__}: must be {rule}")
    losses = outcome.losses
    read = losses if isinstance(losses, list | tuple) else ()  # a GPU may still be computing the others
    if not isinstance(losses, Sequence) or len(losses) != num_devices or not all(isinstance(x, Losses) for x in read):
        rule = "what this.learn(broadcast) returned; with gradients, what this.fleet.gradients returned"
        raise AirDistillError(f"{who} must return the losses of all {num_devices} devices: {rule}")


def _reported(comparison: Comparison) -> dict[str, int]:
    """What a ledger's header records of a comparison; copies that the dataset itself has are logged."""
    compared = comparison.to_header()
    for sentence in copies_in_dataset(compared):
        logger.warning("public set: %s", sentence)
    return compared


def _about_inactive_devices(reception: Reception) -> dict[str, Any]:
    """The inactive devices, and the distance of the active devices' mean from that of all; nothing without any."""
    if reception.design is None or reception.squared_bias is None:
        return {}
    inactive = np.flatnonzero(~reception.design.weights.any(axis=1)).tolist()
    return {"silent_devices": inactive, "measured_bias": reception.squared_bias.tolist()} if inactive else {}


def _part_of(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def seed_torch(scenario: Scenario, round_index: int) -> None:
    """Seed PyTorch for models with randomness of their own: a resumed run makes the same draws."""
    torch.manual_seed(int(stream(scenario.seed, "torch", round_index).integers(2**63)))


def check_has_data(scenario: Scenario) -> None:
    if scenario.data.class_counts is not None:
        raise InputError("data.class_counts", "declared", "a run needs data; declared counts are for planning")


def check_inputs(folder: Path, plan: Plan, scheme: Scheme, stored: dict[str, Any], to_be: str) -> None:
    """Raise unless the data, the channels and the user's own code of a run are still those with which it began."""
    dataset, public = load_data(plan.scenario)
    digest = _inputs(plan, dataset, public, channel_source(plan.scenario)).digest
    check_unchanged(folder, digest, own_code(plan, scheme), stored, to_be)


def check_unchanged(
    folder: Path, inputs_digest: str, code: Mapping[str, str | None], stored: dict[str, Any], to_be: str
) -> None:
    if inputs_digest != stored["inputs"]:
        raise RunError(f"{folder}: cannot be {to_be}: its dataset, trace or embedding has changed since it began")
    before = stored.get(OWN_CODE, code)
    if changed := sorted(name for name in {*before, *code} if before.get(name) != code.get(name)):
        rule = "other code would send other vectors with the noise of rounds that are repeated"
        problem = f"your own code has changed since it began: {', '.join(changed)}"
        raise RunError(
            f"{folder}: cannot be {to_be}: {problem}; {rule}: restore these modules as they were, or begin a new run "
            f"with --ledger {folder}"
        )


def own_code(plan: Plan, scheme: Scheme) -> dict[str, str | None]:
    """The digests of the user's own classes that a run executes, by module; empty without any.

    A repeated round has the noise that it had: with other code it would send other vectors with it. Datasets and
    embeddings are compared by what they give.
    """
    for field, reference in named_code(plan.scenario):
        load_object(reference, field)  # its module may not have been needed yet
    named = [reference.partition(":")[0] for _, reference in named_code(plan.scenario)]
    return source_digests([*named, *(type(part).__module__ for part in (scheme, plan.uplink.payload))])


def repeats_charged_rounds(stored: Mapping[str, Any], code: Mapping[str, str | None]) -> bool:
    """Whether the program that resumes a run is known to be the one that began it, and sends the same vectors again."""
    return stored["airdistill"] == __version__ and None not in code.values() and stored.get(OWN_CODE, {}) == code


def _inputs(
    plan: Plan, dataset: Dataset, public: PublicSet | None, source: ChannelSource, held: Sequence[IntArray] = ()
) -> Inputs:
    """The digests of the data, and of the data and every round's channel, which a resumed run must find unchanged.

    A user's own embedding is data too: from another one a repeated round would send other vectors with the same noise.
    `held` are the positions of every device's samples.
    """
    digest = _hashed(dataset, public)
    if public is not None:
        digest.update(own_embedding_digest(plan, to_tensor(public.samples, torch.float32, CPU)).encode())
    of_data = digest.hexdigest()
    for round_index in range(1, plan.num_rounds + 1):
        digest.update(source.round_channel(round_index).tobytes())
    compared = None if public is None else _reported(public.comparison)
    return Inputs(of_data, digest.hexdigest(), compared, _device_data(dataset, held))


def _device_data(dataset: Dataset, held: Sequence[IntArray]) -> str:
    """The digest of which samples and labels each device holds, whatever public set and channels a run has."""
    digest = hashlib.sha256()
    for positions in held:
        of_device = np.sort(positions)
        digest.update(f"{len(of_device)}".encode())
        digest.update(np.ascontiguousarray(dataset.x_train[of_device]).view(np.uint8).data)
        digest.update(np.ascontiguousarray(dataset.y_train[of_device]).view(np.uint8).data)
    return digest.hexdigest() if len(held) else ""


def data_digest(dataset: Dataset, public: PublicSet | None) -> str:
    """The digest of all samples and labels."""
    return _hashed(dataset, public).hexdigest()


def _hashed(dataset: Dataset, public: PublicSet | None) -> hashlib._Hash:
    digest = hashlib.sha256()
    shared = () if public is None else (public.samples,)
    for array in (dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test, *shared):
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    if dataset.class_labels is not None:
        digest.update(json.dumps(dataset.class_labels).encode())
    return digest


def random_iterate_round(seed: int, num_rounds: int) -> int:
    """The round whose starting point is Theorem 1's θ̂: t with probability ∝ 1/η_t ∝ √t."""
    weights = np.sqrt(np.arange(1, num_rounds + 1))
    return int(stream(seed, "random-iterate").choice(num_rounds, p=weights / weights.sum())) + 1
