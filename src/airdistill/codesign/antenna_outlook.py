"""What several antennas buy and cost: less noise of the receiver's, and a server that sees more."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.codesign.antenna_uplink import AntennaUplink
from airdistill.codesign.plan import Plan, choose_uplink, planning_draws
from airdistill.codesign.rounds import below_outage
from airdistill.scenario.loading import changed


@dataclass(frozen=True)
class AntennaOutlook:
    """Noise variance per entry over rows, devices and all but the worst planning rounds, with all antennas and with the
    first alone: what the channel alone leaves (`floor`), and what the design has. `gap` is the combiners' cost over its
    bound, less one, in the median and at worst; `design_s` is how long one round's design took here."""

    num_antennas: int
    combining: str
    gap: float
    largest_gap: float
    floor: float
    floor_alone: float
    noise_var: float
    noise_var_alone: float
    design_s: float


def antenna_outlook(plan: Plan) -> AntennaOutlook | None:
    """None of a plan for one antenna."""
    uplink, scenario = plan.uplink, plan.scenario
    if not isinstance(uplink, AntennaUplink):
        return None
    channels = planning_draws(scenario)
    first = np.ascontiguousarray(channels[:, :, 0])
    alone = choose_uplink(changed(scenario, {"radio": {"antennas": 1}}), plan.fleet, uplink.kind, None, first)
    gaps = [combiner.gap for channel in channels for combiner in uplink.combiners(channel)]

    def mean(noise_var: FloatArray) -> float:
        noise = uplink.fleet_noise(noise_var) / plan.fleet.num_devices
        return float(noise[below_outage(noise, scenario.radio.outage)].mean() / uplink.vector_length)

    return AntennaOutlook(
        scenario.radio.antennas,
        uplink.combining,
        float(np.median(gaps)),
        float(max(gaps)),
        mean(uplink.channel_floor(channels)),
        mean(alone.channel_floor(first)),
        mean(uplink.noise_over(channels)(plan.num_rounds)),
        mean(alone.noise_over(first)(plan.num_rounds)),
        _seconds_of_a_design(plan, channels[0]),
    )


def _seconds_of_a_design(plan: Plan, channel: ComplexArray) -> float:
    """Measured. Combiners that were found before are kept: turned by another phase the channel is as good as new."""
    started = time.perf_counter()
    plan.design(channel * np.exp(1j * started))
    return time.perf_counter() - started
