"""Membership inference from answers on a public set."""

import numpy as np
import pytest
from audit_contexts import no_progress, small_context
from scipy.stats import norm

from airdistill.audit.membership import auc, audit_membership
from airdistill.audit.options import AuditOptions
from airdistill.audit.public_membership import answer_scores, nearest, own_answers
from airdistill.audit.shadows import own_pool, pool_of, train_own_shadows, train_shadows

CHANGES = (
    "fleet.devices=2", "data.samples_per_device=60", "public.samples=240", "public.distill_epochs=1",
    "learning.rounds=1", "learning.local_epochs=20", "learning.batch_size=15", "learning.receiver=projected",
)  # fmt: skip


def memorised(folder, scheme, *changes, rounds=1):
    """Records with random labels, which a model can only learn by heart, and public samples that resemble them."""
    path, rng = folder / "memorised.npz", np.random.default_rng(0)
    if not path.exists():
        records = rng.standard_normal((240, 100))
        public = records + 0.3 * rng.standard_normal(records.shape)
        labels = np.arange(240) % 3
        x_test, y_test = np.concatenate([public, records[120:]]), np.concatenate([labels, labels[120:]])
        np.savez(path, x_train=records[:120], y_train=labels[:120], x_test=x_test, y_test=y_test)
    return small_context(folder, scheme, f"data.dataset={path}", *CHANGES, *changes, rounds=rounds)


@pytest.mark.parametrize("scheme", ["ota_proxy_fd", "airdistill_proxy"])
def test_members_are_found_without_noise_and_hidden_by_the_certified_noise(tmp_path, scheme):
    options = AuditOptions(shadows=20)
    found = audit_membership(memorised(tmp_path, scheme, "privacy.epsilon=inf"), options, no_progress)
    assert found.auc.low > 0.5  # the sum of two devices
    assert found.one_device.auc.low > 0.65
    assert found.one_device.auc.value > found.auc.value
    assert (found.num_members, found.one_device.num_members) == (120, 60)
    assert found.violations == ()  # nothing is certified
    if scheme == "airdistill_proxy":  # whose votes say less than predictions, which the noise has to hide
        return
    hidden = audit_membership(memorised(tmp_path, scheme, "privacy.epsilon=1"), options, no_progress)
    for attack in (hidden, hidden.one_device):
        assert attack.auc.low < 0.5 < attack.auc.high
        assert attack.allowed_auc == pytest.approx(norm.cdf(attack.mu / np.sqrt(2)))
    assert hidden.violations == ()


def test_members_found_beyond_what_is_certified_are_a_violation(tmp_path, monkeypatch):
    """The noise is left out, and the ledger still counts it."""
    context = memorised(tmp_path, "ota_proxy_fd", "privacy.epsilon=inf")
    monkeypatch.setattr("airdistill.audit.membership.certified_mu", lambda *_: np.full((1, 2), 0.3))
    found = audit_membership(context, AuditOptions(shadows=20), no_progress)
    assert any("an AUC of" in sentence for sentence in found.violations)
    assert found.one_device.violations


def test_an_attacker_who_does_not_know_what_shadows_held_finds_nothing(tmp_path):
    context, options = memorised(tmp_path, "ota_proxy_fd", "privacy.epsilon=inf"), AuditOptions(shadows=20)
    pool = own_pool(context, pool_of(context, 0))
    shadows = train_own_shadows(context, pool, options, no_progress)
    seen, noise_var = own_answers(context)
    assert (noise_var == 0).all()
    answers, slots = shadows.vectors.reshape(40, 240, 3), seen.reshape(240, 3)
    near = nearest(pool.samples, context.public.samples, 10)
    aucs = []
    for holds in (shadows.holds, np.random.default_rng(0).permutation(shadows.holds)):
        scores = answer_scores(pool.labels, holds, answers, slots, np.zeros(240), 1.0, near)
        aucs.append(auc(scores[pool.is_own], scores[~pool.is_own]))
    assert aucs[0].low > 0.65
    assert aucs[1].low < 0.5 < aucs[1].high


def test_scores_are_log_likelihood_ratios_of_the_nearest_answers():
    rng = np.random.default_rng(0)
    labels, holds, share = rng.integers(2, size=30), rng.random((30, 9)) < 0.3, 0.25
    holds[0] = False  # nothing to compare with
    answers, received = rng.normal(size=(9, 8, 3)), rng.normal(size=(8, 3))
    noise_var, near = rng.uniform(0.1, 2, 8), rng.integers(8, size=(30, 4))
    noise_var[2] = np.inf  # a round in which nothing was sent
    found = answer_scores(labels, holds, answers, received, noise_var, share, near)
    assert found[0] == 0
    for record in range(1, 30):
        of_class = holds[labels == labels[record]].any(axis=0)
        own, others = holds[record], of_class & ~holds[record]
        expected = 0.0
        if own.any() and others.any():
            places, spread = near[record], answers[of_class][:, near[record]].var(axis=0)
            influence = answers[own].mean(axis=0) - answers[others].mean(axis=0)
            for slot, own_spread in zip(places, spread, strict=True):
                if not np.isfinite(noise_var[slot]):
                    continue
                without = 0.75 * answers[:, slot].mean(axis=0) + share * answers[others, slot].mean(axis=0)
                deviation = np.sqrt(share * (own_spread + spread.mean()) / 2 + noise_var[slot])
                means = (without + share * influence[slot], without)
                with_it, without_it = (norm.logpdf(received[slot], mean, deviation).sum() for mean in means)
                expected += with_it - without_it
        assert found[record] == pytest.approx(expected)


def test_shadows_of_the_device_are_complementary_and_of_its_size(tmp_path):
    context = memorised(tmp_path, "ota_proxy_fd")
    pool = own_pool(context, pool_of(context, 0))
    assert (pool.is_own.sum(), (~pool.is_own).sum()) == (60, 60)
    counts = [np.bincount(pool.labels[chosen], minlength=3).tolist() for chosen in (pool.is_own, ~pool.is_own)]
    assert counts[0] == pytest.approx(counts[1], abs=2)  # class counts are public
    held = {sample.tobytes() for sample in context.own_samples}
    assert [sample.tobytes() in held for sample in pool.samples] == pool.is_own.tolist()
    shadows = train_own_shadows(context, pool, AuditOptions(shadows=4), no_progress)
    assert shadows.holds.shape == (120, 8)  # as many as four fleets of two devices
    assert shadows.holds.sum(axis=0).tolist() == [60] * 8
    assert (shadows.holds[:, ::2] != shadows.holds[:, 1::2]).all()


def test_the_known_answers_of_other_devices_are_removed(tmp_path):
    """What remains is the device's own answers, with noise of the counted variance."""
    context = memorised(tmp_path, "ota_proxy_fd", "privacy.epsilon=20", "learning.rounds=2", rounds=2)
    quiet = memorised(tmp_path, "ota_proxy_fd", "privacy.epsilon=inf", "learning.rounds=2", rounds=2)
    exact, _ = own_answers(quiet)
    assert exact.reshape(2, 240, 3).sum(axis=-1)[0] == pytest.approx(1, abs=1e-6)  # predictions
    seen, noise_var = own_answers(context)
    deviation = ((seen - exact)[0] ** 2).mean()  # the first round does not depend on earlier noise
    assert deviation == pytest.approx(noise_var[0, 0], rel=5 / np.sqrt(720 / 2))


def test_few_shadow_devices_that_lack_classes_are_possible(tmp_path):
    changes = ["fleet.devices=4", "data.samples_per_device=30", "data.partition=shards", "data.classes_per_device=2"]
    context = memorised(tmp_path, "airdistill_proxy", *changes)
    options = AuditOptions(shadows=4, shadow_devices=1)
    shadows = train_shadows(context, pool_of(context, 0), options, no_progress)
    assert shadows.vectors.shape == (4, 1, 1, 720)
    assert audit_membership(context, options, no_progress).violations == ()


def test_the_nearest_public_samples_are_found():
    rng = np.random.default_rng(0)
    samples, public = rng.standard_normal((7, 3, 2)), rng.standard_normal((9, 3, 2))
    distance = ((samples[:, None] - public[None]) ** 2).sum(axis=(2, 3))
    assert (nearest(samples, public, 4) == np.argsort(distance, axis=1)[:, :4]).all()
    assert nearest(samples, public, 20).shape == (7, 9)
