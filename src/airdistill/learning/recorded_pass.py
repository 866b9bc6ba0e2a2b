"""A forward pass over all samples, recorded: its predictions are sent, and an update can go on from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from airdistill.learning.given_slopes import slopes_from
from airdistill.learning.minibatch import recorded


class RecordedPass:
    """`forward` gives the logits of parameters, and `known_from` the knowledge in these.

    With `keeps` an update can go on from the pass. The results of each pass lie where those of the first one lay: what
    is recorded from `logits` on, and replayed after a pass, works on that pass.
    """

    def __init__(
        self,
        forward: Callable[[dict[str, Tensor]], Tensor],
        known_from: Callable[[Tensor], Tensor],
        parameters: dict[str, Tensor],
        keeps: bool,
    ) -> None:
        self._forward, self._known_from, self._keeps = forward, known_from, keeps
        # The same memory under other names: autograd would refuse a pass whose parameters a step has changed since,
        # and cannot know that the pass was made anew at the same place.
        self._leaves = {name: stack.data.requires_grad_(stack.requires_grad) for name, stack in parameters.items()}
        self._was_tried = False
        self._replay: Callable[[], None] | None = None
        self.logits = self.knowledge = torch.empty(0)

    def _pass(self) -> None:
        self.logits = torch.empty(0)  # the last pass must be gone, or autograd takes parts of it for those of this one
        with torch.set_grad_enabled(self._keeps):
            self.logits = self._forward(self._leaves)
        self.knowledge = self._known_from(self.logits.detach())

    def make(self) -> bool:
        """With the present parameters, without waiting for it; False where a pass cannot be recorded."""
        if not self._was_tried:
            self._was_tried, self._replay = True, recorded(self._pass, [])
        if self._replay is None:
            return False
        self._replay()
        return True

    def slopes(self, of_logits: Tensor) -> Sequence[Tensor]:
        """From those of `logits`, for the parameters that are trained."""
        trained = [leaf for leaf in self._leaves.values() if leaf.requires_grad]
        return slopes_from(self.logits, of_logits, trained, keep=True)
