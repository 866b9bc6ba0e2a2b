"""Small runs of feature means, and ε of a Gaussian mechanism computed independently of the package."""

import json
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm
from small_worlds import small_scenario, write_dataset

import airdistill as ad
from airdistill.planning.plan import Plan
from airdistill.runs.options import RunOptions

FAST = RunOptions(threads=1, eval_every=100, dtype="float64", checkpoint_every=1)
CLASSES, WIDTH, DEVICES = 4, 8, 12


def skewed(folder, *changes):
    """Twelve devices that hold two of four blobs each; 60 of 120 test samples are public."""
    path = folder / "skewed.npz"
    if not path.exists():
        write_dataset(path, num_classes=CLASSES, features=(WIDTH,), num_train=240, num_test=120)
    return small_scenario(
        folder, f"data.dataset={path}", f"fleet.devices={DEVICES}", "data.partition=shards",
        "data.classes_per_device=2", "public.samples=60", "public.distill_epochs=5", "learning.local_epochs=1",
        "learning.initial_lr=0.05", "radio.noise_power=1e-16", "privacy.epsilon=50", "privacy.delta=1e-5",
        "learning.rounds=1", *changes,
    )  # fmt: skip


def played(folder, scheme, *changes, name="run", **how):
    return ad.run(skewed(folder, *changes), scheme, out=folder / name, options=FAST, **how)


def plan_of(record):
    return Plan.from_dict(json.loads((record.folder / "plan.json").read_text()))


def weights_of(folder):
    return max(Path(folder).glob("checkpoint-*.safetensors")).read_bytes()


def epsilon_of_gaussian(mu, delta):
    """By the analytic Gaussian mechanism (Balle and Wang, 2018), independently of the package."""

    def excess(epsilon):
        return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - delta

    return brentq(excess, 1e-9, 2000)
