"""Control of a SuperLink: start runs, register nodes, read states and logs.

This module does what `flwr run`, `flwr supernode register` and `flwr list` do, without a second of start-up for each
command. It uses the internal client of Flower on which these commands are built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import httpx
import tomli_w
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StreamLogsRequest,
)
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supercore.constant import NodeStatus
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

CONNECTION = "cluster"
Setting = str | int | float | bool


def write_connection(home: Path, address: str, authority_certificate: Path) -> None:
    """Write the configuration with which `flwr run APP cluster` uses the SuperLink at `address`.

    The `flwr` commands read it if FLWR_HOME is `home`.
    """
    home.mkdir(parents=True)
    connection = {"address": address, "root-certificates": str(authority_certificate.resolve())}
    content = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
    (home / "config.toml").write_text(tomli_w.dumps(content))


@dataclass(frozen=True)
class RunState:
    """The state of a run; `status` is pending, starting, running, completed, failed or stopped."""

    run_id: int
    status: str
    details: str
    bytes_from_devices: int
    bytes_to_devices: int

    @property
    def ended(self) -> bool:
        return self.status in ("completed", "failed", "stopped")


class Control:
    """The control interface of a SuperLink, as the operator of the federation uses it."""

    def __init__(self, address: str, authority_certificate: Path) -> None:
        self._client = ControlHttpClient.from_server_address(
            address,
            insecure=False,
            root_certificates=authority_certificate.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def __enter__(self) -> Control:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def is_reachable(self) -> bool:
        try:
            self._client.ListNodes(ListNodesRequest())
        except httpx.TransportError:
            return False
        return True

    def register(self, public_key: bytes, name: str) -> int:
        """Register the node with this public key and return its node id."""
        return self._client.RegisterNode(RegisterNodeRequest(public_key=public_key, name=name)).node_id

    def online(self) -> set[int]:
        """The ids of the nodes that the server considers online; a killed node stays online for a minute."""
        nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
        return {node.node_id for node in nodes if node.status == NodeStatus.ONLINE}

    def start_run(self, app: Path, settings: Mapping[str, Setting]) -> int:
        content = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        request = StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(settings)))
        return self._client.StartRun(request).run_id

    def state_of(self, run_id: int) -> RunState:
        run = self._client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id]
        status = run.status.sub_status or run.status.status
        return RunState(run_id, status, run.status.details, run.bytes_recv, run.bytes_sent)

    def log_of(self, run_id: int) -> str:
        """The output of the ServerApp of a run that has ended; for a running one this waits until its end."""
        request = StreamLogsRequest(run_id=run_id, after_timestamp=0.0)
        return "".join(piece.log_output for piece in self._client.StreamLogs(request))


def deactivate_node(address: str, authority_certificate: Path, key_file: Path, node_id: int) -> None:
    """Tell the server, with the node's own key, that a SuperNode has left.

    A SuperNode that stops normally does this itself. After a kill the server would reject its successor for two
    heartbeats, which is a minute.
    """
    key = load_ssh_private_key(key_file.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{key_file} does not contain an elliptic-curve key")
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor("SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    certificate = authority_certificate.read_bytes()
    with FleetHttpClient.from_server_address(address, False, certificate, interceptors=interceptors) as client:
        client.DeactivateNode(DeactivateNodeRequest(node_id=node_id))
