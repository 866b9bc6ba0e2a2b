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
from airdistill.radio.waveform_link import superpose_waveform
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
