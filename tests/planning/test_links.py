"""The links of a plan's devices: numbers by hand, and the device that limits λ found by changing it."""

from dataclasses import replace

import numpy as np
import pytest

import airdistill as ad
from airdistill.planning.links import device_links
from airdistill.scenario import load

# Three devices without fading at 100, 200 and 400 m, with counts that make every class alike.
FIXED = (
    "fleet.devices=3", "radio.fading=none", "radio.distance=[100, 200, 400]",
    "data.class_counts=[[30, 30], [30, 30], [30, 30]]", "learning.rounds=5",
)  # fmt: skip


def links_of(*changes, scheme="ota_fd"):
    plan = ad.plan(load("quick", [*FIXED, *changes]), scheme)
    return plan, device_links(plan)


def test_path_loss_and_snr_by_hand():
    changes = ("radio.server_antenna_dbi=6", "radio.implementation_loss_db=2", "radio.peak_power={values=[1, 2, 4]}")
    _, links = links_of(*changes)
    # −10 log10(1.77613e-11) at 100 m (tests/channel/test_channel.py), and 30 log10(2) more for twice the distance.
    expected = 107.505 + 9.0309 * np.arange(3)
    assert links.path_loss_db == pytest.approx(expected, abs=1e-3)
    # Power in dBW, gains 4 dB, and 2.5e-15 W on the decision axis, −146.0206 dBW.
    assert links.snr_db == pytest.approx(np.array([0, 3.0103, 6.0206]) + 4 - expected + 146.0206, abs=1e-3)
    assert links.distance_m == pytest.approx([100, 200, 400])
    assert not links.bearings_matter


def with_one_device_better(plan, changed_power=1.0, device=None):
    """λ² of the plan's first draw, if one device had more power."""
    power = plan.fleet.peak_power_w.copy()
    if device is not None:
        power[device] *= changed_power
    fleet = replace(plan.fleet, peak_power_w=power)
    from airdistill.planning.plan import planning_draws

    return float((replace(plan.uplink, fleet=fleet).design(planning_draws(plan.scenario)[0], 5, 1).rx_scale ** 2)[0])


def test_the_channel_that_limits_is_the_one_whose_power_would_raise_the_scale():
    plan, links = links_of("privacy.epsilon=inf", "privacy.trust=receiver_noise")
    assert links.channel_limits.tolist() == [0, 0, 1]
    assert not links.privacy_limits.any()
    before = with_one_device_better(plan)
    assert with_one_device_better(plan, 2, device=2) == pytest.approx(2 * before)
    for near in (0, 1):
        assert with_one_device_better(plan, 2, device=near) == pytest.approx(before)
    assert links.noise_share is None  # no device sends noise


@pytest.mark.parametrize("trust", ["receiver_noise", "fleet_noise"])
def test_the_strictest_target_limits_if_privacy_does(trust):
    plan, links = links_of("privacy.epsilon=[8, 0.5, 8]", f"privacy.trust={trust}", "radio.noise_power=1e-18 W")
    assert links.privacy_limits.tolist() == [0, 1, 0]
    assert not links.channel_limits.any()
    milder = ad.plan(load("quick", [*FIXED, "privacy.epsilon=[8, 1, 8]", *_same(trust)]), "ota_fd")
    other = ad.plan(load("quick", [*FIXED, "privacy.epsilon=[80, 0.5, 80]", *_same(trust)]), "ota_fd")
    assert with_one_device_better(milder) > with_one_device_better(plan) * 1.5
    assert with_one_device_better(other) == pytest.approx(with_one_device_better(plan))


def _same(trust):
    return f"privacy.trust={trust}", "radio.noise_power=1e-18 W"


def test_equal_targets_limit_together():
    _, links = links_of("privacy.trust=receiver_noise", "privacy.epsilon=0.1", "radio.noise_power=1e-18 W")
    assert links.privacy_limits.tolist() == [1, 1, 1]


def test_with_own_noise_the_weakest_device_limits_by_its_noise_or_its_signal():
    _, strict = links_of("privacy.trust=own_noise", "privacy.epsilon=1")
    assert (strict.privacy_limits.tolist(), strict.channel_limits.tolist()) == ([0, 0, 1], [0, 0, 0])
    _, loose = links_of("privacy.trust=own_noise", "privacy.epsilon=1e5")
    assert (loose.privacy_limits.tolist(), loose.channel_limits.tolist()) == ([0, 0, 0], [0, 0, 1])


def test_shares_of_the_noise_sum_to_one_and_are_what_the_gains_send():
    from airdistill.planning.plan import planning_draws

    plan, links = links_of("privacy.trust=fleet_noise")
    channel = planning_draws(plan.scenario)[0]
    sent = np.abs(plan.design(channel).noise_gain * channel[:, None]) ** 2
    assert links.noise_share == pytest.approx(sent[:, 0] / sent[:, 0].sum())
    assert links.noise_share.sum() == pytest.approx(1)
    assert (links.power_used <= 1 + 1e-9).all()
    spent = (plan.forecast.signal_power_w + plan.forecast.noise_power_w) / plan.fleet.peak_power_w
    assert links.power_used == pytest.approx(spent)


def test_given_gains_have_no_places():
    gains = "radio.gains=[[1e-5, 0], [0, 1e-6], [1e-6, 1e-6]]"
    _, links = links_of(gains)
    assert links.distance_m is None
    assert links.path_loss_db == pytest.approx([100, 120, 116.9897], abs=1e-4)


def test_what_is_not_on_the_air_has_no_links():
    plan = ad.plan(load("quick", ["air.medium=secure_sum"]), "airdistill", rounds=2)
    assert device_links(plan) is None


PART = ("fleet.participation=0.5",)


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [
        ("orthogonal_fd", ()),
        ("ota_fl", ()),
        ("ota_fd", ("radio.antennas=2",)),
        ("ota_fd", ("fleet.participation=0.5",)),
    ],
)
def test_every_uplink_has_links(scheme, changes):
    plan = ad.plan(load("quick", ["fleet.devices=4", "learning.rounds=3", *changes]), scheme)
    links = device_links(plan)
    assert ((links.limiting >= 0) & (links.limiting <= 1 + 1e-12)).all()
    assert links.limiting.sum() >= 1 - 1e-9  # in every row that is sent some device limits λ
    assert np.isfinite(links.snr_db).all()
