"""The training of a model of the server on probabilities of public samples, epoch by epoch.

All batches and random moves are drawn beforehand. The steps then need nothing from the host: on a GPU they are replays
of one CUDA graph, and on a CPU the fused kernels make those of networks of the paper's form.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from airdistill.arrays import FloatArray, IntArray
from airdistill.learning.cuda_graphs import captured
from airdistill.learning.fleet import Engine
from airdistill.learning.fused.form import NetworkForm
from airdistill.learning.learner_maker import LearnerMaker
from airdistill.learning.mixed import Descent
from airdistill.learning.models import draws_at_random
from airdistill.learning.samples import channels_last

_TINY_NORM = 1e-6  # added to a gradient's norm, as PyTorch does when it clips


@dataclass(frozen=True)
class Schedule:
    """All steps of a training: sample indices `[epoch, step, sample]`, learning rates `[epoch, step]`, and moves.

    `move(samples, draws)` moves samples by their `draws`, which are `[epoch, step, sample, ...]` here.
    """

    batches: IntArray
    lr: FloatArray
    draws: Tensor
    move: Callable[[Tensor, Tensor], Tensor]


class EpochTraining:
    """A model in training, by PyTorch's operations."""

    def __init__(
        self, model: nn.Module, samples: Tensor, targets: Tensor, schedule: Schedule, descent: Descent, bfloat16: bool
    ) -> None:
        """Train on samples `[sample, ...]` and probabilities `[sample, class]`; `bfloat16` rounds a GPU's factors."""
        device = samples.device
        self.model, self._samples, self._targets, self._descent = model, samples, targets, descent
        self._move, self._steps_in_epoch, self._bfloat16 = schedule.move, schedule.batches.shape[1], bfloat16
        self._batches = torch.from_numpy(schedule.batches).flatten(0, 1).to(device)
        self._draws, self._lr = schedule.draws.flatten(0, 1).to(device), torch.from_numpy(schedule.lr).flatten()
        self._rates = self._lr.to(device, samples.dtype)
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._velocities = [torch.zeros_like(weight) for weight in self._weights]
        self._next = torch.zeros(1, dtype=torch.int64, device=device)  # the number of the next step
        self._run: Callable[[], None] | None = None
        self._kept: list[dict[str, Tensor]] = []
        self._num_epochs = 0

    @property
    def can_run_beside_others(self) -> bool:
        """Whether another thread may train at the same time: all threads share PyTorch's generator."""
        return self._samples.device.type == "cpu" and not draws_at_random(self.model)

    def run_epoch(self) -> None:
        """Make the steps of the next epoch."""
        self._make_steps(slice(self._num_epochs * self._steps_in_epoch, (self._num_epochs + 1) * self._steps_in_epoch))
        self._num_epochs += 1

    def run_kept(self, epochs: int) -> None:
        """Run so many epochs, and remember the model after each of them."""
        for _ in range(epochs):
            self.run_epoch()
            self._kept.append(copy.deepcopy(self.model.state_dict()))

    def set_back(self, epochs: int) -> None:
        """Set the model back to what it was after so many epochs, all of which were kept."""
        self.model.load_state_dict(self._kept[epochs - 1])

    def _make_steps(self, steps: slice) -> None:
        if self._run is None:
            self._run = self._captured() or self._step
        for _ in range(steps.stop - steps.start):
            self._run()

    def _captured(self) -> Callable[[], None] | None:
        if self._samples.device.type == "cpu" or draws_at_random(self.model):
            return None
        return captured(self._step, [*self.model.state_dict().values(), *self._velocities, self._next])

    def _step(self) -> None:
        # Selected by a tensor: a captured graph makes the step that this tensor counts.
        batch, draws, lr = (each.index_select(0, self._next)[0] for each in (self._batches, self._draws, self._rates))
        with torch.autocast("cuda", torch.bfloat16, enabled=self._bfloat16, cache_enabled=False):
            logits = self.model(channels_last(self._move(self._samples[batch], draws)))
        targets = self._targets[batch]
        loss = -(targets * log_softmax(logits.to(targets.dtype), dim=1)).sum(dim=1).mean()
        self._descend(torch.autograd.grad(loss, self._weights, materialize_grads=True), lr)
        self._next.add_(1)

    @torch.no_grad()
    def _descend(self, gradients: tuple[Tensor, ...], lr: Tensor) -> None:
        descent = self._descent
        if descent.clip_norm is not None:
            norm = torch.stack(torch._foreach_norm(gradients)).norm()
            factor = (descent.clip_norm / (norm + _TINY_NORM)).clamp(max=1.0)
            gradients = tuple(gradient * factor for gradient in gradients)
        for weight, gradient, velocity in zip(self._weights, gradients, self._velocities, strict=True):
            decayed = gradient + descent.decay * weight
            velocity.mul_(descent.momentum).add_(decayed)
            weight.sub_(lr * (decayed + descent.momentum * velocity if descent.nesterov else velocity))


class FusedTraining(EpochTraining):
    """The same by the fused kernels, on a CPU in float32."""

    def __init__(
        self,
        model: nn.Module,
        form: NetworkForm,
        samples: Tensor,
        targets: Tensor,
        schedule: Schedule,
        descent: Descent,
    ) -> None:
        super().__init__(model, samples, targets, schedule, descent, bfloat16=False)
        from airdistill.learning.fused.learner import FusedLearner  # importing Numba is slow

        # The samples of a learner are not those of its `taught_steps`: one stands for all.
        self._learner = FusedLearner(model, form, samples[:1], np.zeros(1, np.int64), targets.shape[1], chunk=1)

    def _make_steps(self, steps: slice) -> None:
        batch = self._batches[steps].flatten()
        samples = self._move(self._samples[batch], self._draws[steps].flatten(0, 1))
        self._learner.taught_steps(samples, self._targets[batch], self._lr[steps].numpy(), self._descent)


def epoch_training(
    model: nn.Module,
    samples: Tensor,
    targets: Tensor,
    schedule: Schedule,
    descent: Descent,
    engine: Engine,
    bfloat16: bool = False,
) -> EpochTraining:
    """The training of this model with the engine's kernels; those of `engine.kernels` = "fused" only if possible."""
    kernels = "torch" if engine.kernels == "torch" else "auto"
    form = LearnerMaker(replace(engine, kernels=kernels)).form(model, tuple(samples.shape[1:]))
    if form is not None:
        return FusedTraining(model, form, samples, targets, schedule, descent)
    return EpochTraining(model, samples, targets, schedule, descent, bfloat16 and engine.device.type == "cuda")
