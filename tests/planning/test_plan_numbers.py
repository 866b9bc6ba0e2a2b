"""Every number of a plan, computed again with plain loops for a small fleet of unequal devices."""

import itertools
import math

import numpy as np
import pytest

import airdistill as ad
from airdistill.planning.plan import plan
from airdistill.privacy.gaussian import gaussian_epsilon, gaussian_mu

COUNTS = np.array([[10, 30, 4], [25, 0, 5], [6, 8, 40]])
EPSILON, DELTA = np.array([2.0, 9.0, 4.0]), np.array([1e-5, 1e-6, 1e-4])
POWER = np.array([1e-3, 2e-3, 5e-4])
# Six recorded rounds, one of them poor enough to fall into the outage.
GAINS = 1e-6 * np.array(
    [[1, 2j, 3], [0.5, 1, 1 + 1j], [2, -1j, 0.4], [0.05, 2, 2], [1, 1, 1], [3, 0.9, 2 - 1j]], dtype=complex
)
NOISE_W, SLOT, ROUNDS, OUTAGE, LARGEST = 3e-15, 2e-6, 7, 0.2, 60
LEARNING = {"gamma": 0.8, "lr": 0.03, "L1": 9.0, "L2": 1.3, "S": 2.0, "f": 1.7, "epochs": 2, "batch": 7}
WEIGHTS = COUNTS / COUNTS.sum(axis=0)


@pytest.fixture
def planned(tmp_path):
    np.savez(tmp_path / "trace.npz", channel=GAINS)

    def planned_for(model, trust, relabel, axis):
        def listed(values):
            return "{values = [" + ", ".join(map(str, values)) + "]}"

        return plan(
            ad.load(
                "quick",
                [
                    "fleet.devices=3", f"data.class_counts={COUNTS.tolist()}", f"radio.trace={tmp_path / 'trace.npz'}",
                    f"privacy.epsilon={listed(EPSILON)}", f"privacy.delta={listed(DELTA)}",
                    f"radio.peak_power={listed(POWER)}", f"radio.noise_power={NOISE_W}", f"radio.noise={axis}",
                    f"radio.slot={SLOT}", f"radio.outage={OUTAGE}", f"privacy.sensitivity={model}",
                    f"privacy.trust={trust}", f"privacy.relabel={str(relabel).lower()}", f"learning.rounds={ROUNDS}",
                    f"learning.max_rounds={LARGEST}", f"learning.distill_weight={LEARNING['gamma']}",
                    f"learning.initial_lr={LEARNING['lr']}", f"learning.local_epochs={LEARNING['epochs']}",
                    f"learning.batch_size={LEARNING['batch']}", f"constants.grad_lipschitz={LEARNING['L1']}",
                    f"constants.model_lipschitz={LEARNING['L2']}", f"constants.grad_norm_bound={LEARNING['S']}",
                    f"constants.loss_bound={LEARNING['f']}",
                ],
            )
        )  # fmt: skip

    return planned_for


def drift(samples, num_rounds):
    """D_t of one device: the record is in the first batch of every epoch, or in a smaller last one if that is worse."""
    value, history, batch = 0.0, [], LEARNING["batch"]
    num_steps = math.ceil(samples / batch)
    for t in range(1, num_rounds + 1):
        history.append(value)
        lr = LEARNING["lr"] / math.sqrt(t)
        growth = 1 + lr * LEARNING["L1"]
        for _ in range(LEARNING["epochs"]):
            first = growth ** (num_steps - 1) * 2 * lr * LEARNING["S"] / batch
            last = 2 * lr * LEARNING["S"] / (samples - (num_steps - 1) * batch)
            value = growth**num_steps * value + max(first, last)
    return history


def squared_shifts(model, num_rounds):
    """Σ_t (w s)², `[device, class]`."""
    total = np.zeros(COUNTS.shape)
    for i, k in itertools.product(range(3), range(3)):
        if COUNTS[i, k] == 0:
            continue
        root2, history = math.sqrt(2), drift(COUNTS[i].sum(), num_rounds)
        for t in range(num_rounds):
            s = {
                "paper": root2 / COUNTS[i].sum(),
                "class_mean": root2 / COUNTS[i, k],
                "device": root2,
                "trajectory": min(root2, root2 / COUNTS[i, k] + LEARNING["L2"] * history[t]),
            }[model]
            total[i, k] += (WEIGHTS[i, k] * s) ** 2
    return total


def moved_classes(model, relabel):
    if model in ("device", "trajectory"):
        return np.count_nonzero(COUNTS, axis=1)
    return np.full(3, 2 if relabel else 1)


def required(model, relabel, num_rounds):
    mu = gaussian_mu(EPSILON, DELTA)
    return squared_shifts(model, num_rounds) * (moved_classes(model, relabel) / mu**2)[:, None]


def design(channel, needed, trust, noise_var):
    """v `[class]`, power of signal and of noise `[device, class]`, counted noise `[device, class]`."""
    link = np.abs(channel) ** 2 * POWER
    v, counted = np.zeros(3), np.zeros((3, 3))
    signal, noise = np.zeros((3, 3)), np.zeros((3, 3))
    for k in range(3):
        holders, w = WEIGHTS[:, k] > 0, WEIGHTS[:, k]
        cap, req = (3 * link[holders] / w[holders] ** 2).min(), needed[:, k].max()
        if trust == "receiver_noise":
            scale = min(cap, noise_var / req)
            arriving = np.zeros(3)
        elif trust == "fleet_noise":
            scale = min(cap, link.sum() / (req + (w**2).sum() / 3))
            spare = link - scale * w**2 / 3
            arriving = req * scale * spare / spare.sum()
        else:
            scale = (3 * link[holders] / (w**2 + 3 * needed[:, k])[holders]).min()
            arriving = needed[:, k] * scale
        v[k] = (arriving.sum() + noise_var) / scale
        signal[:, k], noise[:, k] = scale * w**2 / (3 * np.abs(channel) ** 2), arriving / np.abs(channel) ** 2
        counted[:, k] = {
            "receiver_noise": np.full(3, v[k]),
            "fleet_noise": np.full(3, arriving.sum() / scale),
            "own_noise": arriving / scale,
        }[trust]
    return v, signal, noise, counted


def fleet_error(v):
    """Mean over devices of Φ2_i = K Σ_k (B_i^k/B_i) v_k."""
    return np.mean([3 * sum(COUNTS[i, k] / COUNTS[i].sum() * v[k] for k in range(3)) for i in range(3)])


def below(values):
    return [value for value in values if value <= np.quantile(values, 1 - OUTAGE)]


def gap(mean_error, num_rounds, scale=1.0):
    a2 = 6 * LEARNING["lr"] * LEARNING["gamma"] ** 2 * (scale * LEARNING["L2"]) ** 2 * scale * LEARNING["L1"]
    return 3 * (3 * LEARNING["f"] / LEARNING["lr"] + a2 * mean_error) / math.sqrt(num_rounds)


def best_rounds(model, trust, relabel, noise_var, scale=1.0):
    gaps = []
    for num_rounds in range(1, LARGEST + 1):
        needed = required(model, relabel, num_rounds)
        errors = [fleet_error(design(channel, needed, trust, noise_var)[0]) for channel in GAINS]
        gaps.append(gap(np.mean(below(errors)), num_rounds, scale))
    return int(np.argmin(gaps)) + 1


CASES = [
    ("class_mean", "receiver_noise", True, "complex"),
    ("device", "fleet_noise", False, "real"),
    ("paper", "own_noise", True, "real"),
    ("trajectory", "fleet_noise", False, "complex"),
    ("class_mean", "own_noise", False, "complex"),
]


@pytest.mark.parametrize(("model", "trust", "relabel", "axis"), CASES)
def test_every_number_of_a_plan(planned, model, trust, relabel, axis):
    written = planned(model, trust, relabel, axis).to_dict()
    noise_var = NOISE_W * (0.5 if axis == "complex" else 1.0)
    needed = required(model, relabel, ROUNDS)
    rounds = [design(channel, needed, trust, noise_var) for channel in GAINS]
    errors = [fleet_error(v) for v, *_ in rounds]
    assert written["required_noise_var"] == pytest.approx(needed.max(axis=0).tolist())
    assert written["effective_noise_var"] == pytest.approx(np.median([v for v, *_ in rounds], axis=0).tolist())
    assert len(below(errors)) < len(errors)
    assert written["effective_noise"] == pytest.approx(np.mean(below(errors)))
    assert written["convergence_gap"] == pytest.approx(gap(np.mean(below(errors)), ROUNDS))
    assert written["uplink_seconds"] == pytest.approx(ROUNDS * 9 * SLOT)
    joules = [SLOT * 3 * (signal + noise).sum() for _, signal, noise, _ in rounds]
    assert written["uplink_joules"] == pytest.approx(ROUNDS * np.mean(joules))
    forecast = written["forecast"]
    assert forecast["num_draws"] == 6
    assert forecast["effective_noise_median"] == pytest.approx(np.median(errors))
    assert forecast["effective_noise_quantile"] == pytest.approx(max(below(errors)))
    left_out = sum(errors) - sum(below(errors))
    assert forecast["outage_noise_share"] == pytest.approx(left_out / sum(errors))
    for position, name in ((1, "signal_power_w"), (2, "noise_power_w")):
        expected = np.mean([part[position] for part in rounds], axis=0).mean(axis=1)
        assert forecast[name] == pytest.approx(expected.tolist())
    worst = np.median([(np.abs(channel) ** 2 * POWER).min() for channel in GAINS])
    assert forecast["worst_snr_db"] == pytest.approx(10 * math.log10(worst / noise_var))
    floors = np.array(
        [
            [noise_var * max(WEIGHTS[i, k] ** 2 / (3 * abs(c[i]) ** 2 * POWER[i]) for i in range(3)) for k in range(3)]
            for c in GAINS
        ]
    )
    binds = np.mean(needed.max(axis=0) > floors)
    assert forecast["privacy_binds_share"] == pytest.approx(binds)
    assert written["regime"] == ("privacy" if binds >= 0.99 else "channel" if binds <= 0.01 else "mixed")
    assert forecast["channel_snr_db"] == pytest.approx(-10 * math.log10(3 * np.median(floors, axis=0).max()))


@pytest.mark.parametrize(("model", "trust", "relabel", "axis"), CASES)
def test_the_final_epsilon_of_every_device(planned, model, trust, relabel, axis):
    written = planned(model, trust, relabel, axis).to_dict()
    noise_var = NOISE_W * (0.5 if axis == "complex" else 1.0)
    needed = required(model, relabel, ROUNDS)
    counted = np.array([design(channel, needed, trust, noise_var)[3] for channel in GAINS])
    with np.errstate(divide="ignore"):
        inverse = (1 / counted).mean(axis=0)
    for i, device in enumerate(written["privacy"]["devices"]):
        assert (device["epsilon"], device["delta"]) == (EPSILON[i], DELTA[i])
        assert device["mu"] == pytest.approx(gaussian_mu(EPSILON[i], DELTA[i]))
        for other in ("paper", "class_mean", "trajectory", "device"):
            shifts = squared_shifts(other, ROUNDS)[i]
            cost = sorted(shifts[k] * inverse[i, k] for k in range(3) if shifts[k] > 0)
            joint = other in ("trajectory", "device")
            spent = sum(cost) if joint else sum(cost[-2:]) if relabel else cost[-1]
            expected = gaussian_epsilon(math.sqrt(spent), DELTA[i])
            assert device["epsilon_at_end"][other] == pytest.approx(expected)


@pytest.mark.parametrize(("model", "trust", "relabel", "axis"), CASES)
def test_rounds_under_every_rule(planned, model, trust, relabel, axis):
    written = planned(model, trust, relabel, axis).to_dict()["rounds"]
    noise_var = NOISE_W * (0.5 if axis == "complex" else 1.0)
    assert written["chosen"] == ROUNDS
    assert written["largest"] == LARGEST
    assert written["exact"] == best_rounds(model, trust, relabel, noise_var)
    assert written["exact_smaller_constants"] == best_rounds(model, trust, relabel, noise_var, 0.1)
    stringency = np.log(1 / DELTA) / (COUNTS.sum(axis=1) * EPSILON) ** 2
    strictest = (stringency * (WEIGHTS**2).sum(axis=1)).max()
    factor = 24 * LEARNING["lr"] ** 2 * LEARNING["gamma"] ** 2 * LEARNING["L2"] ** 2 * LEARNING["L1"]
    assert written["paper"] == max(1, math.floor(3 * LEARNING["f"] / (factor * strictest) + 0.5))


def test_the_papers_rounds_are_limited_by_max_rounds():
    changes = ["learning.rounds=paper", "learning.max_rounds=123"]
    assert plan(ad.load("quick", changes)).num_rounds == 123


@pytest.mark.parametrize(("share", "regime"), [(0.5, "mixed"), (1.0, "privacy"), (0.0, "channel")])
def test_the_regime_is_pure_only_above_99_percent(tmp_path, share, regime):
    """Privacy limits this share of 200 rounds; the others have a hopeless channel."""
    gains = np.where(np.arange(200)[:, None] < 200 * share, 1.0, 1e-9) * np.ones((1, 2))
    np.savez(tmp_path / "trace.npz", channel=gains)
    changes = ["fleet.devices=2", "data.class_counts=[[5, 5], [5, 5]]", f"radio.trace={tmp_path / 'trace.npz'}"]
    assert plan(ad.load("quick", changes)).forecast.regime == regime
    for off, expected in ((1, "privacy"), (3, "mixed")):
        gains = np.where(np.arange(200)[:, None] < 200 - off, 1.0, 1e-9) * np.ones((1, 2))
        np.savez(tmp_path / "trace.npz", channel=gains)
        assert plan(ad.load("quick", changes)).forecast.regime == expected
