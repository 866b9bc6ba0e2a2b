import numpy as np
import pytest

from airdistill.privacy.accountant import gaussian_epsilon
from airdistill.privacy.meter import PrivacyMeter, SpendingRule
from airdistill.privacy.sensitivity import AccumulatedShift, TrajectoryDynamics

COUNTS = np.array([[10, 30, 0], [20, 5, 15]])
DELTA = np.array([1e-5, 1e-6])
DYNAMICS = TrajectoryDynamics(0.1, 2.0, 0.5, 3.0, local_epochs=1, batch_size=15)
NOISE = np.random.default_rng(0).uniform(0.01, 0.3, (5, 2, 3))


def rule(relabel=False):
    return SpendingRule(lambda model: AccumulatedShift(COUNTS, model, DYNAMICS), DELTA, relabel)


@pytest.mark.parametrize("model", ["paper", "class_mean", "trajectory", "device"])
@pytest.mark.parametrize("relabel", [False, True])
def test_uneven_rounds_add_up(model, relabel):
    meter = PrivacyMeter(rule(relabel))
    shift = AccumulatedShift(COUNTS, model, DYNAMICS)
    cost, before = np.zeros(COUNTS.shape), np.zeros(COUNTS.shape)
    for t, noise in enumerate(NOISE, start=1):
        meter.charge(noise)
        cost, before = cost + (shift.after(t) - before) / noise, shift.after(t)
        ordered = np.sort(cost, axis=1)
        joint = model in ("trajectory", "device")
        spent = ordered.sum(axis=1) if joint else ordered[:, -2:].sum(axis=1) if relabel else ordered[:, -1]
        assert meter.epsilon(model) == pytest.approx(gaussian_epsilon(np.sqrt(spent), DELTA), rel=1e-12)


@pytest.mark.parametrize("model", ["class_mean", "trajectory"])
def test_a_meter_goes_on_from_where_it_stood(model):
    whole, first = PrivacyMeter(rule()), PrivacyMeter(rule())
    for noise in NOISE:
        whole.charge(noise)
    for noise in NOISE[:2]:
        first.charge(noise)
    second = PrivacyMeter(rule(), 2, first.costs)
    for noise in NOISE[2:]:
        second.charge(noise)
    assert np.array_equal(second.costs[model], whole.costs[model])


def test_silence_costs_nothing_and_bare_knowledge_everything():
    meter = PrivacyMeter(rule())
    meter.charge(None)
    assert meter.epsilon("trajectory").tolist() == [0, 0]
    meter.charge(np.zeros(COUNTS.shape))
    assert meter.epsilon("trajectory").tolist() == [np.inf, np.inf]
