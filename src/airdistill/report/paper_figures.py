"""Draw the paper's two figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airdistill.report.comparison import curves_of, draw_against_time
from airdistill.report.drawing import LOOKS, legend_below, new_figure
from airdistill.reproduce.noise_curves import NoiseCurve
from airdistill.reproduce.recipes import SAME_TERMS_FD, SAME_TERMS_FL
from airdistill.runs.comparison import ComparisonRecord
from airdistill.schemes.base import BLACK, ORANGE, PURPLE, RED, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NOISE_LOOKS = {
    **LOOKS,
    "ota_fl_same_link": Look(RED, ":", "D"),
    "ota_fl_fixed_same_link": Look(ORANGE, ":", "v"),
    "orthogonal_fd_fixed": Look(PURPLE, "-", "P"),
    "own_noise_fixed": Look(BLACK, "-.", "*"),
    "airdistill_fixed": LOOKS["airdistill"],
}
_NOISE_NAMES = {
    "ota_fd": "FD, T optimised",
    "ota_fd_fixed": "FD, T constant",
    "ota_fl": "FL, T optimised",
    "ota_fl_fixed": "FL, T constant",
    "ota_fl_same_link": "FL on FD's link, T optimised",
    "ota_fl_fixed_same_link": "FL on FD's link, T constant",
    "orthogonal_fd_fixed": "FD, TDMA",
    "own_noise_fixed": "FD, own noise only",
    "airdistill_fixed": "airdistill, after its receiver",
}
_PAPERS = ("ota_fd", "ota_fd_fixed", "ota_fl", "ota_fl_fixed")
_PANELS = {
    "raw, as the paper plots it": (_PAPERS, "noise"),
    "in units of the gradient": ((*_PAPERS, "ota_fl_same_link", "ota_fl_fixed_same_link"), "gradient_noise"),
    "T constant: TDMA, superposed, tracked": (
        ("ota_fd_fixed", "orthogonal_fd_fixed", "own_noise_fixed", "airdistill_fixed"),
        "noise",
    ),
}


def draw_noise(curves: dict[str, NoiseCurve], title: str) -> Figure:
    """Draw Figure 2(a) in three panels: raw, in one unit, and the gain of superposition."""
    figure, panels = new_figure(columns=len(_PANELS), height=4.8)
    for axes, name in zip(panels, _PANELS, strict=True):
        _draw_noise_panel(axes, curves, name)
    figure.suptitle(title)
    _one_legend(figure, panels, columns=4)
    return figure


def noise_panels(curves: dict[str, NoiseCurve]) -> dict[str, Figure]:
    """Draw each panel as a figure, which a narrow screen can show."""
    drawn = {}
    for name in _PANELS:
        figure, (axes,) = new_figure(height=4.6)
        _draw_noise_panel(axes, curves, name)
        _one_legend(figure, [axes], columns=2)
        drawn[name] = figure
    return drawn


def _draw_noise_panel(axes: Axes, curves: dict[str, NoiseCurve], name: str) -> None:
    labels, quantity = _PANELS[name]
    for label in labels:
        values, style = getattr(curves[label], quantity), _NOISE_LOOKS[label].style()
        axes.loglog(curves[label].epsilon, values, label=_NOISE_NAMES[label], markevery=3, **style)
    axes.set(xlabel="ε of every device", ylabel="noise Φ of a round (squared error)", title=name)


def _one_legend(figure: Figure, panels: list[Axes], columns: int) -> None:
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False, handlelength=3.4
    )


def draw_accuracy(records: dict[str, ComparisonRecord], title: str) -> Figure:
    """Draw Figure 2(b), a panel for each choice of step sizes. The arms with exchanged terms are in the table only."""
    figure, panels = new_figure(columns=len(records), height=4.8)
    for axes, (step, record) in zip(panels, records.items(), strict=True):
        curves = curves_of(record)
        shown = {label: curve for label, curve in curves.items() if label not in (SAME_TERMS_FL, SAME_TERMS_FD)}
        draw_against_time(axes, shown)
        axes.set(title=f"step sizes {step}", ylim=(0, 100))
    figure.suptitle(title)
    legend_below(figure, panels[-1], columns=2 + len(panels))
    return figure
