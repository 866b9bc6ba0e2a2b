"""Runs that are killed, starved of disk, or asked to stop, as processes of their own."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import tomli_w
from in_process import exit_code
from small_worlds import small_scenario

import airdistill as ad
from airdistill.runs.options import RunOptions

NUM_KILLS = 20
# Forks a process for every command that it reads, for Python and PyTorch take seconds to start anew; says the process's
# number, and how it ended.
FORKING = """
import os, sys
import airdistill.report.run_page, airdistill.runs.runner
from airdistill.cli import main

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv = ["airdistill", *line.rstrip("\\n").split("\\t")]
        main()
        sys.exit()
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def command(*arguments):
    return [sys.executable, "-m", "airdistill", *map(str, arguments)]


def scenario_file(folder, num_rounds, *changes):
    scenario = small_scenario(folder, f"learning.rounds={num_rounds}", *changes)
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


@contextmanager
def forking():
    """A function that carries a command out until a moment in its life, kills it then, and says how it ended."""
    server = subprocess.Popen([sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def killed(arguments, until):
        server.stdin.write("\t".join(map(str, arguments)) + "\n")
        server.stdin.flush()
        child = int(server.stdout.readline())
        until(server)
        os.kill(child, signal.SIGKILL)  # which fails if it has ended by itself
        return int(server.stdout.readline())

    with server:
        yield killed
        server.stdin.close()


def killed_at_start(arguments, until):
    """The same in a process that has to import everything first."""
    process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(process)
    process.kill()
    return process.wait()


def test_a_run_killed_twenty_times_ends_in_the_same_bytes(tmp_path):
    path = scenario_file(tmp_path, 400)
    options = ["--eval-every", 100, "--checkpoint-every", 7, "--threads", 1]
    whole = RunOptions(eval_every=100, checkpoint_every=7, threads=1)
    ad.run(ad.load(path), out=tmp_path / "whole", options=whole)
    cut, rng = tmp_path / "cut", random.Random(0)
    rounds = cut / "rounds.jsonl"

    def last_written():
        return rounds.stat().st_mtime_ns if rounds.exists() else 0

    with forking() as killed:
        for kill in range(NUM_KILLS):
            arguments = ("resume", cut) if (cut / "run.json").exists() else ("run", path, "--out", cut, *options)
            before = last_written()

            def some_rounds_later(process, before=before):
                wait_for(lambda: last_written() > before, process)
                time.sleep(rng.uniform(0, 0.05))  # about as long as two checkpoints take

            def on_the_way_there(process, before=before):
                wait_for(lambda: last_written() > before, process, rng.uniform(0, 2))

            every_fifth = kill % 5 == 0
            ended = (
                killed_at_start(arguments, on_the_way_there) if every_fifth else killed(arguments, some_rounds_later)
            )
            assert ended == -signal.SIGKILL
    done = subprocess.run(command("resume", cut), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert bytes_of(cut) == bytes_of(tmp_path / "whole")


def assert_same_bytes_after_kills(folder, path, scheme, num_kills):
    """A run of the file killed so many times within the next few rounds, against one that was left in peace."""
    options = ["--scheme", scheme, "--eval-every", 100, "--checkpoint-every", 2, "--threads", 1]
    whole = RunOptions(eval_every=100, checkpoint_every=2, threads=1)
    ad.run(ad.load(path), scheme, out=folder / "whole", options=whole)
    cut, rng = folder / "cut", random.Random(1)

    def num_rounds():
        rounds = cut / "rounds.jsonl"
        return rounds.read_bytes().count(b"\n") if rounds.exists() else 0

    with forking() as killed:
        for _ in range(num_kills):
            arguments = ("resume", cut) if (cut / "run.json").exists() else ("run", path, "--out", cut, *options)
            wanted = num_rounds() + rng.randint(1, 4)

            def some_rounds_later(process, wanted=wanted):
                wait_for(lambda: num_rounds() >= wanted, process)
                time.sleep(rng.uniform(0, 0.1))

            assert killed(arguments, some_rounds_later) == -signal.SIGKILL
    assert exit_code("resume", str(cut)) == 0
    assert bytes_of(cut) == bytes_of(folder / "whole")


def test_a_run_on_a_public_set_killed_six_times_ends_in_the_same_bytes(tmp_path):
    """Its server's model is trained anew from the rows of all rounds so far, which the checkpoint keeps."""
    path = scenario_file(
        tmp_path, 30, "public.samples=15", "public.samples_per_round=5", "public.distill_epochs=1",
        "learning.local_epochs=1", "learning.batch_size=5",
    )  # fmt: skip
    assert_same_bytes_after_kills(tmp_path, path, "airdistill_proxy", 6)


@pytest.mark.parametrize("local_epochs", [0, 1])
def test_a_run_on_fused_kernels_killed_three_times_ends_in_the_same_bytes(tmp_path, few_digits, local_epochs):
    path = scenario_file(
        tmp_path, 40, f"data.dataset={few_digits}", "data.samples_per_device=100", "learning.model=paper_cnn",
        f"learning.local_epochs={local_epochs}",
    )  # fmt: skip
    assert_same_bytes_after_kills(tmp_path, path, "ota_fd", 3)


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
    path = scenario_file(tmp_path, 120)
    ad.run(ad.load(path), out=tmp_path / "whole", options=RunOptions(threads=1))
    cut = tmp_path / "cut"
    done = subprocess.run(
        command("run", path, "--out", cut, "--threads", 1),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)),
    )
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert done.stderr.count("\n") == 1
    assert len(list(cut.glob("checkpoint-*.json"))) == 2
    ad.resume(cut)
    assert bytes_of(cut) == bytes_of(tmp_path / "whole")


def test_two_runs_at_once_in_one_folder_are_one_too_many(tmp_path, capsys):
    path = scenario_file(tmp_path, 1500)
    cut = tmp_path / "cut"
    first = subprocess.Popen(command("run", path, "--out", cut), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: (cut / "rounds.jsonl").exists(), first)
    code = exit_code("resume", cut)
    first.kill()
    first.wait()
    assert code == 2
    assert "another process is running" in capsys.readouterr().err
