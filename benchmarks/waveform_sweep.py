"""Every impairment of a waveform against its size: its error, the accuracy, and the certified ε.

    OMP_NUM_THREADS=1 python benchmarks/waveform_sweep.py > errors.md                  # 45 s of processor time
    OMP_NUM_THREADS=1 python benchmarks/waveform_sweep.py --accuracy > accuracy.md     # 2 minutes
    python benchmarks/waveform_sweep.py --draw errors.md accuracy.md    # docs/images/waveform-impairments.png

Errors: 60 devices of `skewed`, within 100 m and with 20 W each, send votes on 300 public samples (3,000 numbers)
through tdl-a at 915 MHz, sample by sample. Every row is one charged round of random vectors of full length. Without
privacy (ε = inf) only the receiver's noise hides what radios do. At ε = 8 the devices' noise is there as well:
own_noise, which no impairment can weaken, and, for pilots and speed, fleet_noise with a server that keeps elements.

Accuracy: 20 such devices with 50 samples each send feature means (2,560 numbers) without privacy, and train softmax
regressions on what the server makes of them: mean test accuracy over devices, of three seeds.
"""

from __future__ import annotations

import argparse
import tempfile
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
TRAINED = [
    *("fleet.devices=20", "data.samples_per_device=50", "learning.model=softmax_regression"),
    *("learning.local_epochs=2", "learning.initial_lr=0.1", "privacy.epsilon=inf", "privacy.trust=own_noise"),
]
SEEDS = (0, 1, 2)
T_95 = 4.303  # the quantile of Student's distribution for three seeds
NO_PRIVACY, OWN, FLEET_NOISE = "none", "own_noise", "fleet_noise"
TRUST = {
    NO_PRIVACY: ["privacy.epsilon=inf", "privacy.trust=own_noise"],
    OWN: ["privacy.trust=own_noise"],
    FLEET_NOISE: ["privacy.trust=fleet_noise"],
}
LINES = {NO_PRIVACY: ("no privacy", GREY), OWN: ("own_noise, ε = 8", BLUE), FLEET_NOISE: ("fleet_noise, ε = 8", ORANGE)}


@dataclass(frozen=True)
class Impairment:
    """What is swept: its field and sizes in its unit, and the other settings that it needs.

    Accuracy is measured at the `trained` ones of the sizes only.
    """

    title: str
    field: str
    sizes: tuple[float, ...]
    trained: tuple[float, ...]
    unit: str = ""
    others: tuple[str, ...] = ()
    modes: tuple[str, ...] = (NO_PRIVACY, OWN)
    log: bool = True

    def changes(self, size: float) -> list[str]:
        return [f"waveform.{self.field}={f'{size:g} {self.unit}'.strip()}", *self.others]


PLANNED = (NO_PRIVACY, OWN, FLEET_NOISE)  # what plans count: fleet_noise pays for it
IMPAIRMENTS = (
    Impairment("Carrier offset, ± Hz", "carrier_offset", (10, 30, 100, 300, 1000, 3000), (30, 300, 1000, 3000)),
    Impairment("Phase noise: linewidth, Hz", "phase_noise", (0.3, 3, 30, 300, 3000), (30, 300, 3000)),
    Impairment(
        "Timing error, up to µs", "timing_error", (0.02, 0.08, 0.3, 1, 2, 4, 8), (0.02, 0.08, 8), "us"
    ),
    Impairment(
        "Ideal limiter: back-off, dB", "backoff_db", (-6, -3, 0, 3, 6, 9), (-6, 0), others=("waveform.amplifier=clip",),
        log=False,
    ),
    Impairment("Converter, bits", "adc_bits", (2, 3, 4, 6, 8, 12), (2, 4), log=False),
    Impairment("Pilot power, W", "pilot_power", (0.4, 4, 40, 400, 4000), (0.4, 4), "W", modes=PLANNED),
    Impairment("Speed, m/s", "speed", (1.4, 10, 30, 60, 120, 240), (60, 120, 240), modes=PLANNED),
)  # fmt: skip


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


@dataclass(frozen=True)
class Trained:
    """The mean accuracy over seeds, and half of its 95 % interval; `size` is None without an impairment."""

    impairment: Impairment | None
    size: float | None
    accuracy: float
    interval: float
    was_warned: bool


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


def trained() -> Iterator[Trained]:
    ideal = accuracy_of(None, None, ())
    yield ideal[0]
    for impairment in IMPAIRMENTS:
        for size in impairment.trained:
            yield accuracy_of(impairment, size, ideal[1])[0]


def accuracy_of(
    impairment: Impairment | None, size: float | None, usual: tuple[str, ...]
) -> tuple[Trained, tuple[str, ...]]:
    """One run for each seed; also the plan's warnings, of which `usual` are those without an impairment."""
    changes = [] if impairment is None or size is None else impairment.changes(size)
    scenarios = [ad.load("skewed", [*FLEET, *WAVE, *TRAINED, f"seed={seed}", *changes]) for seed in SEEDS]
    warnings = ad.plan(scenarios[0], scheme="feature_means").warnings
    with tempfile.TemporaryDirectory() as folder:
        records = [
            ad.run(scenario, "feature_means", out=Path(folder) / str(seed), options=ad.RunOptions(threads=1))
            for seed, scenario in zip(SEEDS, scenarios, strict=True)
        ]
    found = [record.rounds[-1]["accuracy"]["mean"] for record in records]
    interval = T_95 * float(np.std(found, ddof=1)) / np.sqrt(len(found))
    return Trained(impairment, size, float(np.mean(found)), interval, len(warnings) > len(usual)), tuple(warnings)


def printed_accuracy(row: Trained) -> str:
    title = "none" if row.impairment is None else row.impairment.title
    size = "" if row.size is None else f"{row.size:g}"
    warned = "yes" if row.was_warned and row.impairment is not None else ""
    return f"| {title} | {size} | {row.accuracy:.2%} | {row.interval:.2%} | {warned} |"


def printed(row: Row) -> str:
    start = f"| {row.impairment.title} | {row.size:g} | {row.mode} |"
    if row.factor == 0:
        return f"{start} refused | | | | yes |"
    warned = "yes" if row.was_warned else ""
    return f"{start} {row.ratio:.3g} | {row.error_db:.1f} | {row.factor:.2f} | {row.epsilon:.2f} | {warned} |"


def drawn(rows: list[Row], accuracies: list[Trained]) -> Figure:
    """A column for each impairment: error, accuracy and certified ε against its size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(17, 7.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(3, len(IMPAIRMENTS), sharex="col", sharey="row")
    for (top, middle, bottom), impairment in zip(panels.T, IMPAIRMENTS, strict=True):
        for mode in impairment.modes:
            of_mode = [row for row in rows if row.impairment is impairment and row.mode == mode]
            _line(top, of_mode, mode, [row.ratio for row in of_mode])
            if mode != NO_PRIVACY:
                _line(bottom, of_mode, mode, [row.epsilon for row in of_mode])
            if mode == FLEET_NOISE:
                _noise_needed(bottom, of_mode)
        _accuracy(middle, [row for row in accuracies if row.impairment is impairment], accuracies[0])
        top.set(title=impairment.title, yscale="log", ylim=(0.2, 5000))
        top.axhline(1, color=GREY, linewidth=0.7)
        middle.set(ylim=(0, 100))
        bottom.set(ylim=(0, 12))
    for axes in panels.flat:
        axes.grid(which="major", alpha=0.3)
    for axes, label in zip(panels[:, 0], ("measured over planned error", "accuracy, %", "certified ε"), strict=True):
        axes.set_ylabel(label)
    handles, labels = panels[0, -1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _accuracy(axes: Axes, rows: list[Trained], ideal: Trained) -> None:
    """Accuracies with their intervals; the line is the accuracy without an impairment."""
    _, colour = LINES[NO_PRIVACY]
    axes.axhline(100 * ideal.accuracy, color=GREY, linewidth=0.7)
    for row in rows:
        face = colour if row.was_warned else "white"
        style = {"marker": "o", "markersize": 5, "markerfacecolor": face, "color": colour, "capsize": 2}
        axes.errorbar([row.size], [100 * row.accuracy], [100 * row.interval], **style)
    axes.plot([row.size for row in rows], [100 * row.accuracy for row in rows], color=colour, zorder=1)


def _noise_needed(axes: Axes, rows: list[Row]) -> None:
    """By how much more noise fleet_noise keeps its ε."""
    for row in rows:
        if row.factor:
            where = {"xytext": (-2, 5), "textcoords": "offset points", "rotation": 60, "fontsize": 7}
            axes.annotate(f"×{row.factor:.3g}", (row.size, row.epsilon), **where)


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


def read_accuracy(table: Path) -> list[Trained]:
    """The rows of a printed table of accuracies; the first has no impairment."""
    by_title = {impairment.title: impairment for impairment in IMPAIRMENTS}
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.read_text().splitlines()[2:]]
    return [
        Trained(
            by_title.get(title),
            float(size) if size else None,
            float(accuracy.rstrip("%")) / 100,
            float(interval.rstrip("%")) / 100,
            warned == "yes",
        )
        for title, size, accuracy, interval, warned in cells
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accuracy", action="store_true", help="train, and print the accuracies")
    tables = ("ERRORS", "ACCURACY")
    parser.add_argument("--draw", metavar=tables, type=Path, nargs=2, help="draw tables that were printed before")
    given = parser.parse_args()
    if given.draw is not None:
        write_whole(IMAGE, rendered(drawn(read(given.draw[0]), read_accuracy(given.draw[1])), "png"))
        return
    if given.accuracy:
        print("| impairment | size | accuracy | ± | warned |\n|---|---|---|---|---|")
        for each in trained():
            print(printed_accuracy(each), flush=True)
        return
    print("| impairment | size | protection | measured / planned | error / signal, dB | noise | ε | warned |")
    print("|---|---|---|---|---|---|---|---|")
    for row in swept():
        print(printed(row), flush=True)


if __name__ == "__main__":
    main()
