"""Recordings played as the server's receiver: `air.medium = "radio"` without devices on the air.

AIRDISTILL_RECORDINGS names a folder with `round-0001/reception.sigmf-meta` and so on, as `airdistill radio export`
writes it. The server decodes what was recorded; what devices send meanwhile is not received.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from airdistill.arrays import ComplexArray
from airdistill.errors import AirDistillError, InputError
from airdistill.radio.decoding import decode_file
from airdistill.radio.recordings import RecordingError
from airdistill.scenario.model import Scenario

RECORDINGS = "AIRDISTILL_RECORDINGS"


class Transmitter:
    """A device's radio, which sends nothing."""

    def __init__(self, scenario: Scenario, device: int) -> None:
        pass

    def send(self, round_index: int, symbols: ComplexArray) -> None:
        pass


class FrontEnd:
    """The server's radio."""

    def __init__(self, scenario: Scenario) -> None:  # noqa: ARG002 - part of the interface
        folder = os.environ.get(RECORDINGS, "")
        if not Path(folder).is_dir() or not folder:
            raise InputError(RECORDINGS, folder or "(not set)", "must be a folder of recordings")
        self._folder, self._expected = Path(folder), (0, (0, 0))

    def listen(self, round_index: int, shape: tuple[int, int]) -> None:
        self._expected = (round_index, shape)

    def received(self, round_index: int) -> ComplexArray:
        expected, shape = self._expected
        if round_index != expected:
            raise AirDistillError(f"round {round_index} was not received: the recordings are at round {expected}")
        path = self._folder / f"round-{round_index:04d}" / "reception.sigmf-meta"
        decoded = decode_file(path)
        found = decoded.contents
        if found.round_index != round_index:
            raise RecordingError(f"{path.name}: airdistill:round", found.round_index, f"the run is at {round_index}")
        if decoded.numbers.shape != shape:
            rule = f"the run receives {shape[0]} × {shape[1]}"
            raise RecordingError(f"{path.name}: airdistill:rows × entries", str(decoded.numbers.shape), rule)
        return decoded.numbers.astype(np.complex128)

    def close(self) -> None:
        pass
