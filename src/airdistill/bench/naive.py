"""The round as a typical repository writes it: to be measured against, never to be run for its result.

A Python loop over models, DataLoader batches, one pass for the knowledge and one for the gradient or for steps.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from airdistill.arrays import FloatArray

_BATCH = 64


class NaiveDevice:
    """A model and its DataLoaders: in order for full batches, shuffled for minibatches of `batch_size`."""

    def __init__(self, model: nn.Module, samples: Tensor, labels: Tensor, batch_size: int) -> None:
        self.model = model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.num_samples = len(labels)
        dataset = TensorDataset(samples.contiguous(), labels)
        self.loader = DataLoader(dataset, batch_size=_BATCH)
        self.shuffled = DataLoader(dataset, batch_size=batch_size, shuffle=True)

    @torch.no_grad()
    def knowledge(self, num_classes: int) -> Tensor:
        sums, counts = torch.zeros(num_classes, num_classes), torch.zeros(num_classes)
        for samples, labels in self.loader:
            predictions = torch.softmax(self.model(samples), dim=1)
            for klass in range(num_classes):
                sums[klass] += predictions[labels == klass].sum(dim=0)
                counts[klass] += (labels == klass).sum()
        return sums / counts[:, None]

    def step(self, target: Tensor, lr: float, distill_weight: float) -> None:
        """One full-batch step of eq. (4), its gradient gathered over batches."""
        optimiser = torch.optim.SGD(self.model.parameters(), lr=lr)
        optimiser.zero_grad()
        for samples, labels in self.loader:
            loss = self._loss(samples, labels, target, distill_weight)
            torch.autograd.backward(loss * len(labels) / self.num_samples)
        optimiser.step()

    def epoch(self, target: Tensor, lr: float, distill_weight: float) -> None:
        """One pass of minibatch steps."""
        optimiser = torch.optim.SGD(self.model.parameters(), lr=lr)
        for samples, labels in self.shuffled:
            optimiser.zero_grad()
            torch.autograd.backward(self._loss(samples, labels, target, distill_weight))
            optimiser.step()

    def _loss(self, samples: Tensor, labels: Tensor, target: Tensor, distill_weight: float) -> Tensor:
        logits = self.model(samples)
        distance = ((torch.softmax(logits, dim=1) - target[labels]) ** 2).sum(dim=1).mean()
        return nn.functional.cross_entropy(logits, labels) + distill_weight * distance


def naive_round(
    devices: list[NaiveDevice], weights: FloatArray, lr: float, distill_weight: float, minibatches: bool
) -> None:
    """Knowledge, its weighted mean, and everybody's step or steps."""
    num_classes = weights.shape[1]
    knowledge = np.stack([device.knowledge(num_classes).numpy() for device in devices])
    target = torch.from_numpy(np.einsum("ik,ikd->kd", weights, knowledge)).to(torch.float32)
    for device in devices:
        learn = device.epoch if minibatches else device.step
        learn(target, lr, distill_weight)
