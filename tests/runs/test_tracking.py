"""Trackers: what TensorBoard, MLflow and tables show are the records, whether a run was resumed or not."""

import csv
import json

import pytest
from in_process import exit_code, runs_in_this_process
from small_worlds import small_scenario

import airdistill as ad
from airdistill.errors import AirDistillError, InputError
from airdistill.runs import tracking
from airdistill.runs.options import RunOptions
from airdistill.runs.runner import resume

OPTIONS = RunOptions(eval_every=2, checkpoint_every=2)


class Recorder:
    """A tracker of one's own."""

    def __init__(self, tracked):
        self.tracked, self.rounds, self.ends = tracked, [], []

    def on_round(self, record, num_rounds):
        self.rounds.append((record, num_rounds))

    def on_end(self, record):
        self.ends.append(record)


@pytest.fixture
def made():
    return []


@pytest.fixture
def recorder(made):
    def recorder(tracked):
        made.append(Recorder(tracked))
        return made[-1]

    return recorder


def test_a_tracker_is_told_every_round_and_the_end(tmp_path, recorder, made):
    record = ad.run(small_scenario(tmp_path), "ota_fd", out=tmp_path / "run", options=OPTIONS, track=[recorder])
    (told,) = made
    assert [each for each, _ in told.rounds] == list(record.rounds)
    assert {planned for _, planned in told.rounds} == {6}
    assert [end.summary for end in told.ends] == [record.summary]
    assert told.tracked.folder == tmp_path / "run" / "track" / "recorder"


def test_a_resumed_run_is_told_from_its_first_round(tmp_path, recorder, made):
    def stop(record, _num_rounds):
        if record["round"] == 4:
            raise KeyboardInterrupt

    words = {"out": tmp_path / "run", "options": OPTIONS, "track": [recorder, "csv"]}
    with pytest.raises(KeyboardInterrupt):
        ad.run(small_scenario(tmp_path), "ota_fd", on_round=stop, **words)
    assert len(made[0].rounds) == 4
    assert [end.summary for end in made[0].ends] == [{}]
    record = resume(tmp_path / "run", track=[recorder, "csv"])
    assert [each["round"] for each, _ in made[1].rounds] == [1, 2, 3, 4, 5, 6]
    rows = list(csv.DictReader((tmp_path / "run" / "track" / "csv" / "run.csv").read_text().splitlines()))
    assert [float(row["loss"]) for row in rows] == [line["loss"] for line in record.rounds]


def test_tensorboard_shows_the_records(tmp_path):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    given = small_scenario(tmp_path)
    with runs_in_this_process():
        compared = ad.compare(
            given, ["ota_fd", "fd_error_free"], out=tmp_path / "out", options=OPTIONS, track=["tensorboard"]
        )
    for task, run in compared.runs.items():
        (events,) = (tmp_path / "out" / "track" / "tensorboard" / task.label / "seed-0").iterdir()
        found = {}
        for event in EventFileLoader(str(events)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.tensor.float_val[0]
        expected = {line["round"]: line["accuracy"]["mean"] for line in run.rounds if "accuracy" in line}
        assert found["accuracy_mean"] == pytest.approx(expected)
        assert found["loss"] == pytest.approx({line["round"]: line["loss"] for line in run.rounds})
        assert ("epsilon_spent" in found) is (task.label == "ota_fd")  # infinity is not drawn


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # mlflow 3.17 with sqlalchemy 2.1
def test_mlflow_shows_the_records(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = small_scenario(tmp_path)
    with runs_in_this_process():
        record = ad.compare(given, ["ota_fd", "local_only"], out=tmp_path / "out", options=OPTIONS, track=["mlflow"])
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'out' / 'track' / 'mlflow' / 'runs.db'}")
    (experiment,) = (each for each in client.search_experiments() if each.name == "out")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"ota_fd/seed-0", "local_only/seed-0"}
    for task, run in record.runs.items():
        shown = runs[f"{task.label}/seed-0"]
        assert shown.info.status == "FINISHED"
        history = client.get_metric_history(shown.info.run_id, "loss")
        assert [(each.step, each.value) for each in history] == [(line["round"], line["loss"]) for line in run.rounds]
    assert not (tmp_path / "mlruns").exists()  # nothing beside the comparison's folder


OWN = """
class Broken:
    def __init__(self, tracked):
        pass

    def on_round(self, record, num_rounds):
        raise ValueError("no more")

    def on_end(self, record):
        pass
"""


def test_a_tracker_that_fails_is_named_and_the_run_can_be_resumed(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken_tracker.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    given = small_scenario(tmp_path)
    with pytest.raises(AirDistillError, match=r"--track broken_tracker.Broken: failed: ValueError: no more \(brok"):
        ad.run(given, "ota_fd", out=tmp_path / "run", options=OPTIONS, track=["broken_tracker:Broken"])
    assert exit_code("resume", tmp_path / "run", "--track", "csv", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 6


def test_a_tracker_that_is_not_there_is_refused_before_anything_runs(tmp_path, monkeypatch, capsys):
    words = ["run", "quick", "--set", "fleet.devices=2", "--rounds", 1, "--out", tmp_path / "run", "--track"]
    assert exit_code(*words, "wandb") == 2
    assert '--track = "wandb": must be one of csv, tensorboard, mlflow' in capsys.readouterr().err
    with pytest.raises(InputError, match="is given twice"):
        ad.run("quick", track=["csv", "csv"])

    def absent(_name):
        raise ModuleNotFoundError

    monkeypatch.setattr(tracking, "import_module", absent)
    for name in ("tensorboard", "mlflow"):
        assert exit_code(*words, name) == 2
        assert "airdistill[track]" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
