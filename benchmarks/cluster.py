"""A Ray cluster of three nodes on this machine: equal bytes in spite of killed nodes and drivers, and the overhead.

Usage: python benchmarks/cluster.py [--seconds 5] [--seeds 3]

Every node is a process group of its own, started one after another with one CPU, and ended by its recorded ids. The
script prints what it finds; it needs the extra `cluster` and about 4 GB of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PINNED = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
COMPARED = ("scenario.toml", "plan.json", "rounds.jsonl", "ledger.jsonl", "summary.json", "certificate.json")
GRID = ["--over", "privacy.epsilon=1,2,4,8", "--over", "learning.initial_lr=0.1,0.2", "--schemes", "ota_fd"]
POINTS = 8
SMALL = ["fleet.devices=4", "learning.max_rounds=2000", "learning.model=softmax_regression"]
WORKER_PORTS = ["--min-worker-port=0", "--max-worker-port=0"]
ENVIRONMENT = {**os.environ, **PINNED}


class Node:
    """One node: `ray start --block` and all that it starts, in a session of its own."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        ray = Path(sys.executable).with_name("ray")
        words = [str(ray), "start", "--block", "--num-cpus=1", "--object-store-memory=100000000", *arguments]
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
            start_new_session=True,
        )

    def members(self) -> list[int]:
        """The ids of all processes of the node: those of its session, and their descendants."""
        listed = subprocess.run(
            ["ps", "-eo", "pid=,ppid=,sid=,stat="], capture_output=True, text=True, check=True
        ).stdout
        fields = [line.split() for line in listed.splitlines()]
        rows = [(int(pid), int(parent), int(sid)) for pid, parent, sid, state in fields if not state.startswith("Z")]
        found = {pid for pid, _, sid in rows if sid == self.process.pid}
        while more := {pid for pid, parent, _ in rows if parent in found} - found:
            found |= more
        return sorted(found)

    def kill(self) -> None:
        for pid in self.members():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        deadline = time.monotonic() + 30
        while self.members() and time.monotonic() < deadline:
            time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def started(name: str, arguments: list[str], port: int, nodes: int) -> Node:
    """Start a node and wait until the head counts it: two at once raced."""
    node = Node(name, arguments)
    deadline = time.monotonic() + 120
    while alive_nodes(port) < nodes:
        if node.process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{name} did not start")
        time.sleep(0.5)
    return node


def alive_nodes(port: int) -> int:
    code = (
        "import ray, logging; "
        f"ray.init('127.0.0.1:{port}', log_to_driver=False, logging_level=logging.CRITICAL); "
        "print(sum(node['Alive'] for node in ray.nodes()))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    return int(answer.stdout.split()[-1]) if answer.returncode == 0 else 0


def command(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "airdistill", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def finished(words: list[str]) -> float:
    """Run a command to its end; return how many seconds it took."""
    began = time.perf_counter()
    process = command(words)
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(words)}: {errors}")
    return time.perf_counter() - began


def wait_for(folder: Path, runs: int, process: subprocess.Popen[str]) -> None:
    """Wait until so many runs have ended, and another one has a checkpoint."""
    while process.poll() is None:
        ended = {path.parent for path in folder.glob("*/seed-*/summary.json")}
        begun = {path.parent for path in folder.glob("*/seed-*/checkpoint-*.json")} - ended
        if len(ended) >= runs and begun:
            return
        time.sleep(0.05)
    raise SystemExit("the sweep ended before anything was killed; give more --seconds")


def differing(here: Path, there: Path, runs: int) -> list[str]:
    """The files of runs that are not equal byte for byte."""
    names = [path.relative_to(here) for name in COMPARED for path in sorted(here.glob(f"*/seed-*/{name}"))]
    assert len(names) == runs * len(COMPARED), f"{here} has {len(names)} files"
    same = {
        name for name in names if (there / name).exists() and (there / name).read_bytes() == (here / name).read_bytes()
    }
    return [str(name) for name in names if name not in same]


def computed_rounds(folder: Path) -> int:
    """How many rounds were computed in all, from the times of each: a round that was repeated counts again."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*/seed-*/timings.jsonl"))


def report(what: str, value: object) -> None:
    print(f"{what:<72} {value}", flush=True)


def rounds_for(seconds: float, scenario: list[str], folder: Path) -> int:
    """So many rounds that a run takes about this long, its start included."""
    finished(["run", *scenario, "--scheme", "ota_fd", "--rounds", "20", "--out", str(folder / "calibration"), "--json"])
    lines = [json.loads(line) for line in (folder / "calibration" / "timings.jsonl").read_text().splitlines()]
    a_round = sorted(line["seconds"] for line in lines)[len(lines) // 2]
    return max(20, min(2000, int(seconds / a_round)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run's rounds, about")
    parser.add_argument("--seeds", type=int, default=3, help=f"of each of {POINTS} points")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="airdistill-cluster-"))
    scenario = ["quick", *(part for change in SMALL for part in ("--set", change)), "--engine", "torch"]
    rounds, runs = rounds_for(given.seconds, scenario, folder), POINTS * given.seeds
    words = ["sweep", *scenario, *GRID, "--seeds", str(given.seeds), "--rounds", str(rounds), "--json"]
    words += ["--eval-every", str(rounds), "--checkpoint-every", "20"]
    report("runs, rounds of each", f"{runs}, {rounds}")
    port, nodes = free_port(), []
    try:
        local = finished([*words, "--jobs", "1", "--out", str(folder / "local")])
        report("local executor, one worker: seconds", f"{local:.1f}")
        here = ["--node-ip-address=127.0.0.1", *WORKER_PORTS]
        head = ["--head", f"--port={port}", "--include-dashboard=false", "--temp-dir=/tmp/ray-airdistill", *here]
        nodes.append(started("head", head, port, 1))
        cluster = ["--on", f"127.0.0.1:{port}"]
        one_node = finished([*words, *cluster, "--out", str(folder / "one")])
        report("Ray, one node with one worker: seconds, overhead", f"{one_node:.1f}, {one_node / local - 1:+.1%}")
        report("files that differ from the local executor's", differing(folder / "local", folder / "one", runs))
        for number in (2, 3):
            nodes.append(started(f"node {number}", [f"--address=127.0.0.1:{port}", *here], port, number))
        killed_nodes(words, cluster, nodes, folder, runs)
        killed_driver(words, cluster, folder, runs)
    finally:
        for node in reversed(nodes):
            node.kill()
        report("processes of the nodes that are left", [pid for node in nodes for pid in node.members()])
        shutil.rmtree(folder)


def killed_nodes(words: list[str], cluster: list[str], nodes: list[Node], folder: Path, runs: int) -> None:
    out = folder / "node"
    began = time.perf_counter()
    process = command([*words, *cluster, "--out", str(out)])
    wait_for(out, runs // 8, process)
    workers = [pid for node in nodes for pid in node.members() if "NodeRun" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(workers[0], signal.SIGKILL)
    report("killed with -9: a worker, after seconds", f"{time.perf_counter() - began:.1f}")
    wait_for(out, runs * 3 // 8, process)
    nodes.pop().kill()
    report("killed with -9: node 3 with all its processes, after seconds", f"{time.perf_counter() - began:.1f}")
    process.communicate()
    report("exit code, seconds", f"{process.returncode}, {time.perf_counter() - began:.1f}")
    compare(folder, out, runs)


def killed_driver(words: list[str], cluster: list[str], folder: Path, runs: int) -> None:
    out = folder / "driver"
    process = command([*words, *cluster, "--out", str(out)])
    wait_for(out, runs // 4, process)
    process.kill()
    process.communicate()
    ended = {path: path.stat().st_mtime_ns for path in out.glob("*/seed-*/summary.json")}
    report("killed with -9: the driver; runs that had ended", len(ended))
    finished(["resume", str(out), *cluster, "--json"])
    again = [path for path, stamp in ended.items() if path.stat().st_mtime_ns != stamp]
    report("resumed; runs that had ended and were run again", len(again))
    compare(folder, out, runs)


def compare(folder: Path, out: Path, runs: int) -> None:
    report("files that differ from the local executor's", differing(folder / "local", out, runs))
    computed, whole = computed_rounds(out), computed_rounds(folder / "local")
    report("rounds in the times of all runs, against the local executor's", f"{computed} / {whole}")


if __name__ == "__main__":
    main()
