import hashlib
import json
import os
from pathlib import Path

import pytest
from random_releases import both_formats, header, random_release

from airdistill.privacy.chain import Chain, LedgerError
from airdistill.privacy.ledger import Ledger


@pytest.fixture(autouse=True, params=[1, 2])
def ledger_format(request, monkeypatch):
    return both_formats(request, monkeypatch)


@pytest.fixture
def path(tmp_path):
    ledger = Ledger.begin(header(), tmp_path / "ledger.jsonl")
    for t in (1, 2, 3):
        ledger.charge(random_release(t))
    return tmp_path / "ledger.jsonl"


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


def test_any_changed_byte_is_detected(path):
    """Every 37th byte: digits, names, digests and line ends are all among them."""
    whole = path.read_bytes()
    for position in range(0, len(whole), 37):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(bytes(damaged))
        with pytest.raises(LedgerError, match=r"edited|damaged|removed|head"):
            Ledger.read(path)
    path.write_bytes(whole)
    assert len(Ledger.read(path).releases) == 3


def test_a_rewritten_charge_with_a_matching_digest_is_detected(path):
    """Rewriting one line and its digest breaks the next line, or the head."""
    bodies, lines = list(Chain.read(path).bodies()), lines_of(path)
    for number in (1, 2, 3):
        forged = path.parent / f"forged-{number}.jsonl"
        chain = Chain.begin(forged, bodies[0])
        for body in [*bodies[1:number], dict(bodies[number], round=9)]:
            chain.append(body)
        new_line = lines_of(forged)[number]
        path.write_bytes(b"".join([*lines[:number], new_line, *lines[number + 1 :]]))
        with pytest.raises(LedgerError, match="rejected"):
            Ledger.read(path)


@pytest.mark.parametrize(
    ("order", "rule"),
    [
        ([0, 2, 1, 3], "line 2 was edited or moved"),
        ([0, 1, 3], "line 3 was edited or moved"),
        ([1, 2, 3], "line 1 was edited or moved"),
        ([0, 1, 2], "has 3 of 4 lines; the others were removed"),
        ([0], "has 1 of 4 lines; the others were removed"),
        ([], "has 0 of 4 lines; the others were removed"),
        ([0, 1, 2, 3, 3], "line 5 was edited or moved"),
    ],
)
def test_reordered_missing_and_duplicated_lines_are_detected(path, order, rule):
    lines = lines_of(path)
    path.write_bytes(b"".join(lines[number] for number in order))
    with pytest.raises(LedgerError, match=rule):
        Ledger.read(path)


def test_a_truncated_last_line_is_detected(path):
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(LedgerError, match="the others were removed"):
        Ledger.read(path)


def test_a_missing_or_foreign_head_is_detected(path):
    head = path.with_suffix(".head")
    content = head.read_bytes()
    head.unlink()
    with pytest.raises(LedgerError, match=r"its head, ledger\.head, is missing"):
        Ledger.read(path)
    head.write_bytes(b"{}")
    with pytest.raises(LedgerError, match="is damaged"):
        Ledger.read(path)
    head.write_bytes(content.replace(b'"lines":4', b'"lines":2'))
    with pytest.raises(LedgerError, match="does not match its head"):
        Ledger.read(path)


def test_a_crash_while_writing_a_line_loses_no_charged_round(path):
    """The partial line announced a round that did not happen; the head may lag one whole line behind."""
    whole, head = path.read_bytes(), path.with_suffix(".head")
    before = head.read_bytes()
    ledger = Ledger.read(path)
    ledger.charge(random_release(4))
    fourth = lines_of(path)[-1]
    path.write_bytes(whole + fourth[: len(fourth) // 2])
    head.write_bytes(before)
    torn = Ledger.read(path)
    assert len(torn.releases) == 3
    torn.charge(random_release(4))
    assert path.read_bytes() == whole + fourth
    head.write_bytes(before)
    assert len(Ledger.read(path).releases) == 4


def test_lines_are_on_disk_before_append_returns(tmp_path, monkeypatch):
    synced = []
    real = os.fsync

    def note(handle):
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        real(handle)

    monkeypatch.setattr(os, "fsync", note)
    chain = Chain.begin(tmp_path / "ledger.jsonl", {"kind": "opening"})
    assert synced[0].endswith("ledger.new")  # which is then renamed
    assert str(tmp_path) in synced
    synced.clear()
    chain.append({"kind": "release"})
    assert synced[0].endswith("ledger.jsonl")


def test_a_ledger_does_not_overwrite_another(path):
    with pytest.raises(LedgerError, match="a ledger cannot be begun twice"):
        Ledger.begin(header(), path)


def test_files_that_are_not_ledgers_are_rejected(tmp_path):
    with pytest.raises(LedgerError, match=r"its head, nothing\.head, is missing"):
        Ledger.read(tmp_path / "nothing.jsonl")
    (tmp_path / "nothing.head").write_text('{"lines": 1, "digest": ""}')
    with pytest.raises(LedgerError, match="cannot be read"):
        Ledger.read(tmp_path / "nothing.jsonl")
    Chain.begin(tmp_path / "other.jsonl", {"kind": "release", "round": 1})
    with pytest.raises(LedgerError, match="is not a ledger"):
        Ledger.read(tmp_path / "other.jsonl")


@pytest.mark.parametrize(
    "line", [b"NaN", b'{"a": NaN, "digest": "x"}', b'{"a": "\\ud800", "digest": "x"}', b"[1]", b"\xff"]
)
def test_malformed_lines_are_rejected_with_a_one_line_message(path, line):
    path.write_bytes(b"".join([*lines_of(path)[:3], line + b"\n"]))
    with pytest.raises(LedgerError, match="line 4 is damaged"):
        Ledger.read(path)


def test_a_ledger_can_be_read_during_its_run(path, monkeypatch):
    """Lines appended after the head was read are counted, not mistaken for a forgery."""
    from airdistill.privacy import chain as module

    writer, real = Ledger.read(path), module._read_head

    def slow(given):
        found = real(given)
        for t in (4, 5, 6):
            writer.charge(random_release(t))
        return found

    monkeypatch.setattr(module, "_read_head", slow)
    assert Chain.read(path).num_lines == 7


@pytest.mark.parametrize(
    "text", ["A" * 5000, "A" * 4999 + '"', "\0", "é" * 2000, "A" * 2000 + "\n", "+/=" * 1000, "\\" * 3000, "A" * 999]
)
def test_a_line_is_the_json_of_its_body_whatever_its_texts_are(tmp_path, text):
    """Long columns are put in after the encoder, in the place of a text that a body may have as well."""
    bodies = [
        {"kind": "one", "text": text, "more": {text: text, "list": [text, 1.5, None]}},
        {"kind": "two", "text": "\0", "column": "B" * 2000, "again": {"column": "C" * 3000}},
    ]
    chain = Chain.begin(tmp_path / "ledger.jsonl", bodies[0])
    chain.append(bodies[1])
    lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
    previous = hashlib.sha256(b"airdistill ledger").hexdigest()
    for line, body in zip(lines, bodies, strict=True):
        written = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        previous = hashlib.sha256(f"{previous}\n{written}".encode()).hexdigest()
        assert line == json.dumps({**body, "digest": previous}, ensure_ascii=False, separators=(",", ":"))
    assert list(Chain.read(tmp_path / "ledger.jsonl").bodies()) == bodies
