"""Verdicts on constructed results with a known answer."""

from pathlib import Path

import numpy as np
import pytest
from small_worlds import small_scenario

from airdistill.reproduce.claims import accuracy_claims, noise_claims, seconds_to
from airdistill.reproduce.noise_curves import NoiseCurve
from airdistill.reproduce.recipes import SAME_TERMS_FD, SAME_TERMS_FL
from airdistill.runs.comparison import Arm, Comparison, ComparisonRecord, Task
from airdistill.runs.options import RunOptions
from airdistill.runs.record import RunRecord

EPSILON = np.array([0.1, 1.0, 10.0])
LABELS = [
    "ota_fd", "ota_fd_fixed", "ota_fl", "ota_fl_fixed", "ota_fl_same_link", "ota_fl_fixed_same_link",
    "orthogonal_fd_fixed", "own_noise_fixed", "airdistill_fixed",
]  # fmt: skip


def curve(label, noise, gradient=1.0):
    noise = np.array(noise, dtype=float)
    return NoiseCurve(label, EPSILON, np.ones(3), noise, gradient * noise, np.ones(3), np.ones(3))


def verdicts(**noise):
    curves = {label: curve(label, [1, 1, 1], 10 if "fd" in label else 1) for label in LABELS}
    curves |= {label: curve(label, values, 10 if "fd" in label else 1) for label, values in noise.items()}
    return noise_claims(curves)


def test_a_claim_about_every_epsilon_needs_all_of_them():
    claims = verdicts(ota_fl=[5, 4, 3], ota_fl_fixed=[2, 2, 2])
    assert claims[0].verdict == "holds"
    assert claims[0].numbers.startswith("T optimised: larger at 3 of 3 values of ε; FL over FD 3 to 5")
    assert claims[1].verdict == "does not hold"  # ten times as much in units of the gradient
    once = verdicts(ota_fl=[5, 4, 0.5], ota_fl_fixed=[2, 2, 2])[0]
    assert once.verdict == "does not hold"
    assert "larger at 2 of 3 values of ε (ε from 0.1 to 1)" in once.numbers


def test_equal_is_not_lower():
    assert verdicts()[3].verdict == "does not hold"
    assert verdicts(ota_fd_fixed=[2, 2, 2])[3].verdict == "holds"


def run_with(accuracy, rounds=2, seconds=1.0, start=0.1):
    lines = [{"round": t, "accuracy": {"mean": start + (accuracy - start) * t / rounds}} for t in range(1, rounds + 1)]
    summary = {"accuracy": {"mean": accuracy, "worst": accuracy}, "rounds": rounds, "uplink_seconds": seconds}
    return RunRecord(Path("nowhere"), tuple(lines), summary)


@pytest.fixture
def judged(tmp_path):
    scenario = small_scenario(tmp_path)

    def judge(accuracies, seeds=(0, 1, 2), **settings):
        arms = tuple(Arm(label, "local_only", scenario) for label in accuracies)
        runs = {
            Task(label, seed): run_with(values[position], **settings.get(label, {}))
            for label, values in accuracies.items()
            for position, seed in enumerate(seeds)
        }
        record = ComparisonRecord(tmp_path, Comparison("constructed", arms, tuple(seeds), RunOptions()), runs, {})
        return {claim.statement.split(" (")[0]: claim for claim in accuracy_claims(record)}

    return judge


BASE = {
    "ota_fd": [0.90, 0.91, 0.92], "ota_fd_fixed": [0.80, 0.81, 0.82], "fd_error_free": [0.905, 0.915, 0.925],
    "local_only": [0.88, 0.93, 0.91], "ota_fl": [0.5, 0.5, 0.5], "ota_fl_fixed": [0.95, 0.95, 0.95],
    "fedsgd": [0.99, 0.99, 0.99], "orthogonal_fd": [0.7, 0.7, 0.7],
}  # fmt: skip


def test_the_interval_decides(judged):
    found = judged(BASE)
    beats = found["The optimised T beats T = 400 in accuracy"]
    assert beats.verdict == "holds"
    assert beats.numbers == "ota_fd 91.0 %, ota_fd_fixed 81.0 %: +10.0 ± 0.0 points (by seed +10.0, +10.0, +10.0)"
    assert (
        found["The proposed scheme comes within 1 point of error-free distillation at the same round"].verdict
        == "holds"
    )
    assert found["It gains over local training"].verdict == "undecided"
    assert found["It ends above error-free FedSGD"].verdict == "does not hold"
    assert found["It ends above error-free FedSGD"].numbers.endswith("−8.0 ± 2.5 points (by seed −9.0, −8.0, −7.0)")
    assert not any("own link" in statement for statement in found)


def test_one_seed_decides_nothing(judged):
    found = judged({label: values[:1] for label, values in BASE.items()}, seeds=(0,))
    assert found["The optimised T beats T = 400 in accuracy"].verdict == "undecided"


def test_two_points_below_is_not_close(judged):
    found = judged({**BASE, "fd_error_free": [0.92, 0.93, 0.94]})
    name = "The proposed scheme comes within 1 point of error-free distillation at the same round"
    assert found[name].verdict == "does not hold"


def test_claims_on_exchanged_terms(judged):
    found = judged({**BASE, SAME_TERMS_FL: [0.3] * 3, SAME_TERMS_FD: [0.4] * 3})
    assert found["On distillation's own link, ε and δ it ends above over-the-air federated learning"].verdict == "holds"
    other = "On federated learning's link, ε and δ it ends above over-the-air federated learning"
    assert found[other].verdict == "does not hold"


def test_least_time_counts_rivals_that_never_reach_the_accuracy(judged):
    name = "It reaches its accuracy in the least uplink time, against the federated-learning alternatives"
    slow = {"ota_fl_fixed": {"seconds": 100.0}, "fedsgd": {"seconds": 50.0}}
    found = judged(BASE, **slow)[name]
    assert found.verdict == "holds"
    assert "ota_fl reaches the accuracy in 0 of 3 seeds" in found.numbers
    assert judged(BASE, **{**slow, "fedsgd": {"seconds": 0.5}})[name].verdict == "does not hold"
    # It reaches the accuracy after the second of two rounds, at 1.5 times our time, or possibly after the first.
    assert judged(BASE, **{**slow, "fedsgd": {"seconds": 1.5}})[name].verdict == "undecided"
    alone = {label: values for label, values in BASE.items() if label != "fedsgd"}
    assert judged(alone, **{"ota_fl_fixed": {"seconds": 100.0}})[name].verdict == "undecided"
    one = {label: values[:1] for label, values in BASE.items()}
    assert judged(one, seeds=(0,), **slow)[name].verdict == "undecided"


def test_seconds_to_an_accuracy():
    run = run_with(0.5, rounds=4, seconds=8.0, start=0.1)
    assert seconds_to(run, 0.25) == pytest.approx((2.0, 4.0))  # 0.2 after round 1, 0.3 after round 2
    assert seconds_to(run, 0.15) == pytest.approx((2.0, 2.0))
    assert seconds_to(run, 0.51) == (float("inf"), float("inf"))
