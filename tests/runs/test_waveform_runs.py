"""Runs whose signals travel as samples: measured against planned error, ledger, certificate, audit, resume."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_worlds import small_scenario

import airdistill as ad
from airdistill.channel.sources import channel_source
from airdistill.privacy.ledger import Ledger
from airdistill.radio.charged_round import charge_round
from airdistill.radio.superposition import over_the_air
from airdistill.runs.accounts import Inputs, ledger_header

WAVE = ["waveform.kind=ofdm", "waveform.observed=elements", "air.medium=waveform"]
NEAR = ["radio.distance=100 m", "waveform.pilot_symbols=20"]


def charged_round(plan, scheme, index=1):
    ledger = Ledger(replace(ledger_header(plan, scheme, "private", Inputs("data")), enforced=False))
    return charge_round(plan, ledger, channel_source(plan.scenario), index)


def vectors_of(plan, seed=0):
    shape = (plan.fleet.num_devices, plan.uplink.num_rows, plan.uplink.vector_length)
    drawn = np.random.default_rng(seed).random(shape)
    return drawn * (plan.uplink.largest_norm / np.linalg.norm(drawn, axis=2, keepdims=True))


@pytest.mark.parametrize(
    ("base", "scheme"),
    [("quick", "airdistill"), ("skewed", "airdistill_proxy"), ("skewed", "feature_means"), ("quick", "ota_fedavg")],
)
def test_an_ideal_waveform_is_the_scalar_model_for_every_payload(base, scheme):
    """The same round without receiver noise through eq. (10), plus the demodulated noise alone: equal to 1e-6."""
    ideal = [*WAVE, "waveform.csi=perfect", "radio.fading=rayleigh", "waveform.fade_floor_db=-300"]
    small = ["public.samples=200"] if base == "skewed" else []
    plan = ad.plan(ad.load(base, ["fleet.devices=12", *small, *ideal]), scheme=scheme)
    charged, vectors = charged_round(plan, scheme), vectors_of(plan)
    received = charged.transmit(vectors)
    noise = replace(charged.on_air, permission=None, receiver=np.zeros_like(charged.on_air.receiver))
    uplink = plan.uplink
    rest = (plan.scenario.radio.slot, uplink.largest_norm)
    scalar = over_the_air(uplink.weights(1), vectors, charged.design, charged.channel, noise, *rest)
    heard = charged_round(plan, scheme).air(np.zeros_like(charged.on_air.artificial, dtype=complex))
    expected = scalar.received + heard.real / charged.design.rx_scale[:, None]
    np.testing.assert_allclose(received.received, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    assert np.abs(heard).max() > 0
    assert received.measured_power_w == pytest.approx(scalar.measured_power_w)
    assert received.uplink_seconds == plan.air_time.total_s


@pytest.mark.parametrize("fading", ["tdl-a", "tdl-d", "umi"])
@pytest.mark.parametrize("csi", ["perfect", "pilot"])
def test_the_measured_error_is_the_planned_one(fading, csi):
    """Within 5 % with perfect channel knowledge (issue of the waveform), 10 % with pilots, over several fleets."""
    ratios = []
    for seed in range(4):
        changes = [*WAVE, *NEAR, f"radio.fading={fading}", f"waveform.csi={csi}", f"seed={seed}"]
        plan = ad.plan(
            ad.load("skewed", ["fleet.devices=40", *changes, "public.samples=600"]), scheme="airdistill_proxy"
        )
        received = charged_round(plan, "airdistill_proxy").transmit(vectors_of(plan))
        ratios.append(float(received.squared_error.mean() / received.predicted_noise_var.mean()))
    assert np.mean(ratios) == pytest.approx(1, abs=0.05 if csi == "perfect" else 0.1)


@pytest.mark.parametrize("alike", [True, False])
def test_what_fade_floors_take_from_all_signals_adds_up(alike):
    """The planned error is that of equal vectors; those of different entries lose independently: Σw², not (Σw)².

    1,220 numbers fill a symbol: interference does not leave the payload.
    """
    changes = [*WAVE, "radio.fading=tdl-a", "waveform.csi=perfect", "waveform.fade_floor_db=-10", "public.samples=122"]
    quiet = ["privacy.trust=own_noise", "privacy.epsilon=inf", "radio.noise_power=1e-24 W", "fleet.devices=40"]
    plan = ad.plan(ad.load("skewed", [*changes, *quiet]), scheme="airdistill_proxy")
    num_devices, length = plan.fleet.num_devices, plan.uplink.vector_length
    if alike:
        vectors = np.repeat(vectors_of(plan)[:1], num_devices, axis=0)
    else:  # four devices in each entry
        entry = np.arange(num_devices) % length
        vectors = np.repeat(np.eye(length)[entry][:, None], plan.uplink.num_rows, axis=1) * plan.uplink.largest_norm
    received = charged_round(plan, "airdistill_proxy").transmit(vectors)
    seen, each = plan.uplink.observation, plan.uplink.largest_norm**2 / length / num_devices
    pairs = num_devices - 1 if alike else num_devices / length - 1  # with whom a device shares its entries
    lost = each * (seen.misalignment + pairs * seen.common_loss**2)
    assert received.squared_error.mean() == pytest.approx(lost, rel=0.08)
    if alike:
        assert received.predicted_noise_var.mean() == pytest.approx(lost, rel=0.01)
        assert pairs * seen.common_loss**2 > seen.misalignment  # most of the error is common


def test_a_run_is_certified_audited_and_resumed(tmp_path):
    """Three rounds of class means over samples: the certificate names what it rests on, and the audit agrees."""
    changes = [*WAVE, *NEAR, "radio.fading=tdl-a", "learning.rounds=2", "learning.model=softmax_regression"]
    scenario = small_scenario(tmp_path, *changes, "fleet.devices=12", "data.samples_per_device=5")
    record = ad.run(scenario, scheme="ota_fd", out=tmp_path / "run")
    assert len(record.rounds) == 2
    shown = ad.certify(tmp_path / "run")
    named = {each.name for each in shown.assumptions}
    assert {"bounded channel error", "receiver keeps elements"} <= named
    assert max(device.delta_in_all for device in shown.devices) == pytest.approx(1e-5)
    audit = ad.audit_run(tmp_path / "run", ad.AuditOptions(parts=("recorded",)))
    assert audit.to_dict()["recorded"]["violations"] == []
    assert audit.to_dict()["recorded"]["redrawn"] == 2
