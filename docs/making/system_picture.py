"""Draw docs/images/system.svg: the whole system in one picture, with the class means of a real simulation.

The three maps are of the last of 40 rounds of the preset `quick` (20 devices × 300 digits of MNIST, whole-device ε = 8,
seed 0) with the scheme `airdistill`; a third of the devices has each of the models shown. They are the devices' mean,
what the server receives, and what it estimates. The digits are the first three of MNIST. Run it with
`python docs/making/system_picture.py [ROUNDS]`: 15 s on two cores, once kernels are compiled.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from svg import LINE, arrow, coloured, document, picture, waves, way_back, words

import airdistill as ad
from airdistill.data import load_dataset
from airdistill.files import write_whole
from airdistill.radio import Reception
from airdistill.runs.simulation import Simulation
from airdistill.schemes import SCHEMES, Outcome, Round
from airdistill.schemes.base import BLUE, GREY, PURPLE, RED

IMAGES = Path(__file__).parent.parent / "images"
WIDTH, HEIGHT = 520, 606
DEVICE_PLACES, MAP_PLACES = (24, 172, 320), (24, 188, 352)
DEVICE_WIDTH, MAP_SIDE = 132, 120
MODELS = {"paper_cnn": "CNN", "mlp": "MLP", "softmax_regression": "linear"}
COLOURS = (BLUE, RED, PURPLE)
GROUPS = ", ".join(f'{{count={count}, model="{model}"}}' for count, model in zip((7, 7, 6), MODELS, strict=True))


class Watched(SCHEMES["airdistill"]):
    """The scheme, which also keeps its last reception for the picture."""

    reception: Reception

    def play(self, this: Round) -> Outcome:
        outcome = super().play(this)
        assert outcome.reception is not None
        self.reception = outcome.reception
        return outcome


def last_reception(rounds: int, changes: Sequence[str] = ()) -> Reception:
    """The reception of the last round of a run of `quick` with three kinds of models."""
    scheme = Watched()
    plan = ad.plan(ad.load("quick", [f"fleet.groups=[{GROUPS}]", *changes]), scheme.name, rounds)
    simulation = Simulation(plan, scheme, ad.RunOptions())
    for _ in range(rounds):
        simulation.advance()
    return scheme.reception


def system(reception: Reception, digits: np.ndarray, rounds: int) -> str:
    """The picture, with the steps of a round from top to bottom."""
    parts = [
        words(24, 34, "1  Every device trains its own model on its own data", weight="bold"),
        *(_device(kind, digit) for kind, digit in enumerate(digits)),
        *waves(
            [(left + DEVICE_WIDTH / 2, 146) for left in DEVICE_PLACES], COLOURS, (MAP_PLACES[0] + MAP_SIDE / 2, 250)
        ),
        words(122, 246, "2  All send at once, on one frequency:", weight="bold"),
        words(122, 267, "their models' mean prediction for each class"),
        *_maps(reception),
        *_broadcast(),
        words(24, 566, "Rows: true class, columns: predicted class; orange is below 0, blue above.", 12, GREY),
        words(24, 586, f"Simulated: 20 devices, MNIST, whole-device ε = 8, round {rounds} of {rounds}.", 12, GREY),
    ]
    label = "Devices send class-average predictions of their own models at once, and learn from the server's estimate"
    return document(WIDTH, HEIGHT, label, parts)


def _device(kind: int, digit: np.ndarray) -> str:
    """A card with a sample of a device's data and a sketch of its model."""
    left = DEVICE_PLACES[kind]
    return "\n".join(
        [
            f'<rect x="{left}" y="50" width="{DEVICE_WIDTH}" height="92" rx="10" fill="#f6f6f6" stroke="{LINE}"/>',
            picture(left + 10, 62, 48, 255 - digit),
            _network(left + 74, 62, kind),
            words(left + 10, 130, "own data", 12),
            words(left + 74, 130, list(MODELS.values())[kind], 12, COLOURS[kind], "bold"),
        ]
    )


def _network(left: float, top: float, kind: int) -> str:
    """Connected dots in layers; the linear model has no hidden layer."""
    layers = ((3, 4, 4, 2), (3, 4, 2), (3, 2))[kind]
    places = [
        [(left + 48 * at / (len(layers) - 1), top + 48 * (dot + 0.5) / number) for dot in range(number)]
        for at, number in enumerate(layers)
    ]
    lines = [
        f'<path d="M{x:.1f} {y:.1f}L{u:.1f} {v:.1f}" stroke="{COLOURS[kind]}" stroke-opacity="0.35"/>'
        for here, there in itertools.pairwise(places)
        for x, y in here
        for u, v in there
    ]
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[kind]}"/>' for layer in places for x, y in layer]
    return "".join([*lines, *dots])


def _maps(reception: Reception) -> list[str]:
    """The sum, what is received and what is estimated, with captions."""
    captions = [
        ("3  The air adds", "The devices' mean", "without noise.", reception.ideal),
        ("4  Noise hides", "What the server", "receives.", reception.received),
        ("5  Server tracks", "What it estimates", "over the rounds.", reception.broadcast),
    ]
    parts = []
    for left, (head, first, second, knowledge) in zip(MAP_PLACES, captions, strict=True):
        parts += [
            words(left, 312, head, weight="bold"),
            picture(left, 324, MAP_SIDE, coloured(knowledge)),
            f'<rect x="{left}" y="324" width="{MAP_SIDE}" height="{MAP_SIDE}" fill="none" stroke="{LINE}"/>',
            words(left, 466, first, 13),
            words(left, 484, second, 13),
        ]
    return [*parts, *(arrow(f"M{left + MAP_SIDE + 8} 384h24") for left in MAP_PLACES[:2])]


def _broadcast() -> list[str]:
    """The arrow back to the devices, along the right-hand side."""
    right, beside = WIDTH - 18, DEVICE_PLACES[2] + DEVICE_WIDTH
    way = f"M{MAP_PLACES[2] + MAP_SIDE / 2} 494V518H{right}V96H{beside + 10}"
    return [
        *way_back(way, beside + 2, 96),
        words(24, 523, "6  It is broadcast, and every device learns.", weight="bold"),
    ]


def main(rounds: int) -> None:
    digits = np.asarray(load_dataset("mnist").x_train[:3]).squeeze()
    write_whole(IMAGES / "system.svg", system(last_reception(rounds), digits, rounds).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
