"""From a scenario and a scheme to the scheme's own plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.data.public import load_data
from airdistill.errors import Described, InputError
from airdistill.learning.models import count_parameters
from airdistill.learning.samples import input_shape
from airdistill.planning.plan import Plan, plan
from airdistill.planning.uplinks import declared_public
from airdistill.scenario.loading import changed, for_scheme
from airdistill.scenario.model import Radio, Scenario
from airdistill.schemes.base import Scheme

_NEXT_TO_NO_NOISE_W = 1e-30


def as_run_by(scheme: Scheme, scenario: Scenario, rounds: int | None = None) -> Scenario:
    """The scenario with the overrides that hold for a scheme, as that scheme adapts it."""
    for name in (*scheme.inherits, scheme.name):
        scenario = for_scheme(scenario, name)
    adapted = scheme.adapt(scenario)
    if scheme.releases != "private" and adapted.fleet.participation < 1:
        everybody = {"participation": 1.0, "participation_hidden": False}
        adapted = changed(adapted, {"fleet": everybody})  # an exchange without noise has no coins
    if adapted.air.medium == "secure_sum":
        adapted = _without_radio(adapted)
    return adapted if rounds is None else changed(adapted, {"learning": {"rounds": rounds}})


def _without_radio(scenario: Scenario) -> Scenario:
    """A secure sum has no fading, no receiver and no estimates of channels: as over a radio that is next to perfect."""
    perfect = {"gains": [(1.0, 0.0)] * scenario.num_devices, "noise_power": _NEXT_TO_NO_NOISE_W}
    return changed(scenario, {"radio": {**perfect, "trace": None, "truncation": 0.0, "csi_error_db": None}})


def with_fixed_rounds(scenario: Scenario) -> Scenario:
    """The constant T of the schemes that do not optimise it."""
    return changed(scenario, {"learning": {"rounds": scenario.learning.fixed_rounds}})


def truncation_threshold(radio: Radio) -> float | str:
    """The threshold of silence of this project's own schemes: the scenario's if it has one, or else the best.

    Several antennas seldom fade all at once: everybody speaks to them.
    """
    return radio.truncation or ("optimal" if radio.antennas == 1 else 0.0)


def for_public_set(scenario: Scenario, abstain: bool) -> Scenario:
    """For knowledge on a public set: whole devices are protected, for nothing less has a bound; devices abstain as the
    scenario says, or as the scheme would have it."""
    public = declared_public(scenario)
    changes = {"public": {"abstain": abstain if public.abstain is None else public.abstain}}
    return changed(scenario, {**changes, "privacy": {"sensitivity": "device"}})


def refuse_server_selector(scenario: Scenario) -> None:
    selector = declared_public(scenario).server_selector
    if selector is not None:
        rule = "needs the number of those who answered, which is private over the air; put it into [overrides.proxy_fd]"
        raise InputError("public.server_selector", selector, rule)


def plan_scheme(scheme: Scheme, scenario: Scenario, spent_squared_mu: FloatArray | None = None) -> Plan:
    """The plan of a scenario that `as_run_by` made, with what earlier runs have left of every device's budget."""
    if scheme.one_model and len(set(scenario.model_names)) > 1:
        mixed = Described(" and ".join(sorted(set(scenario.model_names))))
        rule = f"{scheme.name} needs one model for all devices; only knowledge can be shared between different ones"
        raise InputError("fleet.groups", mixed, rule)
    if scheme.uplink == "public_knowledge" and scenario.data.class_counts is None:
        load_data(scenario)  # what cannot be had is said now
    length = num_parameters(scenario) if scheme.uplink == "gradient" else None
    made = plan(scenario, scheme.uplink, length, spent_squared_mu if scheme.releases == "private" else None)
    return made if scheme.releases == "private" else _without_protection(made, scheme)


def _without_protection(made: Plan, scheme: Scheme) -> Plan:
    """Of a plan for a scheme that hides nothing only the rounds and the slots are left."""
    bare = scheme.releases == "bare"
    epsilon = np.full(made.fleet.num_devices, np.inf if bare else 0.0)
    silent = np.zeros(made.fleet.num_devices)
    forecast = replace(
        made.forecast,
        effective_noise_var=np.zeros_like(made.forecast.effective_noise_var),
        effective_noise=0.0,
        effective_noise_median=0.0,
        effective_noise_quantile=0.0,
        signal_power_w=silent,
        noise_power_w=silent,
        round_joules=0.0,
        inverse_counted_noise=np.full(made.forecast.inverse_counted_noise.shape, np.inf if bare else 0.0),
    )
    word = "sends its numbers as they are over a perfect channel: nothing is hidden" if bare else "sends nothing"
    return replace(
        made,
        forecast=forecast,
        epsilon_by_model=dict.fromkeys(made.epsilon_by_model, epsilon),
        assumptions=(f"{scheme.name} {word}.",),
        warnings=(f"{scheme.name} {word}; of the plan for privacy it takes the number of rounds alone.",),
    )


def num_parameters(scenario: Scenario) -> int:
    """Of the model that all devices share."""
    dataset, _ = load_data(scenario)
    return count_parameters(scenario.model_names[0], input_shape(dataset.x_train), dataset.num_classes)
