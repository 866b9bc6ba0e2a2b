"""Figure 2(a): the noise of the received payload against the target ε of every device.

The curves come from the planner, without training. The raw quantities that the paper plots, Φ2 of knowledge and Φ of a
gradient, have different units: noise of knowledge enters the gradient multiplied by 2γL2, and so its variance is
multiplied by (2γL2)².
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.planning.convergence.gap import LearningConstants
from airdistill.planning.convergence.rounds import GapObjective
from airdistill.planning.fleet import RealisedFleet, realise_fleet
from airdistill.planning.plan import choose_uplink, gap_objective, planning_draws
from airdistill.privacy.targets import target_mu
from airdistill.reproduce.recipes import on_fd_terms
from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.planning import as_run_by, model_length
from airdistill.schemes.registry import load_scheme

DELTA = 1e-11
EPSILONS = np.geomspace(1e-3, 1e2, 26)


@dataclass(frozen=True)
class NoiseCurve:
    """At every ε, `[epsilon]`: T, raw Φ, Φ in units of the gradient, T̂, and the share of rows that privacy limits."""

    label: str
    epsilon: FloatArray
    rounds: FloatArray
    noise: FloatArray
    gradient_noise: FloatArray
    privacy_limited_rounds: FloatArray
    privacy_binds: FloatArray


def noise_curves(scenario: Scenario) -> dict[str, NoiseCurve]:
    """Return, by label, the paper's four curves, those on one common link, TDMA, own noise only, and `airdistill`."""
    one_link = on_fd_terms(scenario)
    own_noise = changed(scenario, {"privacy": {"trust": "own_noise"}})
    wanted = {
        "ota_fd": ("ota_fd", scenario),
        "ota_fd_fixed": ("ota_fd_fixed", scenario),
        "ota_fl": ("ota_fl", scenario),
        "ota_fl_fixed": ("ota_fl_fixed", scenario),
        "ota_fl_same_link": ("ota_fl", one_link),
        "ota_fl_fixed_same_link": ("ota_fl_fixed", one_link),
        "orthogonal_fd_fixed": ("orthogonal_fd", _at_fixed_rounds(scenario)),
        "own_noise_fixed": ("ota_fd", _at_fixed_rounds(own_noise)),
        "airdistill_fixed": ("airdistill", _at_fixed_rounds(scenario)),
    }
    return {label: noise_curve(label, scheme, given) for label, (scheme, given) in wanted.items()}


def _at_fixed_rounds(scenario: Scenario) -> Scenario:
    return changed(scenario, {"learning": {"rounds": scenario.learning.fixed_rounds}})


def noise_curve(label: str, scheme: str, scenario: Scenario, epsilons: FloatArray = EPSILONS) -> NoiseCurve:
    """Plan one scheme over the grid of ε, with ε_i = ε and δ_i = 1e-11 for all devices."""
    chosen = load_scheme(scheme)
    adapted = as_run_by(chosen, scenario)
    size = model_length(chosen, adapted)
    channels = planning_draws(adapted)
    fleet, points = realise_fleet(adapted), []
    for epsilon in epsilons:
        sent = choose_uplink(adapted, _with_target(fleet, float(epsilon), adapted), chosen.uplink_kind, size, channels)
        points.append(_point(gap_objective(adapted, sent, channels), adapted, channels))
    rounds, noise, limited, binds = np.array(points).T
    constants = LearningConstants.of_scenario(adapted)
    distilled = (2 * constants.distill_weight * constants.model_lipschitz) ** 2
    factor = distilled if chosen.payload.is_knowledge else 1.0
    return NoiseCurve(label, np.asarray(epsilons), rounds, noise, factor * noise, limited, binds)


def _with_target(fleet: RealisedFleet, epsilon: float, scenario: Scenario) -> RealisedFleet:
    """Return the same fleet with this target ε for every device."""
    asked, delta = np.full(fleet.num_devices, epsilon), np.full(fleet.num_devices, DELTA)
    return replace(fleet, epsilon=asked, delta=delta, mu=target_mu(asked, delta, scenario.privacy.accountant))


def _point(objective: GapObjective, scenario: Scenario, channels: ComplexArray) -> tuple[float, float, float, float]:
    """Return T, the mean Φ of a device below the outage (after its receiver), T̂, and the share that privacy limits."""
    uplink, asked = objective.uplink, scenario.learning.rounds
    num_rounds = asked if isinstance(asked, int) else objective.best_rounds(scenario.learning.max_rounds)
    noise = objective.squared_error(num_rounds)
    binds = float((uplink.privacy_noise_var(num_rounds) > uplink.channel_floor(channels)).mean())
    return float(num_rounds), noise, objective.privacy_limited_rounds(), binds


def curves_as_rows(curves: dict[str, NoiseCurve]) -> Iterator[list[str | float]]:
    """Yield the rows of a CSV file, the heading first."""
    names = ("epsilon", "rounds", "noise", "gradient_noise", "privacy_limited_rounds", "privacy_binds")
    yield ["curve", *names]
    for curve in curves.values():
        columns = [getattr(curve, name) for name in names]
        for point in zip(*columns, strict=True):
            yield [curve.label, *map(float, point)]
