"""Secure sums are exact, and attacks by the server to learn more than the sum fail."""

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy.stats import chisquare, kstest

pytest.importorskip("flwr")

from flwr.app import Array, ConfigRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from airdistill.errors import InputError
from airdistill.flower.records import RecordError
from airdistill.flower.sums.device_side import DeviceSide, RefusedError
from airdistill.flower.sums.keys import Identity, Modulus, SecureSumError, mask
from airdistill.flower.sums.messages import Terms
from airdistill.flower.sums.secret_sharing import PRIME, combine_shares, create_shares
from airdistill.flower.sums.server_side import ServerSide

IDENTITIES = {device: Identity() for device in range(8)}
ROSTER = {device: identity.public for device, identity in IDENTITIES.items()}


class Round:
    """The devices of one round and an honest server; each step takes the devices that participate in it."""

    def __init__(self, num_devices=4, threshold=3, length=5, largest=1000, round_number=1):
        modulus = Modulus.for_sum(largest, num_devices)
        self.terms = Terms("a run", round_number, tuple(range(num_devices)), threshold, modulus, length)
        self.devices = {
            device: DeviceSide(self.terms, device, IDENTITIES[device], ROSTER) for device in range(num_devices)
        }
        self.server = ServerSide(self.terms, ROSTER)
        self.vectors = {device: np.arange(length) * (device - 1) - device for device in self.devices}

    def keys(self, devices):
        for device in devices:
            self.server.take_keys(self.restarted(device).keys())

    def shares(self, devices):
        for device in devices:
            self.server.take_shares(self.restarted(device).shares(self.server.keys_for_all()))

    def masked(self, devices):
        for device in devices:
            words = self.restarted(device).masked(self.server.delivery_for(device), self.vectors[device])
            self.server.take_masked(device, words)

    def confirm(self, devices):
        for device in devices:
            self.server.take_confirmation(self.restarted(device).confirm(self.server.survivors_question()))

    def reveal(self, devices):
        for device in devices:
            self.server.take_reveal(self.restarted(device).reveal(self.server.reveal_question()))

    def restarted(self, device):
        """The device as a new process restores it from its stored state; this happens for every message."""
        text = self.devices[device].to_json()
        self.devices[device] = DeviceSide.from_json(text, IDENTITIES[device], ROSTER)
        return self.devices[device]

    def draw_secrets_from(self, seed):
        generator = np.random.default_rng(seed)
        for side in self.devices.values():
            side._state.mask_private, side._state.share_private, side._state.seed = (
                generator.bytes(32) for _ in range(3)
            )

    def up_to_reveal(self, survivors=(0, 1, 2, 3)):
        self.keys(self.devices)
        self.shares(self.devices)
        self.masked(survivors)
        self.confirm(survivors)


@st.composite
def rounds_with_losses(draw):
    """A round, and for each of its five steps the remaining devices, at least as many as the threshold."""
    num_devices = draw(st.integers(3, 7))
    threshold = draw(st.integers(num_devices // 2 + 1, num_devices))
    largest = draw(st.sampled_from([1, 1000, 2**50]))
    played = Round(num_devices, threshold, draw(st.integers(1, 6)), largest)
    values = st.integers(-largest, largest)
    for device, vector in played.vectors.items():
        played.vectors[device] = np.array(draw(st.lists(values, min_size=len(vector), max_size=len(vector))))
    remaining, steps = list(played.devices), []
    for _ in range(5):
        lost = draw(st.lists(st.sampled_from(remaining), unique=True, max_size=len(remaining) - threshold))
        remaining = [device for device in remaining if device not in lost]
        steps.append(remaining)
    return played, steps


@given(rounds_with_losses())
def test_the_sum_is_exact_for_all_drop_outs(case):
    played, (keys, shares, masked, confirm, reveal) = case
    played.keys(keys)
    played.shares(shares)
    played.masked(masked)
    played.confirm(confirm)
    played.reveal(reveal)
    assert played.server.total().tolist() == np.sum([played.vectors[device] for device in masked], axis=0).tolist()


@given(st.integers(1, 2**56), st.integers(1, 60), st.booleans())
def test_the_modulus_fits_the_largest_sum_and_is_the_smallest_one(largest, num_devices, negative):
    modulus = Modulus.for_sum(largest, num_devices)
    extreme = (-1 if negative else 1) * largest
    words = np.zeros(1, np.uint64)
    for _ in range(num_devices):
        words += modulus.encode(np.array([extreme]))
    assert modulus.decode(modulus.reduce(words)).tolist() == [extreme * num_devices]
    assert largest * num_devices > 2 ** (modulus.bits - 2) - 1


def test_a_modulus_above_63_bits_is_rejected():
    assert Modulus.for_sum(2**61 // 4, 4).bits == 63
    with pytest.raises(InputError, match="need 64 bits"):
        Modulus.for_sum(2**60, 4)
    with pytest.raises(InputError):
        Modulus(64)


def test_a_device_sends_no_entry_that_could_wrap_the_sum():
    played = Round(largest=1000)
    played.keys(played.devices)
    played.shares(played.devices)
    played.vectors[0] = np.full(5, played.terms.largest + 1)
    with pytest.raises(SecureSumError, match="could wrap"):
        played.masked([0])
    played.vectors[0] = np.full(5, -played.terms.largest)
    played.masked([0])


def test_a_threshold_of_half_of_the_devices_is_rejected():
    terms = Round().terms
    for threshold in (2, 5):
        with pytest.raises(InputError, match="more than half"):
            replace(terms, threshold=threshold)


@pytest.mark.parametrize("step", ["shares", "masked", "confirm", "reveal"])
def test_below_the_threshold_the_devices_refuse(step):
    """The server is the adversary and skips its own check."""
    played = Round()
    played.server._check_threshold = lambda *_: None
    few = [0, 1]
    played.keys(few if step == "shares" else played.devices)
    if step != "shares":
        played.shares(few if step == "masked" else played.devices)
    if step in ("confirm", "reveal"):
        played.masked(few if step == "confirm" else played.devices)
    if step == "reveal":
        played.confirm(few)
    with pytest.raises(RefusedError, match=r"2 devices .*; at least 3 are required"):
        getattr(played, step)([0])


def test_a_single_masked_vector_is_uniform():
    """The vector is zero, and the secrets have a fixed seed, which makes the statistical tests deterministic."""
    for device in range(4):
        played = Round(length=20_000, largest=2**12)
        played.draw_secrets_from(seed=device)
        played.vectors = {other: np.zeros(20_000, np.int64) for other in played.devices}
        played.keys(played.devices)
        played.shares(played.devices)
        played.masked([device])
        words = played.server._masked[device]
        size = 2**played.terms.modulus.bits
        assert words.max() < size
        assert (
            chisquare(np.bincount((words * np.uint64(64) // np.uint64(size)).astype(int), minlength=64)).pvalue > 1e-3
        )
        assert chisquare(np.bincount((words % np.uint64(64)).astype(int), minlength=64)).pvalue > 1e-3
        assert kstest(words / size, "uniform").pvalue > 1e-3


def test_masks_of_different_purposes_differ_in_every_word():
    seed = bytes(32)
    one, two = mask(seed, b"one", 1000), mask(seed, b"two", 1000)
    assert not np.any(one == two)
    assert np.array_equal(one, mask(seed, b"one", 1000))


def test_the_masks_of_two_rounds_differ_in_every_word():
    """The masks differ even if a device draws the same secrets twice."""
    sent = []
    for round_number in (1, 2):
        played = Round(round_number=round_number)
        played.draw_secrets_from(seed=0)
        played.keys(played.devices)
        played.shares(played.devices)
        played.masked([0])
        sent.append(played.server._masked[0])
    assert not np.any(sent[0] == sent[1])


def test_keys_forged_by_the_server_are_refused():
    played, forged = Round(), Round()
    played.keys(played.devices)
    forged.keys(forged.devices)
    keys = played.server.keys_for_all()
    swapped = [keys[0], {**keys[1], "mask_key": forged.server.keys_for_all()[1]["mask_key"]}, *keys[2:]]
    with pytest.raises(RefusedError, match="keys of device 1 are not signed"):
        played.devices[0].shares(swapped)


def test_keys_of_another_round_are_refused():
    played, following = Round(), Round(round_number=2)
    played.keys(played.devices)
    following.keys([0])
    with pytest.raises(RefusedError, match="is in round 2, not in round 1"):
        following.devices[0].shares(played.server.keys_for_all())
    relabelled = [{**record, "round": 2} for record in played.server.keys_for_all()]
    with pytest.raises(RefusedError, match="not signed"):
        following.devices[0].shares(relabelled)


def test_sealed_shares_cannot_be_changed_or_sent_to_another_device():
    played = Round()
    played.keys(played.devices)
    played.shares(played.devices)
    delivered = played.server.delivery_for(0)
    changed = [delivered["sealed"][0][:-1] + bytes([delivered["sealed"][0][-1] ^ 1]), *delivered["sealed"][1:]]
    swapped = list(reversed(delivered["sealed"]))
    for sealed in (changed, swapped, played.server.delivery_for(1)["sealed"]):
        with pytest.raises(SecureSumError, match="changed in transit"):
            played.devices[0].masked({**delivered, "sealed": sealed}, played.vectors[0])


@pytest.mark.parametrize(("survivors", "field"), [((0, 1, 2, 3), "seed_shares"), ((0, 1, 2), "key_shares")])
def test_a_falsified_share_is_detected_and_ignored_if_enough_others_are_left(survivors, field):
    played = Round()
    played.up_to_reveal(survivors)
    for device in survivors:
        record = played.devices[device].reveal(played.server.reveal_question())
        if device == 1:
            record[field] = [share[:-20] + bytes([share[-20] ^ 1]) + share[-19:] for share in record[field]]
        played.server.take_reveal(record)
    if len(survivors) > played.terms.threshold:
        assert_array_equal(played.server.total(), sum(played.vectors[device] for device in survivors))
        return
    with pytest.raises(SecureSumError, match="do not give what it committed to"):
        played.server.total()


@pytest.mark.parametrize("liars", [(0,), (0, 1)])
def test_wrong_shares_of_several_devices_are_recognised_by_their_commitments(liars):
    """Also if they come first: with 200 devices no search through subsets would find the right ones."""
    played = Round(num_devices=8, threshold=5)
    played.keys(played.devices)
    played.shares(played.devices)
    played.masked(range(7))
    played.confirm(range(7))
    for device in range(7):
        record = played.devices[device].reveal(played.server.reveal_question())
        if device in liars:
            for field in ("seed_shares", "key_shares"):
                record[field] = [bytes(len(share)) for share in record[field]]
        played.server.take_reveal(record)
    assert_array_equal(played.server.total(), sum(played.vectors[device] for device in range(7)))


def test_a_dealer_of_wrong_shares_is_named():
    played = Round()
    played.keys(played.devices)
    real = played.devices[2].shares(played.server.keys_for_all())
    with pytest.raises(SecureSumError, match="96 bytes of commitments for 4 devices"):
        played.server.take_shares({**real, "commitments": real["commitments"][:96]})
    played.server.take_shares({**real, "commitments": bytes(len(real["commitments"]))})
    played.shares([0, 1, 3])
    played.masked(played.devices)
    played.confirm(played.devices)
    played.reveal(played.devices)
    with pytest.raises(SecureSumError, match="shares of device 2's secret do not give what it committed to"):
        played.server.total()


@given(st.integers(1, 12), st.integers(0, 12), st.randoms(use_true_random=False))
def test_any_threshold_of_shares_gives_the_secret_and_fewer_give_another(threshold, more, rng):
    secret = rng.randbytes(32)
    shares = dict(enumerate(create_shares(secret, threshold, threshold + more), start=1))
    chosen = rng.sample(sorted(shares), threshold)
    assert combine_shares({point: shares[point] for point in chosen}) == secret
    assert combine_shares(shares) == secret  # more points on the same polynomial
    if threshold > 1:
        few = {point: shares[point] for point in chosen[1:]}
        with suppress(SecureSumError):  # one of 2^247 combinations is not 256 bits long
            assert combine_shares(few) != secret


def test_shares_are_values_of_a_polynomial_of_the_right_degree():
    """By finite differences: those of order `threshold` vanish, and those of order threshold − 1 do not."""
    values = [int.from_bytes(share, "little") for share in create_shares(bytes(range(32)), 4, 9)]
    for order in range(1, 5):
        values = [(after - before) % PRIME for before, after in pairwise(values)]
        assert any(values) == (order < 4)


def test_the_modulus_of_secret_sharing_is_the_first_prime_above_all_secrets():
    """By Fermat's test to many bases; every smaller number above 2^256 has a witness against it."""
    witnesses = (2, 3, 5, 7, 11, 13)
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in range(2, 60))
    assert all(any(pow(base, n - 1, n) != 1 for base in witnesses) for n in range(2**256 + 1, PRIME))


@given(st.integers(2, 63), st.integers(1, 40), st.randoms(use_true_random=False))
def test_packed_vectors_have_as_many_bits_as_the_modulus_and_return_exactly(bits, length, rng):
    modulus = Modulus(bits)
    words = np.array([rng.getrandbits(bits) for _ in range(length)], dtype=np.uint64)
    content = modulus.packed(words)
    assert len(content) == -(-bits * length // 8) == modulus.num_bytes(length)
    as_integer = sum(int(word) << (bits * place) for place, word in enumerate(words))
    assert int.from_bytes(content, "little") == as_integer
    assert_array_equal(modulus.unpacked(content, length), words, strict=True)
    with pytest.raises(SecureSumError, match="numbers of"):
        modulus.unpacked(content + b"\0", length)


def test_bits_after_the_last_number_of_a_packed_vector_must_be_zero():
    modulus = Modulus(5)
    content = modulus.packed(np.array([3, 4, 5], dtype=np.uint64))
    with pytest.raises(SecureSumError, match="must be zero"):
        modulus.unpacked(content[:-1] + bytes([content[-1] | 0x80]), 3)


def test_a_device_never_reveals_both_the_seed_and_the_mask_key_of_another():
    """The attack: declare device 3 a survivor first and dropped afterwards, and remove all its masks."""
    played = Round()
    played.up_to_reveal()
    played.devices[0].reveal(played.server.reveal_question())
    del played.server._masked[3]
    with pytest.raises(RefusedError, match="asked for step confirm but is at step over"):
        played.devices[0].confirm(played.server.survivors_question())
    with pytest.raises(RefusedError, match="asked for step reveal but is at step over"):
        played.devices[0].reveal(played.server.reveal_question())
    with pytest.raises(
        RefusedError, match=r"confirmed the survivors \[0, 1, 2, 3\] and reveals shares for that set only"
    ):
        played.devices[1].reveal(played.server.reveal_question())


def test_two_sets_of_survivors_are_never_both_confirmed():
    """Signatures on one set are not valid for another, and each device signs once."""
    played = Round()
    played.keys(played.devices)
    played.shares(played.devices)
    played.masked(played.devices)
    all_four = played.server.survivors_question()
    without_three = {**all_four, "survivors": [0, 1, 2]}
    signatures = [played.devices[device].confirm(all_four)["signature"] for device in (0, 3)]
    signatures[1:1] = [played.devices[device].confirm(without_three)["signature"] for device in (1, 2)]
    for device, question in ((0, all_four), (1, without_three)):
        with pytest.raises(RefusedError, match="2 devices confirmed these survivors"):
            played.devices[device].reveal({**question, "signers": [0, 1, 2, 3], "signatures": signatures})
    with pytest.raises(RefusedError, match="asked for step confirm"):
        played.devices[0].confirm(without_three)


def test_a_vector_is_masked_once():
    played = Round()
    played.keys(played.devices)
    played.shares(played.devices)
    played.masked([0])
    with pytest.raises(RefusedError, match="asked for step masked but is at step confirm"):
        played.masked([0])


def test_survivors_are_listed_once_each():
    played = Round()
    played.keys(played.devices)
    played.shares(played.devices)
    played.masked(played.devices)
    with pytest.raises(RecordError, match="twice or out of order"):
        played.devices[0].confirm({"round": 1, "survivors": [0, 0, 1]})


def test_the_state_after_a_reveal_contains_no_secret():
    played = Round()
    played.up_to_reveal()
    secret = played.devices[0]._state.seed.hex()
    assert secret in played.devices[0].to_json()
    played.reveal([0])
    assert secret not in played.devices[0].to_json()
    assert '"key_shares": {}' in played.devices[0].to_json()


def through_flower(record):
    """Serialise a record as Flower does, and read it back."""
    content = RecordDict({"record": ConfigRecord(record)})
    return dict(recorddict_from_proto(recorddict_to_proto(content))["record"])


def test_every_message_is_a_flower_record_without_pickle():
    played = Round()
    for step in ("keys", "shares", "masked", "confirm"):
        getattr(played, step)(played.devices)
    server = played.server
    revealed = [side.reveal(server.reveal_question()) for side in played.devices.values()]
    questions = [*server.keys_for_all(), server.delivery_for(0), server.survivors_question(), server.reveal_question()]
    for record in [*questions, *revealed]:
        assert through_flower(record) == record
    words = server._masked[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pickle.dumps", None)
        patch.setattr("pickle.loads", None)
        assert_array_equal(Array(words).numpy(), words, strict=True)
