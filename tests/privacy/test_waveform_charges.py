"""What a server learns from all elements of a round, exactly and for the true channels, against the ledger's charge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import airdistill as ad
from airdistill.channel.link_budget import noise_power_w
from airdistill.channel.selective import tone_gains
from airdistill.channel.sources import channel_source
from airdistill.planning.waveform import design_of_round
from airdistill.privacy.statements import CertifiedRun
from airdistill.radio.charged_round import filled_symbols, waveform_round
from airdistill.radio.iq import elements_of, spread
from airdistill.runs.accounts import ledger_header

WAVE = ["waveform.kind=ofdm", "waveform.observed=elements", "waveform.tones=16", "air.medium=waveform"]
FLEET = ["fleet.devices=6", "radio.distance=100 m", "waveform.pilot_symbols=20", "learning.rounds=3"]
FADES = ["radio.fading=tdl-a", "radio.delay_spread=300 ns", "waveform.cyclic_prefix=3 us"]  # across 16 tones of 30 kHz
ONE_CLASS = ["data.partition=shards", "data.classes_per_device=1", "data.samples_per_device=40"]
DRAWS = 400


def exact_over_charged(round_index, *changes):
    """μ² of every row of every device on all elements, over what the ledger is charged for it, `[device, row]`."""
    plan = ad.plan(ad.load("quick", [*WAVE, *FLEET, *FADES, *changes]), scheme="airdistill")
    source = channel_source(plan.scenario)
    known = source.round_channel(round_index)
    design, uplink = design_of_round(plan, source, known, round_index, None)
    this, num_devices = waveform_round(plan, source, round_index, 5), plan.fleet.num_devices
    silent = np.zeros((num_devices, uplink.num_rows, uplink.vector_length))
    deviation = np.std([filled_symbols(replace(this, noise_seed=n), design, silent) for n in range(DRAWS)], axis=0)
    rows = np.repeat(np.arange(uplink.num_rows), uplink.vector_length)
    deviation[:, : len(rows)] += np.abs(design.noise_gain)[:, rows]
    receiver = noise_power_w(plan.scenario) / 2 if uplink.trust_model.counts_receiver else 0.0
    arriving = tone_gains(source.grid, this.taps) * this.weights[:, None]
    amplitude = np.abs(design.signal_gain) * np.sqrt(uplink.energy_slots)
    cost = np.zeros((num_devices, uplink.num_rows))
    per_symbol = source.grid.numbers_per_symbol
    for symbol, phases in enumerate(this.phases(uplink.num_slots)):
        elements = elements_of(source.grid, np.eye(per_symbol))[:, 0]
        maps = (spread(elements, phases) * arriving[:, symbol, None]).transpose(0, 2, 1)
        maps = np.concatenate([maps.real, maps.imag], axis=1)  # [device, part of an element, number]
        here = slice(symbol * per_symbol, (symbol + 1) * per_symbol)
        noise = sum(part * var @ part.T for part, var in zip(maps, deviation[:, None, here] ** 2, strict=True))
        sizes, directions = np.linalg.eigh(noise + receiver * np.eye(2 * source.grid.tones))
        whiten = directions / np.sqrt(np.maximum(sizes, 1e-12 * sizes[-1]))
        for row in np.unique(rows[here]):
            carried = np.flatnonzero(rows[here] == row)
            seen = whiten.T @ maps[:, :, carried]
            largest = np.linalg.norm(seen, 2, axis=(1, 2)) * amplitude[:, row]
            cost[:, row] = np.maximum(cost[:, row], largest**2)
    counted = uplink.noise_by_trust(design, known)[uplink.trust]
    charged = np.divide(design.weights**2, counted, out=np.zeros_like(cost), where=design.weights > 0)
    return np.divide(cost, charged, out=np.zeros_like(cost), where=charged > 0), design


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["waveform.csi=perfect", "waveform.fade_floor_db=-3"],
        ["waveform.spreading=none"],
        ["privacy.trust=receiver_noise"],
        ["privacy.trust=receiver_noise", "waveform.axes=1"],
        ["privacy.trust=receiver_noise", "radio.noise_power=0 W"],
    ],
    ids=["pilots", "floors", "no spreading", "receiver noise", "one axis", "a receiver without noise"],
)
def test_the_charge_covers_all_elements(changes):
    found, _ = exact_over_charged(2, *changes)
    assert 0.3 < found.max() <= 1


@pytest.mark.parametrize("csi", ["pilot", "perfect"])
def test_rows_that_are_not_sent_hide_what_leaks_into_them(csi):
    """Classes that no device holds share symbols with the others: without noise there, 6 to 8 times the charge."""
    found, design = exact_over_charged(2, *ONE_CLASS, f"waveform.csi={csi}")
    assert (design.rx_scale == 0).any()
    assert 0 < found.max() <= 1


@pytest.mark.parametrize(("releases", "excess"), [(0, 1e-6), (2, 1e-6), (3, 1e-6), (6, 2e-6)])
def test_rounds_beyond_the_plan_have_channel_errors_of_their_own(releases, excess):
    """The plan divides a tenth of δ over its three rounds; rounds are charged again after some interruptions."""
    plan = ad.plan(ad.load("quick", [*WAVE, *FLEET, "privacy.delta=1e-5"]), scheme="airdistill")
    header = ledger_header(plan, "airdistill", "private")
    assert CertifiedRun(header, releases).excess_delta == pytest.approx(excess)
