"""The uplinks by name.

What a designed round will release.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.csi import ChannelError
from airdistill.errors import NOT_GIVEN, InputError
from airdistill.planning.antennas.uplink import AntennaUplink
from airdistill.planning.convergence.gap import class_shares
from airdistill.planning.fleet import RealisedFleet, channel_noise_var, training_dynamics
from airdistill.planning.participation import Coins, Participation
from airdistill.planning.payloads import ClassMeans, KnowledgePayload, PublicPredictions
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.planning.transceiver.gradient import GradientUplink
from airdistill.planning.transceiver.superposed import KnowledgeUplink
from airdistill.planning.transceiver.tdma import OrthogonalUplink
from airdistill.planning.uplink import Uplink
from airdistill.privacy.release import TRUST_MODELS, Release
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.scenario.model import Public, Scenario

_FOR_KNOWLEDGE = "put it into [overrides.ota_fd]"


@dataclass(frozen=True)
class Choices:
    """What the planner has found out for an uplink: the least |h|² to speak with, and what noise classes have anyway.

    `floor` `[class]` is typical noise of the channel, where a budget is shared out in view of it.
    """

    truncation: float = 0.0
    floor: FloatArray | None = None


def uplink_for(
    kind: str, scenario: Scenario, fleet: RealisedFleet, num_parameters: int | None, choices: Choices | None = None
) -> Uplink:
    """The uplink of that kind; a gradient's needs the number of the model's parameters."""
    if kind not in _MAKERS:
        raise ValueError(f"uplink = {kind!r}: must be one of {', '.join(_MAKERS)}")
    return _MAKERS[kind](scenario, fleet, num_parameters, choices or Choices())


def _knowledge(scenario: Scenario, fleet: RealisedFleet, _: int | None, choices: Choices) -> KnowledgeUplink:
    _refuse_sampling(scenario)
    shared = _class_means(scenario, fleet)
    return _of_knowledge(KnowledgeUplink, shared, scenario, fleet, scenario.radio.transceiver, choices)


def _public(scenario: Scenario, fleet: RealisedFleet, _: int | None, choices: Choices) -> KnowledgeUplink:
    if scenario.privacy.sensitivity != "device":
        rule = "predictions of a trained model have no other bound than the whole device's: declare device"
        raise InputError("privacy.sensitivity", scenario.privacy.sensitivity, rule)
    _refuse_sampling(scenario)
    _refuse_paper_transceiver(scenario)
    shared = public_rows(scenario, fleet)
    return _of_knowledge(KnowledgeUplink, shared, scenario, fleet, "optimal", choices)


def public_rows(scenario: Scenario, fleet: RealisedFleet) -> PublicPredictions:
    """What a round sends of a scenario's public set: all of its samples or a part, a device's answers held to a share.

    Nobody is asked for more answers than the share of classes that devices know on average, which spares noise for all.
    Who holds less than a quarter of an even share of a class does not count as knowing it. Class counts are public.
    """
    public = declared_public(scenario)
    rows = public.rows_a_round
    most = public.answers_per_device
    if most is None:
        known = class_shares(fleet.class_counts) >= 0.25 / fleet.num_classes
        most = math.ceil(rows * max(1, round(float(known.sum(axis=1).mean()))) / fleet.num_classes)
    return PublicPredictions(fleet, rows, min(most, rows))


def declared_public(scenario: Scenario) -> Public:
    if scenario.public is None:
        raise InputError("public", NOT_GIVEN, "knowledge on a public set needs one: --set public.samples=3000")
    return scenario.public


def _class_means(scenario: Scenario, fleet: RealisedFleet) -> ClassMeans:
    return ClassMeans(fleet, scenario.privacy.sensitivity, scenario.privacy.relabel, training_dynamics(scenario))


def _orthogonal(scenario: Scenario, fleet: RealisedFleet, _: int | None, choices: Choices) -> KnowledgeUplink:
    _refuse_sampling(scenario)
    _refuse_paper_transceiver(scenario)
    _refuse_weak_channels(scenario, "put it into [overrides.airdistill]")
    if scenario.fleet.participation < 1:
        rule = "one after the other, all devices take part; put it into [overrides.ota_fd]"
        raise InputError("fleet.participation", scenario.fleet.participation, rule)
    _refuse_antennas(scenario, "put it into [overrides.airdistill]")
    shared = _class_means(scenario, fleet)
    return _of_knowledge(OrthogonalUplink, shared, scenario, fleet, "optimal", choices)


def _of_knowledge(
    kind: Callable[..., KnowledgeUplink],
    shared: KnowledgePayload,
    scenario: Scenario,
    fleet: RealisedFleet,
    transceiver: str,
    choices: Choices,
) -> KnowledgeUplink:
    privacy = scenario.privacy
    if scenario.radio.antennas > 1:
        kind = partial(AntennaUplink, combining=scenario.radio.combining)
    return kind(
        fleet,
        channel_noise_var(scenario),
        privacy.trust,
        shared,
        transceiver,
        choices.truncation,
        ChannelError.of(scenario),
        privacy.carry_over,
        privacy.class_budget == "optimal",
        choices.floor,
        scenario.radio.noise == "complex",
        scenario.fleet.min_devices,
        *_coins(scenario, fleet),
    )


def _coins(scenario: Scenario, fleet: RealisedFleet) -> tuple[Coins | None, Coins | None]:
    """Those that the server sees, and those that it does not; none where everybody takes part."""
    chance = scenario.fleet.participation
    if chance == 1:
        return None, None
    if scenario.fleet.participation_hidden:
        # Nobody knows how many there are, and no number of them can be asked for.
        return None, Coins(fleet.num_devices, chance, scenario.seed, 0, "fleet.participation_hidden")
    return Coins(fleet.num_devices, chance, scenario.seed, scenario.fleet.min_devices), None


def _gradient(scenario: Scenario, fleet: RealisedFleet, num_parameters: int | None, _: Choices) -> GradientUplink:
    if num_parameters is None:
        raise ValueError("num_parameters: a gradient's uplink needs it")
    _refuse_paper_transceiver(scenario)
    _refuse_weak_channels(scenario, _FOR_KNOWLEDGE)
    _refuse_antennas(scenario, _FOR_KNOWLEDGE)
    if scenario.privacy.carry_over:
        raise InputError("privacy.carry_over", True, f"only knowledge has it; {_FOR_KNOWLEDGE}")
    privacy = scenario.privacy
    sampled = scenario.fleet.sampled_devices if scenario.fleet.sampling == "with_replacement" else None
    seen, hidden = _coins(scenario, fleet)
    return GradientUplink(
        fleet,
        channel_noise_var(scenario),
        privacy.sensitivity,
        privacy.trust,
        privacy.accountant,
        scenario.learning.clip_norm,
        num_parameters,
        Participation(fleet.class_counts.sum(axis=1), sampled, scenario.seed, seen),
        hidden,
    )


def _refuse_sampling(scenario: Scenario) -> None:
    if scenario.fleet.sampling != "none":
        rule = "only gradients can be sampled; put it into [overrides.ota_fl]"
        raise InputError("fleet.sampling", scenario.fleet.sampling, rule)


def _refuse_weak_channels(scenario: Scenario, advice: str) -> None:
    rule = f"is for knowledge that devices send at once; {advice}"
    if scenario.radio.truncation != 0:
        raise InputError("radio.truncation", scenario.radio.truncation, rule)
    if scenario.radio.csi_error_db is not None:
        raise InputError("radio.csi_error_db", scenario.radio.csi_error_db, rule)


def _refuse_antennas(scenario: Scenario, advice: str) -> None:
    if scenario.radio.antennas != 1:
        rule = f"several are for knowledge that devices send at once; {advice}"
        raise InputError("radio.antennas", scenario.radio.antennas, rule)


def _refuse_paper_transceiver(scenario: Scenario) -> None:
    if scenario.radio.transceiver == "paper":
        raise InputError("radio.transceiver", "paper", "eqs. (18)-(20) are for knowledge that devices send at once")


_MAKERS: dict[str, Callable[[Scenario, RealisedFleet, int | None, Choices], Uplink]] = {
    "knowledge": _knowledge,
    "public_knowledge": _public,
    "orthogonal_knowledge": _orthogonal,
    "gradient": _gradient,
}


def release_of(uplink: Uplink, design: RoundDesign, channel: ComplexArray, round_index: int) -> Release:
    """With the noise that the gains of this design really send."""
    return Release(
        round_index,
        design.weights,
        {model: uplink.sensitivity(model, round_index) for model in SENSITIVITY_MODELS},
        uplink.noise_by_trust(design, channel),
    )


def non_private_release(uplink: Uplink, round_index: int) -> Release:
    """Numbers as they are, of everybody, with nothing to hide them."""
    weights = uplink.weights(round_index)
    return Release(
        round_index,
        weights,
        {model: uplink.sensitivity(model, round_index) for model in SENSITIVITY_MODELS},
        {trust: np.zeros_like(weights) for trust in TRUST_MODELS},
    )
