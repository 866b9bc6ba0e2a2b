"""A forward pass over all samples, recorded: its predictions are sent, and an update can go on from it.

A minibatch step whose inputs lie at fixed places in memory, so that a GPU can be given all of it in one launch.

Launched one by one from Python, the many small operations of a step leave a GPU idle, the more so the more processes
share it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from airdistill.learning.gradients import Target, slopes_from


class CudaGraphPass:
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


logger = logging.getLogger(__name__)

_TRIALS = 3  # before recording, as PyTorch asks: libraries choose algorithms and get their memory


class MinibatchStep:
    """`step(batch, target, lr)` changes the `weights` and returns losses `[loss, device]`; a batch is the indices
    `[device, sample]`, of none where the step is on all samples. The losses of all steps since `begin` are summed in
    `losses`.

    On a GPU a step is recorded once, and then replayed on what was copied to its inputs' places.
    """

    def __init__(
        self,
        step: Callable[[Tensor, Target | None, Tensor], Tensor],
        batch_shape: tuple[int, int],
        target: Target | None,
        weights: Sequence[Tensor],
    ) -> None:
        self._step = step  # a recording reads the step's own tensors too, and does not keep them alive
        self._batch = torch.zeros(batch_shape, dtype=torch.int64, device=weights[0].device)
        self._target = None if target is None else Target(target.rows.clone(), target.known.clone())
        self._lr = weights[0].new_zeros(())
        self.losses = torch.zeros(2, batch_shape[0], dtype=torch.float64, device=weights[0].device)
        self._work = (recorded(self._work_once, weights) if weights[0].is_cuda else None) or self._work_once

    def _work_once(self) -> None:
        self.losses.add_(self._step(self._batch, self._target, self._lr))

    def begin(self, target: Target | None, lr: float) -> None:
        """What the next steps distil from, if the first target was any, and how far they go."""
        self._lr.fill_(lr)
        self.losses.zero_()
        if self._target is not None and target is not None:
            self._target.rows.copy_(target.rows)
            self._target.known.copy_(target.known)

    def make(self, batch: Tensor | None = None, lr: float | None = None) -> None:
        """The step on this batch; with a step size of its own, if given."""
        if lr is not None:
            self._lr.fill_(lr)
        if batch is not None:
            self._batch.copy_(batch)
        self._work()


def recorded(work: Callable[[], None], weights: Sequence[Tensor]) -> Callable[[], None] | None:
    """The same work as a CUDA graph, or None where it cannot be recorded; leaves the weights as they are."""
    before = [weight.detach().clone() for weight in weights]
    try:
        return _graph_of(work).replay
    except Exception as error:  # the user's model can do anything, and not everything can be recorded
        logger.info("steps are launched operation by operation, for they cannot be recorded: %s", error)
        return None
    finally:
        for weight, value in zip(weights, before, strict=True):
            weight.detach().copy_(value)


def _graph_of(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    # A recording that fails leaves its own stream current; this one is put back in any case.
    with torch.cuda.stream(torch.cuda.current_stream()):
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_TRIALS):
                work()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                work()
        except Exception:
            # It also leaves the GPU's random generator in the state of being recorded, in which it draws no more.
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed())
            generator.graphsafe_set_state(fresh)
            raise
    return graph
