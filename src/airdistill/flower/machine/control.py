"""Where Flower's own commands find a federation.

What `flwr run`, `flwr supernode register` and `flwr list` do, without a second of start-up for each.

The one file that reaches into Flower's insides: the commands are thin around the same client.
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


def write_connection(home: Path, address: str, authority_certificate: Path) -> None:
    """With FLWR_HOME set to `home`, `flwr run APP cluster` and its sisters speak to the SuperLink at that address."""
    home.mkdir(parents=True)
    connection = {"address": address, "root-certificates": str(authority_certificate.resolve())}
    content = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
    (home / "config.toml").write_text(tomli_w.dumps(content))


Setting = str | int | float | bool


@dataclass(frozen=True)
class RunState:
    """How a run stands: `status` is pending, starting, running, or how it ended: completed, failed, stopped."""

    run_id: int
    status: str
    details: str
    bytes_from_devices: int
    bytes_to_devices: int

    @property
    def ended(self) -> bool:
        return self.status in ("completed", "failed", "stopped")


class Control:
    """A SuperLink, as whoever runs the federation sees it."""

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

    def answers(self) -> bool:
        try:
            self._client.ListNodes(ListNodesRequest())
        except httpx.TransportError:
            return False
        return True

    def register(self, public_key: bytes, name: str) -> int:
        """Lets the node with this key in, and says by which number the server knows it."""
        return self._client.RegisterNode(RegisterNodeRequest(public_key=public_key, name=name)).node_id

    def online(self) -> set[int]:
        """The nodes that the server takes to be there; one that was killed stays for a minute."""
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
        """What the ServerApp wrote. For a run that has ended: the stream of another would wait for its end."""
        request = StreamLogsRequest(run_id=run_id, after_timestamp=0.0)
        return "".join(piece.log_output for piece in self._client.StreamLogs(request))


def sign_off(address: str, authority_certificate: Path, key_file: Path, node_id: int) -> None:
    """Says, with the node's own key, that it has left, as a SuperNode does that ends in order.

    One that was killed could not, and the server would turn its successor away for a minute: two heartbeats.
    """
    key = load_ssh_private_key(key_file.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{key_file} holds no elliptic-curve key")
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor("SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    certificate = authority_certificate.read_bytes()
    with FleetHttpClient.from_server_address(address, False, certificate, interceptors=interceptors) as client:
        client.DeactivateNode(DeactivateNodeRequest(node_id=node_id))
