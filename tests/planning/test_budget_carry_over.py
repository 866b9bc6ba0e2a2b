"""Privacy budget carried over between rounds: never above the target, fully used, and never more noise."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_fleets import TRUSTS, fleets, random_fleet, uplink_of

from airdistill.privacy.ledger import BudgetExceeded
from airdistill.privacy.sensitivity import JOINT_MODELS
from airdistill.privacy.targets import spent_squared_mu


def play(uplink, channels, trust):
    """Play all rounds with carry-over and return Σ (w s)²/c `[device, class]` and v `[round, class]`."""
    spent, noise = np.zeros(uplink.nominal_weights.shape), []
    for index, channel in enumerate(channels, start=1):
        design = uplink.design(channel, len(channels), index, spent)
        noise.append(design.effective_noise_var)
        spent = spent + uplink.release(design, channel, index).cost(uplink.model, trust)
    return spent, np.array(noise)


def faded(fleet, num_rounds, seed):
    rng = np.random.default_rng(seed)
    return fleet.channel * np.sqrt(rng.exponential(size=(num_rounds, len(fleet.channel))))


@given(
    fleets,
    st.sampled_from(TRUSTS),
    st.integers(1, 12),
    st.integers(0, 2**32),
    st.booleans(),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from(["trajectory", None]),
)
def test_no_device_ever_spends_more_than_its_target(fleet, trust, num_rounds, seed, split, inactive, model):
    channels = faded(fleet, num_rounds, seed)
    threshold = float(np.quantile(np.abs(channels) ** 2, inactive)) if inactive else 0.0
    choices = {"carry_over": True, "split_budget": split, "truncation": threshold}
    uplink = uplink_of(fleet, trust, model=model or fleet.model, **choices)
    spent, _ = play(uplink, channels, trust)
    total = spent_squared_mu(spent, uplink.model, relabel=False)
    assert (total <= fleet.mu**2 * (1 + 1e-9)).all()


@given(fleets, st.sampled_from(TRUSTS), st.integers(2, 12), st.integers(0, 2**32))
def test_carry_over_changes_nothing_if_only_the_devices_noise_counts(fleet, trust, num_rounds, seed):
    """With noise that devices add, every round costs exactly its share, whatever the channel."""
    if trust == "receiver_noise":
        trust = "fleet_noise"
    if fleet.model in JOINT_MODELS and trust == "fleet_noise":
        return  # the strictest device sets a class's noise, and the others have budget left
    channels = faded(fleet, num_rounds, seed)
    _, carried = play(uplink_of(fleet, trust, carry_over=True), channels, trust)
    _, plain = play(uplink_of(fleet, trust), channels, trust)
    assert carried == pytest.approx(plain, rel=1e-6)


def test_budget_saved_by_channel_noise_is_spent_in_the_last_round():
    """One device, its costliest class: three rounds of strong channel noise leave most of their share to the fourth."""
    fleet = next(f for f in map(_one_device, range(100)) if f is not None)
    uplink = uplink_of(fleet, "receiver_noise", carry_over=True)
    share = fleet.mu[0] ** 2 / 4
    required = uplink.required(4)[0]
    # In three rounds the channel noise alone is ten times the required noise; in the last there is almost none.
    weak = np.sqrt(uplink.channel_floor(np.ones((1, 1)))[0].max() / (10 * required.max()))
    channels = np.array([[weak], [weak], [weak], [1e9 * weak]])
    spent, noise = play(uplink, channels, "receiver_noise")
    costliest = int(np.argmax(required))
    early = noise[0, costliest]
    assert early == pytest.approx(10 * required[costliest], rel=1e-6)
    left = 4 * share - 3 * share * required[costliest] / early
    assert noise[3, costliest] == pytest.approx(required[costliest] * share / left, rel=1e-6)
    assert spent[0, costliest] == pytest.approx(4 * share, rel=1e-9)


def _one_device(seed):
    fleet = random_fleet(seed)
    if len(fleet.mu) != 1 or not np.isfinite(fleet.mu[0]):
        return None
    return replace(fleet, channel_noise_var=1.0, model="paper", class_counts=np.maximum(fleet.class_counts, 1))


@given(fleets, st.integers(2, 12), st.integers(0, 2**32))
def test_carry_over_never_adds_noise_under_receiver_noise(fleet, num_rounds, seed):
    channels = faded(fleet, num_rounds, seed)
    _, carried = play(uplink_of(fleet, "receiver_noise", carry_over=True), channels, "receiver_noise")
    _, plain = play(uplink_of(fleet, "receiver_noise"), channels, "receiver_noise")
    assert (carried <= plain * (1 + 1e-9)).all()


def test_a_device_without_budget_cannot_join_another_round():
    fleet = next(f for f in map(_one_device, range(100)) if f is not None)
    uplink = uplink_of(fleet, "own_noise", carry_over=True)
    spent = np.full(uplink.nominal_weights.shape, 2 * fleet.mu[0] ** 2)
    with pytest.raises(BudgetExceeded, match="device 0 has no privacy budget left"):
        uplink.design(fleet.channel, 4, 3, spent)


@given(fleets, st.integers(1, 30))
def test_an_optimal_class_budget_never_needs_more_noise_than_equal_shares(fleet, num_rounds):
    """Σ_k α_k v_k of the required noise, with every device within its budget."""
    if fleet.model not in JOINT_MODELS:
        return
    equal, split = uplink_of(fleet, "fleet_noise"), uplink_of(fleet, "fleet_noise", split_budget=True)
    ours, theirs = (uplink.privacy_noise_var(num_rounds) for uplink in (split, equal))
    assert split.over_fleet(ours) <= equal.over_fleet(theirs) * (1 + 1e-9)
    shift = split.shift(fleet.model).after(num_rounds)
    cost = np.where(shift > 0, shift / np.where(shift > 0, np.maximum(ours, 1e-300), 1.0), 0.0).sum(axis=1)
    assert (cost[np.isfinite(fleet.mu)] <= fleet.mu[np.isfinite(fleet.mu)] ** 2 * (1 + 1e-9)).all()
