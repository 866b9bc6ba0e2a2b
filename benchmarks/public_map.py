"""Which payload to choose: the gains of class means and of a public set, by data split, devices and ε.

    python benchmarks/public_map.py run FOLDER [--device cuda] [--jobs N] [--seeds N]    the runs that FOLDER lacks
    python benchmarks/public_map.py draw FOLDER IMAGE    the map as an image and a table

The gain is relative to the same devices trained alone for the same number of epochs: for class means 20 rounds of one
epoch, for a public set 20 epochs (10 with 50 devices).
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
# Scheme, its baseline without communication, and the changes for the baseline.
LOCAL_TRAINING = ["learning.rounds=20", "learning.local_epochs=1", "learning.initial_lr=0.05"]
KINDS = {
    "class means": ("airdistill", "local_only", LOCAL_TRAINING),
    "public set": ("airdistill_proxy", "local_only", []),
}


def tasks() -> dict[str, tuple[str, list[str], str]]:
    """Preset, changes and scheme of each run, by the name of its folder."""
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
    for task, (preset, changes, scheme) in tasks().items():
        if len(finished(folder, task)) < seeds:
            options = RunOptions(device=device, eval_every=1000)
            ad.compare(ad.load(preset, changes), [scheme], seeds, out=folder / task, options=options, jobs=jobs)
            print(task, f"{accuracy(folder, task):.2f} %", flush=True)


def accuracy(folder: Path, task: str) -> float:
    """The mean accuracy in percent over the finished seeds."""
    accuracies = [json.loads(path.read_text())["accuracy"]["mean"] for path in finished(folder, task)]
    return 100 * float(np.mean(accuracies)) if accuracies else float("nan")


def finished(folder: Path, task: str) -> list[Path]:
    return sorted((folder / task).glob("*/seed-*/summary.json"))


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
            label, colour = f"{gain:+.1f}\n{ends[row, column]:.1f} %", "white" if gain > 30 else "black"
            axes.text(column, row, label, ha="center", va="center", fontsize=8, color=colour)
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
