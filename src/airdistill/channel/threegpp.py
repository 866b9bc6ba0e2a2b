"""Channels of 3GPP TR 38.901, drawn by Sionna: its cells, and the tapped delay lines TDL-A to TDL-E.

Positions, line of sight, shadowing and K-factors are drawn once, for the run and the planner alike. Small-scale fading
is drawn independently in every round. Devices have one vertically polarised antenna each. Those of UMi, UMa and RMa are
outdoors; those of an office (InH) or a factory (InF) are in one hall with the server.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.link_budget import SPEED_OF_LIGHT_M_S, antenna_gain, path_gain
from airdistill.errors import InputError
from airdistill.scenario.cells import CELLS, Clutter
from airdistill.scenario.model import Scenario
from airdistill.scenario.radio import Radio
from airdistill.streams import stream

# Sionna takes only about twice as long for 20 rounds with the same rays as for one.
ROUNDS_PER_BLOCK = 20
# The distance that a device moves between two rounds of a block: every ray then has a new phase.
WAVELENGTHS_PER_ROUND = 1e4

# As in `channel.selective`: paths and delays from a generator, a number of times and their distance.
DrawPaths = Callable[[np.random.Generator, int, float], tuple[ComplexArray, FloatArray]]
# Draws a block of rounds, `[round, device]`, from the current state of Sionna's generator.
DrawBlock = Callable[[], ComplexArray]


class ThreeGppChannel:
    """A source that draws blocks of rounds, each with its own seed, and so no draw depends on earlier ones."""

    def __init__(self, seed: int, draw_block: DrawBlock) -> None:
        self._seed, self._draw_block = seed, draw_block
        self._cached: tuple[tuple[str, int], ComplexArray] | None = None

    def round_channel(self, round_index: int) -> ComplexArray:
        return self._drawn("channel", round_index)

    def planning_channels(self, num_draws: int) -> ComplexArray:
        return np.stack([self._drawn("planning-channel", draw) for draw in range(num_draws)])

    def _drawn(self, purpose: str, index: int) -> ComplexArray:
        block, place = divmod(index, ROUNDS_PER_BLOCK)
        if self._cached is None or self._cached[0] != (purpose, block):
            with seeded_sionna(stream(self._seed, purpose, block)):
                self._cached = (purpose, block), self._draw_block()
        gains: ComplexArray = self._cached[1][place].copy()
        return gains


def threegpp_channel(scenario: Scenario, distance_m: FloatArray) -> ThreeGppChannel:
    """The scenario's 3GPP channel for devices at these distances, `[device]`."""
    draw = cell_draws if scenario.radio.fading in CELLS else tapped_delay_line_draws
    return ThreeGppChannel(scenario.seed, draw(scenario, distance_m))


def threegpp_paths(scenario: Scenario, distance_m: FloatArray) -> tuple[DrawPaths, FloatArray]:
    """The paths of the scenario's 3GPP channel with their delays, for devices that move at the waveform's speed.

    With them the mean of |H|² over small-scale fading, `[device]`.
    """
    if scenario.radio.fading in CELLS:
        return cell_paths(scenario, distance_m)
    return tapped_delay_line_paths(scenario, distance_m)


def cell_paths(scenario: Scenario, distance_m: FloatArray) -> tuple[DrawPaths, FloatArray]:
    """Positions and large-scale parameters are drawn once; every call draws new clusters and rays."""
    model = _cell(scenario, distance_m, np.full(len(distance_m), scenario.waveform.speed))
    amplitude = np.sqrt(antenna_gain(scenario.radio))

    def draw(rng: np.random.Generator, num_times: int, step_s: float) -> tuple[ComplexArray, FloatArray]:
        with seeded_sionna(rng):
            coefficients, delays = model(num_times, 1 / step_s)
        return amplitude * coefficients[0, 0, 0, :, 0].numpy().transpose(0, 2, 1), delays[0, 0].numpy()

    # Sionna keeps these for the topology, and has no public way to read them (`sample_lsp` draws new ones).
    large_scale = model._lsp
    loss_db, shadowing = (part.numpy().reshape(-1) for part in (large_scale.pathloss, large_scale.sf))
    return draw, np.asarray(amplitude**2 * 10.0 ** (-loss_db / 10.0) * shadowing)


def tapped_delay_line_paths(scenario: Scenario, distance_m: FloatArray) -> tuple[DrawPaths, FloatArray]:
    """A TDL profile of the standard with the scenario's path loss, independent for every device and call."""
    radio, num_devices, speed = scenario.radio, len(distance_m), scenario.waveform.speed
    profile = radio.fading.removeprefix("tdl-").upper()
    made = load_sionna(radio.fading).TDL
    moving = {"min_speed": speed, "max_speed": speed, "precision": "double", "device": "cpu"}
    model = made(profile, radio.delay_spread, radio.carrier, **moving)
    gain = path_gain(distance_m, radio.carrier, radio.path_loss_exponent) * antenna_gain(radio)
    amplitude = np.sqrt(gain)[:, None, None]

    def draw(rng: np.random.Generator, num_times: int, step_s: float) -> tuple[ComplexArray, FloatArray]:
        with seeded_sionna(rng):
            coefficients, delays = model(num_devices, num_times, 1 / step_s)  # [device, 1, 1, 1, 1, path, time]
        paths = coefficients.numpy().reshape(num_devices, -1, num_times).transpose(0, 2, 1)
        return amplitude * paths, delays.numpy().reshape(num_devices, -1)

    return draw, gain


def cell_draws(scenario: Scenario, distance_m: FloatArray, shadowing: bool = True) -> DrawBlock:
    """Draw the devices' positions and large-scale parameters (steps 1 to 4 of the standard).

    Every block has new clusters and rays (steps 5 to 10); within a block, the rounds are at distant positions.
    """
    model, gain = _cell(scenario, distance_m, None, shadowing), antenna_gain(scenario.radio)

    def draw() -> ComplexArray:
        coefficients, _ = model(ROUNDS_PER_BLOCK, 1.0)  # [1, server, 1, device, 1, path, round]
        return narrowband_gains(coefficients[0, 0, 0, :, 0].numpy().transpose(2, 0, 1), gain)

    return draw


def _cell(scenario: Scenario, distance_m: FloatArray, speed_m_s: FloatArray | None, shadowing: bool = True) -> Any:
    """Sionna's model of a cell with its devices in place; without a speed they are far apart from round to round."""
    radio, tr38901 = scenario.radio, load_sionna(scenario.radio.fading)
    antenna = {"num_rows_per_panel": 1, "num_cols_per_panel": 1, "polarization": "single", "polarization_type": "V"}
    computation = {"precision": "double", "device": "cpu"}
    array = tr38901.PanelArray(antenna_pattern="omni", carrier_frequency=radio.carrier, **antenna, **computation)
    rng = stream(scenario.seed, "channel-drop")
    with seeded_sionna(rng):
        kind = getattr(tr38901, CELLS[radio.fading].name.partition("-")[0])
        model = kind(
            radio.carrier,
            ut_array=array,
            bs_array=array,
            direction="uplink",
            enable_shadow_fading=shadowing,
            **_kind_of_cell(radio),
            **computation,
        )
        model.set_topology(**_topology(radio, distance_m, rng, speed_m_s))
    return model


def _kind_of_cell(radio: Radio) -> dict[str, Any]:
    """Arguments of Sionna's model that only some cells have."""
    cell = CELLS[radio.fading]
    if cell.clutter is not None:
        clutter = Clutter.of(radio, cell.clutter)
        size = {"clutter_density": clutter.density, "clutter_size": clutter.size, "clutter_height": clutter.height}
        return {"factory_scenario": cell.variant, **size}
    if cell.indoors:
        return {"indoor_scenario": cell.variant}
    # Required by Sionna, without effect outdoors.
    return {} if radio.fading == "rma" else {"o2i_model": "low"}


def _topology(
    radio: Radio, distance_m: FloatArray, rng: np.random.Generator, speed_m_s: FloatArray | None
) -> dict[str, Any]:
    """Positions of devices around the server, and their velocities, without a speed in metres per round."""
    cell, num_devices = CELLS[radio.fading], len(distance_m)
    server_height = cell.default_server_height if radio.server_height is None else radio.server_height
    # Different speeds, because equal ones would rotate the phases of all devices together.
    relative_speed, bearing, heading = _movements(num_devices, rng)
    step = WAVELENGTHS_PER_ROUND * SPEED_OF_LIGHT_M_S / radio.carrier * relative_speed
    none = np.zeros((1, num_devices), dtype=np.bool_)
    topology = {
        "ut_loc": _towards(bearing, distance_m, radio.device_height)[np.newaxis],
        "bs_loc": np.array([[[0.0, 0.0, server_height]]]),
        "ut_velocities": _towards(heading, step if speed_m_s is None else speed_m_s, 0.0)[np.newaxis],
        "ut_orientations": np.zeros((1, num_devices, 3)),
        "bs_orientations": np.zeros((1, 1, 3)),
        "in_state": none | cell.indoors,
        "los": {"drawn": "random", "always": True, "never": False}[radio.line_of_sight],
    }
    # By default Sionna places rural devices in cars, which adds a loss of 9 dB.
    return topology | ({"in_car": none} if radio.fading == "rma" else {})


def _movements(num_devices: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Relative speeds, and the directions from the server to the devices and of their movement, `[device]`."""
    angles = 2 * np.pi
    return (
        rng.uniform(0.5, 1.5, num_devices),
        rng.uniform(0, angles, num_devices),
        rng.uniform(0, angles, num_devices),
    )


def cell_bearings(scenario: Scenario) -> FloatArray:
    """The direction from the server to each device of a cell, rad, `[device]`, as its channels are drawn for it."""
    rng = stream(scenario.seed, "channel-drop")
    _sionna_seed(rng)  # the first number of this stream
    return _movements(scenario.num_devices, rng)[1]


def _towards(bearing: FloatArray, length: FloatArray, height: float) -> FloatArray:
    """Vectors `[device, 3]` with these directions and horizontal lengths."""
    return np.stack([length * np.cos(bearing), length * np.sin(bearing), np.full(len(length), height)], axis=-1)


def tapped_delay_line_draws(scenario: Scenario, distance_m: FloatArray) -> DrawBlock:
    """A TDL profile of the standard with the scenario's path loss; every round and device is an independent link."""
    radio, num_devices = scenario.radio, len(distance_m)
    profile = radio.fading.removeprefix("tdl-").upper()
    model = load_sionna(radio.fading).TDL(profile, radio.delay_spread, radio.carrier, precision="double", device="cpu")
    gain = path_gain(distance_m, radio.carrier, radio.path_loss_exponent) * antenna_gain(radio)

    def draw() -> ComplexArray:
        coefficients, _ = model(ROUNDS_PER_BLOCK * num_devices, 1, 1.0)  # [link, 1, 1, 1, 1, path, 1]
        return narrowband_gains(coefficients.numpy().reshape(ROUNDS_PER_BLOCK, num_devices, -1), gain)

    return draw


def load_sionna(fading: str) -> Any:
    """Import Sionna's `tr38901` on first use, because it takes seconds.

    The import reseeds PyTorch's generators; their state is restored.
    """
    torch = sys.modules.get("torch")
    restored: AbstractContextManager[Any] = nullcontext()
    if torch is not None:
        restored = torch.random.fork_rng(devices=range(torch.cuda.device_count()))
    try:
        with restored:
            from sionna.phy.channel import tr38901
    except ImportError as error:
        raise InputError("radio.fading", fading, "needs Sionna: pip install 'airdistill[channels]'") from error
    return tr38901


def _sionna_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**63))


@contextmanager
def seeded_sionna(rng: np.random.Generator) -> Iterator[None]:
    """Make Sionna's draws depend on `rng` only, and restore its generator afterwards.

    Sionna computes in one thread, and so the order of summation does not depend on the machine's settings.
    """
    from sionna.phy import config

    torch, generator = sys.modules["torch"], config.torch_rng("cpu")
    state, threads = generator.get_state(), torch.get_num_threads()
    generator.manual_seed(_sionna_seed(rng))
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        generator.set_state(state)


def narrowband_gains(path_coefficients: ComplexArray, path_gain: FloatArray | float = 1.0) -> ComplexArray:
    """h of every round and device, `[round, device]`, from Sionna's path coefficients `[round, device, path]`.

    * Sionna's coefficients a are amplitudes. Those of cells include path loss and shadowing as 10^(−PL/20)·√SF,
      and so |Σa|² is already a power gain: `path_gain` has antennas and losses only.
    * TDL coefficients have E Σ|a|² = 1, including the line-of-sight path, and do not include path loss: `path_gain`
      `[device]` is a power and is converted to an amplitude here.
    * A slot is one tone at the carrier: Σ a exp(−j2πfτ) with f = 0 is the sum of the coefficients.
    * Sionna's noise variance N0 is the total of both axes, as is the receiver noise of a link budget.
    """
    return np.asarray(np.sqrt(path_gain) * path_coefficients.sum(axis=-1))
