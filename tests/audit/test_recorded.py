"""The audit of what a run recorded: runs without bugs, damaged and unwritable folders, chains, and its numbers."""

import json
import shutil
import sys
from dataclasses import replace

import mutants
import numpy as np
import pytest
from in_process import exit_code
from scipy.stats import norm
from small_worlds import small_scenario, write_dataset

from airdistill.audit import AuditOptions, audit_run
from airdistill.audit.charges import epsilon_of
from airdistill.audit.received import CHANCE, WhitenedTable, correlation_between, table_tests
from airdistill.audit.votes import chance_of_less
from airdistill.privacy.targets import epsilon_of_mu
from airdistill.runs.accounts import certify
from airdistill.runs.options import RunOptions
from airdistill.runs.runner import resume, run

RECORDED = AuditOptions(parts=("recorded",))
EVERY_ROUND = RunOptions(threads=1, eval_every=1)


@pytest.fixture(autouse=True)
def same_noise_each_time(monkeypatch):
    mutants.seeded_secure_noise(monkeypatch)


OWN, RECEIVER, SECURE = "privacy.trust=own_noise", "privacy.trust=receiver_noise", "privacy.noise=secure"
PUBLIC = ("public.samples=12", "public.distill_epochs=1", "learning.local_epochs=1")
FEATURES = ("public.samples=12", "public.distill_epochs=1", "learning.rounds=2")
KNOWN = ("fleet.participation=0.5", "fleet.devices=5", "data.samples_per_device=12")
SECRET = (*KNOWN, "fleet.participation_hidden=true", "learning.rounds=3", "learning.max_rounds=6")
CSI = "radio.csi_error_db=-20"

SOUND = {
    "paper": ("ota_fd", "privacy.sensitivity=paper", "privacy.accountant=paper", RECEIVER, "radio.transceiver=paper"),
    "class means": ("airdistill", "privacy.trust=fleet_noise"),
    "class means, receiver noise": ("airdistill", RECEIVER, "radio.noise=real"),
    "class means, own noise": ("ota_fd", OWN, "privacy.sensitivity=class_mean", "privacy.relabel=true"),
    "trajectory": ("airdistill", "privacy.sensitivity=trajectory", "learning.initial_lr=0.001"),
    "epochs on a trajectory": ("ota_fd", "privacy.sensitivity=trajectory", "learning.local_epochs=2"),
    "secure": ("airdistill", SECURE),
    "secure, own noise": ("ota_fd", SECURE, OWN),
    "TDMA": ("orthogonal_fd", OWN, SECURE),
    "TDMA, receiver noise": ("orthogonal_fd", RECEIVER),
    "truncation": ("ota_fd", "radio.truncation=-125 dB"),
    "known participation": ("airdistill", *KNOWN),
    "secret participation": ("ota_fd", *SECRET),
    "CSI error": ("ota_fd", CSI),
    "CSI error, receiver noise": ("airdistill", CSI, RECEIVER, *KNOWN),
    "CSI error, secure": ("ota_fd", CSI, OWN, SECURE),
    "antennas": ("ota_fd", "radio.antennas=2"),
    "antennas, receiver noise": ("ota_fd", "radio.antennas=2", "radio.combining=per_class", RECEIVER),
    "public predictions": ("airdistill_proxy", *PUBLIC),
    "public predictions, secure": ("ota_proxy_fd", *PUBLIC, SECURE),
    "feature means": ("airdistill_features", *FEATURES, RECEIVER, *KNOWN),
    "feature means, private counts": ("feature_means", *FEATURES, "privacy.counts=private", SECURE),
    "feature means, one record": ("feature_means", *FEATURES, "privacy.sensitivity=class_mean"),
    "feature means, one record, private counts": (
        "feature_means",
        *FEATURES,
        "privacy.sensitivity=class_mean",
        "privacy.counts=private",
    ),
    "gradients": ("ota_fl", OWN, "privacy.sensitivity=class_mean"),
    "gradients, secret participation": ("ota_fl", *SECRET),
    "gradients with replacement": ("ota_fl", "fleet.sampling=with_replacement", "fleet.sampled_devices=2"),
    "no target": ("ota_fd", "privacy.epsilon=inf"),
    "votes": ("pate", *PUBLIC, "privacy.epsilon=100"),
    "votes, secure": ("pate", *PUBLIC, "privacy.epsilon=100", SECURE),
    "votes, no target": ("pate", *PUBLIC, "privacy.epsilon=inf"),
}


def played(folder, scheme="ota_fd", *changes, out="run", **how):
    write_dataset(folder / "blobs.npz")
    return run(small_scenario(folder, *changes), scheme, out=folder / out, options=EVERY_ROUND, **how).folder


@pytest.mark.parametrize("case", SOUND.values(), ids=SOUND)
def test_nothing_is_found_in_a_sound_run(tmp_path, case):
    found = audit_run(played(tmp_path, *case), RECORDED).recorded
    assert found.violations == ()
    assert found.num_releases == found.num_rounds > 0
    assert found.num_redrawn == (0 if SECURE in case else found.num_rounds)
    assert found.epsilon == pytest.approx(found.recorded_epsilon, rel=1e-6)


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_nothing_is_found_in_a_run_that_was_stopped_and_resumed(tmp_path, noise):
    """Its last round before the stop is charged again, or repeated with the same noise."""

    def stop(record, _num_rounds):
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        played(tmp_path, "airdistill", f"privacy.noise={noise}", on_round=stop)
    assert audit_run(tmp_path / "run", RECORDED).recorded.violations == ()
    resume(tmp_path / "run")
    found = audit_run(tmp_path / "run", RECORDED).recorded
    assert found.violations == ()
    assert found.num_releases >= found.num_rounds > 3


def test_a_build_without_noise_that_charges_a_tenth_does_not_pass(tmp_path, monkeypatch):
    """The attacks replay the plan, and cannot see it."""
    with monkeypatch.context() as patch:
        mutants.no_noise(patch)
        mutants.noise_counted_tenfold(patch)
        folder = played(tmp_path)
    replayed = replace(RECORDED, parts=("exact", "empirical"), transcripts=1, candidates=2, trials=20, rounds=2)
    assert audit_run(folder, replayed).violations == ()
    found = audit_run(folder, RECORDED)
    for words in ("The ledger charges less", "Noise lower than predicted", "recorded noise is not what"):
        assert any(words in sentence for sentence in found.violations)
    noted = certify(folder).audit
    assert noted["audits"][-1]["parts"] == ["recorded"]
    assert noted["violations"] == list(found.violations)


def test_the_command_prints_what_was_recorded_and_exits_with_one(tmp_path, monkeypatch, capsys):
    sound = played(tmp_path, out="sound")
    with monkeypatch.context() as patch:
        mutants.charge_halved(patch)
        broken = played(tmp_path, out="broken")
    assert exit_code("audit", sound, "--parts", "recorded") == 0
    printed = capsys.readouterr().out
    assert "What was recorded" in printed
    assert "Verdict: not violated" in printed
    assert "What was recorded" in (sound / "audit.html").read_text()
    assert exit_code("audit", broken, "--parts", "recorded") == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "Verdict: violated" in printed
    assert "The ledger charges less than was released, in round 1 and 5 more: weights of device" in printed


def test_records_are_a_part_of_every_audit_of_a_run_and_of_none_of_a_scenario(tmp_path, capsys):
    folder, attacks = played(tmp_path), ("--transcripts", 1, "--candidates", 2, "--trials", 10, "--rounds", 2)
    assert exit_code("audit", folder, *attacks, "--shadows", 4, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["recorded"]["rounds"], found["recorded"]["releases"]) == (6, 6)
    assert found["exact"] is not None
    scenario = small_scenario(tmp_path)
    (tmp_path / "small.toml").write_text((folder / "scenario.toml").read_text())
    assert scenario.name == "quick"
    out = ("--out", tmp_path / "audit")
    assert exit_code("audit", tmp_path / "small.toml", *attacks, "--parts", "recorded,exact", *out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["recorded"] is None
    assert exit_code("audit", tmp_path / "small.toml", "--parts", "recorded", *out) == 2
    assert "a scenario has no records" in capsys.readouterr().err


def test_with_secret_participation_the_records_are_audited_and_the_attacks_left_out(tmp_path):
    found = audit_run(played(tmp_path, "ota_fd", *SECRET))
    assert found.recorded.violations == ()
    assert (found.exact, found.empirical, found.membership) == (None, None, None)
    assert any(note.startswith("The attacks are left out: fleet.participation_hidden") for note in found.notes)


# The target is looked at first.


def _damaged(name, line):
    def damage(folder):
        lines = (folder / name).read_bytes().splitlines()
        lines[line] = b'{"round": garbage'
        (folder / name).write_bytes(b"\n".join(lines) + b"\n")

    return damage


DAMAGE = {
    "rounds": (_damaged("rounds.jsonl", 2), "rounds.jsonl: line 3: cannot be read; the file is damaged"),
    "last round": (_damaged("rounds.jsonl", -1), "rounds.jsonl: line 6: cannot be read; the file is damaged"),
    "ledger": (_damaged("ledger.jsonl", 3), "ledger.jsonl: line 4 is damaged; the ledger is rejected"),
    "summary": (lambda folder: (folder / "summary.json").write_text("{"), "summary.json: was edited or damaged"),
    "certificate": (lambda folder: (folder / "certificate.json").write_text("{"), "certificate.json: cannot be read"),
    "audits": (lambda folder: (folder / "audits.jsonl").write_text("garbage\n"), "audits.jsonl: is damaged"),
    "run": (lambda folder: (folder / "run.json").unlink(), "is not a run folder: it has no run.json"),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_folder_is_one_line_and_not_audited(tmp_path, capsys, damage, words):
    folder = played(tmp_path)
    damage(folder)
    assert exit_code("audit", folder) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert (len(printed.err.splitlines()), printed.out) == (1, "")
    assert not (folder / "audit.json").exists()


@pytest.mark.parametrize("code", [0, 1])
def test_an_audit_that_cannot_be_saved_is_printed(tmp_path, monkeypatch, capsys, code):
    with monkeypatch.context() as patch:
        if code:
            mutants.no_noise(patch)
        folder = played(tmp_path)
    (folder / "audit.html").mkdir()  # root can write into a folder that is only readable
    assert exit_code("audit", folder, "--parts", "recorded") == code
    printed = capsys.readouterr()
    assert "Verdict:" in printed.out
    assert f"{folder}: the audit could not be saved there: Is a directory; use --out DIR" in printed.err
    assert len(printed.err.splitlines()) == 1
    assert exit_code("audit", folder, "--parts", "recorded", "--out", tmp_path / "elsewhere") == code
    assert (tmp_path / "elsewhere" / "audit.html").is_file()


def test_an_output_that_is_a_file_is_refused_before_anything_is_computed(tmp_path, capsys):
    folder = played(tmp_path)
    (tmp_path / "file").touch()
    assert exit_code("audit", folder, "--out", tmp_path / "file") == 2
    printed = capsys.readouterr()
    assert "is a file; name a folder" in printed.err
    assert printed.out == ""


# Records that contradict the plan


def _edited(folder, round_index, **changes):
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    lines[round_index - 1] |= changes
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "digests.json").unlink(missing_ok=True)  # whoever edits records can remove their digests
    return audit_run(folder, RECORDED).violations


def test_records_that_were_changed_contradict_the_plan(tmp_path):
    folder = played(tmp_path)
    original = (folder / "rounds.jsonl").read_text()
    lines = [json.loads(line) for line in original.splitlines()]
    tables = {**lines[1]["knowledge"], "received": lines[2]["knowledge"]["received"]}
    for changes, words in [
        ({"predicted_noise_var": [1.0, 1.0, 1.0]}, "round 2 predicts 1 for row"),
        ({"silent_devices": [0]}, "round 2 records device 0 as inactive or not"),
        ({"planned_power_w": 1.0}, "round 2 plans 1 W"),
        ({"measured_power_w": 1.0}, "1 W in round 2, where"),
        ({"knowledge": tables}, "What was received is not what was recorded"),
        ({"measured_noise_var": [x / 2 for x in lines[1]["measured_noise_var"]]}, "round 2 records a variance of"),
    ]:
        (folder / "rounds.jsonl").write_text(original)
        assert any(words in sentence for sentence in _edited(folder, 2, **changes)), words


# Schemes with gains of their own

OWN_GAINS = """
from dataclasses import replace
from airdistill.schemes.distillation import OtaFd

class Fainter(OtaFd):
    name = "fainter"

    def play(self, this):
        design = this.design()
        signals = {"signal_gain": design.signal_gain / 2, "rx_scale": design.rx_scale / 2}
        this.charge(replace(design, **signals, effective_noise_var=4 * design.effective_noise_var))
        return super().play(this)
"""


def test_gains_of_a_custom_scheme_are_not_compared_with_the_plan(tmp_path, monkeypatch):
    (tmp_path / "fainter.py").write_text(OWN_GAINS)
    monkeypatch.syspath_prepend(tmp_path)
    folder = played(tmp_path, "fainter:Fainter", "radio.noise_power=1e-20 W")
    found = audit_run(folder, RECORDED).recorded
    assert found.violations == ()
    assert found.num_redrawn == 0
    assert found.epsilon == pytest.approx(found.recorded_epsilon, rel=1e-6)
    assert any("gains are not those of the plan" in note for note in found.notes)
    with monkeypatch.context() as patch:
        mutants.no_noise(patch)
        noiseless = played(tmp_path, "fainter:Fainter", "radio.noise_power=1e-20 W", out="noiseless")
    assert any("Noise lower than predicted" in sentence for sentence in audit_run(noiseless, RECORDED).violations)
    sys.modules.pop("fainter")


OWN_PARTS = """
from dataclasses import dataclass
import numpy as np
from airdistill.privacy.participation import Participation
from airdistill.privacy.trust import FleetNoise

class Fleet(FleetNoise):
    name = "own_parts:Fleet"

@dataclass(frozen=True)
class TakingTurns(Participation):
    def mask(self, round_index):
        return (np.arange(self.num_devices) + round_index) % 2 == 0
"""


@pytest.mark.parametrize("own", ["privacy.trust=own_parts:Fleet", "fleet.sampling=own_parts:TakingTurns"])
def test_runs_with_parts_of_the_users_own_are_audited(tmp_path, monkeypatch, own):
    (tmp_path / "own_parts.py").write_text(OWN_PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    folder = played(tmp_path, "airdistill", own)
    found = audit_run(folder, RECORDED).recorded
    assert found.violations == ()
    assert found.num_redrawn == found.num_rounds
    assert found.epsilon == pytest.approx(found.recorded_epsilon, rel=1e-6)
    sys.modules.pop("own_parts")


# Chains


def _chain(folder, *changes, scheme="ota_fd"):
    first = played(folder, scheme, "privacy.epsilon=4", *changes, out="first")
    return first, played(folder, scheme, *changes, out="second", ledger=first)


@pytest.mark.parametrize("mutant", [mutants.noise_of_no_ledger, mutants.noise_keyed_by_terms_alone])
def test_noise_that_two_runs_of_a_chain_share_is_found_from_both_sides(tmp_path, monkeypatch, mutant):
    with monkeypatch.context() as patch:
        mutant(patch)
        first, second = _chain(tmp_path, "radio.noise_power=1e-20 W")
    for folder, other in [(first, second), (second, first)]:
        found = audit_run(folder, RECORDED)
        assert any("Noise is reused along the chain" in sentence for sentence in found.violations)
        assert any(str(other) in name for name in found.recorded.correlations)


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_runs_of_a_chain_with_noise_of_their_own_are_compared_or_named(tmp_path, noise):
    first, second = _chain(tmp_path, f"privacy.noise={noise}")
    for folder in (first, second):
        found = audit_run(folder, RECORDED)
        assert found.violations == ()
        assert len(found.recorded.correlations) == 4
    (tmp_path / "elsewhere").mkdir()
    shutil.move(first, tmp_path / "elsewhere" / "moved")
    found = audit_run(second, RECORDED)
    assert found.violations == ()
    assert any(
        "continues the ledger of another, whose folder is not beside it" in note for note in found.recorded.notes
    )
    shutil.rmtree(second)
    notes = audit_run(tmp_path / "elsewhere" / "moved", RECORDED).recorded.notes
    assert any("The run that continues this ledger is not at" in note for note in notes)


# Numbers


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_epsilon_is_that_of_the_accountant(noise):
    mu, delta = np.meshgrid([1e-3, 0.1, 1.0, 5.0, 30.0], [1e-11, 1e-5, 1e-2])
    found = epsilon_of(mu.ravel(), delta.ravel(), noise)
    assert found == pytest.approx(epsilon_of_mu(mu.ravel(), delta.ravel(), noise), rel=1e-6, abs=1e-9)
    assert epsilon_of(np.array([0.0, np.inf]), np.array([1e-5, 1e-5]), noise).tolist() == [0.0, np.inf]


def _tables(noise):
    return [WhitenedTable(number, each) for number, each in enumerate(noise, start=1)]


def test_independent_tables_raise_no_alarm_and_limits_are_not_idle():
    """The limits are exact: at 1,000 times the chance, about as many alarms are raised as are meant to be."""
    rng, loud = np.random.default_rng(0), 0
    for _ in range(300):
        tables, others = (_tables(rng.standard_normal((6, 4, 4))) for _ in range(2))
        assert table_tests(tables).violations == []
        found = correlation_between(tables, others)
        assert found.value < found.limit
        loud += table_tests(tables).correlations["worst direction"].value > norm.isf(0.05 / 6)
    assert CHANCE < 2e-4
    assert 3 < loud < 40  # 0.05 · 300 = 15, fewer because the six directions depend on each other


def test_reused_and_shifted_tables_raise_an_alarm():
    rng = np.random.default_rng(1)
    noise = rng.standard_normal((6, 4, 4))
    noise[4] = -2 * noise[1]
    assert "noise of two rounds" in table_tests(_tables(noise)).violations[0]
    noise = rng.standard_normal((6, 4, 4))
    noise[:, 2] = 0.5 * noise[:, 3]
    assert "noise of two rows" in table_tests(_tables(noise)).violations[0]
    shifted = rng.standard_normal((6, 4, 4)) + np.array([2.0, -2.0, 0.0, 0.0])
    assert any("not centred" in sentence for sentence in table_tests(_tables(shifted)).violations)
    assert table_tests([]) is None


def test_votes_that_an_earlier_version_recorded_have_their_charges_compared_and_a_note(tmp_path):
    folder = played(tmp_path, "pate", *PUBLIC, "privacy.epsilon=100")
    line = json.loads((folder / "rounds.jsonl").read_text())
    for added in ("answers", "check_noise_var"):
        del line["pate"][added]
    (folder / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    for path in [folder / "digests.json", *folder.glob("checkpoint-*")]:
        path.unlink()
    found = audit_run(folder, RECORDED).recorded
    assert found.violations == ()
    assert found.num_redrawn == 0
    assert any("kept no answers" in note for note in found.notes)


def test_weak_secure_noise_of_checks_shows_in_its_variance(tmp_path, monkeypatch):
    changes = (*PUBLIC, "privacy.epsilon=100", SECURE, "public.samples_per_round=12")
    assert audit_run(played(tmp_path, "pate", *changes), RECORDED).violations == ()
    monkeypatch.setattr(mutants.ChargedVotes, "_draws", _a_tenth_of(mutants.ChargedVotes._draws))
    (sentence,) = audit_run(played(tmp_path, "pate", *changes, out="weak"), RECORDED).violations
    assert "has checks with" in sentence


def test_few_whole_numbers_may_all_be_zero():
    """Against every outcome of up to four draws: the bound holds, is exact for zeros, and finds what cannot be."""
    values = np.arange(-9, 10)
    for deviation in (0.4, 0.9):
        weight = np.exp(-(values**2) / (2 * deviation**2))
        weight /= weight.sum()
        of_sum = np.ones(1)
        for num_draws in range(1, 5):
            squares = np.zeros(82)
            np.add.at(squares, values**2, weight)
            of_sum = np.convolve(of_sum, squares)
            for total, chance in enumerate(np.cumsum(of_sum)[:12]):
                assert chance_of_less(deviation, num_draws, total) >= chance * (1 - 1e-6)
            assert chance_of_less(deviation, num_draws, 0) == pytest.approx(of_sum[0], rel=1e-3)
    assert chance_of_less(0.9, 300, 0.49 * 300 * 0.81) < 1e-6
    assert chance_of_less(0.9, 0, 0.0) == 1


def test_few_answers_with_secure_noise_are_no_violation(tmp_path, monkeypatch):
    """With 12 samples, some runs answer one or two, whose noise is often 0 in every vote."""
    changes = (*PUBLIC, "privacy.epsilon=100", SECURE, "public.samples_per_round=12")
    monkeypatch.setattr(mutants.ChargedVotes, "_draws", _no_noise_in_votes(mutants.ChargedVotes._draws))
    assert audit_run(played(tmp_path, "pate", *changes), RECORDED).violations == ()


def _no_noise_in_votes(draws):
    """As drawn, but that one query alone passes its check, and its votes have drawn 0."""

    def drawn(this, *given):
        checks, votes = draws(this, *given)
        checks[1:] = -np.abs(checks[1:]) - 100
        checks[0] = np.abs(checks[0]) + 100
        votes[0] = 0
        return checks, votes

    return drawn


def _a_tenth_of(draws):
    def drawn(this, *given):
        checks, votes = draws(this, *given)
        return 0.1 * checks, votes

    return drawn
