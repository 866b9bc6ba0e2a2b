"""Per-sample clipping against a loop over samples.

    python benchmarks/clipping.py [SAMPLES] [REPEATS]

All variants clip the gradients of the paper's network on MNIST samples to norm 1, with one thread. The time is that of
the fastest of several runs.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from airdistill.data import load_dataset
from airdistill.learning.fleet import Engine
from airdistill.learning.learner_maker import LearnerMaker
from airdistill.learning.models import build_model
from airdistill.learning.samples import to_tensor
from airdistill.runs.options import keep_freed_memory

CLIP_NORM = 1.0


def naive(model: nn.Module, samples: Tensor, labels: Tensor) -> Tensor:
    """One backward pass per sample."""
    total = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    for sample, label in zip(samples, labels, strict=True):
        loss = nn.functional.cross_entropy(model(sample[None]), label[None])
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])
        total += gradient * min(1.0, CLIP_NORM / float(gradient.norm()))
    return total / len(labels)


def fastest(work: Callable[[], Tensor], repeats: int) -> tuple[float, Tensor]:
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - started)
    return min(seconds), result


def measure(num_samples: int, repeats: int) -> tuple[float, dict[str, tuple[float, float]]]:
    """Seconds of the loop, and for each kernel its seconds and relative deviation from the loop."""
    torch.set_num_threads(1)
    keep_freed_memory()
    mnist = load_dataset("mnist")
    samples, labels = to_tensor(mnist.x_train[:num_samples], torch.float32, torch.device("cpu")), mnist.y_train
    learners = {}
    for kernels in ("torch", "fused"):
        model = build_model("paper_cnn", (1, 28, 28), 10, np.random.default_rng(0), torch.float32)
        learners[kernels] = LearnerMaker(Engine(kernels=kernels)).learner(model, samples, labels[:num_samples], 10)
    general = learners["torch"]
    slow, expected = fastest(lambda: naive(general.model, *general.samples_and_labels()), repeats)
    ours = {}
    for kernels, learner in learners.items():
        fast, found = fastest(lambda one=learner: one.clipped_gradient(CLIP_NORM)[0], 3 * repeats)
        ours[kernels] = fast, float((found - expected).norm() / expected.norm())
    return slow, ours


def main(num_samples: int = 1200, repeats: int = 3) -> None:
    slow, ours = measure(num_samples, repeats)
    print(f"{num_samples} samples, one thread: a loop over samples {slow:.3f} s")
    for kernels, (fast, error) in ours.items():
        print(f"{kernels}: {fast:.3f} s, {slow / fast:.1f} times as fast; relative deviation {error:.1e}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
