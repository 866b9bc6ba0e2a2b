"""Messages of bad inputs, read one by one: they name field, value, rule and way out, and none is a traceback."""

import json

import numpy as np
import pytest
from in_process import exit_code

from airdistill.errors import InputError, SeveralInputsError, did_you_mean
from airdistill.scenario import load
from airdistill.scenario.loading import load_text
from airdistill.units import hertz, metres, seconds, watts

MINIMAL = "[fleet]\ndevices = 3\n[privacy]\nepsilon = 8\ndelta = 1e-5\n"


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """Run a bad command line in a folder with some files that are not what they seem; return its lines."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("hello")
    (tmp_path / "folder").mkdir()
    for name, text in {"list": "[]", "void": "", "keys": "{}", "prose": "not json"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")

    def call(line):
        assert exit_code(*line.split("|")) == 2
        out, err = capsys.readouterr()
        assert out == ""
        lines = err.splitlines()
        assert all(each.startswith("error: ") for each in lines), err
        return [each.removeprefix("error: ") for each in lines]

    return call


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pln", "No such command 'pln'. Did you mean 'plan'?; airdistill --help shows how"),
        ("plan", "Missing argument 'SCENARIO'; airdistill plan --help shows how"),
        ("plan|qick", 'scenario = "qick": no such file, and no such preset'),
        ("plan|qick", "did you mean quick?"),
        ("plan|quick|--schem|x", "No such option"),
        ("plan|quick|--scheme|OTA-FD", "; did you mean ota_fd?"),
        ("plan|quick|--scheme|airdistil", "; did you mean airdistill?"),
        ("plan|quick|--scheme|foo", "must be a name that `airdistill schemes` lists, or your own as"),
        (
            "run|quick|--rounds|many",
            "Invalid value for '--rounds': 'many' must be a whole number; airdistill run -",
        ),
        ("run|quick|--rounds|0", "Invalid value for '--rounds': 0 must be at least 1"),
        ("serve|--port|99999", "99999 must lie between 1 and 65535"),
        ("scenarios|show|papr", "; did you mean paper?"),
        ("scenarios|fields|radoi", "; did you mean radio?"),
        (
            "certify|nowhere",
            'RUN = "nowhere": is not a run folder: it does not exist; runs lie below runs/, or where --out said',
        ),
        ("certify|file", "is not a run folder: it is a file; give the folder in which run.json is"),
        ("certify|folder", "is not a run folder: it has no run.json"),
        ("certify|list", "list: cannot be trusted: run.json is not what a run wrote; restore it from a copy"),
        ("resume|keys", "keys: cannot be trusted: run.json is not what a run wrote"),
        ("report|void", "void: cannot be trusted: run.json or plan.json is damaged; restore it from a copy, or run"),
        ("certify|prose", "prose: cannot be trusted: run.json or plan.json is damaged"),
        ("run|quick|--after|nowhere", '--after = "nowhere": no such folder; give that of an ended run'),
        ("plan|bytes.toml", "cannot be read: it is not a text in UTF-8"),
        ("plan|folder", "cannot be read: it is a folder; give a TOML file"),
        ("plan|quick|--plot|gap.xyz", '--plot = "gap.xyz": must end in .png, .svg, .pdf'),
        ("plan|quick|--map|nowhere/m.png", '--map = "nowhere/m.png": the folder does not exist; create it first'),
    ],
)
def test_a_command_line_is_refused_in_one_line(refused, line, words):
    (message,) = refused(line)
    assert words in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("peak_power=1 mW", "unknown key; did you mean radio.peak_power?"),
        ("epsilon=4", "unknown key; did you mean privacy.epsilon?"),
        ("radio.epsilon=4", "unknown key; did you mean privacy.epsilon?"),
        ("radio.peek_power=1 mW", "unknown key; did you mean peak_power?"),
        ("radoi.peak_power=1 mW", "unknown key; did you mean radio?"),
        ("radio=5", "must be a table, with fields such as radio.peak_power"),
        ("radio.fading=raleigh", "; did you mean rayleigh?"),
        ("privacy.trust=fleet-noise", "; did you mean fleet_noise?"),
        ("learning.optimizer=adma", "; did you mean adamw?"),
        ("privacy.relabel=yes", "must be true or false"),
        ("seed=abc", "must be a whole number"),
        ("seed=-1", "must be at least 0"),
        ("fleet.groups={count=3}", "must be a list"),
        ("privacy.epsilon=low", "must be a number above 0, such as 8, or inf for no privacy"),
        ("privacy.delta=1%", "must be a number strictly between 0 and 1, such as 1e-5"),
        ("name=my run", "must have letters, digits and - . _ only, and at most 100; use my-run"),
        ("radio.peak_power=10 mw", 'must be a power such as "1 mW"; did you mean mW or MW?'),
        ("radio.noise_power=-113 dbm", "; did you mean dBm?"),
        ("radio.peak_power=1,5 mW", '; did you mean "1.5 mW"?'),
    ],
)
def test_a_field_is_refused_with_what_was_probably_meant(change, words):
    with pytest.raises(InputError) as caught:
        load("quick", [change])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "^" not in str(caught.value)


def test_all_errors_of_a_file_are_reported_at_once(tmp_path, refused):
    bad = (
        MINIMAL
        + '[radio]\npeak_power = "-1 mW"\nfading = "fog"\nfoo = 1\n[learning]\nrounds = 0\n[flet]\ndevices = 3\n'
    )
    (tmp_path / "bad.toml").write_text(bad)
    found = [line.partition(" =")[0] for line in refused("plan|bad.toml")]
    assert found[:2] == ["radio.foo", "flet"] or found[:2] == ["flet", "radio.foo"]
    assert sorted(found[2:]) == ["learning.rounds", "radio.fading", "radio.peak_power"]
    with pytest.raises(SeveralInputsError) as caught:
        load("quick", ["data.partition=dirichlet", "fleet.expected_dropouts=1"])
    assert [error.field for error in caught.value.errors] == ["data.alpha", "fleet.expected_dropouts"]
    assert caught.value.field == caught.value.errors[0].field


def test_a_thousand_errors_are_not_a_thousand_lines():
    with pytest.raises(SeveralInputsError) as caught:
        load("quick", [f"radio.gains={list(range(1000))}"])
    assert len(str(caught.value).splitlines()) == 11
    assert str(caught.value).endswith("… and 990 more")


def test_overrides_of_a_scheme_that_does_not_exist_are_warned_of(tmp_path):
    from small_worlds import small_scenario

    import airdistill as ad

    warned = {
        name: [line for line in ad.plan(small_scenario(tmp_path, change)).warnings if line.startswith("overrides")]
        for name in ("ota_fdd", "ota_fd", "of_my_own")
        for change in [f"overrides.{name}.learning.initial_lr=0.2"]
    }
    assert warned["ota_fdd"] == ["overrides.ota_fdd: no built-in scheme has this name; did you mean ota_fd?"]
    assert warned["ota_fd"] == warned["of_my_own"] == []


def test_a_table_that_is_missing_because_it_is_misspelt_is_reported_once():
    with pytest.raises(InputError) as caught:
        load_text(MINIMAL.replace("[fleet]", "[flet]"), "mine")
    assert str(caught.value) == "flet = {'devices': 3}: unknown key; did you mean fleet?"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[radio]\npeak_power = 1 mW\n",
            '(at line 7, column 16): peak_power = 1 mW; texts need quotes, as in peak_power = "1 mW"',
        ),
        ("[fleet]\ndevices = 3\n", "Cannot declare fleet twice (at line 6, column 7): [fleet]"),
        ("[radio\n", "(at line 6, column 7): [radio"),
    ],
)
def test_an_error_of_syntax_shows_the_line(text, words):
    with pytest.raises(InputError) as caught:
        load_text(MINIMAL + text, "mine")
    assert words in str(caught.value)
    assert ("need quotes" in str(caught.value)) == ("mW" in text)


@pytest.mark.parametrize(
    ("parse", "given", "meant"),
    [
        (watts, "3 watts", "W"),
        (watts, "3 dbw", "dBW"),
        (hertz, "915 Mhz", "MHz"),
        (hertz, "2.4 gigahertz", None),
        (metres, "1 KM", "km"),
        (metres, "5 meters", "m"),
        (seconds, "3 sec", "s"),
        (seconds, "3 W", None),
    ],
)
def test_units_that_are_nearly_right_are_suggested(parse, given, meant):
    with pytest.raises(ValueError, match=r"is not a unit of|is a unit of") as caught:
        parse(given)
    assert str(caught.value).endswith(f"; did you mean {meant}?") == (meant is not None)


def test_a_name_is_suggested_only_if_it_is_close():
    assert did_you_mean("raleigh", ["rayleigh", "rician"]) == "; did you mean rayleigh?"
    assert did_you_mean("fog", ["rayleigh", "rician"]) == ""
    assert did_you_mean(3, ["30x"]) == ""


def test_an_output_that_is_a_file_is_not_called_a_folder_with_something_in_it(tmp_path):
    from airdistill.runs.folder import new_folder

    (tmp_path / "file").write_text("")
    for out, rule in [("file", "is a file; choose a folder"), ("file/below", "cannot be created: Not a directory")]:
        with pytest.raises(InputError, match=rule):
            new_folder(tmp_path / out, "name")


def test_two_seeds_are_not_given_an_interval_without_a_word():
    from types import SimpleNamespace

    from airdistill.report.comparison import TWO_SEEDS, notes_of

    for seeds in ((0,), (0, 1), (0, 1, 2)):
        record = SimpleNamespace(runs={}, comparison=SimpleNamespace(seeds=seeds))
        assert (TWO_SEEDS in notes_of(record)) == (len(seeds) == 2)


def test_bars_fit_into_80_columns_and_cut_nothing_but_a_name():
    import io
    import re

    from rich.console import Console

    from airdistill.report.progress import comparison_bar, round_bar
    from airdistill.runs.comparison import Task

    name = "a-scenario-with-a-rather-long-name, airdistill_features"
    console = Console(width=80, force_terminal=True, file=io.StringIO(), color_system=None)
    with round_bar(console, name) as update:
        update({"round": 1000, "accuracy": {"mean": 1.0}, "epsilon_spent": 0.00138}, 2000)
    with comparison_bar(console) as follow:
        follow(Task(name, 12), {"round": 1000, "rounds": 2000, "accuracy": 0.5})
    lines = re.split(r"\x1b\[[^a-zA-Z]*[a-zA-Z]|[\r\n]", console.file.getvalue())
    assert max(map(len, lines)) <= 80
    assert any("round 1000/2000 accuracy 100.0% · ε 0.00138" in line for line in lines)
    assert any("…, seed 12" in line and "round 1000/2000 accuracy 50.0%" in line for line in lines)
    assert not any("…" in line.partition("round ")[2] for line in lines)


def test_a_table_of_a_comparison_parts_no_number_from_its_interval_in_80_columns():
    from rich.console import Console

    from airdistill.report.comparison import terminal_table

    columns = ("scheme", "accuracy", "gain over local", "worst device", "rounds")
    row = ["airdistill_features", "92.4 ± 13.7 %", "+12.3 ± 13.7", "19.8 ± 10.7 %", "2000"]
    console = Console(width=80)
    with console.capture() as shown:
        console.print(terminal_table(columns, [row]))
    assert all(cell in shown.get() for cell in row)


def test_planning_reports_its_stages(tmp_path):
    from small_worlds import small_scenario

    import airdistill as ad
    from airdistill.planning.plan import STAGE
    from airdistill.stages import listening

    heard = []
    with listening(lambda stage, done, total: heard.append((stage, done / total))):
        ad.plan(small_scenario(tmp_path))
    shares = [share for stage, share in heard if stage == STAGE]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)


def test_run_json_of_another_kind_is_never_an_attribute_error(tmp_path):
    from airdistill.runs.folder import RunError, read_sealed

    for content in ([], {}, 3, None, {"digest": 1, "digests": []}, "text", {"digest": "", "digests": {}}):
        (tmp_path / "run.json").write_text(json.dumps(content))
        with pytest.raises(RunError, match=r"cannot be trusted: run\.json") as caught:
            read_sealed(tmp_path)
        assert "object" not in str(caught.value)


def test_data_that_are_missing_are_named(tmp_path, refused):
    np.savez(tmp_path / "named.npz", images=np.zeros((3, 2)), labels=np.zeros(3))
    (message,) = refused("plan|quick|--set|data.dataset=named.npz")
    assert "must have the arrays x_train, y_train, x_test, y_test; it has images, labels" in message
    (tmp_path / "pickled.npz").write_bytes(b"\x80\x04K\x01.")
    (message,) = refused("plan|quick|--set|data.dataset=pickled.npz")
    assert "pickle" not in message.partition(":")[2]
    assert "is not a .npz file; write it with numpy.savez(file, x_train=…, …)" in message
