"""Squared error of the receivers of class means at equal ε, in dB below the linear one and above a lower bound.

Equal ε means the same design noise: every receiver gets the same r̂, and what it computes from that costs no privacy.
Three kinds of class means are estimated. Two are simulated from processes fitted to error-free runs, for which the
bound is proven: `gaussian`, linear and unconstrained, and `simplex`, logistic-normal. The third, `recorded`, are those
of error-free runs with other seeds, of which the law is unknown: the bound of `simplex` is only indicative there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.bench.bounds import posterior_bound
from airdistill.bench.estimators import Estimator, Kalman, LogisticNormal, SingleRound, best_unbiased, linear, projected
from airdistill.bench.state_space import StateSpace, fit_process
from airdistill.channel.csi import round_estimate
from airdistill.channel.sources import channel_source
from airdistill.errors import InputError
from airdistill.planning.convergence.receiver_error import Part, Parts
from airdistill.radio.receivers import Tracking
from airdistill.runs.options import RunOptions
from airdistill.runs.simulation import Simulation
from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.base import Outcome, Round
from airdistill.schemes.distillation import FdErrorFree
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.registry import load_scheme
from airdistill.stages import report_stage
from airdistill.streams import stream

EPSILONS = (0.5, 2.0, 8.0)
FIRST_TUNING_SEED = 1000  # after the scenario's: constants are fitted to other runs than those that are reported
_FEWEST_ROUNDS = 3
_ONE_FILTER = Parts(Part(0.1, 1e-3), Part(0.1, 1e-3), Part(0.1, 1e-3))

Makers = dict[str, Callable[[], Estimator]]


@dataclass(frozen=True)
class Work:
    """Rounds of a run, seeds to report and to fit to, simulated runs of each process, noise draws of a recorded run."""

    rounds: int = 100
    seeds: int = 3
    tuning_seeds: int = 3
    paths: int = 20
    repeats: int = 5


class Recording(FdErrorFree):
    """Error-free distillation that records the received class means."""

    def __init__(self) -> None:
        self.path: list[FloatArray] = []

    def play(self, this: Round) -> Outcome:
        outcome = super().play(this)
        assert outcome.reception is not None
        self.path.append(outcome.reception.received)
        return outcome


def record_class_means(scenario: Scenario, num_rounds: int) -> FloatArray:
    """The class means of an error-free run, `[round, class, entry]`."""
    scheme = Recording()
    planned = plan_scheme(scheme, as_run_by(scheme, scenario, num_rounds + 1))
    # Without evaluation: one more round is planned than is played, because the last one is always evaluated.
    simulation = Simulation(planned, scheme, RunOptions(eval_every=10**6).resolved())
    for t in range(num_rounds):
        simulation.advance()
        report_stage(f"error-free run, seed {scenario.seed}", t + 1, num_rounds)
    path = np.stack(scheme.path)
    if not np.isfinite(path).all():
        raise InputError("data.partition", scenario.data.partition, "every class must be held by a device")
    return path


def design_noise(scenario: Scenario, num_rounds: int) -> FloatArray:
    """v of every round and class as `ota_fd` designs them, `[round, class]`."""
    scheme = load_scheme("ota_fd")
    planned = plan_scheme(scheme, as_run_by(scheme, scenario, num_rounds))
    source = channel_source(planned.scenario)
    noise = []
    for t in range(1, num_rounds + 1):
        known = round_estimate(planned.scenario, source.round_channel(t), t)
        noise.append(planned.design(known, t).effective_noise_var)
    found = np.stack(noise)
    if not (np.isfinite(found).all() and (found > 0).all()):
        rule = "receivers are compared with noise in every round, of which every class is received: set it to 1"
        raise InputError("fleet.participation", scenario.fleet.participation, rule)
    return found


def measure_receivers(
    scenario: Scenario, epsilons: Sequence[float] = EPSILONS, work: Work | None = None
) -> dict[str, Any]:
    """Errors, gains and distances of all receivers, at every ε, for the three kinds of class means."""
    work = work or Work()
    if work.rounds < _FEWEST_ROUNDS:
        raise InputError("rounds", work.rounds, f"must be at least {_FEWEST_ROUNDS}, to fit a trend")
    noises = {
        epsilon: design_noise(changed(scenario, {"privacy": {"epsilon": epsilon}}), work.rounds) for epsilon in epsilons
    }
    seeds = [scenario.seed + n for n in range(work.seeds)]
    tuning_seeds = [scenario.seed + FIRST_TUNING_SEED + n for n in range(work.tuning_seeds)]
    unprotected = changed(scenario, {"privacy": {"epsilon": float("inf")}})
    tuning, recorded = (
        np.stack([record_class_means(changed(unprotected, {"seed": seed}), work.rounds) for seed in some])
        for some in (tuning_seeds, seeds)
    )
    fitted = {"gaussian": fit_process(tuning, False), "simplex": fit_process(tuning, True)}
    levels = []
    for epsilon, noise in noises.items():
        levels.append({"epsilon": epsilon, **_level(scenario, fitted, tuning, recorded, noise, work)})
    return {
        "scenario": scenario.name,
        "devices": scenario.fleet.devices,
        "classes": recorded.shape[2],
        "work": asdict(work),
        "seeds": seeds,
        "tuning_seeds": tuning_seeds,
        "processes": {name: _constants(process) for name, process in fitted.items()},
        "levels": levels,
    }


def _level(
    scenario: Scenario,
    fitted: dict[str, StateSpace],
    tuning: FloatArray,
    recorded: FloatArray,
    noise: FloatArray,
    work: Work,
) -> dict[str, Any]:
    """The three kinds of class means at one ε."""
    rng = stream(scenario.seed, "receiver benchmark")
    paths = {
        name: np.moveaxis(process.class_means(process.simulate(rng, len(noise), work.paths)), 1, 0)
        for name, process in fitted.items()
    }
    bounds = {name: float(posterior_bound(process, noise).mean()) for name, process in fitted.items()}
    tracked, single_round = Parts.for_drift(scenario.learning.knowledge_drift), SingleRound.fitted(tuning)
    on_simplex = receivers_on_simplex(fitted, tracked, single_round)
    kinds = {
        "gaussian": (receivers_anywhere(fitted["gaussian"], tracked), paths["gaussian"], 1, bounds["gaussian"]),
        "simplex": (on_simplex, paths["simplex"], 1, bounds["simplex"]),
        "recorded": (on_simplex, recorded, work.repeats, bounds["simplex"]),
    }
    measured = {}
    for number, (kind, (makers, truths, repeats, bound)) in enumerate(kinds.items()):
        measured[kind] = _compared(makers, truths, noise, repeats, bound)
        report_stage(f"receivers, noise variance {noise.mean():.3g}", number + 1, len(kinds))
    return {"noise_var": float(noise.mean()), "class_means": measured}


def receivers_anywhere(process: StateSpace, tracked: Parts) -> Makers:
    """Receivers of class means that may leave the simplex: none of them projects."""
    tracking = partial(_tracking, process.num_classes, project=False)
    return {
        "linear": lambda: linear,
        "best_unbiased": lambda: best_unbiased,
        "one_filter": partial(tracking, _ONE_FILTER),
        "tracking": partial(tracking, tracked),
        "kalman": partial(Kalman, process, project=False),
    }


def receivers_on_simplex(fitted: dict[str, StateSpace], tracked: Parts, single_round: SingleRound) -> Makers:
    """All receivers. The last two of them, and the single-round one, have constants fitted to other runs."""
    tracking = partial(_tracking, fitted["simplex"].num_classes, project=True)
    return {
        "linear": lambda: linear,
        "best_unbiased": lambda: best_unbiased,
        "projected": lambda: projected,
        "single_round": lambda: single_round,
        "one_filter": partial(tracking, _ONE_FILTER),
        "tracking": partial(tracking, tracked),
        "kalman": partial(Kalman, fitted["gaussian"], project=True),
        "logistic_normal": partial(LogisticNormal, fitted["simplex"]),
    }


def _tracking(num_classes: int, parts: Parts, project: bool) -> Estimator:
    receiver = Tracking(num_classes, parts)

    def estimate(received: FloatArray, noise_var: FloatArray) -> FloatArray:
        broadcast = receiver.estimate(received, noise_var).knowledge
        return broadcast if project else receiver.before_projection()

    return estimate


def errors_of(make: Callable[[], Estimator], paths: FloatArray, noise_var: FloatArray, seed: int) -> FloatArray:
    """Squared errors of a class's vector along paths `[path, round, class, entry]`, means over classes and rounds.

    The noise of a path depends on the seed and the path's number only: all receivers get the same.
    """
    errors = []
    for number, path in enumerate(paths):
        rng, estimator = stream(seed, "receiver benchmark noise", device=number), make()
        received = path + np.sqrt(noise_var)[..., None] * rng.standard_normal(path.shape)
        found = np.stack([estimator(at_round, noise) for at_round, noise in zip(received, noise_var, strict=True)])
        errors.append(((found - path) ** 2).sum(axis=-1).mean())
    return np.array(errors)


def _compared(makers: Makers, paths: FloatArray, noise: FloatArray, repeats: int, bound: float) -> dict[str, Any]:
    """Errors with their standard errors over paths, and decibels."""
    errors = {
        name: np.mean([errors_of(make, paths, noise, repeat) for repeat in range(repeats)], axis=0)
        for name, make in makers.items()
    }
    of_linear = errors["linear"].mean()
    receivers = {}
    for name, of_paths in errors.items():
        mean, spread = of_paths.mean(), of_paths.std(ddof=1) / len(of_paths) ** 0.5 if len(of_paths) > 1 else None
        receivers[name] = {
            "squared_error": float(mean),
            "standard_error": None if spread is None else float(spread),
            "gain_db": decibels(of_linear / mean),
            "above_bound_db": decibels(mean / bound),
        }
    return {"bound": bound, "receivers": receivers}


def decibels(ratio: float) -> float:
    return float(10 * np.log10(ratio))


def _constants(process: StateSpace) -> dict[str, Any]:
    return {"parts": asdict(process.parts), "start": process.start, "trend": process.trend}
