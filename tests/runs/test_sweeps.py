"""Sweeps: grids of scenario fields, their tables, plans without training, and input that is rejected beforehand."""

import csv
import json
import logging
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
import pytest
from in_process import exit_code, runs_in_this_process
from small_worlds import small_scenario

import airdistill as ad
from airdistill.channel.sources import channel_source
from airdistill.data.partition import assign_samples
from airdistill.errors import AirDistillError, InputError
from airdistill.report.comparison import write_comparison_page
from airdistill.runs import tables
from airdistill.runs.comparison import COMPARISON, Comparison, ComparisonRecord, Task, swept
from airdistill.runs.grid import Grid, at_point, label_of, over_options, parsed_grid
from airdistill.runs.options import RunOptions
from airdistill.runs.results import arm_results

OPTIONS = RunOptions(eval_every=1, checkpoint_every=2)
OVER = {"privacy.epsilon": [2, 8], "fleet.devices": [2, 3]}


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept")
    with runs_in_this_process():
        given = small_scenario(folder, "learning.rounds=3")
        return ad.sweep(given, OVER, ["ota_fd", "local_only"], seeds=2, out=folder / "out", options=OPTIONS)


def test_every_run_of_a_sweep_is_the_run_of_its_scenario(record, tmp_path):
    assert len(record.runs) == 2 * 2 * 2 * 2
    assert record.comparison.fields == ("privacy.epsilon", "fleet.devices")
    label = "ota_fd,epsilon=2,devices=3"
    given = small_scenario(record.folder.parent, "learning.rounds=3", "privacy.epsilon=2", "seed=1")
    alone = ad.run(given, "ota_fd", out=tmp_path / "alone", options=OPTIONS)
    compared = record.runs[Task(label, 1)].folder
    for name in ("rounds.jsonl", "ledger.jsonl", "summary.json", "certificate.json", "scenario.toml"):
        assert (compared / name).read_bytes() == (alone.folder / name).read_bytes(), name


def test_a_comparison_is_a_sweep_without_a_grid(tmp_path):
    scenario = small_scenario(tmp_path)
    alike = swept(scenario, {}, ["ota_fd"], 2, options=OPTIONS)
    with runs_in_this_process():
        compared = ad.compare(scenario, ["ota_fd"], 2, out=tmp_path / "out", options=OPTIONS)
    assert compared.comparison == alike
    assert "point" not in json.loads((tmp_path / "out" / COMPARISON).read_text())["arms"][0]


def test_a_sweep_is_read_and_resumed_from_its_folder(record, capsys):
    assert Comparison.read(record.folder) == record.comparison
    one = record.runs[Task("local_only,epsilon=8,devices=2", 0)].folder
    before = (one / "rounds.jsonl").read_bytes()
    (one / "summary.json").unlink()
    assert len(ComparisonRecord.read(record.folder).runs) == 15
    assert exit_code("resume", record.folder, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["arms"]) == 8
    assert (one / "rounds.jsonl").read_bytes() == before


def test_the_table_has_a_row_for_every_run_and_round(record):
    frame = ad.load_results(record.folder)
    assert len(frame) == 16 * 3
    assert list(frame.columns[:5]) == ["label", "scheme", "seed", "privacy.epsilon", "fleet.devices"]
    run = record.runs[Task("ota_fd,epsilon=2,devices=3", 1)]
    mine = frame[(frame.label == "ota_fd,epsilon=2,devices=3") & (frame.seed == 1)]
    assert mine["fleet.devices"].tolist() == [3, 3, 3]
    assert mine["round"].tolist() == [1, 2, 3]
    assert mine["accuracy_mean"].tolist() == [line["accuracy"]["mean"] for line in run.rounds]
    assert mine["measured_noise_var"].tolist() == [np.median(line["measured_noise_var"]) for line in run.rounds]
    assert mine["epsilon_spent"].tolist() == [line["epsilon_spent"] for line in run.rounds]
    alone = ad.load_results(run.folder)
    assert alone["loss"].tolist() == mine["loss"].tolist()


def test_what_is_infinite_is_not_taken_for_missing(record, tmp_path):
    with runs_in_this_process():
        run = ad.run(small_scenario(tmp_path), "fd_error_free", rounds=2, out=tmp_path / "run", options=OPTIONS)
    assert ad.load_results(run.folder)["epsilon_spent"].tolist() == [np.inf, np.inf]
    local = ad.load_results(record.folder).query("scheme == 'local_only'")
    assert local["epsilon_spent"].eq(0).all()
    assert local["measured_noise_var"].isna().all()


def test_csv_and_parquet_hold_the_same_table(record):
    write_comparison_page(record)
    frame = ad.load_results(record.folder)
    from_csv = pd.read_csv(record.folder / "results.csv")
    pd.testing.assert_frame_equal(from_csv, frame, check_dtype=False)
    table = parquet.read_table(record.folder / "results.parquet")
    assert table.column_names == list(frame.columns)
    assert table["accuracy_mean"].to_pylist() == frame["accuracy_mean"].tolist()
    assert {path.name for path in record.folder.iterdir()} >= {"facets.svg", "curves.png", "report.html", "summary.csv"}


def test_the_summary_has_intervals_of_paired_differences(record):
    write_comparison_page(record)
    rows = {row["label"]: row for row in csv.DictReader((record.folder / "summary.csv").read_text().splitlines())}
    final = {task: run.summary["accuracy"]["mean"] for task, run in record.runs.items()}
    at = "epsilon=2,devices=3"
    paired = [final[Task(f"local_only,{at}", seed)] - final[Task(f"ota_fd,{at}", seed)] for seed in (0, 1)]
    row = rows[f"local_only,{at}"]
    assert float(row["difference_to_first"]) == pytest.approx(np.mean(paired))
    # Student's t with one degree of freedom is 12.706 at 97.5 %.
    half = 12.7062 * np.std(paired, ddof=1) / np.sqrt(2)
    assert float(row["difference_to_first_high"]) == pytest.approx(np.mean(paired) + half, rel=1e-4)
    assert rows[f"ota_fd,{at}"]["difference_to_first"] == ""
    gain = float(rows[f"ota_fd,{at}"]["gain_over_local"])
    assert gain == pytest.approx(-np.mean(paired))
    assert {result.label for result in arm_results(record) if result.gain is not None} == {
        label for label in rows if label.startswith("ota_fd")
    }


def test_points_with_the_same_seed_have_the_same_fleet():
    """Channels and samples of every device are equal at all points that leave the fleet's size, and differ by seed."""
    changes = ["fleet.devices=3", "radio.distance=['100 m', '500 m']"]
    arms = swept(ad.load("quick", changes), {"privacy.epsilon": [1, 8]}, ["ota_fd", "ota_fl"], 1).arms
    labels = np.arange(2000) % 10

    def drawn(arm, seed):
        scenario = arm.with_seed(seed)
        return channel_source(scenario).round_channel(2), [*assign_samples(scenario, labels).indices]

    gains, samples = drawn(arms[0], 5)
    for arm in arms[1:]:
        others = drawn(arm, 5)
        assert np.array_equal(gains, others[0])
        assert all(map(np.array_equal, samples, others[1]))
    assert not np.allclose(gains, drawn(arms[0], 6)[0], atol=0)


def test_labels_name_folders():
    points = list(
        parsed_grid(
            ["radio.peak_power=1 mW,[1, 2]", "data.dataset=/a/b c.npz", "overrides.ota_fl.learning.initial_lr=0.1"]
        ).points()
    )
    assert label_of(points[0]) == "peak_power=1mW,dataset=a_bc.npz,initial_lr=0.1"
    assert label_of(points[1]) == "peak_power=1_2,dataset=a_bc.npz,initial_lr=0.1"
    assert label_of({"a.x": 1, "b.x": 2}) == "a.x=1,b.x=2"
    assert label_of({"privacy.delta": 1e-5}) == "delta=1e-05"


def test_options_of_a_report_give_the_same_grid():
    given = [
        "privacy.epsilon=1,2.5,[1, 8]",
        'radio.peak_power="1 mW",{values = [0.1, 0.2]}',
        "learning.carry=true,false",
    ]
    points = list(parsed_grid(given).points())
    assert list(parsed_grid(over_options(points)).points()) == points


def test_a_file_has_lists_of_values(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text('privacy.epsilon = [1, 2]\n[radio]\npeak_power = ["1 mW", [0.1, 0.2]]\n')
    assert parsed_grid([], path) == Grid.of({"privacy.epsilon": [1, 2], "radio.peak_power": ["1 mW", [0.1, 0.2]]})
    path.write_text("privacy.epsilon = 3\n")
    with pytest.raises(InputError, match="must be a list of values"):
        parsed_grid([], path)
    path.write_text("privacy.epsilon = [1, 2]\n")
    with pytest.raises(InputError, match="is given twice"):
        parsed_grid(["privacy.epsilon=3"], path)


def test_a_grid_replaces_the_overrides_of_schemes(caplog):
    scenario = ad.load("quick", ["overrides.ota_fl.privacy.epsilon=99", "overrides.ota_fl.learning.initial_lr=3"])
    placed = at_point(scenario, {"privacy.epsilon": 2})
    assert placed.overrides["ota_fl"] == {"learning": {"initial_lr": 3}}
    assert placed.privacy.epsilon == ad.load("quick", ["privacy.epsilon=2"]).privacy.epsilon
    with caplog.at_level(logging.WARNING):
        swept(scenario, {"privacy.epsilon": [2, 3]}, ["ota_fl"], 1)
    assert "overrides.ota_fl.privacy.epsilon is left out" in caplog.text


@pytest.mark.parametrize(
    ("over", "words"),
    [
        (["privacy.epsilo=1"], "unknown key; did you mean epsilon? (at epsilo=1)"),
        (["privacy.epsilon=1,-2"], "privacy.epsilon = -2: must be greater than 0 (at epsilon=-2)"),
        (["privacy.epsilon=1,,2"], "contains an empty value"),
        (["privacy.epsilon=1,1"], "has a value twice"),
        (["privacy.epsilon"], "must have the form"),
        (["seed=1,2"], "use --seeds"),
        (["radio.peak_power=1 mW,0.001 W"], "are the same scenario"),
        ([], "is required, or --over-file"),
        # Two models are possible for distillation, and not for federated learning.
        (
            ["fleet.groups=[{count=2, model='mlp'}, {count=1, model='softmax_regression'}],[{count=3, model='mlp'}]"],
            "ota_fl",
        ),
    ],
)
@pytest.mark.parametrize("plans", [(), ("--plans",)])
def test_a_grid_that_cannot_run_is_rejected_in_one_line(tmp_path, capsys, over, words, plans):
    if plans and words == "ota_fl":
        pytest.skip("a plan that cannot be made is a row of the table")
    options = [part for text in over for part in ("--over", text)]
    given = ["quick", *options, "--schemes", "ota_fd,ota_fl", "--set", "fleet.devices=3", "--out", tmp_path / "out"]
    assert exit_code("sweep", *given, *plans) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_scheme_that_sets_a_field_itself_is_named(caplog):
    with caplog.at_level(logging.WARNING):
        swept(ad.load("quick"), {"fleet.participation": [0.5, 1.0]}, ["ota_fd", "fd_error_free"], 1)
    assert "fd_error_free,participation=0.5 and fd_error_free,participation=1 are the same" in caplog.text
    assert "ota_fd,participation=0.5" not in caplog.text


def test_plans_of_a_grid_are_the_planners_own(tmp_path, capsys):
    scenario = small_scenario(tmp_path)
    planned = ad.sweep_plans(scenario, {"privacy.epsilon": [1, 4, 16]}, ["ota_fd"], out=tmp_path / "plans")
    noise = [row["effective_noise"] for row in planned.rows]
    assert all(high > low for high, low in pairwise(noise))
    alone = ad.plan(small_scenario(tmp_path, "privacy.epsilon=4"), "ota_fd")
    assert noise[1] == alone.forecast.effective_noise
    assert planned.rows[1]["convergence_gap"] == alone.convergence_gap
    assert parquet.read_table(planned.folder / "plans.parquet")["effective_noise"].to_pylist() == noise
    words = ["quick", "--set", "fleet.devices=3", "--over", "privacy.epsilon=1,4", "--plans", "--out", tmp_path / "cli"]
    assert exit_code("sweep", *words) == 0
    assert "Report:" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "cli").iterdir()} >= {"plans.csv", "report.html", "convergence_gap.svg"}


def test_a_plan_that_cannot_be_made_is_a_row(tmp_path):
    models = [
        [{"count": 2, "model": "mlp"}, {"count": 1, "model": "softmax_regression"}],
        [{"count": 3, "model": "mlp"}],
    ]
    over = {"fleet.groups": models}
    scenario = ad.load("quick", ["fleet.devices=3"])
    planned = ad.sweep_plans(scenario, over, ["ota_fl"], out=tmp_path / "plans")
    assert "needs one model" in planned.rows[0]["problem"]
    assert planned.rows[1]["rounds"] > 0
    with pytest.raises(AirDistillError, match="needs one model"):
        ad.sweep_plans(scenario, {"fleet.groups": models[:1]}, ["ota_fl"], out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_pandas_is_asked_for_by_name(record, monkeypatch):
    def absent(_name):
        raise ModuleNotFoundError

    monkeypatch.setattr(tables, "import_module", absent)
    with pytest.raises(AirDistillError, match=r"pandas is not installed.*airdistill\[web\]"):
        ad.load_results(record.folder)
