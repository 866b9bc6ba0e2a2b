"""What the server is told, and when it refuses."""

import socket
import sys

import pytest
from in_process import exit_code
from streamlit import net_util
from streamlit.web.server import server_util

from airdistill.errors import AirDistillError
from airdistill.web import quiet_server, serving
from airdistill.web.serving import LOOK_ONLY


def arguments(tmp_path, address="localhost", port=0):
    return serving.server_arguments(tmp_path, address, port, open_browser=False)


def test_it_is_for_this_machine_alone_and_silent(tmp_path):
    told = arguments(tmp_path)
    assert "--server.address=localhost" in told
    assert "--browser.gatherUsageStats=false" in told
    assert "--server.allowedHosts=localhost" in told
    assert LOOK_ONLY not in told


def test_an_address_of_a_network_is_to_look_at(tmp_path):
    assert arguments(tmp_path, "0.0.0.0")[-1] == LOOK_ONLY
    assert serving.is_local("127.0.0.5")
    assert serving.is_local("::1")


@pytest.mark.parametrize("address", ["localhost", "127.0.0.5", "::1"])
def test_the_address_that_it_listens_on_is_one_that_it_answers_to(tmp_path, address):
    assert f"--server.allowedHosts={address}" in arguments(tmp_path, address)


def test_nobody_outside_is_asked_for_the_address_of_this_machine(monkeypatch):
    """Streamlit asks a server of Amazon's, at the start and when a foreign page knocks."""
    known = []
    monkeypatch.setattr(net_util, "get_external_ip", net_util.get_external_ip)  # to be put back
    monkeypatch.setattr(net_util, "_make_blocking_http_get", lambda *_, **__: pytest.fail("somebody was asked"))
    monkeypatch.setattr(quiet_server, "main", lambda **_: known.append(net_util.get_external_ip()))
    quiet_server.start()
    assert known == [None]
    assert not server_util.is_url_from_allowed_origins("http://elsewhere.example")


@pytest.mark.parametrize("address", ["example", "999.1.1.1", ""])
def test_what_is_no_address_is_refused(tmp_path, address):
    with pytest.raises(AirDistillError, match="must be localhost or an IP address"):
        arguments(tmp_path, address)


def test_a_taken_port_is_named(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert exit_code("serve", tmp_path, "--port", port) == 2
    assert f"error: --port = {port}: cannot be listened on" in capsys.readouterr().err


def test_a_file_is_no_folder_of_runs(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert exit_code("serve", tmp_path / "file", "--port", "0") == 2
    assert exit_code("serve", tmp_path / "file", "--port", "65000") == 2
    assert "is not a folder" in capsys.readouterr().err


def test_what_is_not_installed_is_said_with_its_cure(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setattr(serving, "find_spec", lambda name: None if name == "plotly" else object())
    with pytest.raises(AirDistillError, match=r"plotly: pip install 'airdistill\[web\]'"):
        arguments(tmp_path)
