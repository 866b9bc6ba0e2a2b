"""Inference of a device's label distribution from its answers on a public set."""

from dataclasses import replace

import mutants
import numpy as np
import pytest
from audit_contexts import no_progress, planned, small_context
from small_worlds import write_dataset

from airdistill.audit import AuditOptions, audit
from airdistill.audit.label_readers import Others, Reader
from airdistill.audit.label_shadows import LabelShadows, other_shares, total_variation
from airdistill.audit.labels import LabelAttack, LabelAudit, advantage_of, audit_labels
from airdistill.audit.membership import auc
from airdistill.radio.superposition import RoundNoise
from airdistill.runs.options import RunOptions

CHANGES = (
    "fleet.devices=6", "data.partition=shards", "data.classes_per_device=2", "public.samples=100", "learning.rounds=1",
    "learning.local_epochs=10", "learning.batch_size=5", "public.distill_epochs=1", "learning.receiver=projected",
)  # fmt: skip
OPTIONS = AuditOptions(trials=300, shadows=6, parts=("labels",))


def blobs(folder, *changes):
    """Six devices that hold two of four blobs each; 300 test samples are not public."""
    path = folder / "labels.npz"
    if not path.exists():
        write_dataset(path, num_classes=4, features=(8,), num_train=240, num_test=400)
    return f"data.dataset={path}", *CHANGES, *changes


def attacked(folder, *changes, scheme="airdistill_proxy", options=OPTIONS, factor=1.0, rounds=1):
    context = small_context(folder, scheme, *blobs(folder, *changes), rounds=rounds)
    return audit_labels(context, options, no_progress, scaled(context.link.seeded_noise, factor))


def scaled(noise_of, factor):
    """Noise with `factor` times the correct variance."""

    def source(seed, round_index, design):
        noise = noise_of(seed, round_index, design)
        return RoundNoise(noise.artificial * np.sqrt(factor), noise.receiver * np.sqrt(factor))

    return source


@pytest.mark.parametrize("scheme", ["airdistill_proxy", "ota_proxy_fd"])
def test_without_noise_the_labels_are_recovered(tmp_path, scheme):
    found = attacked(tmp_path, "privacy.epsilon=inf", scheme=scheme)
    strongest, sum_only = found.attacks
    assert strongest.auc.value == strongest.advantage.value == 1
    assert strongest.distance_without_noise < 0.15 < 0.4 < found.distance_of_guess
    assert strongest.distance == pytest.approx(strongest.distance_without_noise)
    assert sum_only.auc.low > 0.8
    assert sum_only.distance > 2 * strongest.distance  # the others' answers hide the device's
    assert found.violations == ()  # nothing is certified


@pytest.mark.parametrize(
    ("scheme", "trust"),
    [("airdistill_proxy", "receiver_noise"), ("airdistill_proxy", "own_noise"), ("ota_proxy_fd", "fleet_noise")],
)
def test_certified_noise_keeps_the_attack_within_the_bound(tmp_path, scheme, trust):
    found = attacked(tmp_path, f"privacy.trust={trust}", "privacy.epsilon=8", scheme=scheme)
    assert found.violations == ()
    assert found.mu == pytest.approx(1.67, abs=0.01)  # μ of ε = 8 at δ = 1e-5
    assert (found.allowed_auc, found.allowed_advantage) == (
        pytest.approx(0.881, abs=1e-3),
        pytest.approx(0.595, abs=2e-3),
    )
    assert found.attacks[0].auc.low > 0.6  # the attack works, and not as well as it may
    assert found.attacks[0].auc.value < found.allowed_auc
    assert found.attacks[0].distance > 3 * found.attacks[0].distance_without_noise


@pytest.mark.parametrize("trust", ["receiver_noise", "own_noise"])
def test_a_tenth_of_the_noise_is_a_violation(tmp_path, trust):
    """Fails if the attack reads nothing: its AUC must exceed what μ allows."""
    plan, chosen = planned(tmp_path, "airdistill_proxy", *blobs(tmp_path, f"privacy.trust={trust}"))
    context = small_context(tmp_path, "airdistill_proxy", *blobs(tmp_path, f"privacy.trust={trust}"), rounds=1)
    source = scaled(context.link.seeded_noise, 0.1)
    found = audit(plan, chosen, OPTIONS, RunOptions(threads=1), noise_source=source)
    assert found.labels.attacks[0].auc.low > found.labels.allowed_auc
    assert any("who knows the others' answers" in sentence and "an AUC" in sentence for sentence in found.violations)
    assert any("an advantage" in sentence for sentence in found.violations)


def test_an_attack_at_the_bound_raises_no_alarm():
    """Scores of the optimal test of a mechanism that spends exactly what is certified."""
    rng, alarms, mu = np.random.default_rng(0), 0, 1.5
    for _ in range(400):
        negative, positive = rng.normal(-(mu**2) / 2, mu, 60), rng.normal(mu**2 / 2, mu, 60)
        attack = LabelAttack("", auc(positive, negative), advantage_of(positive, negative), 0.0, 0.0)
        shares = np.full(2, 0.5)
        alarms += bool(LabelAudit((shares, shares), 1, 60, 60, mu, "seeded", 0.0, (attack,)).violations)
    assert alarms <= 3  # 0.4 are expected at a level of 99.9 % of two intervals


def test_sums_of_discrete_gaussians_have_a_wider_bound():
    shares = np.full(2, 0.5)
    for mu in (0.01, 0.3, 1.5, 4, 30):
        seeded, secure = (LabelAudit((shares, shares), 1, 60, 60, mu, noise, 0.0, ()) for noise in ("seeded", "secure"))
        assert seeded.allowed_advantage <= secure.allowed_advantage <= 1
        assert seeded.allowed_auc <= secure.allowed_auc <= 1


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]),  # the most frequent classes become the rarest
        ([0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0, 0]),  # half of the classes: farther than the shares in reverse order
        ([0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0]),
        ([0, 0, 1, 0], [0, 0, 0, 1]),
    ],
)
def test_the_other_label_distribution_is_far_away(own, expected):
    found = other_shares(np.array(own), np.arange(4))
    assert found.sum() == pytest.approx(1)
    assert total_variation(found, np.array(own)) == pytest.approx(total_variation(np.array(expected), np.array(own)))


def test_classes_without_unused_records_are_left_out():
    found = other_shares(np.array([0.5, 0.5, 0.0, 0.0]), np.array([0, 1, 3]))
    assert found.tolist() == [0, 0, 0, 1]


def synthetic(rng, size=12, num_rounds=2, entries=6):
    kinds = {kind: rng.normal(size=(size, num_rounds, entries)) for kind in ("own", "other", "any", "fleet")}
    kinds["other"] += 1
    shares = rng.dirichlet(np.ones(3), size)
    kinds["any"][:, :, :3] += 2 * shares[:, None]
    return LabelShadows((shares[0], shares[1]), shares, kinds["any"][:2], kinds)


@pytest.mark.parametrize("sum_only", [False, True])
def test_readings_are_those_of_a_gaussian_model(sum_only):
    """Against the formula with dense covariances."""
    rng, noise_var = np.random.default_rng(0), np.array([0.5, 2.0])
    shadows = synthetic(rng)
    others = Others(3, rng.normal(size=(5, 2, 6)), np.array([1.0, 0.5])) if sum_only else None
    reader = Reader.of(shadows, noise_var, others)
    flat = {kind: answers.reshape(12, -1) for kind, answers in shadows.answers.items()}
    spread = np.concatenate(list(shadows.answers.values())).var(axis=0).mean(axis=-1)
    noise, mean = np.repeat(noise_var + 0.01 * spread, 6), 0.0
    if others is not None:
        each = (others.answers * others.weight[:, None]).reshape(5, -1)
        noise = noise + 2.4 * np.repeat(each.reshape(5, 2, 6).var(axis=0).mean(axis=-1), 6)
        mean = 3 * each.mean(axis=0)
    # Half of three devices' covariance, and of the squared error of their mean from five shadow devices.
    hidden = 0.0 if others is None else 2.4 * np.cov(each.T)
    within = (np.cov(flat["own"].T) + np.cov(flat["other"].T)) / 2 + np.diag(noise) + hidden
    means = [flat[kind].mean(axis=0) for kind in ("own", "other")]
    answers = rng.normal(size=(4, 2, 6))
    ratio, shares = reader.read(reader.linear(answers))
    centred = answers.reshape(4, -1) - mean
    assert ratio == pytest.approx((centred - sum(means) / 2) @ np.linalg.solve(within, means[1] - means[0]))
    assert shares.sum(axis=1) == pytest.approx(1)
    whole = np.cov(flat["any"].T) + np.diag(noise) + hidden
    joint = (flat["any"] - flat["any"].mean(axis=0)).T @ (shadows.any_shares - shadows.any_shares.mean(axis=0)) / 11
    dense = shadows.any_shares.mean(axis=0) + (centred - flat["any"].mean(axis=0)) @ np.linalg.solve(whole, joint)
    linear = (reader.linear(answers) + reader.offset)[:, 1:]
    assert np.allclose(linear, dense) != np.allclose(linear, from_sums(shadows, noise, hidden, centred))


def from_sums(shadows, noise, hidden, centred):
    """The same from the sums of every class's entries alone, each divided by its noise."""
    flat = shadows.answers["any"].reshape(12, -1)
    sums = np.concatenate([np.tile(np.eye(3), 4) / noise])
    features = flat @ sums.T
    covariance = np.cov(features.T)
    whole = covariance + 0.01 * np.trace(covariance) / 3 * np.eye(3) + sums @ (np.diag(noise) + hidden) @ sums.T
    joint = (features - features.mean(axis=0)).T @ (shadows.any_shares - shadows.any_shares.mean(axis=0)) / 11
    return shadows.any_shares.mean(axis=0) + (centred @ sums.T - features.mean(axis=0)) @ np.linalg.solve(whole, joint)


def test_several_rounds_are_counted_together(tmp_path):
    found = attacked(tmp_path, "learning.rounds=2", "privacy.epsilon=8", rounds=2)
    assert (found.num_rounds, found.violations) == (2, ())
    assert found.mu == pytest.approx(1.67, abs=0.01)
    assert found.attacks[0].auc.low > 0.6
    low = attacked(tmp_path, "learning.rounds=2", "privacy.epsilon=8", rounds=2, factor=0.1)
    assert low.violations


def test_secure_noise_is_attacked_as_it_is_drawn(tmp_path, monkeypatch):
    plan, chosen = planned(tmp_path, "airdistill_proxy", *blobs(tmp_path, "privacy.noise=secure"))
    mutants.seeded_secure_noise(monkeypatch)  # with the operating system's, 20 trials have another value each time
    found = audit(plan, chosen, replace(OPTIONS, trials=20, shadows=4), RunOptions(threads=1))
    assert found.violations == ()
    assert found.labels.noise == "secure"
    assert found.labels.attacks[0].auc.value > 0.5


def test_a_fleet_of_one_device_has_no_others(tmp_path):
    found = attacked(tmp_path, "fleet.devices=1", "data.partition=iid", "privacy.epsilon=8")
    assert found.attacks[1].auc == found.attacks[0].auc
    assert found.violations == ()


def test_class_means_do_not_protect_labels_by_declaration(tmp_path):
    plan, chosen = planned(tmp_path, "ota_fd")
    found = audit(plan, chosen, OPTIONS, RunOptions(threads=1))
    assert found.labels is None
    assert found.to_dict()["labels"] is None
    assert any("Class counts are public by declaration, and so class means do not" in note for note in found.notes)


def test_what_cannot_be_attacked_is_noted(tmp_path):
    gains = "radio.gains=[[1e-4, 0], [0, 0], [1e-4, 0], [1e-4, 0], [1e-4, 0], [1e-4, 0]]"
    plan, chosen = planned(tmp_path, "ota_proxy_fd", *blobs(tmp_path, gains))
    found = audit(plan, chosen, replace(OPTIONS, device=1), RunOptions(threads=1))
    assert found.labels is None
    assert any("the device sends in no round" in note for note in found.notes)
    write_dataset(tmp_path / "few.npz", num_classes=4, features=(8,), num_train=120, num_test=101)
    plan, chosen = planned(tmp_path, "ota_proxy_fd", *blobs(tmp_path, f"data.dataset={tmp_path / 'few.npz'}"))
    found = audit(plan, chosen, OPTIONS, RunOptions(threads=1))
    assert found.labels is None
    assert any("records of at least two classes that no device trained on" in note for note in found.notes)
