"""Feature means in clusters of public samples: vectors, bounds, reading, guarantee, the planner's choice, refusals."""

import itertools
import json

import numpy as np
import pytest
import torch
from audit_contexts import planned
from feature_worlds import CLASSES, DEVICES, FAST, epsilon_of_gaussian, plan_of, played, skewed

import airdistill as ad
from airdistill.audit import AuditOptions, audit_run
from airdistill.data.datasets import load_dataset
from airdistill.errors import InputError
from airdistill.learning.class_features import ReceivedMeans, read_clusters
from airdistill.learning.cluster_features import fit_clusters
from airdistill.learning.fleet import Engine
from airdistill.planning.feature_means import ClusterMeans
from airdistill.planning.plan import Plan
from airdistill.planning.what_if.feature_means import feature_evidence
from airdistill.privacy.ledger import Ledger
from airdistill.scenario import load
from airdistill.schemes.feature_means import device_vector
from airdistill.schemes.payloads import payload_protocol
from airdistill.schemes.registry import plan_run

CLUSTERS = ("public.embedding=clusters", "public.features=8")


def means(counts, norm_bound=1e9, sample_bound=1.0, count_norm=0.0, dimensions=4):
    class Fleet:
        class_counts = np.atleast_2d(counts)
        num_devices, num_classes = class_counts.shape

    return ClusterMeans(Fleet, dimensions, norm_bound, sample_bound, count_norm)


def sent(payload, features, labels):
    return device_vector(payload, features, labels, payload.fleet.class_counts[0])


@pytest.fixture(scope="module")
def digits():
    mnist = load_dataset("mnist")
    return torch.from_numpy(mnist.x_test[:600].copy()), mnist.y_test[:600], torch.from_numpy(mnist.x_train[:300].copy())


@pytest.fixture(scope="module")
def found(digits):
    return fit_clusters(digits[0], 20, Engine(), seed=0)


# Clusters.


def test_a_sample_is_in_the_cluster_of_most_of_its_nearest_public_neighbours(digits, found):
    """Distances one by one, in the directions in which neighbours agree."""
    samples = digits[2][:40]
    embedded = found._embedding.features(samples).double().numpy() @ found.public.rotation
    codes = found.features(samples).numpy()
    for row, code in zip(embedded, codes, strict=True):
        distances = (((found.public.features - row) ** 2) * found.public.correlation).sum(axis=1)
        votes = np.bincount(found.of_public[np.argsort(distances)[:10]], minlength=20)
        assert votes[code.argmax()] == votes.max()
    assert np.array_equal(np.unique(codes), [0.0, 1.0])
    assert np.array_equal(codes.sum(axis=1), np.ones(40))


def test_replacing_a_record_leaves_the_rows_of_all_others_as_they_are(digits, found):
    """Bit by bit: a cluster that flipped by rounding would move the vector by more than the bound of one record."""
    before = found.features(digits[2])
    for changed in (0, 17, 299):
        other = digits[2].clone()
        other[changed] = 255 - other[changed]
        rest = torch.arange(300) != changed
        assert torch.equal(found.features(other)[rest], before[rest])
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    assert torch.equal(found.features(digits[2][order]), before[order])
    assert torch.equal(found.features(digits[2][:7], 3), before[:7])
    assert found.features(digits[2][:0]).shape == (0, 20)


def test_clusters_are_mostly_of_one_class_and_repeat(digits, found, tmp_path, monkeypatch):
    labels = digits[1]
    pure = sum(np.bincount(labels[found.of_public == cluster]).max() for cluster in range(20))
    assert pure > 0.6 * len(labels)  # 0.9 of 3000 samples
    monkeypatch.setenv("AIRDISTILL_CACHE", str(tmp_path))
    again = [fit_clusters(digits[0], 20, Engine(), seed=0) for _ in range(2)]
    assert {each.digest for each in again} == {found.digest}
    assert fit_clusters(digits[0], 21, Engine(), seed=0).digest != found.digest


# Bounds.


@pytest.mark.parametrize("counts", [[5, 3], [1, 7, 0], [2, 2, 2]])
def test_no_changed_record_exceeds_the_bound_and_the_worst_one_reaches_it(counts):
    """√2/√(n_min n): two shares in different clusters are at right angles. Features of any sign are attacked with."""
    rng, payload = np.random.default_rng(1), means([counts])
    smallest = min(count for count in counts if count)
    bound = payload.sensitivity("class_mean")[0]
    assert bound == pytest.approx(np.sqrt(2 / (smallest * sum(counts))))
    labels, largest = np.repeat(np.arange(len(counts)), counts), 0.0
    for _ in range(400):
        features = rng.standard_normal((len(labels), 4)) * rng.choice([0.3, 3])
        other, relabelled, changed = features.copy(), labels.copy(), rng.integers(len(labels))
        other[changed] = rng.choice([-features[changed], np.eye(4)[rng.integers(4)], features[changed]])
        relabelled[changed] = rng.integers(len(counts))
        largest = max(largest, np.linalg.norm(sent(payload, features, labels) - sent(payload, other, relabelled)))
    assert 0.5 * bound < largest <= bound * (1 + 1e-12)
    first = np.flatnonzero(labels == np.argmin(np.where(np.array(counts) > 0, counts, 99)))[0]
    one, other = np.zeros((2, len(labels), 4))
    one[first, 0] = other[first, 1] = 1
    assert np.linalg.norm(sent(payload, one, labels) - sent(payload, other, labels)) == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_private_counts_of_a_device_that_a_record_changes(size):
    """All splits of a few records over three classes, and all clusters before and after."""
    largest = 0.0
    for labels in itertools.product(range(3), repeat=size):
        payload = means([[size, 0, 0]], count_norm=0.7)
        bound = payload.sensitivity("class_mean")[0]
        assert bound == pytest.approx(np.sqrt((2 + 2 * 0.7**2) / size))
        for new_label, before, after in itertools.product(range(3), range(2), range(2)):
            features = np.eye(4)[[before] * size]
            other, relabelled = features.copy(), np.array(labels)
            other[0], relabelled[0] = np.eye(4)[after], new_label
            moved = np.linalg.norm(sent(payload, features, np.array(labels)) - sent(payload, other, relabelled))
            largest = max(largest, moved / bound)
    assert 0.5 < largest <= 1 + 1e-12


def test_two_devices_differ_by_at_most_the_root_of_two_times_the_clip():
    """Random vectors of any sign and label before the clip, and the worst pair: other clusters, or other classes."""
    rng, payload = np.random.default_rng(0), means([[4, 4]], norm_bound=0.5)
    bound, removed = payload.sensitivity("device")[0], payload.largest_norm
    assert (bound, removed) == (pytest.approx(0.5 * np.sqrt(2)), 0.5)
    for _ in range(300):
        vectors = [sent(payload, rng.standard_normal((8, 4)) * 3, rng.integers(2, size=8)) for _ in range(2)]
        assert np.linalg.norm(vectors[0] - vectors[1]) <= bound * (1 + 1e-12)
        assert max(np.linalg.norm(each) for each in vectors) <= removed * (1 + 1e-12)
        assert min(each.min() for each in vectors) >= 0
    one, other = (np.eye(4)[[cluster] * 8] for cluster in (0, 1))
    labels = np.repeat([0, 1], 4)
    assert np.linalg.norm(sent(payload, one, labels) - sent(payload, other, labels)) == pytest.approx(bound)


# The whole.


@pytest.mark.parametrize("counts", ["public", "private"])
@pytest.mark.parametrize(("model", "epsilon"), [("device", 8.0), ("class_mean", 1.0)])
def test_both_guarantees_are_certified_side_by_side(tmp_path, counts, model, epsilon):
    """ε of the largest shift over the counted noise; the shifts are those of vectors without negative entries."""
    changes = (f"privacy.sensitivity={model}", f"privacy.epsilon={epsilon}", f"privacy.counts={counts}")
    record = played(tmp_path, "feature_means", *CLUSTERS, *changes)
    plan, certificate = plan_of(record), ad.certify(record.folder)
    payload, held = plan.uplink.payload, plan.fleet.class_counts
    assert isinstance(payload, ClusterMeans)
    rho, tau, samples = payload.norm_bound, payload.count_norm, held.sum(axis=1)
    assert (payload.sample_bound, tau > 0) == (1.0, counts == "private")
    assert rho == (pytest.approx(0.5) if model == "device" else 1.0)
    shifts = {"device": np.full(DEVICES, np.sqrt(2 * rho**2 + 2 * tau**2))}
    least = np.where(held > 0, held, 10**9).min(axis=1)
    one = (
        np.sqrt(2 / (least * samples))
        if tau == 0
        else np.sqrt(np.minimum(2 * rho**2, 2 / samples) + 2 * tau**2 / samples)
    )
    shifts["class_mean"] = np.minimum(shifts["device"], one)
    release = next(release for _, release in Ledger.read(record.folder / "ledger.jsonl").history())
    deviation = np.sqrt(release.counted_noise_var["fleet_noise"][:, 0])
    stated = {"device": certificate.device_epsilon, "class_mean": certificate.record_epsilon}
    for name, shift in shifts.items():
        expected = max(epsilon_of_gaussian(mu, 1e-5) for mu in shift / DEVICES / deviation)
        assert (epsilon if name == model else stated[name]) == pytest.approx(expected, rel=1e-5)
    words = " ".join(certificate.statement)
    assert "shares of its samples in clusters of the public samples" in words
    assert "√2·ρ" in words
    assert json.loads((record.folder / "plan.json").read_text())["scenario"]["public"]["embedding"] == "clusters"


@pytest.mark.parametrize("scheme", ["feature_means", "airdistill_features"])
def test_clusters_teach_all_classes(tmp_path, scheme):
    """A record says how the sum was read, and a run resumes to the same."""
    changes = (*CLUSTERS, "learning.rounds=2", "privacy.epsilon=200")
    record = played(tmp_path, scheme, *changes)
    rounds = [json.loads(line) for line in (record.folder / "rounds.jsonl").read_text().splitlines()]
    assert rounds[-1]["features"]["reading"] == ("clusters" if scheme == "feature_means" else "clusters_em")
    assert rounds[-1]["labels_right"]["received"] > 0.8
    made = plan_of(record)
    assert Plan.from_dict(made.to_dict()).to_dict() == made.to_dict()
    if scheme == "feature_means":  # which reads every sum by itself: there is nothing to restore
        return

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        played(tmp_path, scheme, *changes, name="stopped", on_round=stop)
    ad.resume(tmp_path / "stopped")
    assert (tmp_path / "stopped" / "rounds.jsonl").read_text() == (record.folder / "rounds.jsonl").read_text()


def test_the_best_attack_on_a_device_comes_close_to_the_certificate(tmp_path):
    public = ("public.samples=25", "public.distill_epochs=1", "learning.rounds=2", "privacy.epsilon=2")
    plan, _ = planned(tmp_path, "feature_means", *public, "privacy.delta=1e-5", "public.embedding=clusters")
    run = ad.run(plan.scenario, "feature_means", out=tmp_path / "run", options=FAST)
    options = AuditOptions(transcripts=1, candidates=2, trials=100, parts=("recorded", "exact", "empirical"))
    found = audit_run(run.folder, options)
    assert found.violations == ()
    record, device = found.exact.pairs[-2:]
    assert (device.relation, device.constructed, device.compared) == ("device", True, True)
    assert 0.999 < found.exact.certified_ratio(device)[-1] <= 1 + 1e-9
    assert record.ratios["one record, theory section 10"].max() == pytest.approx(1)
    pairs = payload_protocol(plan).constructed_pairs(0, np.random.default_rng(0))
    first, second = next(pair.vectors for pair in pairs if pair.relation == "device")[:, 0]
    assert np.linalg.norm(first) == pytest.approx(plan.uplink.payload.norm_bound)
    assert first @ second == 0
    assert min(first.min(), second.min()) >= 0


def test_shares_of_clusters_say_which_class_each_is():
    """Ten clusters of five classes, two each, in noise of half a share: all public samples get their class."""
    rng = np.random.default_rng(0)
    public, codes, labels = well_separated(rng)
    shares = np.full(5, 0.2)
    rows = 7 * np.stack([codes[labels == each].mean(axis=0) for each in range(5)])
    noisy = rows + 0.5 * rng.standard_normal(rows.shape)
    received = ReceivedMeans(noisy, np.full(5, 7.0), 0.25, np.zeros(5), shares)
    for mixture in (False, True):
        read = read_clusters(received, codes, public, mixture)
        assert (read.probabilities.argmax(axis=1) == labels).mean() > 0.97
        np.testing.assert_allclose(read.probabilities.sum(axis=1), 1)
    absent = ReceivedMeans(noisy, np.array([7.0, 7, 7, 7, 0]), 0.25, np.zeros(5), shares)
    assert read_clusters(absent, codes, public, True).probabilities[:, 4].max() == 0
    only = ReceivedMeans(noisy, np.array([0.0, 7, 0, 0, 0]), 0.25, np.zeros(5), shares)
    assert np.array_equal(read_clusters(only, codes, public, True).probabilities, np.eye(5)[np.ones(len(codes), int)])


def well_separated(rng):
    """Public features of five classes, the cluster of each sample, of which a class has two, and its class."""
    from airdistill.learning.class_features import PublicFeatures

    labels = np.repeat(np.arange(5), 80)
    points = 4 * np.eye(5)[labels] @ np.linalg.qr(rng.standard_normal((5, 5)))[0] + rng.standard_normal((400, 5))
    points -= points.mean(axis=0)
    values, vectors = np.linalg.eigh(points.T @ points / len(points))
    order = np.argsort(-values)
    whitened = points @ vectors[:, order] / np.sqrt(values[order])
    return PublicFeatures.of(whitened), np.eye(10)[2 * labels + np.arange(400) % 2], labels


# The planner's choice, and what is refused.


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        (("privacy.epsilon=2",), "clusters"),
        (("privacy.epsilon=4",), "clusters"),
        (("privacy.epsilon=8",), "auto"),
        (("privacy.epsilon=2", "fleet.devices=200"), "auto"),
        (("privacy.epsilon=2", "public.embedding=patches"), "patches"),
        (("privacy.epsilon=2", "public.features=32"), "auto"),
        (("privacy.epsilon=2", "public.feature_norm=1"), "auto"),
        (("privacy.epsilon=2", "public.samples=190"), "auto"),
        (("privacy.epsilon=2", "public.later=features", "public.broadcast=model"), "auto"),
        (("privacy.epsilon=2", "fleet.participation=0.5", "fleet.participation_hidden=true"), "auto"),
    ],
)
def test_clusters_are_chosen_where_little_evidence_is_foreseen(changes, chosen):
    """Two clusters for each class; the noise of the sum is √2·ρ over μ."""
    made = plan_run(load("skewed-50", changes), "airdistill_features")
    assert made.scenario.public.embedding == chosen
    if chosen == "clusters":
        payload = made.uplink.payload
        assert (payload.dimensions, payload.norm_bound) == (20, pytest.approx(0.5))
        assert payload.diameter == pytest.approx(np.sqrt(0.5))
        required = np.sqrt(made.required_noise_var().max())
        assert made.fleet.epsilon.max() == pytest.approx(epsilon_of_gaussian(payload.diameter / 50 / required, 1e-5))


def test_the_foreseen_evidence_is_that_of_classes_with_clusters_of_their_own():
    """Every device has two of ten classes, each spread evenly over two of twenty clusters."""
    made = plan_run(load("skewed-50", ["privacy.epsilon=2"]), "airdistill_features")
    payload, total = made.uplink.payload, 0.0
    for counts in made.fleet.class_counts:
        labels = np.repeat(np.arange(10), counts)
        codes = np.eye(20)[2 * labels + np.arange(len(labels)) % 2]
        total = total + device_vector(payload, codes, labels, counts).reshape(10, 20)
    deviation = 50 * np.sqrt(np.median(made.forecast.effective_noise_var))
    found = feature_evidence(made)
    assert found.easy.evidence == pytest.approx(np.median(np.linalg.norm(total, axis=1)) / deviation, rel=0.02)
    assert found.easy.like == "MNIST"
    assert found.easy.right > found.hard.right


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("public.embedding=raw+clusters",), "clusters cannot be part of a sum"),
        (("public.embedding=clusters", "public.features=3"), "3 clusters cannot tell 4 classes apart"),
        (("public.embedding=clusters", "public.features=16"), "public samples can whiten at most 15"),
        (("public.embedding=clusters", "public.later=features", "public.broadcast=model"), "is not for embedding"),
        (
            ("public.embedding=clusters", "fleet.participation=0.5", "fleet.participation_hidden=true"),
            "features of any",
        ),
    ],
)
def test_what_clusters_cannot_do_is_refused(tmp_path, changes, words):
    with pytest.raises(InputError, match=words):
        plan_run(skewed(tmp_path, *changes), "airdistill_features")
    assert CLASSES == 4


def test_a_head_cannot_stand_on_clusters(tmp_path):
    with pytest.raises(InputError, match="a head needs features"):
        plan_run(skewed(tmp_path, "public.embedding=clusters"), "ota_head")
