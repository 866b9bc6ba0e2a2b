"""What a plan of a large fleet leaves out or computes differently, compared with the plan of a small one."""

from importlib import import_module

import numpy as np
import pytest
from small_worlds import small_scenario

import airdistill as ad
from airdistill.arrays import largest
from airdistill.planning.transceiver import superposed

planning = import_module("airdistill.planning.plan")  # the package exports a function of this name


@pytest.mark.parametrize("devices", [1, 1023, 1024, 1025, 1100, 4096])
@pytest.mark.parametrize("rows", [1, 3, 10])
def test_the_largest_number_of_all_devices_is_numpys(devices, rows):
    array = np.random.default_rng(devices).standard_normal((devices, rows))
    assert np.array_equal(largest(array), array.max(axis=0))
    assert np.array_equal(largest(np.asfortranarray(array)), array.max(axis=0))
    assert np.array_equal(largest(np.stack([array, -array])), np.stack([array, -array]).max(axis=1))
    array[devices // 2, 0] = np.inf
    array[-1, -1] = np.nan
    assert np.array_equal(largest(array), array.max(axis=0), equal_nan=True)


@pytest.mark.parametrize("trust", ["receiver_noise", "fleet_noise", "own_noise"])
@pytest.mark.parametrize("more", [(), ("fleet.participation=0.5",), ("privacy.sensitivity=trajectory",)])
def test_the_strictest_device_is_found_once_with_the_same_plan(tmp_path, monkeypatch, trust, more):
    """For own noise, sampled fleets and bounds that grow in another way the requirement is not taken from one T."""
    scenario = small_scenario(
        tmp_path, f"privacy.trust={trust}", "learning.max_rounds=9", "radio.fading=rayleigh", *more
    )
    uplink, channels = ad.plan(scenario, "ota_fd").uplink, planning.planning_draws(scenario)
    noise = []
    for size in (10**9, 1):
        monkeypatch.setattr(superposed, "LARGE_FLEET", size)
        noise.append([uplink.noise_over(channels)(num_rounds) for num_rounds in (1, 7, 40)])
    assert np.isfinite(noise).any()
    assert noise[1] == pytest.approx(np.array(noise[0]), rel=1e-12)


@pytest.mark.parametrize(("affordable", "draws"), [(10**6, 200), (3 * 60, 60), (1, 24)])
def test_large_fleets_are_planned_from_fewer_draws(tmp_path, monkeypatch, affordable, draws):
    monkeypatch.setattr(planning, "_DRAWN_DEVICES", affordable)
    scenario = small_scenario(tmp_path, "radio.fading=rayleigh")
    assert len(planning.planning_draws(scenario)) == draws
    assert ad.plan(scenario, "ota_fd").forecast.num_draws == draws
