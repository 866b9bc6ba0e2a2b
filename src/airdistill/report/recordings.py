"""Tables about recordings: what was exported, what was decoded, and files of the knowledge."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from airdistill.errors import InputError
from airdistill.files import json_text, jsonable, write_whole
from airdistill.radio.decoding import Decoded
from airdistill.report.terminal import facts_table
from airdistill.runs.exporting import Exported
from airdistill.units import with_prefix

_OWN_SIGNALS = (
    "a device's recording contains its own signal: keep it in the test-bed, and from the server of a real run"
)
_EVERY_SAMPLE = (
    'the run assumes waveform.observed = "elements", and the reception is recorded with every sample: a server that '
    "keeps such files breaks the assumption"
)


def device_numbers(given: str | None) -> list[int] | None:
    """The devices that a command names; None for all."""
    if given is None:
        return None
    if given == "none":
        return []
    try:
        return [int(part) for part in given.split(",")]
    except ValueError:
        raise InputError("--devices", given, "must be device numbers separated by commas, or none") from None


def warnings_of(exported: Exported) -> list[str]:
    own = [_OWN_SIGNALS] if exported.transmissions else []
    return [*own, *([_EVERY_SAMPLE] if exported.keeps_every_sample else [])]


def print_exported(exported: Exported, console: Console) -> None:
    sent = list(exported.transmissions.values())
    rows = [("Round", str(exported.round_index)), ("Reception", str(exported.reception))]
    if sent:
        more = f" and {len(sent) - 1} more" if len(sent) > 1 else ""
        rows.append(("Transmissions", f"{sent[0]}{more}"))
    rows.append(("Decodes to", f"what the run received, within {exported.difference:.1e} of its rms"))
    console.print(facts_table(rows))


def print_decoded(decoded: Decoded, console: Console) -> None:
    found, measured = decoded.found, decoded.to_dict()
    contents, rate = decoded.contents, decoded.contents.grid.sample_rate_hz
    noise = measured["noise_power_unused_tones_w"], measured["noise_power_pilots_w"], contents.noise_power
    shown = [f"{10 * np.log10(each / 1e-3):.2f} dBm" if each > 0 else "none" for each in noise]
    stated = f"{contents.scheme}, round {contents.round_index}: {contents.rows} × {contents.entries} numbers"
    offset = f"{found.offset_hz:.4g} Hz ± {found.offset_std_hz:.2g} Hz"
    if found.offset_period_hz:
        offset += f", or a multiple of {found.offset_period_hz:.5g} Hz more or less: pilots are too weak to tell"
    timing = f"sample {found.start} {found.delay:+.3f}, {with_prefix((found.start + found.delay) / rate, 's')}"
    rows = [
        ("Recording", stated),
        ("Frame begins", f"{timing} (correlation {found.correlation:.3f})"),
        ("Carrier offset", offset),
        ("Level, phase", f"{measured['level_db']:+.3f} dB, {measured['phase_rad']:+.4f} rad"),
        ("SNR of pilots, data", f"{_db(measured['pilot_snr_db'])}, {_db(measured['data_snr_db'])}"),
        ("EVM, ripple of pilots", f"{decoded.evm:.3g}, {found.ripple:.3g}"),
        ("Noise of a tone", f"{shown[0]} in unused tones, {shown[1]} in pilots, {shown[2]} stated"),
        ("Noise variance", _variances(decoded)),
    ]
    console.print(facts_table(rows))


def _variances(decoded: Decoded) -> str:
    """Means over the rows that were sent."""
    sent = decoded.contents.rx_scale > 0
    if not sent.any():
        return "no row was sent"
    measured, planned = decoded.noise_var[sent].mean(), decoded.contents.noise_var[sent].mean()
    return f"{measured:.4g} of the receiver noise, {planned:.4g} planned in all"


def _db(value: float | None) -> str:
    return "below the noise" if value is None else f"{value:.1f} dB"


def with_knowledge(decoded: Decoded) -> dict[str, Any]:
    """What was measured, with the knowledge and the received numbers, as JSON values."""
    arrays = {"knowledge": decoded.knowledge, "numbers": decoded.numbers}
    converted: dict[str, Any] = jsonable({**decoded.to_dict(), **arrays}, nan_is_null=True)
    return converted


def write_knowledge(decoded: Decoded, path: Path) -> None:
    """Write knowledge and numbers, and as JSON what was measured, too."""
    if path.suffix == ".json":
        write_whole(path, json_text(with_knowledge(decoded)).encode())
    elif path.suffix == ".npz":
        content = io.BytesIO()
        np.savez(content, knowledge=decoded.knowledge, numbers=decoded.numbers)
        write_whole(path, content.getbuffer())
    else:
        raise InputError("--out", str(path), "must end in .npz or .json")
