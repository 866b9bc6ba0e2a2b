"""Draw and save figures, and place them in a page.

A scheme has the same colour, line and marker in every figure. Curves remain distinguishable in grey print and for
colour-blind readers.
"""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from airdistill.files import write_whole
from airdistill.schemes.base import BLUE, GREEN, PURPLE, RED, Look
from airdistill.schemes.registry import SCHEMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_REFERENCE = re.compile(r"url\((['\"]?)#")
_LENGTH = re.compile(r"([\d.]+)(pt|px)?")
_PIXELS_PER_POINT = 96 / 72
_LARGEST_SCALE = 1.3  # beyond this, the letters of a drawing look too large next to the text

LOOKS = {name: scheme.look for name, scheme in SCHEMES.items() if scheme.look is not None}
_OTHERS = [Look(PURPLE, "-.", "X"), Look(GREEN, "--", "<"), Look(BLUE, ":", ">"), Look(RED, "-", "h")]


def looks_for(labels: list[str]) -> dict[str, Look]:
    """Return the look of every label: a built-in scheme's own, and for other labels the remaining looks in turn."""
    unknown = [label for label in labels if label not in LOOKS]
    return {label: LOOKS.get(label) or _OTHERS[unknown.index(label) % len(_OTHERS)] for label in labels}


def new_figure(columns: int = 1, height: float = 4.2) -> tuple[Figure, list[Axes]]:
    """Return a figure with a row of axes, drawn without a display. One column is narrow enough for a phone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for each in axes:
        each.grid(which="major", alpha=0.3)
    return figure, list(axes)


def count_rounds(axes: Axes) -> None:
    """Label the horizontal axis with whole rounds. A single round gets a visible marker and space on both sides."""
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
    """Place the legend below the axes, where it does not hide a curve."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.2)


def svg_of(figure: Figure) -> str:
    """Return the figure as SVG text."""
    return rendered(figure, "svg").decode()


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write the figure as PNG and SVG."""
    for kind in ("png", "svg"):
        write_whole(folder / f"{name}.{kind}", rendered(figure, kind))


def rendered(figure: Figure, kind: str) -> bytes:
    """Return the bytes of the figure; `kind` is "png", "svg" or "pdf"."""
    import matplotlib

    buffer = io.BytesIO()
    # Text remains text, and the same figure always gives the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "airdistill"}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a scenario's name may use letters that the font lacks
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()


def inline_svg(svg: str, name: str, alt: str) -> str:
    """Return the SVG for use inside HTML, without metadata and with every id prefixed by `name`.

    Drawings on one page must not share ids. A drawing fills the width of the page up to 1.3 times its natural width.
    """
    root = ElementTree.fromstring(svg)
    width = _pixels(root.attrib.pop("width"))
    root.attrib.pop("height", None)
    for metadata in root.findall("{*}metadata"):
        root.remove(metadata)
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {_local(key): _renamed(_local(key), value, name) for key, value in element.attrib.items()}
        if element.tag == "style" and element.text:
            # Matplotlib styles `*`, which inside a page would also apply to every other drawing.
            element.text = element.text.replace("*{", f"#{name} *{{")
    root.attrib |= {
        "id": name,
        "role": "img",
        "aria-label": alt,
        "style": f"max-width: {_LARGEST_SCALE * width:.0f}px",
    }
    root.tail = None
    return ElementTree.tostring(root, encoding="unicode")


def _local(qualified: str) -> str:
    """Drop the namespace: HTML knows that of SVG, and accepts `href` for `xlink:href`."""
    return qualified.rpartition("}")[2]


def _renamed(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    return _REFERENCE.sub(rf"url(\1#{name}-", value)


def _pixels(length: str) -> float:
    match = _LENGTH.fullmatch(length)
    if match is None:
        raise ValueError(f"the width of an SVG must be a number of pt or px, not {length!r}")
    return float(match[1]) * (_PIXELS_PER_POINT if match[2] == "pt" else 1)
