"""Runs on a Ray cluster: the same bytes as here, with a killed process, and files that only the driver has."""

import os
import subprocess
import time

import pytest
from in_process import exit_code, runs_in_this_process
from small_worlds import small_scenario

import airdistill as ad
from airdistill.errors import AirDistillError, InputError
from airdistill.runs import cluster, node
from airdistill.runs.cluster import RayExecutor, own_code
from airdistill.runs.comparison import COMPARISON, Task, swept
from airdistill.runs.executors import LocalExecutor, executor_for
from airdistill.runs.node import NodeRun, Order, Piece, apply_pieces, digest_of_files
from airdistill.runs.options import RunOptions
from airdistill.runs.runner import resume

# Ray leaves its files and child processes to the garbage collector, which warns of them.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
OPTIONS = RunOptions(eval_every=2, checkpoint_every=2, threads=1)
COMPARED = ("scenario.toml", "plan.json", "run.json", "ledger.jsonl", "ledger.head", "rounds.jsonl", "summary.json")
COMPARED += ("certificate.json", "checkpoint-00000006.safetensors", "checkpoint-00000006.json", "digests.json")

# In round 5 of its first attempt it waits until the driver has the checkpoint of round 4. Then it kills itself, and at
# ε = 2 the process that started it as well: on Ray, the actor.
MORTAL = """
import os, signal, sys, time
from pathlib import Path
from airdistill.schemes.registry import SCHEMES

class Mortal(SCHEMES["ota_fd"]):
    name = "mortal"

    def play(self, this):
        if this.index == 5 and "airdistill-run-" in os.getcwd():
            label, folder = sys.argv[2], Path({folder!r})
            mark = folder / f"killed {{label}}"
            if not mark.exists():
                mark.touch()
                while not (folder / "ray" / label / "seed-0" / "checkpoint-00000004.json").exists():
                    time.sleep(0.05)
                if "epsilon=2" in label:
                    os.kill(os.getppid(), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().play(this)
"""


@pytest.fixture(scope="module")
def ray():
    """A Ray of our own, whatever else runs on this machine, and nothing left of it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("RAY_USAGE_STATS_ENABLED", "0"), ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")):
            patch.setenv(name, value)
        import ray

        ray.init("local", num_cpus=2, include_dashboard=False, logging_level="CRITICAL", log_to_driver=False)
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True)
        yield ray
        ray.shutdown()
        deadline = time.monotonic() + 60
        while any(_is_alive(int(pid)) for pid in children.stdout.split()):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _is_alive(pid):
    listed = subprocess.run(["ps", "-o", "stat=,comm=", "-p", str(pid)], capture_output=True, text=True).stdout.split()
    return bool(listed) and not listed[0].startswith("Z") and listed[1] in ("raylet", "gcs_server")


@pytest.mark.usefixtures("ray")
def test_a_sweep_on_ray_gives_the_bytes_of_the_local_executor(tmp_path, monkeypatch):
    """An actor and a worker are killed in the middle, and others resume their runs; the scheme's code travels."""
    (tmp_path / "mortal_scheme.py").write_text(MORTAL.format(folder=str(tmp_path)))
    monkeypatch.syspath_prepend(tmp_path)
    given, schemes = small_scenario(tmp_path), ["mortal_scheme:Mortal", "local_only"]
    seen = []
    words = {"over": {"privacy.epsilon": [2, 8]}, "schemes": schemes, "options": OPTIONS}
    swept_there = ad.sweep(
        given,
        out=tmp_path / "ray",
        jobs=2,
        executor=RayExecutor(),
        on_progress=lambda task, news: seen.append((task, news)),
        **words,
    )
    assert not swept_there.failures
    with runs_in_this_process():
        swept_here = ad.sweep(given, out=tmp_path / "here", **words)
    assert len(swept_there.runs) == 4
    for task in swept_here.runs:
        here, there = task.folder_in(swept_here.folder), task.folder_in(swept_there.folder)
        for name in COMPARED:
            assert (here / name).read_bytes() == (there / name).read_bytes(), (task, name)
    # It was resumed after round 4, and not begun again: every round was computed to its end once.
    assert len(list(tmp_path.glob("killed mortal*"))) == 2
    rounds = {task: [news["round"] for who, news in seen if who == task] for task in swept_here.runs}
    assert set(map(tuple, rounds.values())) == {(1, 2, 3, 4, 5, 6)}


@pytest.mark.usefixtures("ray")
def test_what_cannot_run_on_a_cluster_is_one_line(tmp_path, monkeypatch):
    given = small_scenario(tmp_path)
    with pytest.raises(InputError, match=r"--on = \"ray\": no node of the cluster has 99 CPUs for a run"):
        ad.compare(given, ["ota_fd"], out=tmp_path / "out", executor=RayExecutor(cpus=99))
    with pytest.raises(InputError, match="no node of the cluster has 1 CPUs and 1 GPUs"):
        ad.compare(given, ["ota_fd"], out=tmp_path / "out", executor=RayExecutor(gpus=1))
    monkeypatch.setattr(ad, "__version__", "9.9")
    with pytest.raises(AirDistillError, match=r"node \S+ has airdistill 0\.1\.0.*this machine has airdistill 9\.9"):
        ad.compare(given, ["ota_fd"], out=tmp_path / "out", executor=RayExecutor())
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("ray")
def test_a_scheme_that_fails_on_a_node_leaves_one_line(tmp_path, monkeypatch):
    failing = MORTAL.replace("mortal", "failing").replace("Mortal", "Failing")
    failing = failing.replace("if this.index", "1 / 0\n        if this.index")
    (tmp_path / "failing_there.py").write_text(failing.format(folder=""))
    monkeypatch.syspath_prepend(tmp_path)
    schemes = ["failing_there:Failing", "local_only"]
    record = ad.compare(
        small_scenario(tmp_path), schemes, out=tmp_path / "out", options=OPTIONS, executor=RayExecutor()
    )
    assert list(record.runs) == [Task("local_only", 0)]
    assert "your own code failed: ZeroDivisionError: division by zero" in record.failures[Task("failing", 0)]
    assert " (on " in record.failures[Task("failing", 0)]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:1", "cannot be reached: Connection refused"),
        ("ray://127.0.0.1:1", "cannot be reached: Connection refused"),
        ("ray://nowhere", "must be local, ray, host:port or ray://host:port"),
        ("no-such-host.invalid:6379", "cannot be reached"),
    ],
)
def test_an_unreachable_cluster_is_one_line(tmp_path, capsys, address, words, monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # the fixture's own cluster must not be taken
    code = exit_code(
        "compare",
        "quick",
        "--set",
        "fleet.devices=2",
        "--schemes",
        "ota_fd",
        "--out",
        tmp_path / "out",
        "--on",
        address,
    )
    printed = capsys.readouterr().err
    assert (code, printed.count("\n")) == (2, 1)
    assert words in printed
    assert not (tmp_path / "out").exists()


def test_shares_belong_to_a_cluster(tmp_path, capsys):
    assert isinstance(executor_for("local"), LocalExecutor)
    for name, words in [("--cpus", "--cpus = 2"), ("--gpus", "--gpus = 2")]:
        assert exit_code("compare", "quick", "--out", tmp_path / "out", name, 2) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(InputError, match="must be greater than 0"):
        executor_for("ray", cpus=0)
    assert exit_code("resume", tmp_path, "--on", "ray") == 2
    assert "is for comparisons and sweeps" in capsys.readouterr().err


def test_a_node_computes_from_copies_of_the_drivers_files(tmp_path, monkeypatch):
    """The dataset is at its place on the driver only, and the node's copy is made once and checked."""
    (tmp_path / "driver").mkdir()
    given = small_scenario(tmp_path / "driver")
    with runs_in_this_process():
        here = ad.compare(given, ["ota_fd"], out=tmp_path / "here", options=OPTIONS)
    source = tmp_path / "driver" / "blobs.npz"
    files = {"blobs.npz": source.read_bytes()}
    source.unlink()
    monkeypatch.setattr(node.tempfile, "tempdir", str(tmp_path))
    order = Order(Task("ota_fd", 0), 1, {"OMP_NUM_THREADS": "1"})
    for _ in range(2):
        run = NodeRun()
        run.start(order, (here.folder / COMPARISON).read_bytes(), (str(source), digest_of_files(files), files))
        news, pieces = run.news(), {}
        while news.code is None:
            pieces |= {name: _joined(pieces.get(name), piece) for name, piece in news.pieces.items()}
            news = run.news()
        pieces |= {name: _joined(pieces.get(name), piece) for name, piece in news.pieces.items()}
        assert (news.code, news.output) == (0, [])
        for name in ("rounds.jsonl", "ledger.jsonl", "scenario.toml"):
            assert pieces[name].content == (here.runs[Task("ota_fd", 0)].folder / name).read_bytes(), name
        # Damage is noticed, and the copy made again.
        (copy,) = tmp_path.glob("airdistill-copies-*/*/blobs.npz")
        copy.write_bytes(b"damaged")
    assert not list(tmp_path.glob("airdistill-run-*"))


def _joined(before, piece):
    return piece if piece.start == 0 else Piece(0, before.content[: piece.start] + piece.content)


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """The files of a run after every round, and at its end."""
    folder = tmp_path_factory.mktemp("states")
    found = []

    def files_of():
        return {path.name: path.read_bytes() for path in (folder / "run").iterdir() if path.name != "lock"}

    given = small_scenario(folder)
    ad.run(given, "ota_fd", out=folder / "run", options=OPTIONS, on_round=lambda *_: found.append(files_of()))
    return [*found, files_of()]


def news_of(before, after):
    pieces = {}
    for name, content in after.items():
        old = before.get(name, b"")
        if old != content:
            start = len(old) if name.endswith(".jsonl") and content.startswith(old) else 0
            pieces[name] = Piece(start, content[start:])
    return node.News("here", [], pieces, sorted(after))


def test_a_driver_that_dies_while_it_writes_leaves_a_run_that_resumes(states, tmp_path, monkeypatch):
    """Of files that came after rounds 3 and 5 and at the end, any number may have been written."""
    third, fifth, end = states[2], states[4], states[-1]
    assert "checkpoint-00000002.json" in third
    steps = [({}, third), (third, fifth), (fifth, end)]
    write = node._write_piece
    cases = 0
    for index, (before, after) in enumerate(steps):
        for allowed in range(len(news_of(before, after).pieces)):
            folder = tmp_path / f"{index}-{allowed}" / "run"
            folder.parent.mkdir()
            for earlier in steps[:index]:
                apply_pieces(folder, news_of(*earlier))
            left = iter(range(allowed))

            def stop(path, piece, left=left):
                if next(left, None) is None:
                    raise KeyboardInterrupt
                write(path, piece)

            monkeypatch.setattr(node, "_write_piece", stop)
            with pytest.raises(KeyboardInterrupt):
                apply_pieces(folder, news_of(before, after))
            monkeypatch.setattr(node, "_write_piece", write)
            cases += 1
            if index == 0:
                assert not folder.exists()
                continue
            resume(folder)
            for name in ("rounds.jsonl", "ledger.jsonl", "summary.json", "checkpoint-00000006.safetensors"):
                assert (folder / name).read_bytes() == end[name], (index, allowed, name)
    assert cases > 20


def test_code_that_travels(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MORTAL.format(folder=""))
    package = tmp_path / "ours"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text(
        "from airdistill.schemes.registry import SCHEMES\n\nclass Own(SCHEMES['ota_fd']):\n    name = 'own'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    arms = swept(small_scenario(tmp_path), {}, ["mine:Mortal", "ours.parts:Own"], 1).arms
    assert sorted(own_code(arms)) == ["mine.py", "ours/__init__.py", "ours/parts.py"]
    assert own_code(arms)["mine.py"] == (tmp_path / "mine.py").read_bytes()
    assert not own_code(swept(small_scenario(tmp_path), {}, ["ota_fd"], 1).arms)


def test_ray_is_asked_for_by_name(monkeypatch):
    def absent(_name):
        raise ModuleNotFoundError

    monkeypatch.setattr(cluster, "import_module", absent)
    with pytest.raises(AirDistillError, match=r"needs Ray, which is not installed.*airdistill\[cluster\]"):
        RayExecutor().check()
