"""The learning of all devices: how it is computed, and the same steps for every learner within a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from airdistill.arrays import FloatArray, IntArray
from airdistill.data.datasets import Dataset
from airdistill.data.public import PublicSet
from airdistill.errors import AirDistillError, InputError
from airdistill.learning.clipping import check_independent_samples, trainable
from airdistill.learning.gradients import Target
from airdistill.learning.learner import Learner, Losses, predictions_of
from airdistill.learning.learner_maker import LearnerMaker
from airdistill.learning.mixed import MixedSteps
from airdistill.learning.models import build_model, by_device, draws_at_random, num_parameters, set_flat_weights, under
from airdistill.learning.optimisers import PLAIN
from airdistill.learning.samples import channels_last, held_samples, input_shape, to_tensor
from airdistill.learning.stacked import StackedLearners
from airdistill.learning.stacking import can_stack, can_stack_orders
from airdistill.stages import report_stage
from airdistill.streams import stream

Result = TypeVar("Result")
TRAINING = "devices trained"  # a stage of a round
CPU = torch.device("cpu")
_OPTIMISER, _REMEMBERED = "optimizer.", "remembered."  # prefixes of names in checkpoints
_KEPT_BYTES, _KEPT_BYTES_FUSED = 4 << 30, 1 << 30


LOWER_THE_STEP = "lower learning.initial_lr or learning.distill_weight"


class TrainingDivergedError(AirDistillError):
    """A loss or a weight is infinite or not a number."""


@dataclass(frozen=True)
class Engine:
    """How training and evaluation are computed. Rounding may depend on all fields but `workers` and `kept_bytes`.

    `workers` devices are processed in parallel, each by one thread: with threads inside an operation, rounding would
    depend on their number, and they would block each other on a busy machine. A forward pass takes `chunk_samples` at
    once. Forward passes are kept for the update up to `kept_bytes`; the default depends on the kernels.

    `stacked` trains all devices in the same operations if `can_stack` allows it: many small consecutive steps leave a
    GPU idle. A forward pass then takes `chunk_samples` of each device and is not kept. With fused kernels it takes as
    many as fit into memory, and it is kept if all samples fit.

    `kernels`: "torch" supports any model. "fused" are this package's kernels for networks of the paper's form, and
    reject other models. "auto" uses them for such networks with convolutions, and "torch" otherwise.
    """

    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    chunk_samples: int = 300
    kept_bytes: int | None = None
    workers: int = 1
    stacked: bool = False
    kernels: str = "auto"

    def for_each(
        self, function: Callable[..., Result], *sequences: Iterable[Any], stage: str | None = None
    ) -> list[Result]:
        """The results of `function` for every device, in order; progress is reported under the name `stage`."""
        arguments = [list(each) for each in sequences]

        def collect(results: Iterable[Result]) -> list[Result]:
            collected = []
            for result in results:
                collected.append(result)
                if stage is not None:
                    report_stage(stage, len(collected), len(arguments[0]))
            return collected

        if self.workers == 1 or self.device.type != "cpu":
            return collect(map(function, *arguments))
        with ThreadPoolExecutor(self.workers) as pool:
            return collect(pool.map(function, *arguments))


class LearningFleet:
    """Learners in the order of their devices."""

    def __init__(
        self, learners: list[Learner], engine: Engine, one_model: bool = False, public: Tensor | None = None
    ) -> None:
        """With `one_model`, all devices hold the same weights at the end of every round.

        `public` are the public samples `[sample, ...]`.
        """
        self.learners = learners
        self.public = public
        # Public numbers that every device has from earlier broadcasts besides its model, by name.
        self.remembered: dict[str, FloatArray] = {}
        self.engine = engine
        self.one_model = one_model
        stack = engine.stacked and can_stack(learners)
        self.stacked = (
            StackedLearners(learners, engine.chunk_samples, engine.kernels, engine.kept_bytes) if stack else None
        )
        if engine.stacked and engine.kernels == "fused" and self.stacked is None:
            raise InputError("--engine", "fused", "needs devices with equally many samples and one model")
        self._samples_are_independent = False  # checked before the first clipping
        self._bytes_by_model: dict[tuple[str, int], float] = {}

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        indices: Iterable[IntArray],
        models: list[str],
        seed: int,
        engine: Engine,
        one_model: bool = False,
        num_classes: int | None = None,
        public: PublicSet | None = None,
    ) -> LearningFleet:
        """Build every device with its samples and initial weights, drawn from stream (model-weights, 0, device).

        With `one_model`, all devices start from the weights of device 0. Models have `num_classes` outputs, by default
        one per class of the dataset.
        """
        shape, num_classes = input_shape(dataset.x_train), num_classes or dataset.num_classes
        each_held = list(indices)
        samples = held_samples(dataset.x_train, each_held, engine.dtype, engine.device)
        learners, maker = [], LearnerMaker(engine)
        for device, held in enumerate(each_held):
            rng = stream(seed, "model-weights", 0, 0 if one_model else device)
            model = build_model(models[device], shape, num_classes, rng, engine.dtype).to(engine.device)
            own, rows = samples[device]
            learners.append(maker.learner(model, own, dataset.y_train[held], num_classes, rows, models[device]))
            report_stage("devices", device + 1, len(each_held))
        if any(draws_at_random(learner.model) for learner in learners):
            # All threads share PyTorch's generator: only a single thread draws from it in a reproducible order.
            engine = replace(engine, workers=1)
        shared = None if public is None else to_tensor(public.samples, engine.dtype, engine.device)
        return cls(learners, engine, one_model, shared)

    def knowledge(self, for_full_batch: bool) -> FloatArray:
        """Local knowledge (class means of the predictions) of all devices, `[device, class, class]`.

        `for_full_batch` keeps as many forward passes as fit into memory, and the full-batch step reuses them.
        """
        if self.stacked is not None:
            return self.stacked.knowledge(keep=for_full_batch)
        budget = self._kept_bytes() if for_full_batch else 0.0
        keeps = []
        for learner in self.learners:
            cost = learner.num_samples * self._kept_bytes_per_sample(learner) if for_full_batch else 0.0
            keeps.append(for_full_batch and cost <= budget)
            budget -= cost if keeps[-1] else 0.0
        found = self.engine.for_each(
            lambda learner, keep: learner.knowledge(keep), self.learners, keeps, stage="class means"
        )
        return np.stack(found)

    def _kept_bytes(self) -> int:
        """The memory budget for forward passes: one by PyTorch's kernels takes several times that of a fused one."""
        if self.engine.kept_bytes is not None:
            return self.engine.kept_bytes
        return _KEPT_BYTES if any(type(learner) is Learner for learner in self.learners) else _KEPT_BYTES_FUSED

    def _kept_bytes_per_sample(self, learner: Learner) -> float:
        """The memory that autograd keeps per sample, measured once for each kind of model."""
        kind = (type(learner.model).__name__, num_parameters(learner.model))
        if kind not in self._bytes_by_model:
            self._bytes_by_model[kind] = learner.kept_bytes_per_sample()
        return self._bytes_by_model[kind]

    def full_batch_step(
        self, target: Target | None, lr: float, distill_weight: float, optimiser: str = PLAIN
    ) -> Sequence[Losses]:
        """One full-batch step, eq. (4), on every device; with another optimiser than plain SGD, a step of that one."""
        if self.stacked is not None:
            return self.stacked.full_batch_step(target, lr, distill_weight, optimiser)
        return self.engine.for_each(
            lambda learner: learner.full_batch_step(target, lr, distill_weight, optimiser),
            self.learners,
            stage=TRAINING,
        )

    def local_epochs(
        self,
        target: Target | None,
        lr: float,
        distill_weight: float,
        orders: list[list[IntArray]],
        batch_size: int,
        optimiser: str = PLAIN,
    ) -> Sequence[Losses]:
        """Minibatch epochs on every device; `orders[device]` has one order of its samples for each epoch."""
        if self.stacked is not None and can_stack_orders(orders):
            return self.stacked.local_epochs(target, lr, distill_weight, orders, batch_size, optimiser)
        return self.engine.for_each(
            lambda learner, own: learner.local_epochs(target, lr, distill_weight, own, batch_size, optimiser),
            self.learners,
            orders,
            stage=TRAINING,
        )

    def mixed_steps(self, steps: Sequence[MixedSteps], target: Target, stage: str) -> Sequence[Losses]:
        """Every device's steps on own and public samples; the target has a row for each public sample.

        Progress is reported under the name `stage`.
        """
        public = self.public_samples()
        if self.stacked is not None and all(steps[0].can_stack_with(each) for each in steps):
            return self.stacked.mixed_steps(steps, public, target)
        return self.engine.for_each(
            lambda learner, own: learner.mixed_steps(own, public, target), self.learners, steps, stage=stage
        )

    def public_predictions(self, rows: IntArray) -> FloatArray:
        """Every device's predictions for the public samples `rows`, `[device, sample, class]`."""
        chunks = torch.split(channels_last(self.public_samples(rows)), self.engine.chunk_samples)
        if self.stacked is not None:
            return self.stacked.predictions(chunks)
        return np.stack(self.engine.for_each(lambda learner: predictions_of(learner.logits(chunks)), self.learners))

    def public_samples(self, rows: IntArray | None = None) -> Tensor:
        """The public samples `[sample, ...]`: all, or those with indices `rows`."""
        if self.public is None:
            raise ValueError("the fleet has no public samples")
        return self.public if rows is None else self.public[torch.from_numpy(rows).to(self.engine.device)]

    def gradients(self, clip_norm: float | None) -> tuple[FloatArray, Sequence[Losses]]:
        """The mean gradient of every device's cross-entropy, `[device, parameter]`; `clip_norm` clips it per sample."""
        if clip_norm is not None and not self._samples_are_independent:
            check_independent_samples(self.learners[0].model, self.learners[0].samples_and_labels()[0])
            self._samples_are_independent = True
        if self.stacked is not None and clip_norm is None:
            gradients, losses = self.stacked.gradients()
        elif self.stacked is not None and clip_norm is not None and self.one_model:
            gradients, losses = self.stacked.clipped_gradients(clip_norm)
        else:
            results = self.engine.for_each(
                lambda one: one.gradient(None, 0.0) if clip_norm is None else one.clipped_gradient(clip_norm),
                self.learners,
            )
            gradients, losses = torch.stack([gradient for gradient, _ in results]), [losses for _, losses in results]
        return gradients.to("cpu", torch.float64).numpy(), losses

    def parameters(self) -> FloatArray:
        """Every device's trainable parameters as one vector each, `[device, parameter]`."""
        if self.stacked is not None:
            return self.stacked.parameters().to("cpu", torch.float64).numpy()
        vectors = [torch.cat([p.detach().flatten() for p in trainable(learner.model)]) for learner in self.learners]
        return torch.stack(vectors).to("cpu", torch.float64).numpy()

    def descend(self, gradient: FloatArray, lr: float) -> None:
        """θ ← θ − η g on every device, for one gradient `[parameter]`."""
        shared = torch.from_numpy(gradient).to(self.engine.device, self.engine.dtype)
        if self.stacked is not None:
            self.stacked.descend(shared, lr)
            return
        for learner in self.learners:
            learner.descend(shared, lr)

    @torch.no_grad()
    def average(self, weights: FloatArray) -> None:
        """Set every model to Σ_i w_i θ_i, summed in float64; integers in a model's state stay as they are."""
        if self.stacked is not None:
            self.stacked.average(weights)
            return
        states = [learner.model.state_dict() for learner in self.learners]
        for name, first in states[0].items():
            if first.is_floating_point():
                mean = sum(w * state[name].to(torch.float64) for w, state in zip(weights, states, strict=True))
                for state in states:
                    state[name].copy_(mean)

    def use_model(self, weights: FloatArray | None) -> Sequence[Losses]:
        """Give every device these weights, and return the cross-entropy of its model on its samples.

        With None, if no model was received, every device keeps its own.
        """
        if weights is not None:
            for learner in self.learners:
                set_flat_weights(learner.model, weights)
                learner.drop_cache()
            if self.stacked is not None:
                self.stacked.drop_cache()
        return self.engine.for_each(lambda learner: Losses(learner.cross_entropy(), 0.0), self.learners)

    def are_equal(self) -> bool:
        """Whether all devices hold the same weights now, as after the broadcast of a model.

        Models without weights may differ in other ways.
        """
        if self.one_model:
            return True
        first, *others = (learner.model.state_dict() for learner in self.learners)
        if not first:
            return False

        def as_first(state: dict[str, Tensor]) -> bool:
            return state.keys() == first.keys() and all(
                tensor.shape == first[name].shape and torch.equal(tensor, first[name]) for name, tensor in state.items()
            )

        return all(map(as_first, others))

    def models(self) -> list[nn.Module]:
        """Every device's model, in order; with `one_model`, that of device 0 each time."""
        return [(self.learners[0] if self.one_model else learner).model for learner in self.learners]

    def finite_weights(self) -> list[bool]:
        """For each device, whether all its weights are finite."""
        if self.stacked is not None:
            return self.stacked.finite_weights()
        return [all(bool(torch.isfinite(each).all()) for each in model.parameters()) for model in self.models()]

    def state(self) -> dict[str, Tensor]:
        """Every model's weights under `device.parameter`; with `one_model`, those of device 0. Then the state of the
        optimisers that have one, under `optimizer.device.name.tensor`, and what devices remember of broadcasts."""
        weights = {
            f"{device}.{name}": tensor.detach()
            for device, learner in enumerate(self.learners[:1] if self.one_model else self.learners)
            for name, tensor in learner.model.state_dict().items()
        }
        optimisers = {
            f"{_OPTIMISER}{device}.{learner.optimiser.name}.{name}": tensor
            for device, learner in enumerate(self.learners)
            if learner.optimiser is not None
            for name, tensor in learner.optimiser.state.items()
        }
        remembered = {_REMEMBERED + name: torch.from_numpy(array.copy()) for name, array in self.remembered.items()}
        return weights | optimisers | remembered

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Load weights, optimisers and what devices remember, as `state` returned them."""
        self.remembered = {name: tensor.numpy().copy() for name, tensor in under(_REMEMBERED, state).items()}
        weights, optimisers = by_device(state), by_device(under(_OPTIMISER, state))
        for device, learner in enumerate(self.learners):
            learner.model.load_state_dict(weights.get("0" if self.one_model else str(device), {}))
            learner.load_optimiser(optimisers.get(str(device), {}))
            learner.drop_cache()
        if self.stacked is not None:
            self.stacked.drop_cache()


def check_finite(
    losses: Sequence[Losses], finite_weights: list[bool], round_index: int, way_out: Callable[[], str] | None = None
) -> None:
    """Raise an error that names round and device if a loss, or a weight after the step, is not finite."""
    for device, (loss, weights_are_finite) in enumerate(zip(losses, finite_weights, strict=True)):
        if not (weights_are_finite and np.isfinite([loss.training, loss.distillation]).all()):
            raise TrainingDivergedError(
                f"round {round_index}, device {device}: training diverged at a loss of "
                f"{loss.training + loss.distillation:.3g}; {way_out() if way_out else LOWER_THE_STEP}"
            )
