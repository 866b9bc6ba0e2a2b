"""Software-defined radios through SoapySDR, as drivers of `air.medium = "radio"`.

Environment variables of a device or server:
    AIRDISTILL_SDR          SoapySDR's arguments, as in `driver=lime`
    AIRDISTILL_SDR_GAIN     gain in dB, as the hardware counts it
    AIRDISTILL_SDR_WATTS    power of samples of amplitude 1 at the antenna, W: the calibration
    AIRDISTILL_SDR_PERIOD   seconds; bursts begin when the hardware's clock is a multiple of it. The clocks of all
                            devices must agree to a fraction of the cyclic prefix (a pulse per second from GNSS)
Without a clock in the hardware a burst begins at once.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from typing import Any

import numpy as np

from airdistill.arrays import ComplexArray
from airdistill.errors import AirDistillError, InputError
from airdistill.radio.modem import Modem
from airdistill.scenario.model import Scenario

ARGUMENTS, GAIN, WATTS, PERIOD = (f"AIRDISTILL_SDR{name}" for name in ("", "_GAIN", "_WATTS", "_PERIOD"))
_AT_ONCE = 1 << 14  # samples of a call
_KEPT = 1 << 22  # samples that the server keeps, the latest
_TIMEOUT_US = 1_000_000
_LEAD_S = 0.05  # between the command to send and the burst
_MOST_FAILURES = 5


def _number(name: str, default: float | None) -> float:
    given = os.environ.get(name, "")
    try:
        value = float(given) if given or default is None else default
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(name, given or "(not set)", "must be a number; see airdistill.radio.soapy")
    return value


class _Hardware:
    """One direction of a radio, opened and tuned to the scenario's carrier and the modem's sample rate."""

    def __init__(self, scenario: Scenario, direction: str) -> None:
        try:
            import SoapySDR
        except ImportError:
            rule = "apt-get install python3-soapysdr, in an environment made with --system-site-packages"
            raise AirDistillError(f"SoapySDR cannot be imported: {rule}") from None
        self.api, self.modem = SoapySDR, Modem(scenario)
        self._direction = SoapySDR.SOAPY_SDR_TX if direction == "TX" else SoapySDR.SOAPY_SDR_RX
        arguments = os.environ.get(ARGUMENTS, "")
        self.unit = math.sqrt(_number(WATTS, 1.0))
        try:
            self.device = SoapySDR.Device(arguments)
            self._tune(scenario.radio.carrier)
            self.stream = self.device.setupStream(self._direction, SoapySDR.SOAPY_SDR_CF32)
        except RuntimeError as error:
            raise InputError(ARGUMENTS, arguments or "(not set)", f"SoapySDR: {error}") from None
        if self.stream is None:
            rule = (
                f"the driver {self.device.getDriverKey()} has no {direction} stream; SoapySDRUtil --find lists radios"
            )
            raise InputError(ARGUMENTS, arguments or "(not set)", rule)

    def _tune(self, carrier_hz: float) -> None:
        device, direction, rate = self.device, self._direction, self.modem.grid.sample_rate_hz
        if device.getNumChannels(direction) == 0:
            return  # the stream says what is wrong
        device.setSampleRate(direction, 0, rate)
        device.setFrequency(direction, 0, carrier_hz)
        if os.environ.get(GAIN):
            device.setGain(direction, 0, _number(GAIN, None))
        tuned = device.getSampleRate(direction, 0)
        if abs(tuned - rate) > 1e-6 * rate:
            rule = f"the radio gives {tuned:.9g} samples a second, and the grid needs {rate:.9g}: change its spacing"
            raise InputError("waveform.spacing", self.modem.grid.spacing_hz, rule)

    def close(self) -> None:
        self.device.deactivateStream(self.stream)
        self.device.closeStream(self.stream)


class Transmitter:
    """A device's radio."""

    def __init__(self, scenario: Scenario, device: int) -> None:
        self._number, self._hardware = device, _Hardware(scenario, "TX")

    def send(self, round_index: int, symbols: ComplexArray) -> None:
        hardware = self._hardware
        samples = hardware.modem.frame(round_index, self._number, symbols) / hardware.unit
        largest = float(np.abs([samples.real, samples.imag]).max(initial=0.0))
        if largest > 1:
            rule = (
                f"the largest sample would be {largest:.3g} of full scale; give more watts, or lower radio.peak_power"
            )
            raise InputError(WATTS, os.environ.get(WATTS, "1"), rule)
        hardware.device.activateStream(hardware.stream)
        try:
            self._write(samples.astype(np.complex64))
        finally:
            hardware.close()  # a driver is constructed for every message

    def _write(self, samples: Any) -> None:
        api, device, stream = self._hardware.api, self._hardware.device, self._hardware.stream
        period, begins = _number(PERIOD, 0.0), 0
        flags = api.SOAPY_SDR_END_BURST
        if period > 0 and device.hasHardwareTime():
            now = device.getHardwareTime() * 1e-9
            begins, flags = round(1e9 * period * math.ceil((now + _LEAD_S) / period)), flags | api.SOAPY_SDR_HAS_TIME
        sent = failures = 0
        while sent < len(samples):
            status = device.writeStream(stream, [samples[sent:]], len(samples) - sent, flags, begins, _TIMEOUT_US)
            failures = failures + 1 if status.ret <= 0 else 0
            if failures == _MOST_FAILURES:
                rule = f"stopped after {sent} of {len(samples)} samples: {api.errToStr(status.ret)}"
                raise AirDistillError(f"the radio's transmission {rule}")
            sent, begins, flags = sent + max(status.ret, 0), 0, api.SOAPY_SDR_END_BURST


class FrontEnd:
    """The server's radio: it records from `listen` on and keeps the latest samples."""

    def __init__(self, scenario: Scenario) -> None:
        self._hardware = _Hardware(scenario, "RX")
        self._blocks: deque[ComplexArray] = deque()
        self._stop, self._problem = threading.Event(), ""
        self._thread: threading.Thread | None = None
        self._round, self._shape = 0, (0, 0)

    def listen(self, round_index: int, shape: tuple[int, int]) -> None:
        self._end_recording()
        self._round, self._shape, self._problem = round_index, shape, ""
        self._blocks.clear()
        self._stop.clear()
        hardware = self._hardware
        hardware.device.activateStream(hardware.stream)
        self._thread = threading.Thread(target=self._record, daemon=True)
        self._thread.start()

    def received(self, round_index: int) -> ComplexArray:
        if round_index != self._round:
            raise AirDistillError(f"round {round_index} was not received: the radio is at round {self._round}")
        self._end_recording()
        if self._problem:
            raise AirDistillError(f"round {round_index}: the radio stopped recording: {self._problem}")
        samples: ComplexArray = np.concatenate([np.zeros(0, np.complex128), *self._blocks])
        return self._hardware.modem.symbols(round_index, samples * self._hardware.unit, self._shape)

    def close(self) -> None:
        self._end_recording()
        self._hardware.close()

    def _end_recording(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def _record(self) -> None:
        """Read until told to stop; an overflow loses samples, and so everything before it."""
        api, device, stream = self._hardware.api, self._hardware.device, self._hardware.stream
        most = max(_KEPT, 2 * self._hardware.modem.frame_samples(self._shape))
        buffer, kept = np.zeros(_AT_ONCE, np.complex64), 0
        while not self._stop.is_set():
            status = device.readStream(stream, [buffer], len(buffer), timeoutUs=_TIMEOUT_US)
            if status.ret == api.SOAPY_SDR_OVERFLOW:
                self._blocks.clear()
                kept = 0
            elif status.ret < 0 and status.ret != api.SOAPY_SDR_TIMEOUT:
                self._problem = api.errToStr(status.ret)
                return
            elif status.ret > 0:
                self._blocks.append(buffer[: status.ret].astype(np.complex128))
                kept += status.ret
            while kept > most:
                kept -= len(self._blocks.popleft())
