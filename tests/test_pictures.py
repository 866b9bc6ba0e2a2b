"""The pictures of the docs are drawn from existing tables and from a simulation."""

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

MAKING = Path(__file__).parent.parent / "docs" / "making"
SVG = "{http://www.w3.org/2000/svg}"


def test_accuracies_are_those_of_the_tables():
    drawing = runpy.run_path(str(MAKING / "accuracy_picture.py"))
    text = (MAKING.parent / "results.md").read_text()
    for group in drawing["GROUPS"]:
        found = drawing["measured"](text, group)
        assert len(found) == len(group.rows)
        assert all(f"{row.accuracy:g}" in text and 0 < row.accuracy < 100 and row.seeds >= 3 for row in found)
        assert group.rows[f"`{found[0].scheme}`"].startswith("airdistill")
    drawing["draw"](text)


def test_an_accuracy_without_an_interval_is_refused():
    drawing = runpy.run_path(str(MAKING / "accuracy_picture.py"))
    group = drawing["Group"]("## Here", "", "", {"`ota_fd`": "the paper"})
    with pytest.raises(ValueError, match="no accuracy with an interval"):
        drawing["measured"]("\n## Here\n| `ota_fd` | 89.1 % | 82.8, 95.5 |\n", group)


def test_the_system_is_drawn_with_the_reception_of_a_simulation(few_digits):
    drawing = runpy.run_path(str(MAKING / "system_picture.py"))
    models = ["fleet.devices=3", "fleet.groups=[]", "learning.model=mlp"]
    small = [*models, "data.samples_per_device=60", f"data.dataset={few_digits}"]
    reception = drawing["last_reception"](1, small)
    assert reception.design is not None
    assert not np.allclose(reception.received, reception.ideal)
    picture = drawing["system"](reception, np.zeros((3, 28, 28), dtype=np.uint8), 1)
    assert len(ElementTree.fromstring(picture).findall(f"{SVG}image")) == 6
    assert picture == drawing["system"](reception, np.zeros((3, 28, 28), dtype=np.uint8), 1)


def test_colours_run_from_orange_over_white_to_blue():
    coloured = runpy.run_path(str(MAKING / "system_picture.py"))["coloured"](np.array([[-3.0, 0.0, 1.0]]))
    assert coloured.tolist() == [[[230, 159, 0], [255, 255, 255], [0, 114, 178]]]


def test_the_readmes_accuracies_are_those_of_the_results():
    """The README rounds them to a tenth."""
    found = re.compile(r"([\d.]+) ± ([\d.]+) %")
    known = {
        (round(float(mean), 1), round(float(half), 1))
        for mean, half in found.findall((MAKING.parent / "results.md").read_text())
    }
    told = found.findall((MAKING.parent.parent / "README.md").read_text())
    assert len(told) > 10
    assert [each for each in told if (float(each[0]), float(each[1])) not in known] == []
