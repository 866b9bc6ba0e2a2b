"""Runs whose ledger is of format 2: the same rounds, resumed, continued, certified, audited, reported and verified."""

import json

import pytest
from in_process import exit_code
from small_worlds import small_scenario

import airdistill as ad
from airdistill.privacy import ledger_header
from airdistill.privacy.chain import LedgerError
from airdistill.privacy.ledger import Ledger
from airdistill.runs.options import RunOptions

FAST = RunOptions(threads=1, eval_every=100, checkpoint_every=2)
FINAL = ("rounds.jsonl", "ledger.jsonl", "ledger.head", "summary.json", "certificate.json")


def stop_at_3(record, _):
    if record["round"] == 3:
        raise KeyboardInterrupt


@pytest.fixture
def by_device(tmp_path, monkeypatch):
    """A run of format 1, in which devices leave rounds out, so that their groups change; later runs are of format 2."""
    made = ad.run(small_scenario(tmp_path, *SAMPLED), "ota_fd", out=tmp_path / "by-device", options=FAST)
    monkeypatch.setattr(ledger_header, "GROUPED_FROM", 2)  # as if every fleet were large
    return made


SAMPLED = ("fleet.participation=0.6",)


def test_the_rounds_do_not_depend_on_the_format_and_a_cut_run_resumes_bit_identically(tmp_path, by_device):
    scenario = small_scenario(tmp_path, *SAMPLED)
    whole = ad.run(scenario, "ota_fd", out=tmp_path / "whole", options=FAST)
    with pytest.raises(KeyboardInterrupt):
        ad.run(scenario, "ota_fd", out=tmp_path / "cut", options=FAST, on_round=stop_at_3)
    ad.resume(tmp_path / "cut")
    for name in FINAL:
        assert (tmp_path / "cut" / name).read_bytes() == (whole.folder / name).read_bytes(), name
    assert (whole.folder / "rounds.jsonl").read_bytes() == (by_device.folder / "rounds.jsonl").read_bytes()
    assert ad.certify(whole.folder).devices[:] == ad.certify(by_device.folder).devices[:]
    for command in (("audit", "--parts", "recorded", "--json"), ("report",), ("certify", "--devices")):
        assert exit_code(command[0], whole.folder, *command[1:]) == 0
    assert [Ledger.read(each.folder / "ledger.jsonl").header.format for each in (whole, by_device)] == [2, 1]


def test_a_run_of_an_earlier_version_resumes_in_its_format(tmp_path, monkeypatch):
    scenario = small_scenario(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        ad.run(scenario, "ota_fd", out=tmp_path / "run", options=FAST, on_round=stop_at_3)
    monkeypatch.setattr(ledger_header, "GROUPED_FROM", 2)
    ad.resume(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert lines[0]["format"] == 1
    assert len(lines) == 7
    assert all("participants" in line for line in lines[1:])


def test_a_run_continues_a_ledger_of_format_1_and_is_signed_and_verified(tmp_path, by_device):
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    more = small_scenario(tmp_path, *SAMPLED, "privacy.epsilon=12")
    second = ad.run(more, "ota_fd", out=tmp_path / "second", options=FAST, ledger=by_device.folder)
    ledger = Ledger.read(second.folder / "ledger.jsonl")
    assert (ledger.header.format, ledger.earlier_headers[0].format) == (2, 1)
    assert (ledger.squared_mu() > ledger.squared_mu_before()).all()
    key, private, public = Ed25519PrivateKey.generate(), tmp_path / "key.pem", tmp_path / "key.pub.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    handed_out = tmp_path / "handed-out"
    assert exit_code("certify", second.folder, "--sign", private, "--out", handed_out) == 0
    checked = ("verify", handed_out / "certificate.json", "--key", public, "--ledger", second.folder / "ledger.jsonl")
    assert exit_code(*checked) == 0
    content = (second.folder / "ledger.jsonl").read_bytes()
    for damaged in (content[:-400], content.replace(b'"round":2', b'"round":3')):
        (second.folder / "ledger.jsonl").write_bytes(damaged)
        assert exit_code(*checked) == 1
        with pytest.raises(LedgerError):
            Ledger.read(second.folder / "ledger.jsonl")
