"""The scenario: every field with its default, unit and rule; frozen and validated.

The defaults are conservative: whole devices are protected (`device`), the accountant is exact, and only the devices'
noise counts (`fleet_noise`).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import (
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

from airdistill.errors import InputError, SeveralInputsError
from airdistill.scenario.bands import check_link_budget
from airdistill.scenario.cells import check_threegpp
from airdistill.scenario.fields import (
    LARGEST_COUNT,
    DeltaPerDevice,
    EpsilonPerDevice,
    Number,
    Positive,
    SamplesPerDevice,
    Sampling,
    Trust,
)
from airdistill.scenario.radio import Radio
from airdistill.scenario.rules import (
    check_antennas,
    check_correlation,
    check_device_lists,
    check_fleet,
    check_learning,
    check_medium,
    check_noise,
    check_paper_transceiver,
    check_participation,
    check_partition,
    check_waveform,
)
from airdistill.scenario.sections import Constants, Federated, Learning, Public, Section, Waveform

MOST_DEVICES = 10**7
NAME_PATTERN = r"^\w[\w.-]{0,99}$"


class Group(Section):
    """Devices with the same model."""

    count: StrictInt = Field(ge=1, le=MOST_DEVICES, description="how many devices")
    model: StrictStr = Field(description="the model that they train")


class Fleet(Section):
    """The devices, and which of them participate in a round."""

    devices: StrictInt | None = Field(None, ge=1, le=MOST_DEVICES, description="how many devices; or give groups")
    groups: tuple[Group, ...] = Field((), description="devices by model, each with a count and a model")
    min_devices: StrictInt = Field(1, ge=1, description="fewest devices in a round")
    expected_dropouts: StrictInt = Field(
        0,
        ge=0,
        description="medium secure_sum: with up to so many devices missing from a round's sum, the noise of the others "
        "still protects all devices; if more are missing, the devices refuse to unmask the sum",
    )
    sampling: Sampling = Field(
        "none",
        description="devices that send in a round: all; gradients only, some drawn in proportion to their data "
        "(with_replacement); or a device joins every fleet.cycle-th round (cyclic)",
    )
    sampled_devices: StrictInt | None = Field(
        None, ge=1, le=MOST_DEVICES, description="sampling with replacement: draws in a round"
    )
    cycle: StrictInt | None = Field(
        None,
        ge=2,
        le=LARGEST_COUNT,
        description="cyclic: device i joins round i mod cycle + 1, and every cycle-th round after it",
    )
    participation: Number = Field(
        1.0,
        gt=0,
        le=1,
        description="probability with which each device joins a round (Poisson sampling). The server knows which "
        "devices joined: a round counts in full for them, and not for the others",
    )
    participation_hidden: StrictBool = Field(
        False,
        description="the server does not know which devices joined: all devices send noise in every round; privacy "
        "amplification by subsampling, for whole devices",
    )

    _written_if_used: ClassVar[tuple[str, ...]] = ("cycle",)


class Data(Section):
    """The devices' training data."""

    dataset: StrictStr = Field(
        "mnist",
        description='"mnist" (embedded), a folder of IDX, .npy, CSV or CIFAR files, an .npz file, an archive of CIFAR '
        "(.tar.gz), or package.module:function, which returns such arrays",
    )
    normalization: Literal["fixed", "public"] = Field(
        "fixed",
        description="fixed: bytes by the mean and deviation of MNIST's pixels, other numbers as they are; public: each "
        "channel of images, or feature of vectors, by the mean and deviation of the public samples",
    )
    samples_per_device: SamplesPerDevice | None = Field(
        None, description="one count, a range, or a list; by default the training set is split evenly"
    )
    partition: Literal["iid", "dirichlet", "shards"] = Field("iid", description="how classes are split over devices")
    resample: StrictBool = Field(
        False,
        description="every device draws its samples from the whole training set, and devices may hold the same ones: "
        "for simulated fleets larger than the data. The guarantee is for whole devices",
    )
    alpha: Positive | None = Field(None, description="dirichlet: concentration; small values are skewed")
    classes_per_device: StrictInt | None = Field(None, ge=1, description="shards: classes each device holds")
    class_counts: tuple[tuple[StrictInt, ...], ...] | None = Field(
        None, description="samples by device and class, to plan without data; replaces the fields above"
    )

    _written_if_used: ClassVar[tuple[str, ...]] = ("normalization", "resample")

    @field_validator("class_counts")
    @classmethod
    def _rectangular(cls, counts: tuple[tuple[int, ...], ...] | None) -> tuple[tuple[int, ...], ...] | None:
        if counts is None:
            return None
        if not counts or not counts[0] or len({len(row) for row in counts}) != 1:
            raise ValueError("must be a table of one row per device, each with one count per class")
        table = np.asarray(counts)
        if table.min() < 0 or table.max() > LARGEST_COUNT:
            raise ValueError(f"counts must lie between 0 and {LARGEST_COUNT}, none of them negative")
        without_data = np.flatnonzero(table.max(axis=1) == 0)
        if len(without_data):
            raise ValueError(f"device {without_data[0]} has no data; leave it out of the fleet")
        return counts


class Air(Section):
    """What sums the signals in a federation of real devices; a simulation computes the radio channel itself."""

    medium: Literal["emulated", "secure_sum", "radio", "waveform"] = Field(
        "emulated",
        description="emulated: the server computes the channel and sees individual signals, for test-beds; secure_sum: "
        "secure aggregation, the server sees only the sum; radio: hardware behind an interface; waveform, in "
        "simulations: every sample of an OFDM waveform, with impairments",
    )


class Privacy(Section):
    """The privacy guarantee: targets, neighbouring relation, accountant, and whose noise counts."""

    epsilon: EpsilonPerDevice = Field(description="privacy target of a device for the whole run; inf: none")
    delta: DeltaPerDevice = Field(description="failure probability of that target")
    sensitivity: Literal["paper", "class_mean", "trajectory", "device"] = Field(
        "device",
        description="neighbours and their bound; only `device` is a valid bound for any training",
    )
    relabel: StrictBool = Field(False, description="the replaced record may have another label")
    accountant: Literal["paper", "exact"] = Field("exact", description="how noise follows from (ε, δ)")
    trust: Trust = Field("fleet_noise", description="whose noise counts as protection")
    noise: Literal["seeded", "secure"] = Field(
        "seeded",
        description="source of the devices' noise; seeded: reproducible, for simulation only; secure: discrete "
        "Gaussian from the operating system's generator",
    )
    carry_over: StrictBool = Field(
        False, description="budget that a round does not spend is available to the following rounds"
    )
    class_budget: Literal["equal", "optimal"] = Field(
        "equal", description="joint models (trajectory, device): how a device's budget is divided among its classes"
    )
    counts: Literal["public", "private"] = Field(
        "public",
        description="feature means: class counts are public, and a neighbour has the same ones; private: the server "
        "receives noisy weights in their place, charged with the features",
    )

    correlation: Literal["none", "banded", "blt"] = Field(
        "none",
        description="federated learning: each device's noise over rounds, independent, or correlated by a banded or a "
        "buffered linear Toeplitz matrix (DP-FTRL), so that later rounds cancel part of earlier noise",
    )

    _written_if_used: ClassVar[tuple[str, ...]] = ("counts", "correlation")


class Scenario(Section):
    """A scenario."""

    name: StrictStr = Field("scenario", pattern=NAME_PATTERN, description="name of the run and its folder")
    seed: StrictInt = Field(0, ge=0, description="seed of all random streams")
    fleet: Fleet = Field(description="the devices, and which of them participate in a round")
    data: Data = Field(default_factory=Data, description="the devices' training data")
    public: Public | None = Field(None, description="unlabelled samples that all devices have")
    radio: Radio = Field(default_factory=Radio, description="the uplink")
    waveform: Waveform = Field(Waveform(), description="how numbers travel: one tone, or OFDM")
    air: Air = Field(default_factory=Air, description="what sums the signals")
    privacy: Privacy = Field(description="the privacy guarantee")
    learning: Learning = Field(default_factory=Learning, description="training")
    federated: Federated = Field(Federated(), description="federated averaging of clipped updates")
    constants: Constants = Field(default_factory=Constants, description="constants of the convergence bound")
    overrides: dict[str, dict[str, Any]] = Field(default_factory=dict, description="changes that hold for one scheme")

    _written_if_used: ClassVar[tuple[str, ...]] = ("federated", "waveform")

    def _finished(self, written: dict[str, Any], without_defaults: bool) -> dict[str, Any]:  # noqa: ARG002
        """The noise power of an OFDM tone is written if and only if it is given: its default depends on the tone."""
        if self.waveform.kind == "ofdm":
            radio = written.setdefault("radio", {})
            radio.pop("noise_power", None)
            if self.radio.noise_power is not None:
                radio["noise_power"] = self.radio.noise_power
        return written

    @property
    def num_devices(self) -> int:
        """Number of devices in the fleet."""
        if self.fleet.devices is not None:
            return self.fleet.devices
        return sum(group.count for group in self.fleet.groups)

    @property
    def model_names(self) -> list[str]:
        """The model of every device, in order."""
        if not self.fleet.groups:
            return [self.learning.model] * self.num_devices
        return [group.model for group in self.fleet.groups for _ in range(group.count)]

    def learning_numbers(self) -> dict[str, Any]:
        """Return the fields of `learning` and `constants` by name, for the convergence bounds."""
        return {**vars(self.learning), **vars(self.constants)}

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        check_fleet(self)  # all others count its devices
        broken = []
        for check in _RULES:
            try:
                check(self)
            except InputError as error:
                broken.append(error)
        if broken:
            raise SeveralInputsError.joined(broken)
        return self


def _check_cells(scenario: Scenario) -> None:
    wide = scenario.waveform.kind == "ofdm"
    prefix = scenario.waveform.cyclic_prefix if wide else None
    check_threegpp(scenario.radio, scenario.num_devices, prefix)


_RULES = (
    check_participation,
    check_partition,
    check_learning,
    check_device_lists,
    check_paper_transceiver,
    check_noise,
    check_medium,
    _check_cells,
    check_link_budget,
    check_antennas,
    check_correlation,
    check_waveform,
)
