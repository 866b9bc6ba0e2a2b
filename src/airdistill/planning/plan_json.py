"""Plans to JSON and back. JSON has no infinity: null stands for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, TypeVar

import numpy as np

from airdistill import __version__
from airdistill.arrays import FloatArray
from airdistill.files import jsonable
from airdistill.planning.convergence.rounds import RoundsChoice
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.forecast import RoundForecast
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.correlated import CorrelatedUplink
from airdistill.planning.transceiver.superposed import SuperposedUplink
from airdistill.planning.uplinks import Choices, uplink_for
from airdistill.planning.waveform import Observation
from airdistill.planning.what_if.correlation import CorrelationComparison
from airdistill.planning.what_if.participation import AmplificationComparison, ParticipationComparison
from airdistill.privacy.correlation import Correlation
from airdistill.scenario.loading import validated

_Numbers = TypeVar("_Numbers")
# Outside readers look for these at the top level; the rest of the forecast has a table of its own.
_AT_TOP = ("regime", "required_noise_var", "effective_noise_var", "effective_noise")


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    forecast = {field.name: getattr(plan.forecast, field.name) for field in fields(RoundForecast)}
    privacy = plan.scenario.privacy
    devices = [
        {
            "epsilon": plan.fleet.epsilon[device],
            "delta": plan.fleet.delta[device],
            "mu": plan.fleet.mu[device],
            "epsilon_at_end": {model: values[device] for model, values in plan.epsilon_by_model.items()},
        }
        for device in range(plan.fleet.num_devices)
    ]
    written: dict[str, Any] = jsonable(
        {
            "airdistill": __version__,
            "name": plan.scenario.name,
            "uplink": {"kind": plan.uplink.kind, "vector_length": plan.uplink.vector_length, **_choices_of(plan)},
            "rounds": asdict(plan.rounds),
            **{name: forecast.pop(name) for name in _AT_TOP},
            "convergence_gap": plan.convergence_gap,
            "uplink_seconds": plan.uplink_seconds,
            "uplink_joules": plan.uplink_joules,
            **({} if plan.duty_cycle == 1 else {"duty_cycle": plan.duty_cycle, "least_seconds": plan.least_seconds}),
            "forecast": forecast,
            **({} if plan.participation is None else {"taking_part": asdict(plan.participation)}),
            **({} if plan.amplification is None else {"hidden_part": asdict(plan.amplification)}),
            **({} if plan.correlation is None else {"correlated_noise": asdict(plan.correlation)}),
            "privacy": {
                "sensitivity": privacy.sensitivity,
                "relabel": privacy.relabel,
                "accountant": privacy.accountant,
                "trust": privacy.trust,
                "devices": devices,
                **({} if plan.fleet.earlier_excess == 0 else {"earlier_excess": plan.fleet.earlier_excess}),
            },
            "fleet": {"class_counts": plan.fleet.class_counts, "peak_power_w": plan.fleet.peak_power_w},
            "assumptions": plan.assumptions,
            "warnings": plan.warnings,
            "scenario": plan.scenario.model_dump(mode="json"),
        }
    )
    return written


def plan_from_dict(stored: dict[str, Any]) -> Plan:
    devices = stored["privacy"]["devices"]
    fleet = RealisedFleet(
        class_counts=np.array(stored["fleet"]["class_counts"], dtype=np.int64),
        peak_power_w=_array(stored["fleet"]["peak_power_w"]),
        epsilon=_array([device["epsilon"] for device in devices]),
        delta=_array([device["delta"] for device in devices]),
        mu=_array([device["mu"] for device in devices]),
        earlier_excess=stored["privacy"].get("earlier_excess", 0.0),
    )
    forecast = {**stored["forecast"], **{name: stored[name] for name in _AT_TOP}}
    models = devices[0]["epsilon_at_end"]
    scenario, sent = validated(stored["scenario"]), stored["uplink"]
    return Plan(
        scenario=scenario,
        fleet=fleet,
        rounds=RoundsChoice(**{name: _number(value) for name, value in stored["rounds"].items()}),
        forecast=RoundForecast(**{name: _number(value) for name, value in forecast.items()}),
        convergence_gap=_number(stored["convergence_gap"]),
        epsilon_by_model={model: _array([device["epsilon_at_end"][model] for device in devices]) for model in models},
        assumptions=tuple(stored["assumptions"]),
        warnings=tuple(stored["warnings"]),
        uplink=uplink_for(sent["kind"], scenario, fleet, sent["vector_length"], _stored_choices(sent)),
        participation=_numbers_of(ParticipationComparison, stored.get("taking_part")),
        amplification=_numbers_of(AmplificationComparison, stored.get("hidden_part")),
        correlation=_numbers_of(CorrelationComparison, stored.get("correlated_noise")),
    )


def _numbers_of(kind: Callable[..., _Numbers], stored: dict[str, Any] | None) -> _Numbers | None:
    return None if stored is None else kind(**{name: _number(value) for name, value in stored.items()})


def _choices_of(plan: Plan) -> dict[str, Any]:
    if isinstance(plan.uplink, CorrelatedUplink):
        return {"correlation": plan.uplink.correlation.to_dict(), "typical_power_w": plan.uplink.typical_power_w}
    if not isinstance(plan.uplink, SuperposedUplink):
        return {}
    chosen: dict[str, Any] = {
        "truncation": plan.uplink.truncation,
        "floor": [] if plan.uplink.floor is None else plan.uplink.floor,
    }
    if plan.scenario.waveform.kind == "ofdm":
        chosen["observation"] = asdict(plan.uplink.observation)
    return chosen


def _stored_choices(sent: dict[str, Any]) -> Choices:
    """The planner's choices in a stored plan; older plans have none."""
    if "correlation" in sent:
        matrix = Correlation.from_dict(sent["correlation"])
        return Choices(correlation=matrix, typical_power_w=_array(sent["typical_power_w"]))
    floor = sent.get("floor") or None
    kept, seen = (
        None if floor is None else _array(floor),
        Observation(**{name: _number(value) for name, value in sent.get("observation", {}).items()}),
    )
    return Choices(sent.get("truncation", 0.0), kept, observation=seen)


def _number(value: Any) -> Any:
    """Convert a stored value: null to infinity, a list to an array."""
    if isinstance(value, list):
        return _array(value)
    return math.inf if value is None else value


def _array(values: list[Any]) -> FloatArray:
    filled = [[_number(entry) for entry in row] if isinstance(row, list) else _number(row) for row in values]
    return np.array(filled, dtype=np.float64)
