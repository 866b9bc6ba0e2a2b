"""Parts of the drawings in docs/images: a frame, words, pixels, arrows, and waves that meet in a sum."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np

from airdistill.schemes.base import BLUE, GREEN, ORANGE

INK, LINE = "#1a1a1a", "#c8c8c8"


def document(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    """A drawing on white; `label` says to those who cannot see it what it shows."""
    frame = f'<rect width="{width}" height="{height}" rx="14" fill="#ffffff" stroke="{LINE}"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{label}" font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif">\n'
        f'<defs><marker id="head" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L10 5L0 10z" fill="{INK}"/></marker></defs>\n' + "\n".join([frame, *parts]) + "\n</svg>\n"
    )


def words(x: float, y: float, text: str, size: float = 15, colour: str = INK, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" font-weight="{weight}">{text}</text>'


def arrow(way: str) -> str:
    """A straight one."""
    return f'<path d="{way}" stroke="{INK}" stroke-width="2" marker-end="url(#head)"/>'


def waves(starts: Sequence[tuple[float, float]], colours: Sequence[str], sum_at: tuple[float, float]) -> list[str]:
    """A wave from every start down to one sum, and an arrow below it."""
    along, (sum_x, sum_y) = np.linspace(0, 1, 241), sum_at
    drawn = []
    for begin, colour in zip(starts, colours, strict=True):
        start = np.array(begin)
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


def way_back(way: str, left: float, top: float) -> list[str]:
    """The broadcast: a green line that ends in a head which points left, at (left, top)."""
    return [
        f'<path d="{way}" fill="none" stroke="{GREEN}" stroke-width="3" stroke-linejoin="round"/>',
        f'<path d="M{left} {top}l12 -7v14z" fill="{GREEN}"/>',
    ]


def coloured(values: np.ndarray, largest: float = 1.0) -> np.ndarray:
    """Numbers `[row, column]` as colours: white at 0, blue at `largest` and above, orange at −`largest` and below."""
    share = np.clip(np.abs(values) / largest, 0, 1)[..., None]
    ends = np.where(values[..., None] > 0, _rgb(BLUE), _rgb(ORANGE))
    return np.rint(255 + share * (ends - 255.0)).astype(np.uint8)


def _rgb(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def picture(x: float, y: float, width: float, pixels: np.ndarray) -> str:
    """Square pixels of grey `[row, column]` or colour `[row, column, 3]`, with sharp edges."""
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    scale = -(-112 // len(pixels))  # browsers may smooth what they enlarge: with enough pixels they need not
    large = np.kron(pixels, np.ones((scale, scale, 1) if pixels.ndim == 3 else (scale, scale), dtype=np.uint8))
    imsave(buffer, large, format="png", cmap="gray", vmin=0, vmax=255, metadata={"Software": None})
    content = base64.b64encode(buffer.getvalue()).decode()
    height = f"{width * pixels.shape[0] / pixels.shape[1]:g}"
    return f'<image x="{x}" y="{y}" width="{width:g}" height="{height}" href="data:image/png;base64,{content}"/>'
