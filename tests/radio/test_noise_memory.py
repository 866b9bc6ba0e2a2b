"""The memory of correlated noise against dense matrices, over rounds of fading channels, and when it is missing."""

import numpy as np
import pytest
from small_worlds import small_scenario

from airdistill.channel.sources import channel_source
from airdistill.errors import AirDistillError
from airdistill.privacy.correlation import Correlation
from airdistill.privacy.ledger import Ledger
from airdistill.radio.charged_round import charge_round
from airdistill.radio.noise_memory import NoiseMemory
from airdistill.runs.accounts import ledger_header
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.registry import load_scheme
from airdistill.streams import noise_seed, stream

MATRICES = pytest.mark.parametrize(
    "correlation",
    [Correlation("banded", (0.5, 0.25, 0.1)), Correlation("blt", (0.4, 0.3), (0.8, 0.2)), Correlation("banded", ())],
    ids=["banded", "blt", "identity"],
)
CYCLIC = ("fleet.devices=6", "data.samples_per_device=10", "fleet.sampling=cyclic", "fleet.cycle=3")


def inverse_of(correlation, num_rounds):
    coefficients = correlation.coefficients(num_rounds)
    dense = sum(np.diag(np.full(num_rounds - lag, coefficients[lag]), -lag) for lag in range(num_rounds))
    return np.linalg.inv(dense)


def drawn(shape=(7, 3, 1, 5)):
    return np.random.default_rng(0).standard_normal(shape)


@MATRICES
def test_noise_is_that_of_the_dense_inverse_and_has_variance_1(correlation):
    memory, new, inverse = NoiseMemory(correlation), drawn(), inverse_of(correlation, 7)
    made = np.stack([memory.correlated(index + 1, new[index]) for index in range(7)])
    expected = np.einsum("ts,s...->t...", inverse, new)
    scale = np.sqrt((inverse**2).sum(axis=1))
    assert made == pytest.approx(expected / scale[:, None, None, None], abs=1e-13)


@MATRICES
def test_a_restored_memory_continues_with_the_same_bits(correlation):
    whole, new = NoiseMemory(correlation), drawn()
    made = [whole.correlated(index + 1, new[index]) for index in range(7)]
    cut, resumed = NoiseMemory(correlation), NoiseMemory(correlation)
    for index in range(4):
        cut.correlated(index + 1, new[index])
    resumed.restore(4, {name: array.copy() for name, array in cut.state().items()})
    for index in range(4, 7):
        assert np.array_equal(resumed.correlated(index + 1, new[index]), made[index])


def test_rounds_are_played_in_turn():
    memory = NoiseMemory(Correlation("banded", (0.5,)))
    memory.correlated(1, drawn()[0])
    for wrong in (1, 3):
        with pytest.raises(AirDistillError, match="play the rounds in turn"):
            memory.correlated(wrong, drawn()[0])


def world(folder, *changes):
    scheme = load_scheme("ota_fl")
    scenario = small_scenario(folder, *CYCLIC, "privacy.correlation=banded", *changes)
    planned = plan_scheme(scheme, as_run_by(scheme, scenario))
    return planned, Ledger(ledger_header(planned, "ota_fl", "private")), channel_source(planned.scenario)


@pytest.mark.parametrize("kind", ["banded", "blt"])
def test_what_is_received_is_the_dense_inverse_of_the_ledgers_noise(tmp_path, kind):
    """Over rounds of fading channels: E times the received noise is each device's share of the draws of its round."""
    planned, ledger, source = world(tmp_path, f"privacy.correlation={kind}", "radio.noise_power=0 W")
    memory, length = NoiseMemory.of(planned), planned.uplink.vector_length
    received, new = [], []
    shares = np.sqrt(planned.uplink.shares(planned.num_rounds))
    for index in range(1, planned.num_rounds + 1):
        charged = charge_round(planned, ledger, source, index, memory=memory)
        received.append(charged.transmit(np.zeros((6, 1, length))).received[0])
        seed = noise_seed(planned.scenario.seed, ledger.noise_keys[-1])
        draws = [stream(seed, "artificial-noise", index, device).standard_normal((1, length)) for device in range(6)]
        new.append(sum(share * draw[0] for share, draw in zip(shares, draws, strict=True)))
    inverse = inverse_of(planned.uplink.correlation, planned.num_rounds)
    assert np.stack(received) == pytest.approx(inverse @ np.stack(new), rel=1e-9, abs=1e-12)


def test_without_its_memory_a_round_is_not_charged(tmp_path):
    planned, ledger, source = world(tmp_path)
    for memory in (None, NoiseMemory(Correlation("banded", (0.1,)))):
        with pytest.raises(AirDistillError, match="must have the same correlation"):
            charge_round(planned, ledger, source, 1, memory=memory)
    assert ledger.num_releases == 0
