import importlib.util
import json
import subprocess
import sys
import tomllib

import pytest
import tomli_w
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from in_process import exit_code, runs_in_this_process
from small_worlds import small_scenario

from airdistill import __version__
from airdistill.scenario import load


@pytest.fixture
def run(capsys):
    """Run the command line in this process; returns exit code, standard output and standard error."""

    def call(*arguments):
        code = exit_code(*arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_plan_prints_a_table(run):
    code, out, err = run("plan", "quick")
    assert (code, err) == (0, "")
    assert "Plan of quick" in out
    assert "This plans --scheme airdistill; the paper's scheme is ota_fd." in out


def test_plan_prints_json_and_nothing_else(run):
    code, out, _ = run("plan", "quick", "--json", "--rounds", "7", "--set", "radio.peak_power=10 mW")
    made = json.loads(out)
    assert code == 0
    assert made["rounds"]["chosen"] == 7
    assert made["scenario"]["radio"]["peak_power"] == 0.01


def test_a_plan_for_feature_means_has_the_evidence_in_json(run):
    made = json.loads(run("plan", "skewed-50", "--scheme", "airdistill_features", "--json")[1])
    assert made["evidence_forecast"]["verdict"] == "enough"
    assert made["evidence_forecast"]["hard"]["evidence"] > 5
    assert json.loads(run("plan", "quick", "--json")[1])["evidence_forecast"] is None


def test_plan_draws_the_gap(run, tmp_path):
    code, _, _ = run("plan", "quick", "--scheme", "ota_fd", "--plot", tmp_path / "gap.png")
    assert code == 0
    assert (tmp_path / "gap.png").stat().st_size > 1000


def test_plan_can_follow_a_rule_by_name(run):
    _, out, _ = run("plan", "quick", "--scheme", "ota_fd_fixed", "--rounds", "optimal", "--json")
    rounds = json.loads(out)["rounds"]
    assert rounds["chosen"] == rounds["exact"]
    code, _, err = run("plan", "quick", "--rounds", "soon")
    assert code == 2
    assert "learning.rounds" in err


def test_plan_plans_what_run_runs(run, small_file, tmp_path):
    """The plan that is printed is the plan that the run with the same options stores."""
    for scheme in ([], ["--scheme", "ota_fd"], ["--scheme", "fd_error_free"]):
        _, out, _ = run("plan", small_file, *scheme, "--rounds", 3, "--json")
        planned, folder = json.loads(out), tmp_path / "-".join(["run", *scheme[1:]])
        assert run("run", small_file, *scheme, "--rounds", 3, "--out", folder)[0] == 0
        stored = json.loads((folder / "plan.json").read_text())
        assert {key: planned[key] for key in stored} == stored


def test_a_printed_preset_is_a_scenario_to_start_from(run, tmp_path):
    code, out, _ = run("scenarios", "show", "paper")
    assert code == 0
    assert tomllib.loads(out)["fleet"]["devices"] == 50
    (tmp_path / "mine.toml").write_text(out)
    assert load(tmp_path / "mine.toml") == load("paper")


def test_scenarios_are_listed(run):
    code, out, _ = run("scenarios")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "device-level", "paper", "paper-literal", "quick", "skewed", "skewed-50", "small-data",
    ]  # fmt: skip
    _, out, _ = run("scenarios", "--json")
    assert "quick" in json.loads(out)


def test_version_and_help(run):
    assert run("--version")[1].strip() == __version__
    for command in ([], ["plan"], ["pilot"], ["scenarios"], ["scenarios", "show"], ["flower", "demo"]):
        code, out, _ = run(*command, "--help")
        assert code == 0
        assert "Usage" in out
        if command:
            assert "Example: airdistill" in " ".join(out.split())
            assert "\\[" not in out


def test_help_describes_arguments(run):
    _, out, _ = run("plan", "--help")
    assert "A preset's name or a TOML file.  [required]" in out
    assert out.count("SCENARIO") == 2  # in the usage and in the list: once each


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["radio.peak_power=-1 mW"], "radio.peak_power"),
        (["privacy.epsilon=0"], "privacy.epsilon"),
        (["privacy.delta=1"], "privacy.delta"),
        (["privacy.delta=1.5"], "privacy.delta"),
        (["privacy.epsilon=nan"], "privacy.epsilon"),
        (["constants.grad_lipschitz=nan"], "constants.grad_lipschitz"),
        (["radio.pwr=1"], "unknown key"),
        (["radio.carrier=1 mW"], "unit of power"),
        (["data.class_counts=[[1, 2], [3]]"], "data.class_counts"),
        (["data.class_counts=[[1, 2]]"], "data.class_counts"),
        (["data.dataset=nowhere.npz"], "data.dataset"),
        (["radio.trace=nowhere.csv"], "radio.trace"),
        (["fleet.devices=0"], "fleet.devices"),
        (["data.samples_per_device=99999"], "data.samples_per_device"),
    ],
)
def test_invalid_input_is_one_line_and_exit_code_two(run, changes, words):
    code, out, err = run("plan", "quick", *(part for change in changes for part in ("--set", change)))
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_missing_scenario_and_an_invalid_file_are_rejected(run, tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text("fleet = \n")
    for source, words in [("nowhere.toml", "no such file"), (bad, "not valid TOML"), (tmp_path, "cannot be read")]:
        code, _, err = run("plan", source)
        assert code == 2
        assert words in err
        assert err.count("\n") == 1


def test_a_truncated_mnist_file_is_rejected(run, tmp_path):
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"):
        (tmp_path / name).write_bytes(b"\0\0\x08\x01\0\0\0\x09abc")
    code, _, err = run("plan", "quick", "--set", f"data.dataset={tmp_path}")
    assert code == 2
    assert "truncated" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan"],
        ["plan", "quick", "--nonsense"],
        ["plan", "quick", "extra"],
        ["dance"],
        ["run", "quick", "--rounds", "0"],
    ],
)
def test_wrong_usage_is_one_line(run, arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_no_arguments_print_the_help(run):
    code, out, _ = run()
    assert code == 2
    assert "Usage" in out


def test_a_figure_that_cannot_be_written_is_an_error_of_one_line(run, tmp_path):
    (tmp_path / "folder.png").mkdir()
    for target in (tmp_path / "folder.png", tmp_path / ("x" * 300 + ".png"), tmp_path / "no" / "gap.png"):
        code, _, err = run("plan", "quick", "--scheme", "ota_fd", "--plot", target)
        assert code == 2
        assert err.startswith("error: --plot")
        assert err.count("\n") == 1


def test_a_name_with_characters_that_the_font_lacks_can_be_drawn(run, tmp_path):
    changes = ["--set", "name=日本語"]
    assert run("plan", "quick", "--scheme", "ota_fd", *changes, "--plot", tmp_path / "gap.png")[0] == 0


def test_plans_do_not_warn(run, recwarn):
    for changes in (["privacy.epsilon=1e-12"], ["learning.rounds=100000"], ["learning.batch_size=1"]):
        assert run("plan", "quick", "--scheme", "ota_fd", "--set", *changes, "--json")[0] == 0
    assert [str(warning.message) for warning in recwarn if "Click" not in str(warning.message)] == []


def test_a_class_that_no_device_holds_is_a_warning(run):
    changes = ["--set", "fleet.devices=2", "--set", "data.class_counts=[[5, 0], [5, 0]]"]
    code, out, _ = run("plan", "quick", *changes)
    assert code == 0
    assert "No device holds class 1" in out


@pytest.fixture
def small_file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(tomli_w.dumps(small_scenario(tmp_path).model_dump(mode="json", exclude_none=True)))
    return path


def test_a_pilot_writes_a_scenario_that_can_be_planned(run, small_file, tmp_path):
    small, out = ["--rounds", 1, "--repeats", 1], tmp_path / "measured.toml"
    code, shown, err = run("pilot", small_file, *small, "--data", "private", "--out", out)
    assert (code, err) == (0, "")
    for words in ("Pilot of quick", "L1", "f_max", "T*", "as declared", "not private", f"Scenario: {out}"):
        assert words in " ".join(shown.split()), words
    assert max(map(len, shown.splitlines()[:-1])) <= 80  # but for the path at the end
    made = json.loads(run("plan", out, "--json")[1])
    assert made["scenario"]["constants"]["source"] == "private"
    assert any("pilot was not private" in warning for warning in made["warnings"])
    code, _, err = run("pilot", small_file, "--out", out)
    assert (code, err.count("\n")) == (2, 1)
    assert "exists already" in err
    _, shown, _ = run("pilot", small_file, *small, "--data", "private", "--json")
    told = json.loads(shown)
    assert told["scenario"]["constants"] == made["scenario"]["constants"]
    assert told["written"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "nowhere.npz"], "--data"),
        (["--devices", 4], "--devices"),
        (["--rounds", 0], "--rounds"),
        (["--out", "no/folder/measured.toml"], "--out"),
        (["--set", "constants.source=guessed"], "constants.source"),
    ],
)
def test_a_pilot_rejects_invalid_input_in_one_line(run, small_file, arguments, words):
    code, out, err = run("pilot", small_file, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_a_pilot_looks_at_its_target_before_it_computes(run, small_file, monkeypatch):
    """No file can be created in /proc, not even by root."""
    from airdistill.runs import piloting

    monkeypatch.setattr(piloting, "check_finite", lambda *_: pytest.fail("it has computed"))
    code, out, err = run("pilot", small_file, "--out", "/proc/measured.toml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert '/proc/measured.toml": cannot be written' in err


@pytest.mark.parametrize("json_option", [[], ["--json"]])
def test_a_pilot_prints_what_it_cannot_write(run, small_file, tmp_path, monkeypatch, json_option):
    """The file appears while the pilot computes; it is not overwritten, and the constants are not lost."""
    from airdistill.runs import piloting

    out, checked = tmp_path / "measured.toml", piloting.check_finite

    def appears(*given):
        out.write_text("another's")
        return checked(*given)

    monkeypatch.setattr(piloting, "check_finite", appears)
    code, shown, err = run("pilot", small_file, "--rounds", 1, "--repeats", 1, "--out", out, *json_option)
    assert code == 2
    assert "exists already" in err
    assert "L1" in shown if not json_option else json.loads(shown)["written"] is None
    assert out.read_text() == "another's"


def test_a_pilot_that_is_stopped_writes_nothing(run, small_file, tmp_path, monkeypatch):
    from airdistill.runs import piloting

    def stop(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(piloting, "check_finite", stop)
    code, out, err = run("pilot", small_file, "--out", tmp_path / "measured.toml")
    assert (code, out, err) == (130, "", "stopped; nothing was written\n")
    assert not list(tmp_path.glob("*measured*"))


def test_run_trains_and_prints_the_folder_of_the_record(run, small_file, tmp_path):
    code, out, err = run("run", small_file, "--out", tmp_path / "one", "--rounds", 3)
    assert (code, err) == (0, "")
    assert "Accuracy" in out
    assert "sensitivity device" in out
    assert "Neighbours differ in one device's whole dataset" in " ".join(out.split())
    code, out, _ = run("run", small_file, "--scheme", "local_only", "--out", tmp_path / "two", "--json")
    summary = json.loads(out)
    assert code == 0
    assert summary["folder"] == str(tmp_path / "two")
    assert summary["rounds"] == 6
    assert summary["epsilon_spent"] == 0
    code, out, _ = run("resume", tmp_path / "two", "--json")
    assert code == 0
    assert json.loads(out) == summary


def test_certify_shows_what_a_run_guarantees(run, small_file, tmp_path):
    run("run", small_file, "--out", tmp_path / "one")
    code, out, err = run("certify", tmp_path / "one", "--second-opinion")
    assert (code, err) == (0, "")
    assert out.startswith("Simulation: (ε ≤ 8.00, δ = 1e-5) for every one of 3 devices (ε from 7.94)")
    verdict = "simulation: protects no one; with secret noise it would hold under assumptions (honest fleet, exact "
    assert verdict + "channels)" in " ".join(out.split())
    assert "Second opinion on device" in out
    assert max(map(len, out.splitlines()[:-1])) <= 80  # but for the path at the end
    code, out, _ = run("certify", tmp_path / "one", "--json")
    assert json.loads(out) == json.loads((tmp_path / "one" / "certificate.json").read_text())
    assert "with secret noise it would hold under assumptions" in (tmp_path / "one" / "certificate.html").read_text()
    code, _, err = run("certify", tmp_path)
    assert code == 2
    assert "is not a run folder" in err


def write_keys(folder):
    """The files of a private key and of its public key."""
    key, private, public = Ed25519PrivateKey.generate(), folder / "private.pem", folder / "public.pem"
    pem = serialization.Encoding.PEM
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def test_a_certificate_is_written_elsewhere_signed_and_verified(run, small_file, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767323045")
    folder, handed_out = tmp_path / "one", tmp_path / "handed" / "out"
    assert run("run", small_file, "--rounds", 2, "--out", folder)[0] == 0
    own = json.loads((folder / "certificate.json").read_text())
    assert own["issued"] is None
    private, public = write_keys(tmp_path)
    code, out, err = run("certify", folder, "--out", handed_out, "--sign", private)
    assert (code, err) == (0, "")
    assert "2026-01-02T03:04:05Z" in out
    assert json.loads((folder / "certificate.json").read_text()) == own
    stored = json.loads((handed_out / "certificate.json").read_text())
    assert stored["signature"]["algorithm"] == "ed25519"
    for name in ("scenario_digest", "data_digest", "ledger_digest"):
        assert stored[name] in out
        assert stored[name] in (handed_out / "certificate.html").read_text()
    checked = ["--key", public, "--ledger", folder / "ledger.jsonl"]
    assert run("verify", handed_out / "certificate.json", *checked)[0] == 0
    code, out, _ = run("verify", folder / "certificate.json", *checked)
    assert code == 1
    assert "Not verified: the certificate is not signed" in out


def test_a_certificate_is_printed_before_it_is_written(run, small_file, tmp_path):
    """A folder in the way of the file stands for a read-only disk, which root could write to."""
    folder = tmp_path / "one"
    assert run("run", small_file, "--rounds", 2, "--out", folder)[0] == 0
    (folder / "certificate.json").unlink()
    (folder / "certificate.json" / "in the way").mkdir(parents=True)
    code, out, err = run("certify", folder)
    assert code == 0
    assert out.startswith("Simulation: (ε")
    assert "Certificate: " not in out
    assert err.startswith(f"note: {folder}: cannot be written: ")
    assert err.endswith("; choose another folder with --out DIR\n")
    assert err.count("\n") == 1
    (tmp_path / "file").write_text("")
    code, out, err = run("certify", folder, "--out", tmp_path / "file")
    assert code == 2
    assert out.startswith("Simulation: (ε")
    assert "cannot be written" in err
    code, out, err = run("certify", folder, "--sign", tmp_path / "file")
    assert (code, out) == (2, "")
    assert "is not a private key in PEM form; make one with openssl genpkey" in err
    code, out, err = run("certify", folder, "--out", small_run(run, small_file, tmp_path / "two"))
    assert (code, out) == (2, "")
    assert "is the folder of another run" in err


def small_run(run, small_file, folder):
    assert run("run", small_file, "--rounds", 1, "--out", folder)[0] == 0
    return folder


def test_a_second_run_continues_the_given_ledger(run, small_file, tmp_path):
    run("run", small_file, "--out", tmp_path / "one", "--set", "privacy.epsilon=4")
    code, out, _ = run("plan", small_file, "--ledger", tmp_path / "one")
    assert code == 0
    assert "Earlier runs have spent up to ε" in out
    assert run("run", small_file, "--ledger", tmp_path / "one", "--out", tmp_path / "two")[0] == 0
    assert "12 releases, 6 of them by earlier runs" in run("certify", tmp_path / "two")[1]
    less = ["--set", "privacy.epsilon=4", "--out", tmp_path / "three"]
    code, _, err = run("run", small_file, "--ledger", tmp_path / "two", *less)
    assert code == 2
    assert "has spent its ε = 4: no further round is possible" in err
    assert not (tmp_path / "three").exists()


def test_an_audit_that_finds_a_violation_exits_with_one(run, small_file, tmp_path):
    """Lemma 1 declared, and a model that is trained on the record."""
    paper = ["privacy.sensitivity=paper", "privacy.trust=receiver_noise", "learning.initial_lr=2"]
    changes = [word for change in paper for word in ("--set", change)]
    run("run", small_file, "--out", tmp_path / "paper", "--rounds", 6, *changes)
    run("run", small_file, "--out", tmp_path / "device", "--rounds", 6)
    fast = ["--transcripts", 20, "--candidates", 4, "--trials", 60, "--shadows", 4]
    code, out, err = run("audit", tmp_path / "paper", *fast)
    assert (code, err) == (1, "")
    assert "Verdict: violated" in out
    assert max(map(len, out.splitlines()[:-1])) <= 80  # but for the path at the end
    code, out, _ = run("audit", tmp_path / "device", *fast)
    assert code == 0
    assert "Verdict: not violated" in out
    for name, verdict in [("paper", "does not hold"), ("device", "simulation")]:
        assert json.loads((tmp_path / name / "certificate.json").read_text())["verdict"] == verdict
        assert (tmp_path / name / "audit.html").exists()
    assert "An audit found" in run("certify", tmp_path / "paper")[1]
    assert "An audit found" in (tmp_path / "paper" / "report.html").read_text()


def test_an_audit_written_to_another_folder_is_recorded_with_the_run(run, small_file, tmp_path):
    changes = ["--set", "privacy.sensitivity=paper", "--set", "privacy.trust=receiver_noise"]
    run("run", small_file, "--out", tmp_path / "one", *changes, "--set", "learning.initial_lr=2")
    fast = ["--transcripts", 2, "--candidates", 4, "--parts", "exact"]
    assert run("audit", tmp_path / "one", *fast, "--out", tmp_path / "elsewhere")[0] == 1
    assert "An audit found" in run("certify", tmp_path / "one")[1]
    run("run", small_file, "--out", tmp_path / "two")
    code, _, err = run("audit", tmp_path / "one", *fast, "--out", tmp_path / "two")
    assert code == 2
    assert "is the folder of another run" in err


def test_a_broken_pipe_is_not_reported_as_a_violation(run, small_file, tmp_path):
    assert run("run", small_file, "--out", tmp_path / "one")[0] == 0
    command = [sys.executable, "-m", "airdistill", "certify", tmp_path / "one"]
    with (tmp_path / "errors").open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        process.stdout.close()
        assert process.wait(timeout=600) == 141
    assert (tmp_path / "errors").read_bytes() == b""


def test_a_scenario_is_audited_without_a_run(run, small_file, tmp_path):
    options = ["--parts", "exact", "--transcripts", 2, "--candidates", 2, "--scheme", "orthogonal_fd", "--json"]
    code, out, _ = run("audit", small_file, *options, "--out", tmp_path / "audit")
    assert code == 0
    found = json.loads(out)
    assert (found["scheme"], found["violations"], found["membership"]) == ("orthogonal_fd", [], None)
    assert json.loads((tmp_path / "audit" / "audit.json").read_text()) == found


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scheme", "fd_error_free"], "there is no guarantee to audit"),
        (["--parts", "magic"], "--parts = magic"),
        (["--audited-device", "9"], "the fleet's devices are 0 to 2"),
        (["--shadows", "5"], "must be even"),
        (["--rounds", "99"], "must lie between 1 and the plan's 6"),
    ],
)
def test_invalid_options_of_an_audit_are_one_line(run, small_file, tmp_path, arguments, words):
    code, _, err = run("audit", small_file, *arguments, "--out", tmp_path / "audit")
    assert code == 2
    assert words in err
    assert len(err.splitlines()) == 1


def test_schemes_are_listed(run):
    code, out, _ = run("schemes")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "airdistill", "ota_fd", "ota_fd_fixed", "ota_fd_antennas", "orthogonal_fd", "airdistill_features",
        "feature_means", "airdistill_proxy", "ota_proxy_fd", "pate", "fd_error_free", "proxy_fd", "selective_fd",
        "local_only", "local_public", "ota_fl", "ota_fl_fixed", "ota_fl_sampled", "ota_fedavg", "ota_head", "fedsgd",
        "fedavg", "fedopt", "feddf", "centralised",
    ]  # fmt: skip


def test_a_users_own_scheme_is_shown(run, tmp_path, monkeypatch):
    (tmp_path / "shown_scheme.py").write_text(
        "from airdistill.schemes.distillation import OtaFd\n"
        "class Mine(OtaFd):\n    '''Sends\n    signs.'''\n    name = 'mine'\n"
        "class Undescribed(OtaFd):\n    name = 'undescribed'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, out, _ = run("schemes", "shown_scheme:Mine", "local_only", "shown_scheme:Undescribed", "--json")
    assert code == 0
    shown = json.loads(out)
    assert list(shown) == ["mine", "local_only", "undescribed"]
    assert (shown["mine"], shown["undescribed"]) == ("Sends signs.", "")
    assert run("schemes", "nothing")[0] == 2


def test_a_users_own_scheme_is_one_file(run, small_file, tmp_path, monkeypatch):
    (tmp_path / "own_scheme_in_a_file.py").write_text(  # a name that no other test expects to be missing
        "from airdistill.schemes import Outcome, Scheme\n"
        "class Mine(Scheme):\n    name = 'mine'\n    def play(self, this):\n        return Outcome(this.learn(None))\n"
        "class Other:\n    pass\n"
        "class Nameless(Scheme):\n    def play(self, this):\n        return None\n"
        "class Escaping(Nameless):\n    name = '../evil'\n"
        "class Idle(Nameless):\n    name = 'idle'\n"
        "class Abstract(Scheme):\n    name = 'abstract'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, out, _ = run("run", small_file, "--scheme", "own_scheme_in_a_file:Mine", "--out", tmp_path / "run", "--json")
    assert code == 0
    assert json.loads(out)["scheme"] == "mine"
    assert run("resume", tmp_path / "run")[0] == 0
    for scheme, words in [
        ("own_scheme_in_a_file:Other", "derived from"),
        ("own_scheme_in_a_file:None_", "has no None_"),
        ("nothing", "must be a name that"),
        ("own_scheme_in_a_file:Nameless", "must have a `name`"),
        ("own_scheme_in_a_file:Escaping", "must have a `name`"),
        ("own_scheme_in_a_file:Abstract", "must have a `name`"),
        ("own_scheme_in_a_file:Idle", "must return an Outcome"),
    ]:
        code, _, err = run("run", small_file, "--scheme", scheme)
        assert code == 2
        assert words in err


def test_bench_measures_all_engines(run, tmp_path):
    path = tmp_path / "few.toml"
    few = load("quick", ["fleet.devices=2", "data.samples_per_device=60"])
    path.write_text(tomli_w.dumps(few.model_dump(mode="json", exclude_none=True)))
    code, out, _ = run("bench", path, "--json")
    measured = json.loads(out)
    assert code == 0
    assert (measured["devices"], measured["samples"]) == (2, 120)
    for engine in ("naive", "torch", "fused"):
        assert measured["engines"][engine]["seconds_per_round"] > 0
        assert measured["engines"][engine]["seconds_per_minibatch_round"] > 0
        assert measured["engines"][engine]["peak_rss_bytes"] > 1e8
    assert measured["sgemm_floor_seconds"] > 0


def test_bench_compares_receivers_at_equal_privacy(run, small_file):
    few = ["--rounds", 6, "--seeds", 2, "--tuning-seeds", 2, "--paths", 3, "--repeats", 1, "--epsilon", 4]
    code, out, err = run("bench", "receivers", small_file, *few)
    assert (code, err) == (0, "")
    assert "ε = 4: mean noise variance per entry" in out
    code, as_json, _ = run("bench", "receivers", small_file, *few, "--json")
    (level,) = json.loads(as_json)["levels"]
    assert (code, level["epsilon"]) == (0, 4)
    for name, found in level["class_means"]["recorded"]["receivers"].items():
        (line,) = [line for line in out.splitlines() if line.split()[:1] == [name]]
        assert line.split()[-2:] == [f"{found['gain_db']:.1f}", f"{found['above_bound_db']:.1f}"]
    code, _, err = run("bench", "receivers", small_file, "--rounds", 2)
    assert code == 2
    assert "--rounds" in err


def test_bench_without_a_name_measures_engines(run):
    assert "engines" in run("bench", "--help")[1]
    assert run("bench", "nowhere") == run("bench", "engines", "nowhere") == (2, "", run("bench", "nowhere")[2])
    assert "no such preset" in run("bench", "nowhere")[2]


def loaded_by(*commands):
    """The names of all modules that a process has imported after these commands."""
    script = (
        "import sys\nfrom airdistill.cli import main\n"
        f"for arguments in {[list(map(str, arguments)) for arguments in commands]!r}:\n"
        "    sys.argv = ['airdistill', *arguments]\n"
        "    try:\n        main()\n    except SystemExit as stop:\n        assert not stop.code, stop.code\n"
        "print('LOADED', *sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split("LOADED")[1].split())


def test_help_needs_not_even_numpy():
    assert not loaded_by(["--help"]) & {"torch", "numpy", "scipy", "pydantic", "matplotlib", "jinja2"}


def test_planning_needs_no_heavy_library():
    assert importlib.util.find_spec("torch")  # it is installed and could be loaded
    loaded = loaded_by(["plan", "quick"])
    assert "numpy" in loaded
    heavy = {"torch", "dp_accounting", "numba", "matplotlib", "pandas", "scipy.stats", "jinja2", "sionna"}
    assert not loaded & heavy


def test_planning_a_scheme_needs_torch_only_to_count_parameters(small_file):
    """Schemes that transmit gradients or updates count the parameters of a model, which PyTorch has to build."""
    from airdistill.schemes.registry import SCHEMES

    schemes = [name for name, scheme in SCHEMES.items() if not scheme.payload.needs_model_size]
    assert {"airdistill", "ota_fd", "orthogonal_fd", "airdistill_proxy", "local_only"} <= set(schemes)
    public = ["--set", "public.samples=10"]
    loaded = loaded_by(*(["plan", small_file, *public, "--scheme", scheme, "--json"] for scheme in schemes))
    assert "torch" not in loaded


def test_certificates_and_reports_need_no_torch(run, small_file, tmp_path):
    assert run("run", small_file, "--rounds", 2, "--out", tmp_path / "run")[0] == 0
    with runs_in_this_process():
        compared = ["--schemes", "ota_fd,local_only", "--rounds", 2, "--out", tmp_path / "compared"]
        assert run("compare", small_file, *compared)[0] == 0
    private, public = write_keys(tmp_path)
    commands = [["certify", tmp_path / "run", "--sign", private], ["report", tmp_path / "run"]]
    checked = ["--key", public, "--ledger", tmp_path / "run"]
    commands += [["report", tmp_path / "compared"], ["verify", tmp_path / "run" / "certificate.json", *checked]]
    assert "torch" not in loaded_by(*commands)


def test_python_m_airdistill_is_the_command_line():
    done = subprocess.run([sys.executable, "-m", "airdistill", "plan", "nope"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith('error: scenario = "nope"')


def test_the_folders_of_a_federation_are_prepared_with_secure_noise(run, tmp_path):
    pytest.importorskip("flwr")
    from cryptography import x509

    out = tmp_path / "federation"
    changes = ["--set", "fleet.devices=3", "--set", "air.medium=secure_sum", "--set", "fleet.expected_dropouts=1"]
    code, said, _ = run("flower", "prepare", "quick", "--out", str(out), "--host", "server.example", *changes)
    assert code == 0
    assert "a server and 3 devices, medium secure_sum" in said
    scenario = load(out / "device-2" / "scenario.toml")
    assert scenario.privacy.noise == "secure"
    assert (out / "server" / "scenario.toml").read_bytes() == (out / "device-2" / "scenario.toml").read_bytes()
    assert len({(out / each / "roster.json").read_bytes() for each in ("server", "device-0", "device-1")}) == 1
    for secret in ("server/superlink.key", "device-0/node.key", "device-0/identity.key"):
        assert (out / secret).stat().st_mode & 0o077 == 0
    assert "server.example:9092" in (out / "server" / "flwr" / "config.toml").read_text()
    certificate = x509.load_pem_x509_certificate((out / "server" / "superlink.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "server.example" in names.get_values_for_type(x509.DNSName)
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate((out / "device-1" / "ca.crt").read_bytes()))
    code, _, err = run("flower", "prepare", "quick", "--out", str(out))
    assert code != 0
    assert "is not empty" in err


def test_without_flower_an_error_says_what_to_install(run, monkeypatch):
    from airdistill.cli import federating

    monkeypatch.setattr(federating, "find_spec", lambda _: None)
    code, _, err = run("flower", "demo")
    assert code == 2
    assert err == "error: Flower is not installed: pip install 'airdistill[flower]'\n"
