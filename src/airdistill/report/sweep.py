"""A sweep in figures by facet, and the page of a sweep of plans."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airdistill import __version__
from airdistill.files import jsonable, write_whole
from airdistill.report.drawing import legend_below, looks_for, save, svg_of
from airdistill.report.page import Block, Bullets, DataTable, Drawing, Page, Section, render
from airdistill.report.run import REPORT
from airdistill.report.wording import number
from airdistill.runs.grid import Point, cells_of, label_of, short_names
from airdistill.runs.planned import PlannedSweep
from airdistill.runs.results import Curve, Interval, arm_results, mean_curve, runs_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from airdistill.runs.comparison import ComparisonRecord
    from airdistill.runs.tables import Row

MOST_PANELS = 12
_MOST_COLUMNS = 3
_LOGARITHMIC_FROM = 8  # ratio of the largest value of a field to its smallest
_PLAN_COLUMNS = {
    "rounds": "rounds",
    "limiting_factor": "limited by",
    "effective_noise": "noise Φ",
    "convergence_gap": "gap",
    "uplink_seconds": "uplink (s)",
    "joules": "energy (J)",
}
Measured = list[tuple[Point, str, Interval]]  # a value at a point, of a scheme


def horizontal_field(points: Iterable[Point]) -> str:
    """Return the field of the horizontal axis: the one with the most values, numbers before texts."""
    values: dict[str, list[Any]] = {}
    for point in points:
        for field, value in cells_of(point).items():
            if value not in values.setdefault(field, []):
                values[field].append(value)
    return max(values, key=lambda field: (_are_numbers(values[field]), len(values[field])))


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def facets(measured: Measured, vertical: str, logarithmic: bool = False) -> Figure:
    """Draw values against one field of the grid: a panel for each combination of the others, a line for each scheme."""
    field = horizontal_field(point for point, _, _ in measured)
    panels: dict[str, dict[str, list[tuple[Any, Interval]]]] = {}
    for point, scheme, interval in measured:
        rest = {name: value for name, value in point.items() if name != field}
        panels.setdefault(label_of(rest), {}).setdefault(scheme, []).append((cells_of(point)[field], interval))
    shown = dict(list(panels.items())[:MOST_PANELS])
    figure, axes = _panels(list(shown))
    for each, lines in zip(axes, shown.values(), strict=True):
        _draw_lines(each, lines)
        each.set_xlabel(short_names([field])[field])
        if logarithmic:
            each.set_yscale("log")
    axes[0].set_ylabel(vertical)
    legend_below(figure, axes[0], columns=4)
    return figure


def _draw_lines(axes: Axes, lines: dict[str, list[tuple[Any, Interval]]]) -> None:
    looks = looks_for(list(lines))
    found = [value for line in lines.values() for value, _ in line]
    places = list(dict.fromkeys(found))
    are_numbers = _are_numbers(places)
    for scheme, line in lines.items():
        ordered = sorted(line, key=lambda each: each[0] if are_numbers else places.index(each[0]))
        x = [value if are_numbers else places.index(value) for value, _ in ordered]
        intervals = [interval for _, interval in ordered]
        half = [interval.half or 0.0 for interval in intervals]
        axes.errorbar(x, [each.mean for each in intervals], half, label=scheme, capsize=3, **looks[scheme].style())
    if not are_numbers:
        axes.set_xticks(range(len(places)), [str(place) for place in places])
    elif min(places) > 0 and max(places) / min(places) >= _LOGARITHMIC_FROM:
        axes.set_xscale("log")


def _panels(titles: Sequence[str]) -> tuple[Figure, list[Axes]]:
    """Return a figure with a titled panel for each, in rows of three."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(_MOST_COLUMNS, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = Figure(figsize=(max(5.2, 3.4 * columns), 3.2 * rows + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel().tolist()
    for unused in grid[len(titles) :]:
        unused.remove()
    axes = grid[: len(titles)]
    for each, title in zip(axes, titles, strict=True):
        each.grid(which="major", alpha=0.3)
        each.set_title(title.replace(",", ", "), fontsize="medium")
    return figure, axes


# A sweep of runs.


def sweep_figures(record: ComparisonRecord) -> dict[str, tuple[Figure, str]]:
    """Return the figures of a sweep with their captions, by name; none before a run has ended."""
    if not record.runs:
        return {}
    arms = {arm.label: arm for arm in record.comparison.arms}
    measured = [
        (arms[result.label].point, arms[result.label].scheme, _in_percent(result.accuracy))
        for result in arm_results(record)
    ]
    at_end = facets(measured, "accuracy at the end (%)")
    note = _first_panels(len({label_of(arm.point) for arm in record.comparison.arms}))
    return {
        "facets": (at_end, "Test accuracy at the end, mean over devices and seeds, with 95 % intervals over seeds."),
        "curves": (_curve_panels(record), f"Mean test accuracy against rounds at every point of the grid.{note}"),
    }


def _first_panels(count: int) -> str:
    return f" The first {MOST_PANELS} of {count} points." if count > MOST_PANELS else ""


def _in_percent(interval: Interval) -> Interval:
    return Interval(100 * interval.mean, None if interval.half is None else 100 * interval.half)


def _curve_panels(record: ComparisonRecord) -> Figure:
    from airdistill.report.comparison import draw_against_rounds

    panels: dict[str, dict[str, Curve]] = {}
    for arm in record.comparison.arms:
        if runs := runs_of(record, arm.label):
            panels.setdefault(label_of(arm.point), {})[arm.scheme] = mean_curve(list(runs.values()))
    shown = dict(list(panels.items())[:MOST_PANELS])
    figure, axes = _panels(list(shown))
    for each, curves in zip(axes, shown.values(), strict=True):
        draw_against_rounds(each, curves)
        each.set_ylabel("")
    axes[0].set_ylabel("test accuracy (%)")
    legend_below(figure, axes[0], columns=4)
    return figure


def drawings_of(figures: dict[str, tuple[Figure, str]]) -> list[Drawing]:
    """Return figures for a page."""
    return [Drawing(svg_of(figure), caption, caption) for figure, caption in figures.values()]


# A sweep of plans.


def write_plans_page(planned: PlannedSweep) -> Path:
    """Write `report.html` and the figures of a sweep of plans; return the page's path."""
    figures = plan_figures(planned)
    for name, (figure, _) in figures.items():
        save(figure, planned.folder, name)
    write_whole(planned.folder / REPORT, render(_plans_page(planned, figures)).encode())
    return planned.folder / REPORT


def plan_figures(planned: PlannedSweep) -> dict[str, tuple[Figure, str]]:
    """Return figures of rounds, noise and predicted gap over the grid."""
    wanted = {
        "rounds": ("planned rounds", "Planned number of rounds."),
        "effective_noise": ("noise Φ", "Planned noise of a round in the gradient, Φ."),
        "convergence_gap": ("predicted gap", "Predicted convergence gap."),
    }
    found = {name: (_measured(planned, name), words) for name, words in wanted.items()}
    return {
        name: (facets(measured, vertical, logarithmic=all(each.mean > 0 for _, _, each in measured)), caption)
        for name, (measured, (vertical, caption)) in found.items()
        if measured
    }


def _measured(planned: PlannedSweep, name: str) -> Measured:
    values: dict[str, list[float]] = {}
    for row in planned.rows:
        if not row["problem"] and math.isfinite(row[name]):
            values.setdefault(row["label"], []).append(row[name])
    arms = {arm.label: arm for arm in planned.comparison.arms}
    return [(arms[label].point, arms[label].scheme, Interval.of(found)) for label, found in values.items()]


def plan_cells(planned: PlannedSweep) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return columns and rows of a table of plans, for the terminal and the page."""
    fields = planned.comparison.fields
    names = short_names(list(fields))
    columns = ("scheme", *names.values(), "seed", *_PLAN_COLUMNS.values())
    rows = [
        (row["scheme"], *(str(row[field]) for field in fields), str(row["seed"]), *_plan_values(row))
        for row in planned.rows
    ]
    return columns, rows


def _plan_values(row: Row) -> list[str]:
    if row["problem"]:
        return ["no plan", *[""] * (len(_PLAN_COLUMNS) - 1)]
    values = [row[name] for name in _PLAN_COLUMNS]
    return [number(value) if isinstance(value, float) else str(value) for value in values]


def problems_of(planned: PlannedSweep) -> tuple[str, ...]:
    """Return a line for every plan that could not be made."""
    return tuple(f"{row['label']}, seed {row['seed']}: {row['problem']}" for row in planned.rows if row["problem"])


def plans_to_dict(planned: PlannedSweep) -> dict[str, Any]:
    """Return all plans' numbers for JSON; null is infinity."""
    written: dict[str, Any] = jsonable({"folder": str(planned.folder), "plans": list(planned.rows)}, nan_is_null=True)
    return written


def _plans_page(planned: PlannedSweep, figures: dict[str, tuple[Figure, str]]) -> Page:
    columns, rows = plan_cells(planned)
    problems = problems_of(planned)
    table = DataTable(columns, tuple(rows), caption="Uplink time and energy are those of all rounds.")
    blocks: tuple[Block, ...] = (*drawings_of(figures), table, *([Bullets(problems, "warning")] if problems else []))
    return Page(
        title=f"{planned.comparison.name}: {len(rows)} plans",
        subtitle=f"over {', '.join(planned.comparison.fields)}; nothing was trained",
        sections=(Section("Plans", blocks),),
        made_by=f"airdistill {__version__}",
    )
