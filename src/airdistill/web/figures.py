"""What all pictures on the page have in common."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

METRIC_PX = 170  # two of them stand beside each other on a phone
CHART: dict[str, Any] = {"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"]}


def new_figure(height: int = 330) -> go.Figure:
    """Narrow margins, the legend below: there is room on a phone, too."""
    return go.Figure(
        layout={
            "height": height,
            "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
            "legend": {"orientation": "h", "y": -0.22, "x": 0, "xanchor": "left"},
            "hoverlabel": {"namelength": -1},
        }
    )
