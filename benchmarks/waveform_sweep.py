"""Every impairment of a waveform against its size: measured over planned error, and what privacy pays for it.

    OMP_NUM_THREADS=1 python benchmarks/waveform_sweep.py > table.md    # 45 s of processor time
    python benchmarks/waveform_sweep.py --draw table.md                 # draws docs/images/waveform-impairments.png

60 devices of `skewed`, within 100 m and with 20 W each, send votes on 300 public samples (3,000 numbers) through tdl-a
at 915 MHz, sample by sample. Every row is one charged round of random vectors of full length; nothing is trained.
Without privacy (ε = inf) only the receiver's noise hides what radios do. At ε = 8 the devices' noise is there as well:
own_noise, which no impairment can weaken, and, for pilots and speed, fleet_noise with a server that keeps elements.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import airdistill as ad
from airdistill.arrays import FloatArray
from airdistill.channel.sources import channel_source
from airdistill.errors import InputError
from airdistill.files import write_whole
from airdistill.planning.plan import Plan
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.trust import trust_statement
from airdistill.radio.charged_round import charge_round
from airdistill.radio.superposition import Reception
from airdistill.report.drawing import rendered
from airdistill.runs.accounts import Inputs, ledger_header
from airdistill.schemes.base import BLUE, GREY, ORANGE, RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IMAGE = Path(__file__).parents[1] / "docs" / "images" / "waveform-impairments.png"
SCHEME = "airdistill_proxy"
FLEET = [
    "fleet.devices=60",
    "public.samples=300",
    "radio.distance=100 m",
    "radio.fading=tdl-a",
    "radio.peak_power=20 W",
]
WAVE = ["waveform.kind=ofdm", "waveform.observed=elements", "air.medium=waveform", "waveform.pilot_power=4 kW"]
NO_PRIVACY, OWN, FLEET_NOISE = "none", "own_noise", "fleet_noise"
TRUST = {
    NO_PRIVACY: ["privacy.epsilon=inf", "privacy.trust=own_noise"],
    OWN: ["privacy.trust=own_noise"],
    FLEET_NOISE: ["privacy.trust=fleet_noise"],
}
LINES = {NO_PRIVACY: ("no privacy", GREY), OWN: ("own_noise, ε = 8", BLUE), FLEET_NOISE: ("fleet_noise, ε = 8", ORANGE)}


@dataclass(frozen=True)
class Impairment:
    """What is swept: its field and sizes in its unit, and the other settings that it needs."""

    title: str
    field: str
    sizes: tuple[float, ...]
    unit: str = ""
    others: tuple[str, ...] = ()
    modes: tuple[str, ...] = (NO_PRIVACY, OWN)
    log: bool = True

    def changes(self, size: float) -> list[str]:
        return [f"waveform.{self.field}={f'{size:g} {self.unit}'.strip()}", *self.others]


PLANNED = (NO_PRIVACY, OWN, FLEET_NOISE)  # what plans count: fleet_noise pays for it
IMPAIRMENTS = (
    Impairment("Carrier offset, ± Hz", "carrier_offset", (10, 30, 100, 300, 1000, 3000)),
    Impairment("Phase noise: linewidth, Hz", "phase_noise", (0.3, 3, 30, 300, 3000)),
    Impairment("Timing error, up to µs", "timing_error", (0.02, 0.08, 0.3, 1, 2, 4, 8), "us"),
    Impairment(
        "Ideal limiter: back-off, dB", "backoff_db", (-6, -3, 0, 3, 6, 9), "", ("waveform.amplifier=clip",), log=False
    ),
    Impairment("Converter, bits", "adc_bits", (2, 3, 4, 6, 8, 12), log=False),
    Impairment("Pilot power, W", "pilot_power", (0.4, 4, 40, 400, 4000), "W", modes=PLANNED),
    Impairment("Speed, m/s", "speed", (1.4, 10, 30, 60, 120, 240), modes=PLANNED),
)


@dataclass(frozen=True)
class Row:
    """One round. `factor` is the noise for privacy over that with known channels, and 0 if the plan is refused."""

    impairment: Impairment
    size: float
    mode: str
    ratio: float = np.nan
    error_db: float = np.nan
    factor: float = 0.0
    epsilon: float = np.nan
    was_warned: bool = True


MEASURED = ("ratio", "error_db", "factor", "epsilon")  # in a printed row, in this order


def vectors_of(plan: Plan) -> FloatArray:
    """A vector of full length for every device and row."""
    shape = (plan.fleet.num_devices, plan.uplink.num_rows, plan.uplink.vector_length)
    drawn = np.random.default_rng(0).random(shape)
    return np.asarray(drawn * (plan.uplink.largest_norm / np.linalg.norm(drawn, axis=2, keepdims=True)))


def one_round(plan: Plan) -> tuple[Reception, float]:
    """The reception of a charged round, and the largest ε that its ledger states."""
    ledger = Ledger(replace(ledger_header(plan, SCHEME, "private", Inputs("none")), enforced=False))
    reception = charge_round(plan, ledger, channel_source(plan.scenario), 1).transmit(vectors_of(plan))
    return reception, float(np.max(plan.epsilon_by_model["device"]))


def measured(impairment: Impairment, size: float, mode: str, ideal: tuple[str, ...]) -> Row:
    """A round of this size; `ideal` are the warnings that a plan without impairments has."""
    try:  # a plan that would be useless is refused
        plan = planned(mode, impairment.changes(size))
    except InputError:
        return Row(impairment, size, mode)
    reception, epsilon = one_round(plan)
    error, signal = reception.squared_error.mean(), (reception.ideal**2).mean()
    factor = plan.uplink.observation.factor(trust_statement(plan.scenario.privacy.trust))
    return Row(
        impairment,
        size,
        mode,
        float(error / reception.predicted_noise_var.mean()),
        float(10 * np.log10(error / signal)),
        factor,
        epsilon,
        len(plan.warnings) > len(ideal),
    )


def planned(mode: str, changes: list[str]) -> Plan:
    return ad.plan(ad.load("skewed", [*FLEET, *WAVE, *TRUST[mode], *changes]), scheme=SCHEME)


def swept() -> Iterator[Row]:
    usual = {mode: planned(mode, []).warnings for mode in TRUST}
    for impairment in IMPAIRMENTS:
        for mode in impairment.modes:
            for size in impairment.sizes:
                yield measured(impairment, size, mode, usual[mode])


def printed(row: Row) -> str:
    start = f"| {row.impairment.title} | {row.size:g} | {row.mode} |"
    if row.factor == 0:
        return f"{start} refused | | | | yes |"
    warned = "yes" if row.was_warned else ""
    return f"{start} {row.ratio:.3g} | {row.error_db:.1f} | {row.factor:.2f} | {row.epsilon:.2f} | {warned} |"


def drawn(rows: list[Row]) -> Figure:
    """A panel for each impairment, and one for what fleet_noise pays for channel errors."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 8.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(3, 3)
    flat = list(panels.flat)
    for axes, impairment in zip(flat, IMPAIRMENTS, strict=False):
        for mode in impairment.modes:
            of_mode = [row for row in rows if row.impairment is impairment and row.mode == mode]
            _line(axes, of_mode, mode, [row.ratio for row in of_mode])
        axes.set(title=impairment.title, yscale="log", ylim=(0.4, 5000))
        axes.axhline(1, color=GREY, linewidth=0.7)
    for axes, impairment in zip(flat[len(IMPAIRMENTS) :], IMPAIRMENTS[-2:], strict=True):
        of_fleet = [row for row in rows if row.impairment is impairment and row.mode == FLEET_NOISE]
        _line(axes, of_fleet, FLEET_NOISE, [row.factor or np.nan for row in of_fleet])
        axes.set(title=f"Noise for privacy: {impairment.title}", yscale="log", ylim=(0.9, 100))
    for axes in flat:
        axes.grid(which="major", alpha=0.3)
    for axes in panels[:, 0]:
        axes.set_ylabel("measured over planned error")
    flat[-2].set_ylabel("times the noise with known channels")
    handles, labels = flat[len(IMPAIRMENTS) - 1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _line(axes: Axes, rows: list[Row], mode: str, heights: list[float]) -> None:
    label, colour = LINES[mode]
    sizes = [row.size for row in rows]
    axes.plot(sizes, heights, color=colour, label=label, marker="o", markerfacecolor="white", markersize=5)
    warned = [(size, height) for size, height, row in zip(sizes, heights, rows, strict=True) if row.was_warned]
    if warned:
        axes.plot(*zip(*warned, strict=True), "o", color=colour, markersize=5)
    for size in (row.size for row in rows if row.factor == 0):
        axes.axvline(size, color=RED, linestyle=":")
    if rows[0].impairment.log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter("")


def read(table: Path) -> list[Row]:
    """The rows of a printed table."""
    by_title = {impairment.title: impairment for impairment in IMPAIRMENTS}
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.read_text().splitlines()[2:]]
    rows = []
    for title, size, mode, *found in cells:
        known = Row(by_title[title], float(size), mode)
        numbers = [float(cell) for cell in found[:-1]] if found[0] != "refused" else []
        rows.append(
            replace(known, **dict(zip(MEASURED, numbers, strict=True)), was_warned=found[-1] == "yes")
            if numbers
            else known
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", metavar="TABLE", type=Path, help="draw a table that was printed before")
    given = parser.parse_args()
    if given.draw is not None:
        write_whole(IMAGE, rendered(drawn(read(given.draw)), "png"))
        return
    print("| impairment | size | protection | measured / planned | error / signal, dB | noise | ε | warned |")
    print("|---|---|---|---|---|---|---|---|")
    for row in swept():
        print(printed(row), flush=True)


if __name__ == "__main__":
    main()
