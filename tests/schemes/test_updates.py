"""Federated averaging of clipped updates: bounds, rounds, the server's optimiser, and what a ledger charges."""

import json
import math

import numpy as np
import pytest
from feature_worlds import epsilon_of_gaussian, plan_of, played, weights_of
from small_worlds import small_scenario
from update_worlds import FLOAT64, linear_weights, planned, simulation_of, trained

import airdistill as ad
from airdistill.data.datasets import load_dataset
from airdistill.data.partition import assign_samples
from airdistill.errors import InputError
from airdistill.learning.server_optimiser import ServerOptimiser, ServerStep
from airdistill.planning.fleet import realise_fleet
from airdistill.planning.updates import Update
from airdistill.privacy.gaussian import gaussian_mu
from airdistill.runs.simulation import Simulation, seed_torch
from airdistill.schemes.payloads import payload_protocol
from airdistill.schemes.registry import load_scheme
from airdistill.schemes.updates import UpdateReceiver, clipped_vectors
from airdistill.streams import stream

ADAPTIVE = ("federated.clip_quantile=0.5", "federated.update_norm=0.3")
NO_NOISE = ("privacy.trust=receiver_noise", "radio.noise_power=0", "privacy.epsilon=inf")
HEAD = ("public.features=5",)


def update_payload(folder, clip=0.7, indicator=0.0, size=6):
    return Update(realise_fleet(small_scenario(folder)), size, clip, indicator)


@pytest.mark.parametrize("indicator", [0.0, 0.35])
def test_no_two_devices_are_further_apart_than_the_sensitivity(tmp_path, indicator):
    """Random and opposite updates, of any length, at any clip: √(4C² + τ²), which is reached."""
    payload, rng = update_payload(tmp_path, indicator=indicator), np.random.default_rng(0)
    expected, furthest = math.sqrt(4 * 0.7**2 + indicator**2), 0.0
    assert payload.diameter == pytest.approx(expected, rel=1e-12)
    for _ in range(400):
        clip = float(np.exp(rng.uniform(-3, 3)))
        pair = rng.standard_normal((2, 6)) * clip * np.exp(rng.uniform(-2, 4, (2, 1)))
        if rng.random() < 0.5:
            pair[1] = -pair[0] * rng.uniform(0.5, 2)
        if rng.random() < 0.5:  # just within and just beyond the clip
            pair = pair / np.linalg.norm(pair, axis=1, keepdims=True) * clip * np.array([[1 - 1e-9], [1 + 1e-9]])
        sent = clipped_vectors(payload, pair, clip)[:, 0]
        assert (np.linalg.norm(sent, axis=1) <= payload.largest_norm * (1 + 1e-12)).all()
        furthest = max(furthest, float(np.linalg.norm(sent[0] - sent[1])))
    assert expected * (1 - 1e-6) < furthest <= expected * (1 + 1e-12)


def test_a_round_sends_the_mean_of_clipped_local_updates(tmp_path):
    """Against a training loop written out; the clip acts on two of three devices."""
    changes = ("data.samples_per_device=[20, 14, 9]", "learning.local_epochs=2", "learning.batch_size=6", *NO_NOISE)
    simulation = simulation_of(
        tmp_path, "ota_fedavg", *changes, "federated.update_norm=0.62", "federated.server_lr=1.7", "learning.rounds=2"
    )
    scenario, theta = simulation.plan.scenario, linear_weights(simulation)
    dataset, updates = load_dataset(scenario.data.dataset), []
    for device, held in enumerate(assign_samples(scenario, dataset.y_train).indices):
        rng = stream(scenario.seed, "batch-order", 1, device)
        orders = [rng.permutation(len(held)) for _ in range(2)]
        updates.append(trained(theta, dataset.x_train[held], dataset.y_train[held], 0.1, orders, 6) - theta)
    norms = np.linalg.norm(updates, axis=1)
    assert norms.min() < 0.62 < norms.max()
    clipped = [update * min(1, 0.62 / norm) for update, norm in zip(updates, norms, strict=True)]
    simulation.advance()
    for device in range(3):
        assert linear_weights(simulation, device) == pytest.approx(theta + 1.7 * np.mean(clipped, axis=0), rel=1e-9)


def test_noise_and_charge_of_t_rounds_follow_the_joint_sensitivity(tmp_path):
    """fleet_noise: every round has T (4C² + τ²)/(M μ)², and ε at the end is the target."""
    record = played(tmp_path, "ota_fedavg", "learning.rounds=4", *ADAPTIVE)
    header, *entries = [json.loads(line) for line in (record.folder / "ledger.jsonl").read_text().splitlines()]
    tau = 0.5 * 0.3
    size = 4 * (8 + 1)
    assert header["terms"]["update"] == {"entries": size, "norm": 0.3, "indicator": tau}
    mu = gaussian_mu(50.0, 1e-5)
    shift = math.sqrt(4 * 0.3**2 + tau**2)
    first = entries[0]
    assert np.ravel(first["weights"]) == pytest.approx(1 / 12)
    assert np.ravel(first["sensitivity"]["device"]) == pytest.approx(shift, rel=1e-12)
    assert np.ravel(first["counted_noise_var"]["fleet_noise"]) == pytest.approx(4 * (shift / 12 / mu) ** 2, rel=1e-9)
    assert plan_of(record).uplink.vector_length == size + 1
    spent = math.sqrt(4) * shift / 12 / math.sqrt(np.ravel(first["counted_noise_var"]["fleet_noise"])[0])
    assert record.summary["epsilon_spent"] == pytest.approx(epsilon_of_gaussian(spent, 1e-5), rel=1e-6)
    assert record.summary["epsilon_spent"] <= 50 * (1 + 1e-9)


def test_the_indicator_costs_its_share_of_the_budget_and_no_more(tmp_path):
    """τ = C/2: 1/17 of μ², and the noise is √(17/16) of that of a fixed clip."""
    fixed, _ = planned(tmp_path, "ota_fedavg", "privacy.trust=fleet_noise", "federated.update_norm=0.3")
    adaptive, _ = planned(tmp_path, "ota_fedavg", "privacy.trust=fleet_noise", *ADAPTIVE)
    ratio = adaptive.required_noise_var() / fixed.required_noise_var()
    assert ratio == pytest.approx(17 / 16, rel=1e-12)
    assert "5.89 %" in dict(adaptive.uplink.payload.summary())["Clip"]


@pytest.mark.parametrize("quantile", [0.3, 0.8])
def test_the_clip_finds_the_quantile_of_the_norms(tmp_path, quantile):
    """Without noise, for updates of given norms; its first steps are those of Andrew et al., written out."""
    plan, _ = planned(tmp_path, "ota_fedavg", f"federated.clip_quantile={quantile}", "federated.update_norm=5")
    payload, receiver, clip = plan.uplink.payload, UpdateReceiver(plan), 5.0
    norms = np.exp(np.linspace(-2, 2, 41))
    updates = np.eye(len(norms), payload.num_parameters)[:, : payload.num_parameters]
    updates = np.where(np.arange(payload.num_parameters) == 0, norms[:, None], 0.0) + 0 * updates
    for _ in range(150):
        sent = clipped_vectors(payload, updates, clip)
        made = receiver.estimate(sent.mean(axis=0), np.zeros(1)).knowledge[0]
        assert made[0] == pytest.approx(np.minimum(norms, clip).mean(), rel=1e-12)  # the step, in its own units
        expected = clip * math.exp(-0.2 * ((norms <= clip).mean() - quantile))
        assert made[-1] == pytest.approx(expected, rel=1e-9)
        clip = float(made[-1])
    assert np.quantile(norms, quantile - 0.05) < clip < np.quantile(norms, quantile + 0.05)


def test_fedavgm_is_the_sum_of_decayed_updates():
    rng, how = np.random.default_rng(1), ServerStep("momentum", 0.3, 0.8)
    optimiser, updates = ServerOptimiser(how, 4), rng.standard_normal((6, 4))
    for t in range(6):
        expected = 0.3 * sum(0.8 ** (t - s) * updates[s] for s in range(t + 1))
        assert optimiser.step(updates[t]) == pytest.approx(expected, rel=1e-12)


def test_fedadam_divides_by_the_root_of_the_mean_square():
    """Reddi et al. 2021, algorithm 2, with β2 = 0.99 and τ = 1e-3, as closed sums."""
    rng, how = np.random.default_rng(2), ServerStep("adam", 0.1, 0.9)
    optimiser, updates = ServerOptimiser(how, 3), rng.standard_normal((7, 3)) * 0.05
    for t in range(7):
        first = 0.1 * sum(0.9 ** (t - s) * updates[s] for s in range(t + 1))
        second = 0.01 * sum(0.99 ** (t - s) * updates[s] ** 2 for s in range(t + 1))
        assert optimiser.step(updates[t]) == pytest.approx(0.1 * first / (np.sqrt(second) + 1e-3), rel=1e-12)


def test_the_servers_step_size_falls_over_the_planned_rounds():
    optimiser = ServerOptimiser(ServerStep("sgd", 2.0, 0.9, falls_over=4), 1)
    made = [optimiser.step(np.ones(1))[0] for _ in range(4)]
    assert made == pytest.approx([2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5)])


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [
        ("ota_fedavg", ("federated.server_optimizer=adam", *ADAPTIVE)),
        ("ota_head", ("federated.server_optimizer=momentum", "federated.server_schedule=cosine", *ADAPTIVE, *HEAD)),
        ("fedopt", ("federated.server_optimizer=momentum",)),
        ("feddf", ()),
        ("centralised", ()),
    ],
)
def test_a_run_that_was_stopped_resumes_bit_identically(tmp_path, scheme, changes):
    changes = ("learning.rounds=4", *changes)
    whole = played(tmp_path, scheme, *changes, name="whole")

    def kill(record, _):
        if record["round"] == 3:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        played(tmp_path, scheme, *changes, name="cut", on_round=kill)
    ad.resume(tmp_path / "cut")
    for name in ("plan.json", "rounds.jsonl", "ledger.jsonl", "summary.json", "certificate.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (whole.folder / name).read_bytes(), name
    assert weights_of(tmp_path / "cut") == weights_of(whole.folder)


def test_a_head_is_a_linear_layer_on_the_public_embedding(tmp_path):
    """What a device ends with is evaluated as embedding, then weights and biases; K (d + 1) numbers a round."""
    record = played(tmp_path, "ota_head", "learning.rounds=2", *HEAD)
    plan = plan_of(record)
    assert plan.uplink.vector_length == 4 * (5 + 1)
    simulation = Simulation(plan, load_scheme("ota_head"), FLOAT64)
    for _ in range(2):
        simulation.advance()
    theta = linear_weights(simulation)
    dataset, public = _data_of(plan)
    mean, scaled = public.mean(axis=0), public - public.mean(axis=0)
    values, directions = np.linalg.eigh(scaled.T @ scaled / len(public))
    whitened = (dataset.x_test - mean) @ directions[:, ::-1][:, :5] / np.sqrt(values[::-1][:5])
    features = simulation._tests.chunks[0].numpy()
    # Signs of principal directions are arbitrary: each column agrees up to its sign.
    signs = np.sign((features * whitened).sum(axis=0))
    assert features == pytest.approx(whitened * signs, abs=2e-5)
    weight, bias = np.split(theta, [4 * 5])
    predicted = (features @ weight.reshape(4, 5).T + bias).argmax(axis=1)
    assert record.summary["accuracy"]["mean"] == pytest.approx((predicted == dataset.y_test).mean())


def _data_of(plan):
    from airdistill.data.public import load_data

    dataset, public = load_data(plan.scenario)
    return dataset, np.asarray(public.samples, dtype=np.float64)


def test_rounds_of_a_plan_are_the_most_that_keep_the_noise_in_proportion(tmp_path):
    """√D times the deviation of a round's noise is 5 times the clip at most, by the planner's own noise."""
    most = "learning.max_rounds=400"
    optimal, _ = planned(tmp_path, "ota_fedavg", "learning.rounds=optimal", most, "privacy.epsilon=60")
    assert 1 < optimal.num_rounds < 400
    errors = []
    for rounds in (optimal.num_rounds, optimal.num_rounds + 1):
        plan, _ = planned(tmp_path, "ota_fedavg", f"learning.rounds={rounds}", most, "privacy.epsilon=60")
        errors.append(math.sqrt(plan.forecast.effective_noise))
    assert errors[0] <= 5 * plan.uplink.largest_norm < errors[1]


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [
        ("ota_fedavg", ("fleet.participation=0.6",)),
        ("ota_fedavg", ("fleet.participation=0.6", "fleet.participation_hidden=true", *ADAPTIVE)),
        ("ota_fedavg", ("radio.truncation=-125 dB", *ADAPTIVE)),
        ("ota_head", ("radio.truncation=optimal", "privacy.trust=receiver_noise", *HEAD)),
        ("ota_head", ("privacy.trust=own_noise", "radio.csi_error_db=-20", *HEAD)),
        ("ota_head", ("radio.antennas=2", *HEAD)),
        ("ota_fedavg", ("privacy.noise=secure", "privacy.carry_over=true")),
    ],
)
def test_trust_truncation_and_participation_keep_the_target(tmp_path, scheme, changes):
    record = played(tmp_path, scheme, "learning.rounds=3", *changes)
    assert 0 < record.summary["epsilon_spent"] <= 50 * (1 + 1e-9)
    assert ad.certify(record.folder).devices[0].evidence <= 50 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("scheme", "change", "named"),
    [
        ("ota_fedavg", "learning.receiver=tracking", r"learning\.receiver = \"?tracking"),
        ("ota_fedavg", "learning.optimizer=momentum", r"learning\.optimizer = \"?momentum"),
        ("ota_fedavg", "privacy.counts=private", r"privacy\.counts = \"?private"),
        ("ota_head", "public.embedding=patches", r"public\.embedding = \"?patches"),
        ("ota_head", "public.features=16", r"public\.features = 16"),
    ],
)
def test_what_updates_do_not_support_is_refused_at_planning(tmp_path, scheme, change, named):
    with pytest.raises(InputError, match=named):
        planned(tmp_path, scheme, "public.samples=20", change)


def test_devices_with_different_models_share_a_head(tmp_path):
    groups = "fleet.groups=[{count=2, model='softmax_regression'}, {count=1, model='mlp'}]"
    plan, _ = planned(tmp_path, "ota_head", groups, "public.samples=12", "public.features=3")
    assert plan.fleet.num_devices == 3
    with pytest.raises(InputError, match="ota_fedavg needs one model"):
        planned(tmp_path, "ota_fedavg", groups)


def test_certificates_say_what_was_clipped(tmp_path):
    record = played(tmp_path, "ota_head", "learning.rounds=2", *HEAD, *ADAPTIVE)
    text = " ".join([*ad.certify(record.folder).statement, *plan_of(record).assumptions])
    assert "A device's update of the model is clipped to a norm" in text
    assert "The embedding, the number of its features and the first clip" in text
    protocol = payload_protocol(plan_of(record))
    assert type(protocol).__name__ == "HeadUpdateProtocol"
    lines = [json.loads(line)["update"] for line in (record.folder / "rounds.jsonl").read_text().splitlines()]
    assert lines[0]["clip_norm"] == pytest.approx(0.3)
    share = lines[0]["share_below_clip"]
    assert lines[1]["clip_norm"] == pytest.approx(0.3 * math.exp(-0.2 * (share - 0.5)))


@pytest.mark.parametrize("changes", [(), ADAPTIVE])
@pytest.mark.parametrize("model", ["mlp-8", "update_worlds:Normalised"])
def test_no_devices_data_reach_what_another_one_sends_but_through_broadcasts(tmp_path, model, changes):
    """Not through a clip, an optimiser, running means of batch normalisation or the generator of dropout: with the same
    broadcasts, only the device whose data differ sends other vectors."""
    sent = []
    for factor in (1.0, -3.0):
        epochs = ("learning.local_epochs=2", "learning.batch_size=5")
        simulation = simulation_of(tmp_path, "ota_fedavg", f"learning.model={model}", *epochs, *changes)
        plan, fleet, rng = simulation.plan, simulation.fleet, np.random.default_rng(0)
        samples, _ = fleet.learners[0].samples_and_labels()
        samples.mul_(factor)
        fleet.learners[0].drop_cache()
        protocol, vectors = payload_protocol(plan), []
        for index in (1, 2, 3):
            seed_torch(plan.scenario, index)
            vectors.append(protocol.vectors(fleet, index, range(3)))
            broadcast = 0.1 * rng.standard_normal((1, plan.uplink.vector_length))
            broadcast[0, plan.uplink.payload.num_parameters :] = 0.3  # the next clip, if it adapts
            protocol.learn(fleet, index, broadcast, range(3))
        sent.append(np.array(vectors))
    moved = np.abs(sent[0] - sent[1]).max(axis=(2, 3))
    assert (moved[:, 0] > 0).all()
    assert (moved[:, 1:] == 0).all()
