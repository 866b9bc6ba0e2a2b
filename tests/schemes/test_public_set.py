"""Schemes on a public set from end to end: learning, records, receivers, ledger and audit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from audit_contexts import FLOAT64, noise_of_run, planned, small_context
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from small_worlds import small_scenario, write_dataset

import airdistill as ad
from airdistill.audit.auditing import audit, audit_run
from airdistill.audit.neighbours import follow, neighbours_of
from airdistill.audit.options import AuditOptions
from airdistill.data.datasets import load_dataset
from airdistill.data.public import load_data
from airdistill.errors import AirDistillError, InputError
from airdistill.learning.fleet import Engine, TrainingDivergedError
from airdistill.learning.public_predictions import ClientSelector
from airdistill.planning.payloads import rows_of_round
from airdistill.planning.what_if.public_set import public_set_what_if
from airdistill.privacy.certificate import certificate_of
from airdistill.privacy.ledger import BudgetExceeded, Ledger
from airdistill.radio.receivers import project_on_simplex
from airdistill.report.page import render
from airdistill.report.run import run_page
from airdistill.runs.options import RunOptions
from airdistill.runs.simulation import Simulation
from airdistill.schemes import payloads
from airdistill.schemes.base import Outcome
from airdistill.schemes.payloads import payload_protocol, receiver_of
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.public_set import OtaProxyFd
from airdistill.schemes.registry import load_scheme
from airdistill.streams import stream

FAST = RunOptions(threads=1, eval_every=100, dtype="float64")
TAUGHT = "public.distill_epochs=50"  # most of a run's time, where devices have to learn from the rows
SCHEMES = ("proxy_fd", "selective_fd", "ota_proxy_fd", "airdistill_proxy")


def skewed(folder, *changes):
    """Twelve devices that hold two of four blobs each; 60 of 120 test samples are public."""
    path = folder / "skewed.npz"
    if not path.exists():
        write_dataset(path, num_classes=4, features=(8,), num_train=240, num_test=120)
    return small_scenario(
        folder, f"data.dataset={path}", "fleet.devices=12", "data.partition=shards", "data.classes_per_device=2",
        "public.samples=60", "public.distill_epochs=1", "learning.rounds=1", "learning.local_epochs=5",
        "learning.batch_size=5", "learning.initial_lr=0.05", "radio.noise_power=1e-16", "privacy.epsilon=50", *changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return ad.run(skewed(folder), "local_only", out=folder / "run", options=FAST)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_devices_learn_classes_that_they_do_not_hold(tmp_path, alone, scheme):
    together = ad.run(skewed(tmp_path, TAUGHT), scheme, out=tmp_path / "together", options=FAST)
    assert alone.accuracy["mean"] < 0.6
    assert together.accuracy["mean"] > 0.75
    assert together.rounds[0]["labels_right"]["broadcast"] > 0.6
    assert together.summary["uplink_seconds"] == pytest.approx(60 * 4 * 3.6e-6)


def test_the_page_of_a_run_states_the_share_of_right_labels(tmp_path):
    record = ad.run(skewed(tmp_path), "ota_proxy_fd", out=tmp_path / "run", options=FAST)
    page = render(run_page(record))
    assert f"{record.rounds[0]['labels_right']['received']:.1%} as received" in page


def test_zero_distillation_epochs_have_no_distillation_loss(tmp_path):
    images = write_dataset(tmp_path / "images.npz", num_classes=4, features=(16, 16), num_train=240, num_test=120)
    for path, model in [(tmp_path / "skewed.npz", "mlp"), (images, "paper_cnn")]:
        scenario = skewed(
            tmp_path,
            "public.distill_epochs=0",
            "learning.local_epochs=2",
            f"data.dataset={path}",
            f"learning.model={model}",
        )
        record = ad.run(scenario, "proxy_fd", out=tmp_path / model, options=FAST)
        assert record.rounds[0]["distillation_loss"] == 0


def test_class_means_do_not_teach_missing_classes(tmp_path):
    record = ad.run(skewed(tmp_path, "learning.rounds=5"), "fd_error_free", out=tmp_path / "run", options=FAST)
    assert record.accuracy["mean"] < 0.6


def test_the_received_noise_has_the_planned_variance(tmp_path):
    """The mean ratio of measured to predicted variance over 20 rounds is 1 within five standard errors."""
    record = ad.run(
        skewed(tmp_path, "learning.rounds=20", "learning.local_epochs=1"),
        "ota_proxy_fd",
        out=tmp_path / "run",
        options=FAST,
    )
    ratio = np.array([line["measured_noise_var"][0] / line["predicted_noise_var"][0] for line in record.rounds])
    error = np.sqrt(2 / (240 * 20))
    assert ratio.mean() == pytest.approx(1, abs=5 * error)
    assert ratio.std() == pytest.approx(np.sqrt(2 / 240), rel=0.6)


def test_the_ledger_charges_the_whole_device_for_its_answers(tmp_path):
    scenario = skewed(tmp_path, "learning.rounds=3", "public.answers_per_device=20", "privacy.epsilon=2")
    record = ad.run(scenario, "ota_proxy_fd", out=tmp_path / "run", options=FAST)
    ledger = Ledger.read(record.folder / "ledger.jsonl")
    for release in ledger.releases:
        assert release.sensitivity["device"] == pytest.approx(np.full((12, 1), np.sqrt(2 * 20)))
        assert release.weights == pytest.approx(np.full((12, 1), 1 / 12))
    assert (ledger.epsilon() <= 2 * (1 + 1e-9)).all()
    assert ledger.epsilon().max() == pytest.approx(2, rel=1e-6)
    certificate = ad.certify(record.folder)
    assert any("answers at most the agreed number of public samples" in line for line in certificate.statement)
    assert "A device answers at most 20 of 60 public samples in a round." in certificate.statement
    assert {"harmless public set"} <= {assumption.name for assumption in certificate.assumptions}


def test_ledger_and_certificate_state_what_public_samples_were_compared_with(tmp_path):
    record = ad.run(skewed(tmp_path), "ota_proxy_fd", out=tmp_path / "run", options=FAST)
    ledger = Ledger.read(record.folder / "ledger.jsonl")
    compared = {"public": 60, "private": 240, "test": 60, "skipped": 0, "private_in_test": 0}
    assert ledger.header.terms["public_comparison"] == compared
    sentence = "60 public samples were compared with 240 private and 60 test samples: no exact copies. Near copies are"
    assert any(line.startswith(sentence) for line in ad.certify(record.folder).statement)
    without = {name: value for name, value in ledger.header.terms.items() if name != "public_comparison"}
    ledger.header = replace(ledger.header, terms=without)  # as an older version wrote it
    assert any(line.startswith("The public samples were not compared") for line in certificate_of(ledger).statement)


def test_copies_in_the_dataset_are_logged_and_certified(tmp_path, caplog):
    scenario = skewed(tmp_path)
    with np.load(scenario.data.dataset) as archive:
        arrays = dict(archive)
    arrays["x_test"][[4, 100]] = arrays["x_train"][[7, 8]]
    np.savez(scenario.data.dataset, **arrays)
    record = ad.run(scenario, "ota_proxy_fd", out=tmp_path / "run", options=FAST)
    found = [
        "because the dataset has other copies of them: 1.",
        "copies of private samples in the dataset itself: 2.",
    ]
    for sentence in found:
        assert sentence in caplog.text
        assert any(sentence in line for line in ad.certify(record.folder).statement)


def test_a_run_whose_public_file_now_holds_private_samples_is_neither_resumed_nor_audited(tmp_path):
    private = load_dataset(skewed(tmp_path).data.dataset).x_train
    np.savez(tmp_path / "public.npz", x_public=private + 100)
    scenario = skewed(tmp_path, f"public.source={tmp_path / 'public.npz'}", "learning.rounds=3")

    def stop(_record, _num_rounds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ad.run(scenario, "ota_proxy_fd", out=tmp_path / "run", options=FAST, on_round=stop)
    np.savez(tmp_path / "public.npz", x_public=private)
    for go_on in (ad.resume, audit_run, lambda _: ad.pilot(scenario), lambda _: ad.plan(scenario, "ota_proxy_fd")):
        with pytest.raises(InputError, match="60 of its 60 samples are copies"):
            go_on(tmp_path / "run")


def test_whole_devices_are_protected_whatever_sensitivity_the_scenario_declares(tmp_path):
    adapted = load_scheme("airdistill_proxy").adapt(skewed(tmp_path, "privacy.sensitivity=paper"))
    assert adapted.privacy.sensitivity == "device"
    assert (adapted.public.abstain, adapted.learning.receiver) == (True, "learning")
    chosen = load_scheme("airdistill_proxy").adapt(
        skewed(tmp_path, "public.abstain=false", "learning.receiver=tracking")
    )
    assert (chosen.public.abstain, chosen.learning.receiver) == (False, "tracking")
    assert load_scheme("ota_proxy_fd").adapt(skewed(tmp_path)).public.abstain is False


@pytest.mark.parametrize("receiver", ["linear", "projected", "tracking", "learning"])
def test_every_receiver_reads_public_predictions(tmp_path, receiver):
    scenario = skewed(tmp_path, "learning.rounds=2", "public.distill_epochs=10", f"learning.receiver={receiver}")
    record = ad.run(scenario, "ota_proxy_fd", out=tmp_path / "run", options=FAST)
    assert all(line["labels_right"]["broadcast"] > 0.5 for line in record.rounds)


def test_class_means_have_no_learning_receiver(tmp_path):
    with pytest.raises(InputError, match="cannot read class means: one of linear, projected, tracking"):
        ad.run(small_scenario(tmp_path, "learning.receiver=learning"), "ota_fd", out=tmp_path / "run", options=FAST)


def test_models_of_different_kinds_learn_from_each_other(tmp_path):
    groups = 'fleet.groups=[{count=6,model="mlp"},{count=6,model="softmax_regression"}]'
    record = ad.run(skewed(tmp_path, groups, TAUGHT), "airdistill_proxy", out=tmp_path / "run", options=FAST)
    assert record.accuracy["worst"] > 0.5


def test_an_invalid_server_model_is_rejected_before_anything_is_transmitted(tmp_path):
    for name, rule in [("unknown", "must be one of"), ("paper_cnn", "needs images")]:
        with pytest.raises(InputError, match=rule) as refused:
            ad.run(
                skewed(tmp_path, f"public.server_model={name}"), "airdistill_proxy", out=tmp_path / "run", options=FAST
            )
        assert refused.value.field in ("public.server_model", "learning.model")
        assert not (tmp_path / "run").exists()
    scenario = skewed(tmp_path, "public.server_model=mlp", TAUGHT)
    record = ad.run(scenario, "airdistill_proxy", out=tmp_path / "run", options=FAST)
    assert record.accuracy["mean"] > 0.7


@pytest.mark.parametrize(("round_index", "rows"), [(1, [0, 1, 2, 3]), (2, [4, 5, 6, 7]), (3, [8, 9, 0, 1])])
def test_rounds_take_the_public_samples_in_turn(tmp_path, round_index, rows):
    public = skewed(tmp_path, "public.samples=10", "public.samples_per_round=4").public
    assert rows_of_round(public, round_index).tolist() == rows


@pytest.mark.parametrize("receiver", ["linear", "tracking", "learning"])
def test_a_run_over_parts_of_the_set_resumes_bit_identically(tmp_path, receiver):
    scenario = skewed(
        tmp_path, "learning.rounds=4", "public.samples_per_round=20", "learning.local_epochs=1",
        "public.distill_epochs=1", f"learning.receiver={receiver}",
    )  # fmt: skip
    options = RunOptions(threads=1, checkpoint_every=1)
    whole = ad.run(scenario, "ota_proxy_fd", out=tmp_path / "whole", options=options)

    def kill(record, _):
        if record["round"] == 2:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        ad.run(scenario, "ota_proxy_fd", out=tmp_path / "cut", options=options, on_round=kill)
    ad.resume(tmp_path / "cut")
    for name in ("rounds.jsonl", "ledger.jsonl", "summary.json", "certificate.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (whole.folder / name).read_bytes()
    last = [sorted(folder.glob("checkpoint-*.safetensors"))[-1] for folder in (tmp_path / "cut", whole.folder)]
    assert last[0].read_bytes() == last[1].read_bytes()
    assert whole.summary["uplink_seconds"] == pytest.approx(4 * 20 * 4 * 3.6e-6)


def test_the_replay_agrees_with_the_run_and_with_the_neighbouring_pair(tmp_path):
    """With the run's own noise, the learner on D receives the same broadcasts as the devices of the run."""
    skewed(tmp_path)
    changes = [
        f"data.dataset={tmp_path / 'skewed.npz'}", "public.samples=20", "learning.local_epochs=2",
        "learning.batch_size=6", "public.distill_epochs=1",
    ]  # fmt: skip
    context = small_context(tmp_path, "airdistill_proxy", *changes, rounds=3, device=1)
    run = ad.run(context.scenario, "airdistill_proxy", out=tmp_path / "run", options=FLOAT64)
    source = noise_of_run(context, run.folder)
    followed = follow(context, neighbours_of(context, 1, 0), 0, source, True)
    for this, vectors, received, line in zip(
        context.rounds, followed.vectors, context.received, run.rounds, strict=False
    ):
        noise = source(0, this.index, this.design)
        assert context.link.received(this, vectors[0], noise) == pytest.approx(received, rel=1e-9)
        ideal = this.others + this.design.weights[1][:, None] * vectors[0]
        assert ((received - ideal) ** 2).mean(axis=1) == pytest.approx(np.array(line["measured_noise_var"]), rel=1e-6)


@settings(max_examples=8, phases=[Phase.explicit, Phase.generate])
@given(
    scheme=st.sampled_from(["ota_proxy_fd", "airdistill_proxy"]),
    trust=st.sampled_from(["receiver_noise", "fleet_noise", "own_noise"]),
    answers=st.integers(1, 20),
    lr=st.floats(0.01, 3),
    seed=st.integers(0, 1000),
    device=st.integers(0, 2),
)
def test_no_training_exceeds_the_guarantee_of_a_whole_device(
    tmp_path_factory, scheme, trust, answers, lr, seed, device
):
    folder = tmp_path_factory.mktemp("context")
    changes = [
        "public.samples=20", f"public.answers_per_device={answers}", "learning.local_epochs=3", "learning.batch_size=5",
        f"learning.initial_lr={lr}", f"privacy.trust={trust}", f"seed={seed}", "data.samples_per_device=16",
        "learning.rounds=2", "public.distill_epochs=1", "learning.receiver=projected",
    ]  # fmt: skip
    plan, chosen = planned(folder, scheme, *changes)
    options = AuditOptions(device=device, rounds=2, transcripts=2, candidates=4, parts=("exact",), seed=seed)
    found = audit(plan, chosen, options, RunOptions(threads=1))
    assert found.violations == ()
    assert all((pair.mu <= found.exact.guarantee.mu * (1 + 1e-9)).all() for pair in found.exact.pairs)


def test_the_attack_on_drawn_noise_stays_below_the_certificate(tmp_path):
    """The data of a whole device is replaced: the attack on drawn noise against the certified μ."""
    changes = [
        "public.samples=20", "learning.local_epochs=10", "learning.batch_size=5", "learning.rounds=1",
        "learning.initial_lr=0.3", "privacy.epsilon=1",
    ]  # fmt: skip
    plan, chosen = planned(tmp_path, "airdistill_proxy", *changes)
    options = AuditOptions(rounds=1, transcripts=2, candidates=4, parts=("exact", "empirical"), trials=2000)
    found = audit(plan, chosen, options, RunOptions(threads=1))
    assert found.violations == ()
    assert 0 < found.exact.pairs[1].mu.max() <= found.exact.guarantee.mu[-1] * (1 + 1e-9)
    assert found.empirical is not None


def row_receiver(tmp_path, receiver, *changes):
    """The receiver of a plan with 20 of 60 public samples in a round, of which a device answers at most 10."""
    scenario = skewed(
        tmp_path,
        "public.samples_per_round=20",
        "public.answers_per_device=10",
        f"learning.receiver={receiver}",
        *changes,
    )
    scheme = load_scheme("ota_proxy_fd")
    made = plan_scheme(scheme, as_run_by(scheme, scenario))
    _, public = load_data(scenario)
    return receiver_of(made, public, Engine(dtype=torch.float64))


def test_rows_are_scaled_placed_and_pooled(tmp_path):
    """Round t has rows 20(t−1)…; a row and its noise are scaled by N/V = 2; a second visit is pooled."""
    receiver, rng = row_receiver(tmp_path, "linear"), np.random.default_rng(0)
    rounds = [rng.standard_normal((1, 80)) for _ in range(4)]
    for place, (received, noise_var) in enumerate(zip(rounds, (0.1, 0.2, 0.3, 0.4), strict=True)):
        broadcast = receiver.estimate(received, np.array([noise_var])).knowledge
        assert np.isfinite(broadcast).all(axis=1).tolist() == [row < 20 * (place + 1) for row in range(60)]
        if place == 1:
            state = {name: array.copy() for name, array in receiver.state().items()}
    first = (rounds[0] / 0.1 + rounds[3] / 0.4) / (1 / 0.1 + 1 / 0.4)
    assert broadcast[:20] == pytest.approx(2 * first.reshape(20, 4))
    assert broadcast[20:40] == pytest.approx(2 * rounds[1].reshape(20, 4))
    again = row_receiver(tmp_path, "linear")
    again.restore(state)
    for received, noise_var in zip(rounds[2:], (0.3, 0.4), strict=True):
        resumed = again.estimate(received, np.array([noise_var])).knowledge
    assert np.array_equal(resumed, broadcast)


def test_the_tracker_shrinks_by_the_noise_of_the_scaled_rows(tmp_path):
    """Prior variance s² = mean square − v, gain s²/(s² + v), all of rows times 2 and v times 4."""
    received, noise_var = np.random.default_rng(1).standard_normal((1, 80)), 0.2
    broadcast = row_receiver(tmp_path, "tracking", "learning.knowledge_drift=1e-9").estimate(
        received, np.array([noise_var])
    )
    rows = 2 * received.reshape(20, 4)
    middle = rows.mean(axis=0)
    variance = ((rows - middle) ** 2).mean() - 4 * noise_var
    shrunk = middle + variance / (variance + 4 * noise_var) * (rows - middle)
    assert broadcast.knowledge[:20] == pytest.approx(project_on_simplex(shrunk))


def simulation_of(tmp_path, scheme, *changes):
    chosen = load_scheme(scheme)
    made = plan_scheme(chosen, as_run_by(chosen, skewed(tmp_path, *changes)))
    return Simulation(made, chosen, FAST.resolved()), payload_protocol(made)


def answers_of(tmp_path, scheme, *changes):
    """`[device, sample, class]`, after the training of the first round."""
    simulation, protocol = simulation_of(tmp_path, scheme, *changes)
    return protocol.vectors(simulation.fleet, 1, range(12)).reshape(12, 60, 4), simulation.fleet


def test_devices_that_learn_to_abstain_are_less_certain_of_unknown_classes(tmp_path):
    rows = np.arange(60)
    certainty = {
        weight: answers_of(tmp_path, "airdistill_proxy", f"public.abstain_weight={weight}")[1].public_predictions(rows)
        for weight in (0, 1)
    }
    assert certainty[1].max(axis=2).mean() < certainty[0].max(axis=2).mean() - 0.1


def test_abstaining_devices_use_all_their_votes_and_others_send_predictions(tmp_path):
    voted, _ = answers_of(tmp_path, "airdistill_proxy")
    assert set(np.unique(voted)) == {0, 1}
    assert voted.any(axis=2).sum(axis=1).tolist() == [30] * 12  # two classes of four
    predicted, _ = answers_of(tmp_path, "ota_proxy_fd", "public.answers_per_device=60")
    np.testing.assert_allclose(predicted.sum(axis=2), 1)


def test_the_client_selector_chooses_the_answered_samples(tmp_path):
    free, _ = answers_of(tmp_path, "proxy_fd", "public.answers_per_device=60")
    chosen, fleet = answers_of(tmp_path, "selective_fd", "public.answers_per_device=60")
    assert free.any(axis=2).all()
    answered = chosen.any(axis=2)
    assert 0.1 < answered.mean() < 0.9
    np.testing.assert_allclose(chosen[answered], free[answered])
    samples, labels = (tensor.numpy() for tensor in fleet.learners[3].samples_and_labels())
    selector = ClientSelector.for_device(samples, labels, stream(0, "client-selector", 0, 3))
    assert np.array_equal(answered[3], selector.accepts(fleet.public.numpy()))


def test_the_server_selector_drops_uncertain_rows(tmp_path):
    strict, _ = simulation_of(tmp_path, "proxy_fd", "public.server_selector=0.4")
    free, _ = simulation_of(tmp_path, "proxy_fd")
    right = [each.advance()["labels_right"] for each in (strict, free)]
    assert right[0]["ideal"] == right[1]["ideal"] == right[1]["broadcast"]
    assert right[0]["broadcast"] > right[1]["broadcast"]
    with pytest.raises(InputError, match="needs the number of devices that answered, which is private"):
        simulation_of(tmp_path, "airdistill_proxy", "public.server_selector=0.4")


def test_answers_beyond_the_agreed_number_are_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(payloads, "surest_answers", lambda answers, _certainty, _most: answers)
    with pytest.raises(ValueError, match="answers 60 samples, where 30 were agreed"):
        answers_of(tmp_path, "ota_proxy_fd")


class TenTimes(OtaProxyFd):
    """A scheme of a user's own whose vectors exceed the norm that its plan is for."""

    name = "ten_times"

    def play(self, this):
        reception = this.transmit(10 * this.vectors())
        return Outcome(this.learn(reception.broadcast), reception)


def test_vectors_above_the_planned_norm_are_refused(tmp_path):
    made = plan_scheme(TenTimes(), as_run_by(TenTimes(), skewed(tmp_path)))
    with pytest.raises(AirDistillError, match=r"device \d+ would send a vector of norm .*; .* planned for 5\.47"):
        Simulation(made, TenTimes(), FAST.resolved()).advance()


def test_a_round_beyond_the_budget_trains_no_device(tmp_path):
    simulation, _ = simulation_of(tmp_path, "ota_proxy_fd", "learning.rounds=2")
    simulation.advance()
    before = {name: tensor.clone() for name, tensor in simulation.fleet.state().items()}
    simulation.ledger.charge = lambda _release: (_ for _ in ()).throw(BudgetExceeded("spent"))
    with pytest.raises(BudgetExceeded):
        simulation.advance()
    assert all(torch.equal(tensor, before[name]) for name, tensor in simulation.fleet.state().items())


def test_diverging_training_is_reported(tmp_path):
    scheme = load_scheme("airdistill_proxy")
    scenario = skewed(tmp_path, "learning.model=mlp", "learning.initial_lr=1e20")
    with pytest.raises(TrainingDivergedError, match="round 1, device 0: training diverged"):
        Simulation(plan_scheme(scheme, as_run_by(scheme, scenario)), scheme, RunOptions(threads=1).resolved()).advance()


def test_a_public_set_that_cannot_be_loaded_is_refused_by_the_plan(tmp_path):
    scheme = load_scheme("ota_proxy_fd")
    with pytest.raises(InputError, match=r"public\.samples"):
        plan_scheme(scheme, as_run_by(scheme, skewed(tmp_path, "public.samples=120")))


def test_non_private_schemes_have_no_public_set_what_if(tmp_path):
    for scheme, expected in [("proxy_fd", False), ("ota_proxy_fd", True)]:
        simulation, _ = simulation_of(tmp_path, scheme)
        assert (public_set_what_if(simulation.plan) is not None) == expected
