"""Optimisers with a state, which is part of a device: SGD with momentum, and AdamW."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_MOMENTUM = 0.9
# As Loshchilov and Hutter (ICLR 2019) and PyTorch have them.
_BETAS, _EPSILON, _DECAY = (0.9, 0.999), 1e-8, 0.01
PLAIN = "sgd"  # has no state: learners make its steps themselves
_SLOTS = {"momentum": ("velocity",), "adamw": ("first", "second")}
_STEPS = "steps"


class Optimiser:
    """The state of one device, or of all stacked devices along a first axis; zeros are the state before any step.

    `state` has the tensors by name, such as `first.0` for the first moment of weight 0, and `steps`, the number of
    steps so far. Steps change them in place, because a captured CUDA graph reads fixed addresses.
    """

    def __init__(self, name: str, state: dict[str, Tensor]) -> None:
        self.name, self.state = name, state

    @classmethod
    def fresh(cls, name: str, weights: Sequence[Tensor]) -> Optimiser:
        """The state of one device before its first step."""
        slots = {f"{slot}.{n}": torch.zeros_like(each) for slot in _SLOTS[name] for n, each in enumerate(weights)}
        steps = torch.zeros((), dtype=torch.float64, device=weights[0].device)
        return cls(name, {**slots, _STEPS: steps})

    @classmethod
    def stacked(cls, several: Sequence[Optimiser]) -> Optimiser:
        """One state for all devices; theirs share memory with it from now on."""
        state = {
            key: torch.stack([each.state[key].clone(memory_format=torch.contiguous_format) for each in several])
            for key in several[0].state
        }
        for device, each in enumerate(several):
            each.state = {key: tensor[device] for key, tensor in state.items()}
        return cls(several[0].name, state)

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over a state; an empty one is that before the first step."""
        for key, tensor in self.state.items():
            tensor.copy_(state[key] if state else torch.zeros_like(tensor))

    @torch.no_grad()
    def step(self, weights: Sequence[Tensor], gradients: Sequence[Tensor], lr: float | Tensor) -> None:
        """One step on the weights, in place."""
        self.state[_STEPS].add_(1)
        for number, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            slots = [self.state[f"{slot}.{number}"] for slot in _SLOTS[self.name]]
            if self.name == "momentum":
                weight.sub_(lr * slots[0].mul_(_MOMENTUM).add_(gradient))
            else:
                self._adamw(weight, gradient, lr, *slots)

    def _adamw(self, weight: Tensor, gradient: Tensor, lr: float | Tensor, first: Tensor, second: Tensor) -> None:
        first.mul_(_BETAS[0]).add_(gradient, alpha=1 - _BETAS[0])
        second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        # Stacked devices have one count each.
        steps = self.state[_STEPS]
        steps = steps.reshape(*steps.shape, *(1 for _ in range(weight.ndim - steps.ndim)))
        biases = [(1 - beta**steps).to(weight.dtype) for beta in _BETAS]
        weight.mul_(1 - lr * _DECAY)
        weight.sub_(lr * (first / biases[0]) / ((second / biases[1]).sqrt() + _EPSILON))
