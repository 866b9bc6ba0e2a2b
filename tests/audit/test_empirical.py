"""Noise lower than counted is detected, and correct noise raises no alarm."""

from dataclasses import replace

import numpy as np
import pytest
from audit_contexts import no_progress, small_context
from scipy.stats import norm

from airdistill.audit.empirical import audit_empirically
from airdistill.audit.neighbours import neighbours_of
from airdistill.audit.options import AuditOptions
from airdistill.radio.superposition import RoundNoise

TRUSTS = ["receiver_noise", "fleet_noise", "own_noise"]


def attacked(context, trials=130, seed=0, source=None):
    neighbour = neighbours_of(context, 4, 0)[-1]
    return audit_empirically(context, neighbour, AuditOptions(trials=trials, seed=seed), no_progress, source)


def scaled(context, factor):
    """Noise with `factor` times the correct variance."""

    def source(seed, round_index, design):
        noise = context.link.seeded_noise(seed, round_index, design)
        return RoundNoise(noise.artificial * np.sqrt(factor), noise.receiver * np.sqrt(factor))

    return source


@pytest.mark.parametrize(
    ("scheme", "trust"),
    [*(("ota_fd", trust) for trust in TRUSTS), ("orthogonal_fd", "own_noise"), ("ota_fl", "receiver_noise")],
)
def test_noise_ten_per_cent_too_low_is_detected_and_correct_noise_is_not(tmp_path, scheme, trust):
    context = small_context(tmp_path, scheme, f"privacy.trust={trust}", rounds=6)
    correct = attacked(context)
    assert correct.violations == ()
    assert correct.variance.value == pytest.approx(1, abs=0.07)
    assert correct.auc.low <= norm.cdf(correct.mu / np.sqrt(2)) <= correct.auc.high
    low = attacked(context, source=scaled(context, 0.9))
    assert any("variance of all entries" in sentence for sentence in low.violations)
    assert attacked(context, source=scaled(context, 1.1)).violations == ()


@pytest.mark.parametrize("trust", TRUSTS)
def test_counted_noise_refers_to_the_sampled_weight_of_a_round(tmp_path, trust):
    drawn = ("fleet.sampling=with_replacement", "fleet.sampled_devices=2")
    context = small_context(tmp_path, "ota_fl", f"privacy.trust={trust}", *drawn, rounds=6)
    weights = [this.design.weights[0, 0] for this in context.rounds]
    assert {0.0, 0.5} <= set(weights)  # the device is not sampled in some rounds, and has more than its third in others
    found = attacked(context)
    assert (found.num_rounds, found.violations) == (np.count_nonzero(weights), ())
    assert found.variance.value == pytest.approx(1, abs=0.07)
    assert attacked(context, source=scaled(context, 0.9)).violations


def test_the_papers_transceiver_transmits_the_noise_that_it_counts(tmp_path):
    context = small_context(tmp_path, "ota_fd", "privacy.trust=receiver_noise", "privacy.sensitivity=paper",
                        "privacy.accountant=paper", "radio.transceiver=paper", rounds=6)  # fmt: skip
    assert attacked(context).violations == ()
    assert attacked(context, source=scaled(context, 0.9)).violations


def test_the_attack_succeeds_more_often_if_noise_is_far_too_low(tmp_path):
    context = small_context(tmp_path, rounds=3)
    found = attacked(context, trials=400, source=scaled(context, 0.25))
    assert found.tested_auc.low > found.expected_tested_auc
    assert found.tested_auc.value == pytest.approx(norm.cdf(1.5 / np.sqrt(2 * 0.25)), abs=0.02)
    assert sum("likelihood-ratio attack" in sentence for sentence in found.violations) >= 1


def test_correct_noise_rarely_raises_an_alarm(tmp_path):
    context = small_context(tmp_path, rounds=2)
    alarms = sum(bool(attacked(context, trials=25, seed=seed).violations) for seed in range(100))
    assert alarms <= 1  # 0.2 are expected at a level of 99.9 % of each of four looks; seeded


def test_complex_noise_counted_as_real_is_detected(tmp_path):
    """The plan counts all of the receiver noise, but half of it is on the other axis."""
    context = small_context(tmp_path, "ota_fd", "privacy.trust=receiver_noise", "radio.noise=real", rounds=2)
    power, num_classes = context.scenario.radio.noise_power, context.plan.fleet.num_classes

    def complex_noise(seed, round_index, design):
        return RoundNoise.seeded(seed, round_index, design, num_classes, power, "complex")

    assert attacked(context, trials=60).violations == ()
    found = attacked(context, trials=60, source=complex_noise)
    assert found.variance.value == pytest.approx(0.5, abs=0.08)
    assert found.violations


def test_one_row_of_one_round_with_too_little_noise_is_detected(tmp_path):
    context = small_context(tmp_path, "ota_fd", "learning.rounds=12", rounds=12)

    def source(seed, round_index, design):
        noise = context.link.seeded_noise(seed, round_index, design)
        artificial = noise.artificial.copy()
        artificial[:, 1] *= 0.7 if round_index == 7 else 1.0
        return replace(noise, artificial=artificial)

    found = attacked(context, source=source)
    assert found.lowest_row_round == 7
    assert any("row in round 7" in sentence for sentence in found.violations)


def unchanged(noise):
    return noise


def flipped(noise):
    return -noise


def with_random_signs(noise):
    signs = np.sign(np.random.default_rng(int(1e6 * abs(noise.flat[0]))).normal(size=(1, *noise.shape[1:])))
    return noise * signs


@pytest.mark.parametrize("change", [unchanged, flipped, with_random_signs])
def test_noise_that_is_reused_in_one_round_of_many_is_detected(tmp_path, change):
    """The variance is correct each time: only the two rounds together reveal the reuse."""
    context = small_context(tmp_path, "ota_fd", "learning.rounds=12", "radio.fading=none", rounds=12)

    def source(seed, round_index, design):
        noise = context.link.seeded_noise(seed, 3 if round_index == 9 else round_index, design)
        return replace(noise, artificial=change(noise.artificial)) if round_index == 9 else noise

    found = attacked(context, trials=100, source=source)
    kind = "squares of rows" if change is with_random_signs else "between rows"
    assert any(kind in sentence for sentence in found.violations)
    assert attacked(context, trials=100).violations == ()


def test_noise_that_is_the_same_for_all_rows_or_entries_is_detected(tmp_path):
    context = small_context(tmp_path, "ota_fd", "learning.rounds=4", rounds=4)
    for axis, kind in [(1, "rows"), (2, "entries")]:

        def source(seed, round_index, design, axis=axis):
            noise = context.link.seeded_noise(seed, round_index, design)
            same = np.take(noise.artificial, [0], axis=axis)
            return replace(noise, artificial=np.broadcast_to(same, noise.artificial.shape))

        found = attacked(context, trials=60, source=source)
        assert any(f"correlation between {kind}" in sentence for sentence in found.violations)


def test_only_counted_noise_is_attacked(tmp_path):
    """Under `own_noise` only the device's own noise is left."""
    noises = {}
    for trust in TRUSTS:
        context = small_context(tmp_path, "ota_fd", f"privacy.trust={trust}", rounds=1, device=1)
        this = context.rounds[0]
        noises[trust] = context.link.counted_part(context.link.seeded_noise(0, 1, this.design))
    assert noises["receiver_noise"].receiver.any()
    assert not noises["fleet_noise"].receiver.any()
    assert (noises["fleet_noise"].artificial != 0).all()
    assert np.flatnonzero(noises["own_noise"].artificial.any(axis=(1, 2))).tolist() == [1]


@pytest.mark.parametrize("trust", ["fleet_noise", "own_noise"])
def test_secure_noise_is_drawn_for_the_attack_and_holds(tmp_path, trust):
    context = small_context(tmp_path, "ota_fd", f"privacy.trust={trust}", "privacy.noise=secure", rounds=2)
    found = attacked(context, trials=60)
    # This noise cannot be seeded: 6 standard errors, because a 99.9 % interval would fail too often.
    assert found.variance.value == pytest.approx(1, abs=6 * np.sqrt(2 / (2 * 60 * 2 * 9)))
    again = attacked(context, trials=10)
    assert again.variance.value != found.variance.value  # fresh noise each time


def test_without_counted_noise_there_is_nothing_to_attack(tmp_path):
    context = small_context(tmp_path, "ota_fd", "privacy.epsilon=inf", rounds=2)
    assert attacked(context) is None


def test_a_pair_of_equal_datasets_raises_no_alarm(tmp_path):
    context = small_context(tmp_path, rounds=2)
    same = replace(neighbours_of(context, 1, 0)[0], samples=context.own_samples)
    found = audit_empirically(context, same, AuditOptions(trials=100), no_progress)
    assert (found.mu, found.expected_auc) == (0, 0.5)
    assert found.violations == ()
