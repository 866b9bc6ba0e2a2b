"""The figures of an audit: shifts and μ round by round, and the ROC of each attack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from airdistill.arrays import FloatArray, IntArray
from airdistill.audit.empirical import EmpiricalAudit
from airdistill.audit.exact import ExactAudit, PairAudit
from airdistill.audit.membership import MembershipAudit
from airdistill.report.drawing import count_rounds, legend_below, new_figure
from airdistill.schemes.base import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"record": "one record", "device": "whole device"}
_COLOURS = {"record": BLUE, "device": ORANGE}
_CONSTRUCTED_COLOURS = {"record": BLACK, "device": GREY}
_BOUND_LOOKS = [(PURPLE, ":"), (GREEN, "-."), (RED, "--")]


def draw_shifts(exact: ExactAudit) -> Figure:
    """Draw ‖q(D) − q(D')‖ of the row with the largest shift against the round, with the bounds on it."""
    figure, (axes,) = new_figure(height=4.6)
    rounds = np.arange(1, exact.num_rounds + 1)
    for pair in exact.pairs:
        _band(axes, rounds, pair.shift, pair)
    for (name, bound), (colour, line) in zip(exact.bounds.items(), _BOUND_LOOKS, strict=False):
        axes.plot(rounds, bound, color=colour, linestyle=line, label=name)
    return _by_round(figure, axes, "largest shift of a row")


def draw_mu(exact: ExactAudit) -> Figure:
    """Draw the measured and the certified μ against the round."""
    figure, (axes,) = new_figure(height=4.2)
    rounds = np.arange(1, exact.num_rounds + 1)
    for pair in exact.pairs:
        _band(axes, rounds, pair.mu, pair)
    certified = exact.guarantee.mu
    if np.isfinite(certified).any():
        label = f"certified ({exact.guarantee.model})"
        axes.plot(rounds, np.where(np.isfinite(certified), certified, np.nan), color=RED, linestyle="--", label=label)
    return _by_round(figure, axes, "μ after the round")


def named(pair: PairAudit) -> str:
    """The neighbours of a pair in words."""
    return f"{NAMES[pair.relation]}, constructed" if pair.constructed else NAMES[pair.relation]


def _band(axes: Axes, rounds: IntArray, values: FloatArray, pair: PairAudit) -> None:
    """Draw median and range over transcripts. A logarithmic axis cannot show infinite values or zeros."""
    shown = np.where(np.isfinite(values) & (values > 0), values, np.nan)
    colour = (_CONSTRUCTED_COLOURS if pair.constructed else _COLOURS)[pair.relation]
    axes.plot(rounds, np.median(shown, axis=0), color=colour, label=named(pair), marker=".")
    axes.fill_between(rounds, shown.min(axis=0), shown.max(axis=0), color=colour, alpha=0.25, linewidth=0)


def _by_round(figure: Figure, axes: Axes, label: str) -> Figure:
    if any(_shows_on_logarithmic_axis(line.get_ydata(orig=True)) for line in axes.get_lines()):
        axes.set_yscale("log")
    count_rounds(axes)
    axes.set_ylabel(label)
    legend_below(figure, axes, columns=2)
    return figure


def _shows_on_logarithmic_axis(values: ArrayLike) -> bool:
    numbers = np.asarray(values, dtype=np.float64)
    return bool((np.isfinite(numbers) & (numbers > 0)).any())


def draw_attack(found: EmpiricalAudit) -> Figure:
    """Draw the ROC of the likelihood-ratio attack, and its theoretical curve TPR = Φ(Φ⁻¹(FPR) + μ)."""
    figure, (axes,) = new_figure(height=4.6)
    rates = np.linspace(0, 1, 201)
    axes.plot(found.roc.false_positive, found.roc.true_positive, color=BLUE, label="measured", drawstyle="steps-post")
    axes.plot(rates, ndtr(ndtri(rates) + found.mu), color=BLACK, linestyle="--", label="counted noise")
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", label="guessing")
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    legend_below(figure, axes, columns=3)
    return figure


def draw_membership(found: MembershipAudit) -> Figure:
    """Draw the ROC of membership inference on two logarithmic axes, which show low false positive rates."""
    figure, (axes,) = new_figure(height=4.6)
    least = 0.5 / max(found.num_members, found.num_non_members)
    rates = np.geomspace(least, 1, 200)
    measured = [np.maximum(rate, least) for rate in (found.roc.false_positive, found.roc.true_positive)]
    axes.loglog(*measured, color=BLUE, label="measured")  # straight between records of equal score
    axes.loglog(rates, rates, color=GREY, linestyle=":", label="guessing")
    if np.isfinite(found.epsilon):
        axes.loglog(rates, found.allowed_rates(rates), color=RED, linestyle="--", label="allowed by ε")
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    legend_below(figure, axes, columns=3)
    return figure
