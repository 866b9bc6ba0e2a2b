"""Feature means as a payload: bounds against brute force, the plan's numbers, and what is refused."""

import itertools
import re

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from airdistill.errors import InputError
from airdistill.planning.feature_means import FeatureMeans
from airdistill.planning.plan import plan
from airdistill.planning.what_if.feature_means import feature_evidence
from airdistill.privacy.sensitivity import feature_means_sensitivity
from airdistill.scenario import load
from airdistill.schemes.feature_means import device_vector
from airdistill.schemes.registry import plan_run


def means(counts, norm_bound=1e9, sample_bound=2.0, count_norm=0.0, dimensions=3):
    class Fleet:
        class_counts = np.atleast_2d(counts)
        num_devices, num_classes = class_counts.shape

    return FeatureMeans(Fleet, dimensions, norm_bound, sample_bound, count_norm)


def sent(payload, features, labels):
    return device_vector(payload, features, labels, payload.fleet.class_counts[0])


def drawn(rng, counts, length, dimensions=3):
    """Features of that norm, and labels with these counts."""
    labels = np.repeat(np.arange(len(counts)), counts)
    features = rng.standard_normal((len(labels), dimensions))
    return features * length / np.linalg.norm(features, axis=1, keepdims=True), labels


@pytest.mark.parametrize("counts", [[5, 3], [1, 7, 0], [2, 2, 2]])
def test_no_changed_record_exceeds_the_bound_and_the_worst_one_reaches_it(counts):
    """Same class and label changes, with features of up to twice the clip."""
    rng, payload = np.random.default_rng(1), means([counts])
    bound = feature_means_sensitivity([counts], "class_mean", 1e9, 2.0)[0]
    largest = 0.0
    for _ in range(300):
        features, labels = drawn(rng, counts, rng.uniform(0.5, 4.0))
        other, relabelled = features.copy(), labels.copy()
        changed = rng.integers(len(labels))
        other[changed] = -features[changed] if rng.random() < 0.5 else rng.standard_normal(3) * 4
        relabelled[changed] = rng.integers(len(counts)) if rng.random() < 0.5 else labels[changed]
        moved = np.linalg.norm(sent(payload, features, labels) - sent(payload, other, relabelled))
        largest = max(largest, moved / bound)
        assert moved <= bound * (1 + 1e-12)
    features, labels = drawn(rng, counts, 2.0)
    smallest = np.flatnonzero(labels == np.argmin(np.where(np.array(counts) > 0, counts, 99)))[0]
    other = features.copy()
    other[smallest] *= -1
    reached = np.linalg.norm(sent(payload, features, labels) - sent(payload, other, labels))
    assert reached == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_private_counts_of_a_device_that_a_record_changes(size):
    """All splits of a few records over three classes: class means and weights together stay within the joint bound."""
    rng, tau, largest = np.random.default_rng(2), 0.7, 0.0
    for labels in itertools.product(range(3), repeat=size):
        labels = np.array(labels)
        payload = means([[size, 0, 0]], count_norm=tau)
        bound = payload.sensitivity("class_mean")[0]
        for new_label in range(3):
            for _ in range(10):
                direction = rng.standard_normal(3)
                features = np.tile(2 * direction / np.linalg.norm(direction), (size, 1))
                other, relabelled = features.copy(), labels.copy()
                other[0], relabelled[0] = -features[0], new_label
                moved = np.linalg.norm(sent(payload, features, labels) - sent(payload, other, relabelled))
                largest = max(largest, moved / bound)
    assert 0.5 < largest <= 1 + 1e-12


def test_two_devices_differ_by_at_most_twice_the_clip_and_reach_it():
    payload = means([[4, 4]], norm_bound=0.5)
    features, labels = drawn(np.random.default_rng(0), [4, 4], 2.0)
    features[:] = features[0]
    apart = np.linalg.norm(sent(payload, features, labels) - sent(payload, -features, labels))
    assert apart == pytest.approx(payload.sensitivity("device")[0]) == pytest.approx(1.0)


def test_private_weights_add_to_the_shift_of_a_device():
    """Two devices that hold one class each: orthogonal weights, opposite features."""
    payload = means([[4, 0]], norm_bound=0.5, count_norm=0.25)
    features = np.tile([2.0, 0.0, 0.0], (4, 1))
    one = sent(payload, features, np.zeros(4, dtype=int))
    other = sent(payload, features, np.ones(4, dtype=int))
    same = sent(payload, -features, np.zeros(4, dtype=int))
    assert np.linalg.norm(one - other) == pytest.approx(np.sqrt(2 * 0.5**2 + 2 * 0.25**2))
    assert np.linalg.norm(one - same) == pytest.approx(1.0)
    assert payload.sensitivity("device")[0] == pytest.approx(np.sqrt(4 * 0.5**2 + 2 * 0.25**2))
    assert np.linalg.norm(one) == pytest.approx(payload.largest_norm)


def epsilon_of_gaussian(mu, delta):
    """By the analytic Gaussian mechanism (Balle and Wang, 2018), independently of the package."""
    return brentq(lambda e: norm.cdf(-e / mu + mu / 2) - np.exp(e) * norm.cdf(-e / mu - mu / 2) - delta, 1e-9, 200)


def test_the_plan_has_the_noise_of_a_gaussian_mechanism_and_both_guarantees():
    made = plan_run(load("skewed"), "airdistill_features")
    payload = made.uplink.payload
    assert made.num_rounds == 1
    assert made.uplink_seconds == pytest.approx(10 * 256 * 3.6e-6)
    assert made.uplink_seconds < 0.01
    required = made.required_noise_var()[:, 0]
    mu = (2 * payload.norm_bound / 200) / np.sqrt(required)
    for one in np.unique(mu.round(9)):
        assert epsilon_of_gaussian(one, 1e-5) == pytest.approx(8, rel=1e-4)
    counts = made.fleet.class_counts
    smallest = np.where(counts > 0, counts, 10**9).min(axis=1)
    shares = 2 * payload.sample_bound / np.sqrt(smallest * counts.sum(axis=1)) / (2 * payload.norm_bound)
    expected = [epsilon_of_gaussian(mu[0] * share, 1e-5) for share in (shares.min(), shares.max())]
    reached = made.epsilon_by_model["class_mean"]
    # Noise beyond the required one, which channels add, only lowers ε.
    assert 0.8 * expected[1] < reached.max() <= expected[1] * (1 + 1e-6)
    assert made.epsilon_by_model["device"].max() <= 8 * (1 + 1e-12)


def test_one_record_can_be_the_target():
    made = plan_run(load("skewed", ["privacy.sensitivity=class_mean", "privacy.epsilon=0.1"]), "airdistill_features")
    assert made.epsilon_by_model["class_mean"].max() == pytest.approx(0.1, rel=1e-6)
    assert made.epsilon_by_model["device"].max() > 1


def test_private_counts_cost_six_per_cent_of_noise_and_a_tau_of_half_the_clip():
    public = plan(load("skewed"), "feature_means")
    private = plan(load("skewed", ["privacy.counts=private"]), "feature_means")
    ratio = private.required_noise_var() / public.required_noise_var()
    assert np.sqrt(ratio.max()) == pytest.approx(np.sqrt(1 + 0.5**2 / 2), rel=1e-9)
    assert private.uplink.vector_length == 10 * 257


def test_private_counts_do_not_set_the_clip():
    """The default ρ follows from declared numbers: another split with the same sizes plans the same bound."""
    first = plan(load("skewed", ["privacy.counts=private"]), "feature_means").uplink.payload
    other = plan(load("skewed", ["privacy.counts=private", "seed=9"]), "feature_means").uplink.payload
    assert (first.fleet.class_counts != other.fleet.class_counts).any()
    assert first.norm_bound == other.norm_bound
    # 200 devices with 300 samples of 2 of 10 classes: a quarter of K − 1, and d·K_held/n.
    assert first.norm_bound == pytest.approx(np.sqrt(9 / 4 + first.dimensions * 2 / 300), rel=1e-12)


def snr_by_hand(made, dimensions):
    """Signal-to-noise ratio of an entry of a class sum, for classes spread evenly over devices."""
    payload, held = made.uplink.payload, (made.fleet.class_counts[0] > 0).sum()
    devices_of_class = made.fleet.num_devices * held / 10
    sum_of_weights = devices_of_class / np.sqrt(held)
    norm = np.sqrt(6 + dimensions * held / made.fleet.class_counts[0].sum())
    clip = np.sqrt(9 / 4 + dimensions * held / made.fleet.class_counts[0].sum())
    noise = 2 * clip / payload.fleet.mu.min()
    return sum_of_weights**2 * 6 / dimensions * (clip / norm) ** 2 / noise**2


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ([], 256),
        (["privacy.epsilon=2", "fleet.devices=50", "data.samples_per_device=1200"], 32),
        (["privacy.epsilon=8", "fleet.devices=50", "data.samples_per_device=1200"], 256),
        (["privacy.epsilon=1", "fleet.devices=50", "data.samples_per_device=1200"], 16),
        (["public.samples=500"], 125),
    ],
)
def test_the_number_of_features_follows_the_foreseen_noise(changes, width):
    made = plan(load("skewed", changes), "feature_means")
    assert made.uplink.payload.dimensions == width
    wider = {16: 24, 32: 48}.get(width)
    if width > 16:
        assert snr_by_hand(made, width) >= 0.08
    if wider is not None:
        assert snr_by_hand(made, wider) < 0.08


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["public.features=800"], "public.features = 800: 3000 public samples can whiten at most 750 features"),
        (["public.features=0"], "public.features"),
        (["public.samples=9", "public.features=2"], "public.samples = 9: features of 10 classes need at least 10"),
        (["privacy.sensitivity=trajectory"], 'privacy.sensitivity = "trajectory"'),
        (
            ["privacy.counts=private", "fleet.participation=0.5", "fleet.participation_hidden=true"],
            'privacy.counts = "private"',
        ),
        (["radio.transceiver=paper"], "paper's transceiver is defined only for"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_field_value_and_rule(changes, words):
    with pytest.raises(InputError, match=re.escape(words)):
        plan(load("skewed", changes), "feature_means")


@pytest.mark.parametrize("kind", ["knowledge", "public_knowledge"])
def test_private_counts_are_refused_for_payloads_that_disclose_them(kind):
    with pytest.raises(InputError, match=re.escape('privacy.counts = "private"')):
        plan(load("skewed", ["privacy.counts=private"]), kind)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        (["privacy.epsilon=2", "fleet.devices=50", "data.samples_per_device=1200"], "faint"),
        (["privacy.epsilon=4", "fleet.devices=50", "data.samples_per_device=1200"], "scarce"),
        ([], "enough"),
    ],
)
def test_the_foreseen_evidence_is_the_length_of_a_class_sum_over_the_noise(changes, verdict):
    """Class sums of drawn samples, through the devices' code, for data whose classes are 2/3 and 1/4 of K − 1 apart.

    No sample is clipped here: that shortens the sums of 32 Gaussian features by a further 5 %.
    """
    made = plan(load("skewed", [*changes, "public.sample_norm=1000"]), "feature_means")
    rng = np.random.default_rng(5)
    found, payload = feature_evidence(made), made.uplink.payload
    deviation = made.fleet.num_devices * np.sqrt(np.median(made.forecast.effective_noise_var))
    for between, expected in ((2 / 3, found.easy.evidence), (1 / 4, found.hard.evidence)):
        means = np.linalg.qr(rng.standard_normal((payload.dimensions, 10)))[0].T * np.sqrt(between * 9)
        within = np.sqrt(1 - between * 9 / payload.dimensions)  # whitened samples have the length √d
        total = np.zeros((10, payload.dimensions))
        for counts in made.fleet.class_counts:
            labels = np.repeat(np.arange(10), counts)
            features = means[labels] + within * rng.standard_normal((len(labels), payload.dimensions))
            total += device_vector(payload, features, labels, counts).reshape(total.shape)
        lengths = (total * means).sum(axis=1) / np.linalg.norm(means, axis=1)  # without the sampling error
        assert expected == pytest.approx(np.median(lengths) / deviation, rel=0.05)
    assert found.verdict == verdict
    for each in (found.easy, found.hard):
        assert 0 < each.least < each.right < each.most < 1


def test_evidence_grows_with_rounds_that_are_pooled_only():
    once, four = (
        feature_evidence(plan(load("skewed", [f"learning.rounds={n}", "radio.noise_power=0"]), "feature_means"))
        for n in (1, 4)
    )
    assert four.easy.evidence == pytest.approx(
        once.easy.evidence, rel=0.05
    )  # the same guarantee: four sums with half the evidence each
    later = [
        "learning.rounds=4",
        "radio.noise_power=0",
        "public.later=features",
        "public.broadcast=model",
        "public.features=256",
    ]
    split = feature_evidence(plan_run(load("skewed", later), "airdistill_features"))
    assert split.easy.evidence == pytest.approx(four.easy.evidence / 2, rel=0.05)


def test_plans_without_noise_or_without_features_have_no_evidence():
    assert feature_evidence(plan(load("skewed"), "public_knowledge")) is None
    private = feature_evidence(plan(load("skewed", ["privacy.counts=private"]), "feature_means"))
    # 200 devices with two of ten classes: 40 hold a class, with weight √½.
    public = feature_evidence(plan(load("skewed"), "feature_means"))
    assert private.easy.evidence == pytest.approx(public.easy.evidence / np.sqrt(1 + 0.5**2 / 2), rel=0.05)
