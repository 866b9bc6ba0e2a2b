"""The constants of the convergence bound, L1, L2, S and f_max, as a short run shows them.

Each is a supremum over all weights, and a run visits a few of them: what it shows is the largest seen, which is no more
than the true constant. Networks with ReLU have no finite L1 at all, for their gradient jumps; there secants tell how
much it changes over the distances that training goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.functional import cross_entropy

from airdistill.learning.clipping import check_samples_apart, gradient_norms, trainable
from airdistill.learning.fleet import LearningFleet
from airdistill.learning.gradients import Target
from airdistill.learning.learner import Learner, Losses, distillations

_PROBES = 4  # secants a round besides the run's own
_SHORTEST_SECANT = 1e-4  # of the length of all weights; over less, rounding would decide
_NORMS_AT_ONCE = 120  # samples, as for clipping
_SLOPE_SAMPLES = 60  # of each device in a round
_SLOPE_ITERATIONS = 12  # outputs are few, so that a handful settle it
_HELD_NUMBERS = 1 << 24  # of ∂G/∂θ at once


@dataclass(frozen=True)
class Largest:
    """The largest seen of L1, L2, S and f_max, by their names in a scenario.

    `path_lipschitz` is L1 along the run's own way alone: a run seldom goes where its gradient changes most.
    """

    grad_lipschitz: float = 0.0
    model_lipschitz: float = 0.0
    grad_norm_bound: float = 0.0
    loss_bound: float = 0.0
    path_lipschitz: float = 0.0

    @classmethod
    def of(cls, several: Iterable[Largest]) -> Largest:
        found = list(several)
        return cls(*(max(getattr(each, field.name) for each in found) for field in fields(cls)))


@dataclass(frozen=True)
class _Point:
    """Where a device stands, and ∇F there."""

    weights: Tensor
    gradient: Tensor


class Watch:
    """Follows one device along its run. F is the device's whole loss, eq. (1), with the target that it learns from.

    Measuring leaves the weights as they are. Layers that draw at random are measured as in evaluation, without draws.
    """

    def __init__(self, learner: Learner, distill_weight: float, rng: np.random.Generator) -> None:
        check_samples_apart(learner.model, learner.samples_and_labels()[0])
        self._learner, self._distill_weight, self._rng = learner, distill_weight, rng
        self._target: Target | None = None
        self._start: _Point | None = None
        self._steepest: Tensor | None = None  # the direction along which ∇F changed most, last time
        self.largest = Largest()

    def before_update(self, target: Target | None) -> None:
        """Where a round begins: F, ∇F, every sample's own gradient, and ∂G/∂θ for some samples."""
        self._target = target if self._distill_weight else None
        with _in_evaluation(self._learner.model):
            self._start = self._point()
            self._see(Largest(grad_norm_bound=self._largest_gradient(), model_lipschitz=self._largest_slope()))

    def after_update(self) -> None:
        """How much ∇F has changed on the way, for the same target; and F where the round ends."""
        assert self._start is not None
        with _in_evaluation(self._learner.model):
            end = self._point()
            way = self._own_secant(self._start, end)
            self._see(Largest(grad_lipschitz=way, path_lipschitz=way))
            for ratio in self._steeper_secants(self._start, end):
                self._see(Largest(grad_lipschitz=ratio))
            self._move_to(end.weights)

    def _see(self, seen: Largest) -> None:
        self.largest = Largest.of([self.largest, seen])

    def _point(self) -> _Point:
        gradient, losses = self._learner.gradient(self._target, self._distill_weight)
        self._see(Largest(loss_bound=losses.training + self._distill_weight * losses.distillation))
        weights = torch.cat([parameter.detach().flatten() for parameter in trainable(self._learner.model)])
        return _Point(weights, gradient)

    def _largest_gradient(self) -> float:
        samples, labels = self._learner.samples_and_labels()
        chunks = zip(torch.split(samples, _NORMS_AT_ONCE), torch.split(labels, _NORMS_AT_ONCE), strict=True)
        return max(float(gradient_norms(self._learner.model, *chunk, self._losses_of).max()) for chunk in chunks)

    def _largest_slope(self) -> float:
        """Of new samples each time."""
        samples, labels = self._learner.samples_and_labels()
        chosen = self._rng.permutation(len(labels))[:_SLOPE_SAMPLES]
        drawn = self._rng.standard_normal((len(chosen), self._learner.num_classes))
        some = samples[torch.from_numpy(chosen).to(samples.device)]
        outputs = torch.from_numpy(drawn).to(some.device, some.dtype)
        return float(output_slopes(self._learner.model, some, outputs).max())

    def _losses_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Eq. (1) of every sample by itself."""
        training = cross_entropy(logits, labels, reduction="none")
        if self._target is None:
            return training
        return training + self._distill_weight * distillations(logits, labels, self._target)

    def _own_secant(self, start: _Point, end: _Point) -> float:
        """‖∇F(θ')−∇F(θ)‖/‖θ'−θ‖ of the round's own way."""
        way = float((end.weights - start.weights).norm())
        return float((end.gradient - start.gradient).norm()) / way if way > _shortest_way(start) else 0.0

    def _steeper_secants(self, start: _Point, end: _Point) -> Iterator[float]:
        """The same for ways from the same place, as long, in steeper and steeper directions.

        A gradient changes most along the top eigenvector of its derivative, and the change is nearer to that than the
        way along which it was found: this is power iteration, and it goes on from round to round.
        """
        way = max(float((end.weights - start.weights).norm()), _shortest_way(start))
        direction = end.gradient - start.gradient if self._steepest is None else self._steepest
        for _ in range(_PROBES):
            length = float(direction.norm())
            if length == 0 or way == 0:  # a flat place: nothing to follow
                self._steepest = None
                return
            self._move_to(start.weights + (way / length) * direction)
            gradient, _ = self._learner.gradient(self._target, self._distill_weight)
            direction = self._steepest = gradient - start.gradient
            yield float(direction.norm()) / way

    @torch.no_grad()
    def _move_to(self, weights: Tensor) -> None:
        parameters = trainable(self._learner.model)
        parts = torch.split(weights, [parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.copy_(part.reshape(parameter.shape))


def _shortest_way(start: _Point) -> float:
    return _SHORTEST_SECANT * float(start.weights.norm())


def watched_round(
    fleet: LearningFleet, watches: list[Watch], target: Target | None, learn: Callable[[], Sequence[Losses]]
) -> Sequence[Losses]:
    """Measures where the devices stand, lets them learn from the target, and measures how far they have come."""
    fleet.engine.for_each(lambda watch: watch.before_update(target), watches)
    losses = learn()
    fleet.engine.for_each(Watch.after_update, watches)
    return losses


def output_slopes(model: nn.Module, samples: Tensor, outputs: Tensor) -> Tensor:
    """The spectral norm of ∂G/∂θ for every sample, `[sample]`, G the softmax of the model's output.

    By power iteration on (∂G/∂θ)(∂G/∂θ)ᵀ from random vectors `outputs` `[sample, class]`: never more than the norm.
    """
    moving = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}
    at_once = max(1, _HELD_NUMBERS // sum(tensor.numel() for tensor in moving.values()))
    pairs = zip(torch.split(samples, at_once), torch.split(outputs, at_once), strict=True)
    return torch.cat([_slopes(model, moving, *pair) for pair in pairs])


@torch.no_grad()
def _slopes(model: nn.Module, moving: dict[str, Tensor], samples: Tensor, outputs: Tensor) -> Tensor:
    def predict(weights: dict[str, Tensor], sample: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, weights, (sample[None],))
        return logits.softmax(dim=1).squeeze(0)

    def pull(sample: Tensor, output: Tensor) -> dict[str, Tensor]:
        """(∂G/∂θ)ᵀ times a vector of outputs."""
        transposed: dict[str, Tensor] = vjp(lambda weights: predict(weights, sample), moving)[1](output)[0]
        return transposed

    def pull_and_push(sample: Tensor, output: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """(∂G/∂θ)ᵀu, and ∂G/∂θ times that: as the transpose of the transpose, for which no operation of a user's model
        needs a forward derivative."""
        direction, push, *_ = vjp(lambda vector: pull(sample, vector), output)
        return direction, push(direction)[0]

    smallest = torch.finfo(outputs.dtype).tiny  # where G does not move at all
    for _ in range(_SLOPE_ITERATIONS):
        outputs = outputs / outputs.norm(dim=1, keepdim=True).clamp_min(smallest)
        directions, outputs = vmap(pull_and_push)(samples, outputs)
    squares = [each.flatten(1).square().sum(dim=1) for each in directions.values()]
    return torch.stack(squares).sum(dim=0).sqrt()


@contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    """Without random draws, and back to training afterwards."""
    model.eval()
    try:
        yield
    finally:
        model.train()
