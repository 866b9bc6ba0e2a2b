"""Figure 2(a): flat where the theory predicts it, and equal to the planner's numbers."""

import math

import numpy as np
import pytest

import airdistill as ad
from airdistill.planning.plan import plan
from airdistill.reproduce.noise_curves import DELTA, EPSILONS, curves_as_rows, noise_curve, noise_curves
from airdistill.reproduce.recipes import figure_scenario, on_fd_terms, on_fl_terms
from airdistill.scenario.loading import changed
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.registry import load_scheme


@pytest.fixture(scope="module")
def scenario():
    return figure_scenario("paper", "printed", False, [])


@pytest.fixture(scope="module")
def curves(scenario):
    return noise_curves(scenario)


def test_the_grid_of_epsilon():
    assert EPSILONS[0] == pytest.approx(1e-3)
    assert EPSILONS[-1] == pytest.approx(1e2)
    assert DELTA == 1e-11


def test_the_optimised_curve_is_flat_if_privacy_alone_limits():
    """Φ2 at T̂ does not depend on ε: T̂ ∝ ε² and req(T̂) = T̂ req(1) ∝ T̂/ε². Only the rounding of T changes it."""
    unlimited = ad.load("paper", ["learning.max_rounds=1000000", "radio.noise_power=1e-20 W"])
    curve = noise_curve("ota_fd", "ota_fd", unlimited, np.geomspace(1e-3, 0.05, 12))
    inside = (curve.privacy_limited_rounds > 1) & (curve.privacy_limited_rounds < 1e6) & (curve.privacy_binds == 1)
    assert inside.all()
    assert curve.rounds[-1] > 1000 * curve.rounds[0]
    # T̂·Φ2(1) = 3f_max/(η0 A2) with A2 = 6η0γ²L2²L1.
    constant = 3 * 2.5 / (0.01 * 6 * 0.01 * 7.7**2 * 22)
    assert np.abs(curve.noise / constant - 1).max() < 0.5 / curve.rounds.min() + 1e-6


def test_the_printed_scenario_is_flat_until_the_channel_or_max_rounds_limits(curves):
    curve = curves["ota_fd"]
    limited = curve.privacy_limited_rounds
    inside = (limited > 10) & (limited < 2000) & (curve.privacy_binds > 0.95)
    assert inside.sum() >= 4
    assert curve.noise[inside].max() / curve.noise[inside].min() < 1.05
    fixed = curves["ota_fd_fixed"].noise[inside]
    assert fixed[0] / fixed[-1] > 5  # at a constant T the noise falls with ε²


@pytest.mark.parametrize("label", ["ota_fd", "ota_fd_fixed", "ota_fl", "ota_fl_fixed"])
def test_a_point_equals_the_plan_of_the_scheme(curves, label):
    for position in (0, 12, 25):
        epsilon = float(EPSILONS[position])
        asking = ad.load("paper", [f"privacy.epsilon={epsilon}", f"privacy.delta={DELTA}"])
        own = {"overrides": {"ota_fl": {"privacy": {"epsilon": epsilon, "delta": DELTA}}}}
        scheme = load_scheme(label)
        planned = plan_scheme(scheme, as_run_by(scheme, changed(asking, own)))
        assert curves[label].rounds[position] == planned.num_rounds
        assert curves[label].noise[position] == pytest.approx(planned.forecast.effective_noise, rel=1e-9)


def test_gradient_units(curves):
    """Noise enters ∇F multiplied by 2γ ∂G/∂θ, and its variance by (2γL2)²."""
    fd, fl = curves["ota_fd"], curves["ota_fl"]
    assert fd.gradient_noise == pytest.approx((2 * 7.7) ** 2 * fd.noise)
    assert np.array_equal(fl.gradient_noise, fl.noise)


def test_terms_are_exchanged_completely(scenario):
    theirs, ours = on_fd_terms(scenario), on_fl_terms(scenario)
    fl = as_run_by(load_scheme("ota_fl"), theirs)
    assert (fl.radio, fl.privacy) == (scenario.radio, scenario.privacy)
    assert fl.learning.initial_lr == 0.001
    fd = as_run_by(load_scheme("ota_fd"), ours)
    full = as_run_by(load_scheme("ota_fl"), scenario)
    assert (fd.radio, fd.privacy) == (full.radio, full.privacy)
    assert fd.learning.initial_lr == 0.01
    assert fd.radio.path_loss_exponent == 2


@pytest.mark.parametrize("scheme", ["ota_fd", "ota_fl"])
def test_quick_keeps_the_noise(scenario, scheme):
    """ε grows as the data shrinks: one round requires the same noise, up to the balance of the classes."""
    quick = figure_scenario("paper", "printed", True, [])
    chosen = load_scheme(scheme)
    large, small = (
        plan_scheme(chosen, as_run_by(chosen, given, 1)).required_noise_var().mean()
        for given in (_one_epsilon(scenario), _one_epsilon(quick))
    )
    # With 6 samples a class instead of 120, shares vary by 40 %, and their mean square is 16 % larger.
    assert small == pytest.approx(large, rel=0.3 if scheme == "ota_fd" else 1e-9)


def test_quick_scales_one_epsilon_and_a_range():
    same = figure_scenario("paper", "printed", True, ["privacy.epsilon=0.1", "overrides.ota_fl.privacy.epsilon=5"])
    # 50 × 1200 samples instead of 20 × 60.
    assert same.privacy.epsilon.numbers == pytest.approx((5.0,))
    assert as_run_by(load_scheme("ota_fl"), same).privacy.epsilon.numbers == pytest.approx((250.0,))
    range_ = figure_scenario("paper", "printed", True, [])
    assert range_.privacy.epsilon.numbers == pytest.approx((0.05, 5.0))
    assert as_run_by(load_scheme("ota_fl"), range_).privacy.epsilon.numbers == pytest.approx((50.0, 5000.0))


def _one_epsilon(scenario):
    """Give all devices the upper end of every range, so that only the scale differs."""
    top = scenario.privacy.epsilon.numbers[-1]
    top_fl = scenario.overrides["ota_fl"]["privacy"]["epsilon"][-1]
    fixed = {"epsilon": top, "delta": 1e-10}
    return changed(
        scenario, {"privacy": fixed, "overrides": {"ota_fl": {"privacy": {"epsilon": top_fl, "delta": 1e-4}}}}
    )


def test_rows_for_a_file(curves):
    rows = list(curves_as_rows(curves))
    assert rows[0][0] == "curve"
    assert len(rows) == 1 + 26 * len(curves)
    assert all(math.isfinite(value) for row in rows[1:] for value in row[1:])
    assert dict(zip(rows[0], rows[1], strict=True))["noise"] == curves["ota_fd"].noise[0]


def test_the_literal_noise_does_not_depend_on_privacy():
    """1e-8 W of noise exceeds everything else: Φ2 is that of the channel at every ε."""
    literal = figure_scenario("paper-literal", "printed", False, [])
    curve = noise_curve("ota_fd", "ota_fd", literal, EPSILONS[::5])
    assert curve.noise.max() / curve.noise.min() < 1 + 1e-9
    assert curve.noise.min() > 1e5
    assert plan(literal).num_rounds == 2000
