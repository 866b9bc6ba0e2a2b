"""Rounds of federated learning, equation by equation, against plain NumPy in float64."""

import math

import numpy as np
import pytest
from small_worlds import small_scenario

import airdistill as ad
from airdistill.channel import channel_source
from airdistill.data import assign_samples, load_dataset
from airdistill.errors import AirDistillError, InputError
from airdistill.privacy.gaussian import gaussian_epsilon
from airdistill.runs.options import RunOptions
from airdistill.runs.simulation import Simulation
from airdistill.scenario.loading import for_scheme
from airdistill.schemes import load_scheme
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.streams import noise_seed, stream

OPTIONS = RunOptions(dtype="float64", chunk_samples=7)
CLIP = 0.9
UNEQUAL = ["data.samples_per_device=[20, 14, 9]", f"learning.clip_norm={CLIP}", "radio.noise_power=1e-9 W"]


def simulation_of(scenario, name):
    scheme = load_scheme(name)
    return Simulation(plan_scheme(scheme, as_run_by(scheme, scenario)), scheme, OPTIONS)


def weights_of(simulation, device=0):
    state = simulation.fleet.learners[device].model.state_dict()
    return np.column_stack([state["1.weight"].numpy(), state["1.bias"].numpy()])


def per_sample_gradients(theta, x, labels):
    """Of the cross-entropy of a softmax regression: (p − onehot) (x, 1)ᵀ, `[sample, class, feature + 1]`."""
    extended = np.column_stack([x, np.ones(len(x))])
    logits = extended @ theta.T
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return (p - np.eye(3)[labels])[:, :, None] * extended[:, None, :]


def flat(matrix):
    """In the order of PyTorch's parameters: weights, then biases."""
    return np.concatenate([matrix[:, :-1].ravel(), matrix[:, -1]])


def clipped_means(scenario, theta):
    dataset = load_dataset(scenario.data.dataset)
    held = assign_samples(scenario, dataset.y_train).indices
    means = []
    for own in held:
        total = np.zeros(theta.shape)
        for gradient in per_sample_gradients(theta, dataset.x_train[own], dataset.y_train[own]):
            total += gradient * min(1, CLIP / np.linalg.norm(gradient))
        means.append(flat(total / len(own)))
    return np.array(means), np.array([len(own) for own in held])


@pytest.mark.parametrize("trust", ["receiver_noise", "fleet_noise", "own_noise"])
@pytest.mark.parametrize("sampling", [[], ["fleet.sampling=with_replacement", "fleet.sampled_devices=2"]])
def test_a_round_of_ota_fl_follows_its_equations(tmp_path, trust, sampling):
    scenario = small_scenario(tmp_path, *UNEQUAL, f"privacy.trust={trust}", "learning.initial_lr=0.3", *sampling)
    simulation = simulation_of(scenario, "ota_fl")
    theta = weights_of(simulation)
    assert np.array_equal(theta, weights_of(simulation, 2))  # all devices start from the same weights
    gradients, samples = clipped_means(scenario, theta)
    record = simulation.advance()

    size = gradients.shape[1]
    weights = samples / samples.sum()
    if sampling:
        weights = stream(scenario.seed, "device-sampling", 1).multinomial(2, weights) / 2
    participating = weights > 0
    channel = channel_source(scenario).round_channel(1)
    design = simulation.plan.design(channel, 1)
    scale = design.rx_scale[0]
    seed = noise_seed(scenario.seed, simulation.ledger.noise_keys[0])
    drawn = stream(seed, "receiver-noise", 1).standard_normal((2, 1, size))
    y = math.sqrt(1e-9 / 2) * (drawn[0, 0] + 1j * drawn[1, 0])
    energy = 0.0
    for i in np.flatnonzero(participating):
        # x_i = P1 (√D/C) g_i + P2 m with P1 = w_i λ C h̄/(√D|h|²)
        p1 = weights[i] * scale * CLIP * channel[i].conj() / (math.sqrt(size) * abs(channel[i]) ** 2)
        noise = stream(seed, "artificial-noise", 1, int(i)).standard_normal((1, size))[0]
        x = p1 * math.sqrt(size) / CLIP * gradients[i] + design.noise_gain[i, 0] * noise
        energy += 3.6e-6 * (abs(x) ** 2).sum()
        y = y + channel[i] * x
    received = y.real / scale
    stepped = weights_of(simulation)
    expected = flat(theta) - 0.3 * received
    assert flat(stepped) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert np.array_equal(stepped, weights_of(simulation, 1))
    ideal = weights @ gradients
    assert record["measured_noise_var"][0] == pytest.approx(((received - ideal) ** 2).mean(), rel=1e-9)
    assert record["measured_joules"] == pytest.approx(energy, rel=1e-9)
    assert record["uplink_seconds"] == pytest.approx(size * 3.6e-6)
    assert record["distillation_loss"] is None
    # ε after one round: shift w·2C of a whole device over the noise that the trust model counts.
    counted = {
        "receiver_noise": np.full(3, design.effective_noise_var[0]),
        "fleet_noise": np.full(3, (np.abs(channel * design.noise_gain[:, 0]) ** 2).sum() / scale**2),
        "own_noise": np.abs(channel * design.noise_gain[:, 0]) ** 2 / scale**2,
    }[trust]
    mu = np.where(participating, 2 * CLIP * weights / np.sqrt(np.where(counted > 0, counted, np.inf)), 0)
    assert record["epsilon_spent"] == pytest.approx(np.max(gaussian_epsilon(mu, np.full(3, 1e-5))), rel=1e-6)


def test_fedsgd_descends_along_the_mean_gradient(tmp_path):
    scenario = small_scenario(tmp_path, "data.samples_per_device=[20, 14, 9]", "learning.initial_lr=0.3")
    simulation = simulation_of(scenario, "fedsgd")
    theta, dataset = weights_of(simulation), load_dataset(scenario.data.dataset)
    everything = np.concatenate(assign_samples(scenario, dataset.y_train).indices)
    for index in (1, 2):
        gradient = per_sample_gradients(theta, dataset.x_train[everything], dataset.y_train[everything]).mean(axis=0)
        theta = theta - 0.3 / math.sqrt(index) * gradient
        record = simulation.advance()
        assert weights_of(simulation) == pytest.approx(theta, rel=1e-9, abs=1e-12)
    assert record["epsilon_spent"] == math.inf
    assert record["uplink_seconds"] == pytest.approx(2 * 15 * 3.6e-6)


def test_fedavg_averages_the_models_after_local_epochs(tmp_path):
    changes = ["data.samples_per_device=[20, 14, 9]", "learning.local_epochs=2", "learning.batch_size=6"]
    scenario = small_scenario(tmp_path, *changes)
    averaged, alone = simulation_of(scenario, "fedavg"), simulation_of(scenario, "fedavg")
    theta, dataset = weights_of(averaged), load_dataset(scenario.data.dataset)
    held, trained = assign_samples(scenario, dataset.y_train).indices, []
    for device, own in enumerate(held):
        local, rng = theta.copy(), stream(scenario.seed, "batch-order", 1, device)
        for order in [rng.permutation(len(own)) for _ in range(2)]:
            for start in range(0, len(own), 6):
                batch = own[order[start : start + 6]]
                local = local - 0.1 * per_sample_gradients(local, dataset.x_train[batch], dataset.y_train[batch]).mean(
                    0
                )
        trained.append(local)
    averaged.advance()
    sizes = np.array([len(own) for own in held])
    expected = np.einsum("i,ikf->kf", sizes / sizes.sum(), np.array(trained))
    assert weights_of(averaged) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert np.array_equal(weights_of(averaged, 0), weights_of(averaged, 2))
    assert not np.array_equal(weights_of(averaged), weights_of(alone))


@pytest.mark.parametrize("name", ["ota_fl", "orthogonal_fd"])
def test_the_measured_noise_is_the_predicted_one(tmp_path, name):
    changes = [
        "privacy.trust=fleet_noise",
        "radio.noise_power=1e-9 W",
        "learning.initial_lr=1e-9",
        "learning.rounds=80",
    ]
    simulation = simulation_of(small_scenario(tmp_path, *changes), name)
    records = [simulation.advance() for _ in range(80)]
    ratio = np.array([np.divide(r["measured_noise_var"], r["predicted_noise_var"]) for r in records]).ravel()
    # A ratio of mean squares of Gaussian entries: mean 1, variance 2/entries of a row.
    entries = 15 if name == "ota_fl" else 3
    error = math.sqrt(2 / entries / len(ratio))
    assert abs(ratio.mean() - 1) < 4 * error
    power = np.mean([r["measured_power_w"] / r["planned_power_w"] for r in records])
    assert power < 1 + 4 * math.sqrt(2 / entries / 80)


def test_a_run_of_exactly_the_planned_rounds_stays_within_the_target(tmp_path):
    scenario = small_scenario(tmp_path, *UNEQUAL, "fleet.sampling=with_replacement", "fleet.sampled_devices=2")
    record = ad.run(scenario, "ota_fl", out=tmp_path / "run")
    assert record.summary["epsilon_spent"] <= 8 * (1 + 1e-9)
    assert record.summary["epsilon_by_model"]["device"] == record.summary["epsilon_spent"]
    assert record.summary["epsilon_by_model"]["paper"] < 1


@pytest.mark.parametrize("name", ["ota_fl", "fedsgd", "fedavg", "orthogonal_fd", "ota_fl_fixed"])
def test_every_reference_scheme_resumes_bit_identically(tmp_path, name):
    scenario = small_scenario(tmp_path, "learning.fixed_rounds=6")
    whole = ad.run(scenario, name, out=tmp_path / "whole", options=RunOptions(checkpoint_every=2))

    class StopError(Exception):
        pass

    def stop(record, _):
        if record["round"] == 3:
            raise StopError

    with pytest.raises(StopError):
        ad.run(scenario, name, out=tmp_path / "cut", options=RunOptions(checkpoint_every=2), on_round=stop)
    again = ad.resume(tmp_path / "cut")
    assert (again.folder / "rounds.jsonl").read_bytes() == (whole.folder / "rounds.jsonl").read_bytes()
    assert again.summary == whole.summary


@pytest.mark.parametrize("name", ["ota_fl", "ota_fl_fixed", "fedsgd", "fedavg"])
def test_mixed_fleets_are_refused(tmp_path, name):
    groups = "fleet.groups=[{count=2, model='softmax_regression'}, {count=1, model='mlp'}]"
    with pytest.raises(InputError, match=rf"fleet\.groups = mlp and softmax_regression: {name} needs one model"):
        ad.run(small_scenario(tmp_path, groups), name, out=tmp_path / "run")


def test_overrides_of_ota_fl_apply_to_all_federated_learning():
    scenario = ad.load("paper", ["overrides.ota_fl_fixed.learning.initial_lr=0.5"])
    for name in ("ota_fl", "ota_fl_fixed", "fedsgd"):
        adapted = as_run_by(load_scheme(name), scenario)
        assert adapted.radio.path_loss_exponent == 2
        assert adapted.learning.initial_lr == (0.5 if name == "ota_fl_fixed" else 0.001)
        assert adapted.learning.distill_weight == 0
    assert as_run_by(load_scheme("ota_fd"), scenario) == for_scheme(scenario, "ota_fd")
    assert as_run_by(load_scheme("ota_fl_fixed"), scenario).learning.rounds == 400


@pytest.fixture
def train_with(tmp_path, monkeypatch):
    """Run `ota_fl` with a model of the user's own, given as the code of a function `net(num_classes)`."""

    def run(name, code):
        (tmp_path / f"{name}.py").write_text(f"from torch import nn\n{code}\n")
        monkeypatch.syspath_prepend(tmp_path)
        return ad.run(small_scenario(tmp_path, f"learning.model={name}:net"), "ota_fl", out=tmp_path / name)

    return run


BATCH_NORM = """
def net(num_classes):
    return nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, num_classes))
"""
CENTRED = """
class Centred(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(dim=0))

def net(num_classes):
    return Centred(4, num_classes)
"""


def test_batch_normalisation_has_no_per_sample_gradients(train_with):
    with pytest.raises(AirDistillError, match="batch normalisation mixes samples"):
        train_with("normed", BATCH_NORM)


def test_a_model_that_mixes_samples_is_refused(train_with):
    with pytest.raises(AirDistillError, match="depends on the batch"):
        train_with("mixing", CENTRED)


@pytest.mark.parametrize(("name", "epsilon"), [("fedsgd", math.inf), ("fd_error_free", math.inf), ("local_only", 0.0)])
def test_a_non_private_scheme_plans_no_privacy(tmp_path, name, epsilon):
    planned = plan_scheme(load_scheme(name), as_run_by(load_scheme(name), small_scenario(tmp_path)))
    for values in planned.epsilon_by_model.values():
        assert values.tolist() == [epsilon] * 3
    assert planned.uplink_joules == 0
    assert planned.assumptions == (planned.assumptions[0],)
    assert "any local training" not in planned.assumptions[0]
    again = type(planned).from_dict(planned.to_dict())
    assert again.to_dict() == planned.to_dict()


def test_a_device_without_a_channel_prevents_the_sum_at_no_privacy_cost(tmp_path):
    gains = "radio.gains=[[1e-5, 0], [0, 0], [1e-5, 1e-5]]"
    record = ad.run(small_scenario(tmp_path, gains), "ota_fl", out=tmp_path / "run")
    assert record.summary["epsilon_spent"] == 0
    assert {line["measured_noise_var"][0] for line in record.rounds} == {None}


@pytest.mark.parametrize("trust", ["receiver_noise", "fleet_noise", "own_noise"])
@pytest.mark.parametrize("draws", [1, 2, 9])
def test_a_plan_with_sampling_predicts_what_the_run_spends(tmp_path, trust, draws):
    sampling = ["fleet.sampling=with_replacement", f"fleet.sampled_devices={draws}", f"privacy.trust={trust}"]
    gains = "radio.gains=[[1e-5, 0], [2e-5, 0], [1e-5, 1e-5]]"  # the same in every round, planned and played
    scenario = small_scenario(tmp_path, *UNEQUAL, *sampling, gains, "learning.rounds=5")
    record = ad.run(scenario, "ota_fl", out=tmp_path / "run")
    chosen = load_scheme("ota_fl")
    planned = plan_scheme(chosen, as_run_by(chosen, scenario))
    for model in ("paper", "device"):
        predicted = planned.epsilon_by_model[model].max()
        assert record.summary["epsilon_by_model"][model] == pytest.approx(predicted, rel=1e-6)
    assert record.summary["epsilon_spent"] <= 8 * (1 + 1e-9)


def test_sampling_applies_to_the_schemes_that_support_it(tmp_path):
    sampling = ["overrides.ota_fl.fleet.sampling=with_replacement", "overrides.ota_fl.fleet.sampled_devices=2"]
    scenario = small_scenario(tmp_path, *sampling)
    chosen = {name: as_run_by(load_scheme(name), scenario).fleet.sampling for name in ("ota_fl", "fedsgd", "fedavg")}
    assert chosen == {"ota_fl": "with_replacement", "fedsgd": "none", "fedavg": "none"}


def test_the_device_with_the_largest_target_spends_exactly_that(tmp_path):
    scenario = small_scenario(tmp_path, "privacy.trust=own_noise", "privacy.epsilon={values=[1, 2, 8]}")
    record = ad.run(scenario, "ota_fl", out=tmp_path / "run")
    assert record.summary["epsilon_spent"] == pytest.approx(8, rel=1e-9)
