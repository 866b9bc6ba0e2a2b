"""Knowledge on a public set from end to end: who learns what from whom, what is recorded, and what it gives away."""

import numpy as np
import pytest
from audited_worlds import FLOAT64, planned, small_world
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from small_worlds import small_scenario, write_dataset

import airdistill as ad
from airdistill.audit.auditing import audit
from airdistill.audit.neighbours import neighbours_of
from airdistill.audit.options import AuditOptions
from airdistill.audit.twins import follow
from airdistill.errors import InputError
from airdistill.privacy.ledger import Ledger
from airdistill.report.page import render
from airdistill.report.run_page import run_page
from airdistill.runs.options import RunOptions
from airdistill.schemes.public_sharing import rows_of_round
from airdistill.schemes.registry import load_scheme

FAST = RunOptions(threads=1, eval_every=100, dtype="float64")
SCHEMES = ("proxy_fd", "selective_fd", "ota_proxy_fd", "airdistill_proxy")


def skewed(folder, *changes):
    """Twelve devices that hold two of four blobs each; 60 of 120 test samples are public."""
    path = folder / "skewed.npz"
    if not path.exists():
        write_dataset(path, num_classes=4, features=(8,), num_train=240, num_test=120)
    return small_scenario(
        folder, f"data.dataset={path}", "fleet.devices=12", "data.partition=shards", "data.classes_per_device=2",
        "public.samples=60", "public.distill_epochs=50", "learning.rounds=1", "learning.local_epochs=5",
        "learning.batch_size=5", "learning.initial_lr=0.05", "radio.noise_power=1e-16", "privacy.epsilon=50", *changes,
    )  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
def test_devices_learn_classes_that_they_never_saw(tmp_path, scheme):
    alone = ad.run(skewed(tmp_path), "local_only", out=tmp_path / "alone", options=FAST)
    together = ad.run(skewed(tmp_path), scheme, out=tmp_path / "together", options=FAST)
    assert alone.accuracy["mean"] < 0.6
    assert together.accuracy["mean"] > 0.75
    assert together.rounds[0]["labels_right"]["broadcast"] > 0.6
    assert together.summary["uplink_seconds"] == pytest.approx(60 * 4 * 3.6e-6)


def test_the_page_of_a_run_says_how_many_labels_are_right(tmp_path):
    record = ad.run(skewed(tmp_path), "ota_proxy_fd", out=tmp_path / "run", options=FAST)
    page = render(run_page(record))
    assert f"{record.rounds[0]['labels_right']['received']:.1%} as received" in page


def test_with_no_passes_over_the_public_set_nothing_is_learned_from_it(tmp_path):
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


def test_class_means_cannot_teach_them(tmp_path):
    record = ad.run(skewed(tmp_path, "learning.rounds=5"), "fd_error_free", out=tmp_path / "run", options=FAST)
    assert record.accuracy["mean"] < 0.6


def test_the_noise_that_arrives_is_the_one_that_was_planned(tmp_path):
    """Per entry over 20 rounds: the mean ratio of measured to predicted variance, within five of its own errors."""
    record = ad.run(
        skewed(tmp_path, "learning.rounds=20", "public.distill_epochs=1"),
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
    assert any("answers no more public samples than was agreed" in line for line in certificate.statement)
    assert {"harmless public set"} <= {assumption.name for assumption in certificate.assumptions}


def test_whole_devices_are_protected_whatever_the_scenario_declares(tmp_path):
    adapted = load_scheme("airdistill_proxy").adapt(skewed(tmp_path, "privacy.sensitivity=paper"))
    assert adapted.privacy.sensitivity == "device"
    assert (adapted.public.abstain, adapted.learning.receiver) == (True, "learning")
    chosen = load_scheme("airdistill_proxy").adapt(
        skewed(tmp_path, "public.abstain=false", "learning.receiver=tracking")
    )
    assert (chosen.public.abstain, chosen.learning.receiver) == (False, "tracking")
    assert load_scheme("ota_proxy_fd").adapt(skewed(tmp_path)).public.abstain is False


@pytest.mark.parametrize("receiver", ["linear", "projected", "tracking", "learning"])
def test_every_receiver_reads_the_rows(tmp_path, receiver):
    scenario = skewed(tmp_path, "learning.rounds=2", f"learning.receiver={receiver}")
    record = ad.run(scenario, "ota_proxy_fd", out=tmp_path / "run", options=FAST)
    assert all(line["labels_right"]["broadcast"] > 0.5 for line in record.rounds)


def test_class_means_have_no_learning_receiver(tmp_path):
    with pytest.raises(InputError, match="a server learns from predictions on a public set"):
        ad.run(small_scenario(tmp_path, "learning.receiver=learning"), "ota_fd", out=tmp_path / "run", options=FAST)


def test_models_of_different_kinds_learn_from_each_other(tmp_path):
    groups = 'fleet.groups=[{count=6,model="mlp"},{count=6,model="softmax_regression"}]'
    record = ad.run(skewed(tmp_path, groups), "airdistill_proxy", out=tmp_path / "run", options=FAST)
    assert record.accuracy["worst"] > 0.5


def test_the_servers_model_is_looked_at_before_anything_is_sent(tmp_path):
    for name, rule in [("nobody", "must be one of"), ("paper_cnn", "needs images")]:
        with pytest.raises(InputError, match=rule) as refused:
            ad.run(
                skewed(tmp_path, f"public.server_model={name}"), "airdistill_proxy", out=tmp_path / "run", options=FAST
            )
        assert refused.value.field in ("public.server_model", "learning.model")
        assert not (tmp_path / "run").exists()
    record = ad.run(skewed(tmp_path, "public.server_model=mlp"), "airdistill_proxy", out=tmp_path / "run", options=FAST)
    assert record.accuracy["mean"] > 0.7


@pytest.mark.parametrize(("round_index", "rows"), [(1, [0, 1, 2, 3]), (2, [4, 5, 6, 7]), (3, [8, 9, 0, 1])])
def test_rounds_ask_about_the_next_samples(tmp_path, round_index, rows):
    public = skewed(tmp_path, "public.samples=10", "public.samples_per_round=4").public
    assert rows_of_round(public, round_index).tolist() == rows


@pytest.mark.parametrize("receiver", ["linear", "tracking", "learning"])
def test_a_run_over_parts_of_the_set_resumes_to_the_same_bytes(tmp_path, receiver):
    scenario = skewed(
        tmp_path, "learning.rounds=4", "public.samples_per_round=20", "learning.local_epochs=1",
        "public.distill_epochs=1", f"learning.receiver={receiver}",
    )  # fmt: skip
    options = RunOptions(threads=1, checkpoint_every=1)
    whole = ad.run(scenario, "ota_proxy_fd", out=tmp_path / "whole", options=options)

    def pull_the_plug(record, _):
        if record["round"] == 2:
            raise RuntimeError("plug")

    with pytest.raises(RuntimeError, match="plug"):
        ad.run(scenario, "ota_proxy_fd", out=tmp_path / "cut", options=options, on_round=pull_the_plug)
    ad.resume(tmp_path / "cut")
    for name in ("rounds.jsonl", "ledger.jsonl", "summary.json", "certificate.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (whole.folder / name).read_bytes()
    last = [sorted(folder.glob("checkpoint-*.safetensors"))[-1] for folder in (tmp_path / "cut", whole.folder)]
    assert last[0].read_bytes() == last[1].read_bytes()
    assert whole.summary["uplink_seconds"] == pytest.approx(4 * 20 * 4 * 3.6e-6)


def test_the_replay_is_the_run_and_twins_fit_into_it(tmp_path):
    """With the run's own noise the audited device's twin hears what the run's devices heard."""
    skewed(tmp_path)
    changes = [
        f"data.dataset={tmp_path / 'skewed.npz'}", "public.samples=20", "learning.local_epochs=2",
        "learning.batch_size=6", "public.distill_epochs=1",
    ]  # fmt: skip
    world = small_world(tmp_path, "airdistill_proxy", *changes, rounds=3, device=1)
    followed = follow(world, neighbours_of(world, 1, 0), world.scenario.seed, world.link.seeded_noise, True)
    run = ad.run(world.scenario, "airdistill_proxy", out=tmp_path / "run", options=FLOAT64)
    for this, vectors, heard, line in zip(world.rounds, followed.vectors, world.received, run.rounds, strict=False):
        noise = world.link.seeded_noise(world.scenario.seed, this.index, this.design)
        assert world.link.received(this, vectors[0], noise) == pytest.approx(heard, rel=1e-9)
        ideal = this.others + this.design.weights[1][:, None] * vectors[0]
        assert ((heard - ideal) ** 2).mean(axis=1) == pytest.approx(np.array(line["measured_noise_var"]), rel=1e-6)


@settings(max_examples=8, phases=[Phase.explicit, Phase.generate])
@given(
    scheme=st.sampled_from(["ota_proxy_fd", "airdistill_proxy"]),
    trust=st.sampled_from(["receiver_noise", "fleet_noise", "own_noise"]),
    answers=st.integers(1, 20),
    lr=st.floats(0.01, 3),
    seed=st.integers(0, 1000),
    device=st.integers(0, 2),
)
def test_no_training_exceeds_what_a_whole_device_was_promised(
    tmp_path_factory, scheme, trust, answers, lr, seed, device
):
    folder = tmp_path_factory.mktemp("world")
    changes = [
        "public.samples=20", f"public.answers_per_device={answers}", "learning.local_epochs=3", "learning.batch_size=5",
        f"learning.initial_lr={lr}", f"privacy.trust={trust}", f"seed={seed}", "data.samples_per_device=16",
        "learning.rounds=2", "public.distill_epochs=1", "learning.receiver=projected",
    ]  # fmt: skip
    plan, chosen = planned(folder, scheme, *changes)
    options = AuditOptions(device=device, rounds=2, transcripts=2, candidates=4, parts=("exact",), seed=seed)
    found = audit(plan, chosen, options, RunOptions(threads=1))
    assert found.violations == ()
    assert all((pair.mu <= found.exact.promise.mu * (1 + 1e-9)).all() for pair in found.exact.pairs)


def test_the_attack_on_drawn_noise_stays_below_the_certificate(tmp_path):
    """A device whose data is replaced: what an attacker tells apart in drawn noise, against what was promised."""
    changes = [
        "public.samples=20", "learning.local_epochs=10", "learning.batch_size=5", "learning.rounds=1",
        "learning.initial_lr=0.3", "privacy.epsilon=1",
    ]  # fmt: skip
    plan, chosen = planned(tmp_path, "airdistill_proxy", *changes)
    options = AuditOptions(
        rounds=1, transcripts=2, candidates=4, parts=("exact", "empirical", "membership"), trials=2000
    )
    found = audit(plan, chosen, options, RunOptions(threads=1))
    assert found.violations == ()
    assert 0 < found.exact.pairs[1].mu.max() <= found.exact.promise.mu[-1] * (1 + 1e-9)
    assert found.empirical is not None
    assert found.membership is None
    assert any("comes of public knowledge" in note for note in found.notes)
