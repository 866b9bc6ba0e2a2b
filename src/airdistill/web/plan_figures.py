"""A plan in pictures that answer to the pointer."""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go

from airdistill.codesign.plan import Plan
from airdistill.report.drawing import BLUE, GREEN, GREY, ORANGE, RED
from airdistill.report.plan_figure import gap_curve, shows_choice
from airdistill.report.words import number
from airdistill.web.figures import new_figure

_MOST_BARS = 30


def gap_figure(plan: Plan) -> go.Figure:
    """ΣΩ against T, the optimum, and the plan's own T if it is another."""
    curve, best = gap_curve(plan), plan.rounds.exact
    figure = new_figure()
    figure.add_scatter(x=curve.num_rounds, y=curve.gaps, name="gap ΣΩ", line={"color": BLUE, "width": 3})
    figure.add_scatter(
        x=curve.num_rounds, y=curve.without_noise, name="without any noise", line={"color": ORANGE, "dash": "dash"}
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
    """Noise variance per entry of every class: what privacy requires, and what is got."""
    figure, forecast = new_figure(), plan.forecast
    names = [str(row) for row in range(len(forecast.required_noise_var))]
    for values, name, colour in [
        (forecast.required_noise_var, "required by privacy", ORANGE),
        (forecast.effective_noise_var, "got", BLUE),
    ]:
        if len(names) <= _MOST_BARS:
            figure.add_bar(x=names, y=values, name=name, marker={"color": colour})
        else:
            figure.add_scatter(x=names, y=values, name=name, line={"color": colour})
    rows = "class" if plan.uplink.payload == "knowledge" else "vector"
    figure.update_xaxes(title=rows, type="category")
    positive = bool((forecast.effective_noise_var > 0).any())
    figure.update_yaxes(type="log" if positive else "linear", title="noise variance per entry", exponentformat="power")
    return figure


def epsilon_figure(plan: Plan) -> go.Figure | None:
    """The worst device's ε at the end under every sensitivity model, and what was asked; None if none is finite."""
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
        text=[number(value) for value in finite.values()],
        orientation="h",
        marker={"color": [GREEN if model == declared else GREY for model in finite]},
        name="ε of the worst device",
        showlegend=False,
    )
    asked = float(plan.fleet.epsilon.max())
    if np.isfinite(asked):
        figure.add_vline(x=asked, line={"color": RED, "dash": "dot"})
        # On a logarithmic axis a note's place is its logarithm.
        words = f" asked at most {number(asked)}"
        figure.add_annotation(x=math.log10(asked), y=1.12, yref="paper", text=words, showarrow=False, xanchor="left")
    figure.update_xaxes(type="log", title="ε of the worst device at the end", exponentformat="power")
    figure.update_yaxes(autorange="reversed")
    return figure
