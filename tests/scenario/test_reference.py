import pytest
from in_process import exit_code
from pydantic import BaseModel, ConfigDict, Field

from airdistill.errors import InputError
from airdistill.scenario import Scenario, load
from airdistill.scenario.fields import Power
from airdistill.scenario.loading import merged, parse_change, validated
from airdistill.scenario.reference import (
    LEFT_OUT,
    REQUIRED,
    fields_by_section,
    fields_of_section,
    scenario_fields,
)

FIELDS = {field.name: field for field in scenario_fields()}


def leaves(section, prefix=""):
    """The names of all fields of a loaded scenario, from its attributes: some are written to files only if used."""
    for key, value in vars(section).items():
        if isinstance(value, BaseModel):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def test_no_field_is_missing():
    names = [name for name in FIELDS if "[]" not in name]
    assert names == list(leaves(load("quick", ["public.samples=10"])))
    assert [name for name in FIELDS if "[]" in name] == ["fleet.groups[].count", "fleet.groups[].model"]


def test_kinds_contain_unit_choices_and_limits():
    assert FIELDS["radio.peak_power"].kind == "W, above 0, for each device"
    assert FIELDS["radio.carrier"].kind == "Hz, above 0"
    assert FIELDS["data.partition"].kind == "one of iid, dirichlet, shards"
    assert FIELDS["data.classes_per_device"].kind == "whole number, at least 1"
    assert FIELDS["fleet.devices"].kind == "whole number, from 1 to 10000000"
    assert FIELDS["radio.outage"].kind == "number, at least 0, below 1"
    assert FIELDS["radio.gains"].kind == "list of: [number, number]"
    assert FIELDS["data.class_counts"].kind == "list of: list of: whole number"
    assert FIELDS["privacy.relabel"].kind == "true or false"


@pytest.mark.parametrize("field", FIELDS.values(), ids=lambda field: field.name)
def test_a_default_can_be_written_as_it_is_described(field):
    """Written as described, it changes nothing but the last digit of 5 fW."""
    if field.default in (REQUIRED, LEFT_OUT) or "." not in field.name:
        return
    smallest = {"fleet": {"devices": 3}, "public": {}, "privacy": {"epsilon": 8, "delta": 1e-5}}
    section, key = field.name.split(".")
    given = validated(merged(smallest, parse_change(f"{field.name}={field.default}")))
    written, default = (getattr(getattr(each, section), key) for each in (given, validated(smallest)))
    assert written == default or written == pytest.approx(default, rel=1e-12)


def test_required_fields_are_marked():
    required = [name for name, field in FIELDS.items() if field.default == REQUIRED]
    assert required == ["fleet.groups[].count", "fleet.groups[].model", "privacy.epsilon", "privacy.delta"]


class Antenna(BaseModel):
    model_config = ConfigDict(frozen=True)
    gain: Power = Field(1.0, description="towards the server")
    tilt: float = 0.0


class WithAntenna(Scenario):
    antenna: Antenna = Field(default_factory=Antenna, description="of the server")


class WithoutWords(Scenario):
    antenna: Antenna = Field(default_factory=Antenna)


@pytest.mark.parametrize(("model", "name"), [(WithAntenna, "antenna.tilt"), (WithoutWords, "antenna")])
def test_a_field_without_a_description_is_rejected(model, name):
    with pytest.raises(TypeError, match=f"^{name}: a field of a scenario needs a description"):
        scenario_fields(model)


def test_fields_are_listed_by_section():
    assert list(fields_by_section()) == [
        "", "fleet", "data", "public", "radio", "waveform", "air", "privacy", "learning", "federated",
            "constants",
    ]  # fmt: skip
    assert [field.name for field in fields_of_section("air")] == ["air.medium"]
    assert fields_of_section("") == scenario_fields()
    with pytest.raises(InputError, match='section = "radios": no such section; sections are fleet, data'):
        fields_of_section("radios")


def test_the_command_prints_the_fields(capsys):
    assert exit_code("scenarios", "fields", "constants") == 0
    printed = capsys.readouterr().out
    assert "constants.loss_bound" in printed
    assert "f_max, bound of the local loss" in printed
