"""Sliders and choices for the fields of a scenario. Fields that the visitor does not touch keep their exact values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, get_args

import streamlit as st

from airdistill.channel.link_budget import noise_power_w
from airdistill.scenario.fields import Kind
from airdistill.scenario.model import Scenario
from airdistill.scenario.per_device import PerDevice
from airdistill.scenario.reference import scenario_fields
from airdistill.units import with_prefix

_FIELDS = {field.name: field for field in scenario_fields()}
Show = Callable[[float], str]


@dataclass(frozen=True)
class SliderValues:
    """The values of a slider in the field's unit, and how to show one."""

    values: tuple[float, ...]
    show: Show

    def with_own(self, own: Iterable[float]) -> list[float]:
        """All values in order, with the scenario's own values added as they are."""
        return sorted({*self.values, *own})


def _per_decade(low: int, high: int, steps: tuple[float, ...]) -> tuple[float, ...]:
    """From 10^low to 10^high. Values are parsed from decimals, and so their shortest form is the one people write."""
    grid = [float(f"{step}e{power}") for power in range(low, high) for step in steps]
    return (*grid, float(f"1e{high}"))


def _dbm_in_watts(low: int, high: int) -> tuple[float, ...]:
    return tuple(float(f"{10 ** (level / 10 - 3):.12g}") for level in range(low, high + 1))


def _dbm(watts: float) -> str:
    if watts == 0:
        return "0 W"
    level = f"{round(10 * math.log10(watts) + 30, 2):g}".replace("-", "−")
    return f"{level} dBm ({with_prefix(watts, 'W')})"


def _unit(unit: str) -> Show:
    return lambda value: with_prefix(value, unit)


def _count(value: float) -> str:
    return f"{int(value):,}".replace(",", " ")


def _number(value: float) -> str:
    return "∞, no privacy" if math.isinf(value) else f"{value:g}"


def _percent(share: float) -> str:
    return f"{share:.0%}"


_FINE, _COARSE = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 2, 5)

DEVICES = SliderValues(tuple(value for value in _per_decade(0, 3, _FINE) if value >= 2 and value == int(value)), _count)
SAMPLES = SliderValues(tuple(value for value in _per_decade(1, 4, _FINE) if value == int(value)), _count)
POWER = SliderValues(_dbm_in_watts(-30, 30), _dbm)
NOISE_POWER = SliderValues(_dbm_in_watts(-150, -40), _dbm)
DISTANCE = SliderValues(_per_decade(1, 4, _FINE), _unit("m"))
EXPONENT = SliderValues(tuple(2 + step / 10 for step in range(41)), _number)
CARRIER = SliderValues((433e6, 700e6, 868e6, 915e6, 1.8e9, 2.4e9, 3.5e9, 5.8e9, 28e9), _unit("Hz"))
SLOT = SliderValues(_per_decade(-7, -3, (1, 1.5, 2, 3, 3.6, 5, 7)), _unit("s"))
OUTAGE = SliderValues((0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3), _percent)
PARTICIPATION = SliderValues(tuple(step / 20 for step in range(1, 21)), _percent)
EPSILON = SliderValues((*_per_decade(-3, 2, _FINE), math.inf), _number)
DELTA = SliderValues(_per_decade(-12, -2, (1,)), lambda value: f"{value:.0e}".replace("e-0", "e-").replace("e-", "e−"))
LEARNING_RATE = SliderValues(_per_decade(-4, 1, _COARSE), _number)
WEIGHT = SliderValues((0.0, *_per_decade(-2, 2, _COARSE)), _number)
ROUNDS = SliderValues(tuple(value for value in _per_decade(0, 5, _FINE) if value == int(value)), _count)
CONSTANT = SliderValues(_per_decade(-2, 3, _FINE), _number)
ALPHA = SliderValues(_per_decade(-2, 2, _COARSE), _number)
CLASSES = SliderValues(tuple(float(count) for count in range(1, 11)), _count)


@dataclass
class ScenarioControls:
    """The widgets of one scenario, and the changes made with them so far, by field.

    `identity` is the scenario's and is part of every widget's key: another scenario starts from its own values.
    """

    scenario: Scenario
    identity: str
    changes: dict[str, Any] = field(default_factory=dict)

    def slider(self, name: str, label: str, given: SliderValues) -> None:
        """A slider for a numeric field; nothing if the scenario does not have the field."""
        own = self._own(name)
        if isinstance(own, PerDevice):
            self._per_device_slider(name, label, given, own)
        elif own is not None:
            chosen = self._select(name, label, given, given.with_own([own]), own)
            if chosen != own:
                self.changes[name] = int(chosen) if isinstance(own, int) else chosen

    def required_slider(self, name: str, label: str, given: SliderValues, default: float, whole: bool = False) -> None:
        """A slider for a field that another choice requires and that the scenario may not have."""
        own = self._own(name)
        start = default if own is None else own
        chosen = self._select(name, label, given, given.with_own([start]), start)
        if chosen != own:
            self.changes[name] = int(chosen) if whole else chosen

    def choice(self, name: str, label: str, options: tuple[Any, ...] | None = None) -> Any:
        """A choice among `options`, or among all values of the field. Return the chosen value."""
        own = self._own(name)
        values = list(options or _names_of(name))
        if own not in values:
            values.append(own)
        chosen = st.selectbox(
            label, values, values.index(own), key=self._key(name), help=_help(name), persist_state="session"
        )
        if chosen != own:
            self.changes[name] = chosen
        return chosen

    def switch(self, name: str, label: str) -> None:
        """A toggle for a field that is true or false."""
        own = self._own(name)
        chosen = st.toggle(label, own, key=self._key(name), help=_help(name), persist_state="session")
        if chosen != own:
            self.changes[name] = chosen

    def _per_device_slider(self, name: str, label: str, given: SliderValues, own: PerDevice) -> None:
        if own.kind == "list":
            st.caption(f"{label}: the scenario lists a value for each device, which is kept.")
            return
        values = given.with_own(own.numbers)
        if own.kind == "same":
            chosen = self._select(name, label, given, values, own.numbers[0])
            if chosen != own.numbers[0]:
                self.changes[name] = "inf" if math.isinf(chosen) else chosen  # as TOML writes it
            return
        values = [value for value in values if math.isfinite(value)]  # the ends of a range are finite
        positions = self._select_slider(name, label, given, values, tuple(values.index(end) for end in own.numbers))
        ends = tuple(values[position] for position in positions)
        if ends != own.numbers:
            self.changes[name] = list(ends)

    def _select(self, name: str, label: str, given: SliderValues, values: list[float], start: float) -> float:
        position: int = self._select_slider(name, label, given, values, values.index(start))
        return values[position]

    def _select_slider(self, name: str, label: str, given: SliderValues, values: list[float], start: Any) -> Any:
        # Positions rather than values: Streamlit treats close numbers as equal, and all powers in watts are close.
        return st.select_slider(
            label,
            range(len(values)),
            start,
            format_func=lambda position: given.show(values[position]),
            key=self._key(name),
            help=_help(name),
            persist_state="session",
        )

    def _own(self, name: str) -> Any:
        """The scenario's value of a field such as `radio.peak_power`."""
        section, own = name.split(".")
        return getattr(getattr(self.scenario, section), own)

    def _key(self, name: str) -> str:
        return f"{self.identity}/{name}"


def _names_of(field_name: str) -> tuple[Any, ...]:
    """The names that the field accepts."""
    section, own = field_name.split(".")
    section_type: Any = Scenario.model_fields[section].annotation
    info = section_type.model_fields[own]
    choices = [rule.choices for rule in info.metadata if isinstance(rule, Kind) and rule.choices]
    return choices[0] if choices else get_args(info.annotation)


def _help(name: str) -> str:
    described = _FIELDS[name]
    return f"`{name}`: {described.description} ({described.kind})"


def fleet_controls(controls: ScenarioControls) -> None:
    """Devices, participation and the partition of the data."""
    scenario = controls.scenario
    if scenario.data.class_counts is not None:
        st.caption("The scenario gives the number of samples of each class on each device, which is kept.")
        return
    controls.slider("fleet.devices", "Devices", DEVICES)
    controls.slider("fleet.participation", "Participation probability", PARTICIPATION)
    controls.switch("fleet.participation_hidden", "Participation is secret from the server")
    if scenario.fleet.devices is None:
        st.caption("The scenario has groups of devices, which are kept.")
    if scenario.data.samples_per_device is None:
        st.caption("The training set is divided evenly.")
    controls.slider("data.samples_per_device", "Samples per device", SAMPLES)
    partition = controls.choice("data.partition", "Partition of classes")
    if partition == "dirichlet":
        controls.required_slider("data.alpha", "Concentration α", ALPHA, 0.5)
    if partition == "shards":
        controls.required_slider("data.classes_per_device", "Classes per device", CLASSES, 2, whole=True)


def link_controls(controls: ScenarioControls) -> None:
    """Power, noise and channel."""
    radio = controls.scenario.radio
    controls.slider("radio.peak_power", "Transmit power limit", POWER)
    if radio.noise_power is None:
        noise = _dbm(noise_power_w(controls.scenario))
        st.caption(f"Receiver noise power: {noise}, from the scenario's other fields, which are kept.")
    controls.slider("radio.noise_power", "Receiver noise power", NOISE_POWER)
    if radio.gains is None and radio.trace is None:
        controls.slider("radio.distance", "Distance to the server", DISTANCE)
        controls.slider("radio.path_loss_exponent", "Path-loss exponent", EXPONENT)
        controls.slider("radio.carrier", "Carrier frequency", CARRIER)
        controls.choice("radio.fading", "Fading")
    else:
        st.caption("The scenario gives the channels, which are kept.")
    controls.slider("radio.slot", "Slot duration", SLOT)
    controls.slider("radio.outage", "Outage: worst rounds that the plan ignores", OUTAGE)


def privacy_controls(controls: ScenarioControls) -> None:
    """The privacy target and how it is accounted for."""
    controls.slider("privacy.epsilon", "ε of a device over the run", EPSILON)
    controls.slider("privacy.delta", "δ", DELTA)
    controls.choice("privacy.sensitivity", "Sensitivity model")
    controls.choice("privacy.trust", "Trust model: noise that counts")
    controls.choice("privacy.accountant", "Accountant")
    controls.switch("privacy.relabel", "A neighbouring record may have another label")


def learning_controls(controls: ScenarioControls) -> None:
    """Rounds, step size, receiver and the constants of the convergence bound."""
    rule = controls.choice("learning.rounds", "Rounds", ("optimal", "paper", "a number"))
    if rule == "a number":
        key = f"{controls.identity}/number"
        number = st.number_input("Number of rounds", 1, 10**6, 100, key=key, persist_state="session")
        controls.changes["learning.rounds"] = int(number)
    controls.slider("learning.max_rounds", "Maximum number of rounds", ROUNDS)
    controls.slider("learning.initial_lr", "Initial learning rate η0", LEARNING_RATE)
    controls.slider("learning.distill_weight", "Distillation weight γ", WEIGHT)
    controls.choice("learning.receiver", "Receiver", ("linear", "projected", "tracking"))
    controls.slider("constants.grad_lipschitz", "L1: Lipschitz constant of the gradient", CONSTANT)
    controls.slider("constants.model_lipschitz", "L2: Lipschitz constant of the model", CONSTANT)
    controls.slider("constants.grad_norm_bound", "S: bound of the gradient norm", CONSTANT)
    controls.slider("constants.loss_bound", "f_max: bound of the loss", CONSTANT)


TABS: dict[str, Callable[[ScenarioControls], None]] = {
    "Fleet": fleet_controls,
    "Link": link_controls,
    "Privacy": privacy_controls,
    "Learning": learning_controls,
}
