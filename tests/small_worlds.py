"""Small datasets and scenarios to train on in milliseconds."""

import numpy as np

from airdistill.data.datasets import load_dataset
from airdistill.scenario import load


def write_dataset(path, num_classes=3, features=(4,), num_train=60, num_test=30, seed=0):
    """Gaussian blobs, one for each class, as an .npz of floats."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((num_classes, *features)) * 1.5

    def draw(count):
        labels = np.arange(count) % num_classes
        return centres[labels] + rng.standard_normal((count, *features)), labels

    (x_train, y_train), (x_test, y_test) = draw(num_train), draw(num_test)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return path


def write_few_digits(path, num_train=1500, num_test=200):
    """The first digits of MNIST, for tests that need its images but not ten thousand test samples."""
    mnist = load_dataset("mnist")
    x_test, y_test = mnist.x_test[:num_test], mnist.y_test[:num_test]
    np.savez(path, x_train=mnist.x_train[:num_train], y_train=mnist.y_train[:num_train], x_test=x_test, y_test=y_test)
    return path


def small_scenario(folder, *changes, base="quick"):
    """Three devices with softmax regressions on blobs; `changes` override everything set here.

    `learning.max_rounds` is small, because a plan searches for the optimal T even if the number of rounds is given.
    """
    path = folder / "blobs.npz"
    if not path.exists():
        write_dataset(path)
    return load(
        base,
        [
            "fleet.devices=3", f"data.dataset={path}", "data.samples_per_device=20", "learning.rounds=6",
            "learning.max_rounds=300", "learning.model=softmax_regression", "learning.local_epochs=0",
            "learning.initial_lr=0.1", *changes,
        ],
    )  # fmt: skip
