"""Receive combiners against searches without a relaxation, and against their own bound."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from airdistill.planning.antennas.combining import best_combiner, combiner_of_each_class
from airdistill.planning.antennas.relaxation import relax


def instance(seed, num_devices, num_antennas, num_classes=1, spread=True):
    """Channels over two orders of magnitude in power, burdens (some zero), and importances."""
    rng = np.random.default_rng(seed)
    gauss = rng.standard_normal((2, num_devices, num_antennas))
    distance = rng.uniform(1, 5, num_devices) if spread else np.ones(num_devices)
    channel = 1e-6 * (gauss[0] + 1j * gauss[1]) * (distance**-1.5)[:, None]
    burden = rng.uniform(0.2, 3, (num_devices, num_classes)) ** 2 * 1e3
    if num_classes > 1:
        burden[rng.random(burden.shape) < 0.3] = 0.0
        burden[0] = 1e3
    return channel, burden, rng.uniform(0.5, 2, num_classes)


def cost(channel, burden, importance, vectors):
    """The cost by definition, of combiners `[..., antenna]` scaled to unit norm."""
    vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    power = np.abs(np.conj(vectors) @ channel.T) ** 2
    worst = np.max(np.where(burden > 0, burden / power[..., None], 0.0), axis=-2)
    return worst @ importance


def best_on_a_grid(given):
    """Two antennas: f = (cos θ, sin θ e^{jφ}) on successively finer grids around the best points."""

    def costs(angle, phase):
        return cost(*given, np.stack([np.cos(angle) + 0j, np.sin(angle) * np.exp(1j * phase)], axis=-1))

    angles, phases = np.meshgrid(np.linspace(0, np.pi / 2, 250), np.linspace(0, 2 * np.pi, 400), indexing="ij")
    coarse = costs(angles, phases)
    best = np.inf
    for place in np.argsort(coarse, axis=None)[:40]:
        centre, width = (angles.flat[place], phases.flat[place]), 0.02
        for _ in range(6):
            grid = np.meshgrid(*(np.linspace(middle - width, middle + width, 15) for middle in centre), indexing="ij")
            fine = costs(*grid)
            at = int(np.argmin(fine))
            centre, width = (grid[0].flat[at], grid[1].flat[at]), width / 4
            best = min(best, float(fine.flat[at]))
    return best


def best_by_restarts(given, num_antennas, seed):
    """Many random vectors, and a generic solver started from the best of them, with the levels as variables."""
    channel, burden, importance = given
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal((100_000, num_antennas)) + 1j * rng.standard_normal((100_000, num_antennas))
    costs = cost(*given, drawn)
    held, unit = burden > 0, float(costs.min())

    def limits(x):
        f = x[:num_antennas] + 1j * x[num_antennas : 2 * num_antennas]
        power = np.abs(channel.conj() @ f) ** 2 / (np.abs(f) ** 2).sum()
        return np.log(x[2 * num_antennas :] * unit * power[:, None] / np.where(held, burden, 1.0))[held]

    best = unit
    for place in np.argsort(costs)[:25]:
        f = drawn[place] / np.linalg.norm(drawn[place])
        power = np.abs(channel.conj() @ f) ** 2
        levels = np.where(held, burden / power[:, None], 0.0).max(axis=0) / unit
        found = minimize(
            lambda x: x[2 * num_antennas :] @ importance,
            np.concatenate([f.real, f.imag, levels * 1.01]),
            method="SLSQP",
            constraints={"type": "ineq", "fun": limits},
            bounds=[(None, None)] * (2 * num_antennas) + [(1e-6, None)] * len(importance),
            options={"maxiter": 200},
        ).x
        best = min(best, float(cost(*given, found[:num_antennas] + 1j * found[num_antennas : 2 * num_antennas])))
    return best


@pytest.mark.parametrize(("num_devices", "num_classes"), [(2, 1), (4, 1), (10, 1), (30, 1), (6, 3)])
def test_two_antennas_against_a_grid(num_devices, num_classes):
    for seed in range(4):
        given_ = instance(seed, num_devices, 2, num_classes)
        made = best_combiner(*given_, np.random.default_rng(seed))
        least = best_on_a_grid(given_)
        assert made.cost <= 1.01 * least, f"seed {seed}"
        assert made.bound <= least * (1 + 1e-9)


@pytest.mark.filterwarnings("ignore:Values in x were outside bounds")  # SLSQP's own steps
@pytest.mark.parametrize(("num_devices", "num_classes"), [(3, 1), (8, 1), (20, 1), (6, 3)])
def test_three_antennas_against_restarts(num_devices, num_classes):
    for seed in range(3):
        given_ = instance(seed, num_devices, 3, num_classes)
        made = best_combiner(*given_, np.random.default_rng(seed))
        least = best_by_restarts(given_, 3, seed)
        assert made.cost <= 1.01 * least, f"seed {seed}"
        assert made.bound <= least * (1 + 1e-9)


@given(
    seed=st.integers(0, 10**6),
    num_devices=st.integers(1, 12),
    num_antennas=st.integers(1, 10),
    num_classes=st.integers(1, 4),
)
@example(seed=5, num_devices=1, num_antennas=7, num_classes=1)  # a draw was better by the last bit
@settings(max_examples=15)
def test_the_bound_is_never_above_the_cost(seed, num_devices, num_antennas, num_classes):
    given_ = instance(seed, num_devices, num_antennas, num_classes)
    made = best_combiner(*given_, np.random.default_rng(seed))
    assert np.linalg.norm(made.vector) == pytest.approx(1, abs=1e-12)
    assert made.cost == pytest.approx(float(cost(*given_, made.vector)), rel=1e-12)
    assert made.bound <= made.cost <= made.randomised_cost
    others = np.random.default_rng(seed).standard_normal((2, 200, num_antennas))
    assert made.bound <= cost(*given_, others[0] + 1j * others[1]).min() * (1 + 1e-12)
    for klass, own in enumerate(combiner_of_each_class(*given_[:2], np.random.default_rng(seed))):
        alone = (given_[0], given_[1][:, klass : klass + 1], np.ones(1))
        assert own.cost == pytest.approx(float(cost(*alone, own.vector)), rel=1e-9)
        assert own.bound <= own.cost * (1 + 1e-12)
        # The bound of a class's own combiner is also below the cost of the common one for this class.
        assert own.bound <= float(cost(*alone, made.vector)) * (1 + 1e-9)


def test_up_to_three_devices_the_relaxation_is_tight():
    """A complex relaxation with so few constraints has a solution of rank one (Huang and Palomar, 2010)."""
    for seed in range(10):
        made = best_combiner(*instance(seed, 3, 5), np.random.default_rng(seed))
        assert made.gap < 1e-3


def test_a_single_device_has_its_matched_filter():
    channel, burden, importance = instance(3, 1, 6)
    made = best_combiner(channel, burden, importance, np.random.default_rng(0))
    matched = channel[0] / np.linalg.norm(channel[0])
    assert np.abs(np.vdot(made.vector, matched)) == pytest.approx(1, abs=1e-6)
    assert made.cost == pytest.approx(importance[0] * burden[0, 0] / np.linalg.norm(channel) ** 2, rel=1e-6)


def test_orthogonal_devices_divide_the_power_by_burden():
    """With orthogonal channels |f_i|² ∝ b_i/‖h_i‖² makes all devices equal: the cost is Σ_i b_i/‖h_i‖²."""
    sizes, burden = np.array([1.0, 2.0, 5.0]), np.array([[1.0], [3.0], [2.0]])
    made = best_combiner(np.diag(sizes).astype(complex), burden, np.ones(1), np.random.default_rng(0))
    assert made.cost == pytest.approx(float((burden[:, 0] / sizes**2).sum()), rel=1e-4)


def test_one_antenna_has_combiner_one():
    given_ = instance(0, 5, 1, 3)
    made = best_combiner(*given_, np.random.default_rng(0))
    assert made.vector.tolist() == [1.0 + 0.0j]
    assert made.gap == 0
    assert (np.conj(made.vector) @ given_[0].T).tobytes() == given_[0][:, 0].tobytes()
    assert all(own.vector.tolist() == [1.0 + 0.0j] for own in combiner_of_each_class(*given_[:2], None))


def test_the_same_stream_gives_the_same_combiner():
    given_ = instance(1, 8, 4, 2)
    first, second = (best_combiner(*given_, np.random.default_rng(5)) for _ in range(2))
    assert first.vector.tobytes() == second.vector.tobytes()


def test_classes_with_proportional_burdens_are_one_problem():
    channel, burden, _ = instance(2, 10, 4)
    factors = np.array([1.0, 4.0, 0.25])
    importance = np.array([1.0, 2.0, 3.0])
    together = best_combiner(channel, burden * factors, importance, np.random.default_rng(0))
    alone = best_combiner(channel, burden, np.ones(1), np.random.default_rng(0))
    assert np.allclose(together.vector, alone.vector)
    assert together.cost == pytest.approx(alone.cost * float(factors @ importance))
    each = combiner_of_each_class(channel, burden * factors, np.random.default_rng(0))
    assert [own.cost for own in each] == pytest.approx((alone.cost * factors).tolist())


def test_the_common_combiner_is_a_compromise():
    channel, burden, importance = instance(4, 8, 3, 3)
    common = best_combiner(channel, burden, importance, np.random.default_rng(0))
    own = combiner_of_each_class(channel, burden, np.random.default_rng(0))
    assert sum(weight * made.bound for weight, made in zip(importance, own, strict=True)) <= common.cost


def test_a_holder_without_a_channel_affects_only_its_own_classes():
    channel, burden, importance = instance(5, 6, 3, 2)
    channel[2], burden[2] = 0.0, [0.0, 1.0]
    made = best_combiner(channel, burden, importance, np.random.default_rng(0))
    assert np.isinf(made.cost)
    assert np.isinf(made.bound)
    rest = best_combiner(channel, burden[:, :1], importance[:1], np.random.default_rng(0))
    assert np.allclose(made.vector, rest.vector)
    nothing_sent = best_combiner(channel, np.zeros_like(burden), importance, np.random.default_rng(0))
    assert nothing_sent.cost == 0
    assert np.linalg.norm(nothing_sent.vector) == 1


def test_the_relaxation_is_solved_to_the_given_accuracy():
    """F is feasible, and so its cost is above the optimum, as the bound is below it."""
    channel, burden, importance = instance(6, 20, 6, 3)
    channel, burden = (values[burden.any(axis=1)] for values in (channel, burden))
    heaviest = burden.max(axis=1)
    unit = channel / np.sqrt(heaviest)[:, None]
    unit /= np.linalg.norm(unit, axis=1).min()
    given_ = unit, burden / heaviest[:, None], importance / importance.sum()
    solved = relax(*given_, accuracy=1e-4)
    power = np.einsum("in,nm,im->i", unit.conj(), solved.covariance, unit).real
    reached = np.where(given_[1] > 0, given_[1] / power[:, None], 0.0).max(axis=0) @ given_[2]
    assert np.trace(solved.covariance).real == pytest.approx(1)
    assert np.linalg.eigvalsh(solved.covariance)[0] > 0
    assert solved.bound <= reached <= solved.bound * (1 + 1e-3)
