"""Draw docs/images/system.svg: the whole system in one picture, with the class means of a real simulation.

The three maps are of the last of 40 rounds of the preset `quick` (20 devices × 300 digits of MNIST, whole-device ε = 8,
seed 0) with the scheme `airdistill`; a third of the devices has each of the models shown. They are the devices' mean,
what the server receives, and what it estimates. The digits are the first three of MNIST. Run it with
`python docs/making/system_picture.py [ROUNDS]`: 15 s on two cores, once kernels are compiled.
"""

from __future__ import annotations

import base64
import io
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import airdistill as ad
from airdistill.data import load_dataset
from airdistill.files import write_whole
from airdistill.radio import Reception
from airdistill.runs.simulation import Simulation
from airdistill.schemes import SCHEMES, Outcome, Round
from airdistill.schemes.base import BLUE, GREEN, GREY, ORANGE, PURPLE, RED

IMAGES = Path(__file__).parent.parent / "images"
WIDTH, HEIGHT = 520, 606
INK, LINE = "#1a1a1a", "#c8c8c8"
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
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="14" fill="#ffffff" stroke="{LINE}"/>',
        _words(24, 34, "1  Every device trains its own model on its own data", weight="bold"),
        *(_device(kind, digit) for kind, digit in enumerate(digits)),
        *_waves(),
        _words(122, 246, "2  All send at once, on one frequency:", weight="bold"),
        _words(122, 267, "their models' mean prediction for each class"),
        *_maps(reception),
        *_broadcast(),
        _words(24, 566, "Rows: true class, columns: predicted class; orange is below 0, blue above.", 12, GREY),
        _words(24, 586, f"Simulated: 20 devices, MNIST, whole-device ε = 8, round {rounds} of {rounds}.", 12, GREY),
    ]
    label = "Devices send class-average predictions of their own models at once, and learn from the server's estimate"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{label}" font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif">\n'
        f'<defs><marker id="head" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L10 5L0 10z" fill="{INK}"/></marker></defs>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _words(x: float, y: float, text: str, size: float = 15, colour: str = INK, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" font-weight="{weight}">{text}</text>'


def _device(kind: int, digit: np.ndarray) -> str:
    """A card with a sample of a device's data and a sketch of its model."""
    left = DEVICE_PLACES[kind]
    return "\n".join(
        [
            f'<rect x="{left}" y="50" width="{DEVICE_WIDTH}" height="92" rx="10" fill="#f6f6f6" stroke="{LINE}"/>',
            _picture(left + 10, 62, 48, 255 - digit),
            _network(left + 74, 62, kind),
            _words(left + 10, 130, "own data", 12),
            _words(left + 74, 130, list(MODELS.values())[kind], 12, COLOURS[kind], "bold"),
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


def _waves() -> list[str]:
    """A wave from every device down to one sum, above the map that shows it."""
    along, sum_x, sum_y = np.linspace(0, 1, 241), MAP_PLACES[0] + MAP_SIDE / 2, 250
    drawn = []
    for left, colour in zip(DEVICE_PLACES, COLOURS, strict=True):
        start = np.array([left + DEVICE_WIDTH / 2, 146])
        way = np.array([sum_x, sum_y - 16]) - start
        length = np.hypot(*way)
        across = np.array([-way[1], way[0]]) / length
        swing = 6 * np.sin(2 * np.pi * along * length / 17) * np.minimum(1, 6 * np.minimum(along, 1 - along))
        points = start + along[:, None] * way + swing[:, None] * across
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return [
        *drawn,
        f'<circle cx="{sum_x}" cy="{sum_y}" r="15" fill="#ffffff" stroke="{INK}" stroke-width="2"/>',
        f'<path d="M{sum_x - 8} {sum_y}h16M{sum_x} {sum_y - 8}v16" stroke="{INK}" stroke-width="2.4"/>',
        f'<path d="M{sum_x} {sum_y + 18}v18" stroke="{INK}" stroke-width="2" marker-end="url(#head)"/>',
    ]


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
            _words(left, 312, head, weight="bold"),
            _picture(left, 324, MAP_SIDE, coloured(knowledge)),
            f'<rect x="{left}" y="324" width="{MAP_SIDE}" height="{MAP_SIDE}" fill="none" stroke="{LINE}"/>',
            _words(left, 466, first, 13),
            _words(left, 484, second, 13),
        ]
    arrows = [f"M{left + MAP_SIDE + 8} 384h24" for left in MAP_PLACES[:2]]
    return [*parts, *(f'<path d="{way}" stroke="{INK}" stroke-width="2" marker-end="url(#head)"/>' for way in arrows)]


def _broadcast() -> list[str]:
    """The arrow back to the devices, along the right-hand side."""
    right, beside = WIDTH - 18, DEVICE_PLACES[2] + DEVICE_WIDTH
    way = f"M{MAP_PLACES[2] + MAP_SIDE / 2} 494V518H{right}V96H{beside + 10}"
    return [
        f'<path d="{way}" fill="none" stroke="{GREEN}" stroke-width="3" stroke-linejoin="round"/>',
        f'<path d="M{beside + 2} 96l12 -7v14z" fill="{GREEN}"/>',
        _words(24, 523, "6  It is broadcast, and every device learns.", weight="bold"),
    ]


def coloured(knowledge: np.ndarray) -> np.ndarray:
    """Knowledge `[class, class]` as colours: white at 0, blue at 1 and above, orange at −1 and below."""
    share = np.clip(np.abs(knowledge), 0, 1)[..., None]
    ends = np.where(knowledge[..., None] > 0, _rgb(BLUE), _rgb(ORANGE))
    return np.rint(255 + share * (ends - 255.0)).astype(np.uint8)


def _rgb(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def _picture(x: float, y: float, side: float, pixels: np.ndarray) -> str:
    """Pixels of grey `[row, column]` or colour `[row, column, 3]`, with sharp edges."""
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    scale = -(-112 // len(pixels))  # browsers may smooth what they enlarge: with enough pixels they need not
    large = np.kron(pixels, np.ones((scale, scale, 1) if pixels.ndim == 3 else (scale, scale), dtype=np.uint8))
    imsave(buffer, large, format="png", cmap="gray", vmin=0, vmax=255, metadata={"Software": None})
    content = base64.b64encode(buffer.getvalue()).decode()
    return f'<image x="{x}" y="{y}" width="{side}" height="{side}" href="data:image/png;base64,{content}"/>'


def main(rounds: int) -> None:
    digits = np.asarray(load_dataset("mnist").x_train[:3]).squeeze()
    write_whole(IMAGES / "system.svg", system(last_reception(rounds), digits, rounds).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
