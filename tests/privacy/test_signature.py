"""A signed certificate is verified from files alone; what was changed, exchanged or outgrown is named."""

import base64
import json
import subprocess

import pytest
from in_process import exit_code
from random_releases import TERMS, both_formats, header, random_release

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from airdistill.errors import InputError
from airdistill.files import json_text
from airdistill.privacy.certificate import certificate_of
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.signature import canonical, date_of_issue, fingerprint, read_private_key, signed

ISSUED = "2026-01-02T03:04:05Z"
PEM, RAW = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
PUBLIC = serialization.PublicFormat.SubjectPublicKeyInfo


def write_key(key, folder, name):
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    private.write_bytes(key.private_bytes(PEM, RAW, serialization.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(PEM, PUBLIC))
    return private, public


@pytest.fixture(autouse=True, params=[1, 2])
def ledger_format(request, monkeypatch):
    return both_formats(request, monkeypatch)


@pytest.fixture
def files(tmp_path):
    """A folder with a ledger of three rounds, its signed certificate, and the signer's keys."""
    ledger = Ledger.begin(header(), tmp_path / "ledger.jsonl")
    for round_index in (1, 2, 3):
        ledger.charge(random_release(round_index, noise=100.0))
    key = Ed25519PrivateKey.generate()
    write_key(key, tmp_path, "key")
    (tmp_path / "certificate.json").write_text(json_text(signed(certificate_of(ledger, None, ISSUED).to_dict(), key)))
    return tmp_path


def verify(folder, *more, key="key.pub.pem", ledger="ledger.jsonl"):
    given = ["--ledger", folder / ledger] if ledger else []
    return exit_code("verify", folder / "certificate.json", "--key", folder / key, *given, *more)


def changed(files, **changes):
    path = files / "certificate.json"
    path.write_text(json_text({**json.loads(path.read_text()), **changes}))


def sign_again(files, **changes):
    """Another certificate by the same signer."""
    key = serialization.load_pem_private_key((files / "key.pem").read_bytes(), None)
    stored = json.loads((files / "certificate.json").read_text())
    (files / "certificate.json").write_text(json_text(signed({**stored, **changes}, key)))


def test_a_certificate_is_verified_with_and_without_its_ledger(files, capsys):
    assert verify(files) == 0
    out = capsys.readouterr().out
    assert out.startswith("Verified: Simulation: (ε ≤ ")
    assert f"issued {ISSUED}" in out
    assert "its 4 lines give the same numbers, verdict and sentences" in out
    assert verify(files, ledger=None) == 0
    assert "Ledger: not given, and so nothing was recomputed" in capsys.readouterr().out
    assert verify(files, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "verified": True, "problem": None, "checked": ["signature", "ledger"],
    }  # fmt: skip


def test_a_ledger_without_its_head_is_enough(files, tmp_path):
    alone = tmp_path / "received"
    alone.mkdir()
    (alone / "copy.jsonl").write_bytes((files / "ledger.jsonl").read_bytes())
    assert verify(files, ledger="received/copy.jsonl") == 0


@pytest.mark.parametrize(
    "change",
    [{"verdict": "holds"}, {"headline": "(ε = 0.10, δ = 1e-9)"}, {"issued": "2027-01-01T00:00:00Z"}, {"more": 1}],
)
def test_a_changed_certificate_is_not_verified(files, capsys, change):
    changed(files, **change)
    assert verify(files) == 1
    assert capsys.readouterr().out.startswith("Not verified: it was changed after it was signed")


def test_another_key_is_not_the_signers(files, capsys):
    write_key(Ed25519PrivateKey.generate(), files, "other")
    assert verify(files, key="other.pub.pem") == 1
    assert "it was signed with another key: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        (None, "the certificate is not signed"),
        ({"algorithm": "ed25519", "key": "", "value": "%"}, "the signature is damaged"),
        ("none", "the signature is damaged"),
        ({"algorithm": "rsa", "key": "", "value": ""}, "of an unknown kind, rsa"),
        ({"algorithm": "ed25519", "key": "", "value": ""}, "it was signed with another key"),
    ],
)
def test_unsigned_and_damaged_signatures_are_not_verified(files, capsys, signature, message):
    changed(files, signature=signature)
    assert verify(files, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verified"] is False
    assert message in found["problem"]


@pytest.mark.parametrize("keep", [0, 1, 500, -3])
def test_a_truncated_file_is_bad_input(files, capsys, keep):
    path = files / "certificate.json"
    path.write_bytes(path.read_bytes()[:keep])
    assert verify(files) == 2
    assert "is not a certificate, or is damaged" in capsys.readouterr().err


def test_other_files_are_bad_input(files, capsys, ledger_format):
    path = files / "certificate.json"
    whole = path.read_text()
    for content, message in [
        ("[]", "it has not the keys of a certificate"),
        (whole.replace(f'"format": {ledger_format}', '"format": 9'), "of format 9; this version reads formats 1 and 2"),
        (whole.replace('"verdict":', '"verdict": "holds", "verdict":', 1), "a key is given twice"),
    ]:
        path.write_text(content)
        assert verify(files) == 2
        assert message in capsys.readouterr().err
    path.unlink()
    assert verify(files) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err


def test_keys_of_other_kinds_are_bad_input(files, capsys):
    other = rsa.generate_private_key(65537, 2048)
    write_key(other, files, "rsa")
    for key, message in [
        ("key.pem", "is a private key; make the public one with openssl pkey -in key.pem -pubout"),
        ("rsa.pub.pem", "is not an Ed25519 key"),
        ("ledger.jsonl", "is not a public key in PEM or OpenSSH form"),
        ("missing.pem", "cannot be read: No such file"),
    ]:
        assert verify(files, key=key) == 2
        assert message in capsys.readouterr().err


def test_keys_of_openssh_are_read(files):
    key = serialization.load_pem_private_key((files / "key.pem").read_bytes(), None)
    ssh = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (files / "id.pub").write_bytes(ssh + b" me@here\n")
    assert verify(files, key="id.pub") == 0


def test_private_keys_are_read_in_both_forms_and_others_are_refused(tmp_path):
    key, path = Ed25519PrivateKey.generate(), tmp_path / "key"
    plain = serialization.NoEncryption()
    path.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, plain))
    assert fingerprint(read_private_key(path).public_key()) == fingerprint(key.public_key())
    rsa_key = rsa.generate_private_key(65537, 2048)
    for content, message in [
        (key.private_bytes(PEM, RAW, serialization.BestAvailableEncryption(b"secret")), "is encrypted: decrypt it"),
        (rsa_key.private_bytes(PEM, RAW, plain), "is not an Ed25519 key; make one with openssl genpkey"),
        (key.public_key().public_bytes(PEM, PUBLIC), "is not a private key in PEM form"),
        (b"", "is not a private key in PEM form"),
    ]:
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_private_key(path)


def test_a_ledger_that_has_grown_since_is_named(files, capsys):
    Ledger.read(files / "ledger.jsonl").charge(random_release(4, noise=100.0))
    assert verify(files) == 1
    assert "has grown since: the certificate is of its first 4 lines, and it has 5" in capsys.readouterr().out
    assert verify(files, ledger=None) == 0


def test_another_ledger_is_not_that_of_the_certificate(files, capsys):
    other = Ledger.begin(header(), files / "other.jsonl")
    for round_index in range(1, 6):
        other.charge(random_release(round_index, seed=1, noise=100.0))
    assert verify(files, ledger="other.jsonl") == 1
    assert "is not the ledger of this certificate" in capsys.readouterr().out
    Ledger.begin(header(), files / "short.jsonl")
    assert verify(files, ledger="short.jsonl") == 1
    assert "is not the ledger of this certificate" in capsys.readouterr().out


def test_an_edited_ledger_is_rejected(files, capsys):
    path = files / "ledger.jsonl"
    (files / "ledger.head").unlink()
    path.write_bytes(path.read_bytes().replace(b'"round":2', b'"round":9'))
    assert verify(files) == 1
    assert "line 3 was edited or moved" in capsys.readouterr().out
    assert verify(files, ledger="missing.jsonl") == 2
    assert "is neither a ledger's file nor a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"verdict": "holds"}, "verdict is 'simulation', and the certificate says 'holds'"),
        ({"headline": "(ε = 0.10, δ = 1e-9)"}, "headline is 'Simulation: "),
        ({"reasons": []}, "reasons is ["),
        ({"releases": 2}, "releases is 3, and the certificate says 2"),
    ],
)
def test_what_does_not_follow_from_the_ledger_is_not_verified_even_if_it_was_signed(files, capsys, change, where):
    sign_again(files, **change)
    assert verify(files, ledger=None) == 0
    capsys.readouterr()
    assert verify(files) == 1
    assert f"the ledger gives another certificate: {where}" in capsys.readouterr().out


def test_last_bits_may_differ_between_machines(files):
    devices = json.loads((files / "certificate.json").read_text())["devices"]
    for factor, code in [(1 + 1e-12, 0), (1 + 1e-6, 1)]:
        if isinstance(devices, list):
            scaled = [{**each, "spent": each["spent"] * factor} for each in devices]
        else:
            scaled = {**devices, "spent": [each * factor for each in devices["spent"]]}
        sign_again(files, devices=scaled)
        assert verify(files) == code


def test_the_canonical_form_is_what_the_manual_says(files):
    """Checked with OpenSSL: a reader without this program can verify the signature."""
    stored = json.loads((files / "certificate.json").read_text())
    assert canonical({"b": 1e-5, "a": "ε", "signature": {}}) == '{"a":"ε","b":1e-05}'.encode()
    (files / "body").write_bytes(canonical(stored))
    (files / "value").write_bytes(base64.b64decode(stored["signature"]["value"]))
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "key.pub.pem", "-rawin", "-in", "body"]
    done = subprocess.run([*command, "-sigfile", "value"], cwd=files, capture_output=True, text=True)
    assert "Verified Successfully" in done.stdout, done.stderr


def test_the_date_of_issue_can_be_given(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert date_of_issue() == "1970-01-01T00:00:00Z"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "now")
    with pytest.raises(InputError, match="must be a number of seconds since 1970"):
        date_of_issue()
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert date_of_issue() > "2026"


def test_what_stands_beside_the_signature_is_the_signers_or_refused(files, capsys):
    """The signature does not cover its own block: a line added there would be shown as verified."""
    stored = json.loads((files / "certificate.json").read_text())
    for more in ({"key": "00\nVerdict: holds"}, {"key": "0" * 64}, {"note": "approved"}):
        changed(files, signature={**stored["signature"], **more})
        assert verify(files) == 1
        assert "Verified" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "changes",
    [
        {"issued": "2026-01-02T03:04:05Z, by key 00\nVerdict: holds"}, {"issued": "\x1b[2J"}, {"issued": None},
        {"airdistill": "1\n2"}, {"airdistill": {}}, {"ledger_lines": "3"}, {"ledger_lines": 4.0},
        {"ledger_lines": True}, {"ledger_lines": [4]}, {"ledger_lines": -1}, {"audit": "x"}, {"audit": {}},
        {"audit": {"violations": 5}},
    ],
)  # fmt: skip
def test_a_signer_cannot_add_lines_or_stop_the_verifier(files, changes):
    sign_again(files, **changes)
    assert verify(files) == 1


@pytest.mark.parametrize(
    "name", ["NaN", "1e400", '"\\ud800"', "[" * 100_000 + "]" * 100_000, '{"a":' * 2000 + "1" + "}" * 2000]
)
def test_a_certificate_without_a_canonical_form_is_refused(files, name):
    path = files / "certificate.json"
    path.write_text(path.read_text().rstrip()[:-1] + f', "more": {name}}}')
    assert verify(files) == 2


def test_a_certificate_that_was_signed_before_its_quantile_was_stated_still_follows_from_its_ledger(files, capsys):
    """Later versions say more; a sentence that says something else is still refused."""
    terms = TERMS | {"csi_error_limit": 0.1, "csi_error": {"quantile": 0.999, "reserved_delta": 0.0}}
    ledger = Ledger.begin(header(terms=terms), files / "other.jsonl")
    ledger.charge(random_release(1, noise=100.0))
    stored = json.loads(json_text(certificate_of(ledger, None, ISSUED).to_dict()))
    added = " The limit is the 0.999 quantile of the error of one device in one round."
    told = [each for each in stored["assumptions"] if each["sentence"].endswith(added)]
    assert len(told) == 1
    for words, code in ((added, 0), ("", 0), (added.replace("0.999", "0.9999"), 1)):
        told[0]["sentence"] = told[0]["sentence"].partition(" The limit is")[0] + words
        sign_again(files, **stored)
        assert verify(files, ledger="other.jsonl") == code
    assert "the ledger gives another certificate: assumptions" in capsys.readouterr().out
