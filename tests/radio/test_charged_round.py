"""The charged round: it transmits once, refuses vectors beyond the planned bounds, and follows the equations."""

import copy
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from audit_contexts import planned

from airdistill.channel.sources import channel_source
from airdistill.errors import AirDistillError
from airdistill.privacy.ledger import BudgetExceeded, Ledger
from airdistill.privacy.sensitivity import aggregation_weights
from airdistill.radio import charged_round, discrete_noise, sum_grid
from airdistill.radio.charged_round import charge_round
from airdistill.radio.superposition import Permission, RoundNoise, over_the_air
from airdistill.runs.accounts import ledger_header
from airdistill.streams import noise_seed, stream

TRUSTS = ["receiver_noise", "fleet_noise", "own_noise"]
PUBLIC = ("public.samples=4", "learning.local_epochs=1", "public.answers_per_device=3")
PAYLOADS = {"class means": ("ota_fd",), "public predictions": ("ota_proxy_fd", *PUBLIC), "gradient": ("ota_fl",)}
UPLINKS = {**PAYLOADS, "TDMA": ("orthogonal_fd",), "antennas": ("ota_fd", "radio.antennas=3")}
SHARDS = ("data.partition=shards", "data.classes_per_device=2")
SLOT = 3.6e-6


class Setting:
    """A plan with an empty ledger in memory and its channels."""

    def __init__(self, folder, scheme, *changes, mu_factor=1.0):
        self.plan, _ = planned(folder, scheme, *changes)
        header = ledger_header(self.plan, scheme, "private")
        self.ledger = Ledger(replace(header, mu=header.mu * mu_factor))
        self.source = channel_source(self.plan.scenario)

    def charge(self, round_index=1, **how):
        return charge_round(self.plan, self.ledger, self.source, round_index, **how)

    def vectors(self, norm=None):
        """Vectors `[device, row, entry]` without negative entries, of the largest norm unless another is given."""
        payload = self.plan.uplink.payload
        shape = (self.plan.fleet.num_devices, payload.num_rows, payload.vector_length)
        drawn = np.random.default_rng(5).random(shape)
        norm = payload.largest_norm if norm is None else norm
        return norm * drawn / np.linalg.norm(drawn, axis=2, keepdims=True)


def charged_again(charged):
    """The same round with a charge of its own, as every device of a federation has one."""
    permission = Permission(charged.index)
    parts = {name: getattr(charged, name) for name in ("noise", "sum_grid")}
    own = {name: replace(part, permission=permission) for name, part in parts.items() if part is not None}
    return replace(charged, permission=permission, **own)


def in_one_call(charged, vectors):
    charged.transmit(vectors)


def by_signal(charged, vectors):
    for device, own in enumerate(vectors):
        charged_again(charged).signal_of(device, own)


def by_emulated_sender(charged, vectors):
    pytest.importorskip("flwr")
    from airdistill.flower.senders import EmulatedSender

    for device, own in enumerate(vectors):
        EmulatedSender(device).begin(charged_again(charged), own)


def by_secure_sum(charged, vectors):
    for device, own in enumerate(vectors):
        charged_again(charged).sum_values(device, own)


WAYS = [in_one_call, by_signal, by_emulated_sender, by_secure_sum]


def charged_for(way, folder, scheme, *changes):
    """A charged round for this way to transmit, and vectors of the largest norm."""
    if way is by_secure_sum:
        changes = (*changes, "air.medium=secure_sum", "fleet.expected_dropouts=0")
    setting = Setting(folder, scheme, *changes)
    return setting.charge(secure_sum=way is by_secure_sum), setting.vectors()


# One transmission


@pytest.mark.parametrize("case", UPLINKS.values(), ids=UPLINKS)
def test_a_charged_round_transmits_once(tmp_path, case):
    setting = Setting(tmp_path, *case)
    charged, vectors = setting.charge(), setting.vectors()
    spent = setting.ledger.squared_mu()
    first = charged.transmit(vectors).received
    assert np.isfinite(first).all()
    for again in (lambda: charged.transmit(vectors), lambda: charged.signal_of(0, vectors[0])):
        with pytest.raises(AirDistillError, match="round 1 was transmitted already: its noise protects one"):
            again()
    assert setting.ledger.num_releases == 1
    assert np.array_equal(setting.ledger.squared_mu(), spent)


def test_a_device_submits_to_a_secure_sum_once(tmp_path):
    charged, vectors = charged_for(by_secure_sum, tmp_path, "ota_fd")
    charged.sum_values(0, vectors[0])
    with pytest.raises(AirDistillError, match="round 1 was transmitted already"):
        charged.sum_values(1, vectors[1])


def test_refused_vectors_are_not_a_transmission(tmp_path):
    """The noise has protected nothing yet, and so the round can be sent with vectors that keep the bound."""
    setting = Setting(tmp_path, "ota_fd")
    charged, vectors = setting.charge(), setting.vectors()
    with pytest.raises(AirDistillError, match="would send a vector of norm"):
        charged.transmit(2 * vectors)
    assert np.isfinite(charged.transmit(vectors).received).all()
    assert setting.ledger.num_releases == 1


# Vectors that keep the bound


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", PAYLOADS.values(), ids=PAYLOADS)
def test_ten_times_the_norm_is_refused(tmp_path, case, way):
    charged, vectors = charged_for(way, tmp_path, *case)
    way(charged, vectors)  # the largest norm itself is allowed
    bound = charged.plan.uplink.largest_norm
    too_long = vectors.copy()
    too_long[1] *= 10
    named = f"round 1: device 1 would send a vector of norm {10 * bound:.6g}; the round was planned for {bound:.6g} at"
    with pytest.raises(AirDistillError, match=re.escape(named)):
        way(charged_again(charged), too_long)


@pytest.mark.parametrize("factor", [1 + 2e-4, 1.5])
@pytest.mark.parametrize("case", UPLINKS.values(), ids=UPLINKS)
def test_norms_are_checked_up_to_single_precision(tmp_path, case, factor):
    setting = Setting(tmp_path, *case)
    bound = setting.plan.uplink.largest_norm
    with pytest.raises(AirDistillError, match="would send a vector of norm"):
        setting.charge().transmit(setting.vectors(factor * bound))
    assert np.isfinite(setting.charge(2).transmit(setting.vectors((1 + 1e-6) * bound)).received).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PAYLOADS)
def test_a_negative_entry_is_refused_if_the_guarantee_forbids_it(tmp_path, name, way):
    charged, vectors = charged_for(way, tmp_path, *PAYLOADS[name])
    vectors[2, 0, 1] *= -1
    if name == "gradient":
        way(charged, vectors)
        return
    rule = f"device 2 would send a negative entry; the guarantee for {name} holds for vectors without negative entries"
    with pytest.raises(AirDistillError, match=rule):
        way(charged, vectors)


@pytest.mark.parametrize("case", UPLINKS.values(), ids=UPLINKS)
def test_a_wrong_shape_is_refused(tmp_path, case):
    setting = Setting(tmp_path, *case)
    charged, vectors = setting.charge(), setting.vectors()
    wrong = [
        vectors[:-1],  # a device less
        np.concatenate([vectors, vectors], axis=1),  # more rows
        vectors[:, :, :-1],  # shorter rows
        vectors[:, 0],  # no row axis
        vectors.reshape(len(vectors), -1, 1) if vectors.shape[2] > 1 else vectors,
    ]
    planned_for = re.escape(f"the round was planned for [device, row, entry] = {list(vectors.shape)}")
    for each in wrong:
        with pytest.raises(AirDistillError, match=planned_for):
            charged.transmit(each)
    with pytest.raises(AirDistillError, match=planned_for):
        charged.signal_of(0, vectors[0, :, :-1])
    assert np.isfinite(charged.transmit(vectors).received).all()


@pytest.mark.parametrize("way", WAYS)
def test_nan_rows_of_classes_that_a_device_lacks_are_allowed_and_sent_nan_is_refused(tmp_path, way):
    charged, vectors = charged_for(way, tmp_path, "ota_fd", *SHARDS)
    lacks = charged.plan.fleet.class_counts == 0
    assert lacks.any()
    vectors[lacks] = np.nan
    way(charged, vectors)
    device, row = np.argwhere(~lacks)[0]
    vectors[device, row, 0] = np.nan
    with pytest.raises(AirDistillError, match=f"device {device} would send a vector of norm nan"):
        way(charged_again(charged), vectors)
    vectors[device, row, 0] = np.inf
    with pytest.raises(AirDistillError, match=f"device {device} would send a vector of norm inf"):
        way(charged_again(charged), vectors)


def test_a_row_that_a_device_does_not_send_does_not_reach_the_server(tmp_path):
    """NaN, a huge number and zeros in a row of weight zero give the same reception."""
    receptions = []
    for filler in (np.nan, 1e9, 0.0):
        setting = Setting(tmp_path, "ota_fd", *SHARDS)
        vectors = setting.vectors()
        vectors[setting.plan.fleet.class_counts == 0] = filler
        receptions.append(setting.charge().transmit(vectors).received)
    assert np.isfinite(receptions[0]).all()
    assert np.array_equal(receptions[0], receptions[1])
    assert np.array_equal(receptions[0], receptions[2])


@pytest.mark.parametrize("way", WAYS)
def test_complex_vectors_are_refused(tmp_path, way):
    """Noise on the real axis does not protect an imaginary part."""
    charged, vectors = charged_for(way, tmp_path, "ota_fl")
    with pytest.raises(AirDistillError, match="vectors must be real"):
        way(charged, 1j * vectors)


# One transmission for each charge


def directly(charged, vectors):
    weights, slot = charged.plan.uplink.weights(charged.index), charged.plan.scenario.radio.slot
    over_the_air(weights, vectors, charged.design, charged.channel, charged.on_air, slot)


COPIES = {
    "the round": lambda charged: charged,
    "replaced": replace,
    "copied": copy.copy,
    "its noise in another round": lambda charged: replace(charged_again(charged), noise=charged.noise),
}


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies_of_a_charged_round_cannot_send_again(tmp_path, copied, secure):
    """With noise that is added twice, the difference of the two receptions is that of the vectors."""
    setting = Setting(tmp_path, "ota_fd", *(["privacy.noise=secure"] if secure else []))
    if secure:
        pytest.importorskip("opendp")
    charged, vectors = setting.charge(), setting.vectors()
    another = copied(charged)
    charged.transmit(vectors)
    for way in (in_one_call, directly, lambda each, given: each.signal_of(0, given[0])):
        with pytest.raises(AirDistillError, match=r"transmitted already|noise is added by the charged round, once"):
            way(another, vectors)


def test_noise_is_added_by_the_charged_round_only(tmp_path):
    """Else nothing would check the vectors."""
    charged = (setting := Setting(tmp_path, "ota_fd")).charge()
    with pytest.raises(AirDistillError, match=r"use its transmit\(vectors\)"):
        directly(charged, setting.vectors())
    with pytest.raises(AirDistillError, match="cannot be pickled"):
        pickle.dumps(charged.noise)
    assert copy.deepcopy(charged.noise).permission is charged.permission
    charged.transmit(setting.vectors())


@pytest.mark.parametrize("copied", [replace, copy.copy])
def test_a_sum_is_submitted_once(tmp_path, copied):
    setting = Setting(tmp_path, "ota_fd", "air.medium=secure_sum", "fleet.expected_dropouts=1")
    charged, vectors = setting.charge(secure_sum=True), setting.vectors()
    another = copied(charged)
    charged.sum_values(0, vectors[0])
    with pytest.raises(AirDistillError, match="transmitted already"):
        another.sum_values(0, vectors[0])
    with pytest.raises(AirDistillError, match="noise is added by the charged round, once"):
        another.summed.values(0, vectors[0])


# The ledger first


@pytest.mark.parametrize("how", ["seeded", "secure", "secure sum"])
def test_the_ledger_is_charged_before_the_noise_exists(tmp_path, monkeypatch, how):
    """A round beyond the budget is not charged, has no noise and nothing to transmit with."""
    drawn = []

    def recorded(draw):
        return lambda *given: (drawn.append(draw.__name__), draw(*given))[1]

    monkeypatch.setattr(RoundNoise, "seeded", recorded(RoundNoise.seeded))
    monkeypatch.setattr(charged_round, "receiver_noise", recorded(charged_round.receiver_noise))
    monkeypatch.setattr(discrete_noise, "discrete_gaussian", recorded(discrete_noise.discrete_gaussian))
    monkeypatch.setattr(sum_grid, "seeded_noise", recorded(sum_grid.seeded_noise))
    changes = ["privacy.noise=secure"] if how == "secure" else []
    if how == "secure sum":
        changes = ["air.medium=secure_sum", "fleet.expected_dropouts=1"]
    poor = Setting(tmp_path, "ota_fd", *changes, mu_factor=0.1)
    with pytest.raises(BudgetExceeded, match=r"round 1 would take device .*; it was not transmitted"):
        poor.charge(secure_sum=how == "secure sum")
    assert drawn == []
    assert poor.ledger.num_releases == 0
    assert not poor.ledger.squared_mu().any()

    setting = Setting(tmp_path, "ota_fd", *changes)
    in_ledger = setting.ledger.charge
    monkeypatch.setattr(setting.ledger, "charge", lambda release: (drawn.append("charge"), in_ledger(release)))
    charged = setting.charge(secure_sum=how == "secure sum")
    if how == "secure sum":
        charged.sum_values(0, setting.vectors()[0])
    elif how == "secure":
        pytest.importorskip("opendp")
        charged.transmit(setting.vectors())
    assert drawn[0] == "charge"
    assert len(drawn) > 1
    assert drawn.count("charge") == 1


def test_every_round_has_noise_of_its_own(tmp_path):
    setting = Setting(tmp_path, "ota_fd", "radio.fading=none")
    first, second = (setting.charge(index).transmit(setting.vectors()) for index in (1, 2))
    assert not np.isclose(first.received - first.ideal, second.received - second.ideal).any()
    assert setting.ledger.num_releases == 2


# Designs of one's own


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("case", UPLINKS.values(), ids=UPLINKS)
def test_a_design_of_ones_own_is_charged_for_the_noise_that_it_sends(tmp_path, case, factor):
    """(w s)²/c by hand, with the noise that the server receives from these gains."""
    changes = ("privacy.epsilon=100", "privacy.trust=fleet_noise")
    setting, as_planned = (Setting(tmp_path, *case, *changes) for _ in range(2))
    channel = setting.source.round_channel(1)
    design = setting.plan.design(channel, 1)
    weaker = max(1.0, factor)  # of all: a design may not send more than the power limits allow
    gains = {"signal_gain": design.signal_gain / weaker, "rx_scale": design.rx_scale / weaker}
    own = replace(design, **gains, noise_gain=factor / weaker * design.noise_gain)
    charged = setting.charge(design=own)
    assert np.array_equal(charged.design.noise_gain, own.noise_gain)
    assert not charged.design.noise_gain.flags.writeable
    as_planned.charge()

    assert setting.ledger.squared_mu() == pytest.approx(as_planned.ledger.squared_mu() / factor**2, rel=1e-9)
    if channel.ndim == 2:  # the noise at all antennas is computed by hand in tests/privacy/test_antennas.py
        return
    uplink = setting.plan.uplink
    noise = np.abs(channel[:, None] * own.noise_gain) ** 2
    distance = np.sqrt(2) * uplink.largest_norm if uplink.payload.is_knowledge else 2 * uplink.largest_norm
    shift = distance * (np.ones((3, 3)) if uplink.uses_tdma else design.weights)
    cost = (shift * own.rx_scale) ** 2 / (noise if uplink.uses_tdma else noise.sum(axis=0))
    assert setting.ledger.squared_mu() == pytest.approx(cost.sum(axis=1), rel=1e-9)


def louder(design):
    return replace(design, signal_gain=10 * design.signal_gain)


def uncounted(design):
    """A scale of zero says that a row is not sent: it costs nothing."""
    return replace(design, rx_scale=np.zeros_like(design.rx_scale))


def misaligned(design):
    """The signal arrives on the imaginary axis, without the noise."""
    return replace(design, signal_gain=1j * design.signal_gain)


def with_misaligned_noise(design):
    """The noise arrives on the imaginary axis, without the signal."""
    return replace(design, noise_gain=1j * design.noise_gain)


@pytest.mark.parametrize("change", [louder, uncounted, misaligned, with_misaligned_noise])
@pytest.mark.parametrize("case", [UPLINKS[name] for name in ("class means", "public predictions", "gradient", "TDMA")])
def test_a_design_whose_gains_send_more_than_it_states_is_refused(tmp_path, case, change):
    setting = Setting(tmp_path, *case, "privacy.trust=fleet_noise")
    design = change(setting.plan.design(setting.source.round_channel(1), 1))
    with pytest.raises(AirDistillError, match="design"):
        setting.charge(design=design)
    assert setting.ledger.num_releases == 0


# The equations


def independent_reception(setting, charged, vectors):
    """Eqs. (7) to (12) in loops, from the gains of the design and the named random streams."""
    plan, design, channel = setting.plan, charged.design, setting.source.round_channel(charged.index)
    num_devices, num_rows, length = vectors.shape
    seed, radio = noise_seed(plan.scenario.seed, setting.ledger.noise_keys[-1]), plan.scenario.radio
    energy = np.sqrt(length) / plan.uplink.largest_norm
    sent = np.zeros(vectors.shape, dtype=complex)
    for i in range(num_devices):
        m = stream(seed, "artificial-noise", charged.index, i).standard_normal((num_rows, length))
        for k in range(num_rows):
            if design.signal_gain[i, k] != 0:
                sent[i, k] += design.signal_gain[i, k] * energy * vectors[i, k]  # eq. (7)
            sent[i, k] += design.noise_gain[i, k] * m[k]

    def thermal(shape):
        real, imaginary = stream(seed, "receiver-noise", charged.index).standard_normal((2, *shape))
        return np.sqrt(radio.noise_power / 2) * (real + 1j * imaginary)

    received = np.zeros((num_rows, length))
    if plan.uplink.uses_tdma:
        n, weights = thermal(vectors.shape), plan.fleet.class_counts / plan.fleet.class_counts.sum(axis=0)
        for i in range(num_devices):
            for k in range(num_rows):
                if weights[i, k]:
                    received[k] += weights[i, k] * (channel[i] * sent[i, k] + n[i, k]).real / design.rx_scale[i, k]
        return received
    if channel.ndim == 2:
        n = thermal((channel.shape[1], num_rows, length))
        for k in range(num_rows):
            y = sum(channel[i][:, None] * sent[i, k] for i in range(num_devices)) + n[:, k]  # eqs. (10), (11)
            received[k] = (design.combiner[k].conj() @ y).real / design.rx_scale[k]  # eq. (12)
        return received
    n = thermal((num_rows, length))
    for k in range(num_rows):
        y = sum(channel[i] * sent[i, k] for i in range(num_devices)) + n[k]
        received[k] = y.real / design.rx_scale[k]
    return received


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("case", UPLINKS.values(), ids=UPLINKS)
def test_transmission_follows_the_equations(tmp_path, case, trust):
    shards = SHARDS if case[0] in ("ota_fd", "orthogonal_fd") else ()
    setting = Setting(tmp_path, *case, *shards, f"privacy.trust={trust}", "radio.noise_power=1e-13 W")
    plan, vectors = setting.plan, setting.vectors()
    if shards:
        vectors[plan.fleet.class_counts == 0] = np.nan
    setting.charge(1)
    charged = setting.charge(2)
    reception = charged.transmit(vectors)
    expected = independent_reception(setting, charged, np.nan_to_num(vectors))
    assert reception.received == pytest.approx(expected, rel=1e-9, abs=1e-12)
    weights = {"ota_fl": [[1 / 3]] * 3, "ota_proxy_fd": [[1 / 3]] * 3}.get(
        case[0], aggregation_weights(plan.fleet.class_counts)
    )
    ideal = np.einsum("ik,ikd->kd", weights, np.nan_to_num(vectors))
    assert reception.ideal == pytest.approx(ideal, rel=1e-12)
    assert reception.squared_error == pytest.approx(((expected - ideal) ** 2).mean(axis=1), rel=1e-6)
    assert reception.uplink_seconds == pytest.approx(vectors[0].size * SLOT * (3 if plan.uplink.uses_tdma else 1))


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("case", PAYLOADS.values(), ids=PAYLOADS)
def test_the_signals_of_single_devices_superpose_to_the_same_reception(tmp_path, case, trust):
    """Flower's devices compute their signals separately; the air adds them."""
    setting = Setting(tmp_path, *case, f"privacy.trust={trust}")
    charged, vectors = setting.charge(), setting.vectors()
    signals = [charged_again(charged).signal_of(device, own) for device, own in enumerate(vectors)]
    channel = setting.source.round_channel(1)
    y = np.einsum("i,ikd->kd", channel, signals) + charged.on_air.receiver
    received = y.real / charged.design.rx_scale[:, None]
    assert charged.transmit(vectors).received == pytest.approx(received, rel=1e-9, abs=1e-12)


# Secret participation


@pytest.mark.parametrize("case", PAYLOADS.values(), ids=PAYLOADS)
def test_secret_participation_masks_signals_but_not_noise(tmp_path, case):
    secret = ("fleet.participation=0.5", "fleet.participation_hidden=true", "privacy.epsilon=20")
    setting = Setting(tmp_path, *case, *secret, "privacy.trust=own_noise")
    participation, vectors = setting.plan.uplink.participation, setting.vectors()
    rounds = next(t for t in range(1, 7) if 0 < participation.signal_mask(t).sum() < 3)
    mask = participation.signal_mask(rounds)
    charged = setting.charge(rounds)
    reception = charged.transmit(vectors)
    masked = np.where(mask[:, None, None], vectors, 0.0)
    expected = independent_reception(setting, charged, masked)
    assert reception.received == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert reception.received != pytest.approx(independent_reception(setting, charged, vectors), rel=1e-3)
    # All devices have gains and add noise, whatever the mask; the ideal sum is over all devices.
    assert (charged.design.signal_gain != 0).all()
    assert (charged.design.noise_gain != 0).all()
    assert reception.ideal == pytest.approx(np.einsum("ik,ikd->kd", setting.plan.uplink.weights(1), vectors))
    release = setting.ledger.releases[0]
    assert (release.cost("device", "own_noise").sum(axis=1) > 0).all()


def test_the_charge_and_the_planned_power_do_not_reveal_the_secret_mask(tmp_path):
    """Rounds of the same channel and different masks have the same release and the same planned power."""
    secret = ("fleet.participation=0.5", "fleet.participation_hidden=true", "privacy.epsilon=20", "radio.fading=none")
    setting = Setting(tmp_path, "ota_fd", *secret)
    masks = [setting.plan.uplink.participation.signal_mask(t) for t in range(1, 7)]
    assert len({mask.tobytes() for mask in masks}) > 1
    powers = {setting.charge(t).transmit(setting.vectors()).planned_power_w for t in range(1, 7)}
    assert len(powers) == 1
    first, *others = setting.ledger.releases
    for each in others:
        assert np.array_equal(each.cost("device", "fleet_noise"), first.cost("device", "fleet_noise"))
        assert each.participants.tolist() == [0, 1, 2]
