"""Your own model on your own data: how much does private distillation gain, and what does it guarantee?

Run it with `python examples/own_model_and_dataset.py [ROUNDS [FIELD=VALUE ...]]`. The data are made here: MNIST's
digits at half their size, 14 × 14 numbers from 0 to 1. Your samples may have any shape. It takes 35 s on two cores and
stores data and records under runs/.
"""

import sys
from pathlib import Path

import numpy as np
from torch import Tensor, nn

import airdistill as ad
from airdistill.data import load_dataset

DATA = Path("runs") / "half-size-digits.npz"


class WithSkip(nn.Module):
    """Any module that returns logits. It is made with the shape of a sample and the number of classes."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(int(np.prod(input_shape)), 48)
        self.second = nn.Linear(48, 48)
        self.out = nn.Linear(48, num_classes)

    def forward(self, samples: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.first(samples.flatten(1)))
        return self.out(hidden + nn.functional.gelu(self.second(hidden)))


def half_size(images: np.ndarray) -> np.ndarray:
    """Average each 2 × 2 pixels; returns `[sample, row, column]`."""
    blocks = images.reshape(len(images), 14, 2, 14, 2)
    return (blocks.mean(axis=(2, 4)) / 255).astype(np.float32)


def main(rounds: int, changes: list[str]) -> None:
    digits = load_dataset("mnist")
    DATA.parent.mkdir(exist_ok=True)
    train, test = half_size(digits.x_train.squeeze()), half_size(digits.x_test.squeeze())
    np.savez(DATA, x_train=train, y_train=digits.y_train, x_test=test, y_test=digits.y_test)
    own = [f"data.dataset={DATA}", "learning.model=own_model_and_dataset:WithSkip", "learning.initial_lr=0.3"]
    fleet = ["fleet.devices=100", "data.samples_per_device=60", "learning.batch_size=10", "learning.distill_weight=2"]
    scenario = ad.load("quick", [*fleet, *own, *changes])
    for scheme in ("local_only", "airdistill"):
        record = ad.run(scenario, scheme, rounds)
        accuracy, certificate = record.summary["accuracy"], ad.certify(record.folder)
        print(f"{scheme}, {rounds} rounds, {scenario.num_devices} devices:")
        print(f"  accuracy {accuracy['mean']:.1%} (mean over devices, worst {accuracy['worst']:.1%})")
        print(f"  whole-device ε spent {record.summary['epsilon_spent']:.3g}; {certificate.verdict_in_words}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30, sys.argv[2:])
