from dataclasses import replace

import numpy as np
import pytest
import torch
from one_thread import one_thread  # noqa: F401 - a fixture for all tests here
from small_worlds import small_scenario, write_dataset

import airdistill as ad
from airdistill.data.datasets import load_dataset
from airdistill.errors import InputError
from airdistill.learning.pilot import MeasuredConstants
from airdistill.runs.pilot_data import pilot_data
from airdistill.runs.piloting import Extent

NAMES = ("grad_lipschitz", "model_lipschitz", "grad_norm_bound", "loss_bound")


def changed_dataset(folder, source, **arrays):
    """A copy of an .npz with some arrays replaced."""
    with np.load(source) as archive:
        given = dict(archive)
    np.savez(folder / "changed.npz", **(given | arrays))
    return folder / "changed.npz"


@pytest.fixture
def scenario(tmp_path):
    return small_scenario(tmp_path)


def quick_pilot(scenario, **options):
    return ad.pilot(scenario, **({"rounds": 2, "repeats": 2} | options))


def test_a_pilot_depends_on_the_seed_alone(scenario):
    first, second = quick_pilot(scenario), quick_pilot(scenario)
    assert first == second
    assert first.seen[0] != first.seen[1]
    other = quick_pilot(scenario.model_copy(update={"seed": 1}))
    assert not set(other.seen) & set(first.seen)


def test_more_repeats_leave_the_earlier_ones_as_they_were(scenario):
    assert quick_pilot(scenario, repeats=3).seen[:2] == quick_pilot(scenario, repeats=2).seen


def test_more_rounds_measure_values_that_are_not_smaller(scenario):
    short, long = (quick_pilot(scenario, rounds=rounds, repeats=1).seen[0] for rounds in (1, 2))
    assert all(getattr(long, name) >= getattr(short, name) for name in NAMES)


@pytest.mark.parametrize(
    ("data", "reads_training", "reads_test"), [("synthetic", 0, 0), ("public", 0, 1), ("private", 1, 0)]
)
def test_a_pilot_reads_only_the_data_that_it_may(tmp_path, scenario, data, reads_training, reads_test):
    """Other values in the part that a pilot must not read leave its measurements bit-identical."""
    before = quick_pilot(scenario, data=data).seen
    for array, reads in [("x_train", reads_training), ("x_test", reads_test)]:
        own = load_dataset(scenario.data.dataset)
        path = changed_dataset(tmp_path, scenario.data.dataset, **{array: 2 * getattr(own, array)})
        after = quick_pilot(ad.load("quick", _changes_for(path)), data=data).seen
        assert (after != before) == bool(reads), array


def _changes_for(path):
    return [
        "fleet.devices=3", f"data.dataset={path}", "data.samples_per_device=20", "learning.rounds=6",
        "learning.model=softmax_regression", "learning.local_epochs=0", "learning.initial_lr=0.1",
    ]  # fmt: skip


def test_pilot_devices_have_the_class_counts_of_the_fleets_devices(tmp_path):
    scenario = small_scenario(tmp_path, "data.partition=shards", "data.classes_per_device=1")
    counts = ad.plan(scenario).fleet.class_counts
    for data in ("synthetic", "private"):
        dataset, indices = pilot_data(scenario, data, counts).draw(0, [0, 2])
        for device, held in zip([0, 2], indices, strict=True):
            np.testing.assert_array_equal(np.bincount(dataset.y_train[held], minlength=3), counts[device])
    assert quick_pilot(scenario, devices=1).seen[0].model_lipschitz > 0  # a model has outputs for classes it lacks


def test_a_public_set_that_is_too_small_is_used_whole_and_reported(tmp_path):
    path = write_dataset(tmp_path / "blobs.npz", num_test=9)
    record = quick_pilot(small_scenario(tmp_path), data="public")
    assert (record.fewest_samples, record.too_few_samples) == (9, True)
    assert not quick_pilot(small_scenario(tmp_path)).too_few_samples
    own = load_dataset(str(path))
    lacking = changed_dataset(tmp_path, path, x_test=own.x_test[own.y_test < 2], y_test=own.y_test[own.y_test < 2])
    with pytest.raises(InputError, match="no sample of class 2"):
        quick_pilot(ad.load("quick", _changes_for(lacking)), data="public")


def test_another_dataset_can_be_public_if_it_has_the_same_shape_and_is_not_the_devices_own(tmp_path, scenario):
    other = write_dataset(tmp_path / "other.npz", seed=5)
    assert quick_pilot(scenario, data=str(other)).source == "public"
    wide = write_dataset(tmp_path / "wide.npz", features=(5,))
    for data, words in [
        (str(wide), "its samples are"),
        (scenario.data.dataset, "devices' own"),
        (str(tmp_path / "." / "blobs.npz"), "devices' own"),
        ("nonsense", "must be synthetic"),
    ]:
        with pytest.raises(InputError, match=words):
            quick_pilot(scenario, data=data)


def test_private_samples_are_not_public_in_another_file_either(tmp_path, scenario):
    own = load_dataset(scenario.data.dataset)
    theirs = load_dataset(str(write_dataset(tmp_path / "theirs.npz", seed=5)))
    mixed = changed_dataset(
        tmp_path, scenario.data.dataset, x_train=np.concatenate([theirs.x_train[:59], own.x_train[:1]])
    )
    with pytest.raises(InputError, match=r"--data = .*1 of its 60 .*\(sample 59 is training sample 0\)"):
        quick_pilot(scenario, data=str(mixed))


def test_declared_counts_can_be_piloted_but_not_on_private_data(tmp_path):
    given = ["fleet.devices=3", "data.class_counts=[[9, 0], [5, 5], [0, 9]]", "learning.model=softmax_regression"]
    scenario = ad.load("quick", [*given, f"data.dataset={write_dataset(tmp_path / 'blobs.npz')}"])
    assert quick_pilot(scenario, rounds=1).fewest_samples <= 10
    with pytest.raises(InputError, match="declared"):
        quick_pilot(scenario, data="private")


def test_every_model_of_a_mixed_fleet_is_measured(tmp_path):
    groups = 'fleet.groups=[{count = 2, model = "softmax_regression"}, {count = 1, model = "mlp"}]'
    scenario = small_scenario(tmp_path, groups)
    assert quick_pilot(scenario, rounds=1).devices == 2
    for devices in (1, 4):
        with pytest.raises(InputError, match="--devices"):
            quick_pilot(scenario, devices=devices)


def broken(num_classes):
    class Broken(torch.nn.Linear):
        def forward(self, samples):
            if torch.is_grad_enabled() and self.training is False and samples.shape[0] > 3:
                raise ValueError("no")
            return super().forward(samples)

    return Broken(4, num_classes)


def test_a_failing_model_of_the_user_is_a_user_error(tmp_path):
    with pytest.raises(ad.AirDistillError, match="your model cannot be measured: ValueError: no"):
        quick_pilot(small_scenario(tmp_path, f"learning.model={__name__}:broken"))


def test_an_estimate_is_the_largest_rounded_up():
    extent = Extent((1.2341, 0.98, 1.1))
    assert (extent.smallest, extent.median, extent.estimate) == (0.98, 1.1, 1.24)
    assert Extent((1234.5,)).estimate == 1240


def test_rounds_follow_the_closed_form(scenario):
    """T̂ = 3Σf_max/(η0·6η0γ²L2²L1·noise): each row against the declared one."""
    record = quick_pilot(scenario)
    rows = {optimum.choice: optimum for optimum in record.optima}
    declared, high = rows["declared"], rows["estimate"]
    assert declared.constants == {name: getattr(scenario.constants, name) for name in NAMES}
    assert high.constants == {name: extent.estimate for name, extent in record.extents.items()}
    for row in rows.values():
        c, d = row.constants, declared.constants
        ratio = (c["loss_bound"] / d["loss_bound"]) * (d["model_lipschitz"] / c["model_lipschitz"]) ** 2
        ratio *= d["grad_lipschitz"] / c["grad_lipschitz"]
        assert row.privacy_limited / declared.privacy_limited == pytest.approx(ratio, rel=1e-9)
        assert rows["fewest rounds"].rounds <= row.rounds <= rows["most rounds"].rounds or row in (
            declared,
            rows["L1 of own way"],
        )
        if row.choice in ("most rounds", "estimate"):
            planned = ad.plan(ad.load("quick", [*_changes_for(scenario.data.dataset), *_as_changes(c)]), "ota_fd")
            assert planned.rounds.exact == row.rounds
    assert rows["L1 smallest"].constants == high.constants | {
        "grad_lipschitz": record.extents["grad_lipschitz"].smallest
    }


def _as_changes(constants):
    return [f"constants.{name}={value}" for name, value in constants.items()]


def test_a_measured_scenario_can_be_loaded_and_planned(tmp_path, scenario):
    record = quick_pilot(scenario, data="public")
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "measured.toml"
    path.write_text(record.to_toml())
    loaded = ad.load(path)
    assert loaded == record.measured_scenario
    assert loaded.constants.source == "public"
    for name in NAMES:
        assert getattr(loaded.constants, name) == record.extents[name].estimate
        assert getattr(loaded.constants, name) >= max(getattr(each, name) for each in record.seen)
    assert loaded.model_copy(update={"constants": scenario.constants}) == scenario
    assert any("declared public" in line for line in ad.plan(loaded).assumptions)


def test_plan_and_certificate_state_that_a_pilot_was_private(tmp_path, scenario):
    measured = quick_pilot(scenario, data="private", rounds=1).measured_scenario
    assert any("pilot was not private" in warning for warning in ad.plan(measured).warnings)
    certificate = ad.certify(ad.run(measured, rounds=1, out=tmp_path / "run").folder)
    assert "harmless pilot" in certificate.verdict_in_words
    assert any("pilot was not private" in reason for reason in certificate.reasons)


def test_a_record_can_be_written_as_json(scenario):
    record = quick_pilot(scenario)
    written = record.to_dict()
    assert written["constants"]["loss_bound"]["values"] == [each.loss_bound for each in record.seen]
    assert written["chance_of_more"] == pytest.approx(1 / 3)
    assert [row["choice"] for row in written["optima"]][:2] == ["declared", "smallest"]
    assert replace(record, seen=(MeasuredConstants(1, 2, 3, 4, 5),)).measured_scenario.constants.model_lipschitz == 2
