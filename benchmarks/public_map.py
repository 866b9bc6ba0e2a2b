"""Which knowledge to share: what class means and a public set each gain, by split, devices and ε.

    python benchmarks/public_map.py run FOLDER [--device cuda] [--jobs N] [--seeds N]    what it does not hold yet
    python benchmarks/public_map.py draw FOLDER IMAGE    the map, as a picture and as a table

A gain is over the same devices trained alone for as long: for class means 20 rounds of one pass, for a public set 20
passes (10 with 50 devices).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import airdistill as ad
from airdistill.report.drawing import new_figure, rendered
from airdistill.runs.options import RunOptions

SPLITS = {
    "IID": ["data.partition=iid"],
    "Dirichlet 1": ["data.partition=dirichlet", "data.alpha=1"],
    "Dirichlet 0.5": ["data.partition=dirichlet", "data.alpha=0.5"],
    "Dirichlet 0.1": ["data.partition=dirichlet", "data.alpha=0.1"],
    "2 classes each": [],
}
PRESETS = {"skewed-50": 50, "skewed": 200}
EPSILONS = (2, 8)
# Scheme, its baseline, and what makes that of it: nobody hears anything.
ONE_BY_ONE = ["learning.rounds=20", "learning.local_epochs=1", "learning.initial_lr=0.05"]
KINDS = {
    "class means": ("airdistill", "local_only", ONE_BY_ONE),
    "public set": ("airdistill_proxy", "local_only", []),
}


def tasks() -> dict[str, tuple[str, list[str], str]]:
    """A folder's name for each run: the preset, the changes made to it, and the scheme."""
    found = {}
    for preset in PRESETS:
        for split, changes in SPLITS.items():
            for scheme, alone, as_alone in KINDS.values():
                for epsilon in EPSILONS:
                    found[name(preset, split, scheme, epsilon)] = (
                        preset,
                        [*changes, f"privacy.epsilon={epsilon}"],
                        scheme,
                    )
                found[name(preset, split, scheme, None)] = preset, [*changes, *as_alone], alone
    return found


def name(preset: str, split: str, scheme: str, epsilon: int | None) -> str:
    return f"{preset}-{split.replace(' ', '-')}-{scheme}-{'alone' if epsilon is None else epsilon}"


def run(folder: Path, device: str, jobs: int, seeds: int) -> None:
    for place, (preset, changes, scheme) in tasks().items():
        if len(ended(folder, place)) < seeds:
            options = RunOptions(device=device, eval_every=1000)
            ad.compare(ad.load(preset, changes), [scheme], seeds, out=folder / place, options=options, jobs=jobs)
            print(place, f"{accuracy(folder, place):.2f} %", flush=True)


def accuracy(folder: Path, place: str) -> float:
    """In percent, mean over the seeds whose runs have ended."""
    accuracies = [json.loads(path.read_text())["accuracy"]["mean"] for path in ended(folder, place)]
    return 100 * float(np.mean(accuracies)) if accuracies else float("nan")


def ended(folder: Path, place: str) -> list[Path]:
    return sorted((folder / place).glob("*/seed-*/summary.json"))


def draw(folder: Path, image: Path) -> None:
    figure, panels = new_figure(columns=2, height=3.8)
    columns = [(preset, epsilon) for preset in PRESETS for epsilon in EPSILONS]
    for axes, (kind, (scheme, _, _)) in zip(panels, KINDS.items(), strict=True):
        ends, gains = np.zeros((len(SPLITS), len(columns))), np.zeros((len(SPLITS), len(columns)))
        for row, split in enumerate(SPLITS):
            for column, (preset, epsilon) in enumerate(columns):
                ends[row, column] = accuracy(folder, name(preset, split, scheme, epsilon))
                gains[row, column] = ends[row, column] - accuracy(folder, name(preset, split, scheme, None))
        axes.imshow(np.clip(gains, -40, 40), cmap="RdYlGn", vmin=-40, vmax=40, aspect="auto")
        axes.grid(visible=False)
        for (row, column), gain in np.ndenumerate(gains):
            told, colour = f"{gain:+.1f}\n{ends[row, column]:.1f} %", "white" if gain > 30 else "black"
            axes.text(column, row, told, ha="center", va="center", fontsize=8, color=colour)
        axes.set_title(kind)
        axes.set_xticks(
            range(len(columns)), [f"{PRESETS[preset]} devices\nε = {epsilon}" for preset, epsilon in columns]
        )
        axes.set_yticks(range(len(SPLITS)), list(SPLITS))
        print(f"\n{kind}: gain over training alone, points (accuracy, %)")
        for split, line, end in zip(SPLITS, gains, ends, strict=True):
            print(
                f"| {split} |", " | ".join(f"{gain:+.1f} ({at:.1f})" for gain, at in zip(line, end, strict=True)), "|"
            )
    image.write_bytes(rendered(figure, image.suffix.removeprefix(".")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "draw"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("image", type=Path, nargs="?", default=Path("public-map.png"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    if given.what == "run":
        run(given.folder, given.device, given.jobs, given.seeds)
    else:
        draw(given.folder, given.image)


if __name__ == "__main__":
    main()
