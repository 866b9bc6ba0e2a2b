"""Feature means from end to end: vectors, receiver, all kinds of runs, certificate, chains, and what is refused."""

import sys

import numpy as np
import pytest
from feature_worlds import CLASSES, DEVICES, FAST, WIDTH, epsilon_of_gaussian, plan_of, played, skewed, weights_of
from small_worlds import write_few_digits

import airdistill as ad
from airdistill.cli import main
from airdistill.data.public import load_data
from airdistill.errors import InputError
from airdistill.learning.embeddings import fit_embedding
from airdistill.planning.plan import Plan
from airdistill.privacy.ledger import Ledger
from airdistill.radio.receivers import estimate_by
from airdistill.runs.simulation import Simulation
from airdistill.schemes import feature_means
from airdistill.schemes.feature_means import likely_weights
from airdistill.schemes.payloads import payload_protocol, receiver_of
from airdistill.schemes.registry import load_scheme, plan_run

SCHEMES = ("feature_means", "airdistill_features")


def simulation_of(folder, scheme, *changes):
    return Simulation(plan_run(skewed(folder, *changes), scheme), load_scheme(scheme), FAST.resolved())


# What devices send.


@pytest.mark.parametrize("counts", ["public", "private"])
def test_vectors_are_clipped_sums_over_declared_counts(tmp_path, counts):
    """Sample by sample, class by class."""
    norms = ("public.sample_norm=2.5", "public.feature_norm=1.5")
    simulation = simulation_of(tmp_path, "feature_means", f"privacy.counts={counts}", *norms)
    fleet, plan = simulation.fleet, simulation.plan
    sent = payload_protocol(plan).vectors(fleet, 1, range(DEVICES))[:, 0]
    embedding = fit_embedding("raw", fleet.public_samples(), WIDTH, seed=0)
    clipped = 0
    for device, learner in enumerate(fleet.learners):
        samples, labels = learner.samples_and_labels()
        features, held = embedding.features(samples).double().numpy(), plan.fleet.class_counts[device]
        expected = np.zeros((CLASSES, WIDTH))
        for row, label in zip(features, labels.tolist(), strict=True):
            expected[label] += row * min(1, 2.5 / np.sqrt((row**2).sum())) / np.sqrt(held[label] * len(features))
        length = np.sqrt((expected**2).sum())
        clipped += length > 1.5
        expected = expected.ravel() * min(1, 1.5 / length)
        if counts == "private":
            expected = np.append(expected, 0.75 * np.sqrt(held / held.sum()))
        assert sent[device] == pytest.approx(expected, abs=1e-6)
    assert clipped > 0


def test_a_sample_without_finite_features_counts_as_zero(tmp_path):
    payload = plan_run(skewed(tmp_path), "feature_means").uplink.payload
    counts = payload.fleet.class_counts[0]
    labels = np.repeat(np.arange(CLASSES), counts)
    features = np.random.default_rng(0).standard_normal((len(labels), WIDTH))
    zero, infinite = features.copy(), features.copy()
    zero[3] = 0
    for value in (np.inf, np.nan):
        infinite[3, 1] = value
        sent = [feature_means.device_vector(payload, each, labels, counts) for each in (zero, infinite)]
        assert np.array_equal(*sent)


# How the server reads it.


def readings(monkeypatch):
    """A list of all class means that are read from now on."""
    read, lda = [], feature_means.lda

    def reading(means, public):
        read.append(means)
        return lda(means, public)

    monkeypatch.setattr(feature_means, "lda", reading)
    return read


def test_the_receiver_pools_rounds_by_the_inverse_of_their_noise(tmp_path, monkeypatch):
    """Two rounds with other weights; what is read is the weighted sum over all devices, and its noise."""
    plan = plan_run(skewed(tmp_path, "learning.rounds=2"), "feature_means")
    receiver = receiver_of(plan, load_data(plan.scenario)[1], FAST.learning_engine())
    read = readings(monkeypatch)
    rng, noise_var = np.random.default_rng(0), (0.01, 0.03)
    received = rng.standard_normal((2, 1, CLASSES * WIDTH))
    joined = np.array([np.ones(DEVICES), np.arange(DEVICES) % 2])
    for row, var, who in zip(received, noise_var, joined, strict=True):
        estimate_by(receiver, row, np.array([var]), who[:, None] / DEVICES)
    counts = plan.fleet.class_counts
    shares = np.array([0.75, 0.25])  # of the two rounds' information
    found = read[-1]
    assert found.rows == pytest.approx(DEVICES * (shares @ received[:, 0]).reshape(CLASSES, WIDTH))
    assert found.noise_var == pytest.approx(DEVICES**2 / (1 / 0.01 + 1 / 0.03))
    held = [sum(share * who[i] * np.sqrt(counts[i] / counts[i].sum()) for i in range(DEVICES))
            for share, who in zip(shares, joined, strict=True)]  # fmt: skip
    assert found.weights == pytest.approx(np.sum(held, axis=0))
    assert found.shares == pytest.approx(counts.sum(axis=0) / counts.sum())


def test_a_receiver_of_private_counts_reads_noisy_weights_only(tmp_path, monkeypatch):
    """Another partition with the same sizes gives the same reading of the same received sum."""
    read = readings(monkeypatch)
    received = np.random.default_rng(1).standard_normal((1, CLASSES * (WIDTH + 1)))
    for change in ("data.classes_per_device=2", "data.partition=iid"):
        plan = plan_run(skewed(tmp_path, "privacy.counts=private", change, "public.feature_norm=2"), "feature_means")
        receiver = receiver_of(plan, load_data(plan.scenario)[1], FAST.learning_engine())
        receiver.estimate(received, np.array([0.01]))
    for field in ("rows", "weights", "noise_var", "sampling", "shares", "weights_var"):
        assert np.array_equal(getattr(read[0], field), getattr(read[1], field)), field


def test_noisy_weights_are_shrunk_as_bayes_says():
    """The posterior mean and variance of h ~ N(mean, s²), observed with noise; and noise alone leaves one weight."""
    noisy = np.array([9.0, 7.0, 3.0, 1.0])
    weights, var = likely_weights(noisy, 4.0)
    signal = noisy.var() - 4
    assert weights == pytest.approx((noisy / 4 + noisy.mean() / signal) / (1 / 4 + 1 / signal))
    assert var == pytest.approx(1 / (1 / 4 + 1 / signal))
    assert likely_weights(noisy, 0.0) == (pytest.approx(noisy), 0.0)
    rng = np.random.default_rng(0)
    for _ in range(200):
        weights, var = likely_weights(rng.standard_normal(4) * rng.uniform(0, 5) + rng.uniform(-3, 3), 9.0)
        assert weights.max() > np.sqrt(var)


@pytest.mark.parametrize("seed", range(4))
def test_private_counts_in_much_noise_are_still_read(tmp_path, seed):
    """A transmission that is paid for must not end the run."""
    record = played(tmp_path, "feature_means", "privacy.counts=private", "privacy.epsilon=0.5", f"seed={seed}")
    assert record.rounds[0]["features"]["reading"] == "lda"


# Runs.


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("counts", ["public", "private"])
@pytest.mark.parametrize("trust", ["receiver_noise", "fleet_noise", "own_noise"])
def test_devices_learn_classes_that_they_do_not_hold(tmp_path, scheme, counts, trust):
    record = played(tmp_path, scheme, f"privacy.trust={trust}", f"privacy.counts={counts}", "privacy.epsilon=500")
    assert record.rounds[0]["labels_right"]["broadcast"] > 0.6
    assert record.summary["uplink_seconds"] == pytest.approx(CLASSES * (WIDTH + (counts == "private")) * 3.6e-6)
    certificate = ad.certify(record.folder)
    assert certificate.worst("device", trust) <= 500
    assert not any("audit" in reason for reason in certificate.reasons)


def test_images_are_embedded_by_patches(tmp_path):
    digits = write_few_digits(tmp_path / "digits.npz", num_train=400, num_test=120)
    scenario = skewed(
        tmp_path, f"data.dataset={digits}", "fleet.devices=8", "data.samples_per_device=40", "public.samples=100",
        "public.features=12", "privacy.epsilon=500", "learning.model=softmax_regression", "public.distill_epochs=1",
    )  # fmt: skip
    record = ad.run(scenario, "feature_means", out=tmp_path / "run", options=FAST)
    assert record.rounds[0]["labels_right"]["received"] > 0.5


def test_the_server_s_model_is_taken_over(tmp_path):
    """All devices have one model: that of the server, whose predictions on public samples the record has."""
    record = played(tmp_path, "airdistill_features", "public.broadcast=model")
    assert record.rounds[0]["labels_right"]["broadcast"] > 0.8
    assert record.accuracy["mean"] == pytest.approx(record.accuracy["worst"])
    assert record.accuracy["mean"] > 0.8


def test_devices_alone_with_public_samples_send_nothing_and_learn_no_class_that_they_lack(tmp_path):
    record = played(tmp_path, "local_public", "learning.local_epochs=5")
    # With two classes of four a device cannot tell more than half of the samples; the odd one holds three.
    assert record.accuracy["mean"] < 0.6
    assert record.accuracy["own_classes"] > 0.9
    assert (record.folder / "ledger.jsonl").read_text().count('"kind": "release"') == 0


def test_own_predictions_help_devices_that_hold_all_classes(tmp_path):
    """The target is so strict that what the server broadcasts is mostly wrong."""
    noisy = ("data.partition=iid", "privacy.epsilon=0.02", "learning.local_epochs=10", "learning.initial_lr=0.1")
    without = played(tmp_path, "airdistill_features", *noisy, name="without").accuracy["mean"]
    joined = played(tmp_path, "airdistill_features", *noisy, "public.own_predictions=true", name="joined")
    assert joined.accuracy["mean"] > without + 0.2


@pytest.mark.parametrize("trust", ["fleet_noise", "own_noise"])
def test_secure_noise_holds(tmp_path, trust):
    record = played(tmp_path, "airdistill_features", "privacy.noise=secure", f"privacy.trust={trust}")
    certificate = ad.certify(record.folder)
    assert certificate.verdict == ("holds" if trust == "own_noise" else "holds under assumptions")
    assert certificate.record_epsilon < certificate.worst("device", trust)
    assert certificate.statement[0].startswith("For one record of any device, its label included: (ε = ")


def test_truncated_devices_send_nothing_and_are_not_counted(tmp_path):
    changes = ("radio.truncation=-112 dB", "privacy.trust=receiver_noise")
    record = played(tmp_path, "feature_means", *changes)
    inactive = record.rounds[0]["silent_devices"]
    assert 0 < len(inactive) < DEVICES
    release = next(release for _, release in Ledger.read(record.folder / "ledger.jsonl").history())
    assert sorted({*range(DEVICES)} - {*release.participants.tolist()}) == sorted(inactive)


@pytest.mark.parametrize("hidden", ["false", "true"])
def test_sampled_devices_pool_over_rounds(tmp_path, hidden):
    """With secret participation no record figure is amplified: it is that of a device which surely participates."""
    sampled = ("fleet.participation=0.5", f"fleet.participation_hidden={hidden}", "learning.rounds=3")
    record = played(tmp_path, "feature_means", *sampled)
    assert record.rounds[-1]["labels_right"]["received"] > 0.6
    ledger = Ledger.read(record.folder / "ledger.jsonl")
    releases = [release for _, release in ledger.history()]
    mu = np.sqrt(sum(release.cost("class_mean", "fleet_noise").sum(axis=1) for release in releases))
    expected = max(epsilon_of_gaussian(each, 1e-5) for each in mu)
    assert ad.certify(record.folder).record_epsilon == pytest.approx(expected, rel=1e-6)


def test_carried_over_budget_is_spent_and_no_more(tmp_path):
    record = played(tmp_path, "airdistill_features", "learning.rounds=2", "privacy.trust=receiver_noise",
                    "privacy.epsilon=5")  # fmt: skip
    assert plan_of(record).scenario.privacy.carry_over
    ledger = Ledger.read(record.folder / "ledger.jsonl")
    assert ledger.num_releases == 2
    assert 4.9 < ledger.epsilon().max() <= 5 * (1 + 1e-9)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_run_that_was_stopped_resumes_bit_identically(tmp_path, scheme):
    changes = ("learning.rounds=3", "privacy.counts=private")
    whole = played(tmp_path, scheme, *changes, name="whole")

    def kill(record, _):
        if record["round"] == 2:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        played(tmp_path, scheme, *changes, name="cut", on_round=kill)
    ad.resume(tmp_path / "cut")
    for name in ("plan.json", "rounds.jsonl", "ledger.jsonl", "summary.json", "certificate.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (whole.folder / name).read_bytes(), name
    assert weights_of(tmp_path / "cut") == weights_of(whole.folder)


@pytest.mark.parametrize("broadcast", ["predictions", "model"])
def test_public_labels_are_never_read(tmp_path, broadcast):
    """Shuffled public labels give the same ledger and the same weights, to the last byte."""
    changes, files = ("airdistill_features", f"public.broadcast={broadcast}"), {}
    for name in ("first", "shuffled"):
        record = played(tmp_path, *changes, name=name)
        ledger = (record.folder / "ledger.jsonl").read_bytes()
        files[name] = (ledger, weights_of(record.folder), (record.folder / "certificate.json").read_bytes())
        right = record.rounds[0]["labels_right"]["received"]
        assert (right > 0.6) == (name == "first")
        _shuffle_public_labels(tmp_path / "skewed.npz")
    assert files["first"] == files["shuffled"]


def _shuffle_public_labels(path):
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["y_test"][:60] = np.random.default_rng(0).permutation(arrays["y_test"][:60])
    np.savez(path, **arrays)


# What is refused, by the plan and by the run.

REFUSED = [
    (
        ("public.own_predictions=true", "public.broadcast=model"),
        'public.own_predictions = True: needs broadcast = "pre',
    ),
    (["public.features=16"], "public.features = 16: 60 public samples can whiten at most 15 features"),
    (["public.features=9"], "public.features = 9: a sample has 8 numbers, the width of the embedding raw"),
    (["public.samples=3"], "public.samples = 3: features of 4 classes need at least 4 public samples"),
    (["public.embedding=patches"], 'public.embedding = "patches": needs images, not vectors of 8 numbers; use raw'),
    (["public.embedding=raw+contrastive"], 'public.embedding = "raw+contrastive": needs images'),
    (["public.embedding=patch"], 'public.embedding = "patch": must be one of raw, random, patches, contrastive'),
    (["public.embedding=absent.pt"], 'public.embedding = "absent.pt": must be one of'),
    (["learning.receiver=tracking"], 'learning.receiver = "tracking": cannot read feature means: one of linear'),
    (
        ["public.broadcast=model", 'fleet.groups=[{count=6,model="mlp"},{count=6,model="softmax_regression"}]'],
        'public.broadcast = "model": devices with another model (softmax_regression) than the server\'s (mlp)',
    ),
    (["public.broadcast=model", "public.server_model=mlp"], 'public.broadcast = "model": devices with another model'),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_plan_and_run_refuse_alike(tmp_path, changes, words):
    for refusing in (ad.plan, lambda scenario, scheme: ad.run(scenario, scheme, out=tmp_path / "run", options=FAST)):
        with pytest.raises(InputError) as refused:
            refusing(skewed(tmp_path, *changes), "airdistill_features")
        assert str(refused.value).startswith(words)
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_the_command_line_refuses_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    skewed(tmp_path)
    for command in ("plan", "run"):
        given = ["quick", "--scheme", "feature_means", "--set", f"data.dataset={tmp_path / 'skewed.npz'}"]
        given += ["--set", "public.samples=60", "--set", "public.embedding=absent.pt", "--set", "fleet.devices=3"]
        given += ["--set", "data.samples_per_device=20", "--set", "learning.model=mlp"]
        monkeypatch.setattr(sys, "argv", ["airdistill", command, *given])
        with pytest.raises(SystemExit, match="2"):
            main()
        (line,) = capsys.readouterr().err.splitlines()
        assert 'public.embedding = "absent.pt": must be one of raw' in line


def test_a_linear_receiver_has_no_model_to_broadcast(tmp_path):
    with pytest.raises(InputError, match=r'"model": needs learning\.receiver = "learning"'):
        ad.plan(skewed(tmp_path, "public.broadcast=model"), "feature_means")


def test_an_embedding_of_copies_of_private_samples_is_refused(tmp_path):
    scenario = skewed(tmp_path)
    with np.load(scenario.data.dataset) as archive:
        np.savez(tmp_path / "public.npz", x_public=archive["x_train"])
    with pytest.raises(InputError, match="60 of its 60 samples are copies"):
        ad.plan(skewed(tmp_path, f"public.source={tmp_path / 'public.npz'}"), "airdistill_features")


def test_features_are_as_many_as_a_vector_has(tmp_path):
    assert plan_run(skewed(tmp_path), "feature_means").uplink.payload.dimensions == WIDTH
    assert plan_run(skewed(tmp_path, "public.embedding=random"), "feature_means").uplink.payload.dimensions == 15


def test_a_stored_plan_needs_no_data(tmp_path):
    made = plan_run(skewed(tmp_path, "privacy.counts=private"), "feature_means")
    (tmp_path / "skewed.npz").unlink()
    again = Plan.from_dict(made.to_dict()).uplink.payload
    assert again.vector_length == CLASSES * (WIDTH + 1)
    assert again.norm_bound == made.uplink.payload.norm_bound
