"""The section `[radio]`: link budget, path loss and fading, and how the uplink uses them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, StrictInt, StrictStr

from airdistill.scenario.bands import DEFAULT_NOISE_W
from airdistill.scenario.fields import (
    AntennaGain,
    BandName,
    Decibels,
    Frequency,
    Length,
    MetresPerDevice,
    NoiseDensity,
    NotNegative,
    Number,
    PositivePower,
    ReceiverNoisePower,
    Time,
    Truncation,
    WattsPerDevice,
)
from airdistill.scenario.per_device import PerDevice
from airdistill.scenario.sections import Section


class Radio(Section):
    """The uplink."""

    peak_power: WattsPerDevice = Field(PerDevice("same", (1e-3,)), description="transmit power limit of a device, W")
    noise_power: ReceiverNoisePower = Field(
        None,
        description="noise power of the receiver in the bandwidth of one tone, both axes together, W. By default, or "
        'with "thermal", it follows from noise_figure_db or noise_density; without these it is 5 fW in 312.5 kHz',
    )
    noise: Literal["complex", "real"] = Field(
        "complex", description="complex: half of the noise power is on the real axis; real: all of it"
    )
    carrier: Frequency = Field(915e6, description="carrier frequency, Hz")
    distance: MetresPerDevice = Field(PerDevice("range", (100.0, 500.0)), description="from device to server, m")
    path_loss_exponent: NotNegative = Field(
        3.0,
        le=10,
        description="path-loss exponent of the power gain; 3GPP cells define their own",
    )
    fading: Literal[
        "rayleigh", "rician", "real_gaussian", "none",
        "umi", "uma", "rma", "inh-open", "inh-mixed", "inf-sl", "inf-dl", "inf-sh", "inf-dh",
        "tdl-a", "tdl-b", "tdl-c", "tdl-d", "tdl-e",
    ] = Field(
        "rayleigh",
        description="small-scale fading, drawn for every round; umi, uma, rma: cells of 3GPP TR 38.901, whose path "
        "loss, line of sight and shadowing are drawn once; inh-…: its offices; inf-…: its factories, with sparse or "
        "dense clutter and a low or high server; tdl-a to tdl-e: its tapped delay lines",
    )  # fmt: skip
    rician_k_db: Number = Field(
        6.0, ge=-100, le=100, description="rician: power of the direct path relative to the scattered paths, dB"
    )
    server_height: Length | None = Field(
        None,
        description="cells: height of the server's antenna, m; by default umi 10, uma 25, rma 35, inh-… 3, inf-sl and "
        "inf-dl 1.5, inf-sh and inf-dh 8",
    )
    device_height: Length = Field(1.5, description="cells: of a device's antenna, m; `distance` is horizontal")
    line_of_sight: Literal["drawn", "always", "never"] = Field(
        "drawn", description="cells: line of sight; drawn: more likely for near devices"
    )
    delay_spread: Time = Field(
        100e-9, description="tdl-a to tdl-e: rms delay spread, s; at most a tenth of a slot (flat fading)"
    )
    gains: tuple[tuple[Number, Number], ...] | None = Field(
        None, description="constant complex gain [re, im] of every device; replaces distance and fading"
    )
    trace: StrictStr | None = Field(
        None, description=".npz or .csv of complex gains, rounds × devices; replaces distance and fading"
    )
    antennas: StrictInt = Field(
        1,
        ge=1,
        le=1024,
        description="receive antennas; privacy holds against a server that observes every antenna",
    )
    combining: Literal["joint", "per_class"] = Field(
        "joint", description="several antennas: one receive combiner for all classes, or one per class"
    )
    slot: Time = Field(3.6e-6, description="duration of one transmitted number, s")
    outage: Number = Field(0.05, ge=0, lt=1, description="share of the worst rounds that the planner ignores")
    transceiver: Literal["optimal", "paper"] = Field(
        "optimal", description="optimal for the trust model; or eqs. (18)-(20) as printed, which may be infeasible"
    )
    truncation: Truncation = Field(
        0.0, description='power gain |h|² below which a device is inactive: 0, a number, "-100 dB", or "optimal"'
    )
    csi_error_db: Number | None = Field(
        None,
        ge=-300,
        le=0,
        description="power of the relative channel estimation error, dB; by default channels are known exactly",
    )
    csi_quantile: Number = Field(
        0.999, gt=0, lt=1, description="quantile up to which the privacy guarantee covers this error"
    )
    bandwidth: Frequency | None = Field(
        None,
        description="bandwidth of one tone, Hz; by default 312.5 kHz. With waveform.kind ofdm it is waveform.spacing",
    )
    noise_figure_db: Decibels | None = Field(
        None, ge=0, le=100, description="noise figure of the receiver at 290 K, dB; radio.noise_power overrides it"
    )
    noise_density: NoiseDensity | None = Field(
        None,
        description='noise density of the receiver, its noise figure included, such as "-168 dBm/Hz"; '
        "radio.noise_power overrides it",
    )
    device_noise_figure_db: Decibels | None = Field(
        None, ge=0, le=100, description="downlink: noise figure of the devices, dB; by default the server's noise"
    )
    device_antenna_dbi: AntennaGain = Field(0.0, ge=-100, le=100, description="gain of a device's antenna, dBi")
    server_antenna_dbi: AntennaGain = Field(
        0.0, ge=-100, le=100, description="gain of each of the server's antennas towards the devices, dBi"
    )
    implementation_loss_db: Decibels = Field(
        0.0, ge=0, le=100, description="losses of a link that no other field has, such as cables and filters, dB"
    )
    band: BandName | None = Field(
        None,
        description="licence-exempt band whose transmit limits hold: 868 (Europe), 915 (USA) or 2400 MHz (Europe)",
    )
    max_eirp: PositivePower | None = Field(
        None, description="largest power radiated in the direction of the antenna's gain (EIRP), W; instead of a band"
    )
    duty_cycle: Number | None = Field(
        None, gt=0, le=1, description="largest share of the time that a device may be on the air; instead of a band"
    )
    clutter_density: Number | None = Field(
        None, gt=0, lt=1, description="inf-…: share of the floor under clutter; by default 0.2 (sparse), 0.6 (dense)"
    )
    clutter_height: Length | None = Field(
        None, le=10, description="inf-…: effective height of the clutter, m; by default 2 (sparse), 6 (dense)"
    )
    clutter_size: Length | None = Field(
        None, description="inf-…: typical size of the clutter, m; by default 10 (sparse), 2 (dense)"
    )

    _written_if_used: ClassVar[tuple[str, ...]] = (
        "bandwidth", "noise_figure_db", "noise_density", "device_noise_figure_db", "device_antenna_dbi",
        "server_antenna_dbi", "implementation_loss_db", "band", "max_eirp", "duty_cycle", "clutter_density",
        "clutter_height", "clutter_size",
    )  # fmt: skip

    def _finished(self, written: dict[str, Any], without_defaults: bool) -> dict[str, Any]:
        """The default noise power is written, as older versions do, unless other fields say what it is."""
        given = (self.bandwidth, self.noise_figure_db, self.noise_density)
        if any(field is not None for field in given):
            if self.noise_power is None:
                written.pop("noise_power", None)
        elif self.noise_power in (None, DEFAULT_NOISE_W):
            written["noise_power"] = DEFAULT_NOISE_W
            if without_defaults:
                del written["noise_power"]
        return written
