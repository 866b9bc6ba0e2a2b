"""GNU Radio as the air: a flow graph with its channel blocks, in a process of its own, reached over ZeroMQ.

GNU Radio is a package of the operating system (Debian: `gnuradio`) and belongs to the system's Python, so the flow
graph runs there. All sockets are on 127.0.0.1. The process ends with this one, however this one ends.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from airdistill.arrays import ComplexArray
from airdistill.channel.link_budget import noise_power_w
from airdistill.errors import AirDistillError, InputError
from airdistill.radio import loopback
from airdistill.radio.modem import Modem
from airdistill.scenario.model import Scenario

if TYPE_CHECKING:
    import zmq

PYTHON = "AIRDISTILL_GNURADIO_PYTHON"
_DEFAULT_PYTHON = "/usr/bin/python3"
_HOST = "tcp://127.0.0.1"
_START_S, _SAMPLES_S, _END_S = 30.0, 30.0, 2.0
_BEFORE, _BEHIND = 64, 4096  # zeros around samples
_KEPT_BACK = 2048  # more than any block keeps back until others follow
_AT_ONCE = 4096  # samples in a message

Kind = Literal["channel_model", "fading_model", "selective_fading_model"]


@dataclass(frozen=True)
class FlowGraphOptions:
    """What the flow graph does to each device's samples, in units of √W.

    `kind` is a class of `gnuradio.channels`. For "channel_model" a device has `taps` [[re, im], …] and an `offset` in
    cycles per sample; for fading an `amplitude` and a `seed`, and with "selective_fading_model" also `delays` (samples)
    and `magnitudes`. `noise` is the receiver noise, √W rms of a complex sample.
    """

    kind: Kind
    devices: Sequence[dict[str, Any]]
    noise: float = 0.0
    noise_seed: int = 0
    fading: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        given = {"kind": self.kind, "devices": list(self.devices), "noise": self.noise, "noise_seed": self.noise_seed}
        return (
            {"sinusoids": 8, "doppler": 0.0, "line_of_sight": False, "rician_k": 4.0, "taps": 8} | self.fading | given
        )


def python_with_gnu_radio() -> str | None:
    """The interpreter that can import GNU Radio; None if there is none. AIRDISTILL_GNURADIO_PYTHON names another."""
    python = os.environ.get(PYTHON, _DEFAULT_PYTHON)
    try:
        found = subprocess.run(
            [python, "-I", "-c", "from gnuradio import channels, zeromq"], capture_output=True, timeout=_START_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return python if found.returncode == 0 else None


class FlowGraph:
    """A running flow graph: `carry` sends all devices' samples through it, as often as needed; time goes on."""

    def __init__(self, options: FlowGraphOptions) -> None:
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self._sockets: tuple[zmq.Socket[bytes], ...] = ()
        self._sent = self._received = 0  # samples of every stream since it began

    def __enter__(self) -> FlowGraph:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        try:
            import zmq
        except ImportError:
            raise AirDistillError("GNU Radio is reached over ZeroMQ: pip install 'airdistill[radio]'") from None
        python = python_with_gnu_radio()
        if python is None:
            rule = f"apt-get install gnuradio, or name the Python that has it in {PYTHON}"
            raise AirDistillError(f"GNU Radio cannot be imported by {os.environ.get(PYTHON, _DEFAULT_PYTHON)}: {rule}")
        self._context = zmq.Context()
        source, sink = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        self._sockets = (source, sink)
        for each in self._sockets:
            each.setsockopt(zmq.LINGER, 0)
            each.setsockopt(zmq.SNDTIMEO, int(1000 * _SAMPLES_S))
            each.setsockopt(zmq.RCVTIMEO, int(1000 * _SAMPLES_S))
        port = source.bind_to_random_port(_HOST)
        script = Path(__file__).with_name("flow_graph.py")
        # A session of its own: Ctrl-C reaches this process only, which ends the other.
        self._process = subprocess.Popen(
            [python, "-I", str(script)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        sink.connect(self._told({**self._options.to_dict(), "source": f"{_HOST}:{port}"}))

    def _told(self, described: dict[str, Any]) -> str:
        """Send the description; return the address at which the flow graph gives its output."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(described) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], _START_S)
        line = self._process.stdout.readline() if ready else ""
        while ready and line and not line.startswith("{"):  # blocks print notes of their own
            line = self._process.stdout.readline()
        if not line:
            raise AirDistillError(f"the flow graph of GNU Radio did not start: {self._complaint()}")
        return str(json.loads(line)["sink"])

    def _complaint(self) -> str:
        """The last line that the process wrote to standard error."""
        assert self._process is not None
        self._process.kill()
        lines = [line for line in self._process.communicate()[1].splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it said nothing"

    def carry(self, samples: ComplexArray) -> tuple[ComplexArray, ComplexArray]:
        """Send samples `[device, sample]`; return each device's channel output `[device, sample]`, and their noisy sum.

        Zeros go before and behind the samples and are returned with them: blocks look ahead, and keep samples back
        until others follow. Time goes on during them.
        """
        num_devices, length = samples.shape
        padded = np.zeros((_BEFORE + length + _BEHIND, num_devices), "<c8")
        padded[_BEFORE : _BEFORE + length] = samples.T
        wanted = self._sent + len(padded) - _KEPT_BACK  # what blocks keep back belongs to the next call
        received: list[bytes] = []
        before = self._received
        self._send(padded, received, wanted)
        while self._received < wanted:
            received.append(self._taken())
        whole = np.frombuffer(b"".join(received), "<c8").reshape(-1, num_devices + 1)[self._sent - before :]
        self._sent += len(padded)
        return whole[:, :num_devices].T.astype(np.complex128), whole[:, num_devices].astype(np.complex128)

    def _send(self, padded: NDArray[np.complex64], received: list[bytes], wanted: int) -> None:
        """Send by blocks, and take meanwhile what comes: the queues are finite."""
        source, sink = self._sockets
        for first in range(0, len(padded), _AT_ONCE):
            source.send(padded[first : first + _AT_ONCE].tobytes())
            while self._received < wanted and sink.poll(0):
                received.append(self._taken())

    def _taken(self) -> bytes:
        import zmq

        try:
            taken = self._sockets[1].recv()
        except zmq.Again:
            rule = f"gave no samples for {_SAMPLES_S:.0f} s"
            raise AirDistillError(f"the flow graph of GNU Radio {rule}: {self._complaint()}") from None
        self._received += len(taken) // (8 * (len(self._options.devices) + 1))
        return taken

    def close(self) -> None:
        """End the process, and close the sockets."""
        if self._process is not None:
            assert self._process.stdin is not None
            try:
                self._process.stdin.close()  # the flow graph ends with it
                self._process.wait(_END_S)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                self._process.kill()
                self._process.wait()
            for pipe in (self._process.stdout, self._process.stderr):
                assert pipe is not None
                pipe.close()
            self._process = None
        if self._sockets:
            self._context.destroy(linger=0)
            self._sockets = ()


class FrontEnd(loopback.FrontEnd):
    """The server's radio in a federation: devices send to `radio.loopback`, and GNU Radio is the air between.

    Every device's symbols become samples (`radio.modem`), which go through a `channel_model` with its gain.
    """

    def __init__(self, scenario: Scenario) -> None:
        if scenario.radio.noise != "complex":
            raise InputError("radio.noise", scenario.radio.noise, 'GNU Radio adds noise on both axes; use "complex"')
        super().__init__(scenario)
        self._modem, self._frames = Modem(scenario), dict[int, ComplexArray]()
        self._noise_power_w = noise_power_w(scenario) / self._modem.grid.tones

    def listen(self, round_index: int, shape: tuple[int, int]) -> None:
        super().listen(round_index, shape)
        self._frames.clear()

    def received(self, round_index: int) -> ComplexArray:
        shape = super().received(round_index).shape  # which checks the round
        gains = self._modem.source.round_channel(round_index)
        frames = [self._frames.get(device) for device in range(len(gains))]
        no_signal = np.zeros(self._modem.frame_samples((shape[0], shape[1])), np.complex128)
        unit = np.sqrt(self._noise_power_w) or float(np.abs(gains).max())  # single precision has its own smallest
        devices = [{"taps": [[(gain / unit).real, (gain / unit).imag]], "offset": 0.0} for gain in gains]
        noise = float(np.sqrt(self._noise_power_w) / unit)
        options = FlowGraphOptions("channel_model", devices, noise, secrets.randbits(31))
        with FlowGraph(options) as graph:
            _, summed = graph.carry(np.stack([no_signal if frame is None else frame for frame in frames]))
        return self._modem.symbols(round_index, summed * unit, (shape[0], shape[1]))

    def _add(self, device: int, round_index: int, symbols: ComplexArray) -> bool:
        if not super()._add(device, round_index, symbols):
            return False
        with self._lock:
            self._frames[device] = self._modem.frame(round_index, device, symbols)
        return True
