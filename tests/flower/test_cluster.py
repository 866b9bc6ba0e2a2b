"""Real processes on the loopback interface: who is let in, what survives a kill, and that nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from airdistill.flower.machine.certificates import make_node_key
from airdistill.flower.machine.cluster import Cluster
from airdistill.flower.machine.processes import environment, free_port

ECHO = Path(__file__).parent / "echo_app"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("federation")


@pytest.fixture(scope="module")
def cluster(folder):
    devices = [{"partition-id": index, "folder": str(folder / f"device {index}")} for index in range(2)]
    for device in devices:
        Path(device["folder"]).mkdir()
    with Cluster(folder / "cluster", devices) as cluster:
        yield cluster
        groups = cluster.process_ids
    assert len(groups) == 6
    wait_until_gone(groups)


def told(log, what):
    """What the echo app's server wrote, as it wrote it."""
    lines = [json.loads(line.removeprefix("TELL ")) for line in log.splitlines() if line.startswith("TELL ")]
    return [line for line in lines if line["what"] == what]


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_until_gone(groups):
    """A killed process is there for a moment more."""

    def gone(group):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    wait_for(lambda: all(gone(group) for group in groups), 10.0)


def test_devices_answer_and_one_that_is_killed_is_done_without(cluster, folder):
    """Arrays of all kinds come back exact; a device's folder outlives its process; its number stays its own."""
    pauses = folder / "pauses"
    pauses.mkdir()
    run_id = cluster.submit(ECHO, {"rounds": 3, "pause-folder": str(pauses), "wait-seconds": 10.0})
    wait_for((pauses / "after-1").exists)
    cluster.kill_node(1)
    (pauses / "go-on-1").touch()
    wait_for((pauses / "after-2").exists)
    cluster.start_nodes([1])
    (pauses / "go-on-2").touch()
    wait_for((pauses / "after-3").exists)
    (pauses / "go-on-3").touch()
    result = cluster.wait(run_id, timeout_s=60)

    assert result.state.status == "completed"
    assert result.state.bytes_from_devices > 0
    assert result.state.bytes_to_devices > 0
    zero, one = (str(node.node_id) for node in cluster.nodes)
    first, second, third = (line["heard"] for line in told(result.log, "round"))
    assert first.keys() == third.keys() == {zero, one}
    assert second.keys() == {zero}
    assert all(answer["exact"] for heard in (first, second, third) for answer in heard.values())
    assert third[zero] == {"asked": 3, "in_memory": 3, "exact": True}
    assert third[one]["asked"] > third[one]["in_memory"]  # Flower forgets with the process, the folder does not
    (devices,) = told(result.log, "devices")
    assert {node: answer["device"] for node, answer in devices["heard"].items()} == {zero: 0, one: 1}


def test_the_command_of_flower_itself_works_and_a_device_that_fails_says_why(cluster):
    """`flwr run` with the cluster's own configuration; the user's is not touched."""
    command = ["flwr", "run", str(ECHO), "cluster", "--format", "json", "--run-config", "fail-round=1"]
    done = subprocess.run(command, env=environment(cluster.home), capture_output=True, text=True, timeout=60)
    run_id = int(json.loads(done.stdout[done.stdout.index("{") :])["run-id"])
    result = cluster.wait(run_id, timeout_s=60)
    (only,) = told(result.log, "round")
    assert [answer["reason"] for answer in only["heard"].values()] == ["<class 'ValueError'>:<'asked to fail'>"] * 2


def test_strangers_are_refused(cluster, folder):
    """A key that is not registered, no key at all, and plain text."""
    key = folder / "stranger.ssh"
    make_node_key(key)
    tls = ["--root-certificates", str(cluster.authority_certificate)]
    answers = {
        "unregistered": ([*tls, "--auth-supernode-private-key", str(key)], "Failed to activate SuperNode"),
        "without-key": (tls, "must be registered via the CLI"),
        "plain-text": (["--insecure"], "Failed to initialize the connection"),
    }
    strangers = {}
    for name, (arguments, _) in answers.items():
        command = [*cluster.node_command(free_port(), {"partition-id": 9}), "--max-retries", "1", *arguments]
        strangers[name] = cluster.program(name, command)
        strangers[name].start()
    for name, (_, answer) in answers.items():
        wait_for(lambda name=name: not strangers[name].runs())
        words = strangers[name].log.read_text()
        assert answer in words
        assert "SuperNode ID:" not in words
        strangers[name].kill()


def test_everything_ends_with_whoever_started_it(folder):
    """Even by kill -9, when no block of code can clean up."""
    script = """
        import sys, time
        from pathlib import Path
        from airdistill.flower.machine.cluster import Cluster
        with Cluster(Path(sys.argv[1]), []) as cluster:
            print(*cluster.process_ids, flush=True)
            time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(folder / "orphans")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        groups = [int(group) for group in parent.stdout.readline().split()]
        parent.send_signal(signal.SIGKILL)
    assert len(groups) == 2
    wait_until_gone(groups)
