"""All devices' learning: the same steps for every learner, within a bound of memory."""

from __future__ import annotations

import copy
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
from airdistill.learning.clipping import check_samples_apart, trainable
from airdistill.learning.fused.form import NetworkForm, form_of
from airdistill.learning.gradients import Target
from airdistill.learning.learner import Learner, Losses, predictions_of
from airdistill.learning.mixed import MixedSteps
from airdistill.learning.models import build_model, draws_at_random, num_parameters
from airdistill.learning.samples import channels_last, input_shape, to_tensor
from airdistill.learning.stacked import StackedLearners
from airdistill.learning.stacking import can_stack, same_code, stackable
from airdistill.stages import tell
from airdistill.streams import stream

Result = TypeVar("Result")
CPU = torch.device("cpu")
KERNELS = ("auto", "torch", "fused")
_KEPT_BYTES, _KEPT_BYTES_FUSED = 4 << 30, 1 << 30


class TrainingDivergedError(AirDistillError):
    """A loss became infinite or no number."""


@dataclass(frozen=True)
class Engine:
    """How the arithmetic is done. The result's last bits may depend on all but `workers` and `kept_bytes`.

    `workers` devices are worked on at once, each by one thread: threads inside an operation would change last bits
    with their number, and wait for each other in vain on a busy machine. `chunk_samples` go through a model at once;
    forward passes are kept for the update up to `kept_bytes`, by default as many as suit the kernels.

    `stacked` trains all devices in the same operations where they are alike enough (`can_stack`): many small steps one
    after another leave a GPU idle. `chunk_samples` of each device go through the models at once, and no forward passes
    are kept; with fused kernels as many as fit go at once, and the forward pass is kept where all do.

    `kernels` says whose: "torch" takes any model; "fused" are our own for models of the paper's form, and refuse
    others; "auto" takes those for such models with convolutions.
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
        """The function's results for every device, in order; a `stage` that takes long is told as it goes on."""
        given = [list(each) for each in sequences]

        def gathered(results: Iterable[Result]) -> list[Result]:
            found = []
            for result in results:
                found.append(result)
                if stage is not None:
                    tell(stage, len(found), len(given[0]))
            return found

        if self.workers == 1 or self.device.type != "cpu":
            return gathered(map(function, *given))
        with ThreadPoolExecutor(self.workers) as pool:
            return gathered(pool.map(function, *given))


class LearnerMaker:
    """Makes learners with the kernels that the engine asks for; to look at a model's form once will do for its like."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: list[tuple[nn.Module, NetworkForm | None]] = []

    def learner(self, model: nn.Module, samples: Tensor, labels: IntArray, num_classes: int) -> Learner:
        form = self._form(model, tuple(samples.shape[1:]))
        if form is None:
            return Learner(model, samples, labels, num_classes, self._engine.chunk_samples)
        from airdistill.learning.fused.learner import FusedLearner  # Numba takes a while to load

        return FusedLearner(model, form, samples, labels, num_classes, self._engine.chunk_samples)

    def _form(self, model: nn.Module, input_shape: tuple[int, ...]) -> NetworkForm | None:
        """The model's form if the fused kernels are to be used."""
        engine = self._engine
        if engine.kernels == "torch" or engine.device.type != "cpu" or engine.stacked:
            return None
        form = None
        if engine.dtype == torch.float32:
            for other, found in self._known:
                if same_code(model, other):
                    return found
            form = form_of(model, input_shape)
            if form is not None and engine.kernels == "auto" and not form.blocks:
                form = None  # PyTorch's products of matrices leave little to gain, and Numba takes a while to load
            self._known.append((copy.deepcopy(model), form))
        if form is None and engine.kernels == "fused":
            rule = "is for float32 and networks of convolutions with 2×2 max-pooling and ReLU, then dense layers"
            raise InputError("--engine", "fused", rule)
        return form


class LearningFleet:
    """Learners in the order of their devices."""

    def __init__(
        self, learners: list[Learner], engine: Engine, one_model: bool = False, public: Tensor | None = None
    ) -> None:
        """With `one_model` all devices hold copies of the same weights whenever a round ends.

        `public` are samples `[sample, ...]` that all of them have.
        """
        self.learners = learners
        self.public = public
        self.engine = engine
        self.one_model = one_model
        alike = engine.stacked and can_stack(learners)
        self.stacked = (
            StackedLearners(learners, engine.chunk_samples, engine.kernels, engine.kept_bytes) if alike else None
        )
        if engine.stacked and engine.kernels == "fused" and self.stacked is None:
            raise InputError("--engine", "fused", "needs devices that are alike: equally many samples and one model")
        self._samples_are_apart = False  # until checked, when first it matters
        self._bytes_by_kind: dict[tuple[str, int], float] = {}

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
        """Every device with its samples and its own initial weights, from the stream (model-weights, 0, device).

        With `one_model` all start from the weights of device 0. Models have an output for each of `num_classes`, by
        default those of the dataset.
        """
        shape, num_classes = input_shape(dataset.x_train), num_classes or dataset.num_classes
        samples = to_tensor(dataset.x_train, engine.dtype, engine.device)
        learners, maker = [], LearnerMaker(engine)
        for device, held in enumerate(indices):
            rng = stream(seed, "model-weights", 0, 0 if one_model else device)
            model = build_model(models[device], shape, num_classes, rng, engine.dtype).to(engine.device)
            own = samples[torch.from_numpy(held).to(engine.device)]
            learners.append(maker.learner(model, own, dataset.y_train[held], num_classes))
        if any(draws_at_random(learner.model) for learner in learners):
            # PyTorch's generator is one for all threads: only one thread draws from it in the same order each time.
            engine = replace(engine, workers=1)
        shared = None if public is None else to_tensor(public.samples, engine.dtype, engine.device)
        return cls(learners, engine, one_model, shared)

    def knowledge(self, for_full_batch: bool) -> FloatArray:
        """Local knowledge of all devices, `[device, class, class]`.

        Before a full-batch step the forward passes are kept, as many as fit: that step then needs no second one.
        """
        if self.stacked is not None:
            return self.stacked.knowledge(keep=for_full_batch)
        budget = self._kept_bytes() if for_full_batch else 0.0
        keeps = []
        for learner in self.learners:
            cost = learner.num_samples * self._bytes_kept_for_a_sample(learner) if for_full_batch else 0.0
            keeps.append(for_full_batch and cost <= budget)
            budget -= cost if keeps[-1] else 0.0
        return np.stack(self.engine.for_each(lambda learner, keep: learner.knowledge(keep), self.learners, keeps))

    def _kept_bytes(self) -> int:
        """A general pass takes several times the memory of a fused one, and is slower to make again."""
        if self.engine.kept_bytes is not None:
            return self.engine.kept_bytes
        return _KEPT_BYTES if any(type(learner) is Learner for learner in self.learners) else _KEPT_BYTES_FUSED

    def _bytes_kept_for_a_sample(self, learner: Learner) -> float:
        """What autograd holds on to, measured once for each kind of model."""
        kind = (type(learner.model).__name__, num_parameters(learner.model))
        if kind not in self._bytes_by_kind:
            self._bytes_by_kind[kind] = learner.bytes_kept_for_a_sample()
        return self._bytes_by_kind[kind]

    def full_batch_step(self, target: Target | None, lr: float, distill_weight: float) -> Sequence[Losses]:
        """Eq. (4) on every device."""
        if self.stacked is not None:
            return self.stacked.full_batch_step(target, lr, distill_weight)
        return self.engine.for_each(lambda learner: learner.full_batch_step(target, lr, distill_weight), self.learners)

    def local_epochs(
        self, target: Target | None, lr: float, distill_weight: float, orders: list[list[IntArray]], batch_size: int
    ) -> Sequence[Losses]:
        """Minibatch passes on every device; `orders[device]` has one order of its samples for each pass."""
        if self.stacked is not None and stackable(orders):
            return self.stacked.local_epochs(target, lr, distill_weight, orders, batch_size)
        return self.engine.for_each(
            lambda learner, own: learner.local_epochs(target, lr, distill_weight, own, batch_size),
            self.learners,
            orders,
        )

    def mixed_steps(self, steps: Sequence[MixedSteps], target: Target, stage: str) -> Sequence[Losses]:
        """Every device's steps on own and public samples; the target has a row for each public sample.

        `stage` is what this is called while it goes on.
        """
        public = self.public_samples()
        if self.stacked is not None and all(steps[0].alike(each) for each in steps):
            return self.stacked.mixed_steps(steps, public, target)
        return self.engine.for_each(
            lambda learner, own: learner.mixed_steps(own, public, target), self.learners, steps, stage=stage
        )

    def public_predictions(self, rows: IntArray) -> FloatArray:
        """Of every device on these public samples, `[device, sample, class]`."""
        chunks = torch.split(channels_last(self.public_samples(rows)), self.engine.chunk_samples)
        if self.stacked is not None:
            return self.stacked.predictions(chunks)
        return np.stack(self.engine.for_each(lambda learner: predictions_of(learner.logits(chunks)), self.learners))

    def public_samples(self, rows: IntArray | None = None) -> Tensor:
        """All, or these."""
        if self.public is None:
            raise ValueError("the fleet has no public samples")
        return self.public if rows is None else self.public[torch.from_numpy(rows).to(self.engine.device)]

    def gradients(self, clip_norm: float | None) -> tuple[FloatArray, Sequence[Losses]]:
        """The mean gradient of every device's cross-entropy, `[device, parameter]`, clipped per sample if asked."""
        if clip_norm is not None and not self._samples_are_apart:
            check_samples_apart(self.learners[0].model, self.learners[0].samples_and_labels()[0])
            self._samples_are_apart = True
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
        """Every model becomes Σ_i w_i θ_i, summed in float64; whole numbers in a model's state stay as they are."""
        if self.stacked is not None:
            self.stacked.average(weights)
            return
        states = [learner.model.state_dict() for learner in self.learners]
        for name, first in states[0].items():
            if first.is_floating_point():
                mean = sum(w * state[name].to(torch.float64) for w, state in zip(weights, states, strict=True))
                for state in states:
                    state[name].copy_(mean)

    def models(self) -> list[nn.Module]:
        """Of every device in order; with one model for all, the first one each time."""
        return [(self.learners[0] if self.one_model else learner).model for learner in self.learners]

    def finite_weights(self) -> list[bool]:
        """For each device whether all its weights are finite numbers."""
        if self.stacked is not None:
            return self.stacked.finite_weights()
        return [all(bool(torch.isfinite(each).all()) for each in model.parameters()) for model in self.models()]

    def state(self) -> dict[str, Tensor]:
        """Every model's weights under `device.parameter`; with one model for all, those of device 0."""
        return {
            f"{device}.{name}": tensor.detach()
            for device, learner in enumerate(self.learners[:1] if self.one_model else self.learners)
            for name, tensor in learner.model.state_dict().items()
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        for device, learner in enumerate(self.learners):
            prefix = "0." if self.one_model else f"{device}."
            own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
            learner.model.load_state_dict(own)
            learner.forget()
        if self.stacked is not None:
            self.stacked.forget()


def check_finite(losses: Sequence[Losses], finite_weights: list[bool], round_index: int) -> None:
    """Raises with round and device where a loss, or a weight after the step, is no finite number."""
    for device, (loss, sound_weights) in enumerate(zip(losses, finite_weights, strict=True)):
        if not (sound_weights and np.isfinite([loss.training, loss.distillation]).all()):
            raise TrainingDivergedError(
                f"round {round_index}, device {device}: training diverged at a loss of "
                f"{loss.training + loss.distillation:.3g}; lower learning.initial_lr or learning.distill_weight"
            )
