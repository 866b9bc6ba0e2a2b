"""Forward passes and gradient steps captured as CUDA graphs: one launch replays all of their operations.

Launched one by one from Python, the many small operations of a step leave a GPU idle, the more so the more processes
share it. A captured graph reads its inputs from fixed addresses, and so new inputs are copied there before a replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from airdistill.learning.gradients import Target, parameter_gradients

logger = logging.getLogger(__name__)

_WARM_UPS = 3  # before capture, as PyTorch requires: libraries choose algorithms and allocate memory


class CudaGraphPass:
    """A forward pass over all samples: `logits_of` maps parameters to logits, `knowledge_of` logits to class means.

    With `keeps`, the pass keeps its activations, and an update can backpropagate through it. Every replay writes to
    the tensors of the first pass. A graph that was captured with `logits` as input can therefore be replayed after it.
    """

    def __init__(
        self,
        logits_of: Callable[[dict[str, Tensor]], Tensor],
        knowledge_of: Callable[[Tensor], Tensor],
        parameters: dict[str, Tensor],
        keeps: bool,
    ) -> None:
        self._logits_of, self._knowledge_of, self._keeps = logits_of, knowledge_of, keeps
        # Other tensors on the same memory: autograd would reject a backward pass whose parameters have changed since
        # the forward pass, because it does not see that the forward pass was replayed.
        self._leaves = {name: stack.data.requires_grad_(stack.requires_grad) for name, stack in parameters.items()}
        self._was_tried = False
        self._replay: Callable[[], None] | None = None
        self.logits = self.knowledge = torch.empty(0)

    def _pass(self) -> None:
        self.logits = torch.empty(0)  # free the last pass first, or autograd reuses parts of it for this one
        with torch.set_grad_enabled(self._keeps):
            self.logits = self._logits_of(self._leaves)
        self.knowledge = self._knowledge_of(self.logits.detach())

    def run(self) -> bool:
        """Launch the pass with the current parameters, without waiting; False if it cannot be captured."""
        if not self._was_tried:
            self._was_tried, self._replay = True, captured(self._pass, [])
        if self._replay is None:
            return False
        self._replay()
        return True

    def gradients(self, logit_gradients: Tensor) -> Sequence[Tensor]:
        """Backpropagate gradients of `logits` to the trainable parameters."""
        trained = [leaf for leaf in self._leaves.values() if leaf.requires_grad]
        return parameter_gradients(self.logits, logit_gradients, trained, keep=True)


class MinibatchStep:
    """`step(batch, target, lr)` updates the `weights` in place and returns losses `[loss, device]`.

    A batch is an array of sample indices `[device, sample]`; it is empty if the step uses all samples. `losses` is the
    sum over all steps since `begin`. On a GPU the step is captured once, and then replayed.
    """

    def __init__(
        self,
        step: Callable[[Tensor, Target | None, Tensor], Tensor],
        batch_shape: tuple[int, int],
        target: Target | None,
        weights: Sequence[Tensor],
    ) -> None:
        self._step = step  # keeps the tensors alive that the captured graph reads
        self._batch = torch.zeros(batch_shape, dtype=torch.int64, device=weights[0].device)
        self._target = None if target is None else Target(target.rows.clone(), target.known.clone())
        self._lr = weights[0].new_zeros(())
        self.losses = torch.zeros(2, batch_shape[0], dtype=torch.float64, device=weights[0].device)
        self._run = (captured(self._run_eagerly, weights) if weights[0].is_cuda else None) or self._run_eagerly

    def _run_eagerly(self) -> None:
        self.losses.add_(self._step(self._batch, self._target, self._lr))

    def begin(self, target: Target | None, lr: float) -> None:
        """Set the learning rate and the target of the next steps, and reset the losses.

        A step that was built without a target ignores it.
        """
        self._lr.fill_(lr)
        self.losses.zero_()
        if self._target is not None and target is not None:
            self._target.rows.copy_(target.rows)
            self._target.known.copy_(target.known)

    def run(self, batch: Tensor | None = None, lr: float | None = None) -> None:
        """Make one step on this batch, with this learning rate if given."""
        if lr is not None:
            self._lr.fill_(lr)
        if batch is not None:
            self._batch.copy_(batch)
        self._run()


def captured(work: Callable[[], None], weights: Sequence[Tensor]) -> Callable[[], None] | None:
    """The replay of `work` as a CUDA graph, or None if it cannot be captured; the weights are left unchanged."""
    before = [weight.detach().clone() for weight in weights]
    try:
        return _capture(work).replay
    except Exception as error:  # a user's model may do anything, and some operations cannot be captured
        logger.info("steps are launched operation by operation, because they cannot be captured: %s", error)
        return None
    finally:
        for weight, value in zip(weights, before, strict=True):
            weight.detach().copy_(value)


def _capture(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    # A failed capture leaves its own stream current; this context restores the caller's.
    with torch.cuda.stream(torch.cuda.current_stream()):
        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(_WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                work()
        except Exception:
            # A failed capture also leaves the GPU's random generator in capture mode, in which it cannot draw.
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed())
            generator.graphsafe_set_state(fresh)
            raise
    return graph
