"""Channels of 3GPP TR 38.901 drawn by Sionna: UMi, UMa and RMa cells, and the tapped delay lines TDL-A to TDL-E.

Once in a run, and alike for the planner: where a device stands, whether it sees the server, its shadowing and its
K-factor. New in every round: the small-scale fading. Devices stand outdoors, with one vertical antenna each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.channel.propagation import SPEED_OF_LIGHT_M_S, narrowband_gains, path_gain
from airdistill.errors import InputError
from airdistill.scenario.model import Radio, Scenario
from airdistill.scenario.rules import CELLS
from airdistill.streams import stream

# Sionna takes only about twice as long for 20 rounds among the same rays as for one.
ROUNDS_PER_BLOCK = 20
# So far does a device move between two rounds of a block: every ray comes in with a new phase.
WAVELENGTHS_PER_ROUND = 1e4

# Draws a block of rounds, `[round, device]`, with Sionna's generator as it stands.
DrawBlock = Callable[[], ComplexArray]


class ThreeGppChannel:
    """Rounds are drawn by blocks, each from a seed of its own, so that no draw depends on what was drawn before."""

    def __init__(self, seed: int, draw_block: DrawBlock) -> None:
        self._seed, self._draw_block = seed, draw_block
        self._kept: tuple[tuple[str, int], ComplexArray] | None = None

    def round_channel(self, round_index: int) -> ComplexArray:
        return self._drawn("channel", round_index)

    def planning_channels(self, num_draws: int) -> ComplexArray:
        return np.stack([self._drawn("planning-channel", draw) for draw in range(num_draws)])

    def _drawn(self, purpose: str, index: int) -> ComplexArray:
        block, place = divmod(index, ROUNDS_PER_BLOCK)
        if self._kept is None or self._kept[0] != (purpose, block):
            with seeded_sionna(stream(self._seed, purpose, block)):
                self._kept = (purpose, block), self._draw_block()
        gains: ComplexArray = self._kept[1][place].copy()
        return gains


def threegpp_channel(scenario: Scenario, distance_m: FloatArray) -> ThreeGppChannel:
    """The scenario's 3GPP channel for devices at these distances, `[device]`."""
    draw = cell_draws if scenario.radio.fading in CELLS else tapped_delay_line_draws
    return ThreeGppChannel(scenario.seed, draw(scenario, distance_m))


def cell_draws(scenario: Scenario, distance_m: FloatArray, shadowing: bool = True) -> DrawBlock:
    """Puts the devices around the server and draws what stays (the standard's steps 1 to 4).

    Every block has new clusters and rays (steps 5 to 10), and its rounds meet them at places far apart.
    """
    radio, tr38901 = scenario.radio, load_sionna(scenario.radio.fading)
    antenna = {"num_rows_per_panel": 1, "num_cols_per_panel": 1, "polarization": "single", "polarization_type": "V"}
    machine = {"precision": "double", "device": "cpu"}
    array = tr38901.PanelArray(antenna_pattern="omni", carrier_frequency=radio.carrier, **antenna, **machine)
    # Outdoors there is no wall to go through, so that it does not matter which of the standard's walls it would be.
    wall = {} if radio.fading == "rma" else {"o2i_model": "low"}
    rng = stream(scenario.seed, "channel-drop")
    with seeded_sionna(rng):
        model = getattr(tr38901, CELLS[radio.fading].name)(
            radio.carrier,
            ut_array=array,
            bs_array=array,
            direction="uplink",
            enable_shadow_fading=shadowing,
            **wall,
            **machine,
        )
        model.set_topology(**_topology(radio, distance_m, rng))

    def draw() -> ComplexArray:
        coefficients, _ = model(ROUNDS_PER_BLOCK, 1.0)  # [1, server, 1, device, 1, path, round]
        return narrowband_gains(coefficients[0, 0, 0, :, 0].numpy().transpose(2, 0, 1))

    return draw


def _topology(radio: Radio, distance_m: FloatArray, rng: np.random.Generator) -> dict[str, Any]:
    """Devices all around the server, and how fast they move, in metres a round."""
    cell, num_devices = CELLS[radio.fading], len(distance_m)
    server_height = cell.usual_server_height if radio.server_height is None else radio.server_height
    # No two devices alike, or their phases would turn together.
    step = WAVELENGTHS_PER_ROUND * SPEED_OF_LIGHT_M_S / radio.carrier * rng.uniform(0.5, 1.5, num_devices)
    nobody = np.zeros((1, num_devices), dtype=np.bool_)
    topology = {
        "ut_loc": _around(distance_m, radio.device_height, rng)[np.newaxis],
        "bs_loc": np.array([[[0.0, 0.0, server_height]]]),
        "ut_velocities": _around(step, 0.0, rng)[np.newaxis],
        "ut_orientations": np.zeros((1, num_devices, 3)),
        "bs_orientations": np.zeros((1, 1, 3)),
        "in_state": nobody,
        "los": {"drawn": "random", "always": True, "never": False}[radio.line_of_sight],
    }
    # Sionna puts every rural device into a car unless told otherwise: another 9 dB.
    return topology | ({"in_car": nobody} if radio.fading == "rma" else {})


def _around(length: FloatArray, height: float, rng: np.random.Generator) -> FloatArray:
    """Vectors `[device, 3]` of these horizontal lengths, each in a direction of its own."""
    bearing = rng.uniform(0, 2 * np.pi, len(length))
    return np.stack([length * np.cos(bearing), length * np.sin(bearing), np.full(len(length), height)], axis=-1)


def tapped_delay_line_draws(scenario: Scenario, distance_m: FloatArray) -> DrawBlock:
    """A profile of the standard on top of the scenario's own path loss; every round and device is a link by itself."""
    radio, num_devices = scenario.radio, len(distance_m)
    profile = radio.fading.removeprefix("tdl-").upper()
    model = load_sionna(radio.fading).TDL(profile, radio.delay_spread, radio.carrier, precision="double", device="cpu")
    gain = path_gain(distance_m, radio.carrier, radio.path_loss_exponent)

    def draw() -> ComplexArray:
        coefficients, _ = model(ROUNDS_PER_BLOCK * num_devices, 1, 1.0)  # [link, 1, 1, 1, 1, path, 1]
        return narrowband_gains(coefficients.numpy().reshape(ROUNDS_PER_BLOCK, num_devices, -1), gain)

    return draw


def load_sionna(fading: str) -> Any:
    """Sionna's `tr38901`, imported when first needed: that takes seconds.

    The import seeds PyTorch's generators anew, behind the back of whoever uses them; they get their state back.
    """
    torch = sys.modules.get("torch")
    kept: AbstractContextManager[Any] = nullcontext()
    if torch is not None:
        kept = torch.random.fork_rng(devices=range(torch.cuda.device_count()))
    try:
        with kept:
            from sionna.phy.channel import tr38901
    except ImportError as error:
        raise InputError("radio.fading", fading, "needs Sionna: pip install 'airdistill[channels]'") from error
    return tr38901


@contextmanager
def seeded_sionna(rng: np.random.Generator) -> Iterator[None]:
    """Sionna's draws follow from `rng` alone, and nobody else's draws are touched.

    One thread computes, so that sums are added up in the same order whatever the machine is told.
    """
    from sionna.phy import config

    torch, generator = sys.modules["torch"], config.torch_rng("cpu")
    state, threads = generator.get_state(), torch.get_num_threads()
    generator.manual_seed(int(rng.integers(2**63)))
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        generator.set_state(state)
