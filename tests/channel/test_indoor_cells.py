"""Offices and factories of TR 38.901: path loss, line of sight and shadowing against the standard's tables."""

import inspect

import numpy as np
import pytest

import airdistill as ad
from airdistill.channel import channel_source
from airdistill.channel.sources import drawn_distances_m
from airdistill.channel.threegpp import ROUNDS_PER_BLOCK, ThreeGppChannel, cell_bearings, cell_draws
from airdistill.errors import InputError
from airdistill.scenario import load
from airdistill.scenario.cells import CELLS

# Table 7.4.1-1, in dB: offset, factor of log10(distance between antennas in m), factor of log10(carrier in GHz).
INH_LOS, INH_NLOS = (32.4, 17.3, 20.0), (17.3, 38.3, 24.9)
INF_LOS = (31.84, 21.5, 19.0)
INF_NLOS = {"sl": (33.0, 25.5, 20.0), "dl": (18.6, 35.7, 20.0), "sh": (32.4, 23.0, 20.0), "dh": (33.63, 21.9, 20.0)}


def loss(model, metres, ghz):
    offset, by_distance, by_carrier = model
    return offset + by_distance * np.log10(metres) + by_carrier * np.log10(ghz)


def test_the_formulas_of_this_file_give_values_computed_by_hand():
    assert loss(INF_LOS, 100, 3.7) == pytest.approx(85.64, abs=0.01)  # 31.84 + 43 + 10.80
    assert loss(INF_NLOS["dh"], 100, 3.7) == pytest.approx(88.79, abs=0.01)  # 33.63 + 43.8 + 11.36
    assert loss(INF_NLOS["dl"], 10, 1.0) == pytest.approx(54.3)
    assert loss(INH_NLOS, 100, 1.0) == pytest.approx(93.9)


@pytest.fixture
def _sionna():
    pytest.importorskip("sionna", reason="needs the extra `channels`")


def office(ghz=3.5):
    return [f"radio.carrier={ghz} GHz", "radio.device_height=1 m"]


def without_shadowing(fading, ground, sight, *changes, devices=60):
    given = [f"fleet.devices={devices}", f"radio.fading={fading}", f"radio.distance={ground}"]
    scenario = load("paper", [*given, f"radio.line_of_sight={sight}", *changes])
    return ThreeGppChannel(0, cell_draws(scenario, np.full(devices, float(ground)), shadowing=False))


@pytest.mark.parametrize(
    ("fading", "sight", "ground", "rise", "models"),
    [
        ("inh-open", "always", 40, 2.0, [INH_LOS]),
        ("inh-mixed", "never", 40, 2.0, [INH_NLOS]),
        ("inh-mixed", "never", 3, 2.0, [INH_NLOS, INH_LOS]),  # so near, the loss with line of sight is larger
        ("inf-sl", "always", 80, 0.0, [INF_LOS]),
        ("inf-sl", "never", 80, 0.0, [INF_NLOS["sl"]]),
        ("inf-dl", "never", 80, 0.0, [INF_NLOS["dl"]]),
        ("inf-dl", "never", 12, 0.0, [INF_NLOS["dl"], INF_NLOS["sl"]]),  # at least that of sparse clutter
        ("inf-sh", "never", 80, 6.5, [INF_NLOS["sh"]]),
        ("inf-dh", "never", 10, 6.5, [INF_NLOS["dh"]]),
    ],
)
@pytest.mark.usefixtures("_sionna")
def test_the_mean_power_is_the_standards_path_loss(fading, sight, ground, rise, models):
    changes = office() if fading.startswith("inh") else ["radio.carrier=3.5 GHz"]
    source = without_shadowing(fading, ground, sight, *changes)
    expected_db = max(loss(model, np.hypot(ground, rise), 3.5) for model in models)
    assert len(models) == 1 or expected_db != loss(models[0], np.hypot(ground, rise), 3.5)
    of_device = (np.abs(source.planning_channels(2 * ROUNDS_PER_BLOCK)) ** 2).mean(axis=0) * 10 ** (expected_db / 10)
    error = of_device.std() / np.sqrt(len(of_device))
    assert error < 0.04
    assert abs(of_device.mean() - 1) <= 5 * error + 1e-4


def office_probability(metres, kind):
    """Table 7.4.2-1."""
    if kind == "open":
        near = np.where(metres <= 5, 1.0, np.exp(-(metres - 5) / 70.8))
        return np.where(metres <= 49, near, 0.54 * np.exp(-(metres - 49) / 211.7))
    near = np.where(metres <= 1.2, 1.0, np.exp(-(metres - 1.2) / 4.7))
    return np.where(metres < 6.5, near, 0.32 * np.exp(-(metres - 6.5) / 32.6))


def factory_probability(metres, density, height, size, rise=None, device=1.5):
    """Table 7.4.2-1; `rise` of the server above the device, where the server is above the clutter."""
    k = -size / np.log(1 - density) * (1.0 if rise is None else rise / (height - device))
    return np.exp(-metres / k)


SPARSE, DENSE = (0.2, 2.0, 10.0), (0.6, 6.0, 2.0)  # table 7.8-7


@pytest.mark.parametrize(
    ("fading", "changes", "expected"),
    [
        ("inh-open", office(), lambda d: office_probability(d, "open")),
        ("inh-mixed", office(), lambda d: office_probability(d, "mixed")),
        ("inf-sl", [], lambda d: factory_probability(d, *SPARSE)),
        ("inf-dl", [], lambda d: factory_probability(d, *DENSE)),
        ("inf-sh", [], lambda d: factory_probability(d, *SPARSE, rise=6.5)),
        ("inf-dh", [], lambda d: factory_probability(d, *DENSE, rise=6.5)),
        (
            "inf-dh",
            ["radio.clutter_density=0.45", "radio.clutter_height=4 m", "radio.clutter_size=3 m",
             "radio.server_height=12 m", "radio.device_height=1 m"],
            lambda d: factory_probability(d, 0.45, 4.0, 3.0, rise=11.0, device=1.0),
        ),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("_sionna")
def test_the_line_of_sight_probability_is_the_standards(fading, changes, expected):
    scenario = load("paper", ["fleet.devices=200", f"radio.fading={fading}", "radio.distance=[2, 100]", *changes])
    distance_m = drawn_distances_m(scenario)
    layout = inspect.getclosurevars(cell_draws(scenario, distance_m)).nonlocals["model"]._scenario
    probability = expected(distance_m)
    assert layout.los_probability[0, 0].numpy() == pytest.approx(probability, rel=1e-6)
    drawn = int(layout.los[0, 0].sum())
    assert abs(drawn - probability.sum()) <= 5 * np.sqrt((probability * (1 - probability)).sum()) + 1e-9


@pytest.mark.parametrize(
    ("fading", "sight", "sigma_db"),
    [("inf-dl", "always", 4.3), ("inf-sl", "never", 5.7), ("inf-dl", "never", 7.2), ("inf-sh", "never", 5.9),
     ("inf-dh", "never", 4.0), ("inh-open", "always", 3.0), ("inh-open", "never", 8.03)],
)  # fmt: skip
@pytest.mark.usefixtures("_sionna")
def test_shadowing_has_the_standards_deviation(fading, sight, sigma_db):
    """Table 7.4.1-1. 150 devices far apart: the deviation is known to 6 %, and neighbours are correlated a little."""
    changes = office() if fading.startswith("inh") else ["radio.carrier=3.5 GHz"]
    given = ["fleet.devices=150", f"radio.fading={fading}", "radio.distance=140 m", f"radio.line_of_sight={sight}"]
    scenario = load("paper", [*given, *changes])
    layout = inspect.getclosurevars(cell_draws(scenario, drawn_distances_m(scenario))).nonlocals["model"]
    shadowing_db = 10 * np.log10(layout._lsp.sf[0, 0].numpy())
    assert abs(shadowing_db.mean()) < sigma_db
    assert shadowing_db.std() == pytest.approx(sigma_db, rel=0.35)


@pytest.mark.usefixtures("_sionna")
def test_the_map_shows_devices_where_their_channels_were_drawn():
    scenario = load("paper", ["fleet.devices=12", "radio.fading=umi"])
    draw = cell_draws(scenario, drawn_distances_m(scenario))
    place = inspect.getclosurevars(draw).nonlocals["model"]._scenario.ut_loc[0].numpy()
    bearing = cell_bearings(scenario)
    assert np.exp(1j * bearing) == pytest.approx((place[:, 0] + 1j * place[:, 1]) / drawn_distances_m(scenario))


@pytest.mark.parametrize(
    ("changes", "field", "rule"),
    [
        (["radio.fading=inh-open", "radio.distance=[5, 200]"], "radio.distance", "1 and 150 m for 3GPP InH-open"),
        (["radio.fading=inh-open", "radio.distance=0.5", "radio.server_height=1.5"], "radio.distance", "1 and 150 m"),
        (["radio.fading=inh-mixed", "radio.server_height=4 m"], "radio.server_height", "between 0 and 3 m"),
        (["radio.fading=inf-sl", "radio.distance=700 m"], "radio.distance", "between 1 and 600 m for 3GPP InF-SL"),
        (["radio.fading=inf-sh", "radio.distance=599.99 m"], "radio.distance", "600.025 m between the antennas"),
        (["radio.fading=inf-dl", "radio.clutter_density=0.3"], "radio.clutter_density", "at least 0.4 for 3GPP InF-DL"),
        (["radio.fading=inf-sh", "radio.clutter_density=0.4"], "radio.clutter_density", "below 0.4 for 3GPP InF-SH"),
        (["radio.fading=inf-sh", "radio.server_height=2 m"], "radio.server_height", "above the clutter of 2 m"),
        (["radio.fading=inf-dl", "radio.server_height=7 m"], "radio.server_height", "not above the clutter of 6 m"),
        (["radio.fading=inf-sl", "radio.device_height=2 m"], "radio.device_height", "below the clutter of 2 m"),
        (["radio.fading=inf-sh", "radio.carrier=433 MHz"], "radio.carrier", "for 3GPP InF-SH"),
        (["radio.fading=inf-sh", "radio.antennas=2"], "radio.fading", "available for one antenna only"),
    ],
)  # fmt: skip
def test_layouts_outside_the_standard_are_rejected(changes, field, rule):
    with pytest.raises(InputError, match=rule) as caught:
        load("paper", ["radio.distance=50 m", *changes])
    assert caught.value.field == field


@pytest.mark.usefixtures("_sionna")
def test_a_factory_is_planned():
    scenario = load("quick", ["radio.fading=inf-dh", "radio.distance=[10, 60]", "radio.carrier=3.75 GHz"])
    planned = ad.plan(scenario, "ota_fd", rounds=3)
    assert any("3GPP TR 38.901 InF-DH, indoors" in line for line in planned.assumptions)
    assert np.isfinite(planned.forecast.effective_noise)
    assert np.array_equal(channel_source(scenario).round_channel(2), channel_source(scenario).round_channel(2))
    assert {name for name, cell in CELLS.items() if cell.indoors} == {
        "inh-open", "inh-mixed", "inf-sl", "inf-dl", "inf-sh", "inf-dh",
    }  # fmt: skip
