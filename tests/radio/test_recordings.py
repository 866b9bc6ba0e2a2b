"""Recordings: written, read, synchronised and decoded; damaged ones are refused in one line."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from recorded_frames import AMPLITUDE, NARROW, WIDE, contents_of, noise_of, reception

pytest.importorskip("sigmf")

from airdistill.errors import AirDistillError
from airdistill.radio.decoding import decode, decode_file
from airdistill.radio.recordings import read_recording, write_recording


@pytest.mark.parametrize("grid", [WIDE, NARROW])
@pytest.mark.parametrize("spreading", ["dft", "none"])
def test_round_trip_to_a_millionth(grid, spreading, tmp_path):
    contents = contents_of(grid, spreading=spreading)
    knowledge, samples = reception(contents, np.random.default_rng(0))
    path = write_recording(tmp_path / "r", samples, contents, 915e6)
    decoded = decode_file(path)
    assert np.abs(decoded.knowledge - knowledge).max() < 1e-6 * np.abs(knowledge).max()
    assert decoded.evm < 1e-6


def test_integers_lose_what_sixteen_bits_lose(tmp_path):
    contents = contents_of(WIDE)
    knowledge, samples = reception(contents, np.random.default_rng(0))
    path = write_recording(tmp_path / "r", samples, contents, 915e6, "ci16_le")
    largest = np.abs(np.stack([samples.real, samples.imag])).max()
    step = 2.0 ** np.ceil(np.log2(largest)) / 2**15
    error = (decode_file(path).knowledge - knowledge) * contents.rx_scale[:, None]
    # Uniform rounding has variance step²/12 on each axis, and unitary transforms keep it.
    assert np.mean(error**2) == pytest.approx(step**2 / 12, rel=0.15)


@pytest.mark.parametrize("grid", [WIDE, NARROW])
@pytest.mark.parametrize(("lead", "offset_tones", "level"), [(0, 0.0, 1.0), (777, 0.31, 40.0), (2500, -5.2, 1e-3)])
def test_unknown_delay_offset_and_level(grid, lead, offset_tones, level, tmp_path):
    """The error is that of the receiver noise alone, within 5 %, and every value found is within its own error."""
    rng, power = np.random.default_rng(1), AMPLITUDE**2 / 1e4
    contents = contents_of(grid, rows=4, entries=2000)
    knowledge, samples = reception(contents, rng)
    whole = np.concatenate([np.zeros(lead), samples, np.zeros(500)]) * np.exp(0.7j)
    whole = whole + noise_of(rng, len(whole), power)
    offset_hz = offset_tones * grid.spacing_hz
    whole = level * whole * np.exp(2j * np.pi * offset_hz / grid.sample_rate_hz * np.arange(len(whole)))
    decoded = decode_file(write_recording(tmp_path / "r", whole, contents, 915e6))
    found, error = decoded.found, (decoded.knowledge - knowledge) * contents.rx_scale[:, None]
    assert found.start == lead
    assert abs(found.offset_hz - offset_hz) < 4.5 * found.offset_std_hz
    assert abs(abs(found.gain) / (level * AMPLITUDE) - 1) < 4.5 * found.gain_std
    assert np.mean(error**2) == pytest.approx(power / 2, rel=0.06)
    assert decoded.noise_power == pytest.approx(power, rel=0.1)
    assert decoded.to_dict()["noise_power_pilots_w"] == pytest.approx(power, rel=0.4)
    assert decoded.noise_var == pytest.approx(decoded.noise_power / 2 / contents.rx_scale**2)
    assert decoded.to_dict()["level_db"] == pytest.approx(20 * np.log10(level), abs=0.2)


def test_fraction_of_a_sample_is_removed(tmp_path):
    contents = contents_of(WIDE, rows=1, entries=4000)
    knowledge, samples = reception(contents, np.random.default_rng(2))
    padded = np.concatenate([np.zeros(1000), samples, np.zeros(1000)])
    turned = np.fft.fft(padded) * np.exp(-2j * np.pi * 0.3 * np.fft.fftfreq(len(padded)))
    decoded = decode_file(write_recording(tmp_path / "r", np.fft.ifft(turned), contents, 915e6))
    assert decoded.found.start + decoded.found.delay == pytest.approx(1000.3, abs=1e-3)
    assert np.abs(decoded.knowledge - knowledge).max() < 0.02


def test_statistically_insignificant_corrections_are_left_out(tmp_path):
    """A recording with the right clock and level is decoded as it is: the noise of the pilots is not added to it."""
    rng, power = np.random.default_rng(3), AMPLITUDE**2 / 10
    contents = contents_of(WIDE)
    knowledge, ideal = reception(contents, rng)
    noise = noise_of(rng, len(ideal), power)
    decoded = decode_file(write_recording(tmp_path / "r", ideal + noise, contents, 915e6))
    noise_alone = decode(replace(read_recording(tmp_path / "r.sigmf-meta"), samples=ideal + noise))
    assert decoded.found.gain != pytest.approx(AMPLITUDE, rel=1e-4)
    assert decoded.knowledge == pytest.approx(noise_alone.knowledge, abs=1e-6)
    error = (decoded.knowledge - knowledge) * contents.rx_scale[:, None]
    assert np.mean(error**2) == pytest.approx(power / 2, rel=0.1)


def test_files_are_deterministic_and_annotated(tmp_path):
    contents = contents_of(NARROW)
    _, samples = reception(contents, np.random.default_rng(0))
    first, second = (write_recording(tmp_path / name / "r", samples, contents, 915e6) for name in "ab")
    for suffix in (".sigmf-meta", ".sigmf-data"):
        assert first.with_suffix(suffix).read_bytes() == second.with_suffix(suffix).read_bytes()
    described = json.loads(first.read_text())
    assert "core:datetime" not in described["captures"][0]
    labels = [each["core:label"] for each in described["annotations"]]
    assert labels == ["preamble", "pilot", *(f"data symbol {n}" for n in range(contents.num_symbols)), "pilot"]
    last = described["annotations"][-1]
    assert last["core:sample_start"] + last["core:sample_count"] == len(samples)
    content = first.with_suffix(".sigmf-data").read_bytes()
    assert described["global"]["core:sha512"] == hashlib.sha512(content).hexdigest()
    dated = write_recording(tmp_path / "c", samples, contents, 915e6, date="2026-01-01T00:00:00Z")
    assert json.loads(dated.read_text())["captures"][0]["core:datetime"] == "2026-01-01T00:00:00Z"


def test_sigmf_package_reads_them(tmp_path):
    from sigmf import fromfile

    contents = contents_of(NARROW)
    _, samples = reception(contents, np.random.default_rng(0))
    path = write_recording(tmp_path / "r", samples, contents, 915e6)
    theirs = fromfile(str(path)).read_samples()
    unit = json.loads(path.read_text())["global"]["airdistill:unit"]
    assert np.abs(theirs * unit - samples).max() < 1e-6 * np.abs(samples).max()


def edited(path, change):
    described = json.loads(path.read_text())
    change(described)
    path.write_text(json.dumps(described))


def without(name):
    return lambda described: described["global"].pop(name)


def with_value(name, value):
    return lambda described: described["global"].update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("core:sha512"), "r.sigmf-meta: core:sha512 = (missing)"),
        (without("airdistill:grid"), "airdistill:grid = (missing): decoding needs it"),
        (without("airdistill:rx_scale"), "airdistill:rx_scale = (missing)"),
        (lambda all: all.pop("captures"), "captures = (missing)"),
        (with_value("core:sample_rate", 1e6), "core:sample_rate = 1000000.0: airdistill:grid has 20000000 samples"),
        (with_value("core:datatype", "rf32_le"), 'core:datatype = "rf32_le": must be cf32_le or ci16_le'),
        (with_value("core:datatype", "ci16_le"), "no preamble was found"),
        (with_value("core:num_channels", 2), "core:num_channels = 2: must be 1"),
        (with_value("core:sha512", "0" * 128), "damaged or replaced"),
        (with_value("airdistill:rows", 0), "airdistill:rows = 0: must be at least 1"),
        (with_value("airdistill:rows", True), "airdistill:rows = True: must be an integer"),
        (with_value("airdistill:rows", 11), "airdistill:rx_scale = 10 entries: must have one for each of the 11 rows"),
        (with_value("airdistill:entries", 13000), "the recording was cut"),
        (with_value("airdistill:pilot_amplitude", float("nan")), "airdistill:pilot_amplitude = nan: must be a number"),
        (with_value("airdistill:kind", "noise"), "must be reception or transmission"),
        (with_value("core:hw", 7), "global.core:hw = 7"),
    ],
)
def test_wrong_metadata_are_refused_in_one_line(change, message, tmp_path):
    contents = contents_of(NARROW)
    _, samples = reception(contents, np.random.default_rng(0))
    path = write_recording(tmp_path / "r", samples, contents, 915e6)
    edited(path, change)
    with pytest.raises(AirDistillError) as refused:
        decode_file(path)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data[:-1000], "bytes = .*the recording was cut"),
        (lambda data: data + b"\0", "SHA-512"),
        (lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:], "damaged or replaced"),
    ],
)
def test_damaged_samples_are_refused(spoil, message, tmp_path):
    contents = contents_of(NARROW)
    _, samples = reception(contents, np.random.default_rng(0))
    path = write_recording(tmp_path / "r", samples, contents, 915e6)
    data = path.with_suffix(".sigmf-data")
    data.write_bytes(spoil(data.read_bytes()))
    with pytest.raises(AirDistillError, match=message):
        decode_file(path)
    data.unlink()
    with pytest.raises(AirDistillError, match="cannot be read: No such file"):
        decode_file(path)


def test_noise_alone_and_transmissions_are_refused(tmp_path):
    rng, contents = np.random.default_rng(4), contents_of(NARROW)
    noise = noise_of(rng, contents.frame_samples + 5000, 1.0)
    with pytest.raises(AirDistillError, match="no preamble was found"):
        decode_file(write_recording(tmp_path / "noise", noise, contents, 915e6))
    _, samples = reception(contents, rng)
    path = write_recording(tmp_path / "sent", samples, replace(contents, device=3), 915e6)
    with pytest.raises(AirDistillError, match="is what device 3 sent; decode a recording of a reception"):
        decode_file(path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b'{"global": 3, "captures": [], "annotations": []}'])
def test_other_files_are_refused(content, tmp_path):
    path = tmp_path / "r.sigmf-meta"
    path.write_bytes(content)
    with pytest.raises(AirDistillError, match=r"r\.sigmf-meta"):
        decode_file(path)
