"""The interface to a radio: what a device and the server need of their hardware.

A driver of your own is a class with these methods; `loopback` is an example without hardware; `gnu_radio`, `soapy` and
`file_replay` send samples. Symbols are complex baseband, `[row, slot]`, with their power in watts at the antenna: the
driver applies its own calibration. The driver synchronises the devices, so that their first symbols arrive at the same
time. The channel that it reports to the scenario (a trace) must be the channel that it transmits through, because
AirDistill inverts it.
"""

from __future__ import annotations

from typing import Protocol

from airdistill.arrays import ComplexArray


class Transmitter(Protocol):
    """A device's radio. It is constructed for every message, with the scenario and the device's number."""

    def send(self, round_index: int, symbols: ComplexArray) -> None:
        """Transmit the symbols, and return after the last one."""


class FrontEnd(Protocol):
    """The server's radio, constructed with the scenario when a run begins or resumes."""

    def listen(self, round_index: int, shape: tuple[int, int]) -> None:
        """Start to receive a round of `shape` = (rows, slots), and return at once."""

    def received(self, round_index: int) -> ComplexArray:
        """y = Σ h x + n of the round, `[row, slot]`; called after the devices have confirmed their transmissions."""

    def close(self) -> None:
        """Release the hardware; called when the run ends, also after an error."""
