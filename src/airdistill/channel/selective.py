"""Channels of an OFDM waveform: taps over a round, what pilots tell of them, and the scalar channel they amount to.

Path delays are rounded to the sampling period. Within the cyclic prefix the useful part of every symbol is then a
circular convolution, and an element is received as H·X exactly, for as long as taps are constant in a symbol.

A device multiplies each element by e = conj(Ĥ)/max(|Ĥ|², floor), so that all arrive alike but those in deep fades. What
this costs in power makes the waveform a scalar channel of gain g: with numbers spread over all tones, of which N are on
the air at once with A numbers each, g² = 1/(A N mean|e|²); without spreading the weakest tone limits the power.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from scipy.special import j0, jn_zeros

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.link_budget import SPEED_OF_LIGHT_M_S
from airdistill.channel.waveform import Grid, air_time
from airdistill.scenario.model import Scenario
from airdistill.scenario.sections import Waveform
from airdistill.streams import stream

logger = logging.getLogger(__name__)
# Draws amplitudes of paths at times 0, s, 2s, …, `[device, time, path]`, and their delays (s), `[device, path]`, from
# a generator, a number of times and their distance s. More times do not change the first ones.
DrawPaths = Callable[[np.random.Generator, int, float], tuple[ComplexArray, FloatArray]]
_TIMES = 33  # of a round's data, over which a mean is taken
_LEAST_SINGULAR = 1e-3  # of the delays that a pilot on the used tones can tell apart


@dataclass(frozen=True)
class WideLink:
    """The links of a round when it begins: taps at the pilot `[device, tap]`, and its estimate Ĥ `[device, tone]`.

    `pilot_var` `[device, tone]` is the variance of Ĥ − H, and `mean_gain` `[device]` is E|H|² over fading: what changes
    of a channel has a share of this, also when it has faded. A device may send less than it could, by its `scale`
    `[device]`.
    """

    grid: Grid
    wave: Waveform
    taps: ComplexArray
    known: ComplexArray
    pilot_var: FloatArray
    mean_gain: FloatArray
    scale: FloatArray | None = None

    @cached_property
    def inverse(self) -> ComplexArray:
        """e of a device that sends as much as it can, `[device, tone]`."""
        return equaliser(self.known, self.wave.fade_floor_db)

    @cached_property
    def equaliser(self) -> ComplexArray:
        """e, by which a device multiplies its elements, `[device, tone]`."""
        return self.inverse if self.scale is None else self.inverse * self.scale[:, None]

    @cached_property
    def attenuation(self) -> FloatArray:
        """Ĥe, `[device, tone]`: 1, and less where the floor acts or a device sends less."""
        return np.asarray((self.known * self.equaliser).real)

    @cached_property
    def gain(self) -> FloatArray:
        """g: the amplitude of a received number over that of the transmitted one, `[device]`."""
        squared = np.abs(self.inverse) ** 2
        cost = squared.mean(axis=1) if self.wave.spreading == "dft" else squared.max(axis=1)
        cost = cost * self.grid.numbers_per_symbol
        return np.where(cost > 0, 1 / np.sqrt(np.where(cost > 0, cost, 1.0)), 0.0)

    def relative_error(self, aging: float) -> FloatArray:
        """E|(H − Ĥ)e|² when channels have changed by that share of their power, `[device, tone]`."""
        error_var = self.pilot_var + aging * self.mean_gain[:, None]
        return np.asarray(error_var * np.abs(self.equaliser) ** 2)

    def misalignment(self, aging: float) -> FloatArray:
        """The squared error of a received number over its squared size, `[device]`.

        With two axes it is E|He − 1|², the mean over tones. With one axis, half of the random errors and of the other
        numbers' interference is on the unused axis. What the floor takes from all numbers alike is not.
        """
        weaker, random = 1 - self.attenuation, self.relative_error(aging).mean(axis=1)
        squared = (weaker**2).mean(axis=1)
        if self.grid.axes == 2:
            return np.asarray(squared + random)
        if self.wave.spreading == "none":
            return np.asarray(squared + random / 2)
        return np.asarray((weaker.mean(axis=1) ** 2 + squared + random) / 2)


class WideChannel:
    """A source of links for the rounds of a run, and of scalar channels for its planner.

    `mean_gain` `[device]` is E|H|² over the fading that `draw_paths` draws.
    """

    def __init__(
        self,
        scenario: Scenario,
        draw_paths: DrawPaths,
        mean_gain: FloatArray,
        noise_power_w: float,
        pilot_power_w: FloatArray,
    ):
        grid = Grid.of(scenario)
        assert grid is not None  # numbers sent one at a time have a scalar channel
        self.grid, self._scenario, self._wave = grid, scenario, scenario.waveform
        self._draw_paths, self._mean_gain = draw_paths, mean_gain
        # Of a least-squares estimate tone by tone: the pilot's power is shared by all tones.
        with np.errstate(divide="ignore"):
            self._tone_var = noise_power_w * grid.tones / (pilot_power_w * self._wave.pilot_symbols)
        self._cached: tuple[tuple[str, int], WideLink] | None = None

    def round_channel(self, round_index: int) -> ComplexArray:
        return self.link(round_index).gain.astype(np.complex128)

    def planning_channels(self, num_draws: int) -> ComplexArray:
        return np.stack([self.planning_link(draw).gain for draw in range(num_draws)]).astype(np.complex128)

    def planning_link(self, draw: int) -> WideLink:
        """Links for the planner; those of the run are independent of them."""
        return self._link("planning-channel", draw)

    def link(self, round_index: int) -> WideLink:
        """The links of a round, as devices and server know them before it."""
        return self._link("channel", round_index)

    def taps_of_symbols(self, round_index: int, num_numbers: int) -> ComplexArray:
        """Taps during every symbol of a round's data, `[device, symbol, tap]`."""
        num_symbols, taps = self.grid.num_symbols(num_numbers), self.link(round_index).taps
        if self._wave.csi == "perfect":  # the channel stays as the pilot found it
            return np.broadcast_to(taps[:, None], (len(taps), num_symbols, taps.shape[1]))
        timing = air_time(self._scenario, num_numbers)
        before = round((timing.total_s - timing.data_s) / self.grid.symbol_s)
        return self._taps("channel", round_index, before + num_symbols)[:, before:]

    def _link(self, purpose: str, index: int) -> WideLink:
        if self._cached is None or self._cached[0] != (purpose, index):
            self._cached = (purpose, index), self._made(purpose, index)
        return self._cached[1]

    def _made(self, purpose: str, index: int) -> WideLink:
        taps = self._taps(purpose, index, 1)[:, 0]
        response = tone_gains(self.grid, taps)
        if self._wave.csi == "perfect":
            return WideLink(self.grid, self._wave, taps, response, np.zeros(response.shape), self._mean_gain)
        basis = delays_basis(self.grid)
        parts = stream(self._scenario.seed, f"{purpose}-pilot-noise", index).standard_normal((2, *response.shape))
        white = np.sqrt(self._tone_var / 2)[:, None] * (parts[0] + 1j * parts[1])
        known = (response + white) @ basis.conj() @ basis.T
        pilot_var = self._tone_var[:, None] * (np.abs(basis) ** 2).sum(axis=1)
        return WideLink(self.grid, self._wave, taps, known, pilot_var, self._mean_gain)

    def _taps(self, purpose: str, index: int, num_symbols: int) -> ComplexArray:
        rng = stream(self._scenario.seed, purpose, index)
        return sampled_taps(self.grid, *self._draw_paths(rng, num_symbols, self.grid.symbol_s))


def sampled_taps(grid: Grid, paths: ComplexArray, delays_s: FloatArray) -> ComplexArray:
    """Taps `[device, time, tap]` of paths `[device, time, path]` with these delays `[device, path]`.

    Delays beyond the cyclic prefix are shortened to it; the log says what share of the power they have.
    """
    samples = np.rint(delays_s * grid.sample_rate_hz).astype(np.int64)
    late = samples > grid.prefix_samples
    if late.any():
        power = (np.abs(paths) ** 2).sum(axis=1)  # Sionna fills up devices with fewer paths by such without power
        late &= power > 0
        if late.any():
            share, longest = power[late].sum() / power.sum(), delays_s[late].max()
            logger.info("%.2g of the received power is later than the cyclic prefix, up to %.3g s", share, longest)
    samples = np.minimum(samples, grid.prefix_samples)
    taps = np.zeros((*paths.shape[:2], int(samples.max()) + 1), dtype=np.complex128)
    for path in range(paths.shape[2]):  # several paths of a device may fall into one tap
        taps[np.arange(len(taps)), :, samples[:, path]] += paths[:, :, path]
    return taps


def equaliser(known: ComplexArray, fade_floor_db: float) -> ComplexArray:
    """conj(Ĥ)/max(|Ĥ|², floor), `[..., tone]`, with a floor relative to the mean |Ĥ|²; zero without a channel."""
    power = np.abs(known) ** 2
    bounded = np.maximum(power, 10.0 ** (fade_floor_db / 10.0) * power.mean(axis=-1, keepdims=True))
    return np.asarray(np.divide(known.conj(), bounded, out=np.zeros_like(known), where=bounded > 0))


def tone_gains(grid: Grid, taps: ComplexArray) -> ComplexArray:
    """H on the used tones, `[..., tone]`, from taps `[..., tap]`."""
    return np.asarray(np.fft.fft(taps, grid.fft_size, axis=-1)[..., grid.bins])


@cache
def delays_basis(grid: Grid) -> ComplexArray:
    """An orthonormal basis `[tone, dimension]` of what channels within the prefix can be on the used tones.

    A pilot's estimate is projected on it: noise in other directions is no channel.
    """
    delays = np.arange(grid.prefix_samples + 1)
    responses = np.exp(-2j * np.pi * np.outer(grid.offsets, delays) / grid.fft_size)
    vectors, sizes, _ = np.linalg.svd(responses, full_matrices=False)
    return np.asarray(vectors[:, sizes > _LEAST_SINGULAR * sizes[0]])


def mean_loss(scenario: Scenario, num_numbers: int, links: Sequence[WideLink]) -> float:
    """By which amplitude, relative to 1, numbers arrive weaker: the mean over devices, links and tones.

    Fade floors and weaker signals take 1 − Ĥe, and channels that change leave J0(2πf_Dt) of what was measured: the rms
    over the data's time. It has one sign for all devices, and their losses add up.
    """
    weaker = float(np.mean([1 - link.attenuation for link in links]))
    if scenario.waveform.csi == "perfect":
        return weaker
    timing = air_time(scenario, num_numbers)
    times_s = np.linspace(timing.total_s - timing.data_s, timing.total_s, _TIMES)
    changed = float(np.sqrt(np.mean((1 - j0(2 * np.pi * doppler_hz(scenario) * times_s)) ** 2)))
    return weaker + changed - weaker * changed


def doppler_hz(scenario: Scenario) -> float:
    """f_D = v f_c/c."""
    return scenario.waveform.speed * scenario.radio.carrier / SPEED_OF_LIGHT_M_S


def aging(scenario: Scenario, num_numbers: int) -> float:
    """1 − J0²(2πf_Dτ): the share of a Rayleigh channel's power that is new when a round of that size ends.

    τ is the time from the pilot to the end of the data. Given the channel at the pilot, the later one is J0 of it, and
    an independent part of this power. From the first zero of J0 on, all of it has been new at some time of the round.
    """
    if scenario.waveform.csi == "perfect":
        return 0.0
    phase = 2 * np.pi * doppler_hz(scenario) * air_time(scenario, num_numbers).total_s
    return float(1 - j0(min(phase, jn_zeros(0, 1)[0])) ** 2)


def constant_paths(gains: ComplexArray) -> DrawPaths:
    """One path of given gain `[device]` that does not change."""

    def draw(rng: np.random.Generator, num_times: int, step_s: float) -> tuple[ComplexArray, FloatArray]:  # noqa: ARG001
        return np.repeat(gains[:, None, None], num_times, axis=1), np.zeros((len(gains), 1))

    return draw


def flat_paths(path_gain: FloatArray, fading: str, rician_k_db: float, doppler: float) -> DrawPaths:
    """One path whose fading changes over time with the autocorrelation J0(2πf_Dτ) of uniform scattering."""
    k_factor = 10.0 ** (rician_k_db / 10.0) if fading == "rician" else 0.0
    direct, scattered = np.sqrt(k_factor / (k_factor + 1)), np.sqrt(1 / (k_factor + 1))

    def draw(rng: np.random.Generator, num_times: int, step_s: float) -> tuple[ComplexArray, FloatArray]:
        num_devices = len(path_gain)
        if fading in ("none", "real_gaussian"):
            drawn = np.ones(num_devices) if fading == "none" else rng.standard_normal(num_devices)
            path = np.repeat(drawn[:, None].astype(np.complex128), num_times, axis=1)
        else:
            parts = rng.standard_normal((num_times, 2, num_devices))
            path = direct + scattered * (_over_time(num_times, step_s * doppler) @ (parts[:, 0] + 1j * parts[:, 1])).T
        return np.sqrt(path_gain)[:, None, None] * path[:, :, None], np.zeros((num_devices, 1))

    return draw


def _over_time(num_times: int, cycles: float) -> FloatArray:
    """The lower factor of J0(2π·cycles·lag)/2, `[time, time]`: its first entry is the same for any number of times."""
    lags = np.subtract.outer(np.arange(num_times), np.arange(num_times))
    covariance = 0.5 * j0(2 * np.pi * cycles * lags)
    # A slow channel makes the matrix singular up to rounding: 1e-9 of the power is independent from time to time.
    return np.linalg.cholesky((1 - 1e-9) * covariance + 0.5e-9 * np.eye(num_times))
