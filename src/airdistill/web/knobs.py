"""Sliders and choices for a scenario's fields. What is not touched stays as it is, to the last digit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import streamlit as st

from airdistill.scenario.model import Scenario
from airdistill.scenario.per_device import PerDevice
from airdistill.scenario.reference import scenario_fields
from airdistill.web import positions
from airdistill.web.positions import Positions

_ABOUT = {field.name: field for field in scenario_fields()}


def value_of(scenario: Scenario, name: str) -> Any:
    """Of a field such as `radio.peak_power`."""
    section, own = name.split(".")
    return getattr(getattr(scenario, section), own)


def _known_values(name: str) -> tuple[Any, ...]:
    section, own = name.split(".")
    of_section: Any = Scenario.model_fields[section].annotation
    return get_args(of_section.model_fields[own].annotation)


@dataclass
class Knobs:
    """The knobs of one scenario, and what was changed with them so far, by field.

    `identity` is the scenario's: another one starts from its own values.
    """

    scenario: Scenario
    identity: str
    changes: dict[str, Any] = field(default_factory=dict)

    def slider(self, name: str, label: str, given: Positions) -> None:
        own = value_of(self.scenario, name)
        if isinstance(own, PerDevice):
            self._for_devices(name, label, given, own)
        elif own is not None:
            self._single(name, label, given, own)

    def _for_devices(self, name: str, label: str, given: Positions, own: PerDevice) -> None:
        if own.kind == "list":
            st.caption(f"{label}: a list, one for each device. It stays as it is.")
            return
        values = given.with_own(own.numbers)
        if own.kind == "same":
            chosen = self._turned(name, label, given, values, own.numbers[0])
            if chosen != own.numbers[0]:
                self.changes[name] = _written(chosen)
            return
        values = [value for value in values if math.isfinite(value)]  # no range ends at infinity
        ends = self._turned_range(name, label, given, values, own.numbers)
        if ends != own.numbers:
            self.changes[name] = list(ends)

    def _single(self, name: str, label: str, given: Positions, own: float) -> None:
        chosen = self._turned(name, label, given, given.with_own([own]), own)
        if chosen != own:
            self.changes[name] = int(chosen) if isinstance(own, int) else chosen

    def _turned(self, name: str, label: str, given: Positions, values: list[float], start: float) -> float:
        place: int = self._select_slider(name, label, given, values, values.index(start))
        return values[place]

    def _turned_range(
        self, name: str, label: str, given: Positions, values: list[float], start: tuple[float, ...]
    ) -> tuple[float, ...]:
        places = self._select_slider(name, label, given, values, tuple(values.index(end) for end in start))
        return tuple(values[place] for place in places)

    def _select_slider(self, name: str, label: str, given: Positions, values: list[float], start: Any) -> Any:
        # Places, not values: Streamlit takes numbers for equal that are close, as all powers in watts are.
        return st.select_slider(
            label,
            range(len(values)),
            start,
            format_func=lambda place: given.show(values[place]),
            key=self._key(name),
            help=self._help(name),
            persist_state="session",
        )

    def choice(self, name: str, label: str, options: tuple[Any, ...] | None = None) -> Any:
        """One of the values that the field knows; what is chosen."""
        own = value_of(self.scenario, name)
        known = list(options or _known_values(name))
        if own not in known:
            known.append(own)
        chosen = st.selectbox(
            label, known, known.index(own), key=self._key(name), help=self._help(name), persist_state="session"
        )
        if chosen != own:
            self.changes[name] = chosen
        return chosen

    def switch(self, name: str, label: str) -> None:
        own = value_of(self.scenario, name)
        chosen = st.toggle(label, own, key=self._key(name), help=self._help(name), persist_state="session")
        if chosen != own:
            self.changes[name] = chosen

    def needed(self, name: str, label: str, given: Positions, default: float, whole: bool = False) -> None:
        """A field that another choice makes necessary, and that the scenario may not have."""
        own = value_of(self.scenario, name)
        start = default if own is None else own
        chosen = self._turned(name, label, given, given.with_own([start]), start)
        if chosen != own:
            self.changes[name] = int(chosen) if whole else chosen

    def _key(self, name: str) -> str:
        return f"{self.identity}/{name}"

    def _help(self, name: str) -> str:
        about = _ABOUT[name]
        return f"`{name}`: {about.description} ({about.kind})"


def _written(value: float) -> float | str:
    """As a scenario file can say it."""
    return "inf" if math.isinf(value) else value


def fleet_knobs(knobs: Knobs) -> None:
    scenario = knobs.scenario
    if scenario.data.class_counts is not None:
        st.caption("The scenario declares its devices' samples by class; they stay as they are.")
        return
    knobs.slider("fleet.devices", "Devices", positions.DEVICES)
    knobs.slider("fleet.participation", "Chance of a device to take part in a round", positions.PARTICIPATION)
    knobs.switch("fleet.participation_hidden", "The server does not see who takes part")
    if scenario.fleet.devices is None:
        st.caption("Devices come in groups; they stay as they are.")
    if scenario.data.samples_per_device is None:
        st.caption("The training set is shared out evenly.")
    knobs.slider("data.samples_per_device", "Samples a device", positions.SAMPLES)
    partition = knobs.choice("data.partition", "How classes fall to devices")
    if partition == "dirichlet":
        knobs.needed("data.alpha", "Concentration α", positions.ALPHA, 0.5)
    if partition == "shards":
        knobs.needed("data.classes_per_device", "Classes a device", positions.CLASSES, 2, whole=True)


def link_knobs(knobs: Knobs) -> None:
    radio = knobs.scenario.radio
    knobs.slider("radio.peak_power", "Transmit power limit", positions.POWER)
    knobs.slider("radio.noise_power", "Receiver's noise power", positions.NOISE_POWER)
    if radio.gains is None and radio.trace is None:
        knobs.slider("radio.distance", "Distance to the server", positions.DISTANCE)
        knobs.slider("radio.path_loss_exponent", "Path-loss exponent", positions.EXPONENT)
        knobs.slider("radio.carrier", "Carrier", positions.CARRIER)
        knobs.choice("radio.fading", "Fading")
    else:
        st.caption("Channels are given; they stay as they are.")
    knobs.slider("radio.slot", "Time of one number", positions.SLOT)
    knobs.slider("radio.outage", "Worst rounds left out of the plan", positions.OUTAGE)


def privacy_knobs(knobs: Knobs) -> None:
    knobs.slider("privacy.epsilon", "ε of a device, over the whole run", positions.EPSILON)
    knobs.slider("privacy.delta", "δ", positions.DELTA)
    knobs.choice("privacy.sensitivity", "What one change can move")
    knobs.choice("privacy.trust", "Whose noise counts")
    knobs.choice("privacy.accountant", "Accountant")
    knobs.switch("privacy.relabel", "A changed record may change its label")


def learning_knobs(knobs: Knobs) -> None:
    rule = knobs.choice("learning.rounds", "Rounds", ("optimal", "paper", "a number"))
    if rule == "a number":
        key = f"{knobs.identity}/number"
        number = st.number_input("Number of rounds", 1, 10**6, 100, key=key, persist_state="session")
        knobs.changes["learning.rounds"] = int(number)
    knobs.slider("learning.max_rounds", "The most rounds to plan", positions.ROUNDS)
    knobs.slider("learning.initial_lr", "Step size η0", positions.LEARNING_RATE)
    knobs.slider("learning.distill_weight", "Weight γ of distillation", positions.WEIGHT)
    knobs.choice("learning.receiver", "Receiver", ("linear", "projected", "tracking"))
    knobs.slider("constants.grad_lipschitz", "L1, gradient's Lipschitz constant", positions.CONSTANT)
    knobs.slider("constants.model_lipschitz", "L2, model's Lipschitz constant", positions.CONSTANT)
    knobs.slider("constants.grad_norm_bound", "S, gradient's bound", positions.CONSTANT)
    knobs.slider("constants.loss_bound", "f_max, loss's bound", positions.CONSTANT)


SHEETS: dict[str, Callable[[Knobs], None]] = {
    "Fleet": fleet_knobs,
    "Link": link_knobs,
    "Privacy": privacy_knobs,
    "Learning": learning_knobs,
}
