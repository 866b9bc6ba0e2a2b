"""A forward pass over all samples that stays in memory: its predictions are sent, and the update goes on from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from airdistill.learning.minibatch import recorded


class KeptPass:
    """`forward` gives the logits of parameters, and `knowledge` what is asked of these; on a GPU, recorded once.

    The results of each pass lie where those of the first one lay: what is recorded from `logits` on, and replayed after
    a pass, works on that pass.
    """

    def __init__(
        self,
        forward: Callable[[dict[str, Tensor]], Tensor],
        knowledge: Callable[[Tensor], Tensor],
        parameters: dict[str, Tensor],
    ) -> None:
        self._forward, self._knowledge = forward, knowledge
        # The same memory under other names: autograd would refuse a pass whose parameters a step has changed since,
        # and cannot know that the pass was made anew at the same place.
        self._leaves = {name: stack.data.requires_grad_(stack.requires_grad) for name, stack in parameters.items()}
        self._was_tried = False
        self._replay: Callable[[], None] | None = None
        self.logits = self._known = torch.empty(0)

    def _pass(self) -> None:
        self.logits = self._forward(self._leaves)
        self._known = self._knowledge(self.logits.detach())

    def knowledge(self) -> Tensor | None:
        """Makes the pass with the present parameters, and keeps it; None where a pass cannot be recorded."""
        if not self._was_tried:
            self._was_tried, self._replay = True, recorded(self._pass, [])
        if self._replay is None:
            return None
        self._replay()
        return self._known

    def slopes(self, loss: Tensor) -> Sequence[Tensor]:
        """Of a loss of `logits`, for those parameters that are trained."""
        trained = [leaf for leaf in self._leaves.values() if leaf.requires_grad]
        return torch.autograd.grad(loss, trained, retain_graph=True, materialize_grads=True)
