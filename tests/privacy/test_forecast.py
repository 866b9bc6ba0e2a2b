import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from airdistill.privacy.gaussian import gaussian_mu
from airdistill.privacy.sensitivity import required_noise_var
from airdistill.privacy.targets import epsilon_after, spent_squared_mu

COUNTS = np.array([[10, 30, 5], [20, 10, 50]])
DELTA = np.array([1e-5, 1e-6])
EPSILON = np.array([0.7, 3.0])


@pytest.mark.parametrize("model", ["paper", "class_mean", "device"])
@pytest.mark.parametrize("relabel", [False, True])
def test_the_required_noise_spends_exactly_the_target(model, relabel):
    mu = gaussian_mu(EPSILON, DELTA)
    required = required_noise_var(COUNTS, mu, 40, model, relabel)
    spent = epsilon_after(COUNTS, 1 / required, DELTA, 40, model, relabel)
    assert spent == pytest.approx(EPSILON, rel=1e-6)
    with_more_noise = epsilon_after(COUNTS, 0.5 / required, DELTA, 40, model, relabel)
    assert (with_more_noise < EPSILON).all()


def test_per_class_models_count_the_costliest_class_and_joint_models_all():
    cost = np.array([[1.0, 4.0, 2.0]])
    assert spent_squared_mu(cost, "class_mean", relabel=False) == 4
    assert spent_squared_mu(cost, "class_mean", relabel=True) == 6
    assert spent_squared_mu(cost, "device", relabel=False) == 7
    assert spent_squared_mu(cost[:, :1], "paper", relabel=True) == 1


def test_uneven_rounds_compose_as_in_dp_accounting():
    # A whole device, two rounds with noise c and 3c: dp_accounting composes the privacy loss distributions.
    counts, noise = np.array([[4, 6], [6, 4]]), np.array([[0.8, 1.2], [0.8, 1.2]])
    inverse = 0.5 * (1 / noise + 1 / (3 * noise))
    forecast = epsilon_after(counts, inverse, np.array([1e-5, 1e-5]), 2, "device")
    shift = np.sqrt(2) * counts[0] / 10
    pld = None
    for round_noise in (noise[0], 3 * noise[0]):
        for moved, variance in zip(shift, round_noise, strict=True):
            one = privacy_loss_distribution.from_gaussian_mechanism(
                standard_deviation=np.sqrt(variance) / moved, value_discretization_interval=1e-4
            )
            pld = one if pld is None else pld.compose(one)
    assert forecast[0] == pytest.approx(pld.get_epsilon_for_delta(1e-5), rel=1e-3)


def test_a_class_that_a_device_does_not_hold_costs_nothing_even_without_noise():
    counts = np.array([[5, 0], [5, 5]])
    epsilon = epsilon_after(counts, np.array([[1.0, np.inf], [1.0, 1.0]]), DELTA, 1, "device")
    assert np.isfinite(epsilon).all()
