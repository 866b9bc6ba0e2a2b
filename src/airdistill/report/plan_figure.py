"""Draw the convergence gap against the number of rounds, with the optimum marked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from airdistill.arrays import FloatArray, IntArray
from airdistill.errors import InputError
from airdistill.files import write_whole
from airdistill.planning.plan import Plan, gap_objective, planning_draws
from airdistill.report.drawing import legend_below, new_figure, rendered
from airdistill.schemes.base import BLUE, ORANGE, RED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMATS = (".png", ".svg", ".pdf")


def plot_gap(plan: Plan, path: Path) -> None:
    """Write Ω against T as PNG, SVG or PDF, by the suffix of the file."""
    check_figure_path("--plot", path)
    curve, best = gap_curve(plan), plan.rounds.exact
    figure, (axes,) = new_figure()
    axes.loglog(curve.num_rounds, curve.gaps, color=BLUE, linewidth=2, label="gap ΣΩ")
    axes.loglog(curve.num_rounds, curve.without_noise, "--", color=ORANGE, label="without any noise")
    axes.plot(best, curve.gap_at(best), "o", color=BLUE, markersize=9, label=f"optimum, T = {best}")
    if shows_choice(plan):
        axes.plot(
            plan.num_rounds,
            plan.convergence_gap,
            "D",
            color=RED,
            markersize=8,
            label=f"chosen, T = {plan.num_rounds}",
        )
    axes.set(
        xlabel="rounds T",
        ylabel="convergence gap, summed over devices",
        title=f"Plan of {plan.scenario.name}",
    )
    legend_below(figure, axes, columns=2)
    write_figure("--plot", figure, path)


def check_figure_path(option: str, path: Path) -> None:
    """Raise before any work if a figure cannot be written there."""
    if path.suffix not in _FORMATS:
        raise InputError(option, str(path), f"must end in {', '.join(_FORMATS)}")
    if not path.parent.is_dir():
        raise InputError(option, str(path), "the folder does not exist; create it first")


def write_figure(option: str, figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's suffix."""
    try:
        write_whole(path, rendered(figure, path.suffix[1:]))
    except OSError as error:
        raise InputError(option, str(path), f"cannot be written: {error.strerror or error}") from None


@dataclass(frozen=True)
class GapCurve:
    """ΣΩ for every T drawn, and the part of it that remains without noise."""

    num_rounds: IntArray
    gaps: FloatArray
    without_noise: FloatArray

    def gap_at(self, num_rounds: int) -> float:
        return float(np.interp(num_rounds, self.num_rounds, self.gaps))


def shows_choice(plan: Plan) -> bool:
    """Tell whether the plan's T is to be marked in addition to the optimum."""
    return plan.num_rounds != plan.rounds.exact or plan.scenario.radio.transceiver == "paper"


def gap_curve(plan: Plan) -> GapCurve:
    """Compute the curve of a plan at about 120 values of T."""
    largest = max(plan.rounds.largest, plan.num_rounds)
    marked = {1, largest, plan.rounds.exact, plan.num_rounds}
    points = sorted(marked | {round(point) for point in np.geomspace(1, largest, 120)})
    objective = gap_objective(plan.scenario, plan.uplink, planning_draws(plan.scenario))
    start = 3 * plan.scenario.constants.loss_bound * plan.fleet.num_devices / plan.scenario.learning.initial_lr
    return GapCurve(np.array(points), np.array(objective.gaps(points)), start / np.sqrt(points))
