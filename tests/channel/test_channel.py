import numpy as np
import pytest

from airdistill.channel import channel_source, draw_fading, path_gain
from airdistill.errors import AirDistillError
from airdistill.scenario import load

NUM = 200_000


def test_path_loss_by_hand():
    # 3e8/(4π·915e6·100) = 2.6091e-4, cubed.
    assert path_gain(np.array([100.0]), 915e6, 3)[0] == pytest.approx(1.77613e-11, rel=1e-5)
    # Five times the distance gives 125 times the loss.
    assert path_gain(np.array([500.0]), 915e6, 3)[0] == pytest.approx(1.77613e-11 / 125, rel=1e-5)
    assert path_gain(np.array([100.0]), 915e6, 2)[0] == pytest.approx(6.80741e-8, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "mean_fourth"), [("rayleigh", 2.0), ("real_gaussian", 3.0), ("none", 1.0), ("rician", 1.36)]
)
def test_fading_has_unit_power_and_the_fourth_moment_of_its_distribution(kind, mean_fourth):
    # E|h|⁴: 2 complex Gaussian, 3 real Gaussian; Rician with K = 4 (6.0206 dB): 2 − (K/(K+1))² = 1.36.
    power = np.abs(draw_fading(kind, NUM, np.random.default_rng(0), rician_k_db=6.0206)) ** 2
    error = power.std() / np.sqrt(NUM)
    assert abs(power.mean() - 1) <= 5 * error
    assert abs((power**2).mean() - mean_fourth) <= 5 * (power**2).std() / np.sqrt(NUM) + 1e-4


def test_rayleigh_fading_is_circularly_symmetric():
    fading = draw_fading("rayleigh", NUM, np.random.default_rng(0))
    assert abs((fading**2).mean()) < 5 / np.sqrt(NUM) * np.sqrt(2)
    assert fading.real.var() == pytest.approx(0.5, abs=0.01)


def test_path_loss_is_a_power_gain():
    scenario = load("paper", ["radio.distance=200 m", "radio.fading=none"])
    gains = channel_source(scenario).round_channel(1)
    assert np.abs(gains) ** 2 == pytest.approx(np.full(50, path_gain(np.array([200.0]), 915e6, 3)[0]))


def test_rounds_are_reproducible_and_independent_of_the_planners_draws():
    source = channel_source(load("paper"))
    assert np.array_equal(source.round_channel(3), source.round_channel(3))
    assert not np.array_equal(source.round_channel(3), source.round_channel(4))
    planned = source.planning_channels(20)
    assert planned.shape == (20, 50)
    drawn = np.stack([source.round_channel(round_index) for round_index in range(3000)])
    assert not np.isin(drawn, planned).any()


def test_path_loss_is_constant_over_rounds():
    source = channel_source(load("paper"))
    power = np.mean([np.abs(source.round_channel(t)) ** 2 for t in range(1, 4001)], axis=0)
    assert power / source.path_gain == pytest.approx(np.ones(50), abs=5 / np.sqrt(4000))


def test_fixed_gains_apply_to_every_round():
    source = channel_source(load("paper", ["fleet.devices=2", "radio.gains=[[1, 2], [0, -3]]"]))
    assert source.round_channel(1).tolist() == [1 + 2j, -3j]
    assert source.round_channel(99).tolist() == [1 + 2j, -3j]
    assert source.planning_channels(200).tolist() == [[1 + 2j, -3j]]


@pytest.mark.parametrize("form", ["npz", "csv"])
def test_a_trace_is_repeated_cyclically(tmp_path, form):
    gains = np.array([[1 + 1j, 2], [3, 4 - 2j], [5, 6]])
    path = tmp_path / f"trace.{form}"
    if form == "npz":
        np.savez(path, channel=gains, other=np.ones(2))
    else:
        path.write_text("\n".join(",".join(str(gain).strip("()") for gain in row) for row in gains))
    source = channel_source(load("paper", ["fleet.devices=2", f"radio.trace={path}"]))
    assert np.array_equal(source.round_channel(1), gains[0])
    assert np.array_equal(source.round_channel(3), gains[2])
    assert np.array_equal(source.round_channel(4), gains[0])
    assert np.array_equal(source.planning_channels(200), gains)
    assert len(source.planning_channels(2)) == 2


@pytest.mark.parametrize(
    ("name", "content", "rule"),
    [
        ("missing.npz", None, "no such file"),
        ("trace.txt", b"1,2", "must be an .npz or a .csv"),
        ("trace.csv", b"1,2,3\n4,5,6\n", "rounds × 2 devices"),
        ("trace.csv", b"1,x\n", "cannot be read"),
        ("trace.csv", b"1,nan\n", "finite"),
        ("trace.npz", b"PK", r"is not a .npz file; write it with numpy.savez\(file, channel=gains\)"),
        ("trace.csv", b"", "rounds × 2 devices"),
        ("trace.csv", b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_an_invalid_trace_is_rejected(tmp_path, name, content, rule):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AirDistillError, match=rule):
        channel_source(load("paper", ["fleet.devices=2", f"radio.trace={path}"]))
