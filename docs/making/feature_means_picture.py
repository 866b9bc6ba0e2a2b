"""Draw docs/images/feature-means.svg: one transmission of feature means, with the numbers of a real simulation.

It is a run of the preset `skewed` (200 devices with two classes of MNIST each, whole-device ε = 8, seed 0) with the
scheme `airdistill_features`, whose model devices take over. The maps show the first features of every class: what three
devices send, what the air adds, and what the server receives; the images are the first public samples that the server
reads as each class. Run it with `python docs/making/feature_means_picture.py`: 1 to 2 minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from svg import LINE, arrow, coloured, document, picture, waves, way_back, words

import airdistill as ad
from airdistill.data.public import load_data
from airdistill.files import write_whole
from airdistill.planning.feature_means import FeatureMeans
from airdistill.radio import Reception
from airdistill.runs.simulation import Simulation
from airdistill.schemes import SCHEMES, Outcome, Round
from airdistill.schemes.base import BLUE, GREY, PURPLE, RED

IMAGES = Path(__file__).parent.parent / "images"
WIDTH, HEIGHT = 520, 732
SHOWN = 7  # features, and images of a class
CARDS, CARD_WIDTH, MAPS, MAP_WIDTH, MAP_TOP = (24, 186, 348), 132, (36, 200, 364), 126, 408
COLOURS = (BLUE, RED, PURPLE)
WRONG = np.array([213, 94, 0])


class Watched(SCHEMES["airdistill_features"]):
    """The scheme, which also keeps its only round for the picture."""

    sent: np.ndarray
    reception: Reception

    def play(self, this: Round) -> Outcome:
        self.sent = this.vectors()
        self.reception = this.transmit(self.sent)
        return Outcome(this.learn(self.reception.broadcast), self.reception)


@dataclass(frozen=True)
class Transmission:
    """What one round sent and received, as `[…, class, feature]`, and how the server labelled the public samples."""

    devices: list[tuple[np.ndarray, np.ndarray]]  # an image of each class that a device holds, and what it sends
    added: np.ndarray
    received: np.ndarray
    noise_ratio: float  # deviation of the noise over the typical entry that one device adds
    public: np.ndarray
    read: np.ndarray
    right: np.ndarray
    num_devices: int
    num_features: int
    milliseconds: float


def played(changes: Sequence[str] = ()) -> Transmission:
    """One round of `skewed`, or of a scenario changed from it."""
    scheme = Watched()
    plan = ad.plan(ad.load("skewed", ["public.broadcast=model", *changes]), scheme.name, 1)
    simulation = Simulation(plan, scheme, ad.RunOptions())
    simulation.advance()
    payload, reception = plan.uplink.payload, scheme.reception
    assert isinstance(payload, FeatureMeans)
    sent = payload.split(scheme.sent[:, 0])[0]
    (added, received), (_, public) = (
        (payload.split(each[0])[0] for each in (reception.ideal, reception.received)),
        load_data(plan.scenario),
    )
    assert public is not None
    entries = (sent * payload.nominal_weights[:, :, None])[sent != 0]
    read = np.asarray(reception.estimate.labels).argmax(axis=1)
    return Transmission(
        devices=[(_of_each_class(simulation, device), sent[device]) for device in _different(payload)],
        added=added,
        received=received,
        noise_ratio=float(np.sqrt(reception.predicted_noise_var[0] / (entries**2).mean())),
        public=_bytes(public.samples),
        read=read,
        right=read == public.hidden_labels,
        num_devices=len(sent),
        num_features=payload.dimensions,
        milliseconds=1000 * reception.uplink_seconds,
    )


def _different(payload: FeatureMeans) -> list[int]:
    """The first three devices of which no two hold a class in common, or as many as there are."""
    chosen: list[int] = []
    held = payload.fleet.class_counts > 0
    for device, classes in enumerate(held):
        if len(chosen) < len(CARDS) and not (held[chosen] & classes).any():
            chosen.append(device)
    return chosen


def _of_each_class(simulation: Simulation, device: int) -> np.ndarray:
    samples, labels = (each.cpu().numpy() for each in simulation.fleet.learners[device].samples_and_labels())
    return _bytes(np.stack([samples[np.flatnonzero(labels == klass)[0]] for klass in np.unique(labels)][:2]))


def _bytes(images: np.ndarray) -> np.ndarray:
    """Grey images `[image, row, column]` as bytes, dark on white, whatever they were normalised to."""
    grey = np.asarray(images, dtype=np.float64).squeeze()
    return np.rint(255 - 255 * (grey - grey.min()) / np.ptp(grey)).astype(np.uint8)


def feature_means(made: Transmission) -> str:
    """The picture, with the steps of a transmission from top to bottom."""
    slots = f"{made.added.size:,} numbers, {made.milliseconds:.1f} ms of air"
    rows = f"Rows: classes. Columns: the first {SHOWN} of {made.num_features} features"
    wrong = f"Red: labelled wrongly; of all {len(made.read)} public images {100 * made.right.mean():.0f} % are right."
    beside = CARDS[2] + CARD_WIDTH
    parts = [
        words(24, 32, "1  Public images, without labels, give an embedding", weight="bold"),
        *_embedding(made),
        words(24, 134, "2  Devices average the features of their own classes", weight="bold"),
        *(_card(*each) for each in zip(CARDS, COLOURS, made.devices, strict=False)),
        *waves([(left + CARD_WIDTH / 2, 258) for left in CARDS], COLOURS, (MAPS[0] + MAP_WIDTH / 2, 342)),
        words(126, 336, "All send at once, on one frequency:", weight="bold"),
        words(126, 356, slots, 13),
        *_maps(made),
        words(24, 660, "6  A model learns the labels, and devices get it.", weight="bold"),
        *way_back(f"M{MAPS[2] + 100} 634V655H{WIDTH - 16}V208H{beside + 10}", beside + 2, 208),
        words(24, 684, f"{rows}; orange: below 0, blue: above.", 11, GREY),
        words(24, 700, wrong, 11, GREY),
        words(24, 716, f"Simulated: {made.num_devices} devices with two classes of MNIST each, ε = 8.", 11, GREY),
    ]
    label = "Devices send the class means of public features at once; the server labels public samples with their sum"
    return document(WIDTH, HEIGHT, label, parts)


def _embedding(made: Transmission) -> list[str]:
    """Public images, what is fitted to them, and an arrow to the devices."""
    images = [picture(24 + 42 * at, 46, 38, image) for at, image in enumerate(made.public[:6])]
    return [
        *images,
        arrow("M282 65h22"),
        f'<rect x="312" y="44" width="184" height="42" rx="10" fill="#f6f6f6" stroke="{LINE}"/>',
        words(324, 61, f"φ: image → {made.num_features} numbers", 13),
        words(324, 78, "whitened, sent to all", 12, GREY),
        arrow("M404 90v26"),
    ]


def _card(left: float, colour: str, device: tuple[np.ndarray, np.ndarray]) -> str:
    """An image of each of a device's classes, and the class means that it sends."""
    images, vector = device
    largest = np.abs(vector[:, :SHOWN]).max() or 1.0
    return "\n".join(
        [
            f'<rect x="{left}" y="146" width="{CARD_WIDTH}" height="108" rx="10" fill="#f6f6f6" stroke="{LINE}"/>',
            *(picture(left + 10, 156 + 44 * at, 38, image) for at, image in enumerate(images)),
            *_map(left + 64, 154, 58, coloured(vector[:, :SHOWN], largest)),
            words(left + 10, 249, "own data", 9, colour, "bold"),
            words(left + 64, 249, "class means", 9, colour, "bold"),
        ]
    )


def _maps(made: Transmission) -> list[str]:
    """The sum, what is received, and public images by the class that the server reads, with captions."""
    largest = np.abs(made.added[:, :SHOWN]).max()
    maps = [coloured(each[:, :SHOWN], largest) for each in (made.added, made.received)]
    captions = [
        ("3  The air adds", f"The mean of all {made.num_devices}", "devices, no noise."),
        ("4  Noise hides", f"It is {made.noise_ratio:.0f} times what", "one device adds."),
        ("5  Server labels", "Public images, by", "the class means."),
    ]
    parts = []
    for left, (head, first, second), pixels in zip(MAPS, captions, [*maps, _collage(made)], strict=True):
        parts += [
            words(left - 12, MAP_TOP - 10, head, weight="bold"),
            *_map(left, MAP_TOP, MAP_WIDTH, pixels),
            words(left - 12, MAP_TOP + 200, first, 13),
            words(left - 12, MAP_TOP + 218, second, 13),
        ]
    rows = [words(22, MAP_TOP + 14 + 18 * row, str(row), 11, GREY) for row in range(len(made.added))]
    return [*parts, *rows, *(arrow(f"M{left + MAP_WIDTH + 8} {MAP_TOP + 90}h20") for left in MAPS[:2])]


def _map(left: float, top: float, width: float, pixels: np.ndarray) -> list[str]:
    height = width * pixels.shape[0] / pixels.shape[1]
    frame = f'<rect x="{left}" y="{top}" width="{width}" height="{height:g}" fill="none" stroke="{LINE}"/>'
    return [picture(left, top, width, pixels), frame]


def _collage(made: Transmission) -> np.ndarray:
    """The first public images that were read as each class, a row for a class; those that were read wrongly in red."""
    side = made.public.shape[1:]
    rows = []
    for klass in range(len(made.added)):
        found = np.flatnonzero(made.read == klass)[:SHOWN]
        cells = [_tinted(made.public[at], made.right[at]) for at in found]
        cells += [np.full((*side, 3), 255.0)] * (SHOWN - len(cells))
        rows.append(np.concatenate(cells, axis=1))
    return np.rint(np.concatenate(rows)).astype(np.uint8)


def _tinted(image: np.ndarray, right: bool) -> np.ndarray:
    ink = (255 - image[..., None]) / 255
    return 255 - ink * (255 - (np.zeros(3) if right else WRONG))


def main() -> None:
    write_whole(IMAGES / "feature-means.svg", feature_means(played()).encode())


if __name__ == "__main__":
    main()
