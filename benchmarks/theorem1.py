"""Theorem 1 for a problem that satisfies its assumptions: softmax regression, full batch, with analytic L1, L2, S.

    python benchmarks/theorem1.py [ROUNDS] [RUNS]

For a linear layer on inputs of norm at most R (the bias is an input of 1):
  L2 = R/2, because the Jacobian of the softmax has a norm of at most 1/2;
  S  = √2 R (1 + γ), from ‖p − onehot‖ ≤ √2 and 2γ·½·√2;
  L1 = R² (½ + 2γ(¼ + 1.5·√2)), from the Hessian of the cross-entropy, the square of that Jacobian, and its own
       derivative, at most 1.5, times ‖p − q‖ ≤ √2.
f_max is the largest cross-entropy of a device plus 2γ, because ‖p − q‖² ≤ 2. The left side of (13) is the mean of
‖∇F_i(θ_t)‖² with weights ∝ √t, averaged over runs.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import airdistill as ad
from airdistill.data import load_dataset
from airdistill.learning.gradients import Target
from airdistill.planning.convergence.gap import LearningConstants, convergence_gap, effective_noise
from airdistill.radio.superposition import ideal_knowledge
from airdistill.runs.options import RunOptions
from airdistill.runs.simulation import Simulation
from airdistill.schemes import load_scheme

GAMMA, NUM_CLASSES, FEATURES = 1.0, 3, 4


@dataclass(frozen=True)
class Outcome:
    """Device means: the measured squared gradient norm, Ω, and the whole right side of (13)."""

    measured: float
    gap: float
    bound: float


def write_blobs(path: Path, rng: np.random.Generator) -> None:
    """Write inputs in a ball of radius 1; with the bias, R = √2."""
    centres = rng.standard_normal((NUM_CLASSES, FEATURES))

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(count) % NUM_CLASSES
        samples = centres[labels] + 0.7 * rng.standard_normal((count, FEATURES))
        return samples / np.maximum(1, np.linalg.norm(samples, axis=1, keepdims=True)), labels

    (x_train, y_train), (x_test, y_test) = draw(300), draw(60)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def constants_for(radius: float) -> dict[str, float]:
    return {
        "grad_lipschitz": radius**2 * (0.5 + 2 * GAMMA * (0.25 + 1.5 * math.sqrt(2))),
        "model_lipschitz": radius / 2,
        "grad_norm_bound": math.sqrt(2) * radius * (1 + GAMMA),
    }


def simulate(path: Path, seed: int, num_rounds: int) -> tuple[np.ndarray, np.ndarray, float, LearningConstants]:
    """Squared gradient norms and Φ2 `[round, device]` of one run, the largest loss, and the constants."""
    known = constants_for(math.sqrt(1 + np.linalg.norm(load_dataset(str(path)).x_train, axis=1).max() ** 2))
    scenario = ad.load(
        "quick",
        [
            f"seed={seed}", "fleet.devices=5", f"data.dataset={path}", "data.samples_per_device=60",
            "learning.model=softmax_regression", "learning.local_epochs=0", f"learning.rounds={num_rounds}",
            f"learning.distill_weight={GAMMA}", f"learning.initial_lr={1 / known['grad_lipschitz']}",
            *(f"constants.{name}={value}" for name, value in known.items()),
        ],
    )  # fmt: skip
    simulation = Simulation(ad.plan(scenario, "ota_fd"), load_scheme("ota_fd"), RunOptions(dtype="float64", threads=1))
    counts, fleet = simulation.plan.fleet.class_counts, simulation.fleet
    norms, noises, largest = [], [], 0.0
    for _ in range(num_rounds):
        ideal = ideal_knowledge(counts, fleet.knowledge(for_full_batch=False))
        target = Target.of(ideal, torch.float64, torch.device("cpu"))
        gradients = [learner.gradient(target, GAMMA)[0] for learner in fleet.learners]
        norms.append([float((gradient**2).sum()) for gradient in gradients])
        for learner in fleet.learners:
            samples, labels = learner.samples_and_labels()
            loss = torch.nn.functional.cross_entropy(learner.model(samples), labels).item()
            largest = max(largest, loss + 2 * GAMMA)
        record = simulation.advance()
        noises.append(effective_noise(counts, np.array(record["predicted_noise_var"])))
    return np.array(norms), np.array(noises), largest, LearningConstants.of_scenario(scenario)


def measure(num_rounds: int, num_runs: int) -> Outcome:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "blobs.npz"
        write_blobs(path, np.random.default_rng(0))
        runs = [simulate(path, seed, num_rounds) for seed in range(num_runs)]
    weights = np.sqrt(np.arange(1, num_rounds + 1))
    measured = float(np.mean([(weights / weights.sum()) @ norms for norms, *_ in runs]))
    constants = runs[0][3]
    loss_bound = max(largest for *_, largest, _ in runs)
    constants = LearningConstants(**(vars(constants) | {"loss_bound": loss_bound}))
    gap = float(np.mean([convergence_gap(num_rounds, constants, noises) for _, noises, *_ in runs]))
    constant = 8 * GAMMA * constants.model_lipschitz * constants.grad_norm_bound
    return Outcome(measured, gap, constant + gap)


if __name__ == "__main__":
    asked = [int(argument) for argument in sys.argv[1:]]
    for rounds in [asked[0]] if asked else (10, 100, 1000):
        result = measure(rounds, asked[1] if len(asked) > 1 else 5)
        print(
            f"T = {rounds:>5}: mean ‖∇F‖² {result.measured:.4g}, gap Ω {result.gap:.4g}, bound {result.bound:.4g}: "
            f"loose by {result.bound / result.measured:.0f} times"
        )
