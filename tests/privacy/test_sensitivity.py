import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airdistill.privacy.gaussian import paper_mu
from airdistill.privacy.sensitivity import (
    AccumulatedShift,
    TrajectoryDynamics,
    aggregation_weights,
    knowledge_sensitivity,
    required_noise_var,
)

# Device 0 holds classes 0 and 1, device 1 classes 1 and 2; no device holds class 3.
COUNTS = np.array([[10, 30, 0, 0], [0, 10, 50, 0]])
ROOT2 = math.sqrt(2)
DYNAMICS = TrajectoryDynamics(
    initial_lr=0.1, grad_lipschitz=2.0, model_lipschitz=0.5, grad_norm_bound=3.0, local_epochs=1, batch_size=15
)


def test_weights_by_hand():
    assert aggregation_weights(COUNTS).tolist() == [[1, 0.75, 0, 0], [0, 0.25, 1, 0]]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("paper", [[ROOT2 / 40, ROOT2 / 40, 0, 0], [0, ROOT2 / 60, ROOT2 / 60, 0]]),
        ("class_mean", [[ROOT2 / 10, ROOT2 / 30, 0, 0], [0, ROOT2 / 10, ROOT2 / 50, 0]]),
        ("device", [[ROOT2, ROOT2, 0, 0], [0, ROOT2, ROOT2, 0]]),
    ],
)
def test_sensitivity_by_hand(model, expected):
    assert knowledge_sensitivity(COUNTS, model) == pytest.approx(np.array(expected))


@pytest.mark.parametrize(("model", "moved"), [("paper", 1), ("class_mean", 1), ("device", 2)])
def test_required_noise_by_hand(model, moved):
    # T n (w s)²/μ², for T = 7 rounds and μ = (0.5, 2).
    mu = np.array([0.5, 2.0])
    scaled = aggregation_weights(COUNTS) * knowledge_sensitivity(COUNTS, model)
    expected = 7 * moved * scaled**2 / (mu**2)[:, None]
    assert required_noise_var(COUNTS, mu, 7, model) == pytest.approx(expected)
    # Relabelling moves two classes of a per-class model; the device model includes it.
    factor = 1 if model == "device" else 2
    assert required_noise_var(COUNTS, mu, 7, model, relabel=True) == pytest.approx(factor * expected)


@given(st.integers(0, 1000), st.integers(1, 500))
def test_the_papers_choice_is_eq_17(seed, num_rounds):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 40, (4, 3))
    epsilon, delta = rng.uniform(0.001, 0.1, 4), rng.uniform(1e-11, 1e-9, 4)
    channel, scale = rng.uniform(0.1, 3, 4), 1.7
    required = required_noise_var(counts, paper_mu(epsilon, delta), num_rounds, "paper")
    # Eq. (17): max_i 4TK|h P1|²ρ_i, with |h P1| = w λ/√K by eq. (18), over λ².
    stringency = np.log(1 / delta) / (counts.sum(axis=1) * epsilon) ** 2
    gain = counts / counts.sum(axis=0) * scale / (math.sqrt(3) * channel[:, None])
    right_side = 4 * num_rounds * 3 * (channel[:, None] * gain) ** 2 * stringency[:, None]
    assert required == pytest.approx(right_side / scale**2, rel=1e-10)


def test_no_privacy_target_requires_no_noise():
    assert (required_noise_var(COUNTS, np.array([np.inf, np.inf]), 100, "device") == 0).all()


def simplex(rng, *shape):
    return rng.dirichlet(np.full(shape[-1], 0.1), shape[:-1])


@given(st.integers(0, 10_000), st.integers(1, 30))
def test_replacing_one_record_under_a_fixed_model_stays_within_class_mean(seed, size):
    rng = np.random.default_rng(seed)
    outputs = simplex(rng, size, 5)
    changed = outputs.copy()
    changed[0] = simplex(rng, 1, 5)[0]
    shift = np.linalg.norm(outputs.mean(axis=0) - changed.mean(axis=0))
    assert shift <= knowledge_sensitivity([[size, 3]], "class_mean")[0, 0] * (1 + 1e-12)


def test_lemma_1_fails_for_the_smallest_class_even_with_a_fixed_model():
    # Two samples of a class in a dataset of 100: the mean moves by √2/2, and Lemma 1 allows √2/100.
    before, after = np.array([[1.0, 0], [1, 0]]), np.array([[0.0, 1], [1, 0]])
    shift = np.linalg.norm(before.mean(axis=0) - after.mean(axis=0))
    assert shift == pytest.approx(ROOT2 / 2)
    assert shift > 49 * knowledge_sensitivity([[2, 98]], "paper")[0, 0]
    assert shift <= knowledge_sensitivity([[2, 98]], "class_mean")[0, 0] * (1 + 1e-12)


def drift_by_steps(dynamics, samples, num_rounds):
    """Step by step, with the record in the batch of an epoch that moves the parameters most."""
    full_batch = dynamics.local_epochs == 0
    size = samples if full_batch else dynamics.batch_size
    batches = [min(size, samples - start) for start in range(0, samples, size)]
    drift, drifts = 0.0, []
    for t in range(1, num_rounds + 1):
        drifts.append(drift)
        lr = dynamics.initial_lr / math.sqrt(t)
        for _ in range(max(1, dynamics.local_epochs)):
            ends = []
            for place in range(len(batches)):
                distance = drift
                for step, batch in enumerate(batches):
                    distance *= 1 + lr * dynamics.grad_lipschitz
                    if step == place:
                        distance += 2 * lr * dynamics.grad_norm_bound / batch
                ends.append(distance)
            drift = max(ends)
    return drifts


def test_a_record_alone_in_the_last_batch_stays_within_the_drift():
    """61 samples in batches of 60, linear losses with gradients ±S: the last batch is the record itself."""
    dynamics = TrajectoryDynamics(0.1, 1e-9, 1.0, 3.0, local_epochs=1, batch_size=60)
    gradients = np.full(61, 3.0)
    ends = []
    for own in (3.0, -3.0):
        gradients[60] = own
        theta = 0.0
        for start in range(0, 61, 60):
            theta -= 0.1 * gradients[start : start + 60].mean()
        ends.append(theta)
    bound = list(itertools.islice(dynamics.parameter_drift(np.array([61.0])), 2))[1][0]
    assert abs(ends[0] - ends[1]) == pytest.approx(0.6)
    assert bound >= 0.6 - 1e-9


@pytest.mark.parametrize(("epochs", "batch"), [(0, 7), (1, 15), (2, 15), (1, 100)])
def test_the_drift_agrees_with_single_steps(epochs, batch):
    dynamics = TrajectoryDynamics(0.1, 2.0, 0.5, 3.0, local_epochs=epochs, batch_size=batch)
    drift = np.stack(list(itertools.islice(dynamics.parameter_drift(np.array([40.0, 60.0])), 6)))
    for device, samples in enumerate((40, 60)):
        assert drift[:, device] == pytest.approx(drift_by_steps(dynamics, samples, 6), rel=1e-12)


def test_trajectory_adds_the_drift_and_stops_at_the_diameter():
    weights = aggregation_weights(COUNTS)
    expected = np.zeros(COUNTS.shape)
    drifts = list(zip(*(drift_by_steps(DYNAMICS, samples, 4) for samples in (40, 60)), strict=True))
    for drift in drifts:
        own = np.divide(ROOT2, COUNTS, out=np.zeros(COUNTS.shape), where=COUNTS > 0)
        sensitivity = np.minimum(ROOT2, own + 0.5 * np.array(drift)[:, None]) * (COUNTS > 0)
        expected += (weights * sensitivity) ** 2
    assert AccumulatedShift(COUNTS, "trajectory", DYNAMICS).after(4) == pytest.approx(expected, rel=1e-12)
    required = required_noise_var(COUNTS, np.array([0.5, 2.0]), 4, "trajectory", dynamics=DYNAMICS)
    assert required == pytest.approx(expected * np.array([[2 / 0.25], [2 / 4]]), rel=1e-12)
    late = AccumulatedShift(COUNTS, "trajectory", DYNAMICS).after(3000)
    assert np.isfinite(late).all()
    assert (late <= AccumulatedShift(COUNTS, "device").after(3000) * (1 + 1e-12)).all()


def test_in_the_first_round_the_trajectory_model_is_the_class_mean():
    first = AccumulatedShift(COUNTS, "trajectory", DYNAMICS).after(1)
    assert first == pytest.approx(AccumulatedShift(COUNTS, "class_mean").after(1))


@pytest.mark.parametrize(
    ("counts", "rule"),
    [([1, 2], "shape"), ([[1, -2]], "negative"), ([[1, 2], [0, 0]], "device 1 has no data"), ([[]], "shape")],
)
def test_invalid_counts_are_rejected(counts, rule):
    with pytest.raises(ValueError, match=rule):
        knowledge_sensitivity(counts, "device")


def test_unknown_or_incomplete_models_are_rejected():
    with pytest.raises(ValueError, match="must be one of paper"):
        knowledge_sensitivity(COUNTS, "guess")
    with pytest.raises(ValueError, match="needs the training dynamics"):
        required_noise_var(COUNTS, 1.0, 3, "trajectory")
    for num_rounds in (0, 2.5, -1):
        with pytest.raises(ValueError, match="whole number of at least 1"):
            required_noise_var(COUNTS, 1.0, num_rounds, "device")
    with pytest.raises(ValueError, match="mu = -1"):
        required_noise_var(COUNTS, [1.0, -1.0], 3, "device")


def test_trajectory_without_a_drift_is_that_of_the_first_round():
    assert knowledge_sensitivity(COUNTS, "trajectory") == pytest.approx(knowledge_sensitivity(COUNTS, "class_mean"))


def test_accumulated_shifts_do_not_depend_on_the_order_of_calls():
    """Once the diameter is reached the growth is linear; jumping ahead or back must equal summing round by round."""
    accumulated, summed = AccumulatedShift(COUNTS, "trajectory", vars(DYNAMICS)), np.zeros(COUNTS.shape)
    weights = aggregation_weights(COUNTS)
    drifts = DYNAMICS.parameter_drift(COUNTS.sum(axis=1).astype(float))
    history = []
    for drift in itertools.islice(drifts, 200):
        summed = summed + (weights * knowledge_sensitivity(COUNTS, "trajectory", drift, 0.5)) ** 2
        history.append(summed)
    assert accumulated.linear_from(200) < 200
    for num_rounds in (200, 3, 150, 1):
        assert accumulated.after(num_rounds) == pytest.approx(history[num_rounds - 1], rel=1e-12)


def test_an_overflowing_drift_is_limited_by_the_diameter():
    wild = TrajectoryDynamics(1.0, 100.0, 1.0, 3.0, local_epochs=1, batch_size=1)
    counts = np.full((2, 3), 500)
    late = AccumulatedShift(counts, "trajectory", wild).after(5)
    first = AccumulatedShift(counts, "class_mean").after(1)
    assert late == pytest.approx(first + AccumulatedShift(counts, "device").after(4))
