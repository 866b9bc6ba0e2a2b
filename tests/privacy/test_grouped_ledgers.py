"""Format 2 of the ledger: the numbers of format 1, by groups of identical devices, and nothing else is believed."""

import base64
import copy
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_releases import header, random_release

from airdistill.privacy.certificate import certificate_of
from airdistill.privacy.chain import Chain, LedgerError
from airdistill.privacy.groups import Groups
from airdistill.privacy.ledger import Ledger, spent_before
from airdistill.privacy.ledger_header import GROUPED_FROM, format_for
from airdistill.privacy.release import GroupedRelease, Release
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.privacy.trust import TRUST_MODELS

KINDS = np.arange(40) % 4  # which of four kinds each of 40 devices is


def release_of_kinds(round_index, kinds=KINDS, absent=(), num_rows=3):
    """A release in which devices of a kind are alike; devices that are `absent` send nothing."""
    of_kind = random_release(round_index, int(max(kinds)) + 1, num_rows)
    weights = of_kind.weights[kinds]
    weights[list(absent)] = 0.0
    each = (
        {name: array[kinds] for name, array in part.items()}
        for part in (of_kind.sensitivity, of_kind.counted_noise_var)
    )
    return Release(round_index, weights, *each)


def large(**changes):
    epsilon = np.array([8.0, 6.0, np.inf, 6.0])[KINDS]
    given = {"num_devices": 40, "num_rows": 3, "epsilon": epsilon, "format": 2, "mu": np.full(40, np.inf)}
    return header(**(given | changes))


def charged(path, *releases, **changes):
    ledger = Ledger.begin(large(**changes), path)
    for release in releases:
        ledger.charge(release)
    return ledger


def three_rounds():
    """The second round without some devices, so that its groups are others; the third like the first."""
    return release_of_kinds(1), release_of_kinds(2, absent=(3, 8, 11)), release_of_kinds(3)


def test_both_formats_give_the_same_numbers_to_the_last_bit(tmp_path):
    one, two = (charged(tmp_path / f"{number}.jsonl", *three_rounds(), format=number) for number in (1, 2))
    assert one.noise_keys == two.noise_keys
    for path in ("1.jsonl", "2.jsonl"):
        read = Ledger.read(tmp_path / path)
        assert read.header.format == int(path[0])
        assert all(mine.same_as(given) for mine, given in zip(read.releases, three_rounds(), strict=True))
        assert np.array_equal(read.cost_of_run, one.cost_of_run)
        for model in SENSITIVITY_MODELS:
            for trust in TRUST_MODELS:
                assert np.array_equal(read.epsilon(model, trust), two.epsilon(model, trust))
    first, second = (certificate_of(Ledger.read(tmp_path / name)) for name in ("1.jsonl", "2.jsonl"))
    assert list(first.devices) == list(second.devices)
    changed = {"format", "devices", "ledger_digest"}
    mine, theirs = first.to_dict(), second.to_dict()
    assert {key: mine[key] for key in mine if key not in changed} == {
        key: theirs[key] for key in theirs if key not in changed
    }


def test_costs_by_groups_are_those_of_loops_over_devices(tmp_path):
    ledger = charged(tmp_path / "ledger.jsonl", *three_rounds())
    for model in SENSITIVITY_MODELS:
        for trust in TRUST_MODELS:
            cost = [[0.0] * 3 for _ in KINDS]
            for release in three_rounds():
                for i in range(40):
                    for k in range(3):
                        shift = release.weights[i, k] * release.sensitivity[model][i, k]
                        cost[i][k] += shift**2 / release.counted_noise_var[trust][i, k]
            expected = [sum(rows) if model in ("trajectory", "device") else max(rows) for rows in cost]
            assert ledger.spending.squared_mu(model, trust, relabel=False) == pytest.approx(expected, rel=1e-12)


def test_a_round_of_a_large_fleet_of_few_kinds_takes_few_bytes(tmp_path):
    kinds = np.arange(5000) % 10
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.begin(header(num_devices=5000, num_rows=3, format=2, mu=np.full(5000, np.inf)), path)
    for number in (1, 2, 3):
        ledger.charge(release_of_kinds(number, kinds))
    sizes = [len(line) for line in path.read_bytes().splitlines()]
    assert all(size < 20_000 for size in sizes)
    assert sizes[2] < 5_000  # which device is which is not said again
    assert '"groups":"as before"' in path.read_text().splitlines()[2]
    assert Ledger.read(path).spending.groups.num_groups == 10


def test_the_certificate_has_a_number_for_each_group(tmp_path):
    certificate = certificate_of(charged(tmp_path / "ledger.jsonl", *three_rounds()))
    written = json.loads(json.dumps(certificate.to_dict()))["devices"]
    # Four kinds, and of three of them those that missed the second round.
    assert (written["devices"], written["groups"]) == (40, 6)
    index = np.frombuffer(base64.b64decode(written["group_of_device"]), np.uint8)
    for device, account in enumerate(certificate.devices):
        group = index[device]
        assert account.device == device
        assert account.spent == written["spent"][group]
        assert account.by_model["paper"]["own_noise"] == written["epsilon"]["paper"]["own_noise"][group]
        assert written["asked"]["epsilon"][group] == [8.0, 6.0, None, 6.0][device % 4]


def test_the_format_follows_from_the_number_of_devices_and_stays_with_the_run():
    assert [format_for(count) for count in (1, GROUPED_FROM - 1, GROUPED_FROM)] == [1, 1, 2]
    for number in (1, 2):
        stored = json.loads(json.dumps(large(format=number).to_dict()))
        again = type(large()).from_dict(stored)
        assert again.format == number
        assert again.to_dict() == stored
        assert all(np.array_equal(getattr(again, name), getattr(large(), name)) for name in ("epsilon", "delta", "mu"))


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1), (2, 2)])
def test_a_chain_may_change_its_format_with_a_run(tmp_path, first, second):
    charged(tmp_path / "first.jsonl", *three_rounds(), format=first)
    terms = large(format=second, name="next", scheme="airdistill")
    before = spent_before(tmp_path / "first.jsonl", terms, 40).squared_mu
    path = tmp_path / "second.jsonl"
    ledger = Ledger.begin(terms, path, tmp_path / "first.jsonl")
    ledger.charge(release_of_kinds(1))
    ledger.charge(release_of_kinds(2, absent=(0,)))
    read = Ledger.read(path)
    assert (read.num_earlier, read.num_releases, read.header.format) == (3, 2, second)
    assert np.array_equal(read.squared_mu(), ledger.squared_mu())
    assert np.array_equal(read.squared_mu_before(), before)
    assert [release.round_index for _, release in read.history()] == [1, 2, 3, 1, 2]
    # Every entry has its own noise, whatever the format.
    keys = {*Ledger.read(tmp_path / "first.jsonl").noise_keys, *read.noise_keys}
    assert len(keys) == 5 or not any(keys)
    certificate = certificate_of(read).to_dict()
    assert (certificate["format"], certificate["earlier_releases"]) == (second, 3)


def test_a_start_that_an_earlier_version_left_is_repeated_in_its_format(tmp_path):
    charged(tmp_path / "first.jsonl", *three_rounds(), format=1)
    Ledger.begin(large(format=1, name="next"), tmp_path / "second.jsonl", tmp_path / "first.jsonl")
    left = large(format=1, name="next")
    again = Ledger.begin(large(name="next"), tmp_path / "second.jsonl", tmp_path / "first.jsonl", left)
    assert again.header.format == 1
    assert again.num_earlier == 3


def test_a_repeated_round_is_the_same_however_its_devices_are_grouped(tmp_path):
    """A resumed run may find other groups than the run before: what is compared are the numbers."""
    path = tmp_path / "ledger.jsonl"
    finer, coarser = release_of_kinds(1, absent=(3, 8, 11)), release_of_kinds(2)
    ledger = charged(path, finer, coarser)
    kept = GroupedRelease.of(coarser, GroupedRelease.of(finer))
    assert kept.groups.num_groups > GroupedRelease.of(coarser).groups.num_groups
    assert kept.same_as(GroupedRelease.of(coarser))
    key = ledger.noise_keys[1]
    resumed = Ledger.read(path, recorded_rounds=1)
    assert resumed.charge(coarser) == key
    assert len(Ledger.read(path).releases) == 2
    assert np.array_equal(resumed.squared_mu(), ledger.squared_mu())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_groups_are_those_of_a_dictionary(pairs):
    left, right = (np.array(each, dtype=float) for each in zip(*pairs, strict=True))
    for arrays in ([left], [left, right[:, None]], [left[:, None] * np.ones((1, 3)), right]):
        groups = Groups.of(arrays)
        index = np.arange(len(pairs)) if groups.index is None else groups.index
        keys = [
            tuple(float(array.reshape(len(pairs), -1)[device, 0]) for array in arrays) for device in range(len(pairs))
        ]
        if groups.index is not None:
            assert all(
                (index[i] == index[j]) == (keys[i] == keys[j]) for i in range(len(keys)) for j in range(len(keys))
            )
            assert len(set(keys)) == groups.num_groups
        assert [keys[device] for device in groups.first[index]] == keys
        assert (np.diff(groups.first) > 0).all()
    mine, theirs = Groups.of([left]), Groups.of([right])
    joined, of_mine, of_theirs = mine.joined(theirs)
    for values, groups, place in ((left, mine, of_mine), (right, theirs, of_theirs)):
        kinds = values[groups.first]
        assert joined.expand(kinds if place is None else kinds[place]).tolist() == values.tolist()
    again = Groups.from_dict(json.loads(json.dumps(joined.to_dict())), len(pairs))
    assert np.array_equal(again.first, joined.first)
    assert (again.index is None) == (joined.index is None)


def test_devices_that_differ_in_the_last_bit_are_not_alike():
    values = np.repeat([[0.1, 0.2], [0.3, 0.4]], 10, axis=0)
    assert Groups.of([values]).num_groups == 2
    values[7, 1] = np.nextafter(values[7, 1], 1)
    groups = Groups.of([values])
    assert groups.num_groups == 3
    assert groups.first.tolist() == [0, 7, 10]
    guess = Groups.of([np.repeat([0.0, 1.0], 10)])
    assert Groups.of([values], guess).num_groups == 3


def column(values, shape):
    return {"shape": shape, "float64": base64.b64encode(np.asarray(values, dtype="<f8").tobytes()).decode()}


def indices(values, kind="<u1"):
    return base64.b64encode(np.asarray(values, dtype=kind).tobytes()).decode()


def at(*path):
    """A change of one place of an entry."""

    def put(value):
        def change(body):
            *before, last = path
            for name in before:
                body = body[name]
            body[last] = value(body[last]) if callable(value) else value

        return change

    return put


GROUP, WEIGHTS = at("groups", "group_of_device"), at("weights")
NOISE, SHAPE = at("counted_noise_var", "fleet_noise"), at("weights", "shape")
ATTACKS = {
    "a group that does not exist": (GROUP(indices(np.where(KINDS == 3, 4, KINDS))), "device 3 is in group 4 of 4"),
    "a group of nobody": (GROUP(indices(np.where(KINDS == 3, 2, KINDS))), "1 of 4 groups have no device"),
    "groups swapped": (GROUP(indices([1, 0, 3, 2] * 10)), "numbered in the order of their first devices"),
    "one device too many": (GROUP(indices([*KINDS, 0])), "has 41 bytes, and must have 40"),
    "one device too few": (GROUP(indices(KINDS[:-1])), "has 39 bytes, and must have 40"),
    "wider numbers": (GROUP(indices(KINDS, "<u2")), "has 80 bytes, and must have 40"),
    "a list of groups": (GROUP(KINDS.tolist()), "must be a text of base64"),
    "not base64": (GROUP("?" * 56), "is not base64"),
    "letters of no alphabet": (GROUP("é" * 56), "is not base64"),
    "no groups at all": (GROUP(None), "4 of 40 devices, and nothing says which device is in which"),
    "other devices": (at("groups", "devices")(41), "devices is 41: must be 40"),
    "huge number of devices": (at("groups", "devices")(10**15), "devices is 1000000000000000: must be 40"),
    "huge number of groups": (at("groups", "groups")(10**12), "must have 160"),
    "no group": (at("groups", "groups")(0), "groups is 0: must be a whole number"),
    "a number as text": (at("groups", "groups")("4"), "groups is '4': must be a whole number"),
    "true as number": (at("groups", "groups")(True), "groups is True: must be a whole number"),
    "a fraction": (at("groups", "devices")(40.0), "devices is 40.0: must be a whole number"),
    "a device in two groups": (at("groups")(lambda groups: {**groups, "also": [[0, 1]]}), "and nothing else"),
    "groups of a round before the first": (at("groups")("as before"), "groups refers to a previous release"),
    "a column of a round before the first": (WEIGHTS("as before"), "weights refers to a previous release"),
    "a shorter column": (WEIGHTS(column(np.ones(9), [4, 3])), "weights: float64: has 72 bytes, and must have 96"),
    "a longer column": (WEIGHTS(column(np.ones(15), [5, 3])), r"weights: shape is \[5, 3\], and must be \[4, 3\]"),
    "another shape": (SHAPE([3, 4]), r"weights: shape is \[3, 4\]"),
    "a huge shape": (SHAPE([10**9, 10**9]), "weights: shape is"),
    "a negative shape": (SHAPE([-4, -3]), "weights: shape is"),
    "a shape of text": (SHAPE(["4", 3]), "weights: shape is"),
    "a shape of truths": (SHAPE([True, 3]), "weights: shape is"),
    "a flat shape": (SHAPE([12]), "weights: shape must have 2 numbers"),
    "a column of numbers": (WEIGHTS([[0.1] * 3] * 4), "weights: must be a column with shape and float64"),
    "a column of text": (WEIGHTS("0.5"), "weights: must be a column"),
    "numbers as text": (at("weights", "float64")([1.0] * 12), "must be a text of base64"),
    "an entry given twice": (WEIGHTS(lambda each: {**each, "again": each["float64"]}), "and nothing else"),
    "not a number": (WEIGHTS(column([np.nan] * 12, [4, 3])), "weights: row 0 of device 0 is nan"),
    "an infinite weight": (WEIGHTS(column([np.inf] * 12, [4, 3])), "weights: row 0 of device 0 is inf"),
    "a negative weight": (WEIGHTS(column([1.0] * 11 + [-1.0], [4, 3])), "weights: row 2 of device 3 is -1"),
    "negative noise": (NOISE(column([1.0] * 6 + [-1.0] * 6, [4, 3])), "row 0 of device 2 is -1; must be positive"),
    "noise that is no number": (NOISE(column(np.nan, [1, 1])), "row 0 of device 0 is nan"),
    "infinite noise": (NOISE(column(np.inf, [1, 1])), "or infinite for a row that was not sent"),
    "a sensitivity below zero": (at("sensitivity", "device")(column(-1.0, [1, 1])), "sensitivity under device: row 0"),
    "a model less": (at("sensitivity")(lambda each: {"paper": each["paper"]}), "sensitivity: must have"),
    "no trust model": (at("counted_noise_var")({}), "counted_noise_var: must have"),
    "models as a list": (at("sensitivity")(lambda each: [*each.values()]), "sensitivity: must have"),
    "a round as text": (at("round")("1"), "round is '1': must be a whole number"),
    "a round below one": (at("round")(-1), "round is -1: must be a whole number"),
    "a field more": (lambda body: body.update(refund=1.0), "and nothing else"),
    "a field less": (lambda body: body.pop("weights"), "must have"),
}  # fmt: skip


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """The bodies of an honest ledger of one release."""
    path = tmp_path_factory.mktemp("honest") / "ledger.jsonl"
    charged(path, release_of_kinds(1))
    return list(Chain.read(path).bodies())


def forged(path, first, *bodies):
    """A ledger of these lines with digests and head that fit: anyone can compute them."""
    chain = Chain.begin(path, first)
    for body in bodies:
        chain.append(body)
    return path


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_forged_entry_is_refused_in_one_line_with_file_and_line(tmp_path, honest, attack):
    change, rule = ATTACKS[attack]
    body = copy.deepcopy(honest[1])
    change(body)
    path = forged(tmp_path / "ledger.jsonl", honest[0], body)
    with pytest.raises(LedgerError, match=rf"ledger\.jsonl: is not a ledger: line 2: .*{rule}") as refused:
        Ledger.read(path)
    assert "\n" not in str(refused.value)
    with pytest.raises(LedgerError):
        Ledger.begin(large(name="next"), tmp_path / "next.jsonl", path)
    assert not (tmp_path / "next.jsonl").exists()


HEADERS = {
    "huge fleet": (at("groups", "devices")(10**12), "devices is 1000000000000: must be at most"),
    "huge rows": (at("num_rows")(10**12), "num_rows is 1000000000000: more numbers than a ledger may have"),
    "rows as text": (at("num_rows")("3"), "num_rows is '3'"),
    "a fraction of a row": (at("num_rows")(2.5), "num_rows is 2.5"),
    "no target": (at("epsilon")(column(np.nan, [1])), "epsilon: must be a number that is not negative"),
    "a negative budget": (at("mu")(column(-1.0, [1])), "mu: must be a number that is not negative"),
    "a certain failure": (at("delta")(column(1.0, [1])), "delta: must be a number that is not negative, below 1"),
    "a target for other groups": (at("epsilon")(column([8.0] * 7, [7])), "epsilon: shape is"),
    "a device without target": (GROUP(indices(KINDS[:-1])), "has 39 bytes"),
    "format 1 in columns": (at("format")(1), "could not convert"),
}  # fmt: skip


@pytest.mark.parametrize("attack", HEADERS)
def test_a_forged_header_is_refused_in_one_line_with_file_and_line(tmp_path, honest, attack):
    change, rule = HEADERS[attack]
    body = copy.deepcopy(honest[0])
    change(body)
    path = forged(tmp_path / "ledger.jsonl", body, honest[1])
    with pytest.raises(LedgerError, match=rf"ledger\.jsonl: is not a ledger: line 1: .*{rule}") as refused:
        Ledger.read(path)
    assert "\n" not in str(refused.value)


def test_a_format_of_the_future_and_a_header_in_another_order_are_refused(tmp_path, honest):
    path = forged(tmp_path / "ledger.jsonl", {**honest[0], "format": 3}, honest[1])
    with pytest.raises(LedgerError, match="a ledger of format 3: this version reads formats 1 and 2"):
        Ledger.read(path)
    hidden = {"name": "hidden", **{name: value for name, value in honest[0].items() if name != "name"}}
    path = forged(tmp_path / "other.jsonl", honest[0], honest[1], hidden)
    with pytest.raises(LedgerError, match="2 headers, 1 of them in canonical form"):
        Ledger.read(path)


def test_an_entry_of_another_format_than_its_run_is_refused(tmp_path, honest):
    listed = {"kind": "release", **release_of_kinds(1).to_dict()}
    with pytest.raises(LedgerError, match=r"line 2: a release: must have .* and nothing else"):
        Ledger.read(forged(tmp_path / "ledger.jsonl", honest[0], listed))
    first = large(format=1).to_dict()
    with pytest.raises(LedgerError, match="is not a ledger: line 2"):
        Ledger.read(forged(tmp_path / "other.jsonl", first, honest[1]))


def test_an_entry_written_twice_costs_twice(tmp_path, honest):
    """It cannot be told from a round that was charged again, and never counts less."""
    once = Ledger.read(forged(tmp_path / "once.jsonl", *honest)).squared_mu()
    twice = Ledger.read(forged(tmp_path / "ledger.jsonl", *honest, honest[1])).squared_mu()
    assert np.array_equal(twice, 2 * once)
