"""The command that made each picture of docs/images. `make pictures` repeats the quick ones, in seven minutes.

A test fails if a picture is not in this list, or if no page shows it.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[1]
IMAGES = DOCS / "images"


@dataclass(frozen=True)
class Picture:
    """A picture and its commands. Run in an empty folder, they write `made` there; a script writes it into docs/images.

    Pictures that are not `quick` need a GPU, hours, or a table that is printed first.
    """

    name: str
    commands: tuple[str, ...]
    made: str
    quick: bool = True


PICTURES = (
    Picture("plan-device-level.png", ("airdistill plan device-level --scheme ota_fd --plot gap.png",), "gap.png"),
    Picture(
        "plan-warehouse.png",
        ("airdistill plan warehouse.toml --plot gap.png",),
        "gap.png",
    ),
    Picture(
        "warehouse.png",
        (
            "airdistill compare warehouse.toml --schemes airdistill,ota_fd,local_only --rounds 40 --eval-every 5 "
            "--out hall-comparison",
        ),
        "hall-comparison/accuracy.png",
    ),
    Picture("system.svg", ("python docs/making/system_picture.py",), "docs/images/system.svg"),
    Picture("feature-means.svg", ("python docs/making/feature_means_picture.py",), "docs/images/feature-means.svg"),
    Picture("waveform.png", ("python docs/making/waveform_picture.py",), "docs/images/waveform.png"),
    Picture("accuracy.png", ("python docs/making/accuracy_picture.py",), "docs/images/accuracy.png"),
    *(
        Picture(name, ("python docs/making/page_pictures.py docs/images",), f"docs/images/{name}")
        for name in ("page-plan.png", "page-runs.png", "page-compare.png")
    ),
    Picture("fig2a-paper.png", ("airdistill reproduce fig2a --scenarios paper",), "figures/fig2a-paper.png"),
    Picture(
        "fig2a-paper-literal.png",
        ("airdistill reproduce fig2a --scenarios paper-literal",),
        "figures/fig2a-paper-literal.png",
    ),
    Picture(
        "fig2b-paper.png",
        (
            "airdistill reproduce fig2b --scenarios paper --seeds 3 --device cuda --jobs 6 --set seed=1 "
            "--set overrides.ota_fl.learning.max_rounds=500",
        ),
        "figures/fig2b-paper.png",
        quick=False,
    ),
    Picture(
        "audit-paper.png",
        ("airdistill audit paper --scheme ota_fd --set seed=1 --candidates 50 --device cuda",),
        "the first drawing of audits/paper-ota_fd/audit.html",
        quick=False,
    ),
    Picture(
        "public-map.png",
        (
            "python benchmarks/public_map.py run map --device cuda",
            "python benchmarks/public_map.py draw map public-map.png",
        ),
        "public-map.png",
        quick=False,
    ),
    Picture(
        "waveform-impairments.png",
        (
            "python benchmarks/waveform_sweep.py > errors.md",
            "python benchmarks/waveform_sweep.py --accuracy > accuracy.md",
            "python benchmarks/waveform_sweep.py --draw errors.md accuracy.md",
        ),
        "docs/images/waveform-impairments.png",
        quick=False,
    ),
)


def write_scenario(folder: Path) -> None:
    """Write the tutorial's scenario, which two of the pictures show."""
    (scenario,) = re.findall(r"```toml\n(# warehouse\.toml\n.*?)```", (DOCS / "tutorial.md").read_text(), re.DOTALL)
    (folder / "warehouse.toml").write_text(scenario)


def make(picture: Picture) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_scenario(folder)
        for command in picture.commands:
            arguments = command.split()[1:]
            subprocess.run([sys.executable, "-m", "airdistill", *arguments], cwd=folder, check=True)
        shutil.copyfile(folder / picture.made, IMAGES / picture.name)


def is_script(picture: Picture) -> bool:
    return picture.commands[0].startswith("python ")


def run_scripts(pictures: list[Picture]) -> None:
    """Run each script once, however many pictures it makes."""
    for command in dict.fromkeys(command for picture in pictures for command in picture.commands):
        subprocess.run([sys.executable, *command.split()[1:]], cwd=DOCS.parent, check=True)


if __name__ == "__main__":
    quick = [picture for picture in PICTURES if picture.quick]
    run_scripts([picture for picture in quick if is_script(picture)])
    for picture in quick:
        if not is_script(picture):
            make(picture)
