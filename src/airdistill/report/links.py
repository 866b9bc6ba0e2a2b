"""The links of a plan's devices as a table, as a map of letters for the terminal, and as a drawing; and its radio.

The radio's part of a plan is rows: waveform, energy, receiver noise, and the limits of a band.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from airdistill.arrays import BoolArray, FloatArray
from airdistill.files import jsonable
from airdistill.planning.links import DeviceLinks, device_links
from airdistill.planning.plan import Plan
from airdistill.report.drawing import new_figure, svg_of
from airdistill.report.page import Block, DataTable, Drawing, Paragraph, Section
from airdistill.report.plan_figure import check_figure_path, write_figure
from airdistill.report.terminal import starred_table
from airdistill.report.wording import MOST_ROWS, number
from airdistill.scenario.bands import has_given_channels
from airdistill.scenario.cells import is_threegpp
from airdistill.units import with_prefix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
from airdistill.channel.link_budget import level_db, noise_figure_db, noise_power_w
from airdistill.channel.waveform import Grid
from airdistill.planning.fleet import peak_power_limit_w
from airdistill.planning.waveform import coherence_db
from airdistill.privacy.trust import trust_statement
from airdistill.scenario.bands import BANDS, tone_bandwidth_hz
from airdistill.scenario.model import Scenario

Rows = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]
COLUMNS = (
    "device", "distance", "path\nloss, dB", "SNR, dB", "peak\npower", "power\nused", "noise\nshare",
    "channel\nlimits", "privacy\nlimits",
)  # fmt: skip
LINKS_NOTE = (
    "SNR: of one number at full power over the mean channel. Noise share: of\n"
    "all devices' noise, as received. Limits: share of rows and rounds in\n"
    "which the device's channel or its privacy target limits the scale λ,\n"
    "alone or with its equals"
)
NO_LINKS = "Nothing goes over a radio: the devices have no links."
_WIDTH, _HEIGHT = 75, 25  # of the map, odd: the server is in the middle; a letter is twice as high as wide
_MOST_NAMED = 100  # devices with their numbers on the map
_OFTEN = 0.05  # a device that limits λ in this share of rows and rounds, and more than most, is marked
_MARKED = "limits λ more often than most devices"


def print_links(plan: Plan, console: Console) -> None:
    """Print a row for every device, and the map."""
    links = device_links(plan)
    console.print("[bold]Links[/bold] of the devices")
    if links is None:
        console.print(NO_LINKS, highlight=False)
        return
    console.print(starred_table(*link_rows(links), caption=LINKS_NOTE, narrow=True))
    if links.distance_m is not None:
        console.print("[bold]Map[/bold]", map_note(links), sep="\n", highlight=False)
        console.print(text_map(links), markup=False, highlight=False)


def links_json(plan: Plan) -> dict[str, Any]:
    """Return the links for machines: lists with an entry for every device, null for infinity."""
    links = device_links(plan)
    if links is None:
        return {"links": None}
    return {"links": jsonable({**vars(links)})}


def links_section(plan: Plan) -> tuple[Section, ...]:
    """Return the devices' links; nothing if they would need Sionna or a file that has been moved."""
    radio = plan.scenario.radio
    if radio.trace is not None or (is_threegpp(radio.fading) and not has_given_channels(radio)):
        return ()
    links = device_links(plan)
    if links is None:
        return ()
    columns, rows = link_rows(links, _weakest(links))
    columns = tuple(column.replace("\n", " ") for column in columns)
    caption = LINKS_NOTE.replace("\n", " ")
    if len(rows) < len(links.snr_db):
        caption = f"The {len(rows)} devices with the lowest SNR of {len(links.snr_db)}. {caption}"
    blocks: list[Block] = [DataTable(columns, rows, caption=f"{caption}.")]
    if links.distance_m is not None:
        blocks.append(Drawing(svg_of(map_figure(links)), map_note(links), "Map of the devices around the server"))
    return (Section("Links", (Paragraph(link_summary(plan, links)), *blocks)),)


def link_summary(plan: Plan, links: DeviceLinks) -> str:
    """Name the weakest device and the one that limits λ most often."""
    weakest, limiting = int(np.argmin(links.snr_db)), int(np.argmax(links.limiting))
    by_channel = links.channel_limits[limiting] >= links.privacy_limits[limiting]
    reason = "channel" if by_channel else "privacy target"
    equals = int(np.count_nonzero(np.isclose(links.limiting, links.limiting[limiting])))
    others = "" if equals == 1 else f" (as {equals - 1} other{'s' if equals > 2 else ''} do)"
    snr, share = number(links.snr_db[weakest], ".1f"), links.limiting[limiting]
    return (
        f"Device {weakest} of {plan.fleet.num_devices} is the weakest, with {snr} dB SNR at full power. The {reason} "
        f"of device {limiting} limits the scale λ in {share:.0%} of rows and rounds{others}."
    )


def link_rows(links: DeviceLinks, devices: tuple[int, ...] | None = None) -> Rows:
    """Return a row for every device, or for some of them."""
    chosen = range(len(links.snr_db)) if devices is None else devices
    return COLUMNS, tuple(_link_row(links, device) for device in chosen)


def _link_row(links: DeviceLinks, device: int) -> tuple[str, ...]:
    distance, share = links.distance_m, links.noise_share
    return (
        str(device),
        "given" if distance is None else with_prefix(distance[device], "m"),
        number(links.path_loss_db[device], ".1f"),
        number(links.snr_db[device], ".1f"),
        with_prefix(links.peak_power_w[device], "W"),
        _share(links.power_used[device]),
        "none" if share is None else _share(share[device]),
        _share(links.channel_limits[device]),
        _share(links.privacy_limits[device]),
    )


def _share(share: float) -> str:
    """A share in percent; a dash for none, which is easier to overlook."""
    if share == 0:
        return "–"
    return "<0.1%" if share < 0.001 else f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def _weakest(links: DeviceLinks) -> tuple[int, ...] | None:
    if len(links.snr_db) <= MOST_ROWS:
        return None
    return tuple(int(device) for device in np.argsort(links.snr_db)[:MOST_ROWS])


def map_note(links: DeviceLinks) -> str:
    """Explain the map."""
    if links.bearings_matter:
        return "The server is in the middle. Directions are those for which the channels were drawn."
    return "The server is in the middle. Directions are drawn for the map only: the channels depend on distances."


def text_map(links: DeviceLinks) -> str:
    """Return the map as lines of letters, at most 77 wide.

    Devices have their numbers; in fleets above 100, and where numbers would overlap, marks for how many there are.
    """
    x, y, radius = _places(links)
    canvas = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    middle_column, middle_row = _WIDTH // 2, _HEIGHT // 2
    for share in (0.5, 1.0):
        for angle in np.linspace(0, 2 * np.pi, 120, endpoint=False):
            column = round(middle_column + share * np.cos(angle) * (middle_column - 1))
            canvas[round(middle_row - share * np.sin(angle) * middle_row)][column] = "·"
    columns = np.rint(middle_column + x / radius * (middle_column - 1)).astype(np.int64)
    rows = np.rint(middle_row - y / radius * middle_row).astype(np.int64)
    if len(x) <= _MOST_NAMED:
        marked = _draw_numbers(canvas, rows, columns, links)
    else:
        marked = _draw_counts(canvas, rows, columns)
    canvas[middle_row][middle_column] = "S"
    scale = f"S: server; rings at {with_prefix(radius / 2, 'm')} and {with_prefix(radius, 'm')}; {marked}"
    return "\n".join(["".join(line).rstrip() for line in canvas] + [scale])


def _draw_numbers(canvas: list[list[str]], rows: Any, columns: Any, links: DeviceLinks) -> str:
    """Write the devices' numbers, those that limit λ last and with a star; explain the marks."""
    taken = np.zeros((_HEIGHT, _WIDTH), dtype=np.bool_)
    crowded = False
    marked = _limits_often(links)
    for device in np.argsort(-links.limiting, kind="stable"):
        text = f"{device}{'*' if marked[device] else ''}"
        row, first = rows[device], min(max(columns[device] - (len(text) - 1) // 2, 0), _WIDTH - len(text))
        if taken[row, max(first - 1, 0) : first + len(text) + 1].any():
            crowded = True
            free = np.flatnonzero(~taken[row])
            beside = int(free[np.argmin(np.abs(free - columns[device]))])
            canvas[row][beside] = "+"
            taken[row, beside] = True
            continue
        canvas[row][first : first + len(text)] = text
        taken[row, first : first + len(text)] = True
    return f"*: limits λ more than most{'; +: more devices' if crowded else ''}"


def _limits_often(links: DeviceLinks) -> BoolArray:
    """The devices to mark, `[device]`; none if all of them limit λ together."""
    return np.asarray((links.limiting >= _OFTEN) & (links.limiting > np.median(links.limiting) + 1e-9))


def _draw_counts(canvas: list[list[str]], rows: Any, columns: Any) -> str:
    counts = np.zeros((_HEIGHT, _WIDTH), dtype=np.int64)
    np.add.at(counts, (rows, columns), 1)
    for row, column in np.argwhere(counts > 0):
        count = counts[row, column]
        canvas[row][column] = "." if count == 1 else ":" if count < 4 else "o" if count < 10 else "O"
    return ".: one device, : 2 or 3, o 4 to 9, O more"


def _places(links: DeviceLinks) -> tuple[FloatArray, FloatArray, float]:
    """Coordinates of the devices, m, and the radius of the map."""
    assert links.distance_m is not None
    assert links.bearing_rad is not None
    x, y = (links.distance_m * turned for turned in (np.cos(links.bearing_rad), np.sin(links.bearing_rad)))
    return np.asarray(x), np.asarray(y), float(links.distance_m.max())


def map_figure(links: DeviceLinks) -> Figure:
    """Draw the devices around the server, coloured by SNR; devices that limit λ often have a ring."""
    x, y, radius = _places(links)
    figure, (axes,) = new_figure(height=4.6)
    _draw_rings(axes, radius)
    dots = axes.scatter(x, y, c=links.snr_db, cmap="viridis", s=24, zorder=3)
    often = _limits_often(links)
    if often.any():
        axes.scatter(x[often], y[often], s=90, facecolors="none", edgecolors="black", zorder=4, label=_MARKED)
    axes.plot(0, 0, "^", color="black", markersize=9, label="server")
    axes.set(xlabel="m", ylabel="m", aspect="equal")
    figure.colorbar(dots, ax=axes, label="SNR at full power, dB")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _draw_rings(axes: Axes, radius: float) -> None:
    angles = np.linspace(0, 2 * np.pi, 200)
    for share in (0.5, 1.0):
        axes.plot(share * radius * np.cos(angles), share * radius * np.sin(angles), color="0.8", linewidth=0.8)


def plot_map(plan: Plan, path: Path) -> None:
    """Write the map as PNG, SVG or PDF, by the suffix of the file."""
    from airdistill.errors import InputError

    check_figure_path("--map", path)
    links = device_links(plan)
    if links is None or links.distance_m is None:
        reason = "nothing goes over a radio" if links is None else "gains are given or recorded"
        raise InputError("--map", str(path), f"the devices of this plan have no places, because {reason}; leave it out")
    write_figure("--map", map_figure(links), path)


def waveform_rows(plan: Plan) -> list[tuple[str, str]]:
    """Bandwidth, the parts of a round's air time, and what channel errors cost; nothing for single tones."""
    grid, scenario = Grid.of(plan.scenario), plan.scenario
    if grid is None:
        return []
    timing, seen = plan.air_time, plan.uplink.observation
    parts = {"data": timing.data_s, "pilots": timing.pilot_s, "feedback": timing.feedback_s, "guards": timing.guard_s}
    each = ", ".join(f"{name} {with_prefix(seconds, 's')}" for name, seconds in parts.items() if seconds > 0)
    tones = f"{grid.tones} tones of {with_prefix(grid.spacing_hz, 'Hz')} in {with_prefix(grid.bandwidth_hz, 'Hz')}"
    factor = seen.factor(trust_statement(scenario.privacy.trust))
    known = f"{factor:.3g} times the noise for privacy; {seen.misalignment:.2%} of a signal's energy is misaligned"
    aged = coherence_db(scenario, plan.uplink.num_slots)
    moving = f"changed by {aged:.1f} dB when a round ends" if np.isfinite(aged) else "at rest"
    symbols = f"{grid.num_symbols(plan.uplink.num_slots)} symbols of {grid.numbers_per_symbol} numbers"
    return [
        ("  of which", each),
        ("Waveform", f"OFDM, {tones}, {symbols}"),
        (
            "  channels",
            f"known from pilots: {known}; {moving}"
            if scenario.waveform.csi == "pilot"
            else "known exactly" + (f": {known}" if max(seen.fleet_factor, seen.receiver_factor) > 1 else ""),
        ),
    ]


def energy_rows(plan: Plan) -> list[tuple[str, str]]:
    """Energy, and how weak the weakest device is on the air."""
    return [
        ("Uplink energy", f"{with_prefix(plan.uplink_joules, 'J')} in all, for the whole fleet"),
        ("Weakest device", f"{plan.forecast.worst_snr_db:.1f} dB SNR at full power (median round)"),
        ("Receiver noise", _receiver_noise(plan.scenario)),
    ]


def _receiver_noise(scenario: Scenario) -> str:
    """The receiver noise of a tone, and the noise figure that it comes to if the bandwidth is known."""
    power_w, radio = noise_power_w(scenario), scenario.radio
    level = f"{level_db(power_w / 1e-3):.1f} dBm" if power_w > 0 else "none"
    if power_w == 0 or (radio.noise_power is not None and radio.bandwidth is None and scenario.waveform.kind != "ofdm"):
        return level
    return f"{level} in {tone_bandwidth_hz(scenario) / 1e3:g} kHz, a noise figure of {noise_figure_db(scenario):.1f} dB"


def transmit_limit_rows(plan: Plan) -> list[tuple[str, str]]:
    """The limits of a band, or those that the scenario gives; nothing without any."""
    rows, radio, limit_w = [], plan.scenario.radio, peak_power_limit_w(plan.scenario)
    if np.isfinite(limit_w):
        eirp = level_db(limit_w / 1e-3) + radio.device_antenna_dbi
        source = f", {BANDS[radio.band].source}" if radio.band is not None else ""
        rows.append(("Transmit limit", f"{with_prefix(limit_w, 'W')} a device, {eirp:.1f} dBm EIRP{source}"))
    if plan.duty_cycle < 1:
        pace = with_prefix(plan.least_seconds / plan.num_rounds, "s")
        whole = with_prefix(plan.least_seconds, "s")
        share = f"{100 * plan.duty_cycle:.3g} % of the time"
        rows.append(("Duty cycle", f"{share}: at least {whole} for the run, a round every {pace}"))
    return rows
