import numpy as np
import pytest
from audit_contexts import no_progress, small_context
from scipy.stats import norm

from airdistill.audit.membership import MembershipAudit, auc, audit_membership, membership_scores, rate_at, roc
from airdistill.audit.options import AuditOptions
from airdistill.audit.shadows import pool_of, train_shadows
from airdistill.errors import InputError
from airdistill.privacy.targets import epsilon_of_mu


def test_scores_are_log_likelihood_ratios_of_the_broadcast():
    rng = np.random.default_rng(0)
    labels, holds = rng.integers(2, size=40), rng.random((40, 6)) < 0.3
    holds[0] = False  # no shadow device trained on it: nothing to compare with
    knowledge, received = rng.normal(size=(6, 3, 2, 4)), rng.normal(size=(3, 2, 4))
    noise_var, share = rng.uniform(0.1, 2, size=(3, 2)), 0.25
    received[1, 0] = np.nan  # a class that was not sent in one round
    knowledge[5, :, 1] = np.nan  # a shadow device without class 1
    found = membership_scores(labels, holds, knowledge, received, noise_var, share)
    assert found[0] == 0
    for record in range(1, 40):
        klass, expected = labels[record], 0.0
        chosen = np.arange(6) if klass == 0 else np.arange(5)
        own = holds[record, chosen]
        if own.all() or not own.any():
            assert found[record] == 0
            continue
        for t in range(3):
            if np.isnan(received[t, klass]).any():
                continue
            known = knowledge[chosen, t, klass]
            spread = np.sqrt(share * known.var(axis=0, ddof=1) + noise_var[t, klass])
            without = known[~own].mean(axis=0)
            with_it = (1 - share) * without + share * known[own].mean(axis=0)
            logs = [norm.logpdf(received[t, klass], mean, spread).sum() for mean in (with_it, without)]
            expected += logs[0] - logs[1]
        assert found[record] == pytest.approx(expected)


def test_a_fleet_that_broadcasts_its_members_is_detected():
    """The knowledge of a shadow device contains marks of its records; the broadcast contains the members' marks."""
    rng, num_shadows, size, devices = np.random.default_rng(1), 512, 60, 3
    marks, holds = rng.normal(size=(size, 400)), np.zeros((size, num_shadows * devices), dtype=bool)
    for shadow in range(num_shadows):
        for device, held in enumerate(np.array_split(rng.permutation(size)[: size // 2], devices)):
            holds[held, shadow * devices + device] = True
    knowledge = (holds.T / (size // 2 // devices)) @ marks
    is_member = np.arange(size) < size // 2
    received = marks[is_member].mean(axis=0)

    def measured(noise):
        labels, noise_var = np.zeros(size, dtype=int), np.array([[noise]])
        known = knowledge[:, None, None]
        scores = membership_scores(labels, holds, known, received[None, None], noise_var, 1 / devices)
        return auc(scores[is_member], scores[~is_member])

    assert measured(1e-6).low > 0.7
    holds = holds[rng.permutation(size)]  # the attacker no longer knows which records a shadow device trained on
    blind = measured(1e-6)
    assert blind.low < 0.5 < blind.high


def test_shadow_fleets_are_complementary_and_of_the_requested_size(tmp_path):
    context = small_context(tmp_path, rounds=2)
    pool = pool_of(context, seed=0)
    shares = [np.bincount(pool.labels[chosen], minlength=3) for chosen in (pool.is_member, ~pool.is_member)]
    assert shares == [pytest.approx([20, 20, 20]), pytest.approx([10, 10, 10])]
    train = {sample.tobytes() for sample in context.dataset.x_train}
    assert [sample.tobytes() in train for sample in pool.samples] == pool.is_member.tolist()
    shadows = train_shadows(context, pool, AuditOptions(shadows=6, shadow_devices=2), no_progress)
    assert shadows.holds.shape == (90, 12)
    inside = shadows.holds.reshape(90, 6, 2).sum(axis=2)
    assert inside.max() == 1  # at most one device of a shadow fleet holds a record
    assert not (inside[:, ::2] & inside[:, 1::2]).any()
    assert inside.sum(axis=0).tolist() == [44, 44] * 3  # of 45 each, because both devices hold equally many
    assert shadows.vectors.shape == (12, 2, 3, 3)
    assert shadows.vectors.sum(axis=-1) == pytest.approx(1)


def test_unused_training_records_are_non_members(tmp_path):
    context = small_context(tmp_path, "ota_fd", "data.samples_per_device=10", rounds=1)
    pool = pool_of(context, seed=0)
    held = {context.dataset.x_train[place].tobytes() for own in context.indices for place in own}
    assert [sample.tobytes() in held for sample in pool.samples] == pool.is_member.tolist()
    assert pool.is_member.sum() == 30
    counts = [np.bincount(pool.labels[chosen], minlength=3) for chosen in (pool.is_member, ~pool.is_member)]
    # The members' class proportions, up to whole records: class counts are public.
    assert counts[1] / counts[1].sum() == pytest.approx(counts[0] / 30, abs=1 / counts[1].sum())


def test_class_proportions_alone_do_not_reveal_membership(tmp_path):
    """Devices with skewed classes, and a score that depends on the label alone."""
    context = small_context(
        tmp_path, "ota_fd", "fleet.devices=2", "data.partition=dirichlet", "data.alpha=0.3", rounds=1
    )
    pool = pool_of(context, seed=0)
    score = np.array([0.0, 1.0, 2.0])[pool.labels]
    found = auc(score[pool.is_member], score[~pool.is_member])
    assert found.value == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    "partition",
    [["data.partition=dirichlet", "data.alpha=0.5"], ["data.partition=shards", "data.classes_per_device=2"]],
)
def test_shadow_fleets_are_split_by_the_scenarios_rule(tmp_path, partition):
    context = small_context(tmp_path, "ota_fd", *partition, rounds=2)
    found = audit_membership(context, AuditOptions(shadows=4), no_progress)
    assert 0 <= found.auc.low <= found.auc.high <= 1
    assert found.violations == ()
    assert "only 30 records" in found.notes[-1]


def test_more_shadow_devices_than_records_are_rejected(tmp_path):
    context = small_context(tmp_path, "ota_fd", "fleet.devices=50", "data.samples_per_device=1", rounds=1)
    with pytest.raises(InputError, match="--shadow-devices = 50"):
        audit_membership(context, AuditOptions(shadows=4, shadow_devices=50), no_progress)


@pytest.mark.parametrize(("epsilon", "broken"), [(1.0, True), (6.0, False), (np.inf, False)])
def test_a_rate_beyond_what_epsilon_allows_is_a_violation(epsilon, broken):
    members, others = np.linspace(0, 1, 10_000) + 0.5, np.linspace(0, 1, 10_000)
    points = tuple(rate_at(members, others, asked) for asked in (0.001, 0.01))
    found = MembershipAudit(
        60_000, 10_000, 10_000, 8, 10, auc(members, others), points, roc(members, others), epsilon, 1e-5
    )
    assert bool(found.violations) == broken
    assert any("Of the fleet's 60000 records, 10000" in note for note in found.notes)
    if broken:
        assert len(found.violations) == 3
        assert found.allowed(points[1]) == pytest.approx(np.e * points[1].false_positive.high + 1e-5)
        assert found.allowed_auc == pytest.approx(1 - (1 - 1e-5) ** 2 / (1 + np.e))
        assert "AUC of 0.8750" in found.violations[2]


def test_mu_bounds_rates_more_closely_than_epsilon():
    """The (ε, δ) of a μ-Gaussian mechanism allow what the mechanism itself cannot reach."""
    members, others = np.linspace(0, 1, 1000), np.linspace(0, 1, 1000)
    points = tuple(rate_at(members, others, asked) for asked in (0.001, 0.01))
    mu, delta = 1.5, 1e-5
    epsilon = float(epsilon_of_mu(mu, delta)[0])
    parts = (1000, 1000, 1000, 8, 10, auc(members, others), points, roc(members, others), epsilon, delta)
    loose, close = MembershipAudit(*parts), MembershipAudit(*parts, mu)
    rates = np.geomspace(1e-8, 1, 50)
    assert close.allowed_rates(rates) == pytest.approx(norm.cdf(norm.ppf(rates) + mu))
    assert (loose.allowed_rates(rates) >= close.allowed_rates(rates)).all()
    assert close.allowed_auc == pytest.approx(norm.cdf(mu / np.sqrt(2)))
    assert loose.allowed_auc > close.allowed_auc
    assert loose.to_dict()["mu"] == np.inf
