import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_worlds import small_scenario
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import airdistill as ad
from airdistill.data.datasets import Dataset
from airdistill.learning.evaluation import TestSet as EvaluationSet
from airdistill.learning.fleet import Engine, LearningFleet
from airdistill.learning.gradients import Target
from airdistill.learning.learner import Learner
from airdistill.learning.samples import to_tensor
from airdistill.learning.stacking import TorchLogits, can_stack, can_stack_orders
from airdistill.runs.options import RunOptions
from airdistill.runs.simulation import Simulation
from airdistill.schemes import load_scheme

CPU, F64 = torch.device("cpu"), torch.float64
DEVICES, SAMPLES, CLASSES = 3, 23, 4
RNG = np.random.default_rng(0)
DATASET = Dataset(
    "noise",
    RNG.integers(0, 256, (DEVICES * SAMPLES, 16, 14)).astype(np.uint8),
    np.sort(np.arange(DEVICES * SAMPLES) % CLASSES),  # sorted: devices lack classes
    RNG.integers(0, 256, (31, 16, 14)).astype(np.uint8),
    RNG.integers(0, CLASSES, 31),
)
RECEIVED = RNG.dirichlet(np.ones(CLASSES), CLASSES)
RECEIVED[1] = np.nan
TARGETS = pytest.mark.parametrize(
    ("target", "distill_weight"),
    [(Target.of(RECEIVED, F64, CPU), 0.7), (Target.of(RECEIVED, F64, CPU), 0.0), (None, 0.7)],
)


def fleets(model="paper_cnn", chunk_samples=10):
    """The same fleet, trained one device at a time and stacked."""
    indices = [np.arange(device * SAMPLES, (device + 1) * SAMPLES) for device in range(DEVICES)]
    one_by_one, stacked = (
        LearningFleet.of(
            DATASET, indices, [model] * DEVICES, 0, Engine(dtype=F64, chunk_samples=chunk_samples, stacked=stacked)
        )
        for stacked in (False, True)
    )
    assert one_by_one.stacked is None
    assert stacked.stacked is not None
    return one_by_one, stacked


def assert_same(one_by_one, stacked, losses, stacked_losses):
    flat, stacked_flat = ([(loss.training, loss.distillation) for loss in each] for each in (losses, stacked_losses))
    assert np.array(stacked_flat) == pytest.approx(np.array(flat), abs=1e-10)
    weights, stacked_weights = one_by_one.state(), stacked.state()
    assert list(stacked_weights) == list(weights)
    for name in weights:
        assert stacked_weights[name].numpy() == pytest.approx(weights[name].numpy(), abs=1e-10)


def some_orders(epochs=2):
    return [
        [np.random.default_rng([device, epoch]).permutation(SAMPLES) for epoch in range(epochs)]
        for device in range(DEVICES)
    ]


@pytest.mark.parametrize("model", ["paper_cnn", "mlp", "softmax_regression"])
@pytest.mark.parametrize("chunk_samples", [10, 300])
def test_knowledge(model, chunk_samples):
    one_by_one, stacked = fleets(model, chunk_samples)
    expected = one_by_one.knowledge(for_full_batch=False)
    assert np.isnan(expected).any()
    assert stacked.knowledge(for_full_batch=True) == pytest.approx(expected, abs=1e-10, nan_ok=True)


@TARGETS
def test_a_full_batch_step_in_several_chunks(target, distill_weight):
    one_by_one, stacked = fleets()
    for _ in range(2):
        losses = [fleet.full_batch_step(target, 0.3, distill_weight) for fleet in (one_by_one, stacked)]
        assert_same(one_by_one, stacked, *losses)


@TARGETS
@pytest.mark.parametrize("model", ["paper_cnn", "mlp"])
def test_local_epochs_with_a_smaller_last_batch(model, target, distill_weight):
    one_by_one, stacked = fleets(model)
    before = {name: tensor.clone() for name, tensor in stacked.state().items()}
    losses = [fleet.local_epochs(target, 0.1, distill_weight, some_orders(), 5) for fleet in (one_by_one, stacked)]
    assert_same(one_by_one, stacked, *losses)
    assert all(not torch.equal(tensor, before[name]) for name, tensor in stacked.state().items())


@pytest.mark.parametrize(("chunk_samples", "groups"), [(10, 2), (300, 3)])
def test_groups_of_devices_compute_what_all_compute_together(monkeypatch, chunk_samples, groups):
    monkeypatch.setattr(TorchLogits, "most_samples", 20)
    target = Target.of(RECEIVED, F64, CPU)
    one_by_one, stacked = fleets("mlp", chunk_samples)
    assert len(stacked.stacked._groups) == groups
    expected = one_by_one.knowledge(for_full_batch=False)
    assert stacked.knowledge(for_full_batch=True) == pytest.approx(expected, abs=1e-10, nan_ok=True)
    losses = [fleet.full_batch_step(target, 0.3, 0.7) for fleet in (one_by_one, stacked)]
    assert_same(one_by_one, stacked, *losses)
    for optimiser in ("sgd", "momentum"):
        losses = [fleet.local_epochs(target, 0.1, 0.7, some_orders(), 5, optimiser) for fleet in (one_by_one, stacked)]
        assert_same(one_by_one, stacked, *losses)
    tests = EvaluationSet.of(to_tensor(DATASET.x_test, F64, CPU), DATASET.y_test, CLASSES, 10)
    counts = np.ones((DEVICES, CLASSES), dtype=np.int64)
    assert tests.evaluate(stacked, counts) == tests.evaluate(one_by_one, counts)


@pytest.mark.parametrize("most_samples", [1 << 17, 30])
def test_devices_that_share_samples_read_them_from_one_place(monkeypatch, most_samples):
    monkeypatch.setattr(TorchLogits, "most_samples", most_samples)
    rng, target = np.random.default_rng(1), Target.of(RECEIVED, F64, CPU)
    held = [rng.choice(len(DATASET.y_train), SAMPLES, replace=False) for _ in range(DEVICES)]
    shared, stacked = (
        LearningFleet.of(DATASET, held, ["paper_cnn"] * DEVICES, 0, Engine(dtype=F64, chunk_samples=10, stacked=each))
        for each in (False, True)
    )
    pools = [learner.pool_and_rows[0].data_ptr() for learner in shared.learners]
    assert len(set(pools)) == 1
    copies = LearningFleet(
        [
            Learner(learner.model, to_tensor(DATASET.x_train[own], F64, CPU), DATASET.y_train[own], CLASSES, 10)
            for learner, own in zip(copy.deepcopy(shared.learners), held, strict=True)
        ],
        Engine(dtype=F64, chunk_samples=10),
    )
    fleets_of_all = (shared, stacked, copies)
    losses = [fleet.full_batch_step(target, 0.3, 0.7) for fleet in fleets_of_all]
    assert losses[0] == losses[2]
    losses = [fleet.local_epochs(target, 0.1, 0.7, some_orders(), 5) for fleet in fleets_of_all]
    assert losses[0] == losses[2]
    assert_same(shared, stacked, *losses[:2])
    weights = copies.state()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in shared.state().items())


class Operations(TorchDispatchMode):
    """Records the name of every operation."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_minibatch_steps_do_not_synchronise_and_their_number_is_independent_of_the_fleet():
    counts = []
    for devices in (2, DEVICES):
        stacked = LearningFleet(fleets()[1].learners[:devices], Engine(dtype=F64, stacked=True))
        with Operations() as operations:
            stacked.local_epochs(Target.of(RECEIVED, F64, CPU), 0.1, 0.7, some_orders()[:devices], 5)
        assert "convolution_backward" in operations.names
        # These operations return a number to Python, or have a data-dependent shape, and so wait for the GPU.
        assert not {"_local_scalar_dense", "nonzero", "item", "equal"} & set(operations.names)
        counts.append(len(operations.names))
    assert counts[0] == counts[1]


def test_devices_with_orders_of_unequal_length_are_trained_one_by_one():
    one_by_one, stacked = fleets("mlp")
    orders = some_orders(1)
    uneven = [orders[0], [], [orders[2][0][:7]]]
    assert not can_stack_orders(uneven)
    assert not can_stack_orders([[], [], []])
    losses = [fleet.local_epochs(None, 0.1, 0.0, uneven, 5) for fleet in (one_by_one, stacked)]
    assert_same(one_by_one, stacked, *losses)
    # Updates of single devices are visible in the stack.
    losses = [fleet.local_epochs(None, 0.1, 0.0, orders, 5) for fleet in (one_by_one, stacked)]
    assert_same(one_by_one, stacked, *losses)


def test_an_order_cannot_address_another_devices_samples():
    _, stacked = fleets("mlp")
    with pytest.raises(IndexError):
        stacked.local_epochs(None, 0.1, 0.0, [[np.array([SAMPLES])]] * DEVICES, 5)


def test_accuracy_of_stacked_devices():
    one_by_one, stacked = fleets()
    tests = EvaluationSet.of(to_tensor(DATASET.x_test, F64, CPU), DATASET.y_test, CLASSES, 7)
    for fleet in (one_by_one, stacked):
        fleet.local_epochs(None, 0.3, 0.0, some_orders(), 5)
    expected = np.stack([tests._correct_by_class(learner) for learner in one_by_one.learners])
    assert expected.any()
    assert np.array_equal(stacked.stacked.correct_by_class(tests.chunks, tests.labels), expected)
    counts = np.eye(DEVICES, CLASSES, dtype=np.int64)
    assert tests.evaluate(stacked, counts) == tests.evaluate(one_by_one, counts)


def test_weights_are_exchanged_between_stacked_and_single_devices():
    one_by_one, stacked = fleets()
    start = {name: tensor.clone() for name, tensor in stacked.state().items()}
    stacked.full_batch_step(None, 0.3, 0.0)
    after = {name: tensor.clone() for name, tensor in stacked.state().items()}
    one_by_one.load_state(after)
    assert one_by_one.knowledge(False) == pytest.approx(stacked.knowledge(False), abs=1e-10, nan_ok=True)
    stacked.load_state(start)
    stacked.full_batch_step(None, 0.3, 0.0)
    assert all(torch.equal(tensor, after[name]) for name, tensor in stacked.state().items())
    for device, model in enumerate(stacked.models()):
        assert torch.equal(model.out.bias, after[f"{device}.out.bias"])
        assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_diverged_device_is_found_and_does_not_affect_the_others():
    one_by_one, stacked = fleets("mlp")
    assert stacked.finite_weights() == [True] * DEVICES
    for fleet in (one_by_one, stacked):
        with torch.no_grad():
            next(fleet.models()[1].parameters())[0, 0] = float("inf")
    target = Target.of(RECEIVED, F64, CPU)
    losses = [fleet.local_epochs(target, 0.1, 0.7, some_orders(), 5) for fleet in (one_by_one, stacked)]
    assert stacked.finite_weights() == one_by_one.finite_weights() == [True, False, True]
    for device in (0, 2):
        assert losses[1][device].training == pytest.approx(losses[0][device].training, abs=1e-10)


class Branching(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else -super().forward(x)


class Counting(nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class FunctionalDropout(nn.Linear):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), training=self.training)


class WithTensor(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.offset = torch.rand(2)

    def forward(self, x):
        return super().forward(x) + self.offset


def frozen_first_layer():
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).to(F64)
    model[0].requires_grad_(False)
    return model


def learners_of(*models, sizes=(8, 8)):
    return [
        Learner(model.to(F64), torch.from_numpy(RNG.standard_normal((size, 6))), np.arange(size) % 2, 2, 5)
        for model, size in zip(models, sizes, strict=True)
    ]


ONE = nn.Linear(6, 2)


@pytest.mark.parametrize(
    "models",
    [
        pytest.param([nn.Linear(6, 2), Branching(6, 2)], id="classes"),
        pytest.param([nn.Linear(6, 2), nn.Linear(6, 2, bias=False)], id="parameters"),
        pytest.param([nn.Sequential(nn.Linear(6, 2), layer) for layer in (nn.ReLU(), nn.Tanh())], id="layers"),
        pytest.param(
            [nn.Sequential(nn.Linear(6, 2), nn.LeakyReLU(coefficient)) for coefficient in (0.1, 0.2)], id="settings"
        ),
        pytest.param([ONE, ONE], id="the same object"),
        pytest.param([nn.Sequential(nn.Linear(6, 2), nn.Dropout(0.5)) for _ in range(2)], id="dropout"),
        pytest.param([nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2)) for _ in range(2)], id="batch norm"),
        pytest.param([FunctionalDropout(6, 2) for _ in range(2)], id="functional dropout"),
        pytest.param([Branching(6, 2) for _ in range(2)], id="a branch on a value"),
        pytest.param([Counting(6, 2) for _ in range(2)], id="a count of calls"),
        pytest.param([WithTensor(6, 2) for _ in range(2)], id="a tensor that is not a parameter"),
    ],
)
def test_devices_that_cannot_be_stacked_are_trained_one_by_one(models):
    learners = learners_of(*models)
    assert not can_stack(learners)
    fleet = LearningFleet(learners, Engine(dtype=F64, stacked=True))
    assert fleet.stacked is None
    assert len(fleet.full_batch_step(None, 0.1, 0.0)) == 2


def test_devices_with_unequal_sample_counts_are_not_stacked():
    models = [nn.Linear(6, 2), nn.Linear(6, 2)]
    assert can_stack(learners_of(*models))
    assert not can_stack(learners_of(*models, sizes=(8, 9)))


def test_frozen_parameters_do_not_change():
    learners = learners_of(frozen_first_layer(), frozen_first_layer())
    before = [learner.model[0].weight.clone() for learner in learners]
    alone = [learner.gradient(None, 0.0)[0] for learner in learners]
    start = [learner.model[2].weight.detach().clone() for learner in learners]
    fleet = LearningFleet(learners, Engine(dtype=F64, stacked=True))
    assert fleet.stacked is not None
    fleet.full_batch_step(None, 0.1, 0.0)
    for device, model in enumerate(fleet.models()):
        assert torch.equal(model[0].weight, before[device])
        assert not model[0].weight.requires_grad
        expected = start[device].flatten() - 0.1 * alone[device][:10]  # the bias follows
        assert torch.allclose(model[2].weight.flatten(), expected, atol=1e-12)


@pytest.mark.parametrize("epochs", [0, 2])
def test_a_stacked_run_gives_the_same_records(tmp_path, monkeypatch, epochs):
    scenario = small_scenario(
        tmp_path, "learning.model=mlp", f"learning.local_epochs={epochs}", "learning.batch_size=8", "learning.rounds=3"
    )
    unstacked = RunOptions.learning_engine
    runs = []
    for stacked in (False, True):
        monkeypatch.setattr(
            RunOptions, "learning_engine", lambda self, stacked=stacked: replace(unstacked(self), stacked=stacked)
        )
        options = RunOptions(dtype="float64", chunk_samples=7, eval_every=1)
        simulation = Simulation(ad.plan(scenario, "ota_fd"), load_scheme("ota_fd"), options)
        assert (simulation.fleet.stacked is not None) == stacked
        runs.append(([simulation.advance() for _ in range(3)], simulation.iterate_accuracy()))
    (records, iterate), (stacked_records, stacked_iterate) = runs
    assert stacked_iterate == pytest.approx(iterate, abs=1e-9)
    for record, stacked_record in zip(records, stacked_records, strict=True):
        assert stacked_record.keys() == record.keys()
        tables, stacked_tables = record.pop("knowledge"), stacked_record.pop("knowledge")
        for name in tables:  # recorded with six digits
            assert np.array(stacked_tables[name]) == pytest.approx(np.array(tables[name]), rel=1e-5), name
        for name in record:
            assert stacked_record[name] == pytest.approx(record[name], rel=1e-9, abs=1e-9), name


def test_devices_are_stacked_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert RunOptions(device="cuda").learning_engine().stacked
    assert not RunOptions(device="cpu").learning_engine().stacked
