"""Real processes on the loopback interface: authentication, recovery from kills, and no process left behind."""

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

from flwr.common.constant import ErrorCode

from airdistill.flower.machine.certificates import make_node_key
from airdistill.flower.machine.cluster import Cluster
from airdistill.flower.machine.processes import environment, free_port

ECHO = Path(__file__).parent / "echo_app"
TIMEOUT_S = 300  # only a failing test waits so long


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


def logged(log, what):
    """The lines of one type that the server of the echo app wrote."""
    lines = [json.loads(line.removeprefix("LOG ")) for line in log.splitlines() if line.startswith("LOG ")]
    return [line for line in lines if line["what"] == what]


def wait_for(condition):
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_until_gone(groups):
    """Wait for the process groups to disappear, which takes a moment after a kill."""

    def gone(group):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    wait_for(lambda: all(gone(group) for group in groups))


def test_a_run_continues_without_a_killed_device_and_with_it_after_a_restart(cluster, folder):
    """Arrays of all types return exactly; a device's folder outlives its process; its node id stays the same."""
    pauses = folder / "pauses"
    pauses.mkdir()
    run_id = cluster.submit(ECHO, {"rounds": 3, "pause-folder": str(pauses)})
    wait_for((pauses / "after-1").exists)
    cluster.kill_node(1)
    cluster.report_killed_nodes([1])
    (pauses / "continue-1").touch()
    wait_for((pauses / "after-2").exists)
    cluster.start_nodes([1])
    (pauses / "continue-2").touch()
    wait_for((pauses / "after-3").exists)
    (pauses / "continue-3").touch()
    result = cluster.wait(run_id, timeout_s=TIMEOUT_S)

    assert result.state.status == "completed"
    assert result.state.bytes_from_devices > 0
    assert result.state.bytes_to_devices > 0
    zero, one = (str(node.node_id) for node in cluster.nodes)
    first, second, third = (line["replies"] for line in logged(result.log, "round"))
    assert first.keys() == second.keys() == third.keys() == {zero, one}
    assert second[one]["error"] == ErrorCode.NODE_UNAVAILABLE
    assert all(reply["exact"] for reply in (first[zero], first[one], second[zero], third[zero], third[one]))
    assert third[zero] == {"asked": 3, "in_memory": 3, "exact": True}
    assert third[one]["asked"] > third[one]["in_memory"]  # Flower's state ends with the process, the folder stays
    (devices,) = logged(result.log, "devices")
    assert {node: reply["device"] for node, reply in devices["replies"].items()} == {zero: 0, one: 1}


def test_flwr_run_works_and_a_failing_device_reports_the_reason(cluster):
    """`flwr run` uses the cluster's own configuration and does not touch the user's."""
    command = ["flwr", "run", str(ECHO), "cluster", "--format", "json", "--run-config", "fail-round=1"]
    done = subprocess.run(command, env=environment(cluster.home), capture_output=True, text=True, timeout=TIMEOUT_S)
    run_id = int(json.loads(done.stdout[done.stdout.index("{") :])["run-id"])
    result = cluster.wait(run_id, timeout_s=TIMEOUT_S)
    (only,) = logged(result.log, "round")
    assert [reply["reason"] for reply in only["replies"].values()] == ["<class 'ValueError'>:<'asked to fail'>"] * 2


def test_unknown_nodes_are_rejected(cluster, folder):
    """A key that is not registered, no key, and a connection without TLS."""
    key = folder / "unknown.ssh"
    make_node_key(key)
    tls = ["--root-certificates", str(cluster.authority_certificate)]
    expected = {
        "unregistered": ([*tls, "--auth-supernode-private-key", str(key)], "Failed to activate SuperNode"),
        "without-key": (tls, "must be registered via the CLI"),
        "plain-text": (["--insecure"], "Failed to initialize the connection"),
    }
    nodes = {}
    for name, (arguments, _) in expected.items():
        command = [*cluster.node_command(free_port(), {"partition-id": 9}), "--max-retries", "1", *arguments]
        nodes[name] = cluster.program(name, command)
        nodes[name].start()
    for name, (_, message) in expected.items():
        wait_for(lambda name=name: not nodes[name].is_running())
        log = nodes[name].log.read_text()
        assert message in log
        assert "SuperNode ID:" not in log
        nodes[name].kill()


def test_all_programs_end_with_the_process_that_started_them(folder):
    """The watchdog works even if the parent was killed with SIGKILL and could not clean up."""
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


def test_programs_have_the_default_handler_of_sigint_even_if_their_parent_ignores_it():
    """A shell ignores SIGINT in background jobs, and child processes inherit this."""
    script = """
        import signal, sys, types
        from airdistill.flower.machine import watchdog
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        handler = lambda: print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
        sys.modules["probe"] = types.SimpleNamespace(main=handler)
        watchdog.PROGRAMS["probe"] = ("probe", "main")
        sys.argv = ["watchdog", watchdog.UNMODIFIED, "probe"]
        watchdog.main()
    """
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", textwrap.dedent(script)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, start_new_session=True) as program:
        assert program.stdout.readline() == "True\n"
