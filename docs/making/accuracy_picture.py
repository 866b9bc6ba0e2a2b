"""Draw docs/images/accuracy.png: accuracies of this project's schemes and others, from the tables of results.

Every number is read from these tables, and so the picture cannot contradict them. Run it with
`python docs/making/accuracy_picture.py` after they have changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airdistill.files import write_whole
from airdistill.report.drawing import LOOKS, new_figure, rendered
from airdistill.schemes.base import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOCS = Path(__file__).parent.parent
_ACCURACY = re.compile(r"([\d.]+) ± ([\d.]+) %")


@dataclass(frozen=True)
class Group:
    """Rows of one table: where it stands, what it is about, its setting, and in which words its schemes are shown.

    A row is found by how its first cell begins, behind the line `after` if that is given. `page` has the table.
    """

    section: str
    title: str
    setting: str
    rows: dict[str, str]
    after: str = ""
    page: str = "results.md"

    @property
    def text(self) -> str:
        return (DOCS / self.page).read_text()


GROUPS = (
    *(
        Group(
            "## Two classes each",
            f"{data}, two classes a device",
            f"200 devices × {samples} samples, whole-device ε = 8; {public} public samples",
            {"`airdistill_features`": "airdistill_features", **others},
            after=f"**{data}, 200 × {samples}, ε = 8**",
            page="results-feature-means.md",
        )
        for data, samples, public, others in (
            ("CIFAR-10", 150, "10,000", {}),
            ("Fashion-MNIST", 300, "3000", {"`feature_means`:": "linear receiver", "`airdistill_proxy`:": "votes"}),
        )
    ),
    Group(
        "### `paper` with",
        "The paper's fleet",
        "50 devices × 1200 samples, 400 rounds, ε = 0.00138 by Lemma 1",
        {
            "`airdistill`": "airdistill",
            "`ota_fd`:": "the paper (ota_fd)",
            "`local_only`": "devices alone",
            "`fd_error_free`": "no noise, not private",
        },
    ),
    Group(
        "### `small-data`:",
        "Little data",
        "200 devices × 60 samples, 100 rounds, whole-device ε = 8",
        {
            "`airdistill`": "airdistill",
            "`ota_fd`": "the paper (ota_fd)",
            "`local_only`": "devices alone",
            "`fd_error_free`": "no noise, not private",
        },
    ),
    Group(
        "## Knowledge on a public set",
        "Two classes a device",
        "200 devices × 300 samples, whole-device ε = 8; †: and a public set",
        {
            "`airdistill_proxy`": "airdistill_proxy †",
            "`ota_proxy_fd`:": "linear receiver †",
            "`ota_fd`:": "the paper (ota_fd)",
            "`ota_head`": "linear head †",
            "`ota_fedavg`": "FedAvg, clipped, 22× the air",
            "`ota_fl`, 16 rounds": "over-the-air FL, 12× the air",
            "`local_only`": "devices alone",
            "`selective_fd`, error-free": "Selective-FD †, not private",
        },
        after="**`skewed`, ε = 8**",
    ),
)


@dataclass(frozen=True)
class Measured:
    """One row: accuracy and half its 95 % interval over seeds, in per cent."""

    scheme: str
    words: str
    accuracy: float
    half: float
    seeds: int


def measured(text: str, group: Group) -> list[Measured]:
    """The group's rows, in its order."""
    section = text.split(f"\n{group.section}", 1)[1].split("\n#", 1)[0]
    lines = section.split(group.after, 1)[1].splitlines() if group.after else section.splitlines()
    found = []
    for begins, words in group.rows.items():
        line = next(line for line in lines if line.startswith(f"| {begins}"))
        accuracy, by_seed = line.split("|")[2:4]
        number = _ACCURACY.search(accuracy)
        if number is None:
            raise ValueError(f"docs/{group.page}: no accuracy with an interval in {line!r}")
        found.append(Measured(begins.split("`")[1], words, float(number[1]), float(number[2]), by_seed.count(",") + 1))
    return found


def draw() -> Figure:
    figure, (axes,) = new_figure(height=1.3 + 0.3 * sum(len(group.rows) + 2 for group in GROUPS))
    axes.grid(visible=False, axis="y")
    place, labels, seeds = 0.0, [], []
    for group in GROUPS:
        _head(axes, group, place)
        for row in measured(group.text, group):
            place += 1
            _draw_row(axes, row, place)
            labels.append((place, row.words))
            seeds.append(row.seeds)
        place += 2
    axes.set(xlim=(0, 100), ylim=(place - 1.3, -0.8))
    over = f"mean and 95 % interval over {min(seeds)} to {max(seeds)} seeds"
    axes.set_xlabel(f"accuracy of the devices' own models, %; MNIST if not named\n{over}", fontsize=9)
    axes.set_yticks([at for at, _ in labels], [words for _, words in labels], fontsize=9)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return figure


def _head(axes: Axes, group: Group, place: float) -> None:
    """Start at the left edge of the figure. The layout ignores it, because it would move the axes."""
    from matplotlib.transforms import blended_transform_factory

    at = blended_transform_factory(axes.figure.transFigure, axes.transData)
    for words, height, style in [
        (group.title, place - 0.42, {"weight": "bold", "fontsize": 9.5}),
        (group.setting, place + 0.12, {"color": GREY, "fontsize": 8.5}),
    ]:
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.text(0.01, height, words, transform=at, va="center", bbox=behind, **style).set_in_layout(False)


def _draw_row(axes: Axes, row: Measured, place: float) -> None:
    look, own = LOOKS[row.scheme], row.scheme.startswith("airdistill")
    line = {"color": look.colour, "marker": look.mark or "s", "markersize": 6, "capsize": 3}
    axes.plot([0, row.accuracy], [place, place], color=look.colour, linewidth=5 if own else 2, alpha=0.35, zorder=1)
    axes.errorbar(row.accuracy, place, xerr=row.half, zorder=2, **line)
    axes.text(103, place, f"{row.accuracy:.1f} %", va="center", fontsize=9, weight="bold" if own else "normal")


def main() -> None:
    write_whole(DOCS / "images" / "accuracy.png", rendered(draw(), "png"))


if __name__ == "__main__":
    main()
