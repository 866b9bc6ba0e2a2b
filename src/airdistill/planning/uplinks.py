"""Build the uplink of a scenario: payload, participation, trust and multiple access put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.csi import ChannelError
from airdistill.errors import InputError
from airdistill.planning.antennas.uplink import AntennaUplink
from airdistill.planning.fleet import RealisedFleet, channel_noise_var
from airdistill.planning.payloads import ClassMeans, Gradient, Payload, TeacherVotes, check_payload, payload_named
from airdistill.planning.transceiver.correlated import CorrelatedUplink, best_correlation
from airdistill.planning.transceiver.gradient import GradientUplink
from airdistill.planning.transceiver.superposed import SuperposedUplink
from airdistill.planning.transceiver.tdma import TDMA_KIND, TdmaUplink
from airdistill.planning.trusted_uplink import trusted_uplink
from airdistill.planning.uplink import Uplink
from airdistill.planning.waveform import Observation
from airdistill.privacy.correlation import Correlation
from airdistill.privacy.participation import (
    Cyclic,
    Everyone,
    KnownPoisson,
    Participation,
    SecretPoisson,
    WithReplacement,
    participation_named,
)
from airdistill.privacy.sensitivity import ConstantShift
from airdistill.privacy.trust import TRUST_MODELS
from airdistill.scenario.model import Scenario

_FOR_DISTILLATION = "put it into [overrides.ota_fd]"
_FOR_AIRDISTILL = "put it into [overrides.airdistill]"


@dataclass(frozen=True)
class Choices:
    """What the planner chose for an uplink: the truncation threshold on |h|², and the noise that classes have anyway.

    `floor` `[class]` is typical channel noise, if a budget is divided among classes in view of it. With correlated
    noise its matrix, and |h|²P `[device]` of a typical channel, for which each device's share of the noise is planned.
    With an OFDM waveform what of the noise is certain through it.
    """

    truncation: float = 0.0
    floor: FloatArray | None = None
    correlation: Correlation | None = None
    typical_power_w: FloatArray | None = None
    observation: Observation = field(default_factory=Observation)


def uplink_for(
    kind: str, scenario: Scenario, fleet: RealisedFleet, vector_length: int | None, choices: Choices | None = None
) -> Uplink:
    """The uplink of that kind: a payload's name, `package.module:Class`, or TDMA of class means.

    `vector_length` is needed by payloads as long as the model.
    """
    payload = (ClassMeans if kind == TDMA_KIND else payload_named(kind)).for_scenario(scenario, fleet, vector_length)
    check_payload(payload)
    if scenario.privacy.counts == "private" and not payload.hides_counts:
        rule = f'{payload.words} need public class counts: set it to "public", or use feature means'
        raise InputError("privacy.counts", "private", rule)
    if scenario.privacy.correlation != "none":
        return _correlated_uplink(scenario, payload, choices or Choices())
    if isinstance(payload, Gradient):
        _refuse_waveform(scenario, "gradients clipped by sample")
        return _gradient_uplink(scenario, payload)
    if isinstance(payload, TeacherVotes):
        _refuse_waveform(scenario, payload.words)
        return trusted_uplink(scenario, payload)
    _refuse_sampling(scenario)
    made: Callable[..., SuperposedUplink] = SuperposedUplink
    if kind == TDMA_KIND:
        _refuse_paper_transceiver(scenario)
        _refuse_weak_channels(scenario, _FOR_AIRDISTILL)
        rule = f"with TDMA all devices participate; {_FOR_DISTILLATION}"
        if scenario.fleet.participation < 1:
            raise InputError("fleet.participation", scenario.fleet.participation, rule)
        if scenario.fleet.sampling != "none":
            raise InputError("fleet.sampling", scenario.fleet.sampling, rule)
        _refuse_antennas(scenario, _FOR_AIRDISTILL)
        _refuse_waveform(scenario, "class means with TDMA")
        made = TdmaUplink
    elif not payload.has_paper_design:
        _refuse_paper_transceiver(scenario)
    if scenario.radio.antennas > 1:
        if scenario.privacy.trust not in TRUST_MODELS:
            rule = f"with several antennas the trust model is one of {', '.join(TRUST_MODELS)}"
            raise InputError("privacy.trust", scenario.privacy.trust, rule)
        made = partial(AntennaUplink, combining=scenario.radio.combining)
    return _superposed(made, payload, scenario, choices or Choices())


def _refuse_waveform(scenario: Scenario, sent: str) -> None:
    if scenario.waveform.kind == "ofdm":
        rule = f'{sent} are sent one number at a time; set it to "single_tone" in the overrides of this scheme'
        raise InputError("waveform.kind", "ofdm", rule)


def _superposed(
    made: Callable[..., SuperposedUplink], payload: Payload, scenario: Scenario, choices: Choices
) -> SuperposedUplink:
    privacy, fleet = scenario.privacy, payload.fleet
    return made(
        fleet,
        channel_noise_var(scenario),
        privacy.trust,
        payload,
        scenario.radio.transceiver,
        choices.truncation,
        ChannelError.of(scenario),
        privacy.carry_over,
        privacy.class_budget == "optimal",
        choices.floor,
        scenario.radio.noise == "complex",
        scenario.fleet.min_devices,
        participation_of(scenario, payload),
        choices.observation,
    )


def _gradient_uplink(scenario: Scenario, payload: Gradient) -> GradientUplink:
    _refuse_paper_transceiver(scenario)
    _refuse_weak_channels(scenario, _FOR_DISTILLATION)
    _refuse_antennas(scenario, _FOR_DISTILLATION)
    if scenario.privacy.carry_over:
        raise InputError("privacy.carry_over", True, f"gradients cannot carry budget over; {_FOR_DISTILLATION}")
    privacy, participation = scenario.privacy, participation_of(scenario, payload)
    noise_var = channel_noise_var(scenario)
    return GradientUplink(payload.fleet, noise_var, privacy.trust, payload, privacy.accountant, participation)


def _correlated_uplink(scenario: Scenario, payload: Payload, choices: Choices) -> CorrelatedUplink:
    """That of a payload whose sum over rounds is the model: its noise can cancel there."""
    privacy = scenario.privacy
    if payload.is_knowledge or not isinstance(payload.shift(payload.model), ConstantShift):
        rule = f'{payload.words} have independent noise; put it into [overrides.ota_fl], or set it to "none"'
        raise InputError("privacy.correlation", privacy.correlation, rule)
    assert choices.correlation is not None  # `correlated_choices` makes both
    assert choices.typical_power_w is not None
    participation, noise_var = participation_of(scenario, payload), channel_noise_var(scenario)
    chosen = (participation, choices.correlation, choices.typical_power_w)
    return CorrelatedUplink(payload.fleet, noise_var, privacy.trust, payload, *chosen)


def correlated_choices(scenario: Scenario, fleet: RealisedFleet, channels: ComplexArray) -> Choices:
    """The matrix of correlated noise, and the median of |h|²P over planning channels `[draw, device]`; empty without.

    A matrix is made for the number of rounds.
    """
    if scenario.privacy.correlation == "none":
        return Choices()
    rounds = scenario.learning.rounds
    assert isinstance(rounds, int)  # the scenario's own rule
    matrix = best_correlation(scenario.privacy.correlation, rounds, scenario.fleet.cycle or 1)
    typical_power_w = np.median(np.abs(channels) ** 2, axis=0) * fleet.peak_power_w
    return Choices(correlation=matrix, typical_power_w=typical_power_w)


def participation_of(scenario: Scenario, payload: Payload) -> Participation:
    """The participation model that a scenario's fleet section describes."""
    fleet, devices = scenario.fleet, (scenario.num_devices, scenario.seed)
    if fleet.sampling == "with_replacement":
        assert fleet.sampled_devices is not None  # the scenario's own rule
        return WithReplacement(*devices, fleet.sampled_devices, tuple(payload.nominal_weights[:, 0]))
    if fleet.sampling == "cyclic":
        assert fleet.cycle is not None  # the scenario's own rule
        return Cyclic(*devices, fleet.cycle)
    if fleet.sampling != "none":
        return participation_named(fleet.sampling, *devices)
    if fleet.participation == 1:
        return Everyone(*devices)
    if fleet.participation_hidden:
        return SecretPoisson(*devices, fleet.participation)
    return KnownPoisson(*devices, fleet.participation, fleet.min_devices)


def _refuse_sampling(scenario: Scenario) -> None:
    if scenario.fleet.sampling == "with_replacement":
        rule = "only gradients can be sampled with replacement; put it into [overrides.ota_fl]"
        raise InputError("fleet.sampling", scenario.fleet.sampling, rule)


def _refuse_weak_channels(scenario: Scenario, advice: str) -> None:
    rule = f"only superposed class means and predictions support it; {advice}"
    if scenario.radio.truncation != 0:
        raise InputError("radio.truncation", scenario.radio.truncation, rule)
    if scenario.radio.csi_error_db is not None:
        raise InputError("radio.csi_error_db", scenario.radio.csi_error_db, rule)


def _refuse_antennas(scenario: Scenario, advice: str) -> None:
    if scenario.radio.antennas != 1:
        rule = f"only superposed class means and predictions support several antennas; {advice}"
        raise InputError("radio.antennas", scenario.radio.antennas, rule)


def _refuse_paper_transceiver(scenario: Scenario) -> None:
    if scenario.radio.transceiver == "paper":
        raise InputError("radio.transceiver", "paper", "eqs. (18)-(20) are for superposed class means")
