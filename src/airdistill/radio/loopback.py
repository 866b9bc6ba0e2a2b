"""A radio without hardware, for tests and first steps: devices send their symbols to a socket of this machine.

The server's `FrontEnd` applies the scenario's channel, and adds the signals and receiver noise, which is new in every
process, as that of a real receiver is. It keeps the sum only. The environment variable AIRDISTILL_LOOPBACK_PORT names
the port, for devices and server alike.
"""

from __future__ import annotations

import os
import secrets
import socket
import socketserver
import struct
import threading
from collections.abc import Callable

import numpy as np

from airdistill.arrays import ComplexArray
from airdistill.channel.link_budget import noise_power_w
from airdistill.channel.sources import channel_source
from airdistill.errors import AirDistillError, InputError
from airdistill.radio.superposition import thermal_noise
from airdistill.scenario.model import Scenario

_Add = Callable[[int, int, ComplexArray], bool]
PORT = "AIRDISTILL_LOOPBACK_PORT"
_HOST = "127.0.0.1"
_HEADER = struct.Struct("<qqqq")  # device, round, rows, slots
_ADDED, _REFUSED = b"\x01", b"\x00"
_TIMEOUT_S = 30.0


class Transmitter:
    """A device's radio."""

    def __init__(self, scenario: Scenario, device: int) -> None:  # noqa: ARG002 - part of the interface
        self._device = device

    def send(self, round_index: int, symbols: ComplexArray) -> None:
        content = np.ascontiguousarray(symbols, "<c16").tobytes()
        with socket.create_connection((_HOST, _port()), timeout=_TIMEOUT_S) as connection:
            connection.sendall(_HEADER.pack(self._device, round_index, *symbols.shape) + content)
            if connection.recv(1) != _ADDED:
                raise AirDistillError(f"round {round_index}: the loopback radio does not receive such a round now")


class FrontEnd:
    """The server's radio, which also emulates the channel."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario, self._source, self._seed = scenario, channel_source(scenario), secrets.token_hex(16)
        self._lock = threading.Lock()
        self._round, self._sum = 0, np.zeros((0, 0), dtype=np.complex128)
        self._server = _Listener((_HOST, _port()), self._add)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def listen(self, round_index: int, shape: tuple[int, int]) -> None:
        with self._lock:
            self._round, self._sum = round_index, np.zeros(shape, dtype=np.complex128)

    def received(self, round_index: int) -> ComplexArray:
        power_w, axis = noise_power_w(self._scenario), self._scenario.radio.noise
        with self._lock:
            if round_index != self._round:
                raise AirDistillError(
                    f"round {round_index} was not received: the loopback radio is at round {self._round}"
                )
            noise = thermal_noise(self._seed, round_index, self._sum.shape, power_w, axis)
            return np.asarray(self._sum + noise)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _add(self, device: int, round_index: int, symbols: ComplexArray) -> bool:
        with self._lock:
            if round_index != self._round or symbols.shape != self._sum.shape:
                return False
            self._sum = self._sum + self._source.round_channel(round_index)[device] * symbols
            return True


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int], add: _Add) -> None:
        self.add = add
        super().__init__(address, _Arrival)


class _Arrival(socketserver.StreamRequestHandler):
    server: _Listener
    timeout = _TIMEOUT_S

    def handle(self) -> None:
        device, round_index, rows, slots = _HEADER.unpack(self.rfile.read(_HEADER.size))
        content = self.rfile.read(16 * rows * slots)
        symbols = np.frombuffer(content, "<c16").reshape(rows, slots)
        self.wfile.write(_ADDED if self.server.add(device, round_index, symbols) else _REFUSED)


def _port() -> int:
    given = os.environ.get(PORT, "")
    if not given.isdigit():
        raise InputError(
            PORT, given or "(not set)", "must be the number of a free port, the same for devices and server"
        )
    return int(given)
