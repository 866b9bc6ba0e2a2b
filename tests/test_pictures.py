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
    for group in drawing["GROUPS"]:
        text = (MAKING.parent / group.page).read_text()
        found = drawing["measured"](text, group)
        assert len(found) == len(group.rows)
        assert all(f"{row.accuracy:g}" in text and 0 < row.accuracy < 100 and row.seeds >= 3 for row in found)
        assert group.rows[f"`{found[0].scheme}`"].startswith("airdistill")
    drawing["draw"]()


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
        for page in ("results.md", "results-feature-means.md")
        for mean, half in found.findall((MAKING.parent / page).read_text())
    }
    told = found.findall((MAKING.parent.parent / "README.md").read_text())
    assert len(told) > 10
    assert [each for each in told if (float(each[0]), float(each[1])) not in known] == []


def test_feature_means_are_drawn_with_what_a_simulation_sends_and_receives(few_digits):
    """Three devices hold all that is sent: the sum is their mean."""
    drawing = runpy.run_path(str(MAKING / "feature_means_picture.py"))
    small = ["fleet.devices=3", "data.samples_per_device=60", "public.samples=60", f"data.dataset={few_digits}"]
    made = drawing["played"]([*small, "learning.model=softmax_regression", "public.embedding=raw"])
    assert len(made.devices) == 3
    np.testing.assert_allclose(made.added, np.mean([vector for _, vector in made.devices], axis=0))
    assert not np.allclose(made.received, made.added)
    assert made.noise_ratio > 1
    assert len(made.public) == len(made.read) == 60
    picture = drawing["feature_means"](made)
    assert len(ElementTree.fromstring(picture).findall(f"{SVG}image")) == 6 + 3 * 3 + 3
    assert picture == drawing["feature_means"](made)


def test_images_that_were_labelled_wrongly_are_drawn_in_red():
    tinted = runpy.run_path(str(MAKING / "feature_means_picture.py"))["_tinted"]
    image = np.array([[255, 0]], dtype=np.uint8)
    assert tinted(image, True).tolist() == [[[255, 255, 255], [0, 0, 0]]]
    assert tinted(image, False).tolist() == [[[255, 255, 255], [213, 94, 0]]]
