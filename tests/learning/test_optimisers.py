"""Optimisers with a state: the steps are PyTorch's, the state is kept, and what has no bound is refused."""

import json
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import airdistill as ad
from airdistill.data.datasets import Dataset
from airdistill.errors import InputError
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.learning.gradients import Target
from airdistill.learning.mixed import MixedSteps
from airdistill.learning.optimisers import Optimiser
from airdistill.privacy.sensitivity import TrajectoryDynamics
from airdistill.scenario.loading import as_toml, load_text

RNG = np.random.default_rng(9)
F64, CPU = torch.float64, torch.device("cpu")
IMAGES = RNG.integers(0, 256, (36, 8, 8)).astype(np.uint8)
DATASET = Dataset("noise", IMAGES, np.arange(36) % 3, IMAGES[:4], np.arange(4) % 3)
NAMES = pytest.mark.parametrize("name", ["momentum", "adamw"])


@NAMES
def test_steps_are_those_of_pytorch(name):
    weights = [torch.randn(4, 3, dtype=F64), torch.randn(5, dtype=F64)]
    references = [torch.nn.Parameter(weight.clone()) for weight in weights]
    own = Optimiser.fresh(name, weights)
    kind = {"momentum": lambda p: torch.optim.SGD(p, momentum=0.9), "adamw": torch.optim.AdamW}[name]
    reference = kind(references)
    for lr in (0.1, 0.05, 0.02, 0.3):
        for group in reference.param_groups:
            group["lr"] = lr
        gradients = [torch.randn_like(weight) for weight in weights]
        for each, gradient in zip(references, gradients, strict=True):
            each.grad = gradient.clone()
        reference.step()
        own.step(weights, gradients, lr)
        for weight, each in zip(weights, references, strict=True):
            assert weight.numpy() == pytest.approx(each.detach().numpy(), abs=1e-12)


def fleet_of(stacked, model="resnet8-8", dtype=F64, images=DATASET, kernels="auto"):
    indices = [np.arange(device * 12, (device + 1) * 12) for device in range(3)]
    fleet = LearningFleet.of(
        images, indices, [model] * 3, 0, Engine(dtype=dtype, stacked=stacked, kernels=kernels, chunk_samples=7)
    )
    shape = fleet.learners[0].samples_and_labels()[0].shape[1:]
    fleet.public = torch.from_numpy(np.random.default_rng(7).standard_normal((6, *shape))).to(dtype)
    return fleet


def trained(fleet, name, times=1):
    """Every way of training that takes an optimiser, in turn."""
    dtype = fleet.engine.dtype
    target = Target.of(np.random.default_rng(1).dirichlet(np.ones(3), 3), dtype, CPU)
    rows = Target.of(np.random.default_rng(2).dirichlet(np.ones(3), 6), dtype, CPU)
    for _ in range(times):
        rng = np.random.default_rng(3)
        orders = [[rng.permutation(12)] for _ in range(3)]
        steps = [
            MixedSteps(
                rng.integers(0, 12, (4, 5)), rng.integers(0, 6, (4, 2)), 1.0, 0.5, np.full(4, 0.02), optimiser=name
            )
            for _ in range(3)
        ]
        fleet.local_epochs(target, 0.02, 1.0, orders, 5, name)
        fleet.full_batch_step(target, 0.02, 1.0, name)
        fleet.mixed_steps(steps, rows, "devices trained")
    return {key: tensor.numpy().copy() for key, tensor in fleet.state().items()}


@NAMES
def test_stacked_devices_learn_as_one_by_one_and_share_their_state(name):
    one_by_one, stacked = trained(fleet_of(False), name, 2), trained(fleet_of(True), name, 2)
    assert list(one_by_one) == list(stacked)
    assert any(key.startswith(f"optimizer.2.{name}.") for key in stacked)
    for key, tensor in one_by_one.items():
        assert stacked[key] == pytest.approx(tensor, abs=1e-7), key


@NAMES
@pytest.mark.parametrize("stacked", [False, True])
def test_a_state_is_restored_and_forgotten(name, stacked):
    fleet = fleet_of(stacked)
    start = {key: tensor.clone() for key, tensor in fleet.state().items()}
    first = trained(fleet, name)
    after = {key: torch.from_numpy(tensor) for key, tensor in first.items()}
    second = trained(fleet, name)
    fleet.load_state(start)
    again = trained(fleet, name)
    fresh = fleet_of(stacked)
    fresh.load_state(after)
    resumed = trained(fresh, name)
    for key, tensor in first.items():
        assert np.array_equal(again[key], tensor), key
        assert np.array_equal(resumed[key], second[key]), key


@NAMES
def test_the_paper_s_network_learns_the_same_by_the_fused_kernels(name):
    images = RNG.integers(0, 256, (36, 14, 14)).astype(np.uint8)
    dataset = replace(DATASET, x_train=images, x_test=images[:4])
    fleets = [fleet_of(False, "paper_cnn", torch.float32, dataset, kernels) for kernels in ("torch", "fused")]
    by_torch, fused = (trained(fleet, name) for fleet in fleets)
    for key, tensor in by_torch.items():
        assert fused[key] == pytest.approx(tensor, abs=2e-3), key
    assert np.array_equal(fleets[1].knowledge(False), fleets[1].knowledge(True))


@pytest.fixture
def blobs(tmp_path):
    labels = np.arange(60) % 3
    samples = RNG.standard_normal((60, 4)) + 2 * np.eye(3, 4)[labels]
    arrays = {"x_train": samples[:40], "y_train": labels[:40], "x_test": samples[40:], "y_test": labels[40:]}
    np.savez(tmp_path / "blobs.npz", **arrays)
    return [
        f"data.dataset={tmp_path / 'blobs.npz'}", "fleet.devices=3", "data.samples_per_device=12",
        "learning.model=mlp-5", "learning.batch_size=5", "learning.local_epochs=1", "learning.rounds=4",
        "public.samples=8", "public.distill_epochs=1", "privacy.epsilon=50",
    ]  # fmt: skip


@NAMES
@pytest.mark.parametrize("scheme", ["ota_fd", "airdistill_proxy"])
def test_a_run_that_was_stopped_resumes_to_the_same_bytes(tmp_path, blobs, name, scheme):
    def stop(record, _rounds):
        if record["round"] == 2:
            raise KeyboardInterrupt

    scenario = ad.load("quick", [*blobs, f"learning.optimizer={name}", "learning.schedule=cosine"])
    options = ad.RunOptions(device="cpu", engine="torch", threads=1, checkpoint_every=1)
    whole = ad.run(scenario, scheme, out=tmp_path / "whole", options=options)
    with pytest.raises(KeyboardInterrupt):
        ad.run(scenario, scheme, out=tmp_path / "stopped", options=options, on_round=stop)
    resumed = ad.resume(tmp_path / "stopped")
    assert json.dumps(resumed.rounds) == json.dumps(whole.rounds)
    last = [load_file(max((tmp_path / run).glob("checkpoint-*.safetensors"))) for run in ("whole", "stopped")]
    assert any(key.startswith("optimizer.") for key in last[0])
    assert all(np.array_equal(last[0][key], last[1][key]) for key in last[0])
    cosine = [0.5 * (1 + np.cos(np.pi * t / 4)) for t in range(4)]
    assert [record["lr"] for record in whole.rounds] == pytest.approx(scenario.learning.initial_lr * np.array(cosine))


def test_another_optimiser_gives_other_weights(tmp_path, blobs):
    losses = set()
    for name in ("sgd", "momentum", "adamw"):
        run = ad.run(ad.load("quick", [*blobs, f"learning.optimizer={name}"]), "ota_fd", out=tmp_path / name)
        losses.add(run.rounds[-1]["loss"])
    assert len(losses) == 3


@pytest.mark.parametrize("scheme", ["ota_fl", "fedavg", "fedsgd"])
def test_federated_learning_refuses_optimisers_with_a_state(blobs, scheme):
    rule = rf"learning.optimizer = \"adamw\": {scheme} makes one step .* \[overrides.{scheme}\]"
    with pytest.raises(InputError, match=rule):
        ad.plan(ad.load("quick", [*blobs, "learning.optimizer=adamw"]), scheme=scheme)
    changes = [*blobs, "learning.optimizer=adamw", f"overrides.{scheme}.learning.optimizer=sgd"]
    ad.plan(ad.load("quick", changes), scheme=scheme)


def test_what_has_no_bound_or_no_end_is_refused(blobs):
    with pytest.raises(InputError, match=r"bounds plain gradient steps only"):
        ad.load("quick", [*blobs, "learning.optimizer=adamw", "privacy.sensitivity=trajectory"])
    with pytest.raises(InputError, match=r'falls to 0 over learning.rounds, which is "optimal"'):
        ad.load("quick", [*blobs, "learning.schedule=cosine", "learning.rounds=optimal"])


def test_the_drift_of_a_record_is_bounded_for_plain_steps_only():
    numbers = {"initial_lr": 0.01, "grad_lipschitz": 2.0, "model_lipschitz": 1.0, "grad_norm_bound": 1.0}
    drifts = {}
    for how in ("sgd inverse_sqrt", "sgd constant", "adamw constant"):
        optimizer, schedule = how.split()
        steps = TrajectoryDynamics.of({**numbers, "optimizer": optimizer, "schedule": schedule})
        drifts[how] = [float(drift[0]) for drift in islice(steps.parameter_drift(np.array([10.0])), 3)]
    assert drifts["adamw constant"] == [0, np.inf, np.inf]
    assert drifts["sgd constant"][:2] == drifts["sgd inverse_sqrt"][:2]
    assert drifts["sgd constant"][2] == pytest.approx(drifts["sgd constant"][1] * (2 + 0.01 * 2.0))
    assert drifts["sgd constant"][2] > drifts["sgd inverse_sqrt"][2]


def test_a_plan_says_what_its_gap_is_of_and_warns_of_the_step_size_of_plain_steps_only(blobs):
    plans = {
        name: ad.plan(ad.load("quick", [*blobs, f"learning.optimizer={name}", "learning.initial_lr=0.5"]))
        for name in ("sgd", "adamw")
    }
    assert not any("only ranks rounds" in line for line in plans["sgd"].assumptions)
    assert any('"adamw" and schedule "inverse_sqrt"' in line for line in plans["adamw"].assumptions)
    assert [any("exceeds 1/L1" in line for line in plan.warnings) for plan in plans.values()] == [True, False]


def test_fields_that_are_not_used_are_not_written(blobs):
    plain, used = (ad.load("quick", [*blobs, *more]) for more in ((), ("learning.optimizer=adamw",)))
    assert not {"optimizer", "schedule"} & plain.model_dump()["learning"].keys()
    assert '"optimizer"' not in plain.model_dump_json()
    assert used.model_dump()["learning"]["optimizer"] == "adamw"
    assert load_text(as_toml(used), "used") == used
