"""Schemes on a public set in a federation without a network: votes and feature means, and what learns from them."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from against_simulator import difference_of_numbers, receptions_of, records
from near_federation import federation, unchanged
from public_worlds import CLASSES, PUBLIC_SAMPLES, WIDTH, public_scenario

pytest.importorskip("flwr")

from airdistill.errors import AirDistillError, InputError
from airdistill.flower.coordinator import BROADCAST, Coordinator
from airdistill.flower.demo import prepare
from airdistill.flower.device import Device
from airdistill.flower.endpoint import SESSION, Endpoint
from airdistill.flower.public_set import PUBLIC, PUBLIC_DIGEST, PublicSetError
from airdistill.flower.records import packed, unpacked
from airdistill.learning import embeddings, fits, public_clusters
from airdistill.runs.accounts import certify
from airdistill.scenario.loading import changed


@pytest.fixture(autouse=True)
def short_chains(monkeypatch):
    """The search for the classes of clusters is most of the time, in the federation and in the simulator alike."""
    monkeypatch.setattr(public_clusters, "_STEPS", 50)
    monkeypatch.setattr(public_clusters, "_STEPS_OF_CLUSTER", 5)


def played(folder, scenario, scheme, tamper=None):
    """The server's folder, the devices, and in every round what the server received, and what devices learned from."""
    server, devices = federation(folder, scenario, scheme)
    broadcasts, received, ask = [], [], devices.ask

    def asked(step, round_index, questions):
        if step == "learn":
            broadcasts.append(next(iter(questions.values())).get("broadcast"))
        return ask(step, round_index, questions)

    devices.ask = asked
    devices.tamper = tamper or devices.tamper
    coordinator = Coordinator(server, scheme, devices)
    collect = coordinator._medium.collect

    def collected(charged, present):
        received.append(collect(charged, present))
        return received[-1]

    coordinator._medium.collect = collected
    coordinator.play()
    return server, devices, received, broadcasts


SETTINGS = {
    "votes": ("airdistill_proxy", ("learning.rounds=2", "public.samples_per_round=25"), True),
    "predictions": ("ota_proxy_fd", (), True),
    "lda": ("feature_means", ("public.own_predictions=true", "data.classes_per_device=4"), True),
    "learned": ("airdistill_features", (), True),
    "clusters": ("feature_means", ("public.embedding=clusters", "public.features=6"), True),
    "private counts": ("feature_means", ("privacy.counts=private", "public.features=6"), True),
    "later features": (
        "airdistill_features",
        ("public.broadcast=model", "public.later=features", "learning.rounds=2", "public.features=5"),
        False,
    ),
    "normalised": ("feature_means", ("data.normalization=public",), True),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_server_and_devices_give_the_same_records_as_the_simulator(tmp_path, setting):
    scheme, changes, groups = SETTINGS[setting]
    scenario = public_scenario(tmp_path, *changes, groups=groups)
    server, devices, received, broadcasts = played(tmp_path / "run", scenario, scheme)
    expected, receptions = receptions_of(scenario, scheme, server)
    seen = records(server)
    assert len(seen) == len(expected) == len(receptions) == len(broadcasts)
    for mine, theirs, got, reception, sent in zip(seen, expected, received, receptions, broadcasts, strict=True):
        assert difference_of_numbers(mine, theirs) < 1e-6
        assert np.abs(got.received - reception.received).max() < 1e-6
        shape = reception.broadcast.shape
        known = unpacked({"broadcast": sent}, "broadcast", "f8", shape)
        assert np.array_equal(np.isnan(known), np.isnan(reception.broadcast))
        assert np.nanmax(np.abs(known - reception.broadcast)) < 1e-6
        assert mine["broadcast"]["shape"] == list(shape)
    content = (server / BROADCAST).read_bytes()  # the server keeps the last one
    assert hashlib.sha256(content).hexdigest() == seen[-1]["broadcast"]["sha256"]
    assert np.array_equal(np.load(server / BROADCAST), known, equal_nan=True)
    ledgers = {(folder / "ledger.jsonl").read_text() for folder in [server, *devices.folders]}
    assert len(ledgers) == 1  # the server and all devices have computed the same ledger


@pytest.mark.parametrize("scheme", ["feature_means", "airdistill_proxy"])
def test_a_secure_sum_is_what_the_simulator_receives_up_to_the_quantisation_step(tmp_path, scheme):
    scenario = public_scenario(tmp_path, "air.medium=secure_sum")
    server, _, (got,), _ = played(tmp_path / "run", scenario, scheme)
    _, (reception,) = receptions_of(scenario, scheme, server)
    probe, _ = federation(tmp_path / "probe", scenario, scheme)
    spacing = Endpoint.open(probe, scheme).charge_through(1).summed.grid.spacing
    difference = np.abs(got.received - reception.received)
    assert 0 < difference.max() <= 3 * 0.5 * spacing[0] * (1 + 1e-6)
    assert got.noise_var == pytest.approx(reception.predicted_noise_var, rel=1e-6)


def test_a_vote_is_charged_before_it_leaves_and_noise_is_drawn_once(tmp_path):
    """Public payloads take the path of class means: a charge first, one reply for each question, no second vector."""
    _, devices = federation(tmp_path / "run", public_scenario(tmp_path, "learning.rounds=3"), "airdistill_proxy")
    first = devices.device(0).answer("signal", 1, {})
    ledger = (devices.folders[0] / "ledger.jsonl").read_bytes()
    assert devices.device(0).last_round == 1
    assert devices.device(0).answer("signal", 1, {}) == first
    assert (devices.folders[0] / "ledger.jsonl").read_bytes() == ledger
    second = devices.device(0).answer("signal", 2, {})  # the model has been trained since
    assert devices.device(0).last_round == 2
    assert second != first
    for path in (devices.folders[0] / "answers").glob("*.json"):
        path.unlink()
    with pytest.raises(AirDistillError, match="round 1 is refused: the ledger is at round 2"):
        Device(devices.folders[0], 0, "airdistill_proxy").answer("signal", 1, {})


@pytest.mark.parametrize(
    ("scheme", "step"), [("airdistill_proxy", "signal"), ("airdistill_proxy", "learn"), ("feature_means", "learn")]
)
def test_a_restarted_server_repeats_a_round_on_a_public_set_with_the_same_result(tmp_path, scheme, step):
    """The server is killed after device 1 has answered in round 2: it has pooled what it received in round 1."""
    scenario = public_scenario(tmp_path, "learning.rounds=3")
    server, devices = federation(tmp_path / "run", scenario, scheme)

    def killed(name, round_index, device, real):
        if (name, round_index, device) == (step, 2, 1) and real != "asked":
            raise KeyboardInterrupt
        return real

    devices.tamper = killed
    with pytest.raises(KeyboardInterrupt):
        Coordinator(server, scheme, devices).play()
    devices.tamper = unchanged
    Coordinator(server, scheme, devices).play()
    whole, others = federation(tmp_path / "whole", scenario, scheme, session=(server / SESSION).read_text())
    Coordinator(whole, scheme, others).play()
    assert (server / "rounds.jsonl").read_bytes() == (whole / "rounds.jsonl").read_bytes()
    for own, other in zip(devices.folders, others.folders, strict=True):
        assert (own / "weights.safetensors").read_bytes() == (other / "weights.safetensors").read_bytes()
    assert all(record["without_signal"] == record["without_lesson"] == {} for record in records(server))


@pytest.mark.parametrize("scheme", ["airdistill_features", "airdistill_proxy"])
def test_federations_of_the_same_data_share_no_noise(tmp_path, scheme):
    scenario = public_scenario(tmp_path)
    drawn = []
    for name in ("one", "two"):
        server, _ = federation(tmp_path / name, scenario, scheme)
        drawn.append(Endpoint.open(server, scheme).charge_through(1).on_air.artificial.ravel())
    assert not np.any(drawn[0] == drawn[1])
    assert abs(np.corrcoef(*drawn)[0, 1]) < 0.5


def test_votes_that_exceed_their_bound_are_charged_and_not_sent(tmp_path, monkeypatch):
    _, devices = federation(tmp_path / "run", public_scenario(tmp_path), "airdistill_proxy")
    device = devices.device(0)
    length = device.endpoint.plan.uplink.vector_length
    monkeypatch.setattr(device, "_knowledge", lambda _: np.ones((1, length)))
    with pytest.raises(AirDistillError, match="clip it"):
        device.answer("signal", 1, {})
    assert devices.device(0).last_round == 1
    (stored,) = (devices.folders[0] / "answers").glob("*.json")
    assert "answer" not in json.loads(stored.read_text())


def test_a_signal_of_features_as_strong_as_its_bound_explains_is_accepted_and_a_stronger_one_is_not(tmp_path):
    """The limit is that of eq. (8) for a vector at its norm bound, whatever that bound is."""
    scenario = public_scenario(tmp_path, "public.feature_norm=0.05", "privacy.epsilon=1e6", "privacy.trust=own_noise")

    def stronger(factor):
        def tamper(step, _round_index, device, real):
            if step != "signal" or device != 1 or real == "asked":
                return real
            signal = np.frombuffer(real["signal"], dtype="<c16")
            return {**real, "signal": packed(factor * signal)}

        return tamper

    _, _, (kept,), _ = played(tmp_path / "kept", scenario, "feature_means")
    _, _, (left,), _ = played(tmp_path / "left", scenario, "feature_means", stronger(3.0))
    assert kept.missing == {}
    assert list(left.missing) == [1]
    assert "explain at most" in left.missing[1]
    assert np.allclose(left.weights[:, 0], [0.5, 0.0, 0.5])


def test_a_device_that_is_missing_does_not_stop_a_round_and_a_lost_round_teaches_what_was_known(tmp_path):
    scenario = public_scenario(
        tmp_path, "learning.rounds=3", "privacy.trust=own_noise", "privacy.epsilon=1e5", "public.samples_per_round=20"
    )

    def tamper(step, round_index, device, real):
        if step != "signal" or real == "asked" or (round_index == 3 and device != 2) or round_index == 1:
            return real
        return {"signal": b"", "round": round_index, "device": device}

    server, _, received, broadcasts = played(tmp_path / "run", scenario, "ota_proxy_fd", tamper)
    first, second, third = records(server)
    assert second["nothing_because"] == "no device sent a valid signal"
    assert list(third["without_signal"]) == ["2"]
    assert np.isnan(received[1].received).all()
    assert broadcasts[1] == broadcasts[0]  # what was known before
    rows = [np.frombuffer(each, "<f8").reshape(PUBLIC_SAMPLES, CLASSES) for each in broadcasts]
    # Round 3 asks about the first half of the samples again, although nothing came of round 2.
    for known in rows:
        assert np.isfinite(known[:20]).all()
        assert np.isnan(known[20:]).all()
    assert not np.any(rows[2][:20] == rows[0][:20])
    assert all(record["without_lesson"] == {} for record in (first, second, third))


def test_a_federation_that_never_received_anything_trains_its_devices_alone(tmp_path):
    server, _, _, broadcasts = played(
        tmp_path / "run", public_scenario(tmp_path), "airdistill_features",
        lambda step, _t, _device, real: {} if step == "signal" and real != "asked" else real,
    )  # fmt: skip
    (record,) = records(server)
    assert broadcasts == [None]
    assert record["broadcast"] is None
    assert record["without_lesson"] == {}


def test_the_public_set_is_checked_by_its_digest_when_a_device_starts_and_ever_after(tmp_path):
    scenario = public_scenario(tmp_path)
    server, devices = federation(tmp_path / "run", scenario, "airdistill_features")
    _, others = federation(tmp_path / "other", public_scenario(tmp_path, "public.samples=39"), "airdistill_features")
    name, digest = (server / PUBLIC_DIGEST).read_text().split()[::-1]
    assert hashlib.sha256((server / name).read_bytes()).hexdigest() == digest  # as sha256sum checks it
    with np.load(devices.folders[0] / PUBLIC, allow_pickle=False) as stored:
        assert stored["samples"].shape == (PUBLIC_SAMPLES, WIDTH)
    another = (others.folders[0] / PUBLIC).read_bytes()
    (devices.folders[0] / PUBLIC).write_bytes(another)
    with pytest.raises(
        PublicSetError, match=r"^public-set\.npz: has digest \w{12} and this federation's has \w{12}; copy"
    ):
        devices.device(0)
    devices.device(1).answer("signal", 1, {})
    for file in (PUBLIC, PUBLIC_DIGEST):  # not even both together, once the ledger has begun
        (devices.folders[1] / file).write_bytes((others.folders[1] / file).read_bytes())
    with pytest.raises(PublicSetError, match="this federation's has"):
        devices.device(1).answer("learn", 1, {"evaluate": 0})
    (devices.folders[2] / PUBLIC).unlink()
    with pytest.raises(
        PublicSetError, match=r"public-set\.npz: is missing; copy public-set\.npz and public-set\.sha256 from"
    ):
        devices.device(2)


def test_a_device_that_embeds_differently_refuses(tmp_path):
    server, devices = federation(tmp_path / "run", public_scenario(tmp_path), "airdistill_features")
    endpoint = devices.device(0).endpoint
    shared = endpoint.public()
    with pytest.raises(PublicSetError, match=r"public\.embedding: has digest \w{12} here and 0{12} in public-set\.npz"):
        replace(shared, embedding="0" * 64).use(endpoint.plan, endpoint.engine())
    # A second preparation gives the same bytes, and so the digest says whether two federations have one public set.
    again, _ = federation(tmp_path / "again", public_scenario(tmp_path), "airdistill_features")
    assert (again / PUBLIC).read_bytes() == (server / PUBLIC).read_bytes() == shared.to_bytes()


def test_a_device_embeds_with_the_fit_that_it_was_given_and_makes_none(tmp_path, monkeypatch):
    _, devices = federation(tmp_path / "run", public_scenario(tmp_path), "feature_means")
    fits._memory.clear()

    def refused(*_):
        pytest.fail("the device fitted an embedding of its own")

    monkeypatch.setattr(embeddings, "principal_directions", refused)
    monkeypatch.setenv("AIRDISTILL_CACHE", str(tmp_path / "empty"))
    assert devices.device(0).answer("signal", 1, {})["signal"]


def test_another_public_set_is_another_federation(tmp_path):
    """A device whose folder is consistent in itself has other terms than the server, which does not admit it."""
    scenario = public_scenario(tmp_path)
    server, devices = federation(tmp_path / "run", scenario, "airdistill_features")
    path = tmp_path / "moved.npz"
    with np.load(scenario.data.dataset) as stored:
        np.savez(path, **{**stored, "x_test": stored["x_test"] + 1})
    moved = changed(scenario, {"data": {"dataset": str(path)}})
    _, others = federation(tmp_path / "other", moved, "airdistill_features")
    for file in (PUBLIC, PUBLIC_DIGEST):
        (devices.folders[1] / file).write_bytes((others.folders[1] / file).read_bytes())
    with pytest.raises(AirDistillError, match="device 1 has a different scenario or scheme"):
        Coordinator(server, "airdistill_features", devices).play()


def test_devices_with_their_own_data_compare_it_with_the_public_samples(tmp_path):
    """The public set is a file of the operator's; no endpoint has all data, and one device lacks the last class."""
    rng = np.random.default_rng(5)
    np.save(tmp_path / "public.npy", rng.standard_normal((PUBLIC_SAMPLES, WIDTH)))
    labels = [[0, 1, 2, 3] * 3, [0, 1, 2] * 4, [1, 2, 3] * 4]
    own = [
        {
            "x_train": rng.standard_normal((12, WIDTH)),
            "y_train": np.array(each),
            "x_test": rng.standard_normal((8, WIDTH)),
            "y_test": np.arange(8) % 3,
        }
        for each in labels
    ]
    counts = [np.bincount(each, minlength=CLASSES).tolist() for each in labels]
    scenario = public_scenario(
        tmp_path, f"data.class_counts={counts}", f"public.source={tmp_path / 'public.npy'}", "public.features=6",
        "data.normalization=public",
    )  # fmt: skip
    server, devices = federation(tmp_path / "run", scenario, "airdistill_features")
    for number, arrays in enumerate(own):
        np.savez(tmp_path / f"own-{number}.npz", **arrays)
        devices.data[number] = str(tmp_path / f"own-{number}.npz")
    Coordinator(server, "airdistill_features", devices).play()
    (record,) = records(server)
    assert record["without_signal"] == record["without_lesson"] == {}
    assert any("Each device compared" in line for line in certify(devices.folders[0]).statement)
    own[1]["x_train"][3] = np.load(tmp_path / "public.npy")[7]
    np.savez(tmp_path / "own-1.npz", **own[1])
    with pytest.raises(InputError, match=r"sample 7 is training sample 3.*must not be private"):
        devices.device(1)._data_and_fleet()


def test_a_device_that_missed_the_model_does_not_send_features_of_its_older_one(tmp_path):
    _, changes, _ = SETTINGS["later features"]
    scenario = public_scenario(tmp_path, *changes, groups=False)

    def tamper(step, round_index, device, real):
        return None if (step, round_index, device) == ("learn", 1, 2) else real

    server, *_ = played(tmp_path / "run", scenario, "airdistill_features", tamper)
    first, second = records(server)
    assert first["without_signal"] == {}
    assert "features are of the model that round 1 broadcast" in second["without_signal"]["2"]


def test_schemes_that_a_federation_cannot_run_are_named_with_those_that_it_can(tmp_path):
    for scheme in ("pate", "proxy_fd", "ota_fedavg"):
        with pytest.raises(InputError, match="airdistill_proxy, ota_proxy_fd, airdistill_features, feature_means"):
            prepare(tmp_path / scheme, public_scenario(tmp_path, groups=False), scheme)
        assert not (tmp_path / scheme).exists()
    assert SESSION not in {path.name for path in tmp_path.iterdir()}
