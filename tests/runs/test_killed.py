"""Runs that are killed, starved of disk, or asked to stop, as processes of their own."""

import random
import resource
import signal
import subprocess
import sys
import time

import tomli_w
from small_worlds import small_scenario

NUM_KILLS = 20


def command(*arguments):
    return [sys.executable, "-m", "airdistill", *map(str, arguments)]


def scenario_file(folder, num_rounds):
    scenario = small_scenario(folder, f"learning.rounds={num_rounds}")
    path = folder / "small.toml"
    path.write_text(tomli_w.dumps(scenario.model_dump(mode="json", exclude_none=True)))
    return path


def bytes_of(folder):
    final = sorted(folder.glob("checkpoint-*.safetensors"))[-1]
    names = ("rounds.jsonl", "ledger.jsonl", "ledger.head", "summary.json", "certificate.json")
    return [final.read_bytes(), *((folder / name).read_bytes() for name in names)]


def wait_for(condition, process, seconds=60):
    end = time.monotonic() + seconds
    while not condition() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)


def test_a_run_killed_twenty_times_ends_in_the_same_bytes(tmp_path):
    path = scenario_file(tmp_path, 1500)
    options = ["--eval-every", 100, "--checkpoint-every", 7, "--threads", 1]
    subprocess.run(command("run", path, "--out", tmp_path / "whole", *options), check=True, capture_output=True)
    cut, rng, kills = tmp_path / "cut", random.Random(0), 0
    rounds = cut / "rounds.jsonl"
    while kills < NUM_KILLS:
        started = (cut / "run.json").exists()
        arguments = ("resume", cut) if started else ("run", path, "--out", cut, *options)
        process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        before = rounds.stat().st_mtime_ns if rounds.exists() else 0
        if kills % 5:  # every fifth time it is killed while it starts
            wait_for(lambda: rounds.exists() and rounds.stat().st_mtime_ns > before, process)  # noqa: B023
            time.sleep(rng.uniform(0, 0.15))
        else:
            time.sleep(rng.uniform(0, 2))
        assert process.poll() is None, process.stderr.read()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
    done = subprocess.run(command("resume", cut), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert bytes_of(cut) == bytes_of(tmp_path / "whole")


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    path = scenario_file(tmp_path, 1500)
    cut = tmp_path / "cut"
    arguments = command("run", path, "--out", cut, "--checkpoint-every", 1000)
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (cut / "rounds.jsonl").exists() and (cut / "rounds.jsonl").stat().st_size > 2000, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "airdistill resume" in errors
    assert "Traceback" not in errors
    assert len(list(cut.glob("checkpoint-*.json"))) == 1


def test_a_full_disk_stops_the_run_with_a_line_and_keeps_what_was_there(tmp_path):
    """The largest file that the process may write stands in for the disk: the round file runs into it."""
    path = scenario_file(tmp_path, 300)
    subprocess.run(command("run", path, "--out", tmp_path / "whole", "--threads", 1), check=True, capture_output=True)
    cut = tmp_path / "cut"
    done = subprocess.run(
        command("run", path, "--out", cut, "--threads", 1),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)),
    )
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert done.stderr.count("\n") == 1
    assert len(list(cut.glob("checkpoint-*.json"))) == 2
    assert subprocess.run(command("resume", cut), capture_output=True).returncode == 0
    assert bytes_of(cut) == bytes_of(tmp_path / "whole")


def test_two_runs_at_once_in_one_folder_are_one_too_many(tmp_path):
    path = scenario_file(tmp_path, 1500)
    cut = tmp_path / "cut"
    first = subprocess.Popen(command("run", path, "--out", cut), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: (cut / "rounds.jsonl").exists(), first)
    second = subprocess.run(command("resume", cut), capture_output=True, text=True)
    first.kill()
    first.wait()
    assert second.returncode == 2
    assert "another process is running" in second.stderr
