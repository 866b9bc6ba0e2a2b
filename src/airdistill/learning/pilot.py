"""Estimates of the constants of the convergence bound, L1, L2, S and f_max, from a short pilot run.

Each constant is a supremum over all weights. A run visits only some of them, and so its largest value is a lower bound
of the constant. Networks with ReLU do not have a finite L1, because their gradient is discontinuous. For them, secants
measure the change of the gradient over the distances that training covers.
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

from airdistill.learning.clipping import check_independent_samples, gradient_norms, trainable
from airdistill.learning.fleet import LearningFleet
from airdistill.learning.gradients import Target
from airdistill.learning.learner import Learner, Losses, distillations

_PROBES = 4  # additional secants per round
_MIN_SECANT = 1e-4  # relative to the norm of the weights; rounding dominates shorter ones
_NORM_CHUNK = 120  # samples, as for clipping
_JACOBIAN_SAMPLES = 60  # of each device in a round
_POWER_ITERATIONS = 12  # few outputs: power iteration converges quickly
_MAX_ELEMENTS = 1 << 24  # of ∂G/∂θ in memory at once


@dataclass(frozen=True)
class MeasuredConstants:
    """The largest observed values of L1, L2, S and f_max, under their names in a scenario.

    `path_lipschitz` is L1 along the training trajectory only, where the gradient seldom changes fastest.
    """

    grad_lipschitz: float = 0.0
    model_lipschitz: float = 0.0
    grad_norm_bound: float = 0.0
    loss_bound: float = 0.0
    path_lipschitz: float = 0.0

    @classmethod
    def of(cls, several: Iterable[MeasuredConstants]) -> MeasuredConstants:
        """The largest of several, field by field."""
        values = list(several)
        return cls(*(max(getattr(each, field.name) for each in values) for field in fields(cls)))


@dataclass(frozen=True)
class _Point:
    """A device's weights, and ∇F at them."""

    weights: Tensor
    gradient: Tensor


class ConstantEstimator:
    """Measures the constants of one device along its run. F is its loss, eq. (1), with the target it learns from.

    Measurements leave the weights unchanged. Random layers such as dropout are in evaluation mode.
    """

    def __init__(self, learner: Learner, distill_weight: float, rng: np.random.Generator) -> None:
        check_independent_samples(learner.model, learner.samples_and_labels()[0])
        self._learner, self._distill_weight, self._rng = learner, distill_weight, rng
        self._target: Target | None = None
        self._start: _Point | None = None
        self._steepest: Tensor | None = None  # the direction of the last power iteration
        self.largest = MeasuredConstants()

    def before_update(self, target: Target | None) -> None:
        """Measure F, ∇F, per-sample gradients, and ∂G/∂θ for some samples, at the start of a round."""
        self._target = target if self._distill_weight else None
        with _in_evaluation(self._learner.model):
            self._start = self._point()
            self._record(
                MeasuredConstants(
                    grad_norm_bound=self._largest_gradient(), model_lipschitz=self._largest_jacobian_norm()
                )
            )

    def after_update(self) -> None:
        """Measure the change of ∇F over the round, for the same target, and F at its end."""
        assert self._start is not None
        with _in_evaluation(self._learner.model):
            end = self._point()
            on_path = self._path_secant(self._start, end)
            self._record(MeasuredConstants(grad_lipschitz=on_path, path_lipschitz=on_path))
            for ratio in self._steepest_secants(self._start, end):
                self._record(MeasuredConstants(grad_lipschitz=ratio))
            self._move_to(end.weights)

    def _record(self, values: MeasuredConstants) -> None:
        self.largest = MeasuredConstants.of([self.largest, values])

    def _point(self) -> _Point:
        gradient, losses = self._learner.gradient(self._target, self._distill_weight)
        self._record(MeasuredConstants(loss_bound=losses.training + self._distill_weight * losses.distillation))
        weights = torch.cat([parameter.detach().flatten() for parameter in trainable(self._learner.model)])
        return _Point(weights, gradient)

    def _largest_gradient(self) -> float:
        samples, labels = self._learner.samples_and_labels()
        chunks = zip(torch.split(samples, _NORM_CHUNK), torch.split(labels, _NORM_CHUNK), strict=True)
        return max(float(gradient_norms(self._learner.model, *chunk, self._losses_of).max()) for chunk in chunks)

    def _largest_jacobian_norm(self) -> float:
        """The largest Jacobian norm over randomly selected samples."""
        samples, labels = self._learner.samples_and_labels()
        chosen = self._rng.permutation(len(labels))[:_JACOBIAN_SAMPLES]
        drawn = self._rng.standard_normal((len(chosen), self._learner.num_classes))
        selected = samples[torch.from_numpy(chosen).to(samples.device)]
        outputs = torch.from_numpy(drawn).to(selected.device, selected.dtype)
        return float(jacobian_norms(self._learner.model, selected, outputs).max())

    def _losses_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of eq. (1) of every sample, `[sample]`."""
        training = cross_entropy(logits, labels, reduction="none")
        if self._target is None:
            return training
        return training + self._distill_weight * distillations(logits, labels, self._target)

    def _path_secant(self, start: _Point, end: _Point) -> float:
        """‖∇F(θ')−∇F(θ)‖/‖θ'−θ‖ between start and end of a round."""
        distance = float((end.weights - start.weights).norm())
        return float((end.gradient - start.gradient).norm()) / distance if distance > _min_distance(start) else 0.0

    def _steepest_secants(self, start: _Point, end: _Point) -> Iterator[float]:
        """Secants of the same start and length along directions in which ∇F changes faster and faster.

        ∇F changes fastest along the top eigenvector of the Hessian. The change of ∇F along a direction is closer to
        that eigenvector than the direction itself: this is power iteration, and it continues from round to round.
        """
        distance = max(float((end.weights - start.weights).norm()), _min_distance(start))
        direction = end.gradient - start.gradient if self._steepest is None else self._steepest
        for _ in range(_PROBES):
            length = float(direction.norm())
            if length == 0 or distance == 0:  # ∇F is constant here
                self._steepest = None
                return
            self._move_to(start.weights + (distance / length) * direction)
            gradient, _ = self._learner.gradient(self._target, self._distill_weight)
            direction = self._steepest = gradient - start.gradient
            yield float(direction.norm()) / distance

    @torch.no_grad()
    def _move_to(self, weights: Tensor) -> None:
        parameters = trainable(self._learner.model)
        parts = torch.split(weights, [parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.copy_(part.reshape(parameter.shape))


def _min_distance(start: _Point) -> float:
    return _MIN_SECANT * float(start.weights.norm())


def measured_round(
    fleet: LearningFleet,
    estimators: list[ConstantEstimator],
    target: Target | None,
    learn: Callable[[], Sequence[Losses]],
) -> Sequence[Losses]:
    """Measure before and after the devices learn from the target; return the losses of `learn`."""
    fleet.engine.for_each(lambda estimator: estimator.before_update(target), estimators)
    losses = learn()
    fleet.engine.for_each(ConstantEstimator.after_update, estimators)
    return losses


def jacobian_norms(model: nn.Module, samples: Tensor, outputs: Tensor) -> Tensor:
    """The spectral norm of ∂G/∂θ for every sample, `[sample]`, G the softmax of the model's output.

    By power iteration on (∂G/∂θ)(∂G/∂θ)ᵀ from random vectors `outputs` `[sample, class]`, which never exceeds the norm.
    """
    trained = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}
    chunk = max(1, _MAX_ELEMENTS // sum(tensor.numel() for tensor in trained.values()))
    pairs = zip(torch.split(samples, chunk), torch.split(outputs, chunk), strict=True)
    return torch.cat([_chunk_norms(model, trained, *pair) for pair in pairs])


@torch.no_grad()
def _chunk_norms(model: nn.Module, trained: dict[str, Tensor], samples: Tensor, outputs: Tensor) -> Tensor:
    def predict(weights: dict[str, Tensor], sample: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, weights, (sample[None],))
        return logits.softmax(dim=1).squeeze(0)

    def transposed_product(sample: Tensor, output: Tensor) -> dict[str, Tensor]:
        """(∂G/∂θ)ᵀ times a vector of outputs."""
        product: dict[str, Tensor] = vjp(lambda weights: predict(weights, sample), trained)[1](output)[0]
        return product

    def both_products(sample: Tensor, output: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """v = (∂G/∂θ)ᵀu and (∂G/∂θ)v.

        The second is a vjp of a vjp, because operations of a user's model may lack a forward-mode derivative.
        """
        direction, product, *_ = vjp(lambda vector: transposed_product(sample, vector), output)
        return direction, product(direction)[0]

    smallest = torch.finfo(outputs.dtype).tiny  # avoids 0/0 if ∂G/∂θ is zero
    for _ in range(_POWER_ITERATIONS):
        outputs = outputs / outputs.norm(dim=1, keepdim=True).clamp_min(smallest)
        directions, outputs = vmap(both_products)(samples, outputs)
    squares = [each.flatten(1).square().sum(dim=1) for each in directions.values()]
    return torch.stack(squares).sum(dim=0).sqrt()


@contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, and back into training mode afterwards."""
    model.eval()
    try:
        yield
    finally:
        model.train()
