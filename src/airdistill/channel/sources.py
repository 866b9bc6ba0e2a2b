"""Sources of channel gains: a fading model, 3GPP channels, fixed gains, or a trace from an `.npz` or CSV file."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.link_budget import (
    antenna_gain,
    device_noise_power_w,
    largest_power_w,
    noise_power_w,
    path_gain,
    pilot_power_w,
)
from airdistill.channel.selective import DrawPaths, WideChannel, constant_paths, doppler_hz, flat_paths
from airdistill.channel.threegpp import threegpp_channel, threegpp_paths
from airdistill.data.formats import read_npz
from airdistill.errors import Described, InputError
from airdistill.files import place_of
from airdistill.scenario.bands import has_given_channels
from airdistill.scenario.cells import CELLS, is_threegpp
from airdistill.scenario.model import Scenario
from airdistill.streams import stream

_FIELD = "radio.trace"
_DRAWS_FOR_MEAN = 200


class ChannelSource(Protocol):
    """A source of channel gains. A custom source needs these two methods."""

    def round_channel(self, round_index: int) -> ComplexArray:
        """The gains of round 1, 2, …: `[device]`, or `[device, antenna]` if the server has several antennas."""

    def planning_channels(self, num_draws: int) -> ComplexArray:
        """Gains for the planner, `[draw, device]` or `[draw, device, antenna]`.

        Random gains are independent of those of the run.
        """


def channel_source(scenario: Scenario) -> ChannelSource:
    """The source that a scenario declares, with the devices' distances drawn."""
    if scenario.waveform.kind == "ofdm":
        return wide_channel(scenario)
    return _scalar_source(scenario)


def wide_channel(scenario: Scenario) -> WideChannel:
    """The source for an OFDM waveform: the same fading models over all tones, and 3GPP channels with their delays."""
    radio, wave = scenario.radio, scenario.waveform
    draw: DrawPaths
    if radio.gains is not None:
        gains = given_gains(scenario)[0]
        draw, mean_gain = constant_paths(gains), np.abs(gains) ** 2
    else:
        distance_m = drawn_distances_m(scenario)
        if is_threegpp(radio.fading):
            draw, mean_gain = threegpp_paths(scenario, distance_m)
        else:
            mean_gain = path_gain(distance_m, radio.carrier, radio.path_loss_exponent) * antenna_gain(radio)
            draw = flat_paths(mean_gain, radio.fading, radio.rician_k_db, doppler_hz(scenario))
    own = radio.peak_power.draw(scenario.num_devices, stream(scenario.seed, "radio.peak_power"))
    if wave.pilot == "uplink":
        own_w = np.minimum(own, largest_power_w(scenario, radio.device_antenna_dbi))
        return WideChannel(scenario, draw, mean_gain, noise_power_w(scenario), own_w)
    power_w = np.full(scenario.num_devices, pilot_power_w(scenario))
    return WideChannel(scenario, draw, mean_gain, device_noise_power_w(scenario), power_w)


def _scalar_source(scenario: Scenario) -> ChannelSource:
    radio = scenario.radio
    if has_given_channels(radio):
        return RecordedChannel(given_gains(scenario))
    distance_m = drawn_distances_m(scenario)
    if is_threegpp(radio.fading):
        return threegpp_channel(scenario, distance_m)
    gain = path_gain(distance_m, radio.carrier, radio.path_loss_exponent) * antenna_gain(radio)
    return FadingChannel(scenario.seed, gain, radio.fading, radio.rician_k_db, radio.antennas)


def given_gains(scenario: Scenario) -> ComplexArray:
    """The gains of a trace, or those in the scenario as one round, `[round, device]`."""
    radio = scenario.radio
    if radio.trace is not None:
        return load_trace(radio.trace, scenario.num_devices)
    return np.array([[complex(re, im) for re, im in radio.gains or ()]])


def drawn_distances_m(scenario: Scenario) -> FloatArray:
    """`radio.distance` of every device, `[device]`."""
    return scenario.radio.distance.draw(scenario.num_devices, stream(scenario.seed, "radio.distance"))


def large_scale_gains(scenario: Scenario) -> FloatArray:
    """The mean power gain of every device over small-scale fading, antennas included, `[device]`.

    Cells do not tell their path loss: for these it is the mean over the planner's draws.
    """
    radio = scenario.radio
    if has_given_channels(radio):
        drawn = given_gains(scenario)
    elif radio.fading in CELLS:
        drawn = threegpp_channel(scenario, drawn_distances_m(scenario)).planning_channels(_DRAWS_FOR_MEAN)
    else:
        loss = path_gain(drawn_distances_m(scenario), radio.carrier, radio.path_loss_exponent)
        return loss * antenna_gain(radio)
    return np.asarray((np.abs(drawn) ** 2).mean(axis=0))


def draw_fading(kind: str, num_devices: int, rng: np.random.Generator, rician_k_db: float = 0.0) -> ComplexArray:
    """Draw one coefficient per device, `[device]`, with E|·|² = 1.

    `real_gaussian` follows the paper's wording ("i.i.d. standard Gaussian") literally.
    """
    if kind == "none":
        return np.ones(num_devices, dtype=np.complex128)
    if kind == "real_gaussian":
        return rng.standard_normal(num_devices).astype(np.complex128)
    scattered: ComplexArray = np.sqrt(0.5) * (rng.standard_normal(num_devices) + 1j * rng.standard_normal(num_devices))
    if kind == "rayleigh":
        return scattered
    if kind == "rician":
        k_factor = 10.0 ** (rician_k_db / 10.0)
        direct, rest = np.sqrt(k_factor / (k_factor + 1)), np.sqrt(1 / (k_factor + 1))
        return np.asarray(direct + rest * scattered)
    raise ValueError(f"fading = {kind!r}: must be rayleigh, rician, real_gaussian or none")


@dataclass(frozen=True)
class FadingChannel:
    """h = √path_gain · fading, with separate random streams for the run and the planner."""

    seed: int
    path_gain: FloatArray
    fading: str
    rician_k_db: float
    num_antennas: int = 1

    def round_channel(self, round_index: int) -> ComplexArray:
        return self._draw("channel", round_index)

    def planning_channels(self, num_draws: int) -> ComplexArray:
        return np.stack([self._draw("planning-channel", draw) for draw in range(num_draws)])

    def _draw(self, purpose: str, index: int) -> ComplexArray:
        """Each antenna has its own stream; the first one's does not depend on the number of antennas."""
        if self.num_antennas == 1:
            return self._draw_antenna(purpose, index, 0)
        return np.stack([self._draw_antenna(purpose, index, number) for number in range(self.num_antennas)], axis=1)

    def _draw_antenna(self, purpose: str, index: int, number: int) -> ComplexArray:
        rng = stream(self.seed, purpose, index, number)
        return np.sqrt(self.path_gain) * draw_fading(self.fading, len(self.path_gain), rng, self.rician_k_db)


@dataclass(frozen=True)
class RecordedChannel:
    """Given gains `[round, device]`, repeated cyclically after the last row."""

    gains: ComplexArray

    def round_channel(self, round_index: int) -> ComplexArray:
        row: ComplexArray = self.gains[(round_index - 1) % len(self.gains)]
        return row

    def planning_channels(self, num_draws: int) -> ComplexArray:
        """All recorded rounds, or an evenly spaced selection of a long record."""
        if len(self.gains) <= num_draws:
            return self.gains
        return self.gains[np.linspace(0, len(self.gains) - 1, num_draws).round().astype(np.int64)]


def load_trace(source: str, num_devices: int) -> ComplexArray:
    """Read the gains `[round, device]` of a trace.

    An .npz file holds them as `channel`, or as its only array. A CSV file has one round per line and entries like
    `1.2e-6-3e-7j`.
    """
    path = place_of(source)
    if not path.is_file():
        raise InputError(_FIELD, source, "no such file")
    if path.suffix not in (".npz", ".csv"):
        raise InputError(_FIELD, source, "must be an .npz or a .csv file")
    gains = _read_npz(path) if path.suffix == ".npz" else _read_csv(path)
    if gains.ndim != 2 or len(gains) == 0 or gains.shape[1] != num_devices:
        shape = Described(f"{source} of shape {gains.shape}")
        raise InputError(_FIELD, shape, f"must be rounds × {num_devices} devices")
    if gains.dtype.kind not in "iufc" or not np.isfinite(gains).all():
        raise InputError(_FIELD, source, "has gains that are not finite")
    return gains.astype(np.complex128)


def _read_npz(path: Path) -> NDArray[Any]:
    def choose(names: list[str]) -> list[str]:
        if "channel" in names or len(names) == 1:
            return ["channel" if "channel" in names else names[0]]
        raise InputError(_FIELD, str(path), f"has no array named channel, but {', '.join(names) or 'none at all'}")

    (gains,) = read_npz(path, choose, "channel=gains").values()
    return gains


def _read_csv(path: Path) -> NDArray[Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an empty file is rejected by its shape
            return np.loadtxt(path, dtype=np.complex128, delimiter=",", ndmin=2)
    except (ValueError, OSError, UnicodeDecodeError) as error:
        raise InputError(_FIELD, str(path), f"cannot be read: {error}") from None
