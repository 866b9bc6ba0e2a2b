"""The settings of the server, and the arguments that it rejects."""

import socket
import sys

import pytest
from in_process import exit_code
from streamlit import net_util
from streamlit.web import cli
from streamlit.web.server import server_util

from airdistill.errors import AirDistillError
from airdistill.web import serving
from airdistill.web.serving import LOOK_ONLY


def arguments(tmp_path, address="localhost", port=0):
    return serving.server_arguments(tmp_path, address, port, open_browser=False)


def test_by_default_only_this_machine_can_connect_and_nothing_is_reported(tmp_path):
    flags = arguments(tmp_path)
    assert "--server.address=localhost" in flags
    assert "--browser.gatherUsageStats=false" in flags
    assert "--server.allowedHosts=localhost" in flags
    assert LOOK_ONLY not in flags


def test_visitors_from_a_network_may_only_look(tmp_path):
    assert arguments(tmp_path, "0.0.0.0")[-1] == LOOK_ONLY
    assert serving.is_local("127.0.0.5")
    assert serving.is_local("::1")


@pytest.mark.parametrize("address", ["localhost", "127.0.0.5", "::1"])
def test_the_server_accepts_requests_for_the_address_that_it_listens_on(tmp_path, address):
    assert f"--server.allowedHosts={address}" in arguments(tmp_path, address)


def test_no_foreign_server_is_asked_for_the_address_of_this_machine(monkeypatch):
    """Streamlit asks one of Amazon's at the start, and when a foreign origin connects."""
    addresses = []
    monkeypatch.setattr(net_util, "get_external_ip", net_util.get_external_ip)  # restored after the test
    monkeypatch.setattr(net_util, "_make_blocking_http_get", lambda *_, **__: pytest.fail("a request was sent"))
    monkeypatch.setattr(cli, "main", lambda **_: addresses.append(net_util.get_external_ip()))
    serving.run_streamlit()
    assert addresses == [None]
    assert not server_util.is_url_from_allowed_origins("http://elsewhere.example")


@pytest.mark.parametrize("address", ["example", "999.1.1.1", ""])
def test_an_invalid_address_is_rejected(tmp_path, address):
    with pytest.raises(AirDistillError, match="must be localhost or an IP address"):
        arguments(tmp_path, address)


def test_a_port_in_use_is_reported(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert exit_code("serve", tmp_path, "--port", port) == 2
    assert f"error: --port = {port}: cannot be opened" in capsys.readouterr().err


def test_a_file_in_place_of_a_folder_is_rejected(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert exit_code("serve", tmp_path / "file", "--port", "0") == 2
    assert exit_code("serve", tmp_path / "file", "--port", "65000") == 2
    assert "is not a folder" in capsys.readouterr().err


def test_a_missing_package_is_reported_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setattr(serving, "find_spec", lambda name: None if name == "plotly" else object())
    with pytest.raises(AirDistillError, match=r"plotly: pip install 'airdistill\[web\]'"):
        arguments(tmp_path)
