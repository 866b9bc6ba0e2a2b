"""Pages and tables of real runs, comparisons and figures."""

import csv
import io
import json
import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
from in_process import exit_code, runs_in_this_process
from rich.console import Console
from small_worlds import small_scenario

import airdistill as ad
from airdistill.audit.auditing import audit_run
from airdistill.audit.options import AuditOptions
from airdistill.privacy.participation import Participation
from airdistill.report.audit_figures import draw_mu
from airdistill.report.certificate import certificate_page
from airdistill.report.comparison import (
    COLUMNS,
    LINK_COLUMNS,
    curves_csv,
    print_comparison,
    runs_csv,
    table_rows,
    write_comparison_page,
)
from airdistill.report.drawing import LOOKS, count_rounds, looks_for, new_figure
from airdistill.report.page import render
from airdistill.report.plan import summary_rows
from airdistill.report.run import write_run_page
from airdistill.runs.options import RunOptions
from airdistill.schemes.registry import SCHEMES, plan_run

OPTIONS = RunOptions(eval_every=2)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    schemes = ["ota_fd", "local_only", "fedsgd"]
    with runs_in_this_process():
        return ad.compare(small_scenario(folder), schemes, seeds=2, out=folder / "out", options=OPTIONS)


def text_of(page):
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page.read_text())))


def test_the_page_of_a_run_shows_results_and_assumptions(record):
    run = next(iter(record.runs.values()))
    text = text_of(write_run_page(run))
    for words in ["Results", "The plan", "Privacy spent", "How to reproduce", "--scheme ota_fd", "class_mean"]:
        assert words in text
    assert f"{run.summary['accuracy']['mean']:.2%}" in text
    for assumption in run.summary["assumptions"]:
        assert assumption in text


def test_the_page_of_a_comparison_has_tables_curves_and_settings(record):
    page = write_comparison_page(record)
    text = text_of(page)
    for words in [
        "3 schemes compared",
        "seeds 0, 1",
        "6 of 6 runs ended",
        "gain over local",
        "slots a round",
        "ε device",
    ]:
        assert words in text
    assert page.read_text().count("<svg") == 2
    for name in ("accuracy.png", "accuracy.svg", "runs.csv", "curves.csv"):
        assert (record.folder / name).stat().st_size > 0
    assert not re.search(r"(?:src|href)=[\"']?https?:", page.read_text())


def test_no_page_shows_an_epsilon_for_a_scheme_that_is_not_private(record, tmp_path):
    """The page of FedSGD says so, and the comparison shows the plan of the private scheme, though it comes second."""
    page = write_run_page(next(run for task, run in record.runs.items() if task.label == "fedsgd"))
    assert "released without noise" in text_of(page)
    assert "any local training" not in text_of(page)
    scenario = record.comparison.arms[0].scenario
    with runs_in_this_process():
        reordered = ad.compare(scenario, ["fedsgd", "ota_fd"], out=tmp_path / "reordered", options=OPTIONS)
    text = text_of(write_comparison_page(reordered))
    assert "Planned privacy of ota_fd" in text
    assert "Planned privacy of fedsgd" not in text


def test_a_name_is_escaped_on_the_page(record):
    """A certificate takes its name from a ledger, which anybody can write."""
    certificate = ad.certify(next(iter(record.runs.values())).folder)
    named = replace(certificate, header=replace(certificate.header, name="<script>alert(1)</script>"))
    html = render(certificate_page(named))
    assert "<script" not in html
    assert "<h1>Certificate of &lt;script&gt;alert(1)&lt;/script&gt;, ota_fd</h1>" in html


def test_the_files_hold_every_run(record):
    rows = list(csv.DictReader(io.StringIO(runs_csv(record))))
    assert [(row["label"], row["seed"]) for row in rows][:3] == [("ota_fd", "0"), ("local_only", "0"), ("fedsgd", "0")]
    assert rows[2]["epsilon_device"] == "inf"
    assert float(rows[0]["accuracy"]) == next(iter(record.runs.values())).summary["accuracy"]["mean"]
    points = list(csv.DictReader(io.StringIO(curves_csv(record))))
    assert [point["round"] for point in points[:3]] == ["2", "4", "6"]


def test_the_terminal_shows_everything_in_eighty_columns(record):
    console = Console(file=io.StringIO(), width=80)
    print_comparison(record, console)
    text = console.file.getvalue()
    assert "fedsgd" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_every_scheme_shows_antennas_participation_and_noise(tmp_path):
    changes = ["overrides.ota_fd.fleet.participation=0.5", "overrides.ota_fd.fleet.participation_hidden=true"]
    changes += ["overrides.ota_fl.fleet.participation=0.5", "overrides.ota_fd_antennas.radio.antennas=2"]
    schemes = ["ota_fd", "ota_fl", "ota_fl_fixed", "ota_fd_antennas", "fd_error_free", "local_only"]
    changes += ["overrides.ota_fd_antennas.fleet.participation_hidden=false"]
    changes += ["overrides.ota_fd_antennas.fleet.participation=1"]
    with runs_in_this_process():
        made = ad.compare(small_scenario(tmp_path, *changes), schemes, out=tmp_path / "out", options=OPTIONS)
    assert not made.failures
    link = {row[0]: row[len(COLUMNS) : len(COLUMNS) + len(LINK_COLUMNS)] for row in table_rows(made)}
    assert {name: row[:2] for name, row in link.items()} == {
        "ota_fd": ["1", "0.5, secret"],
        "ota_fl": ["1", "0.5, known"],
        "ota_fl_fixed": ["1", "0.5, known"],
        "ota_fd_antennas": ["2", "all"],
        "fd_error_free": ["1", "all"],
        "local_only": ["", ""],
    }
    assert link["local_only"][2] == link["fd_error_free"][2] == ""
    console = Console(file=io.StringIO(), width=80)
    print_comparison(made, console)
    shown = console.file.getvalue()
    for run in made.runs.values():
        lines = [line["measured_noise_var"] for line in run.rounds if "measured_noise_var" in line]
        noise = link[run.summary["scheme"]][2]
        if noise:
            assert noise == f"{np.median([value for rows in lines for value in rows if value is not None]):.3g}"
            assert noise in shown
            assert noise in text_of(write_run_page(run))
    page = text_of(write_comparison_page(made))
    assert "0.5, secret" in page
    assert "0.5, secret" in text_of(write_run_page(next(iter(made.runs.values()))))
    rows = {row["label"]: row for row in csv.DictReader(io.StringIO(runs_csv(made)))}
    assert (rows["ota_fd"]["participation"], rows["ota_fd"]["participation_hidden"]) == ("0.5", "True")
    assert (rows["ota_fd_antennas"]["antennas"], rows["local_only"]["antennas"]) == ("2", "")


class EveryOther(Participation):
    """Every other device, and all in every third round."""

    def mask(self, round_index):
        return None if round_index % 3 == 0 else (np.arange(self.num_devices) + round_index) % 2 == 0


def test_reports_name_the_users_own_participation_model(tmp_path):
    own = f"{__name__}:EveryOther"
    scenario = small_scenario(tmp_path, f"fleet.sampling={own}")
    record = ad.run(scenario, "ota_fd", rounds=2, out=tmp_path / "run", options=OPTIONS)
    assert re.search(rf"Participation\s+{own}", text_of(write_run_page(record)))
    rows = dict(summary_rows(plan_run(scenario, "ota_fd", 3)))
    assert rows["Participation"].startswith("1 to 3 of 3 devices a round; a device is charged for the 2 to 2 of 3")


class Idle(Participation):
    """One of three devices never sends; in every third round no device does."""

    def mask(self, round_index):
        return np.array([False, True, True]) & (round_index % 3 != 0)


def test_a_plan_says_which_rule_leaves_rounds_empty(tmp_path):
    own = f"{__name__}:Idle"
    made = ad.plan(small_scenario(tmp_path, f"fleet.sampling={own}"), "ota_fd")
    assert any(f"let more devices join with fleet.sampling = {own}" in line for line in made.warnings)
    assert "radio.truncation" not in " ".join(made.warnings)


def test_an_audit_of_a_device_that_never_sends_says_so(tmp_path, recwarn):
    scenario = small_scenario(tmp_path, f"fleet.sampling={__name__}:Idle")
    ad.run(scenario, "ota_fd", rounds=2, out=tmp_path / "run", options=OPTIONS)
    options = AuditOptions(rounds=2, transcripts=2, candidates=2, trials=20, parts=("exact", "empirical"))
    found = audit_run(tmp_path / "run", options)
    assert any(line.startswith("Device 0 transmits in none of these 2 rounds") for line in found.notes)
    assert not any("no row that the device sent" in line for line in found.notes)
    assert draw_mu(found.exact).axes[0].get_yscale() == "linear"
    assert not recwarn.list


def test_a_plan_with_antennas_shows_the_time_to_design_a_round():
    rows = dict(summary_rows(ad.plan(ad.load("quick", ["radio.antennas=2", "fleet.devices=4"]), "ota_fd")))
    assert re.search(r"designing a round took [\d.]+ m?s here", rows["Antennas"])


def test_every_scheme_has_its_own_look():
    assert set(SCHEMES) <= set(LOOKS)
    looks = looks_for([*SCHEMES, "mine", "yours"])
    assert len(set(looks.values())) == len(looks)


def test_the_command_line_compares_reports_and_reproduces(tmp_path, capsys):
    import tomli_w

    def call(*arguments):
        code = exit_code(*arguments)
        return code, *capsys.readouterr()

    path = tmp_path / "small.toml"
    path.write_text(tomli_w.dumps(small_scenario(tmp_path).model_dump(mode="json", exclude_none=True)))
    with runs_in_this_process():
        code, out, _ = call("compare", path, "--schemes", "local_only", "--out", tmp_path / "out", "--json")
    assert code == 0
    assert json.loads(out)["arms"][0]["label"] == "local_only"
    code, out, _ = call("report", tmp_path / "out")
    assert (code, out.strip()) == (0, str(tmp_path / "out" / "report.html"))
    code, out, _ = call("report", tmp_path / "out" / "local_only" / "seed-0")
    assert (code, out.strip().endswith("seed-0/report.html")) == (0, True)
    code, _, err = call("report", tmp_path)
    assert (code, "is not a run folder" in err) == (2, True)
    code, _, err = call("compare", path, "--schemes", "local_only,nothing", "--out", tmp_path / "other")
    assert (code, "--scheme" in err) == (2, True)
    code, out, _ = call(
        "reproduce", "fig2a", "--quick", "--scenarios", "paper", "--out", tmp_path / "figures", "--json"
    )
    assert code == 0
    assert {claim["verdict"] for claim in json.loads(out)["paper"]} <= {"holds", "does not hold", "undecided"}
    for name in ("fig2a-paper.png", "fig2a-paper.svg", "fig2a-paper.csv", "fig2a.html", "fig2a-claims.json"):
        assert (tmp_path / "figures" / name).stat().st_size > 0
    assert "Raw noise Φ" in (tmp_path / "figures" / "fig2a.html").read_text()
    code, _, err = call("reproduce", "fig2a", "--scenarios", "nowhere", "--out", tmp_path / "figures")
    assert (code, "--scenarios" in err) == (2, True)
    code, _, err = call("reproduce", "fig2a", "--set", "learning.rounds=400", "--out", tmp_path / "figures")
    assert (code, "learning.rounds = 400: the figures optimise T" in err) == (2, True)
    code, out, _ = call("plan", path, "--scheme", "ota_fd_fixed", "--rounds", "10", "--json")
    assert (code, json.loads(out)["rounds"]["chosen"]) == (0, 10)
    code, out, _ = call("plan", path, "--scheme", "ota_fl")
    assert (code, "Gradient error" in out) == (0, True)


def test_a_single_round_is_visible():
    _, (axes,) = new_figure()
    axes.plot([1], [50.0], "-")
    axes.plot([1], [60.0], "D")
    count_rounds(axes)
    assert [line.get_marker() for line in axes.get_lines()] == ["_", "D"]
    assert (axes.get_xlim(), axes.get_xticks().tolist()) == ((0.5, 1.5), [1])
    _, (axes,) = new_figure()
    axes.plot([1, 4], [50.0, 60.0], "-")
    count_rounds(axes)
    assert axes.get_lines()[0].get_marker() == "None"
