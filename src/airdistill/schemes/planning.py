"""From a scenario and a scheme to the scheme's own plan."""

from __future__ import annotations

from airdistill.codesign.plan import Plan, plan
from airdistill.data.datasets import load_dataset
from airdistill.errors import Described, InputError
from airdistill.learning.models import count_parameters
from airdistill.learning.samples import input_shape
from airdistill.scenario.loading import changed, for_scheme
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Scheme


def as_run_by(scheme: Scheme, scenario: Scenario, rounds: int | None = None) -> Scenario:
    """The scenario with the overrides that hold for a scheme, as that scheme adapts it."""
    for name in (*scheme.inherits, scheme.name):
        scenario = for_scheme(scenario, name)
    adapted = scheme.adapt(scenario)
    return adapted if rounds is None else changed(adapted, {"learning": {"rounds": rounds}})


def with_fixed_rounds(scenario: Scenario) -> Scenario:
    """The constant T of the schemes that do not optimise it."""
    return changed(scenario, {"learning": {"rounds": scenario.learning.fixed_rounds}})


def plan_scheme(scheme: Scheme, scenario: Scenario) -> Plan:
    """The plan of a scenario that `as_run_by` made."""
    if scheme.one_model and len(set(scenario.model_names)) > 1:
        mixed = Described(" and ".join(sorted(set(scenario.model_names))))
        rule = f"{scheme.name} needs one model for all devices; only knowledge can be shared between different ones"
        raise InputError("fleet.groups", mixed, rule)
    return plan(scenario, scheme.uplink, num_parameters(scenario) if scheme.uplink == "gradient" else None)


def num_parameters(scenario: Scenario) -> int:
    """Of the model that all devices share."""
    dataset = load_dataset(scenario.data.dataset)
    return count_parameters(scenario.model_names[0], input_shape(dataset.x_train), dataset.num_classes)
