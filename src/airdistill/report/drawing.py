"""How figures look: a scheme has the same colour, line and mark everywhere.

They stay apart in grey print and for colour-blind eyes.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airdistill.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours.
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE, GREY = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#767676",
)  # fmt: skip


@dataclass(frozen=True)
class Look:
    """Of one curve."""

    colour: str
    line: str
    mark: str

    def style(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": self.line, "marker": self.mark, "linewidth": 1.8, "markersize": 5}


LOOKS = {
    "airdistill": Look(GREEN, "-", "D"),
    "ota_fd": Look(BLUE, "-", "o"),
    "ota_fd_fixed": Look(SKY, "-", "s"),
    "ota_fd_antennas": Look(SKY, "--", "p"),
    "orthogonal_fd": Look(PURPLE, "-", "P"),
    "fd_error_free": Look(GREEN, "--", "^"),
    "airdistill_proxy": Look(ORANGE, "-", "D"),
    "ota_proxy_fd": Look(BLUE, "-.", "o"),
    "proxy_fd": Look(PURPLE, "--", "^"),
    "selective_fd": Look(SKY, "-.", "^"),
    "local_only": Look(GREY, ":", ""),
    "ota_fl": Look(RED, "--", "D"),
    "ota_fl_fixed": Look(ORANGE, "--", "v"),
    "ota_fl_sampled": Look(PURPLE, ":", "d"),
    "fedsgd": Look(BLACK, "--", "x"),
    "fedavg": Look(BLACK, "-.", "*"),
}
_OTHERS = [Look(PURPLE, "-.", "X"), Look(GREEN, "--", "<"), Look(BLUE, ":", ">"), Look(RED, "-", "h")]


def looks_for(labels: list[str]) -> dict[str, Look]:
    """The look of every label: a scheme's own, and one of the rest in turn for any other."""
    unknown = [label for label in labels if label not in LOOKS]
    return {label: LOOKS.get(label) or _OTHERS[unknown.index(label) % len(_OTHERS)] for label in labels}


def new_figure(columns: int = 1, height: float = 4.2) -> tuple[Figure, list[Axes]]:
    """Axes beside each other, drawn without a screen; a single one is narrow enough for a phone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for each in axes:
        each.grid(which="major", alpha=0.3)
    return figure, list(axes)


def count_rounds(axes: Axes) -> None:
    """Along the horizontal axis, in whole numbers; of a single round there is a mark to see, and room on both sides."""
    from matplotlib.ticker import MaxNLocator

    for line in axes.get_lines():
        if len(line.get_xdata()) == 1 and line.get_marker() in ("", "None"):  # type: ignore[arg-type]
            line.set(marker="_", markersize=14)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    first, last = axes.dataLim.intervalx
    if 0 <= last - first < 1:
        axes.set(xlim=(first - 0.5, last + 0.5), xticks=[first])


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """Where it covers no curve."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.2)


def svg_of(figure: Figure) -> str:
    return rendered(figure, "svg").decode()


def save(figure: Figure, folder: Path, name: str) -> None:
    """As PNG and SVG."""
    for kind in ("png", "svg"):
        write_whole(folder / f"{name}.{kind}", rendered(figure, kind))


def rendered(figure: Figure, kind: str) -> bytes:
    """As "png", "svg" or "pdf"."""
    import matplotlib

    buffer = io.BytesIO()
    # Text stays text, and the same figure the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "airdistill"}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name in letters that the font lacks
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()
