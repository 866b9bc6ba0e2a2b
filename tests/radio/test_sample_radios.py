"""Drivers of radios that send samples: what all share, GNU Radio, SoapySDR, and recordings in place of a radio."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from recorded_frames import NARROW, contents_of, reception

from airdistill.errors import AirDistillError, InputError
from airdistill.radio import file_replay, soapy
from airdistill.radio.modem import Modem
from airdistill.scenario import load

ROUND, SHAPE = 2, (10, 30)
SYSTEM_PACKAGES = "/usr/lib/python3/dist-packages"
GAINS = "radio.gains=[[1e-5, 2e-5], [-3e-5, 0], [0, 1e-5]]"


def scenario_of(*changes):
    return load("quick", ["fleet.devices=3", GAINS, "air.medium=radio", "waveform.tones=96", *changes])


def symbols_of(num_devices, power_w=1e-3, seed=0, shape=SHAPE):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((num_devices, *shape, 2)) @ [1, 1j] * np.sqrt(power_w / 2)


def sum_of(modem, symbols):
    return np.einsum("i,ird->rd", modem.source.round_channel(ROUND), symbols)


def on_air(modem, symbols):
    frames = [modem.frame(ROUND, device, each) for device, each in enumerate(symbols)]
    return np.einsum("i,is->s", modem.source.round_channel(ROUND), np.stack(frames))


def test_symbols_come_back_as_the_sum_behind_their_channels():
    modem, symbols = Modem(scenario_of()), symbols_of(3)
    expected = sum_of(modem, symbols)
    for delay, turns, level in ((0, 0.0, 1.0), (1234, 0.21, 0.003)):
        samples = np.concatenate([np.zeros(delay), on_air(modem, symbols), np.zeros(200)])
        offset = np.exp(2j * np.pi * turns / modem.grid.fft_size * np.arange(len(samples)))
        received = modem.symbols(ROUND, level * offset * samples, SHAPE)
        np.testing.assert_allclose(received, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_a_symbols_samples_have_the_power_of_its_numbers():
    """So a device keeps its limit although all of its tones are on the air at once."""
    modem, symbols = Modem(scenario_of()), symbols_of(1)[0]
    frame = modem.frame(ROUND, 0, symbols)
    length, full = modem.grid.symbol_samples, symbols.reshape(-1)[: modem.grid.tones]
    useful = frame[2 * length + modem.grid.prefix_samples : 3 * length]
    assert np.sum(np.abs(useful) ** 2) == pytest.approx(np.mean(np.abs(full) ** 2))
    pilot = frame[length + modem.grid.prefix_samples : 2 * length]
    assert np.sum(np.abs(pilot) ** 2) == pytest.approx(1e-3)


def test_receiver_noise_of_the_band_is_that_of_a_slot():
    """White noise of radio.noise_power/tones in every sample is radio.noise_power in every symbol, half on an axis."""
    modem, power = Modem(scenario_of()), 1e-13
    rng, symbols = np.random.default_rng(1), symbols_of(3)
    clean = on_air(modem, symbols)
    noise = rng.standard_normal((len(clean), 2)) @ [1, 1j] * np.sqrt(power / modem.grid.tones / 2)
    error = modem.symbols(ROUND, clean + noise, SHAPE) - sum_of(modem, symbols)
    assert np.mean(error.real**2) == pytest.approx(power / 2, rel=0.25)
    assert np.mean(error.imag**2) == pytest.approx(power / 2, rel=0.25)


def test_silence_is_refused_in_one_line():
    modem = Modem(scenario_of())
    with pytest.raises(AirDistillError, match="round 2: the recording of 20000 samples: no preamble"):
        modem.symbols(ROUND, np.zeros(20_000, complex), SHAPE)


# Recordings


def test_recordings_are_played_as_the_servers_radio(tmp_path, monkeypatch):
    pytest.importorskip("sigmf")
    from airdistill.radio.recordings import write_recording

    contents = contents_of(NARROW)
    knowledge, samples = reception(contents, np.random.default_rng(0))
    write_recording(tmp_path / "round-0003" / "reception", samples, contents, 915e6)
    monkeypatch.setenv(file_replay.RECORDINGS, str(tmp_path))
    radio = file_replay.FrontEnd(scenario_of())
    radio.listen(3, knowledge.shape)
    received = radio.received(3)
    np.testing.assert_allclose(received, knowledge * contents.rx_scale[:, None], atol=1e-6 * contents.rx_scale.max())
    radio.listen(3, (10, 131))
    with pytest.raises(AirDistillError, match="the run receives 10 × 131"):
        radio.received(3)
    (tmp_path / "round-0003").rename(tmp_path / "round-0004")
    radio.listen(4, knowledge.shape)
    with pytest.raises(AirDistillError, match="airdistill:round = 3: the run is at 4"):
        radio.received(4)
    radio.listen(5, knowledge.shape)
    with pytest.raises(AirDistillError, match="cannot be read: No such file"):
        radio.received(5)
    monkeypatch.delenv(file_replay.RECORDINGS)
    with pytest.raises(InputError, match=r"AIRDISTILL_RECORDINGS = .*must be a folder"):
        file_replay.FrontEnd(scenario_of())


# SoapySDR


@pytest.fixture
def soapy_sdr(monkeypatch):
    """Debian's bindings, if this is the Python that they were made for."""
    if shutil.which("SoapySDRUtil") is None:
        pytest.skip("SoapySDR is not installed")
    monkeypatch.setattr(sys, "path", [*sys.path, SYSTEM_PACKAGES])
    return pytest.importorskip("SoapySDR")


@pytest.fixture
def loopback_driver(soapy_sdr, tmp_path):
    """A driver compiled for this test and loaded as SoapySDR loads those of radios."""
    if shutil.which("g++") is None or not Path("/usr/include/SoapySDR/Device.hpp").exists():
        pytest.skip("needs g++ and libsoapysdr-dev")
    built = tmp_path / "libloopback.so"
    source = Path(__file__).with_name("soapy_loopback.cpp")
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", source, "-o", built, "-lSoapySDR"], check=True)
    problem = soapy_sdr.loadModule(str(built))
    assert not problem
    yield "driver=airdistill_loopback"
    soapy_sdr.unloadModule(str(built))


@pytest.mark.usefixtures("soapy_sdr")
def test_a_radio_without_streams_is_refused_in_one_line(monkeypatch):
    monkeypatch.setenv(soapy.ARGUMENTS, "driver=null")
    with pytest.raises(InputError, match="the driver null has no RX stream") as refused:
        soapy.FrontEnd(scenario_of())
    assert "\n" not in str(refused.value)
    monkeypatch.setenv(soapy.ARGUMENTS, "driver=no_such_radio")
    with pytest.raises(InputError, match=r"AIRDISTILL_SDR = .*SoapySDR: "):
        soapy.Transmitter(scenario_of(), 0)


def test_a_round_through_soapysdr(loopback_driver, monkeypatch):
    """The driver takes portions of a burst, and the server finds it in what it records."""
    monkeypatch.setenv(soapy.ARGUMENTS, loopback_driver)
    monkeypatch.setenv(soapy.WATTS, "1e-2")
    scenario = load("quick", ["fleet.devices=1", "radio.gains=[[0.1, 0]]", "air.medium=radio", "waveform.tones=96"])
    symbols = symbols_of(1)[0]
    server = soapy.FrontEnd(scenario)
    server.listen(ROUND, SHAPE)
    soapy.Transmitter(scenario, 0).send(ROUND, symbols)
    time.sleep(0.5)
    received = server.received(ROUND)
    with pytest.raises(AirDistillError, match="round 3 was not received"):
        server.received(3)
    server.close()
    np.testing.assert_allclose(received, 0.1 * symbols, rtol=0, atol=1e-6 * np.abs(symbols).max())


@pytest.mark.usefixtures("loopback_driver")
def test_samples_beyond_full_scale_are_not_sent(monkeypatch):
    monkeypatch.setenv(soapy.ARGUMENTS, "driver=airdistill_loopback")
    monkeypatch.setenv(soapy.WATTS, "1e-9")
    with pytest.raises(InputError, match=r"AIRDISTILL_SDR_WATTS = .*of full scale"):
        soapy.Transmitter(scenario_of(), 0).send(ROUND, symbols_of(1)[0])
    monkeypatch.setenv(soapy.WATTS, "loud")
    with pytest.raises(InputError, match='AIRDISTILL_SDR_WATTS = "loud": must be a number'):
        soapy.Transmitter(scenario_of(), 0)


# GNU Radio


@pytest.fixture(scope="module")
def gnu_radio():
    pytest.importorskip("zmq")
    from airdistill.radio import gnu_radio

    if gnu_radio.python_with_gnu_radio() is None:
        pytest.skip("GNU Radio is not installed")
    return gnu_radio


def test_a_flow_graph_convolves_adds_and_keeps_its_state(gnu_radio):
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((2, 5000, 2)) @ [1, 1j]
    taps = [[[1.0, 0.0], [0.0, 0.5]], [[0.3, -0.2]]]
    options = gnu_radio.FlowGraphOptions("channel_model", [{"taps": each, "offset": 0.0} for each in taps])
    with gnu_radio.FlowGraph(options) as graph:
        process = graph._process
        for _ in range(2):
            each, summed = graph.carry(samples)
            expected = np.zeros((2, each.shape[1] + 1), complex)
            early = 64 - 3  # zeros go before the samples, and the block's filter looks three samples ahead
            expected[0, early : early + 5001] = np.convolve(samples[0], [1, 0.5j])
            expected[1, early : early + 5000] = (0.3 - 0.2j) * samples[1]
            np.testing.assert_allclose(each, expected[:, :-1], atol=1e-5)
            np.testing.assert_allclose(summed, expected[:, :-1].sum(axis=0), atol=1e-5)
    assert process.returncode is not None


def test_no_flow_graph_is_left_behind(gnu_radio, tmp_path):
    """Not after an error, and not if this process is killed."""
    options = gnu_radio.FlowGraphOptions("channel_model", [{"taps": [["one", 0.0]], "offset": 0.0}])
    graph = gnu_radio.FlowGraph(options)
    with pytest.raises(AirDistillError, match=r"GNU Radio did not start: .*Error"), graph:
        pass
    assert graph._process is None
    script = tmp_path / "parent.py"
    script.write_text(
        "import time\n"
        "from airdistill.radio.gnu_radio import FlowGraph, FlowGraphOptions\n"
        "options = FlowGraphOptions('channel_model', [{'taps': [[1.0, 0.0]], 'offset': 0.0}])\n"
        "with FlowGraph(options) as graph:\n"
        "    print(graph._process.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment)
    child = int(parent.stdout.readline())
    assert Path(f"/proc/{child}").exists()
    parent.kill()
    parent.communicate()
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text():
            break
        time.sleep(0.1)
    else:
        pytest.fail("the flow graph outlived its parent")


def test_a_federations_round_through_gnu_radio(gnu_radio, monkeypatch):
    """The sum behind GNU Radio's channels; what differs is its noise, within 1 dB of the scenario's."""
    pytest.importorskip("flwr")
    from airdistill.flower.machine.processes import free_port
    from airdistill.radio import loopback

    monkeypatch.setenv(loopback.PORT, str(free_port()))
    scenario = scenario_of("radio.noise_power=1e-11 W")
    shape = (10, 120)  # 2,400 numbers on both axes: their variance is known to 0.13 dB
    symbols = symbols_of(3, shape=shape)
    server = gnu_radio.FrontEnd(scenario)
    try:
        server.listen(ROUND, shape)
        for device in range(3):
            loopback.Transmitter(scenario, device).send(ROUND, symbols[device])
        error = server.received(ROUND) - sum_of(Modem(scenario), symbols)
    finally:
        server.close()
    assert error.shape == shape
    assert abs(10 * np.log10(np.mean(np.abs(error) ** 2) / 1e-11)) < 1


def test_a_missing_gnu_radio_is_named(gnu_radio, monkeypatch):
    monkeypatch.setenv(gnu_radio.PYTHON, sys.executable)
    options = gnu_radio.FlowGraphOptions("channel_model", [{"taps": [[1.0, 0.0]], "offset": 0.0}])
    with pytest.raises(AirDistillError, match="apt-get install gnuradio"), gnu_radio.FlowGraph(options):
        pass
