"""Rounds through the radio's own samples, against what the ledger is charged: server, trust model and impairments."""

from __future__ import annotations

import pytest

import airdistill as ad
from airdistill.audit.iq import exceeds
from airdistill.audit.iq_rounds import RoundOnAir
from airdistill.errors import AirDistillError
from airdistill.planning.noise_factors import LinkFactors

SMALL = [
    "waveform.kind=ofdm", "waveform.tones=16", "air.medium=waveform", "fleet.devices=3", "radio.distance=100 m",
    "waveform.pilot_symbols=20", "learning.rounds=3", "privacy.delta=1e-5",
]  # fmt: skip
PATHS = [
    "radio.fading=tdl-a", "radio.delay_spread=300 ns", "waveform.cyclic_prefix=5 us", "waveform.csi=perfect",
]  # fmt: skip
ELEMENTS, RECEIVER = "waveform.observed=elements", "privacy.trust=receiver_noise"
OFFSET, PHASE, LATE = "waveform.carrier_offset=300 Hz", "waveform.phase_noise=0.2 Hz", "waveform.timing_error=1 us"
FAMILY = 1e-4  # of all worlds together; seeds are fixed

# What the planner accepts; benchmarks/iq_audit.py attacks more.
WORLDS = {
    "fleet, samples, paths and floors": [*PATHS, "waveform.fade_floor_db=-3"],
    "fleet, samples, one path": ["waveform.speed=0"],
    "fleet, elements, offset and phase noise": [*PATHS, ELEMENTS, OFFSET, PHASE],
    "fleet, elements, one path from pilots, late, offset": [ELEMENTS, OFFSET, LATE],
    "receiver, samples, paths, all but amplifiers": [*PATHS, RECEIVER, OFFSET, PHASE, LATE],
    "receiver, samples, one path from pilots": [RECEIVER],
    "receiver, elements, paths, offset": [*PATHS, RECEIVER, ELEMENTS, OFFSET],
}
LIMITER = ["waveform.amplifier=clip", "waveform.backoff_db=-20"]
AMPLIFIED = {
    "receiver, samples, limiter": [*PATHS, RECEIVER, *LIMITER],
    "receiver, elements, one path, Rapp": [
        RECEIVER, ELEMENTS, "waveform.amplifier=rapp", "waveform.backoff_db=-20",
    ],
}  # fmt: skip


def on_air(*changes):
    plan = ad.plan(ad.load("quick", [*SMALL, *changes]), scheme="ota_fd")
    return RoundOnAir.of(plan, 2)


@pytest.mark.parametrize("world", WORLDS)
def test_the_charge_covers_all_that_the_server_keeps(world):
    """μ² of every device and row by dense linear algebra on what the simulator transmits; no test is idle."""
    found = on_air(*WORLDS[world])
    assert 0.2 < (found.exact() / found.charged).max() <= 1


@pytest.mark.parametrize("world", AMPLIFIED)
def test_no_transcript_behind_amplifiers_exceeds_the_charge(world):
    mu, first, other = on_air(*AMPLIFIED[world]).attacked(200, 3.0)
    assert 0.3 < mu <= 3.0
    assert not exceeds(first, other, 3.0, FAMILY)


@pytest.mark.parametrize(
    ("changes", "left_out"),
    [
        (PATHS, ()),
        (PATHS, ("of_fleet",)),
        ([*PATHS, RECEIVER, "waveform.amplifier=clip", "waveform.backoff_db=0"], ("of_receiver",)),
    ],
    ids=["samples", "samples, factor left out", "limiter, factor left out"],
)
def test_an_attack_finds_the_factor_that_is_left_out(monkeypatch, changes, left_out):
    """1,000 transcripts of the radio: no violation of what is charged, and one if a factor is missing."""
    for name in left_out:
        monkeypatch.setattr(LinkFactors, name, lambda *_: 1.0)
    _, first, other = on_air(*changes).attacked(1000, 3.0)
    assert exceeds(first, other, 3.0, FAMILY) == bool(left_out)


def test_offsets_that_are_counted_in_full_exceed_the_charge(monkeypatch):
    monkeypatch.setattr(LinkFactors, "of_fleet", lambda *_: 1.0)
    found = on_air(*PATHS, ELEMENTS, "waveform.carrier_offset=14 kHz")
    assert (found.exact() / found.charged).max() > 1.5


def test_one_tone_has_no_samples_to_attack():
    with pytest.raises(AirDistillError, match="there are no samples to attack; set it to ofdm"):
        RoundOnAir.of(ad.plan(ad.load("quick", ["fleet.devices=3"]), scheme="ota_fd"), 1)
