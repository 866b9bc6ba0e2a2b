"""A plan on the terminal and its figure."""

import io

import pytest
from rich.console import Console

import airdistill as ad
from airdistill.errors import InputError
from airdistill.planning.what_if.feature_means import feature_evidence
from airdistill.report.plan import print_plan
from airdistill.report.plan_figure import plot_gap
from airdistill.report.wording import limiting_factor, number


def printed(plan, width=100, **options):
    console = Console(file=io.StringIO(), width=width)
    print_plan(plan, console, **options)
    return console.file.getvalue()


def test_the_terminal_shows_every_part_of_the_plan():
    plan = ad.plan("paper", "ota_fd")
    text = printed(plan)
    for words in ["Rounds", str(plan.num_rounds), "eq. (21)", str(plan.rounds.paper), "720 ms in all"]:
        assert words in text
    assert f"Limiting factor           {limiting_factor(plan.forecast.regime)} (privacy in " in text
    for words in ["Uplink energy", "Weakest device", "dB SNR", "class_mean", "trajectory", "paper*", "Warnings"]:
        assert words in text
    for assumption in plan.assumptions:
        assert " ".join(assumption.split()[:5]) in text


def test_the_limiting_factor_of_a_mixed_regime_names_both():
    assert [limiting_factor(regime) for regime in ("privacy", "channel", "mixed")] == [
        "privacy",
        "channel",
        "privacy and channel",
    ]


def test_a_plan_for_feature_means_says_how_sure_the_reading_is():
    plan = ad.plan(ad.load("skewed-50", ["privacy.epsilon=2"]), "airdistill_features")
    found = feature_evidence(plan)
    text = " ".join(printed(plan, width=200).split())
    hard, easy = (number(each.evidence) for each in (found.hard, found.easy))
    assert f"Evidence of a class faint: {hard} (hard data) to {easy} (easy data) standard deviations" in text
    assert f"{found.easy.right:.0%} ({found.easy.least:.0%} to {found.easy.most:.0%}) like MNIST" in text
    assert "Evidence of a class" not in printed(ad.plan("skewed-50", "airdistill_proxy"))


def test_devices_are_summarised_or_listed():
    plan = ad.plan("quick", "ota_fd")
    assert "median" in printed(plan)
    assert "│ 19 " in printed(plan, all_devices=True)


def test_the_table_fits_a_terminal_of_eighty_columns():
    for name in ["paper", "quick", "paper-literal"]:
        assert max(len(line) for line in printed(ad.plan(name, "ota_fd"), width=80).splitlines()) <= 80


def test_many_classes_are_summarised():
    counts = str([[1] * 40, [2] * 40])
    text = printed(ad.plan(ad.load("quick", ["fleet.devices=2", f"data.class_counts={counts}"]), "ota_fd"))
    assert "least" in text
    assert "│ 39 " not in text


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_gap_is_drawn(tmp_path, suffix, magic):
    path = tmp_path / f"gap.{suffix}"
    plot_gap(ad.plan("quick", "ota_fd"), path)
    assert path.read_bytes().startswith(magic)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_the_drawing_marks_the_optimum_and_the_choice(tmp_path):
    path = tmp_path / "gap.svg"
    plan = ad.plan("quick", "ota_fd")
    plot_gap(plan, path)
    text = path.read_text()
    assert f"optimum, T = {plan.rounds.exact}" in text
    assert "chosen, T = 60" in text


@pytest.mark.parametrize(("name", "rule"), [("gap.bmp", "must end in"), ("none/gap.png", "folder does not exist")])
def test_a_figure_that_cannot_be_written_is_rejected(tmp_path, name, rule):
    with pytest.raises(InputError, match=rule):
        plot_gap(ad.plan("quick", "ota_fd"), tmp_path / name)
