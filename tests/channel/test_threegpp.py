import json
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats
from small_worlds import small_scenario

import airdistill as ad
from airdistill.channel import channel_source
from airdistill.channel.threegpp import (
    ROUNDS_PER_BLOCK,
    ThreeGppChannel,
    cell_draws,
    load_sionna,
    narrowband_gains,
    seeded_sionna,
)
from airdistill.errors import InputError
from airdistill.scenario import load
from airdistill.streams import stream


@pytest.fixture
def sionna():
    pytest.importorskip("sionna", reason="needs the extra `channels`")
    load_sionna("umi")
    return sys.modules["sionna.phy"]


@pytest.fixture
def two_threads():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def source_of(fading, *changes, devices=20):
    return channel_source(load("paper", [f"fleet.devices={devices}", f"radio.fading={fading}", *changes]))


def power(source, num_draws):
    """|h|² of the planner's draws, `[draw, device]`."""
    return np.abs(source.planning_channels(num_draws)) ** 2


# Table 7.4.1-1 of TR 38.901, in dB; distance on the ground in m, carrier in GHz, heights in m.


def slant(ground, server, device):
    return np.hypot(ground, server - device)


def umi_loss(los, ground, ghz, server=10.0, device=1.5):
    d = slant(ground, server, device)
    breakpoint_m = 4 * (server - 1) * (device - 1) * ghz * 1e9 / 299792458
    near = 32.4 + 21 * np.log10(d) + 20 * np.log10(ghz)
    far = 32.4 + 40 * np.log10(d) + 20 * np.log10(ghz) - 9.5 * np.log10(breakpoint_m**2 + (server - device) ** 2)
    los_loss = near if ground <= breakpoint_m else far
    return los_loss if los else max(los_loss, 35.3 * np.log10(d) + 22.4 + 21.3 * np.log10(ghz) - 0.3 * (device - 1.5))


def uma_loss(los, ground, ghz, server=25.0, device=1.5):
    d = slant(ground, server, device)
    breakpoint_m = 4 * (server - 1) * (device - 1) * ghz * 1e9 / 299792458
    near = 28 + 22 * np.log10(d) + 20 * np.log10(ghz)
    far = 28 + 40 * np.log10(d) + 20 * np.log10(ghz) - 9 * np.log10(breakpoint_m**2 + (server - device) ** 2)
    los_loss = near if ground <= breakpoint_m else far
    return los_loss if los else max(los_loss, 13.54 + 39.08 * np.log10(d) + 20 * np.log10(ghz) - 0.6 * (device - 1.5))


def rma_loss(los, ground, ghz, server=35.0, device=1.5, building=5.0, street=20.0):
    def los_loss_at(d):
        steeper = min(0.03 * building**1.72, 10) * np.log10(d) - min(0.044 * building**1.72, 14.77)
        return 20 * np.log10(40 * np.pi * d * ghz / 3) + steeper + 0.002 * np.log10(building) * d

    d = slant(ground, server, device)
    breakpoint_m = 2 * np.pi * server * device * ghz * 1e9 / 299792458
    los_loss = los_loss_at(d) if ground <= breakpoint_m else los_loss_at(breakpoint_m) + 40 * np.log10(d / breakpoint_m)
    nlos_loss = 161.04 - 7.1 * np.log10(street) + 7.5 * np.log10(building)
    nlos_loss -= (24.37 - 3.7 * (building / server) ** 2) * np.log10(server)
    nlos_loss += (43.42 - 3.1 * np.log10(server)) * (np.log10(d) - 3) + 20 * np.log10(ghz)
    nlos_loss -= 3.2 * np.log10(11.75 * device) ** 2 - 4.97
    return los_loss if los else max(los_loss, nlos_loss)


LOSS = {"umi": umi_loss, "uma": uma_loss, "rma": rma_loss}


def without_shadowing(fading, *changes, devices):
    scenario = load("paper", [f"fleet.devices={devices}", f"radio.fading={fading}", *changes])
    distance_m = np.broadcast_to(scenario.radio.distance.numbers, devices)
    return ThreeGppChannel(0, cell_draws(scenario, distance_m, shadowing=False))


@pytest.mark.parametrize(
    ("fading", "los", "ground", "ghz", "heights"),
    [
        ("umi", True, 40, 0.915, {}),
        ("umi", True, 300, 0.915, {"device": 10.0}),
        ("umi", True, 400, 3.5, {}),
        ("umi", False, 200, 3.5, {"device": 3.0}),
        ("uma", True, 80, 2.0, {}),
        ("uma", True, 1000, 2.0, {}),
        ("uma", False, 300, 0.915, {"device": 6.0}),
        ("rma", True, 500, 0.915, {}),
        ("rma", True, 3000, 0.7, {"server": 20.0}),
        ("rma", False, 2000, 0.915, {"server": 50.0, "device": 3.0}),
    ],
)
@pytest.mark.usefixtures("sionna")
def test_the_mean_power_of_a_cell_is_the_standards_path_loss(fading, los, ground, ghz, heights):
    changes = [f"radio.{end}_height={height} m" for end, height in heights.items()]
    sight = "always" if los else "never"
    source = without_shadowing(
        fading, f"radio.distance={ground}", f"radio.carrier={ghz} GHz", f"radio.line_of_sight={sight}", *changes,
        devices=60,
    )  # fmt: skip
    expected = 10 ** (-LOSS[fading](los, ground, ghz, **heights) / 10)
    of_device = power(source, 2 * ROUNDS_PER_BLOCK).mean(axis=0) / expected
    error = of_device.std() / np.sqrt(len(of_device))
    assert error < 0.04
    assert abs(of_device.mean() - 1) <= 5 * error + 1e-4


@pytest.mark.usefixtures("sionna")
def test_the_line_of_sight_probability_is_that_of_the_standard():
    ground = 60.0
    source = without_shadowing("umi", f"radio.distance={ground}", "radio.carrier=3.5 GHz", devices=200)
    loss_db = -10 * np.log10(power(source, ROUNDS_PER_BLOCK).mean(axis=0))
    halfway = (umi_loss(True, ground, 3.5) + umi_loss(False, ground, 3.5)) / 2
    probability = 18 / ground + np.exp(-ground / 36) * (1 - 18 / ground)
    assert abs((loss_db < halfway).mean() - probability) < 5 * np.sqrt(probability * (1 - probability) / 200)


@pytest.mark.usefixtures("sionna")
def test_shadowing_is_drawn_once_and_has_the_standards_deviation():
    scenario = load("paper", ["fleet.devices=120", "radio.fading=umi", "radio.line_of_sight=never"])
    source = channel_source(scenario)
    distance_m = scenario.radio.distance.draw(120, stream(scenario.seed, "radio.distance"))
    expected_db = np.array([-umi_loss(False, ground, 0.915) for ground in distance_m])
    planned = 10 * np.log10(power(source, 60).mean(axis=0))
    in_run = 10 * np.log10(np.mean([np.abs(source.round_channel(t)) ** 2 for t in range(60)], axis=0))
    # 7.82 dB, table 7.4.1-1; shadowing is correlated between neighbours, and so the tolerance is wide.
    assert (planned - expected_db).std() == pytest.approx(7.82, abs=2)
    # The mean power of 60 Rayleigh draws has a deviation of 4.34/√60 dB, and the difference of two √2 times that.
    assert np.abs(planned - in_run).max() < 5 * np.sqrt(2) * 4.34 / np.sqrt(60)


@pytest.mark.usefixtures("sionna")
def test_non_line_of_sight_fading_is_rayleigh_and_independent_over_rounds():
    drawn = power(source_of("uma", "radio.line_of_sight=never", devices=80), 100)
    unit = drawn / drawn.mean(axis=0)
    assert (unit**2).mean() == pytest.approx(2, abs=0.1)  # E|h|⁴ of a complex Gaussian
    for lag in (1, 2, 7, ROUNDS_PER_BLOCK):
        products = ((unit[lag:] - 1) * (unit[:-lag] - 1)).mean(axis=0)
        assert abs(products.mean()) < 5 * products.std() / np.sqrt(80) + 0.02


@pytest.mark.usefixtures("sionna")
def test_tdl_a_is_rayleigh_of_unit_power_times_the_scenarios_path_loss():
    source = source_of("tdl-a", "radio.path_loss_exponent=2", "radio.distance=100 m", devices=200)
    unit = power(source, 100).ravel() / 6.80741e-8  # (3e8/(4π·915e6·100))², by hand
    assert abs(unit.mean() - 1) <= 5 / np.sqrt(unit.size)
    assert stats.kstest(unit, "expon").pvalue > 1e-3


# Tables 7.7.2-4 and 7.7.2-5 in dB: the line-of-sight path first, then the scattered paths.
TDL_POWERS = {
    "tdl-d": [-0.2, -13.5, -18.8, -21, -22.8, -17.9, -20.1, -21.9, -22.9, -27.8, -23.6, -24.8, -30.0, -27.7],
    "tdl-e": [-0.03, -22.03, -15.8, -18.1, -19.8, -22.9, -22.4, -18.6, -20.8, -22.6, -22.3, -25.6, -20.2, -29.8, -29.2],
}


@pytest.mark.parametrize("fading", TDL_POWERS)
@pytest.mark.usefixtures("sionna")
def test_tdl_d_and_e_are_rician_with_the_standards_k_factor(fading):
    direct, *scattered = 10 ** (np.array(TDL_POWERS[fading]) / 10)
    k_factor = direct / sum(scattered)
    source = source_of(fading, "radio.path_loss_exponent=0", devices=200)
    amplitude = np.sqrt(power(source, 100).ravel())
    assert abs((amplitude**2).mean() - 1) <= 5 * (amplitude**2).std() / np.sqrt(amplitude.size)
    # E|h|⁴ = 2 − (K/(K+1))².
    share = np.sqrt(2 - (amplitude**4).mean())
    assert share == pytest.approx(k_factor / (k_factor + 1), abs=0.01)
    rice = stats.rice(np.sqrt(2 * k_factor), scale=np.sqrt(1 / (2 * (k_factor + 1))))
    assert stats.kstest(amplitude, rice.cdf).pvalue > 1e-3


def test_path_amplitudes_are_summed_and_the_path_gain_is_a_power():
    paths = np.array([[[3, 4j], [1, -1]]])  # one round, two devices, two paths
    assert narrowband_gains(paths).tolist() == [[3 + 4j, 0]]
    assert np.abs(narrowband_gains(paths, np.array([0.01, 1.0]))[0, 0]) ** 2 == pytest.approx(0.01 * 25)


@pytest.mark.usefixtures("sionna")
def test_sionnas_noise_power_is_the_total_of_both_axes():
    import torch
    from sionna.phy.channel import AWGN

    with seeded_sionna(np.random.default_rng(0)):
        noise = AWGN(device="cpu")(torch.zeros(100_000, dtype=torch.complex64), 5.0).numpy()
    assert (np.abs(noise) ** 2).mean() == pytest.approx(5, rel=0.02)
    assert noise.real.var() == pytest.approx(2.5, rel=0.03)  # half of it on each axis


@pytest.mark.parametrize("fading", ["umi", "rma", "tdl-c"])
@pytest.mark.usefixtures("sionna", "two_threads")
def test_a_draw_depends_only_on_seed_purpose_and_index(fading):
    import torch

    source = source_of(fading, devices=3)
    in_order = np.stack([source.round_channel(t) for t in range(45)])
    planned = source.planning_channels(30)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    again = source_of(fading, devices=3)
    for t in (44, 3, 20, 19):
        assert np.array_equal(again.round_channel(t), in_order[t])
        assert np.array_equal(again.planning_channels(7), planned[:7])
    assert len(np.unique(np.concatenate([in_order, planned]))) == 75 * 3
    assert not np.isin(source_of(fading, "seed=1", devices=3).planning_channels(30), planned).any()


@pytest.mark.parametrize("fading", ["uma", "tdl-a"])
@pytest.mark.usefixtures("two_threads")
def test_random_generators_and_thread_settings_are_restored(fading, sionna):
    import torch

    def state():
        own = sionna.config.torch_rng("cpu").get_state()
        return [sionna.config.seed, torch.get_num_threads(), torch.get_rng_state().tolist(), own.tolist()]

    before = state()
    source_of(fading, devices=2).round_channel(1)
    assert state() == before


@pytest.mark.usefixtures("sionna")
def test_sionna_is_imported_on_first_use_and_torchs_generator_is_restored():
    """In a separate process, because Sionna is already imported here."""
    code = """
import sys, torch
import airdistill as ad
from airdistill.channel import channel_source
channel_source(ad.load("quick")).round_channel(1)
assert "sionna" not in sys.modules
before = torch.manual_seed(5).get_state()
channel_source(ad.load("quick", ["radio.fading=umi"])).round_channel(1)
assert "sionna" in sys.modules
assert torch.equal(torch.get_rng_state(), before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_sionna_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sionna.phy.channel", None)
    with pytest.raises(InputError) as caught:
        source_of("umi")
    assert str(caught.value) == """radio.fading = "umi": needs Sionna: pip install 'airdistill[channels]'"""


@pytest.mark.parametrize(
    ("changes", "field", "rule"),
    [
        (["radio.fading=umi", "radio.carrier=433 MHz"], "radio.carrier", "between 5e+08 and 1e+11 Hz for 3GPP UMi"),
        (["radio.fading=rma", "radio.carrier=60 GHz"], "radio.carrier", "between 5e+08 and 3e+10 Hz for 3GPP RMa"),
        (["radio.fading=tdl-a", "radio.carrier=433 MHz"], "radio.carrier", "for 3GPP TDL"),
        (["radio.fading=umi", "radio.distance=[5, 100]"], "radio.distance", "between 10 and 5000 m"),
        (["radio.fading=uma", "radio.distance=9 km"], "radio.distance", "between 10 and 5000 m"),
        (["radio.fading=umi", "radio.device_height=1 m"], "radio.device_height", "between 1.5 and 22.5 m"),
        (["radio.fading=uma", "radio.server_height=10 m"], "radio.server_height", "must be 25 m for 3GPP UMa"),
        (["radio.fading=rma", "radio.server_height=0.2 km"], "radio.server_height", "between 10 and 150 m"),
        (["radio.fading=tdl-b", "radio.delay_spread=1 us"], "radio.delay_spread", "at most a tenth of radio.slot"),
        (["radio.fading=umi", "fleet.devices=5000"], "fleet.devices", "at most 2000 devices"),
    ],
)
def test_parameters_outside_the_standard_are_rejected(changes, field, rule):
    with pytest.raises(InputError, match=rule.replace("+", r"\+")) as caught:
        load("paper", changes)
    assert caught.value.field == field


def test_the_standards_limits_apply_only_to_its_channels():
    near = load("paper", ["radio.carrier=433 MHz", "radio.distance=5 m", "radio.delay_spread=1 us"])
    assert near.radio.carrier == pytest.approx(433e6)
    with pytest.raises(InputError, match="must lie between"):
        load("paper", ["radio.carrier=433 MHz", "radio.fading=umi"])
    # Fixed gains replace any fading.
    given = load("paper", ["fleet.devices=1", "radio.gains=[[1, 0]]", "radio.fading=umi", "radio.carrier=433 MHz"])
    assert channel_source(given).round_channel(7) == pytest.approx(np.array([1 + 0j]))


@pytest.mark.usefixtures("sionna")
def test_a_run_in_an_urban_cell_is_bit_identical_when_repeated(tmp_path):
    scenario = small_scenario(tmp_path, "radio.fading=umi", "learning.rounds=2")
    assert any("3GPP TR 38.901 UMi" in line for line in ad.plan(scenario).assumptions)
    records = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        ad.run(scenario, scheme="ota_fd", out=folder)
        records.append((folder / "rounds.jsonl").read_text())
    assert records[0] == records[1]
    assert [json.loads(line)["round"] for line in records[0].splitlines()] == [1, 2]
