"""Secure noise: the distribution of the sampler, and signals on the grid through superposition and TDMA.

This randomness cannot be seeded: bounds of five standard errors fail by chance about once in a million runs.
"""

import math
import os
import sys

import numpy as np
import pytest
from random_fleets import random_fleet
from scipy.stats import chi2

from airdistill.errors import AirDistillError
from airdistill.planning.fleet import RealisedFleet
from airdistill.planning.payloads import ClassMeans
from airdistill.planning.transceiver.design import Links, design_links, design_round
from airdistill.planning.transceiver.tdma import TdmaUplink
from airdistill.privacy.sensitivity import TrajectoryDynamics, required_noise_var
from airdistill.privacy.trust import trust_named
from airdistill.radio import discrete_noise
from airdistill.radio.discrete_noise import LARGEST_SIGNAL, SecureGrid, discrete_gaussian, transmit_on_grid
from airdistill.radio.superposition import receive, superpose, superpose_tdma

COUNTS = np.array([[30, 10, 0], [5, 15, 8], [20, 20, 20], [0, 3, 9]])
CHANNEL = np.array([1e-4 + 2e-4j, -3e-4 + 1e-5j, 2e-4 - 1e-4j, 1e-5j])
POWER = np.array([1e-3, 2e-3, 3e-3, 1e-3])
MU = np.array([0.5, 2.0, 1.0, 4.0])
CLIP, ROUNDS = 1.7, 5
DIAMETER = math.sqrt(2)


def needs_opendp():
    return pytest.importorskip("opendp")


def class_mean_grid(trust, mu=MU, repeats=1):
    """Three classes of three entries; `repeats` makes the vectors longer, to measure more noise at once."""
    required = required_noise_var(COUNTS, mu, ROUNDS, "device")
    design = design_round(COUNTS, CHANNEL, POWER, 1e-15, required, trust)
    own = trust == "own_noise"
    grid = SecureGrid.of(design, CHANNEL, np.full(COUNTS.shape, DIAMETER), 3 * repeats, 3.0, own)
    return design, grid


def tdma_grid(mu=MU, repeats=1):
    fleet = RealisedFleet(COUNTS, POWER, mu, mu, mu)
    dynamics = TrajectoryDynamics(0.05, 10.0, 2.0, 4.0)
    design = TdmaUplink(fleet, 1e-15, "fleet_noise", ClassMeans(fleet, "device", False, dynamics)).design(
        CHANNEL, ROUNDS, 1
    )
    return design, SecureGrid.of(design, CHANNEL, np.full(COUNTS.shape, DIAMETER), 3 * repeats, 3.0, own=True)


def gradient_grid(trust, length=500, mu=MU):
    weights = COUNTS.sum(axis=1, keepdims=True) / COUNTS.sum()
    required = ROUNDS * (weights * 2 * CLIP) ** 2 / mu[:, None] ** 2
    energy_slots = length / CLIP**2
    links = Links.weighted(weights, energy_slots, CHANNEL, POWER, 1e-15)
    design = design_links(links, CHANNEL, required, trust_named(trust))
    own = trust == "own_noise"
    return design, SecureGrid.of(design, CHANNEL, np.full((4, 1), 2 * CLIP), length, energy_slots, own)


def some_vectors(grid, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(grid.vector_length), grid.amplitude.shape)


def no_receiver_noise(shape):
    return np.zeros(shape, dtype=complex)


def received_sum(design, grid, vectors):
    sent = transmit_on_grid(grid, vectors)
    return receive(superpose(sent, CHANNEL, no_receiver_noise(sent.shape[1:])), design.rx_scale)


@pytest.mark.parametrize("deviation", [0.4, 1.0, 2.7, 5.0])
def test_small_deviations_follow_the_exact_probabilities(deviation):
    """χ² over all values expected at least ten times, the rest in one cell; rejected once in a million runs."""
    needs_opendp()
    count, values = 20_000, np.arange(-60, 61)
    expected = np.exp(-(values**2) / (2 * deviation**2))
    expected *= count / expected.sum()
    drawn = discrete_gaussian(deviation, count)
    seen = np.bincount(drawn + 60, minlength=121)
    often = expected >= 10
    cells = np.append(expected[often], expected[~often].sum())
    statistic = ((np.append(seen[often], seen[~often].sum()) - cells) ** 2 / cells).sum()
    assert statistic < chi2.isf(1e-6, len(cells) - 1)


@pytest.mark.parametrize("deviation", [1e3, 1e6, 1e9, 2.0**57 + 2.0**30])
def test_large_deviations_have_their_mean_and_variance(deviation):
    needs_opendp()
    count = 10_000
    drawn = discrete_gaussian(deviation, (100, 100)).astype(float) / deviation
    assert drawn.shape == (100, 100)
    assert abs(drawn.mean()) < 5 / math.sqrt(count)
    assert abs(drawn.var() - 1) < 5 * math.sqrt(2 / count)
    assert 3 < np.abs(drawn).max() < 8


def test_draws_that_do_not_fit_into_64_bits_are_rejected():
    needs_opendp()
    assert np.abs(discrete_gaussian(2.0**59, 2000).astype(float)).max() > 2.0**60
    with pytest.raises(AirDistillError, match="64 bits"):
        discrete_gaussian(2.0**64, 100)


def test_randomness_is_fresh_in_every_call_and_every_process():
    needs_opendp()
    first, second = discrete_gaussian(1e6, 20), discrete_gaussian(1e6, 20)
    assert not np.array_equal(first, second)
    np.random.seed(0)  # noqa: NPY002
    third = discrete_gaussian(1e6, 20)
    np.random.seed(0)  # noqa: NPY002
    assert not np.array_equal(third, discrete_gaussian(1e6, 20))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_draws_different_noise():
    needs_opendp()
    discrete_gaussian(1e6, 5)
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(sink, discrete_gaussian(1e6, 5).tobytes())
        os._exit(0)
    here = discrete_gaussian(1e6, 5)
    os.waitpid(child, 0)
    there = np.frombuffer(os.read(source, 40), dtype=np.int64)
    os.close(source)
    os.close(sink)
    assert there.size == 5
    assert not (here == there).any()


def test_a_zero_deviation_gives_no_noise_and_invalid_deviations_are_rejected():
    assert not discrete_gaussian(0.0, (2, 3)).any()
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="must be finite and not negative"):
            discrete_gaussian(wrong, 3)


def test_a_missing_library_is_named_in_the_error(monkeypatch):
    discrete_noise._mechanism.cache_clear()
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(AirDistillError, match=r"pip install 'airdistill\[secure\]'"):
        discrete_gaussian(1.0, 3)


NO_PRIVACY = np.full(4, np.inf)


def test_without_noise_the_sum_is_received_within_rounding():
    for design, grid in (class_mean_grid("fleet_noise", NO_PRIVACY), gradient_grid("own_noise", mu=NO_PRIVACY)):
        assert not grid.deviation.any()
        vectors = some_vectors(grid)
        exact = np.einsum("ik,ikd->kd", grid.amplitude, vectors)
        error = np.abs(received_sum(design, grid, vectors) - exact)
        assert (error <= len(vectors) / 2 * grid.spacing[:, None] * (1 + 1e-3)).all()
        assert error.any()


def test_without_noise_each_device_is_received_within_rounding_under_tdma():
    design, grid = tdma_grid(NO_PRIVACY)
    vectors = some_vectors(grid)
    sent = transmit_on_grid(grid, vectors)
    each = receive(superpose_tdma(sent, CHANNEL, no_receiver_noise(sent.shape)), design.rx_scale)
    held = COUNTS > 0
    assert np.isnan(each[~held]).all()
    assert np.abs(each - vectors)[held].max() <= grid.spacing.max() / 2 * (1 + 1e-3)


def test_rounding_moves_neighbours_no_further_than_the_bound():
    _, grid = gradient_grid("fleet_noise", mu=NO_PRIVACY)
    rng = np.random.default_rng(0)
    for _ in range(20):
        one, other = rng.standard_normal((2, 4, 1, grid.vector_length))
        sent = [transmit_on_grid(grid, vectors) / grid.unit[:, :, None] for vectors in (one, other)]
        distance = np.linalg.norm(sent[0] - sent[1], axis=2)
        unrounded = np.linalg.norm(grid.amplitude[:, :, None] * (one - other), axis=2)
        assert (np.abs(distance - unrounded) <= grid.added_shift()).all()


@pytest.mark.parametrize("kind", ["fleet_noise", "own_noise", "gradient fleet_noise", "gradient own_noise"])
def test_the_noise_of_the_sum_has_the_variance_of_the_grid(kind):
    needs_opendp()
    made = gradient_grid(kind.split()[1], 2000) if "gradient" in kind else class_mean_grid(kind, repeats=700)
    design, grid = made
    vectors = some_vectors(grid)
    noise = received_sum(design, grid, vectors) - np.einsum("ik,ikd->kd", grid.amplitude, vectors)
    expected = grid.noise_var().sum(axis=0)
    ratio = (noise**2).mean(axis=1) / expected
    assert expected == pytest.approx(design.effective_noise_var - 1e-15 / design.rx_scale**2, rel=1e-9)
    assert np.abs(ratio - 1).max() < 5 * math.sqrt(2 / noise.shape[1])
    assert abs(ratio.mean() - 1) < 5 * math.sqrt(2 / noise.size)


def test_the_noise_of_each_device_has_the_variance_of_the_grid_under_tdma():
    needs_opendp()
    design, grid = tdma_grid(repeats=300)
    vectors = some_vectors(grid)
    sent = transmit_on_grid(grid, vectors)
    noise = receive(superpose_tdma(sent, CHANNEL, no_receiver_noise(sent.shape)), design.rx_scale) - vectors
    held = COUNTS > 0
    ratio = (noise**2).mean(axis=2)[held] / grid.noise_var()[held]
    assert np.abs(ratio - 1).max() < 5 * math.sqrt(2 / grid.vector_length)
    assert abs(ratio.mean() - 1) < 5 * math.sqrt(2 / (ratio.size * grid.vector_length))


def test_every_value_lies_on_the_grid():
    """Each value is a whole number of spacings times the unit, and the noise is new in every call."""
    needs_opendp()
    _, grid = class_mean_grid("fleet_noise")
    vectors = some_vectors(grid)
    unit = grid.unit[:, :, None]
    runs = [transmit_on_grid(grid, vectors) for _ in range(2)]
    assert np.array_equal((runs[0] != runs[1]).any(axis=2), grid.deviation > 0)
    for sent in runs:
        whole = np.rint((sent / unit).real / grid.spacing[:, None])
        assert np.array_equal(sent, unit * (whole * grid.spacing[:, None]))


def drawn_instead(monkeypatch, change):
    """Noise that a broken sampler draws: `change` takes that of all devices, `[device, row, entry]`."""
    original = discrete_noise._drawn

    def drawn(grid):
        noise = original(grid)
        change(noise)
        return noise

    monkeypatch.setattr(discrete_noise, "_drawn", drawn)


def _silent(noise):
    noise[2] = 0


def _silent_in_one_row(noise):
    noise[2, 1] = 0


def _shared(noise):
    noise[0] = noise[2]


def _shared_in_one_row(noise):
    noise[0, 1] = noise[2, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_silent, "device 2 has no noise"), (_silent_in_one_row, "device 2 has no noise"),
        (_shared, "two devices share noise"), (_shared_in_one_row, "two devices share noise"),
    ],
)  # fmt: skip
def test_every_device_must_have_noise_of_its_own(monkeypatch, change, words):
    needs_opendp()
    _, grid = class_mean_grid("fleet_noise")
    transmit_on_grid(grid, some_vectors(grid))
    drawn_instead(monkeypatch, change)
    with pytest.raises(AirDistillError, match=words):
        transmit_on_grid(grid, some_vectors(grid))


def test_a_device_alone_must_have_noise(monkeypatch):
    needs_opendp()
    _, grid = class_mean_grid("own_noise")
    drawn_instead(monkeypatch, lambda noise: noise.fill(0))
    with pytest.raises(AirDistillError, match="the device has no noise"):
        transmit_on_grid(grid.only(1), some_vectors(grid)[1:2])


@pytest.mark.parametrize("deviation", [0.3, 0.5, 2.0, 8.0, 1e6])
@pytest.mark.parametrize(("num_devices", "length"), [(1, 1), (2, 1), (2, 30), (40, 2), (300, 3)])
def test_sound_noise_is_refused_less_than_once_in_a_trillion_rounds(deviation, num_devices, length):
    """The exact probability of what is compared and equal, from P(z), against what the check leaves out."""
    values = np.arange(-math.ceil(40 * deviation) - 2, math.ceil(40 * deviation) + 3.0) if deviation < 1e3 else None
    if values is None:  # Σ exp(−z²/2σ²) is σ√2π to far below float precision
        zero, equal = 1 / (deviation * math.sqrt(2 * math.pi)), 1 / (deviation * math.sqrt(4 * math.pi))
    else:
        weights = np.exp(-(values**2) / (2 * deviation**2))
        probabilities = weights / weights.sum()
        zero, equal = probabilities.max(), (probabilities**2).sum()
    pairs = num_devices * (num_devices - 1) / 2
    wrong = 2 * (num_devices * zero**length + pairs * equal**length)  # in the row, and in all rows
    noise = np.zeros((num_devices, 1, length), dtype=np.int64)
    try:
        discrete_noise.check_noise_sources(np.full((num_devices, 1), deviation), noise)
        refused = False
    except AirDistillError:
        refused = True
    assert not refused or wrong < 1e-12
    assert refused or wrong > 1e-18  # what it leaves out is not certain either


def test_nan_rows_of_missing_classes_are_not_sent_but_their_noise_is():
    needs_opendp()
    design, grid = class_mean_grid("fleet_noise")
    vectors = some_vectors(grid)
    vectors[COUNTS == 0] = np.nan
    sent = transmit_on_grid(grid, vectors)
    assert np.isfinite(sent).all()
    assert (sent[0, 2] != 0).all()
    assert np.isfinite(received_sum(design, grid, vectors)).all()


def test_signals_that_the_grid_cannot_represent_are_rejected():
    _, grid = class_mean_grid("fleet_noise", NO_PRIVACY)
    vectors = some_vectors(grid)
    for wrong in (np.nan, np.inf, 2 * LARGEST_SIGNAL * grid.spacing.max() / grid.amplitude[1, 1]):
        vectors[1, 1, 1] = wrong
        with pytest.raises(AirDistillError, match="must be numbers of at most"):
            transmit_on_grid(grid, vectors)
    with pytest.raises(ValueError, match="must be"):
        transmit_on_grid(grid, vectors[:, :, :2])


def test_noise_beyond_exact_integers_is_rejected():
    needs_opendp()
    one = np.ones((1, 1))
    grid = SecureGrid(np.ones(1), one, one * 2.0**55, one + 0j, 50)
    with pytest.raises(AirDistillError, match=r"exceed 2\^53"):
        transmit_on_grid(grid, np.zeros((1, 1, 50)))


@pytest.mark.parametrize("seed", range(6))
def test_random_fleets_are_received(seed):
    needs_opendp()
    fleet = random_fleet(seed)
    num_classes = fleet.class_counts.shape[1]
    args = fleet.class_counts, fleet.channel, fleet.peak_power_w, fleet.channel_noise_var, fleet.required
    for trust in ("fleet_noise", "own_noise"):
        design = design_round(*args, trust)
        shape = fleet.class_counts.shape
        grid = SecureGrid.of(design, fleet.channel, np.ones(shape), num_classes, num_classes, trust == "own_noise")
        sent = transmit_on_grid(grid, some_vectors(grid))
        received = receive(superpose(sent, fleet.channel, no_receiver_noise(sent.shape[1:])), design.rx_scale)
        assert np.isfinite(received[design.rx_scale > 0]).all()
