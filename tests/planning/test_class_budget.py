"""Budget divided among classes: against a generic solver, against a dual bound, and its invariants."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, nnls

from airdistill.planning.transceiver.required_noise import noise_for_budget, own_noise_for_budget

NUM_PROGRAMMES = 150


def spent(shift, noise):
    """Σ_k (w s)²/v, `[device]`; a class that is not moved costs nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(shift > 0, shift / noise, 0.0).sum(axis=1)


def equal_shares(shift, budget, floor):
    """n_i (w s)²/budget_i of the strictest device: the plain choice."""
    moved = np.count_nonzero(shift, axis=1)[:, None]
    return np.maximum((moved * shift / budget[:, None]).max(axis=0), floor)


def random_programme(seed, decades=1.0):
    """Squared shifts, budgets, importance and floors.

    Some devices lack classes, some have no privacy target, and some floors are zero. Floors are near the noise that the
    budgets require, where it matters which of the two binds.
    """
    rng = np.random.default_rng(seed)
    num_devices, num_classes = rng.integers(1, 7), rng.integers(1, 11)
    shift = 10 ** rng.uniform(-2 * decades, 0, (num_devices, num_classes))
    shift[rng.random(shift.shape) < rng.choice([0.0, 0.3, 0.7])] = 0.0
    budget = 10 ** rng.uniform(-decades, decades / 2, num_devices)
    budget[rng.random(num_devices) < 0.1] = np.inf
    importance = rng.uniform(0.05, 3.0, num_classes)
    floor = np.zeros(num_classes)
    if rng.random() < 0.7:
        floor = equal_shares(shift, budget, floor) * 10 ** rng.uniform(-2, 0.3, num_classes)
        floor[rng.random(num_classes) < 0.3] = 0.0
    return shift, budget, importance, floor


programmes = st.tuples(st.integers(0, 10**9), st.sampled_from([1.0, 4.0, 12.0])).map(
    lambda drawn: random_programme(*drawn)
)


def least_cost_by_slsqp(shift, budget, importance, floor):
    """The programme in log v by a generic solver; its best feasible point."""
    unit = equal_shares(shift, budget, floor)
    live = unit > 0
    if not live.any():
        return 0.0
    unit, weight, lowest = unit[live], importance[live], floor[live]
    usage = (shift / budget[:, None])[:, live] / unit
    value, total = weight * unit, weight @ unit
    bounds = [(np.log(low / high) if low > 0 else -20.0, 20.0) for low, high in zip(lowest, unit, strict=True)]
    found = minimize(
        lambda u: (value @ np.exp(u) / total, value * np.exp(u) / total),
        np.full(len(unit), 0.05),
        jac=True,
        method="SLSQP",
        bounds=bounds,
        constraints={
            "type": "ineq",
            "fun": lambda u: 1 - usage @ np.exp(-u),
            "jac": lambda u: usage * np.exp(-u),
        },
        options={"maxiter": 500, "ftol": 1e-15},
    )
    noise = np.exp(found.x)
    noise = np.maximum(noise * max(1.0, (usage / noise).sum(axis=1).max()), lowest / unit)
    return float(value @ noise)


def least_cost_by_duality(shift, budget, importance, floor, noise):
    """A lower bound on Σ α v from multipliers y ≥ 0: the minimum of the Lagrangian over v ≥ floor.

    Any y gives a valid bound, and so it does not matter how y was found: here by non-negative least squares from
    α v = Σ_i y_i (w s)²_ik/(budget v) of the classes above their floor and the devices that bind.
    """
    live = (noise > 0) & np.isfinite(noise)
    usage, weight, lowest, level = (shift / budget[:, None])[:, live], importance[live], floor[live], noise[live]
    value, share = weight * level, usage / level
    free, binding = level > lowest * (1 + 1e-9), share.sum(axis=1) > 1 - 1e-6
    price = np.zeros(len(shift))
    if free.any() and binding.any():
        size = np.sqrt(value[free])
        price[binding] = nnls((share[np.ix_(binding, free)] / size).T, size)[0]
    worth = price @ usage
    raised = worth > weight * lowest**2
    at_floor = weight * lowest + np.divide(worth, lowest, out=np.zeros_like(worth), where=lowest > 0)
    return float(np.where(raised, 2 * np.sqrt(weight * worth), at_floor).sum() - price.sum())


def cost_of(importance, noise):
    return float(importance @ noise)


def test_a_generic_solver_finds_the_same_cost():
    for seed in range(NUM_PROGRAMMES):
        given = random_programme(seed)
        cost, other = cost_of(given[2], noise_for_budget(*given)), least_cost_by_slsqp(*given)
        assert cost == pytest.approx(other, rel=1e-6), f"programme {seed}"


@given(programmes)
@settings(max_examples=150, deadline=None)
def test_the_cost_meets_the_dual_bound_at_any_scale(given):
    noise = noise_for_budget(*given)
    assert cost_of(given[2], noise) <= least_cost_by_duality(*given, noise) * (1 + 1e-6)


@given(programmes)
@settings(deadline=None)
def test_budgets_and_floors_are_kept(given):
    shift, budget, _, floor = given
    noise = noise_for_budget(*given)
    assert (spent(shift, noise) <= budget).all()
    assert (noise >= floor).all()


@given(programmes)
@settings(deadline=None)
def test_never_worse_than_equal_shares(given):
    shift, budget, importance, floor = given
    equal = cost_of(importance, equal_shares(shift, budget, floor))
    assert cost_of(importance, noise_for_budget(*given)) <= equal * (1 + 1e-12)


def test_the_random_programmes_include_every_case():
    """One binding device, several, none; floors that bind and floors that do not."""
    binding, raised = [], []
    for seed in range(NUM_PROGRAMMES):
        shift, budget, _, floor = given = random_programme(seed)
        noise = noise_for_budget(*given)
        binding.append(int((spent(shift, noise) > budget * (1 - 1e-9)).sum()))
        raised.append(float(np.mean(noise[floor > 0] > floor[floor > 0])) if floor.any() else np.nan)
    assert min(np.bincount(binding, minlength=4)[:4]) >= 3
    assert {0.0, 1.0} <= set(raised)
    assert any(0 < share < 1 for share in raised)


def test_one_device_is_the_closed_form():
    """v = κ w s/√α, κ = Σ w s √α/budget: worked out by hand for w s = (1, 2), α = (1, 4), budget = 1/2."""
    noise = noise_for_budget([[1.0, 4.0]], [0.5], [1.0, 4.0])
    assert noise == pytest.approx([10.0, 10.0], rel=1e-12)
    # A floor above its optimum leaves the other class more of the budget: 1/2 − 1/20, and so v = 4/(9/20).
    noise = noise_for_budget([[1.0, 4.0]], [0.5], [1.0, 4.0], floor=[20.0, 1.0])
    assert noise == pytest.approx([20.0, 80 / 9], rel=1e-12)


@given(programmes, st.floats(1e-9, 1e9))
@settings(deadline=None)
def test_only_the_ratio_of_shift_to_budget_counts(given, factor):
    shift, budget, importance, floor = given
    before = cost_of(importance, noise_for_budget(*given))
    assert cost_of(importance, noise_for_budget(factor * shift, factor * budget, importance, floor)) == pytest.approx(
        before, rel=1e-9
    )
    scaled = noise_for_budget(factor * shift, budget, factor * importance, factor * floor)
    assert cost_of(importance, scaled) == pytest.approx(factor * before, rel=1e-9)


@given(programmes, st.floats(1, 100), st.integers(0, 5))
@settings(deadline=None)
def test_a_larger_budget_never_costs_more(given, factor, device):
    shift, budget, importance, floor = given
    larger = budget.copy()
    larger[device % len(budget)] *= factor
    before = cost_of(importance, noise_for_budget(*given))
    assert cost_of(importance, noise_for_budget(shift, larger, importance, floor)) <= before * (1 + 1e-11)


@given(programmes, st.integers(0, 10**6))
@settings(deadline=None)
def test_equal_devices_count_as_one(given, seed):
    shift, budget, importance, floor = given
    again = np.append(np.arange(len(budget)), np.random.default_rng(seed).integers(0, len(budget), 20))
    noise = noise_for_budget(shift[again], budget[again], importance, floor)
    assert (noise == noise_for_budget(*given)).all()


def test_nearly_equal_devices_do_not_break_the_solver():
    rng = np.random.default_rng(0)
    for _ in range(20):
        base = 10 ** rng.uniform(-2, 0, (3, 6))
        shift = np.repeat(base, 10, axis=0) * (1 + 1e-10 * rng.standard_normal((30, 6)))
        importance = rng.uniform(0.1, 3.0, 6)
        cost = cost_of(importance, noise_for_budget(shift, np.ones(30), importance))
        assert cost == pytest.approx(cost_of(importance, noise_for_budget(base, np.ones(3), importance)), rel=1e-8)


def test_many_devices_with_two_classes_each():
    """About ten devices bind here, nearly one for each class."""
    rng = np.random.default_rng(3)
    shift = np.zeros((500, 10))
    for device in range(500):
        shift[device, rng.choice(10, 2, replace=False)] = 10 ** rng.uniform(-4, 0, 2)
    given = shift, 10 ** rng.uniform(-2, 1, 500), rng.uniform(0.1, 3.0, 10), np.zeros(10)
    noise = noise_for_budget(*given)
    assert (spent(shift, noise) <= given[1]).all()
    assert cost_of(given[2], noise) <= least_cost_by_duality(*given, noise) * (1 + 1e-9)


def test_without_privacy_targets_the_floor_remains():
    shift, floor = np.array([[1.0, 2.0], [0.0, 3.0]]), np.array([0.5, 0.0])
    assert (noise_for_budget(shift, [np.inf, np.inf], [1.0, 1.0], floor) == floor).all()
    assert (noise_for_budget(shift, [np.inf, np.inf], [1.0, 1.0]) == 0).all()
    assert (noise_for_budget(shift, [4.0, 4.0], [1.0, 1.0], [3.0, 3.0]) == 3.0).all()  # enough by itself


def test_classes_without_shift_importance_or_channel():
    # Class 0 is moved, 1 is not, 2 has neither shift nor importance, 3 cannot be sent.
    shift, importance = np.array([[1.0, 0.0, 0.0, 9.0]]), np.array([1.0, 1.0, 0.0, 1.0])
    noise = noise_for_budget(shift, [0.5], importance, [0.0, 0.25, 0.125, np.inf])
    assert noise == pytest.approx([2.0, 0.25, 0.125, np.inf], rel=1e-12)


def test_a_class_without_importance_gets_infinite_noise():
    assert noise_for_budget([[1.0, 1.0]], [0.5], [1.0, 0.0]) == pytest.approx([2.0, np.inf], rel=1e-12)
    own = own_noise_for_budget([[1.0, 1.0], [0.0, 1.0]], [0.5, np.inf], [1.0, 0.0])
    assert own == pytest.approx(np.array([[2.0, np.inf], [0.0, 0.0]]), rel=1e-12)


@pytest.mark.parametrize(
    "given",
    [
        ([[1.0]], [0.0], [1.0]),
        ([[1.0]], [np.nan], [1.0]),
        ([[-1.0]], [1.0], [1.0]),
        ([[1.0]], [1.0], [np.nan]),
        ([[1.0]], [1.0], [1.0], [-1.0]),
        ([[1.0]], [1.0], [1.0, 1.0]),
    ],
)
def test_invalid_arguments_are_refused(given):
    with pytest.raises(ValueError, match="must"):
        noise_for_budget(*given)


def test_a_device_that_moves_nothing_needs_no_budget():
    assert noise_for_budget([[0.0], [1.0]], [0.0, 0.5], [1.0]) == pytest.approx([2.0], rel=1e-12)
    assert own_noise_for_budget([[0.0], [1.0]], [0.0, 0.5], [1.0]) == pytest.approx(np.array([[0.0], [2.0]]), rel=1e-12)


def test_own_noise_is_optimal_for_each_device_separately():
    for seed in range(40):
        shift, budget, importance, _ = random_programme(seed)
        own = own_noise_for_budget(shift, budget, importance)
        none = np.zeros(len(importance))
        for device in range(len(budget)):
            alone = shift[[device]], budget[[device]], importance, none
            assert cost_of(importance, own[device]) == pytest.approx(least_cost_by_slsqp(*alone), rel=1e-6)
            assert own[device] == pytest.approx(noise_for_budget(*alone), rel=1e-12)
            assert spent(shift[[device]], own[device])[0] <= budget[device]
