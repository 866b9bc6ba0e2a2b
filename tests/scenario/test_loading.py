import math

import numpy as np
import pytest

from airdistill.errors import InputError
from airdistill.scenario import load, preset_names, preset_text
from airdistill.scenario.loading import as_toml, changed, for_scheme
from airdistill.streams import stream

MINIMAL = "[fleet]\ndevices = 3\n[privacy]\nepsilon = 8\ndelta = 1e-5\n"


@pytest.fixture
def scenario_file(tmp_path):
    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return write


def test_what_is_left_out_gets_the_sound_choice(scenario_file):
    scenario = load(scenario_file(MINIMAL))
    privacy = scenario.privacy
    assert (privacy.sensitivity, privacy.accountant, privacy.trust) == ("device", "exact", "fleet_noise")
    assert scenario.name == "mine"


def test_a_scenario_is_frozen():
    with pytest.raises(Exception, match="frozen"):
        load("quick").seed = 3


def test_a_range_is_drawn_and_a_list_is_taken_as_it_is():
    scenario = load("paper", ["privacy.epsilon=[0.5, 2]", "radio.peak_power=5 mW"])
    epsilon = scenario.privacy.epsilon.draw(10_000, stream(0, "test"))
    # Uniform on [0.5, 2]: mean 1.25, standard deviation 0.433; five standard errors.
    assert epsilon.min() >= 0.5
    assert epsilon.max() <= 2
    assert abs(epsilon.mean() - 1.25) < 5 * 0.433 / 100
    assert np.array_equal(scenario.radio.peak_power.draw(4, stream(0, "test")), np.full(4, 5e-3))
    three = load("paper", ["fleet.devices=3", "privacy.epsilon=[3, 1, 2]"])
    assert three.privacy.epsilon.draw(3, stream(0, "test")).tolist() == [3, 1, 2]


def test_two_devices_can_have_a_list_of_their_own():
    scenario = load("paper", ["fleet.devices=2", "privacy.epsilon={values = [3, 1]}"])
    assert scenario.privacy.epsilon.draw(2, stream(0, "test")).tolist() == [3, 1]


def test_a_range_of_samples_includes_its_ends():
    sizes = load("paper", ["data.samples_per_device=[3, 5]"]).data.samples_per_device
    assert set(sizes.draw_integers(200, stream(0, "test"))) == {3, 4, 5}


def test_infinite_epsilon_asks_for_no_privacy():
    assert load("paper", ["privacy.epsilon=inf"]).privacy.epsilon.numbers == (math.inf,)


def test_a_change_may_be_toml_or_plain_text():
    changes = ["radio.noise_power=-113 dBm", 'radio.distance=["1 km", "2 km"]', "learning.rounds=paper", "seed=4"]
    scenario = load("quick", changes)
    assert scenario.radio.noise_power == pytest.approx(5.0119e-15, rel=1e-4)
    assert scenario.radio.distance.numbers == (1000.0, 2000.0)
    assert (scenario.learning.rounds, scenario.seed) == ("paper", 4)


def test_a_scenario_can_be_written_and_read():
    scenario = load("paper", ["privacy.epsilon=inf", "fleet.devices=2", "privacy.delta={values=[0.1, 0.2]}"])
    assert changed(scenario, {}) == scenario
    assert type(scenario).model_validate_json(scenario.model_dump_json()) == scenario


def test_overrides_apply_to_their_scheme_only():
    scenario = load("paper")
    assert for_scheme(scenario, "ota_fd") == scenario
    federated = for_scheme(scenario, "ota_fl")
    assert federated.radio.noise_power == 1e-10
    assert federated.privacy.epsilon.numbers == (1, 100)
    assert federated.learning.batch_size == scenario.learning.batch_size


def test_an_override_that_the_scenario_does_not_allow_is_refused_for_its_scheme_only():
    """`skewed` truncates for ota_head, which correlated noise does not allow; ota_fedavg does not truncate."""
    scenario = load("skewed", ["privacy.correlation=banded"])
    assert for_scheme(scenario, "ota_fedavg").privacy.correlation == "banded"
    with pytest.raises(InputError, match="every device adds the same share") as caught:
        for_scheme(scenario, "ota_head")
    assert caught.value.field == "overrides.ota_head.radio.truncation"


def test_paths_in_a_file_start_at_its_folder(scenario_file, tmp_path):
    np.savez(tmp_path / "trace.npz", channel=np.ones((2, 3)))
    path = scenario_file(MINIMAL + '[radio]\ntrace = "trace.npz"\n')
    assert load(path).radio.trace == str(tmp_path / "trace.npz")


@pytest.mark.parametrize(
    ("change", "field", "rule"),
    [
        ("radio.peak_power=-1 mW", "radio.peak_power", "greater than 0"),
        ("radio.peak_power=0 W", "radio.peak_power", "greater than 0"),
        ("radio.peak_power=nan", "radio.peak_power", "finite"),
        ("radio.noise_power=-1 W", "radio.noise_power", "negative"),
        ("radio.carrier=3 W", "radio.carrier", "unit of power"),
        ("radio.peak_powr=1", "radio.peak_powr", "did you mean peak_power"),
        ("radio.fading=foggy", "radio.fading", "rayleigh"),
        ("radio.outage=1", "radio.outage", "below 1"),
        ("radio.gains=[[1, 0]]", "radio.gains", "50 devices"),
        ("privacy.epsilon=0", "privacy.epsilon", "greater than 0"),
        ("privacy.epsilon=-inf", "privacy.epsilon", "greater than 0"),
        ("privacy.epsilon=nan", "privacy.epsilon", "number"),
        ("privacy.epsilon=[1, inf]", "privacy.epsilon", "range"),
        ("privacy.epsilon=[2, 1]", "privacy.epsilon", "low ≤ high"),
        ("privacy.epsilon=[1, 2, 3]", "privacy.epsilon", "50 devices"),
        ("privacy.epsilon=[1, 0, 3]", "privacy.epsilon", "entry 1"),
        ("privacy.delta=1", "privacy.delta", "between 0 and 1"),
        ("privacy.delta=0", "privacy.delta", "between 0 and 1"),
        ("privacy.relabel=1", "privacy.relabel", "true or false"),
        ("fleet.devices=0", "fleet.devices", "1"),
        ("fleet.devices=2.5", "fleet.devices", "whole number"),
        ("fleet.min_devices=51", "fleet.min_devices", "only 50"),
        ("fleet.groups=[{count=3, model='mlp'}]", "fleet.devices", "groups hold 3"),
        ("data.samples_per_device=0", "data.samples_per_device", "without data"),
        ("data.samples_per_device=inf", "data.samples_per_device", "finite"),
        ("data.partition=dirichlet", "data.alpha", "concentration"),
        ("data.partition=shards", "data.classes_per_device", "needs"),
        ("data.class_counts=[[1, 2], [3]]", "data.class_counts", "one row per device"),
        ("data.class_counts=[[1, 2], [3, 4]]", "data.class_counts", "50 devices"),
        ("data.class_counts=[[1, -2]]", "data.class_counts", "negative"),
        ("data.class_counts=[[1, 2], [0, 0]]", "data.class_counts", "device 1 has no data"),
        ("learning.rounds=0", "learning.rounds", "whole number from 1"),
        ("learning.rounds=soon", "learning.rounds", "optimal"),
        ("learning.rounds=true", "learning.rounds", "optimal"),
        ("constants.loss_bound=nan", "constants.loss_bound", "number"),
        ("overrides.ota_fl.radio.x=1", "overrides.ota_fl.radio.x", "unknown key"),
        ("bogus=1", "bogus", "unknown key"),
        ("radio=3", "radio", "table"),
        ("radio.transceiver=paper", "privacy.trust", "receiver_noise"),
        ("seed", "--set", "section.field=value"),
        ("seed=1\nfoo=2", "seed", "whole number"),
        ("privacy.epsilon=1e999", "privacy.epsilon", "number"),
        ("privacy.epsilon=1e-13", "privacy.epsilon", "or be inf"),
        ("privacy.delta=1e-200", "privacy.delta", "at least"),
        ('privacy.epsilon=["a\\nb", 1, 2]', "privacy.epsilon", "entry 0"),
        ("learning.distill_weight=1e200", "learning.distill_weight", "between"),
        ("constants.model_lipschitz=1e200", "constants.model_lipschitz", "between"),
        ("radio.rician_k_db=1e5", "radio.rician_k_db", "at most 100"),
        ("radio.distance=1e-300 m", "radio.distance", "between"),
        ("radio.gains=[[1e200, 0]]", "radio.gains.0.0", "between"),
        ("data.samples_per_device=1e19", "data.samples_per_device", "whole number"),
        ("fleet.devices=1000000000000", "fleet.devices", "at most"),
        ("data.class_counts=[[1000000000000000000000000000000]]", "data.class_counts", "between"),
        ("name=../escape", "name", "letters, digits"),
        ("overrides.a.overrides.b.c=1", "overrides.a.overrides", "cannot change"),
        (f"learning.max_rounds={10**400}", "learning.max_rounds", "at most"),
        (f"privacy.epsilon={10**400}", "privacy.epsilon", "between"),
        (f"radio.peak_power={10**400}", "radio.peak_power", "finite"),
        (f"learning.rounds={10**400}", "learning.rounds", "whole number"),
        ("seed=" + "1" * 5000, "seed", "whole number"),
        ("seed=" + "[" * 5000, "--set", "deeply"),
    ],
)
def test_an_invalid_field_is_named_with_value_and_rule(change, field, rule):
    base = "device-level" if "transceiver" in change else "paper"
    extra = ["privacy.sensitivity=paper", "privacy.accountant=paper"] if "transceiver" in change else []
    with pytest.raises(InputError, match=rule) as caught:
        load(base, [*extra, change])
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("[fleet\n", "not valid TOML"),
        ("[fleet]\ndevices = 3\n", "privacy = .not given.: is required"),
        ("[fleet]\n[privacy]\nepsilon = 1\ndelta = 0.1\n", "needs devices"),
    ],
)
def test_an_invalid_file_is_rejected(scenario_file, text, rule):
    with pytest.raises(InputError, match=rule):
        load(scenario_file(text))


def test_a_missing_file_names_the_presets(tmp_path):
    with pytest.raises(InputError, match="presets are device-level, paper"):
        load(tmp_path / "none.toml")
    with pytest.raises(InputError, match="no such preset"):
        preset_text("none")


def test_every_field_has_a_description():
    from airdistill.scenario.model import Scenario

    def undescribed(model, path=""):
        for name, field in model.model_fields.items():
            if not field.description:
                yield path + name
            if hasattr(field.annotation, "model_fields"):
                yield from undescribed(field.annotation, f"{path}{name}.")

    assert list(undescribed(Scenario)) == []


def test_the_presets_are_those_of_the_theory():
    assert preset_names() == [
        "device-level", "paper", "paper-literal", "quick", "skewed", "skewed-50", "small-data",
    ]  # fmt: skip


def test_a_folder_with_the_name_of_the_embedded_data_is_ignored(tmp_path, monkeypatch):
    (tmp_path / "mnist").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(as_toml(load("quick")))
    assert load("mine.toml").data.dataset == "mnist"


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "marked.toml"
    path.write_text("[fleet]\ndevices = 3\n[privacy]\nepsilon = 8\ndelta = 1e-5\n", encoding="utf-8-sig")
    assert load(path).num_devices == 3
