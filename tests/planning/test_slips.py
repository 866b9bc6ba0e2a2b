"""Warnings that name a likely slip: each fires on its slip, and none on a preset."""

import numpy as np
import pytest

import airdistill as ad
from airdistill.planning.fleet import realise_fleet
from airdistill.planning.slips import slips_of
from airdistill.scenario import load
from airdistill.scenario.loading import for_scheme, preset_names

TWO = "fleet.devices=2"


def slips(*changes):
    return list(ad.plan(load("quick", changes), "ota_fd", rounds=2).warnings)


@pytest.mark.parametrize("name", preset_names())
def test_presets_have_no_slips(name):
    planned = ad.plan(name, "ota_fd")
    assert slips_of(planned.scenario, planned.fleet, planned.uplink) == ()


@pytest.mark.parametrize(
    ("carrier", "line"),
    [
        ("868", "radio.carrier = 868: 868 Hz is below 1 MHz; did you mean 868 MHz?"),
        ("2.4", "radio.carrier = 2.4: 2.4 Hz is below 1 MHz; did you mean 2.4 GHz?"),
        ("868000", "radio.carrier = 868000: 868 kHz is below 1 MHz; did you mean 868 MHz?"),
    ],
)
def test_a_carrier_without_its_unit(carrier, line):
    assert line in slips(f"radio.carrier={carrier}")
    assert not any("below 1 MHz" in each for each in slips("radio.carrier=1 MHz"))


def test_a_path_gain_above_0_db():
    # λ/4π is 26.1 mm at 915 MHz: at half of it the path gain is 30 log10(2) = 9.0 dB.
    found = slips(TWO, "radio.distance={values=[0.01305, 300]}")
    assert any("device 0 is received 9.0 dB stronger than it sends at 13" in line for line in found)
    assert not any("stronger" in line for line in slips(TWO, "radio.distance={values=[0.027, 300]}"))
    assert any("device 1 is received 6.0 dB stronger" in line for line in slips(TWO, "radio.gains=[[0.1,0],[0,2]]"))
    assert not any("stronger" in line for line in slips(TWO, "radio.gains=[[1,0],[0,1]]"))


def test_a_trace_in_decibels(tmp_path):
    def with_trace(gains):
        np.savez(tmp_path / "trace.npz", channel=gains)
        return slips(TWO, f"radio.trace={tmp_path / 'trace.npz'}")

    looks = "looks like decibels"
    found = with_trace([[-80.0, -100.0], [-85.0, -120.0]])
    assert any(looks in line and "between -120 and -80" in line and "|h| = 0.0001" in line for line in found)
    assert not any("stronger" in line for line in found)
    assert any(looks in line for line in with_trace([[80.0, 100.0]]))  # a path loss
    for fine in ([[1e-6, -2e-6]], [[-30.0, 30.0]], [[-80 + 1j, -90 + 0j]], [[-10.0, -90.0]]):
        assert not any(looks in line for line in with_trace(np.array(fine)))


def test_targets_beyond_sense():
    assert any(
        "privacy.epsilon = 100 (device 1) promises almost nothing" in line for line in slips(TWO, _epsilon(8, 100))
    )
    assert not any("almost nothing" in line for line in slips(TWO, _epsilon(99, "'inf'")))
    # 300 samples a device.
    found = slips(TWO, "privacy.delta={values=[0.0034, 1e-5]}")
    assert any(line.startswith("privacy.delta = 0.00340 (device 0) is not below 1/300") for line in found)
    assert not any("is not below" in line for line in slips(TWO, "privacy.delta=0.0033"))


def _epsilon(*values):
    return f"privacy.epsilon={{values=[{', '.join(map(str, values))}]}}"


def test_the_papers_settings_for_gradients_are_warned_of_truly():
    """δ is drawn from [1e-4, 1e-3] there, and devices have 1200 samples."""
    scenario = for_scheme(load("paper"), "ota_fl")
    delta = realise_fleet(scenario).delta
    planned = ad.plan("paper", "ota_fl")
    beyond = int((delta >= 1 / 1200).sum())
    assert beyond > 1
    assert any(f"and {beyond - 1} others) is not below 1/1200" in line for line in planned.warnings)
    assert not any("almost nothing" in line for line in planned.warnings)  # ε is drawn from [1, 100]


def test_a_noise_power_that_overrides_or_does_not_fit_its_tone():
    overriding = slips("radio.noise_figure_db=6")
    assert any("radio.noise_power = 5e-15 W overrides radio.noise_figure_db = 6" in line for line in overriding)
    # 5 fW in 20 MHz, where a resistor at 290 K has 80.1 fW.
    wide = slips("radio.bandwidth=20 MHz")
    assert any("in a tone of 20000 kHz is a noise figure of -12.0 dB" in line for line in wide)
    assert not any("noise figure" in line for line in slips("radio.noise_power=thermal", "radio.noise_figure_db=6"))


def test_antennas_that_given_gains_include_are_not_used():
    found = slips(TWO, "radio.gains=[[1e-6,0],[0,1e-6]]", "radio.server_antenna_dbi=6")
    assert any("are not used: the gains of radio.gains" in line for line in found)
