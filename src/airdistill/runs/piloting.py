"""A pilot: a few devices learn for a few rounds without error, and the bound's constants are measured on the way."""

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
from airdistill.learning.pilot import Largest, Watch, watched_round
from airdistill.planning.plan import rounds_with
from airdistill.radio.superposition import ideal_knowledge
from airdistill.runs.options import RunOptions
from airdistill.runs.pilot_data import PilotData, Source, pilot_data
from airdistill.runs.simulation import seed_torch
from airdistill.scenario.loading import as_toml, changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.payloads import learn_from
from airdistill.streams import stream

SYMBOLS = {"grad_lipschitz": "L1", "model_lipschitz": "L2", "grad_norm_bound": "S", "loss_bound": "f_max"}
_MOST_MEASURED = 10  # rounds of a repeat: measuring takes longer than learning, and constants move with log t
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Extent:
    """A constant as every repeat saw it."""

    values: tuple[float, ...]

    @property
    def smallest(self) -> float:
        return _rounded_up(min(self.values))

    @property
    def median(self) -> float:
        return _rounded_up(median(self.values))

    @property
    def estimate(self) -> float:
        """The largest: the constant is a supremum, and everything seen lies below it."""
        return _rounded_up(max(self.values))

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("estimate", "smallest", "median", "values")}


@dataclass(frozen=True)
class Optimum:
    """T* with one choice of constants, and the T̂ that privacy alone would allow, which no `max_rounds` holds back."""

    choice: str
    constants: dict[str, float]
    rounds: int
    privacy_limited: float


@dataclass(frozen=True)
class PilotRecord:
    """What a pilot saw, and how the optimal number of rounds moves with it."""

    scenario: Scenario
    source: Source
    data: str
    rounds: int
    devices: int
    fewest_samples: int
    too_few_samples: bool
    seen: tuple[Largest, ...]

    @property
    def extents(self) -> dict[str, Extent]:
        """Of every constant of a scenario, by name."""
        return {name: _extent(self.seen, name) for name in SYMBOLS}

    @property
    def path_lipschitz(self) -> Extent:
        """L1 along the runs' own ways alone."""
        return _extent(self.seen, "path_lipschitz")

    @property
    def chance_of_more(self) -> float:
        """That one more repeat would see more of a constant than all these: they differ by chance alone."""
        return 1 / (len(self.seen) + 1)

    @cached_property
    def optima(self) -> tuple[Optimum, ...]:
        """T* as declared, and over the range that the repeats span."""
        return tuple(_optima(self.scenario, self.seen))

    @property
    def measured_scenario(self) -> Scenario:
        """The scenario with the estimates for its constants, and with where they come from."""
        estimates = {name: extent.estimate for name, extent in self.extents.items()}
        return changed(self.scenario, {"constants": {**estimates, "source": self.source}})

    def to_toml(self) -> str:
        """The measured scenario, with a word on how it was measured."""
        spans = [f"{SYMBOLS[name]} {extent.smallest:g} to {extent.estimate:g}" for name, extent in self.extents.items()]
        how = f"on {self.source} data: {len(self.seen)} repeats of {self.devices} devices and {self.rounds} rounds"
        return (
            f"# Constants measured by a pilot {how}.\n# Their range: {', '.join(spans)}.\n"
            f"{as_toml(self.measured_scenario)}"
        )

    def to_dict(self) -> dict[str, Any]:
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
    scenario: Scenario,
    data: str = "synthetic",
    rounds: int = 10,
    devices: int | None = None,
    repeats: int = 3,
    options: RunOptions | None = None,
    on_progress: OnProgress | None = None,
) -> PilotRecord:
    """Measures L1, L2, S and f_max:

    1. find the rounds once, which checks the scenario before anything long begins;
    2. in each repeat let other devices, with other weights and other samples, learn from each other without error;
    3. keep the largest that each repeat saw; the record then plans over the range that the repeats span.

    `data` is "synthetic", "public", "private" or the path of a public dataset; `devices` are 2 by default, or one of
    each model. `on_progress(rounds_done, in_all)` follows it.
    """
    for name, given in (("--rounds", rounds), ("--repeats", repeats)):
        if given < 1:
            raise InputError(name, given, "must be at least 1")
    counts, devices = class_counts(scenario), _num_devices(scenario, devices)
    source = pilot_data(scenario, data, counts)
    rounds_with(scenario, [{}])
    measured = {round(each) for each in np.geomspace(1, rounds, _MOST_MEASURED)}
    played = []
    for number in range(repeats):
        repeat = _Repeat(scenario, source, counts, devices, number, options or RunOptions())
        for index in range(1, rounds + 1):
            repeat.play(index, measured=index in measured)
            if on_progress is not None:
                on_progress(number * rounds + index, repeats * rounds)
        played.append(repeat)
    return PilotRecord(
        scenario,
        source.source,
        data,
        rounds,
        devices,
        min(repeat.fewest_samples for repeat in played),
        any(repeat.too_few_samples for repeat in played),
        tuple(repeat.seen for repeat in played),
    )


class _Repeat:
    """Devices of the fleet with other weights, samples and batch orders than in any other repeat."""

    def __init__(
        self, scenario: Scenario, data: PilotData, counts: IntArray, devices: int, number: int, options: RunOptions
    ) -> None:
        chosen = _chosen_devices(scenario, devices, number)
        dataset, indices = data.draw(number, chosen)
        # Draws of the pilot are keyed as those of a run, and must not be the same.
        seed = int(stream(scenario.seed, "pilot", number).integers(2**63))
        self._scenario = changed(scenario, {"seed": seed})
        models, num_classes = [scenario.model_names[device] for device in chosen], counts.shape[1]
        engine = replace(options.engine(), stacked=False)  # devices are measured one by one
        self._fleet = LearningFleet.of(dataset, indices, models, seed, engine, num_classes=num_classes)
        self._counts = np.stack([np.bincount(dataset.y_train[held], minlength=num_classes) for held in indices])
        self._watches = [
            Watch(learner, scenario.learning.distill_weight, stream(seed, "pilot-slopes", 0, device))
            for device, learner in enumerate(self._fleet.learners)
        ]
        sizes = self._counts.sum(axis=1)
        self.fewest_samples = int(sizes.min())
        self.too_few_samples = bool((sizes < counts[chosen].sum(axis=1)).any())

    @property
    def seen(self) -> Largest:
        return Largest.of(watch.largest for watch in self._watches)

    def play(self, index: int, measured: bool) -> None:
        """One round; where the user's own model fails in it, that is the user's to put right."""
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
        losses = watched_round(fleet, self._watches, target, learn) if measured else learn()
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
    """Devices of the fleet whose places a repeat takes: drawn at random, every model among them."""
    order = stream(scenario.seed, "pilot-devices", repeat).permutation(scenario.num_devices).tolist()
    models = scenario.model_names
    first_of_model = {models[device]: device for device in reversed(order)}.values()
    others = [device for device in order if device not in set(first_of_model)]
    return sorted([*first_of_model, *others][:count])


def _optima(scenario: Scenario, seen: tuple[Largest, ...]) -> list[Optimum]:
    """Over the range that the repeats span: all constants together, as they pull against each other, and one by one."""
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
    own_way = _extent(seen, "path_lipschitz").estimate
    if own_way > 0:
        choices["L1 of own way"] = {**high, "grad_lipschitz": own_way}
    return [
        Optimum(choice, constants, rounds.exact, rounds.privacy_limited)
        for (choice, constants), rounds in zip(choices.items(), rounds_with(scenario, choices.values()), strict=True)
    ]


def _extent(seen: tuple[Largest, ...], name: str) -> Extent:
    return Extent(tuple(getattr(each, name) for each in seen))


def _rounded_up(value: float) -> float:
    """To three digits: more would claim a precision that a pilot does not have, and fewer than seen is no bound."""
    return float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(value)))
