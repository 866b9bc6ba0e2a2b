"""Runs that are killed, run out of disk space, or are asked to stop, each in its own process.

A process dies or stops at a fixed point of its own progress, or a fixed time after it. The tests do not depend on how
fast a process runs or when this one is scheduled.
"""

import random
import resource
import signal
import subprocess
import sys
import time

import pytest
import tomli_w
from in_process import exit_code
from small_worlds import small_scenario

import airdistill as ad
from airdistill.runs.options import RunOptions

NUM_KILLS = 8  # benchmarks/kills.py makes a thousand, in all commands
# Defines `signal_after(number, num_rounds, seconds, last)`: this process gets a signal some time after it has recorded
# so many rounds, and at round `last` at the latest. A timer of the kernel sends SIGALRM, which ends a process without
# any clean-up, as SIGKILL does.
SIGNALS = """
import os, signal
from airdistill.runs.folder import RoundFile

def signal_after(number, num_rounds, seconds, last):
    append, recorded = RoundFile.append, []

    def record_and_signal(self, record):
        append(self, record)
        recorded.append(record["round"])
        if record["round"] >= last:
            os.kill(os.getpid(), number)
        elif len(recorded) == num_rounds and seconds > 0:
            signal.setitimer(signal.ITIMER_REAL, seconds)
        elif len(recorded) == num_rounds:
            os.kill(os.getpid(), number)

    RoundFile.append = record_and_signal
"""
# Forks a process for every command that it reads, because Python and PyTorch take seconds to start; prints its status.
FORKING = (
    SIGNALS
    + """
import sys
import airdistill.report.run, airdistill.runs.runner
from airdistill.cli import main

for line in sys.stdin:
    num_rounds, seconds, last, *arguments = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        signal_after(signal.SIGALRM, int(num_rounds), float(seconds), int(last))
        sys.argv = ["airdistill", *arguments]
        main()
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
)


def command(*arguments):
    return [sys.executable, "-m", "airdistill", *map(str, arguments)]


def command_with(setup, *arguments):
    """The command line after some lines of Python, which may call `signal_after`."""
    script = f"{SIGNALS}\n{setup}\nimport sys\nsys.argv[0] = 'airdistill'\nfrom airdistill.cli import main\nmain()"
    return [sys.executable, "-c", script, *map(str, arguments)]


def scenario_file(folder, num_rounds, *changes):
    scenario = small_scenario(folder, f"learning.rounds={num_rounds}", *changes)
    path = folder / "small.toml"
    path.write_text(tomli_w.dumps(scenario.model_dump(mode="json", exclude_none=True)))
    return path


def bytes_of(folder):
    final = sorted(folder.glob("checkpoint-*.safetensors"))[-1]
    names = ("rounds.jsonl", "ledger.jsonl", "ledger.head", "summary.json", "certificate.json")
    return [final.read_bytes(), *((folder / name).read_bytes() for name in names)]


@pytest.fixture(scope="module")
def killed():
    """A function that runs a command, which dies some seconds after it has recorded some rounds; returns its status."""
    server = subprocess.Popen([sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def killed(arguments, num_rounds, seconds, last):
        server.stdin.write("\t".join(map(str, [num_rounds, seconds, last, *arguments])) + "\n")
        server.stdin.flush()
        return int(server.stdout.readline())

    with server:
        yield killed
        server.stdin.close()


def killed_at_start(arguments, seconds, last):
    """The same for a process that imports everything first, and may die while it does; returns its status."""
    setup = f"signal.setitimer(signal.ITIMER_REAL, {seconds})\nsignal_after(signal.SIGALRM, 1, 0.01, {last})"
    return subprocess.run(command_with(setup, *arguments), capture_output=True).returncode


def test_a_run_killed_eight_times_resumes_bit_identically(tmp_path, killed):
    path, num_rounds = scenario_file(tmp_path, 150), 150
    options = ["--eval-every", 100, "--checkpoint-every", 7, "--threads", 1]
    whole = RunOptions(eval_every=100, checkpoint_every=7, threads=1)
    ad.run(ad.load(path), out=tmp_path / "whole", options=whole)
    cut, rng = tmp_path / "cut", random.Random(0)
    for kill in range(NUM_KILLS):
        arguments = ("resume", cut) if (cut / "run.json").exists() else ("run", path, "--out", cut, *options)
        if kill % 4 == 0:
            ended = killed_at_start(arguments, rng.uniform(0.01, 2), num_rounds - 1)
        else:  # up to about as long as two checkpoints take
            ended = killed(arguments, 1, rng.uniform(0.0001, 0.05), num_rounds - 1)
        assert ended == -signal.SIGALRM
    assert exit_code("resume", cut) == 0
    assert bytes_of(cut) == bytes_of(tmp_path / "whole")


def assert_same_bytes_after_kills(killed, folder, path, scheme, num_kills):
    """Compare a run that is killed so many times, each time after a few rounds, with an uninterrupted one."""
    options = ["--scheme", scheme, "--eval-every", 100, "--checkpoint-every", 2, "--threads", 1]
    whole = RunOptions(eval_every=100, checkpoint_every=2, threads=1)
    ad.run(ad.load(path), scheme, out=folder / "whole", options=whole)
    last = len((folder / "whole" / "rounds.jsonl").read_bytes().splitlines()) - 1
    cut, rng = folder / "cut", random.Random(1)
    for _ in range(num_kills):
        arguments = ("resume", cut) if (cut / "run.json").exists() else ("run", path, "--out", cut, *options)
        assert killed(arguments, rng.randint(1, 4), rng.uniform(0.0001, 0.1), last) == -signal.SIGALRM
    assert exit_code("resume", str(cut)) == 0
    assert bytes_of(cut) == bytes_of(folder / "whole")


def test_a_run_on_a_public_set_killed_four_times_resumes_bit_identically(tmp_path, killed):
    """The server's model is trained on the rows of all rounds so far, which are part of the checkpoint."""
    path = scenario_file(
        tmp_path, 20, "public.samples=15", "public.samples_per_round=5", "public.distill_epochs=1",
        "learning.local_epochs=1", "learning.batch_size=5",
    )  # fmt: skip
    assert_same_bytes_after_kills(killed, tmp_path, path, "airdistill_proxy", 4)


@pytest.mark.parametrize("local_epochs", [0, 1])
def test_a_run_on_fused_kernels_killed_twice_resumes_bit_identically(tmp_path, few_digits, local_epochs, killed):
    path = scenario_file(
        tmp_path, 16, f"data.dataset={few_digits}", "data.samples_per_device=100", "learning.model=paper_cnn",
        f"learning.local_epochs={local_epochs}",
    )  # fmt: skip
    assert_same_bytes_after_kills(killed, tmp_path, path, "ota_fd", 2)


def test_ctrl_c_saves_the_round_and_says_how_to_resume(tmp_path):
    path = scenario_file(tmp_path, 1500)
    cut = tmp_path / "cut"
    arguments = command_with(
        "signal_after(signal.SIGINT, 5, 0, 1500)", "run", path, "--out", cut, "--checkpoint-every", 1000
    )
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 130
    assert "airdistill resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert [header.name for header in cut.glob("checkpoint-*.json")] == ["checkpoint-00000005.json"]
    assert len((cut / "rounds.jsonl").read_bytes().splitlines()) == 5


def test_a_full_disk_stops_the_run_with_one_line_and_keeps_what_was_recorded(tmp_path):
    """A limit on the size of the files that the process may write stands for a full disk."""
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


def test_a_second_process_in_the_same_folder_is_rejected(tmp_path, capsys):
    path = scenario_file(tmp_path, 1500)
    cut = tmp_path / "cut"
    # The first process pauses after its first round, and so it holds the lock until it is killed.
    first = subprocess.Popen(
        command_with("signal_after(signal.SIGSTOP, 1, 0, 1500)", "run", path, "--out", cut),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (cut / "rounds.jsonl").exists():
            assert first.poll() is None
            time.sleep(0.01)
        assert exit_code("resume", cut) == 2
    finally:
        first.kill()
        first.wait()
    assert "another process is running" in capsys.readouterr().err
