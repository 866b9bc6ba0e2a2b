"""Pilots: a few devices train for a few rounds over a perfect channel while the bound's constants are measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, Context
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from airdistill import __version__
from airdistill.arrays import IntArray
from airdistill.data.partition import class_counts
from airdistill.errors import AirDistillError, InputError
from airdistill.files import jsonable
from airdistill.learning.fleet import LearningFleet, check_finite
from airdistill.learning.gradients import Target
from airdistill.learning.learner import Losses
from airdistill.learning.pilot import ConstantEstimator, MeasuredConstants, measured_round
from airdistill.planning.plan import rounds_with
from airdistill.radio.superposition import ideal_knowledge
from airdistill.runs.options import RunOptions
from airdistill.runs.pilot_data import PilotData, Source, pilot_data
from airdistill.runs.simulation import seed_torch
from airdistill.scenario.loading import ScenarioLike, as_scenario, as_toml, changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.protocol import learn_from
from airdistill.streams import stream

SYMBOLS = {"grad_lipschitz": "L1", "model_lipschitz": "L2", "grad_norm_bound": "S", "loss_bound": "f_max"}
_MOST_MEASURED = 10  # rounds of a repeat: measuring is slower than training, and constants change with log t
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Extent:
    """The values of a constant that the repeats measured."""

    values: tuple[float, ...]

    @property
    def smallest(self) -> float:
        """The smallest measured value."""
        return _rounded_up(min(self.values))

    @property
    def median(self) -> float:
        """The median of the measured values."""
        return _rounded_up(median(self.values))

    @property
    def estimate(self) -> float:
        """The largest measured value: the constant is a supremum, so every measured value is a lower bound."""
        return _rounded_up(max(self.values))

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("estimate", "smallest", "median", "values")}


@dataclass(frozen=True)
class Optimum:
    """T* for one choice of constants, and T̂, the optimum limited by privacy alone, not by `max_rounds`."""

    choice: str
    constants: dict[str, float]
    rounds: int
    privacy_limited: float


@dataclass(frozen=True)
class PilotRecord:
    """The constants that a pilot measured, and the optimal number of rounds for them."""

    scenario: Scenario
    source: Source
    data: str
    rounds: int
    devices: int
    fewest_samples: int
    too_few_samples: bool
    seen: tuple[MeasuredConstants, ...]

    @property
    def extents(self) -> dict[str, Extent]:
        """The measured values of every constant, by its name in a scenario."""
        return {name: _extent(self.seen, name) for name in SYMBOLS}

    @property
    def path_lipschitz(self) -> Extent:
        """L1 along the training trajectories alone."""
        return _extent(self.seen, "path_lipschitz")

    @property
    def chance_of_more(self) -> float:
        """The probability that one more repeat would measure a larger value, because repeats are exchangeable."""
        return 1 / (len(self.seen) + 1)

    @cached_property
    def optima(self) -> tuple[Optimum, ...]:
        """T* for the declared constants, and over the range of the measured ones."""
        return tuple(_optima(self.scenario, self.seen))

    @property
    def measured_scenario(self) -> Scenario:
        """The scenario with the estimates as its constants, and their source."""
        estimates = {name: extent.estimate for name, extent in self.extents.items()}
        return changed(self.scenario, {"constants": {**estimates, "source": self.source}})

    def to_toml(self) -> str:
        """Return the measured scenario as TOML, with a comment on how its constants were measured."""
        spans = [f"{SYMBOLS[name]} {extent.smallest:g} to {extent.estimate:g}" for name, extent in self.extents.items()]
        how = f"on {self.source} data: {len(self.seen)} repeats of {self.devices} devices and {self.rounds} rounds"
        return (
            f"# Constants measured by a pilot {how}.\n# Their range: {', '.join(spans)}.\n"
            f"{as_toml(self.measured_scenario)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        declared = self.scenario.constants
        written: dict[str, Any] = jsonable(
            {
                "airdistill": __version__,
                "name": self.scenario.name,
                "source": self.source,
                **{name: getattr(self, name) for name in ("data", "rounds", "devices", "fewest_samples")},
                "repeats": len(self.seen),
                "constants": {
                    name: {**extent.to_dict(), "declared": getattr(declared, name)}
                    for name, extent in self.extents.items()
                },
                "path_lipschitz": self.path_lipschitz.to_dict(),
                "chance_of_more": self.chance_of_more,
                "optima": [asdict(optimum) for optimum in self.optima],
                "max_rounds": self.scenario.learning.max_rounds,
                "scenario": self.measured_scenario.model_dump(mode="json"),
            }
        )
        return written


def pilot(
    scenario: ScenarioLike,
    data: str = "synthetic",
    rounds: int = 10,
    devices: int | None = None,
    repeats: int = 3,
    options: RunOptions | None = None,
    on_progress: OnProgress | None = None,
) -> PilotRecord:
    """Measure L1, L2, S and f_max:

    1. plan the number of rounds once, which checks the scenario before the long part starts;
    2. in each repeat, train other devices with other initial weights and samples over a perfect channel;
    3. keep the largest values of each repeat; the record then plans over their range.

    `data` is "synthetic", "public", "private" or the path of a public dataset. `devices` is 2 by default, or one for
    each model. `on_progress(rounds_done, rounds_in_all)` is called after every round.
    """
    scenario = as_scenario(scenario)
    for name, given in (("--rounds", rounds), ("--repeats", repeats)):
        if given < 1:
            raise InputError(name, given, "must be at least 1")
    counts, devices = class_counts(scenario), _num_devices(scenario, devices)
    source = pilot_data(scenario, data, counts)
    rounds_with(scenario, [{}])
    measured = {round(each) for each in np.geomspace(1, rounds, _MOST_MEASURED)}
    finished = []
    for number in range(repeats):
        repeat = _Repeat(scenario, source, counts, devices, number, options or RunOptions())
        for index in range(1, rounds + 1):
            repeat.play(index, measured=index in measured)
            if on_progress is not None:
                on_progress(number * rounds + index, repeats * rounds)
        finished.append(repeat)
    return PilotRecord(
        scenario,
        source.source,
        data,
        rounds,
        devices,
        min(repeat.fewest_samples for repeat in finished),
        any(repeat.too_few_samples for repeat in finished),
        tuple(repeat.seen for repeat in finished),
    )


class _Repeat:
    """One repeat of a pilot: devices with initial weights, samples and batch orders of their own."""

    def __init__(
        self, scenario: Scenario, data: PilotData, counts: IntArray, devices: int, number: int, options: RunOptions
    ) -> None:
        chosen = _chosen_devices(scenario, devices, number)
        dataset, indices = data.draw(number, chosen)
        # A pilot draws from the same named streams as a run, and so it needs another seed.
        seed = int(stream(scenario.seed, "pilot", number).integers(2**63))
        self._scenario = changed(scenario, {"seed": seed})
        models, num_classes = [scenario.model_names[device] for device in chosen], counts.shape[1]
        engine = replace(options.learning_engine(), stacked=False)  # each device is measured separately
        self._fleet = LearningFleet.of(dataset, indices, models, seed, engine, num_classes=num_classes)
        self._counts = np.stack([np.bincount(dataset.y_train[held], minlength=num_classes) for held in indices])
        self._watches = [
            ConstantEstimator(learner, scenario.learning.distill_weight, stream(seed, "pilot-slopes", 0, device))
            for device, learner in enumerate(self._fleet.learners)
        ]
        sizes = self._counts.sum(axis=1)
        self.fewest_samples = int(sizes.min())
        self.too_few_samples = bool((sizes < counts[chosen].sum(axis=1)).any())

    @property
    def seen(self) -> MeasuredConstants:
        """The largest values of all devices so far."""
        return MeasuredConstants.of(watch.largest for watch in self._watches)

    def play(self, index: int, measured: bool) -> None:
        """Compute one round; errors in a user's own model are reported as user errors."""
        try:
            self._play(index, measured)
        except Exception as error:
            if isinstance(error, AirDistillError) or not any(":" in name for name in self._scenario.model_names):
                raise
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise AirDistillError(f"round {index}: your model cannot be measured: {reason}") from error

    def _play(self, index: int, measured: bool) -> None:
        seed_torch(self._scenario, index)
        fleet, engine = self._fleet, self._fleet.engine
        received = ideal_knowledge(self._counts, fleet.knowledge(for_full_batch=False))

        def learn() -> Sequence[Losses]:
            return learn_from(fleet, self._scenario, index, received, range(len(fleet.learners)))

        target = Target.of(received, engine.dtype, engine.device)
        losses = measured_round(fleet, self._watches, target, learn) if measured else learn()
        check_finite(losses, fleet.finite_weights(), index)


def _num_devices(scenario: Scenario, asked: int | None) -> int:
    models = len(set(scenario.model_names))
    if asked is None:
        return min(max(2, models), scenario.num_devices)
    if not models <= asked <= scenario.num_devices:
        rule = f"must lie between {models}, the fleet's different models, and {scenario.num_devices}, its devices"
        raise InputError("--devices", asked, rule)
    return asked


def _chosen_devices(scenario: Scenario, count: int, repeat: int) -> list[int]:
    """Return the devices of the fleet that a repeat trains: drawn at random, with every model among them."""
    order = stream(scenario.seed, "pilot-devices", repeat).permutation(scenario.num_devices).tolist()
    models = scenario.model_names
    first_of_model = {models[device]: device for device in reversed(order)}.values()
    others = [device for device in order if device not in set(first_of_model)]
    return sorted([*first_of_model, *others][:count])


def _optima(scenario: Scenario, seen: tuple[MeasuredConstants, ...]) -> list[Optimum]:
    """Return the optimum over the range of the constants: all of them at both extremes, and one by one."""
    extents = {name: _extent(seen, name) for name in SYMBOLS}
    low, middle, high = (
        {name: getattr(extent, end) for name, extent in extents.items()} for end in ("smallest", "median", "estimate")
    )
    choices = {
        "declared": {name: getattr(scenario.constants, name) for name in SYMBOLS},
        "smallest": low,
        "median": middle,
        "estimate": high,
        # T* falls with L1, L2 and S, and rises with f_max.
        "fewest rounds": {**high, "loss_bound": low["loss_bound"]},
        "most rounds": {**low, "loss_bound": high["loss_bound"]},
        **{f"{symbol} smallest": {**high, name: low[name]} for name, symbol in SYMBOLS.items()},
    }
    along_path = _extent(seen, "path_lipschitz").estimate
    if along_path > 0:
        choices["L1 of own way"] = {**high, "grad_lipschitz": along_path}
    return [
        Optimum(choice, constants, rounds.exact, rounds.privacy_limited)
        for (choice, constants), rounds in zip(choices.items(), rounds_with(scenario, choices.values()), strict=True)
    ]


def _extent(seen: tuple[MeasuredConstants, ...], name: str) -> Extent:
    return Extent(tuple(getattr(each, name) for each in seen))


def _rounded_up(value: float) -> float:
    """Round up to three digits: a pilot is not more precise, and rounding down would not give a valid bound."""
    return float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(value)))
