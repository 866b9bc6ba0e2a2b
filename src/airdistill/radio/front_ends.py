"""The interface to a radio: what a device and the server need of their hardware, and nothing of how it works.

A driver of yours is a class with one of these methods; see `loopback` for one that needs no hardware. Symbols are
complex baseband, `[row, slot]`: their power is in watt at the antenna, after the driver's own calibration. The driver
sees to it that all devices' first symbols arrive together, and that the channel it reports to the scenario (a trace) is
the one that it sends through: AirDistill inverts it.
"""

from __future__ import annotations

from typing import Protocol

from airdistill.arrays import ComplexArray


class Transmitter(Protocol):
    """A device's side. It is made anew for every message, with the scenario and the device's number."""

    def send(self, round_index: int, symbols: ComplexArray) -> None:
        """Puts the symbols on the air and returns when the last one has left."""


class FrontEnd(Protocol):
    """The server's side, made with the scenario when a run begins or goes on."""

    def listen(self, round_index: int, shape: tuple[int, int]) -> None:
        """From now on, for a round of so many rows and slots. Returns at once."""

    def heard(self, round_index: int) -> ComplexArray:
        """y = Σ h x + n of the round, `[row, slot]`, once the devices have said that they have sent."""

    def close(self) -> None:
        """Called when the run ends, however it does."""
