"""The exact audit against an independent implementation of its equations, and against the certificate."""

import json
from dataclasses import replace

import numpy as np
import pytest
from audit_contexts import FLOAT64, no_progress, noise_of_run, planned, small_context
from hypothesis import given, settings
from hypothesis import strategies as st

import airdistill as ad
from airdistill.audit import AuditOptions, audit
from airdistill.audit.exact import audit_exactly, guarantee_of, measured_mu
from airdistill.audit.neighbours import NeighbouringPair, follow, neighbours_of
from airdistill.learning.models import build_model
from airdistill.planning.payloads import CLASS_MEAN_BOUND, LEMMA_1, RECORD_GRADIENT
from airdistill.privacy.gaussian import gaussian_epsilon
from airdistill.runs.options import RunOptions
from airdistill.streams import stream

FEW = AuditOptions(transcripts=2, candidates=4, parts=("exact",))


class SoftmaxRegression:
    """Eqs. (1), (2) and (4) by hand for logits x W' + b."""

    def __init__(self, context):
        model = build_model(
            "softmax_regression", (4,), 3, stream(0, "model-weights", 0, 0), FLOAT64.learning_engine().dtype
        )
        self.weight, self.bias = (parameter.detach().numpy().copy() for parameter in model.parameters())
        self.one_hot = np.eye(3)[context.own_labels]

    def predict(self, samples):
        scores = np.exp(samples @ self.weight.T + self.bias)
        return scores / scores.sum(axis=1, keepdims=True)

    def knowledge(self, samples):
        return self.one_hot.T @ self.predict(samples) / self.one_hot.sum(axis=0)[:, None]

    def step(self, samples, received, lr, gamma):
        p = self.predict(samples)
        outer = 2 * gamma * (p - self.one_hot @ received)
        gradient = (p - self.one_hot + p * (outer - (outer * p).sum(axis=1, keepdims=True))) / len(p)
        self.weight -= lr * gradient.T @ samples
        self.bias -= lr * gradient.sum(axis=0)


def test_two_rounds_by_hand(tmp_path):
    context = small_context(tmp_path, "ota_fd", "privacy.trust=receiver_noise", "learning.distill_weight=2", rounds=2)
    neighbour = neighbours_of(context, 4, seed=3)[3]
    followed = follow(context, [neighbour], 11, context.link.seeded_noise)
    datasets, shifts = (context.own_samples, neighbour.samples), []
    learners = [SoftmaxRegression(context) for _ in datasets]
    counts = context.plan.fleet.class_counts
    weights = counts[0] / counts.sum(axis=0)
    costs = []
    for this in context.rounds:
        own, other = (learner.knowledge(samples) for learner, samples in zip(learners, datasets, strict=True))
        shifts.append(((own - other) ** 2).sum(axis=1))
        # receiver_noise: v = σ²/λ², and half of the receiver's noise power lies on the real axis.
        counted = 5e-15 / 2 / this.design.rx_scale**2
        costs.append((weights**2 * shifts[-1] / counted).sum())
        noise = stream(11, "receiver-noise", this.index).standard_normal((2, 3, 3))[0] * np.sqrt(5e-15 / 2)
        received = this.others + weights[:, None] * own + noise / this.design.rx_scale[:, None]
        for learner, samples in zip(learners, datasets, strict=True):
            learner.step(samples, received, 0.1 / np.sqrt(this.index), gamma=2)
    assert followed.squared_shift[:, 0] == pytest.approx(np.array(shifts), rel=1e-9)
    assert measured_mu(context, followed)[:, 0] == pytest.approx(np.sqrt(np.cumsum(costs)), rel=1e-9)


@pytest.mark.parametrize("scheme", ["ota_fd", "orthogonal_fd", "ota_fl"])
def test_the_replay_agrees_with_the_run_and_with_the_neighbouring_pair(tmp_path, scheme):
    """With the run's own noise, the learner on D receives the same broadcasts as the devices of the run."""
    changes = ("learning.local_epochs=1", "learning.batch_size=6")
    context = small_context(tmp_path, scheme, *changes, rounds=4, device=1)
    run = ad.run(context.scenario, scheme, out=tmp_path / "run", options=FLOAT64)
    source = noise_of_run(context, run.folder)
    followed = follow(context, neighbours_of(context, 1, 0), 0, source, True)
    for this, vectors, broadcast, line in zip(
        context.rounds, followed.vectors, context.broadcasts, run.rounds, strict=False
    ):
        noise = source(0, this.index, this.design)
        assert context.link.received(this, vectors[0], noise) == pytest.approx(broadcast, rel=1e-9)
        ideal = this.others + this.design.weights[1][:, None] * vectors[0]
        assert ((broadcast - ideal) ** 2).mean(axis=1) == pytest.approx(np.array(line["measured_noise_var"]), rel=1e-6)


@settings(max_examples=10)
@given(
    model=st.sampled_from(["softmax_regression", "mlp"]),
    lr=st.floats(0.01, 5),
    epochs=st.integers(0, 2),
    trust=st.sampled_from(["receiver_noise", "fleet_noise", "own_noise"]),
    partition=st.sampled_from([["data.partition=iid"], ["data.partition=shards", "data.classes_per_device=2"]]),
    scheme=st.sampled_from(["ota_fd", "orthogonal_fd"]),
    seed=st.integers(0, 1000),
    device=st.integers(0, 2),
)
def test_no_training_exceeds_the_guarantee_of_a_whole_device(
    tmp_path_factory, model, lr, epochs, trust, partition, scheme, seed, device
):
    changes = [f"learning.model={model}", f"learning.initial_lr={lr}", f"learning.local_epochs={epochs}", *partition]
    changes += ["learning.batch_size=5", f"privacy.trust={trust}", f"seed={seed}", "data.samples_per_device=16"]
    folder = tmp_path_factory.mktemp("context")
    plan, chosen = planned(folder, scheme, *changes)
    options = AuditOptions(device=device, rounds=4, transcripts=2, candidates=4, parts=("exact",), seed=seed)
    found = audit(plan, chosen, options, RunOptions(threads=1))
    assert found.violations == ()
    assert all(pair.compared for pair in found.exact.pairs)
    assert all((pair.mu <= found.exact.guarantee.mu * (1 + 1e-9)).all() for pair in found.exact.pairs)
    assert found.exact.pairs[1].mu.max() > 0


def test_lemma_1_is_found_not_to_be_a_valid_bound(tmp_path):
    changes = ("learning.initial_lr=1", "privacy.sensitivity=paper", "privacy.trust=receiver_noise")
    plan, chosen = planned(tmp_path, "ota_fd", *changes)
    found = audit(plan, chosen, FEW, RunOptions(threads=1))
    record = found.exact.pairs[0]
    assert record.ratios[LEMMA_1].min(axis=0).max() > 1.5
    assert record.ratios[LEMMA_1] == pytest.approx(record.ratios["declared, paper"])
    assert (record.ratios[CLASS_MEAN_BOUND] < record.ratios[LEMMA_1]).all()
    assert "declared sensitivity (paper) is not a valid bound" in found.violations[0]
    assert not found.exact.pairs[1].compared


def test_an_exceeded_certificate_is_reported_with_both_epsilons(tmp_path):
    """A known fault: the noise is far less than the shift of one record requires."""
    changes = ("learning.initial_lr=3", "privacy.sensitivity=paper", "privacy.trust=own_noise")
    plan, chosen = planned(tmp_path, "ota_fd", *changes)
    found = audit(plan, chosen, FEW, RunOptions(threads=1)).exact
    record, delta = found.pairs[0], found.guarantee.delta
    smallest = record.mu.min(axis=0)
    assert smallest[-1] > found.guarantee.mu[-1]
    assert "The certificate does not hold" in found.violations[1]
    assert record.epsilon(delta)[-1] == pytest.approx(gaussian_epsilon(smallest[-1], delta))
    assert record.epsilon(delta)[-1] > found.guarantee.epsilon[-1]


@pytest.mark.parametrize("model", ["paper", "class_mean", "trajectory", "device"])
@pytest.mark.parametrize("relabel", [False, True])
def test_the_certified_mu_of_every_model_by_hand(tmp_path, model, relabel):
    changes = (f"privacy.sensitivity={model}", f"privacy.relabel={str(relabel).lower()}", "radio.fading=none")
    context = small_context(tmp_path, "ota_fd", *changes, rounds=1, device=2)
    counts = context.plan.fleet.class_counts[2]
    sensitivity = {
        "paper": np.full(3, np.sqrt(2) / 20),
        "class_mean": np.sqrt(2) / counts,
        "trajectory": np.sqrt(2) / counts,  # in the first round nothing has drifted
        "device": np.full(3, np.sqrt(2)),
    }[model]
    weights = counts / context.plan.fleet.class_counts.sum(axis=0)
    costs = np.sort((weights * sensitivity) ** 2 / context.rounds[0].design.counted_noise_var[2])
    num_classes = 3 if model in ("trajectory", "device") else 1 + relabel
    guarantee = guarantee_of(context)
    assert guarantee.sensitivity[0] == pytest.approx(sensitivity)
    assert guarantee.mu[0] == pytest.approx(np.sqrt(costs[-num_classes:].sum()))


@settings(max_examples=5)
@given(lr=st.floats(0.01, 2), clip=st.floats(0.05, 3), sampled=st.booleans(), seed=st.integers(0, 1000))
def test_a_record_never_moves_a_clipped_gradient_further_than_2c_over_b(tmp_path_factory, lr, clip, sampled, seed):
    changes = [f"learning.initial_lr={lr}", f"learning.clip_norm={clip}", f"seed={seed}", "privacy.sensitivity=paper"]
    changes += ["fleet.sampling=with_replacement", "fleet.sampled_devices=2"] if sampled else []
    plan, chosen = planned(tmp_path_factory.mktemp("context"), "ota_fl", *changes)
    found = audit(plan, chosen, AuditOptions(transcripts=2, candidates=4, seed=seed, parts=("exact",)), FLOAT64)
    record = found.exact.pairs[0]
    assert (record.ratios[RECORD_GRADIENT] <= 1 + 1e-9).all()
    assert found.violations == ()
    not_sampled = [plan.uplink.weights(index)[0, 0] == 0 for index in range(1, 7)]
    assert (record.shift[:, not_sampled] == 0).all()
    steps = np.diff(record.mu, axis=1, prepend=0)
    assert ((steps == 0).all(axis=0) == np.array(not_sampled)).all()


def test_stacked_learners_drift_as_far_as_those_trained_one_by_one(tmp_path):
    """A GPU trains all learners in the same operations."""
    context = small_context(
        tmp_path, "ota_fd", "learning.local_epochs=1", "learning.batch_size=6", "learning.model=mlp"
    )
    candidates = neighbours_of(context, 4, 0)
    stacked = replace(context, engine=replace(context.engine, stacked=True))
    shifts = [follow(each, candidates, 0, each.link.seeded_noise).squared_shift for each in (context, stacked)]
    assert shifts[0][1:].min() > 0
    assert shifts[1] == pytest.approx(shifts[0], rel=1e-6)


@pytest.mark.parametrize("engine", [{}, {"stacked": True}])
@pytest.mark.parametrize("scheme", ["ota_fd", "ota_fl"])
def test_learners_begin_every_transcript_from_the_initial_weights(tmp_path, scheme, engine):
    context = small_context(tmp_path, scheme)
    context = replace(context, engine=replace(context.engine, **engine))
    learners = NeighbouringPair(context, neighbours_of(context, 2, 0))
    first, other, again = (learners.follow(seed, context.link.seeded_noise).squared_shift for seed in (0, 1, 0))
    assert (first == again).all()
    assert (first[-1] != other[-1]).any()


def test_the_same_seed_gives_the_same_audit(tmp_path):
    plan, chosen = planned(tmp_path)
    options = AuditOptions(transcripts=2, trials=10, rounds=2)
    first, again = (audit(plan, chosen, options, RunOptions(threads=n)).to_dict() for n in (1, 2))
    assert json.dumps(first, allow_nan=False) == json.dumps(again, allow_nan=False)
    other = audit(plan, chosen, AuditOptions(transcripts=2, trials=10, rounds=2, seed=1), RunOptions(threads=1))
    assert other.to_dict()["exact"] != first["exact"]


def test_learners_of_a_model_that_draws_at_random_draw_the_same(tmp_path, monkeypatch):
    (tmp_path / "forgetful.py").write_text(
        "from torch import nn\n\n\ndef model(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, num_classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    context = small_context(tmp_path, "ota_fd", "learning.model=forgetful:model", rounds=3)
    unchanged = neighbours_of(context, 1, 0)[0]
    same = replace(unchanged, samples=context.own_samples)
    assert (follow(context, [same], 0, context.link.seeded_noise).squared_shift == 0).all()
    found = audit_exactly(context, [same, same], AuditOptions(transcripts=1), no_progress)
    assert found.violations == ()
    assert (found.pairs[0].epsilon(0.1) == 0).all()
