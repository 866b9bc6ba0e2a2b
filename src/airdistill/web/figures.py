"""Interactive figures of plans, runs and comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any, cast

import numpy as np
import plotly.graph_objects as go

from airdistill.planning.plan import Plan
from airdistill.report.drawing import looks_for
from airdistill.report.plan_figure import gap_curve, shows_choice
from airdistill.report.wording import number
from airdistill.runs.record import RunRecord
from airdistill.schemes.base import BLUE, GREEN, GREY, ORANGE, RED, SKY
from airdistill.units import rounded_up

CHART: dict[str, Any] = {"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"]}
_MOST_BARS = 30  # more classes than this are drawn as a line
_FEW_ROUNDS = 12  # up to this many, each round has a tick
_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}


def new_figure(height: int = 330) -> go.Figure:
    """An empty figure with narrow margins and the legend below, which fits on a phone."""
    return go.Figure(
        layout={
            "height": height,
            "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
            "legend": {"orientation": "h", "y": -0.22, "x": 0, "xanchor": "left"},
            "hoverlabel": {"namelength": -1},
        }
    )


def gap_figure(plan: Plan) -> go.Figure:
    """The convergence gap ΣΩ against T, with the optimum and, if it differs, the plan's T."""
    curve, best = gap_curve(plan), plan.rounds.exact
    figure = new_figure()
    figure.add_scatter(x=curve.num_rounds, y=curve.gaps, name="gap ΣΩ", line={"color": BLUE, "width": 3})
    figure.add_scatter(
        x=curve.num_rounds, y=curve.without_noise, name="without noise", line={"color": ORANGE, "dash": "dash"}
    )
    figure.add_scatter(
        x=[best], y=[curve.gap_at(best)], name=f"optimum, T = {best}", mode="markers",
        marker={"color": BLUE, "size": 12},
    )  # fmt: skip
    if shows_choice(plan):
        figure.add_scatter(
            x=[plan.num_rounds], y=[plan.convergence_gap], name=f"chosen, T = {plan.num_rounds}", mode="markers",
            marker={"color": RED, "size": 12, "symbol": "diamond"},
        )  # fmt: skip
    figure.update_xaxes(type="log", title="rounds T", dtick=1)
    figure.update_yaxes(type="log", title="gap, summed over devices", exponentformat="power", dtick="D2")
    return figure


def noise_figure(plan: Plan) -> go.Figure:
    """Required and achieved noise variance per entry of every class."""
    figure, forecast = new_figure(), plan.forecast
    names = [str(row) for row in range(len(forecast.required_noise_var))]
    for values, name, colour in [
        (forecast.required_noise_var, "required by privacy", ORANGE),
        (forecast.effective_noise_var, "achieved", BLUE),
    ]:
        if len(names) <= _MOST_BARS:
            figure.add_bar(x=names, y=values, name=name, marker={"color": colour})
        else:
            figure.add_scatter(x=names, y=values, name=name, line={"color": colour})
    rows = plan.uplink.payload.row_name
    figure.update_xaxes(title=rows, type="category")
    positive = bool((forecast.effective_noise_var > 0).any())
    figure.update_yaxes(type="log" if positive else "linear", title="noise variance per entry", exponentformat="power")
    return figure


def epsilon_figure(plan: Plan) -> go.Figure | None:
    """The worst device's ε at the end under every sensitivity model, and the target; None if no ε is finite."""
    declared = plan.scenario.privacy.sensitivity
    worst = {model: float(np.max(values)) for model, values in plan.epsilon_by_model.items()}
    finite = {model: value for model, value in worst.items() if np.isfinite(value) and value > 0}
    if not finite:
        return None
    figure = new_figure(height=250)
    figure.update_layout(margin={"t": 30})
    figure.add_bar(
        y=[f"{model} *" if model == declared else model for model in finite],
        x=list(finite.values()),
        text=[rounded_up(value) for value in finite.values()],
        orientation="h",
        marker={"color": [GREEN if model == declared else GREY for model in finite]},
        name="ε of the worst device",
        showlegend=False,
    )
    target = float(plan.fleet.epsilon.max())
    if np.isfinite(target):
        figure.add_vline(x=target, line={"color": RED, "dash": "dot"})
        # Plotly places an annotation on a logarithmic axis by the logarithm.
        note = f" target at most {number(target)}"
        figure.add_annotation(x=math.log10(target), y=1.12, yref="paper", text=note, showarrow=False, xanchor="left")
    figure.update_xaxes(type="log", title="ε of the worst device at the end", exponentformat="power")
    figure.update_yaxes(autorange="reversed")
    return figure


def accuracy_figure(record: RunRecord, num_rounds: int) -> go.Figure:
    """Mean accuracy over devices, with the range from the worst to the best."""
    lines = [line for line in record.rounds if "accuracy" in line]
    rounds = [line["round"] for line in lines]
    accuracy = {name: [100 * line["accuracy"][name] for line in lines] for name in ("mean", "worst", "best")}
    figure = new_figure()
    edge = {"mode": "lines", "line": {"width": 0, "color": SKY}}
    figure.add_scatter(x=rounds, y=accuracy["best"], **edge, showlegend=False, name="best device")
    figure.add_scatter(
        x=rounds, y=accuracy["worst"], **edge, fill="tonexty", name="worst to best device",
        fillcolor="rgba(86,180,233,0.25)",
    )  # fmt: skip
    figure.add_scatter(
        x=rounds, y=accuracy["mean"], mode="lines+markers", name="mean over devices", line={"color": BLUE, "width": 3}
    )
    _set_round_axis(figure, num_rounds)
    figure.update_yaxes(title="test accuracy (%)")
    return figure


def privacy_figure(record: RunRecord, plan: Plan) -> go.Figure | None:
    """The worst device's ε so far, and the target; None if the run spends no ε that can be drawn."""
    points = [(line["round"], line["epsilon_spent"]) for line in record.rounds if line["epsilon_spent"]]
    if not points:
        return None
    figure = new_figure()
    rounds, spent = zip(*points, strict=True)
    figure.add_scatter(x=rounds, y=spent, name="ε spent, worst device", line={"color": GREEN, "width": 3})
    low, high = float(plan.fleet.epsilon.min()), float(plan.fleet.epsilon.max())
    if np.isfinite(high):
        note = f"target {number(high)}" if low == high else f"targets: {number(low)} to {number(high)}, by device"
        figure.add_hline(y=high, line={"color": RED, "dash": "dot"}, annotation_text=note)
    _set_round_axis(figure, plan.num_rounds)
    figure.update_yaxes(title=f"ε ({plan.scenario.privacy.sensitivity})", rangemode="tozero")
    return figure


def run_noise_figure(record: RunRecord) -> go.Figure | None:
    """Squared error per entry: received, as predicted and as measured, and broadcast; None before the first round."""
    lines = [line for line in record.rounds if "measured_noise_var" in line]
    if not lines:
        return None
    figure = new_figure()
    for key, name, style in [
        ("measured_noise_var", "received, measured", {"color": ORANGE}),
        ("predicted_noise_var", "received, predicted", {"color": BLUE, "dash": "dash"}),
        ("estimate_error", "broadcast, measured", {"color": GREEN}),
    ]:
        if lines[-1].get(key) is not None:
            means = [_mean(cast("Any", line).get(key)) for line in lines]
            figure.add_scatter(x=[line["round"] for line in lines], y=means, name=name, line=style)
    _set_round_axis(figure, len(record.rounds))
    figure.update_yaxes(title="squared error per entry", type="log", exponentformat="power")
    return figure


def _set_round_axis(figure: go.Figure, num_rounds: int) -> None:
    few = {"dtick": 1} if num_rounds <= _FEW_ROUNDS else {}
    figure.update_xaxes(title="round", range=[0, num_rounds + 0.5], tickformat="d", **few)


def _mean(values: list[float | None] | None) -> float | None:
    known = [value for value in values or [] if value is not None]
    return float(np.mean(known)) if known else None


def class_table_figure(table: list[list[float | None]], largest: float) -> go.Figure:
    """A heat map of a table of classes by classes, with colours from 0 to `largest`, which all tables share."""
    figure = new_figure(height=310)
    classes = [str(label) for label in range(len(table))]
    figure.add_heatmap(
        z=table, x=classes, y=classes, zmin=0, zmax=largest, colorscale="Viridis", showscale=True,
        hovertemplate="class %{y}: %{z:.4g} for class %{x}<extra></extra>", colorbar={"thickness": 10},
    )  # fmt: skip
    figure.update_xaxes(title="probability of class", type="category", constrain="domain")
    figure.update_yaxes(title="class", type="category", autorange="reversed", scaleanchor="x")
    return figure


def rms_error(tables: Mapping[str, Any], name: str) -> float:
    """Root mean square difference between the entries of a table and the ideal ones."""
    ideal, other = (np.array(tables[key], dtype=np.float64) for key in ("ideal", name))
    difference = (other - ideal)[np.isfinite(ideal) & np.isfinite(other)]
    return float(np.sqrt((difference**2).mean())) if difference.size else float("nan")


def curves_figure(curves: dict[str, Any], against: str) -> go.Figure:
    """Accuracies of several arms against "rounds" or uplink "seconds", with 95 % bands if there are enough seeds."""
    figure, looks = new_figure(height=420), looks_for(list(curves))
    for label, curve in curves.items():
        x, look = getattr(curve, against), looks[label]
        label = escape(label, quote=False)  # Plotly interprets tags, and a folder can have any name
        line = {"color": look.colour, "dash": _DASHES[look.line], "width": 2.5}
        if against == "seconds" and x[-1] == 0:  # a scheme that does not transmit is a horizontal line
            figure.add_hline(y=100 * curve.mean[-1], line=line, annotation_text=label)
            continue
        if (curve.high > curve.low).any():
            band = {"x": [*x, *x[::-1]], "y": [*(100 * curve.high), *(100 * curve.low)[::-1]]}
            figure.add_scatter(
                **band, mode="lines", line={"width": 0}, fill="toself", fillcolor=look.colour, opacity=0.15,
                showlegend=False, hoverinfo="skip",
            )  # fmt: skip
        figure.add_scatter(x=x, y=100 * curve.mean, name=label, mode="lines+markers", line=line)
    titles = {"rounds": "round", "seconds": "uplink time"}
    figure.update_xaxes(title=titles[against])
    if against == "seconds":
        figure.update_xaxes(type="log", tickformat="~s", dtick="D2", ticksuffix="s")
    figure.update_yaxes(title="test accuracy, mean over devices (%)")
    return figure
