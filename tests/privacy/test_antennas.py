"""Counted noise with several antennas: against exact arithmetic, Monte Carlo and general properties."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_fleets import TRUSTS, random_fleet
from scipy.special import ndtr

from airdistill.planning.transceiver.design import design_round, noise_by_trust
from airdistill.privacy.antennas import ReceivedSignal


def gaussian(rng, *shape):
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def received_round(seed, num_devices, num_antennas, num_rows=2, noise_axes=1, receiver_var=0.3, scale=1.0):
    """A round aligned to a random combiner f, and f: g = λ/(f^H h), P2 = √ν·g with noise shares ν."""
    rng = np.random.default_rng(seed)
    channel = scale * gaussian(rng, num_devices, num_antennas) * rng.uniform(0.3, 3, (num_devices, 1))
    combiner = gaussian(rng, num_antennas)
    combiner /= np.linalg.norm(combiner)
    unit = rng.uniform(0.5, 2, num_rows) / (channel @ combiner.conj())[:, None]
    noise = np.sqrt(rng.uniform(0.1, 2, (num_devices, num_rows))) * unit
    return ReceivedSignal(channel, unit, noise, receiver_var, noise_axes), combiner


def combined(this, combiner, trust):
    """Noise of the server's own estimate Re(f^H Y), in units of the estimate."""
    scalar = this.channel @ combiner.conj()
    scale_sq = np.real(scalar[:, None] * this.unit_gain) ** 2
    noise = np.real(scalar[:, None] * this.noise_gain) ** 2
    if trust == "own_noise":
        return noise / scale_sq
    return (noise.sum(axis=0) + (this.receiver_var if trust == "receiver_noise" else 0.0)) / scale_sq


def exactly(this, row, receiver_var):
    """1/(e^T Σ^{-1} e) in fractions, by Gaussian elimination without rounding."""
    real = [[*(float(x.real) for x in line), *(float(x.imag) for x in line)] for line in this.channel]
    num = this.channel.shape[1]

    def times(line, gain):
        re, im = Fraction(float(gain.real)), Fraction(float(gain.imag))
        parts = [Fraction(x) for x in line]
        return [re * parts[n] - im * parts[num + n] for n in range(num)] + [
            re * parts[num + n] + im * parts[n] for n in range(num)
        ]

    lines = [times(line, gain) for line, gain in zip(real, this.noise_gain[:, row], strict=True)]
    if this.noise_axes == 2:
        lines += [[-x for x in line[num:]] + line[:num] for line in lines]
    size = 2 * num
    sigma = [[sum(line[a] * line[b] for line in lines) for b in range(size)] for a in range(size)]
    for a in range(size):
        sigma[a][a] += Fraction(receiver_var)
    found = []
    for line, gain in zip(real, this.unit_gain[:, row], strict=True):
        shift = times(line, gain)
        found.append(1 / float(sum(x * y for x, y in zip(shift, solve(sigma, shift), strict=True))))
    return np.array(found)


def solve(matrix, right):
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for place in range(len(rows)):
        pivot = next(row for row in range(place, len(rows)) if rows[row][place] != 0)
        rows[place], rows[pivot] = rows[pivot], rows[place]
        rows[place] = [value / rows[place][place] for value in rows[place]]
        for other in range(len(rows)):
            if other != place and rows[other][place] != 0:
                factor = rows[other][place]
                rows[other] = [value - factor * top for value, top in zip(rows[other], rows[place], strict=True)]
    return [row[-1] for row in rows]


@pytest.mark.parametrize(("noise_axes", "num_devices"), [(1, 2), (1, 6), (2, 3), (2, 4)])
def test_against_exact_arithmetic(noise_axes, num_devices):
    aligned, _ = received_round(1, num_devices, 2, noise_axes=noise_axes)
    # Random phases, because aligned noise leaves Im(f^H Y) without noise and makes Σ singular.
    turns = np.exp(2j * np.pi * np.random.default_rng(0).random((num_devices, 1)))
    this = replace(aligned, unit_gain=aligned.unit_gain * turns, noise_gain=aligned.noise_gain * turns)
    counted = this.counted_by_trust()
    assert counted["receiver_noise"][:, 1] == pytest.approx(exactly(this, 1, 0.3), rel=1e-9)
    if num_devices * noise_axes >= 4:
        assert counted["fleet_noise"][:, 1] == pytest.approx(exactly(this, 1, 0.0), rel=1e-9)


def test_circular_noise_agrees_with_the_complex_formula():
    """Section 9: λ²(h^H R^{-1} h)/|f^H h|², R = σ²I + Σ|P2|²hh^H per axis, if noise has both axes."""
    this, _ = received_round(2, 7, 3, noise_axes=2)
    power = np.abs(this.noise_gain[:, 0]) ** 2
    covariance = 0.3 * np.eye(3) + (this.channel.T * power) @ this.channel.conj()
    price = np.einsum("in,nm,im->i", this.channel.conj(), np.linalg.inv(covariance), this.channel).real
    expected = 1 / (np.abs(this.unit_gain[:, 0]) ** 2 * price)
    assert this.counted_by_trust()["receiver_noise"][:, 0] == pytest.approx(expected, rel=1e-10)


def test_the_likelihood_ratio_attack_measures_the_counted_noise():
    """Y of both neighbours is drawn from the signal model itself."""
    this, _ = received_round(3, 5, 2, num_rows=1)
    rng = np.random.default_rng(0)
    device, shift, num = 1, 0.9, 200_000
    noise = this.channel.T @ (this.noise_gain * rng.standard_normal((5, num)))
    noise += np.sqrt(this.receiver_var) * gaussian(rng, 2, num)
    drawn = np.concatenate([noise.real, noise.imag])
    moved = this.channel[device] * this.unit_gain[device, 0] * shift
    moved = np.concatenate([moved.real, moved.imag])
    # The direction of the best test comes from an empirical covariance, independently of the tested code.
    attack = np.linalg.solve(np.cov(drawn), moved)
    ratio = (attack @ moved) / np.sqrt((attack @ drawn).var())
    mu = shift / np.sqrt(this.counted_by_trust()["receiver_noise"][device, 0])
    assert ratio == pytest.approx(mu, rel=0.01)
    auc = np.mean(attack @ drawn[:, ::2] < attack @ (drawn[:, 1::2] + moved[:, None]))
    assert auc == pytest.approx(ndtr(mu / np.sqrt(2)), abs=4 * np.sqrt(0.25 / (num / 2)))


@given(
    seed=st.integers(0, 10**6),
    num_devices=st.integers(1, 9),
    num_antennas=st.integers(1, 5),
    noise_axes=st.sampled_from([1, 2]),
)
@settings(max_examples=60, deadline=None)
def test_general_properties(seed, num_devices, num_antennas, noise_axes):
    this, combiner = received_round(seed, num_devices, num_antennas, noise_axes=noise_axes)
    counted = this.counted_by_trust()
    for trust in TRUSTS:
        # The combiner is one of the attacks: the whole vector is never better protected than its scalar.
        assert (counted[trust] <= combined(this, combiner, trust) * (1 + 1e-9)).all()
    assert (counted["own_noise"] <= counted["fleet_noise"]).all()
    assert (counted["fleet_noise"] <= counted["receiver_noise"] * (1 + 1e-9)).all()
    # No combiner separates a device's own noise from its signal.
    assert counted["own_noise"] == pytest.approx(combined(this, combiner, "own_noise"), rel=1e-9)
    if num_antennas > 1:
        # A server that uses fewer antennas learns less.
        fewer = ReceivedSignal(this.channel[:, :-1], this.unit_gain, this.noise_gain, this.receiver_var, noise_axes)
        for trust, with_fewer in fewer.counted_by_trust().items():
            assert (counted[trust] <= with_fewer * (1 + 1e-9)).all()


@pytest.mark.parametrize(
    ("num_devices", "noise_axes", "protected"), [(5, 1, False), (6, 1, True), (3, 2, False), (4, 2, True)]
)
def test_three_antennas_null_four_others_on_one_axis_and_two_on_both(num_devices, noise_axes, protected):
    counted = received_round(4, num_devices, 3, noise_axes=noise_axes)[0].counted_by_trust()
    alone = np.isclose(counted["fleet_noise"], counted["own_noise"], rtol=1e-6)
    assert alone.all() != protected
    assert alone.all() or not alone.any()


def test_a_device_without_own_noise_is_unprotected_if_the_noise_of_others_can_be_nulled():
    this, _ = received_round(5, 3, 2)
    without_one = this.noise_gain.copy()
    without_one[1] = 0.0
    counted = ReceivedSignal(this.channel, this.unit_gain, without_one, this.receiver_var).counted_by_trust()
    assert (counted["fleet_noise"][1] == 0).all()
    assert (counted["fleet_noise"][[0, 2]] > 0).all()
    assert (counted["receiver_noise"][1] > 0).all()


def test_devices_in_one_direction_protect_each_other_for_any_number_of_antennas():
    """Channels that differ only by a factor, as without fading: all noise lies in the direction of all signals."""
    this, combiner = received_round(6, 4, 1)
    steering = np.exp(1j * np.arange(5))
    wide = ReceivedSignal(this.channel * steering, this.unit_gain, this.noise_gain, this.receiver_var)
    assert wide.counted_by_trust()["fleet_noise"] == pytest.approx(combined(this, combiner, "fleet_noise"), rel=1e-6)


def test_receiver_noise_alone_counts_by_the_combined_part_of_a_channel():
    """c = σ²|f^H h|²/(λ²‖h‖²), section 9."""
    this, combiner = received_round(7, 4, 3, num_rows=1)
    without_noise = ReceivedSignal(this.channel, this.unit_gain, np.zeros_like(this.noise_gain), this.receiver_var)
    combined_part = np.abs(this.channel @ combiner.conj()) ** 2 / (np.abs(this.channel) ** 2).sum(axis=1)
    expected = combined(without_noise, combiner, "receiver_noise")[:, 0] * combined_part
    assert without_noise.counted_by_trust()["receiver_noise"][:, 0] == pytest.approx(expected, rel=1e-9)


def test_receiver_noise_on_the_real_axis_alone_protects_nothing_from_several_antennas():
    this, _ = received_round(8, 3, 2)
    one_axis = ReceivedSignal(
        this.channel, this.unit_gain, 0 * this.noise_gain, this.receiver_var, receiver_on_both_axes=False
    )
    assert (one_axis.counted_by_trust()["receiver_noise"] == 0).all()


def test_noise_on_another_axis_than_the_signal_is_not_counted():
    this, _ = received_round(9, 3, 2)
    turned = ReceivedSignal(this.channel, this.unit_gain, 1j * this.noise_gain, this.receiver_var)
    assert (turned.counted_by_trust()["own_noise"] == 0).all()
    both = ReceivedSignal(this.channel, this.unit_gain, 1j * this.noise_gain, this.receiver_var, noise_axes=2)
    assert (both.counted_by_trust()["own_noise"] > 0).all()


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1e5])
def test_units_do_not_matter(scale):
    one, other = (received_round(10, 6, 2, scale=size)[0].counted_by_trust() for size in (1.0, scale))
    for trust in TRUSTS:
        assert one[trust] == pytest.approx(other[trust], rel=1e-9)


@pytest.mark.parametrize("trust", TRUSTS)
def test_one_antenna_agrees_with_the_scalar_formula(trust):
    """Up to rounding; with one antenna the uplink uses the scalar formula itself."""
    for seed in range(30):
        fleet = random_fleet(seed)
        made = design_round(
            fleet.class_counts, fleet.channel, fleet.peak_power_w, fleet.channel_noise_var, fleet.required, trust
        )
        held = made.weights > 0
        gain = np.divide(
            made.signal_gain * np.sqrt(held.shape[1]), made.weights, out=np.zeros(held.shape, complex), where=held
        )
        this = ReceivedSignal(fleet.channel[:, None], gain, made.noise_gain, fleet.channel_noise_var)
        expected = noise_by_trust(made, fleet.channel, fleet.channel_noise_var, "fleet_noise")
        for name, counted in this.counted_by_trust().items():
            finite = held & (made.rx_scale > 0)
            assert counted[finite] == pytest.approx(np.asarray(expected[name])[finite], rel=1e-9)


def test_a_row_that_is_not_sent_costs_nothing():
    this, _ = received_round(11, 3, 2)
    unit = this.unit_gain.copy()
    unit[:, 0] = 0.0
    unit[2, 1] = 0.0
    counted = ReceivedSignal(this.channel, unit, this.noise_gain, this.receiver_var).counted_by_trust()
    for trust in TRUSTS:
        assert np.isinf(counted[trust][:, 0]).all()
        assert np.isinf(counted[trust][2, 1])
        assert np.isfinite(counted[trust][:2, 1]).all()


def test_counting_the_combined_scalar_alone_would_understate_mu():
    """The reason for section 9: noise that is enough for r̂ is not enough for Y."""
    this, combiner = received_round(12, 4, 4, num_rows=1)
    of_scalar = 1 / np.sqrt(combined(this, combiner, "fleet_noise"))
    of_antennas = 1 / np.sqrt(this.counted_by_trust()["fleet_noise"])
    assert (of_antennas > 1.2 * of_scalar).all()
