import base64
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_releases import both_formats, header, random_release

from airdistill.channel import channel_source
from airdistill.planning.plan import plan
from airdistill.privacy import chain
from airdistill.privacy.chain import LedgerError
from airdistill.privacy.gaussian import gaussian_epsilon
from airdistill.privacy.ledger import BudgetExceeded, Ledger, spent_before
from airdistill.privacy.release import GroupedRelease, Release
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.privacy.trust import TRUST_MODELS
from airdistill.scenario import load

MODELS = list(itertools.product(SENSITIVITY_MODELS, TRUST_MODELS))


@pytest.fixture(autouse=True, params=[1, 2])
def ledger_format(request, monkeypatch):
    return both_formats(request, monkeypatch)


def spent_by_hand(releases, model, trust, relabel=False):
    """Σ_t (w s)²/c in loops: the costliest class for per-class models, the two costliest with relabel, else all."""
    num_devices, num_rows = releases[0].weights.shape
    spent = []
    for i in range(num_devices):
        rows = []
        for k in range(num_rows):
            rows.append(
                sum(
                    (r.weights[i, k] * r.sensitivity[model][i, k]) ** 2 / r.counted_noise_var[trust][i, k]
                    for r in releases
                )
            )
        if model in ("trajectory", "device"):
            spent.append(sum(rows))
        else:
            spent.append(sum(sorted(rows)[-2:]) if relabel else max(rows))
    return np.array(spent)


@pytest.mark.parametrize(("model", "trust"), MODELS)
@pytest.mark.parametrize("relabel", [False, True])
def test_uneven_rounds_compose_exactly(tmp_path, model, trust, relabel):
    ledger = Ledger.begin(header(relabel=relabel), tmp_path / "ledger.jsonl")
    releases = [random_release(t) for t in range(1, 6)]
    for release in releases:
        ledger.charge(release)
    mu = np.sqrt(spent_by_hand(releases, model, trust, relabel))
    expected = gaussian_epsilon(mu, np.full(3, 1e-5))
    for read in (ledger, Ledger.read(tmp_path / "ledger.jsonl")):
        assert read.epsilon(model, trust) == pytest.approx(expected, rel=1e-12)
        assert len(read.releases) == 5


def test_releases_are_read_back_bit_for_bit(tmp_path, ledger_format):
    ledger = Ledger.begin(header(), tmp_path / "ledger.jsonl")
    first = random_release(1)
    # The second release repeats some arrays, has one that is equal for all devices, and leaves a row unsent.
    noise = {trust: np.where(np.arange(4) == 2, np.inf, each) for trust, each in first.counted_noise_var.items()}
    noise["fleet_noise"] = np.broadcast_to([1.0, 2.0, np.inf, 3.0], (3, 4))
    second = Release(2, first.weights, first.sensitivity, noise)
    for release in (first, second):
        ledger.charge(release)
    stored = Ledger.read(tmp_path / "ledger.jsonl").releases
    assert stored[0].same_as(first)
    assert stored[1].same_as(second)
    assert not stored[1].same_as(first)
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert lines[2]["weights"] == "as before"
    counted = lines[2]["counted_noise_var"]["fleet_noise"]
    if ledger_format == 1:
        assert counted == [[1.0, 2.0, None, 3.0]]
    else:
        # As docs/ledger.md says how to read it, with nothing of the program.
        values = np.frombuffer(base64.b64decode(counted["float64"]), "<f8").reshape(counted["shape"])
        assert values.tolist() == [[1.0, 2.0, np.inf, 3.0]]


def test_participants_are_recorded():
    release = random_release(1)
    release.weights[1] = 0.0
    assert release.participants.tolist() == [0, 2]
    assert release.cost("device", "own_noise")[1].tolist() == [0, 0, 0, 0]
    unsent = {trust: np.full((3, 4), np.inf) for trust in TRUST_MODELS}
    assert Release(1, release.weights, release.sensitivity, unsent).participants.tolist() == []


def test_a_round_beyond_the_budget_is_not_charged(tmp_path):
    ledger = Ledger.begin(header(mu=0.5), tmp_path / "ledger.jsonl")
    many = [random_release(t, noise=30.0) for t in range(1, 1000)]
    with pytest.raises(
        BudgetExceeded, match=r"round \d+ would take device \d to ε = .*, above its target 8 at δ = 1e-05"
    ):
        charge_all(ledger, many)
    charged = len(ledger.releases)
    assert charged > 1
    assert len(Ledger.read(tmp_path / "ledger.jsonl").releases) == charged
    assert (ledger.squared_mu() <= 0.25).all()
    assert spent_by_hand(many[: charged + 1], "device", "fleet_noise").max() > 0.25


def changed_release(field, name, value, row=2):
    """A release in which one number of row 2 of device 1 is another."""
    release = random_release(1)
    array = release.weights if field == "weights" else getattr(release, field)[name]
    array[1, row] = value
    return release


IMPOSSIBLE = [
    ("counted_noise_var", "fleet_noise", -1.0, "must be positive, or 0 for a non-private release, or infinite"),
    ("counted_noise_var", "fleet_noise", -np.inf, "must be positive"),
    ("counted_noise_var", "own_noise", np.nan, "must be positive"),
    ("counted_noise_var", "fleet_noise", np.inf, "infinite for a row that was not sent"),
    ("weights", "", -0.1, "must be finite and not negative"),
    ("weights", "", np.nan, "must be finite and not negative"),
    ("weights", "", np.inf, "must be finite and not negative"),
    ("sensitivity", "device", -1.0, "must be finite and not negative"),
    ("sensitivity", "device", np.nan, "must be finite and not negative"),
    ("sensitivity", "trajectory", np.inf, "must be finite and not negative"),
]


@pytest.mark.parametrize(("field", "name", "value", "rule"), IMPOSSIBLE)
@pytest.mark.parametrize("enforced", [True, False])
def test_an_impossible_release_is_refused_with_round_device_row_value_and_rule(
    tmp_path, field, name, value, rule, enforced
):
    ledger = Ledger.begin(header(enforced=enforced), tmp_path / "ledger.jsonl")
    before = ledger.epsilon().tolist()
    named = rf"round 1: {field}( under {name})?: row 2 of device 1 is {value:g}; .*{rule}.*not transmitted"
    with pytest.raises(LedgerError, match=named):
        ledger.charge(changed_release(field, name, value))
    assert ledger.epsilon().tolist() == before
    assert Ledger.read(tmp_path / "ledger.jsonl").num_releases == 0


@pytest.mark.parametrize(("field", "name", "value", "rule"), [case for case in IMPOSSIBLE if np.isfinite(case[2])])
def test_an_impossible_release_on_disk_is_not_read(tmp_path, ledger_format, field, name, value, rule):
    """Anyone can compute the digests of a ledger of their own: a negative variance would be a refund."""
    ledger = Ledger.begin(header(), tmp_path / "ledger.jsonl")
    ledger.charge(random_release(1, seed=3))
    written = GroupedRelease.of(changed_release(field, name, value)).line(ledger_format, None)
    ledger.chain.append({"kind": "release", **written})
    with pytest.raises(
        LedgerError, match=rf"ledger\.jsonl: is not a ledger: line 3: round 1: {field}.*device 1.*{rule}"
    ):
        Ledger.read(tmp_path / "ledger.jsonl")


def test_a_release_of_another_shape_is_refused():
    with pytest.raises(LedgerError, match=r"round 1: an array of shape \(2, 4\); the ledger has .* = \(3, 4\)"):
        Ledger(header()).charge(random_release(1, num_devices=2))


def test_a_private_row_without_counted_noise_is_over_budget_and_named():
    ledger = Ledger(header())
    with pytest.raises(BudgetExceeded, match=r"device 1 to ε = inf, above .*: no noise counts for its row 2; it was"):
        ledger.charge(changed_release("counted_noise_var", "fleet_noise", 0.0))


def charge_all(ledger, releases):
    for release in releases:
        ledger.charge(release)


def test_a_budget_that_is_not_enforced_is_only_counted(tmp_path):
    ledger = Ledger.begin(header(mu=0.5, enforced=False), tmp_path / "ledger.jsonl")
    ledger.charge(random_release(1, noise=0.0))
    assert ledger.epsilon().tolist() == [np.inf, np.inf, np.inf]


def test_an_infinite_target_is_never_exceeded():
    ledger = Ledger(header(mu=np.inf))
    ledger.charge(random_release(1, noise=0.0))
    assert (ledger.num_releases, ledger.epsilon().tolist()) == (1, [np.inf] * 3)


in_memory = pytest.mark.parametrize("ledger_format", [1], indirect=True)  # nothing is written
fleets = st.fixed_dictionaries(
    {
        "counts": st.lists(st.lists(st.integers(1, 60), min_size=3, max_size=3), min_size=1, max_size=5),
        "rounds": st.integers(1, 150),
        "sensitivity": st.sampled_from(["paper", "class_mean", "trajectory", "device"]),
        "trust": st.sampled_from(["receiver_noise", "fleet_noise", "own_noise"]),
        "accountant": st.sampled_from(["exact", "paper"]),
        "relabel": st.booleans(),
        "epsilon": st.floats(1e-3, 50),
        "seed": st.integers(0, 10**6),
    }
)


@in_memory
@settings(max_examples=25)
@given(fleets)
def test_a_run_of_exactly_the_planned_rounds_is_never_stopped_by_rounding_errors(drawn):
    made = planned(drawn)
    ledger = ledger_of(made)
    charge_all(ledger, releases_of(made, drawn["rounds"]))
    assert (ledger.squared_mu() <= made.fleet.mu**2 * (1 + 1e-9)).all()


@in_memory
@settings(max_examples=12)
@given(fleets)
def test_one_round_more_than_planned_is_rejected(drawn):
    """Equal devices, so that each spends its whole budget. A weak channel spends less under receiver noise: omitted."""
    equal = drawn | {"counts": [drawn["counts"][0]] * 3, "sensitivity": "class_mean", "relabel": False}
    equal["trust"] = "fleet_noise" if drawn["trust"] == "receiver_noise" else drawn["trust"]
    made = planned(equal)
    ledger = ledger_of(made)
    with pytest.raises(BudgetExceeded, match=f"round {drawn['rounds'] + 1} "):
        charge_all(ledger, releases_of(made, drawn["rounds"] + 1))
    assert len(ledger.releases) == drawn["rounds"]


def releases_of(made, num_rounds):
    source = channel_source(made.scenario)
    for t in range(1, num_rounds + 1):
        channel = source.round_channel(t)
        yield made.uplink.release(made.design(channel, t), channel, t)


def planned(drawn):
    return plan(
        load(
            "quick",
            [
                f"fleet.devices={len(drawn['counts'])}", f"data.class_counts={drawn['counts']}",
                f"learning.rounds={drawn['rounds']}", f"seed={drawn['seed']}", f"privacy.epsilon={drawn['epsilon']}",
                *(f"privacy.{name}={str(drawn[name]).lower()}" for name in ("accountant", "trust", "relabel")),
                f"privacy.sensitivity={drawn['sensitivity']}",
            ],
        )
    )  # fmt: skip


def ledger_of(made):
    privacy, fleet = made.scenario.privacy, made.fleet
    terms = {name: getattr(privacy, name) for name in ("sensitivity", "trust", "accountant", "relabel")}
    per_device = {name: getattr(fleet, name) for name in ("epsilon", "delta")}
    return Ledger(header(fleet.mu, fleet.num_devices, fleet.num_classes, **terms, **per_device))


def test_a_replayed_round_is_charged_once_with_seeded_noise_and_again_with_secure_noise(tmp_path):
    for noise, expected in [("seeded", 3), ("secure", 4)]:
        path = tmp_path / f"{noise}.jsonl"
        ledger = Ledger.begin(header(noise=noise), path)
        for t in (1, 2, 3):
            ledger.charge(random_release(t))
        resumed = Ledger.read(path, recorded_rounds=2)
        before = resumed.squared_mu()
        resumed.charge(random_release(3))
        assert len(Ledger.read(path).releases) == expected
        spent = [random_release(t) for t in ((1, 2, 3) if noise == "seeded" else (1, 2, 3, 3))]
        assert resumed.squared_mu() == pytest.approx(spent_by_hand(spent, "device", "fleet_noise"), rel=1e-12)
        recorded = spent[:2] if noise == "seeded" else spent[:3]
        assert before == pytest.approx(spent_by_hand(recorded, "device", "fleet_noise"), rel=1e-12)


def test_a_replay_that_differs_is_charged_in_addition(tmp_path, caplog):
    ledger = Ledger.begin(header(), tmp_path / "ledger.jsonl")
    ledger.charge(random_release(1))
    resumed = Ledger.read(tmp_path / "ledger.jsonl", recorded_rounds=0)
    resumed.charge(random_release(1, noise=2.0))
    assert "charged again" in caplog.text
    both = [random_release(1), random_release(1, noise=2.0)]
    assert resumed.squared_mu() == pytest.approx(spent_by_hand(both, "device", "fleet_noise"), rel=1e-12)


def test_a_second_run_continues_from_earlier_spending(tmp_path):
    first = Ledger.begin(header(), tmp_path / "first.jsonl")
    first.charge(random_release(1))
    # The second run declares other models: the spending of the first run is counted by these.
    terms = header(trust="own_noise", sensitivity="class_mean")
    spent = spent_before(tmp_path / "first.jsonl", terms, 3)
    assert spent.squared_mu == pytest.approx(spent_by_hand([random_release(1)], "class_mean", "own_noise"), rel=1e-12)
    assert spent.excess_delta == 0
    second = Ledger.begin(terms, tmp_path / "second.jsonl", tmp_path / "first.jsonl")
    second.charge(random_release(1, seed=5))
    both = [random_release(1), random_release(1, seed=5)]
    expected = spent_by_hand(both, "class_mean", "own_noise")
    for ledger in (second, Ledger.read(tmp_path / "second.jsonl")):
        assert ledger.squared_mu() == pytest.approx(expected, rel=1e-12)
        assert len(ledger.releases) == 1
    rewound = Ledger.read(tmp_path / "second.jsonl", recorded_rounds=0)
    assert rewound.squared_mu() == pytest.approx(spent_by_hand(both[:1], "class_mean", "own_noise"), rel=1e-12)


def test_costs_of_different_payloads_are_added_per_device(tmp_path):
    first = Ledger.begin(header(), tmp_path / "first.jsonl")
    first.charge(random_release(1))
    terms = header(payload="gradient", num_rows=1, sensitivity="paper")
    second = Ledger.begin(terms, tmp_path / "second.jsonl", tmp_path / "first.jsonl")
    second.charge(random_release(1, num_rows=1, seed=2))
    separate = spent_by_hand([random_release(1)], "paper", "fleet_noise")
    separate += spent_by_hand([random_release(1, num_rows=1, seed=2)], "paper", "fleet_noise")
    assert second.squared_mu() == pytest.approx(separate, rel=1e-12)


def test_a_ledger_can_be_continued_only_once(tmp_path):
    first = Ledger.begin(header(), tmp_path / "first.jsonl")
    first.charge(random_release(1))
    Ledger.begin(header(name="second"), tmp_path / "second.jsonl", tmp_path / "first.jsonl")
    with pytest.raises(LedgerError, match="another run continues it"):
        Ledger.begin(header(name="third"), tmp_path / "third.jsonl", tmp_path / "first.jsonl")
    with pytest.raises(LedgerError, match="nothing more can be charged"):
        Ledger.read(tmp_path / "first.jsonl").charge(random_release(2))
    # Repeating the same start is a fork too, unless a killed start left its header in this very folder.
    with pytest.raises(LedgerError, match=r"another run continues it, in .*repeat its command with --out"):
        Ledger.begin(header(name="second"), tmp_path / "fork.jsonl", tmp_path / "first.jsonl")
    with pytest.raises(LedgerError, match="another run continues it"):
        Ledger.begin(header(name="third"), tmp_path / "fork.jsonl", tmp_path / "first.jsonl", header(name="second"))
    assert not (tmp_path / "third.jsonl").exists()


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"num_devices": 2}, "has 3 devices, and this run has 2"),
        ({"noise": "secure"}, "has seeded noise, and this run has secure noise"),
    ],
)
def test_other_devices_or_another_kind_of_noise_cannot_continue_a_ledger(tmp_path, changes, rule):
    Ledger.begin(header(), tmp_path / "first.jsonl")
    with pytest.raises(LedgerError, match=rule):
        Ledger.begin(header(**changes), tmp_path / "second.jsonl", tmp_path / "first.jsonl")
    assert len((tmp_path / "first.jsonl").read_text().splitlines()) == 1
    assert not (tmp_path / "second.jsonl").exists()


def test_another_number_of_classes_is_rejected_before_the_earlier_ledger_is_closed(tmp_path):
    first = Ledger.begin(header(), tmp_path / "first.jsonl")
    first.charge(random_release(1))
    with pytest.raises(LedgerError, match="has 4 rows of knowledge, and this run has 5"):
        Ledger.begin(header(num_rows=5), tmp_path / "second.jsonl", tmp_path / "first.jsonl")
    assert not Ledger.read(tmp_path / "first.jsonl").closed


@pytest.mark.parametrize("num_heads", [0, 1])
def test_a_start_killed_while_continuing_a_ledger_loses_no_release(tmp_path, monkeypatch, num_heads):
    """Killed before the new file has its head, or after that and before the old file has its new head."""
    first = Ledger.begin(header(), tmp_path / "first.jsonl")
    for t in (1, 2, 3):
        first.charge(random_release(t))
    real, written = chain.write_whole, []

    def killed(path, content):
        if len(written) == num_heads:
            raise KeyboardInterrupt
        written.append(path)
        real(path, content)

    monkeypatch.setattr(chain, "write_whole", killed)
    with pytest.raises(KeyboardInterrupt):
        Ledger.begin(header(name="next"), tmp_path / "second.jsonl", tmp_path / "first.jsonl")
    monkeypatch.setattr(chain, "write_whole", real)
    assert Ledger.read(tmp_path / "first.jsonl").squared_mu() == pytest.approx(first.squared_mu(), rel=0)
    left = header(name="next")
    again = Ledger.begin(header(name="next"), tmp_path / "second.jsonl", tmp_path / "first.jsonl", left)
    assert again.squared_mu() == pytest.approx(first.squared_mu(), rel=0)
    assert again.num_earlier == 3


@in_memory
def test_the_papers_transceiver_is_stopped_if_it_violates_its_own_constraint():
    """docs/theory.md, section 1: |h|²P = (1, 10), (B_i^k)² = (1, 4), equal ρ: a quarter of the noise for 5 rounds."""
    delta, stringency = 1e-5, 0.01
    epsilon = math.sqrt(math.log(1 / delta) / (9 * stringency))
    noise_power = 2 * 4 * 5 * 2 * stringency  # half of it on the decision axis: the border of Case I
    made = plan(
        load(
            "paper",
            [
                "fleet.devices=2", "data.class_counts=[[1, 2], [2, 1]]", "radio.gains=[[1, 0], [1, 0]]",
                "radio.peak_power={values = [1, 10]}", f"radio.noise_power={noise_power}", "radio.transceiver=paper",
                "learning.rounds=5", f"privacy.epsilon={epsilon}", f"privacy.delta={delta}",
            ],
        )
    )  # fmt: skip
    ledger = ledger_of(made)
    with pytest.raises(BudgetExceeded, match="round 2 would take device"):
        charge_all(ledger, releases_of(made, 5))
