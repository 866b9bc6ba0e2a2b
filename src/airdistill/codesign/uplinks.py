"""The uplinks by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airdistill.arrays import FloatArray
from airdistill.channel.csi import ChannelError
from airdistill.codesign.fleet import RealisedFleet, channel_noise_var, training_dynamics
from airdistill.codesign.gradient_uplink import GradientUplink
from airdistill.codesign.knowledge_uplink import KnowledgeUplink
from airdistill.codesign.orthogonal_uplink import OrthogonalUplink
from airdistill.codesign.participation import Participation
from airdistill.codesign.uplink import Uplink
from airdistill.errors import InputError
from airdistill.scenario.model import Scenario

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
    return _of_knowledge(KnowledgeUplink, scenario, fleet, scenario.radio.transceiver, choices)


def _orthogonal(scenario: Scenario, fleet: RealisedFleet, _: int | None, choices: Choices) -> KnowledgeUplink:
    _refuse_sampling(scenario)
    _refuse_paper_transceiver(scenario)
    _refuse_weak_channels(scenario, "put it into [overrides.airdistill]")
    return _of_knowledge(OrthogonalUplink, scenario, fleet, "optimal", choices)


def _of_knowledge(
    kind: type[KnowledgeUplink], scenario: Scenario, fleet: RealisedFleet, transceiver: str, choices: Choices
) -> KnowledgeUplink:
    privacy = scenario.privacy
    return kind(
        fleet,
        channel_noise_var(scenario),
        privacy.sensitivity,
        privacy.trust,
        privacy.relabel,
        training_dynamics(scenario),
        transceiver,
        choices.truncation,
        ChannelError.of(scenario),
        privacy.carry_over,
        privacy.class_budget == "optimal",
        choices.floor,
        scenario.radio.noise == "complex",
        scenario.fleet.min_devices,
    )


def _gradient(scenario: Scenario, fleet: RealisedFleet, num_parameters: int | None, _: Choices) -> GradientUplink:
    if num_parameters is None:
        raise ValueError("num_parameters: a gradient's uplink needs it")
    _refuse_paper_transceiver(scenario)
    _refuse_weak_channels(scenario, _FOR_KNOWLEDGE)
    if scenario.privacy.carry_over:
        raise InputError("privacy.carry_over", True, f"only knowledge has it; {_FOR_KNOWLEDGE}")
    privacy = scenario.privacy
    sampled = scenario.fleet.sampled_devices if scenario.fleet.sampling == "with_replacement" else None
    return GradientUplink(
        fleet,
        channel_noise_var(scenario),
        privacy.sensitivity,
        privacy.trust,
        privacy.accountant,
        scenario.learning.clip_norm,
        num_parameters,
        Participation(fleet.class_counts.sum(axis=1), sampled, scenario.seed),
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


def _refuse_paper_transceiver(scenario: Scenario) -> None:
    if scenario.radio.transceiver == "paper":
        raise InputError("radio.transceiver", "paper", "eqs. (18)-(20) are for knowledge that devices send at once")


_MAKERS: dict[str, Callable[[Scenario, RealisedFleet, int | None, Choices], Uplink]] = {
    "knowledge": _knowledge,
    "orthogonal_knowledge": _orthogonal,
    "gradient": _gradient,
}
