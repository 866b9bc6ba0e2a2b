"""Accuracy against rounds and against uplink time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airdistill.report.drawing import count_rounds, legend_below, looks_for, new_figure
from airdistill.runs.comparison import ComparisonRecord
from airdistill.runs.results import Curve, mean_curve, runs_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_MARKS = 12


def accuracy_figure(record: ComparisonRecord) -> Figure:
    """Both beside each other, with 95 % bands where there are several seeds."""
    curves = curves_of(record)
    figure, (by_round, by_time) = new_figure(columns=2)
    draw_against_rounds(by_round, curves)
    draw_against_time(by_time, curves)
    legend_below(figure, by_round, columns=5)
    return figure


def accuracy_panels(record: ComparisonRecord) -> list[Figure]:
    """The same as figures of their own, which a narrow screen can show."""
    drawn = []
    for draw in (draw_against_rounds, draw_against_time):
        figure, (axes,) = new_figure(height=4.4)
        draw(axes, curves_of(record))
        legend_below(figure, axes, columns=3)
        drawn.append(figure)
    return drawn


def curves_of(record: ComparisonRecord) -> dict[str, Curve]:
    """Of every arm with a run that ended, by label."""
    found = {arm.label: list(runs_of(record, arm.label).values()) for arm in record.comparison.arms}
    return {label: mean_curve(runs) for label, runs in found.items() if runs}


def draw_against_rounds(axes: Axes, curves: dict[str, Curve]) -> None:
    looks = looks_for(list(curves))
    for label, curve in curves.items():
        every = max(1, len(curve.rounds) // _MOST_MARKS)
        axes.plot(curve.rounds, 100 * curve.mean, label=label, markevery=every, **looks[label].style())
        axes.fill_between(curve.rounds, 100 * curve.low, 100 * curve.high, color=looks[label].colour, alpha=0.15, lw=0)
    count_rounds(axes)
    axes.set_ylabel("test accuracy, mean over devices (%)")


def draw_against_time(axes: Axes, curves: dict[str, Curve]) -> None:
    """On a logarithmic axis; who sends nothing is a level line."""
    looks = looks_for(list(curves))
    for label, curve in curves.items():
        if curve.seconds[-1] == 0:
            axes.axhline(100 * curve.mean[-1], label=label, color=looks[label].colour, linestyle=looks[label].line)
            continue
        every = max(1, len(curve.rounds) // _MOST_MARKS)
        axes.plot(curve.seconds, 100 * curve.mean, label=label, markevery=every, **looks[label].style())
        axes.fill_between(curve.seconds, 100 * curve.low, 100 * curve.high, color=looks[label].colour, alpha=0.15, lw=0)
    axes.set(xscale="log", xlabel="uplink time (s)", ylabel="test accuracy, mean over devices (%)")
