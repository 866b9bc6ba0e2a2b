"""The Python interface: its names, the forms of a scenario, plans and runs that agree, and old names."""

import doctest
import importlib
import json
from typing import NotRequired, get_origin, get_type_hints

import pytest
import tomli_w
from in_process import runs_in_this_process
from small_worlds import small_scenario

import airdistill as ad
from airdistill.errors import InputError
from airdistill.plugins import _MOVED, load_object
from airdistill.runs.options import RunOptions
from airdistill.runs.results import AccuracyRecord, RoundRecord, RunSummary

OFTEN = RunOptions(eval_every=2, threads=1)


def test_dir_lists_the_public_names_and_all_of_them_exist():
    assert dir(ad) == sorted(ad.__all__)
    assert set(ad._HOMES) | {"DEFAULT_SCHEME", "__version__"} == set(ad.__all__)
    for name in ad.__all__:
        assert getattr(ad, name) is not None
    for gone in ("nothing", "plan_run"):
        with pytest.raises(AttributeError, match=f"no attribute '{gone}'"):
            getattr(ad, gone)


def test_a_scenario_is_a_name_a_path_a_dictionary_or_a_scenario(tmp_path):
    scenario = small_scenario(tmp_path)
    given = scenario.model_dump(mode="json", exclude_none=True)
    path = tmp_path / "small.toml"
    path.write_text(tomli_w.dumps(given))
    for form in (scenario, given, path, str(path)):
        assert ad.as_scenario(form) == scenario
    assert ad.as_scenario("quick") == ad.load("quick")
    assert ad.as_scenario({"fleet": {"devices": 3}, "privacy": {"epsilon": 1, "delta": 1e-5}}).name == "scenario"
    with pytest.raises(InputError, match=r"radio\.antenas.*did you mean antennas"):
        ad.as_scenario({**given, "radio": {"antenas": 2}})
    with pytest.raises(InputError, match="a preset's name, the path"):
        ad.as_scenario(3)


def test_plan_run_and_compare_take_a_dictionary_and_plan_what_run_runs(tmp_path):
    given = small_scenario(tmp_path).model_dump(mode="json", exclude_none=True)
    for scheme in (None, "ota_fd"):
        planned = ad.plan(given, scheme, rounds=2)
        chosen = {} if scheme is None else {"scheme": scheme}
        record = ad.run(given, **chosen, rounds=2, out=tmp_path / f"run-{scheme}", options=OFTEN)
        stored = json.loads((record.folder / "plan.json").read_text())
        assert json.loads(json.dumps(planned.to_dict())) == stored
        assert planned.scenario.learning.receiver == ("tracking" if scheme is None else "linear")
    continued = ad.plan(given, "ota_fd", rounds=2, ledger=record)
    assert ad.certify(record).to_dict() == ad.certify(record.folder).to_dict()  # a record stands for its folder
    assert (continued.fleet.mu < ad.plan(given, "ota_fd", rounds=2).fleet.mu).all()
    with runs_in_this_process():
        compared = ad.compare(given, ["local_only"], rounds=1, out=tmp_path / "compared", options=OFTEN)
    assert len(compared.runs) == 1


def test_the_engine_has_one_name_and_its_old_name_is_read():
    options = RunOptions(engine="torch")
    stored = options.to_dict()
    assert stored["kernels"] == "torch"  # the key on disk since version 0.1
    assert "engine" not in stored
    assert RunOptions.from_dict(json.loads(json.dumps(stored))) == options
    with pytest.warns(DeprecationWarning, match=r"RunOptions\(engine="):
        assert RunOptions(kernels="torch") == options
    assert options.learning_engine().kernels == "torch"
    assert options.resolved().engine == "torch"


@pytest.mark.parametrize("scheme", ["airdistill", "ota_fd", "local_only", "fedsgd", "airdistill_proxy"])
def test_records_have_the_documented_keys(tmp_path, scheme):
    changes = [
        "public.samples=6",
        "public.distill_epochs=1",
        "learning.local_epochs=1",
        "overrides.ota_fd.radio.truncation=-120 dB",
    ]
    record = ad.run(small_scenario(tmp_path, *changes), scheme, rounds=2, out=tmp_path / "run", options=OFTEN)
    for line in record.rounds:
        assert has_keys_of(RoundRecord, line)
    assert has_keys_of(AccuracyRecord, record.rounds[-1]["accuracy"])
    assert has_keys_of(RunSummary, record.summary)
    assert "link" in record.summary  # only summaries of older versions have none


def has_keys_of(documented, written):
    hints = get_type_hints(documented, include_extras=True)
    required = {name for name, hint in hints.items() if get_origin(hint) is not NotRequired}
    return required <= set(written) <= set(hints)


def test_references_to_modules_that_have_moved_still_work():
    assert load_object("airdistill.air.loopback:FrontEnd", "radio").__module__ == "airdistill.radio.loopback"
    assert load_object("airdistill.schemes.ota_fd:OtaFd", "--scheme").name == "ota_fd"
    for module in _MOVED.values():
        importlib.import_module(module)
    with pytest.raises(InputError, match=r"radio = .*must have the form package\.module:name"):
        load_object("loopback", "radio")


@pytest.mark.parametrize("name", ["plugins", "stages", "streams", "scenario.loading", "runs.options"])
def test_doctests_pass(name):
    outcome = doctest.testmod(importlib.import_module(f"airdistill.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0
