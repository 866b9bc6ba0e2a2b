"""Clipped model updates: what a device sends in federated averaging, of its whole model or of a head on features.

A device trains from the model that all devices have and sends Δ, the change of its parameters, clipped to C. Two
devices' updates are 2C apart at most, whatever their data and training. Every device has weight 1/M: the noise that
protects a device grows with its weight, so equal weights need the least, and no private count enters.

Adaptive clipping (Andrew et al. 2021, "Differentially private learning with adaptive clipping"): the clip of round t,
C_t, is public, because it follows from what was received before. A device sends (C/C_t)·clip_{C_t}(Δ) and one more
entry, τ(b − 1/2), where b says whether ‖Δ‖ ≤ C_t. Whatever C_t is, the entry moves by τ at most and the rest by 2C, and
both can happen at once: an update of norm C_t may be clipped or not. The joint sensitivity is therefore exactly
√(4C² + τ²), twice the joint norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from airdistill.errors import InputError
from airdistill.planning.convergence.gap import LearningConstants
from airdistill.planning.feature_means import CLUSTERS, embedding_width, num_features
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.payload import OneVector, declared_public, require_device_sensitivity
from airdistill.privacy.neighbours import HEAD_UPDATES, UPDATES
from airdistill.scenario.model import Scenario
from airdistill.units import rounded_up

_INDICATOR_SHARE = 0.5  # τ/C: costs 3 % more noise, and leaves a share of 200 devices known to a few hundredths


@dataclass(frozen=True)
class Update(OneVector):
    """One clipped update of every device, and with adaptive clipping the indicator τ(b − 1/2) as its last entry."""

    num_parameters: int
    clip_norm: float
    indicator: float = 0.0  # τ; 0 without adaptive clipping

    kind = "update"
    neighbours = UPDATES
    receivers = ("linear",)
    needs_model_size = True
    is_knowledge = False
    most_noise: ClassVar[float | None] = 5.0
    error_label = "Error of an update"
    words = "model updates"

    @classmethod
    def for_scenario(cls, scenario: Scenario, fleet: RealisedFleet, vector_length: int | None) -> Update:
        """The payload; `vector_length` is that of `length_of_model` or `length_for`, or of a stored plan."""
        require_device_sensitivity(scenario, cls.words)
        _check_reading(scenario, cls.words)
        if vector_length is None:
            raise ValueError("vector_length: an update has as many entries as the model has parameters")
        given = scenario.federated
        indicator = 0.0 if given.clip_quantile is None else _INDICATOR_SHARE * given.update_norm
        return cls(fleet, vector_length - _more_entries(scenario), given.update_norm, indicator)

    @classmethod
    def length_of_model(cls, scenario: Scenario, num_parameters: int) -> int:
        return num_parameters + _more_entries(scenario)

    @property
    def vector_length(self) -> int:
        return self.num_parameters + (self.indicator > 0)

    @property
    def largest_norm(self) -> float:
        """√(C² + τ²/4)."""
        return math.hypot(self.clip_norm, self.indicator / 2)

    def noise_factor(self, constants: LearningConstants) -> float:
        """That of a gradient: it ranks truncation thresholds by the squared error of the mean update, bias included."""
        return constants.gradient_noise_factor

    def header(self) -> dict[str, Any]:
        sizes = {"entries": self.num_parameters, "norm": self.clip_norm}
        return {"update": {**sizes, **({"indicator": self.indicator} if self.indicator else {})}}

    def summary(self) -> list[tuple[str, str]]:
        """What clipping costs: the part of the budget μ² that the indicator takes."""
        if self.indicator == 0:
            return [("Clip", f"norm {self.clip_norm:g}, {self.num_parameters} entries")]
        share = rounded_up(100 * self.indicator**2 / (4 * self.clip_norm**2 + self.indicator**2))
        return [("Clip", f"adaptive from norm {self.clip_norm:g}; its indicators take {share} % of the budget μ²")]


@dataclass(frozen=True)
class HeadUpdate(Update):
    """An update of K·(d + 1) numbers: weights and biases of a linear layer on d public features.

    The embedding is that of feature means: fitted on public samples, and the same for all devices.
    """

    kind = "head_update"
    neighbours = HEAD_UPDATES
    needs_model_size = False
    needs_public_set = True
    most_noise = 0.25
    words = "head updates"

    @classmethod
    def for_scenario(cls, scenario: Scenario, fleet: RealisedFleet, vector_length: int | None) -> HeadUpdate:
        if vector_length is None:
            vector_length = _head_length(scenario, fleet, num_features(scenario, fleet))
        made = super().for_scenario(scenario, fleet, vector_length)
        assert isinstance(made, HeadUpdate)
        return made

    @classmethod
    def length_for(cls, scenario: Scenario, fleet: RealisedFleet, shape: tuple[int, ...]) -> int:
        if declared_public(scenario).embedding == CLUSTERS:
            rule = "a head needs features, which clusters are not: choose another embedding"
            raise InputError("public.embedding", CLUSTERS, rule)
        return _head_length(scenario, fleet, embedding_width(scenario, fleet, shape))

    @property
    def dimensions(self) -> int:
        """d."""
        return self.num_parameters // self.fleet.num_classes - 1


def _head_length(scenario: Scenario, fleet: RealisedFleet, dimensions: int) -> int:
    declared_public(scenario)
    return fleet.num_classes * (dimensions + 1) + _more_entries(scenario)


def _more_entries(scenario: Scenario) -> int:
    """Entries besides the update: the clip indicator."""
    return int(scenario.federated.clip_quantile is not None)


def _check_reading(scenario: Scenario, words: str) -> None:
    """Refuse receivers of other payloads."""
    receiver = scenario.learning.receiver
    if receiver != "linear" and ":" not in receiver:
        rule = f'the server adds up {words}, by federated.server_optimizer; set it to "linear"'
        raise InputError("learning.receiver", receiver, rule)
