"""Signed certificates, for readers who have nothing but files: the certificate, a public key, and perhaps the ledger.

The signature is Ed25519, over the canonical form of the certificate without its key `signature`: JSON in UTF-8 with
sorted keys, without spaces, and with the shortest digits that restore each number.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airdistill import __version__
from airdistill.errors import AirDistillError, InputError
from airdistill.files import json_value
from airdistill.privacy.assumptions import in_earlier_words
from airdistill.privacy.certificate import FORMATS, certificate_of
from airdistill.privacy.chain import LedgerError
from airdistill.privacy.ledger import Ledger

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ALGORITHM = "ed25519"
_CLOSE = 1e-9  # relative: what the arithmetic of two machines may differ by
_NOT_COMPARED = ("issued", "airdistill", "signature")
_LEDGER_FILE = "ledger.jsonl"
_KEYS = {"airdistill", "format", "issued", "headline", "verdict_in_words", "audit", "ledger_digest", "ledger_lines"}
_SIGNATURE_KEYS = {"algorithm", "key", "value"}
_FORMS = (
    ("issued", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "a date, as 2026-01-02T03:04:05Z"),
    ("airdistill", r"[0-9A-Za-z.+!-]{1,64}", "a version"),
)
Stored = dict[str, Any]


class NotVerified(AirDistillError):  # noqa: N818 - the name says what happened
    """A certificate that was read, and that its signature or its ledger does not confirm."""


def date_of_issue() -> str:
    """The present date in UTC, or that of SOURCE_DATE_EPOCH, which makes certificates reproducible."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        moment = datetime.now(UTC) if given is None else datetime.fromtimestamp(int(given), UTC)
    except (ValueError, OverflowError, OSError):
        raise InputError("SOURCE_DATE_EPOCH", given, "must be a number of seconds since 1970") from None
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def canonical(certificate: Mapping[str, Any]) -> bytes:
    """The bytes that are signed."""
    body = {name: value for name, value in certificate.items() if name != "signature"}
    return json.dumps(body, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def signed(certificate: Mapping[str, Any], key: Ed25519PrivateKey) -> Stored:
    """The certificate with its signature, and the fingerprint of the key that made it."""
    signature = base64.b64encode(key.sign(canonical(certificate))).decode()
    stated = {"algorithm": ALGORITHM, "key": fingerprint(key.public_key()), "value": signature}
    return {**certificate, "signature": stated}


def fingerprint(key: Ed25519PublicKey) -> str:
    """SHA-256 of the public key's 32 bytes."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


_MAKE = "openssl genpkey -algorithm ed25519 -out private.pem"


def _cryptography() -> tuple[Any, Any, tuple[type[Exception], ...]]:
    """The modules of keys, and what they raise for a file that is not a key."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise AirDistillError("signatures need cryptography: pip install 'airdistill[signing]'") from None
    return serialization, ed25519, (ValueError, UnsupportedAlgorithm)


def _key_file(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(option, str(path), f"cannot be read: {error.strerror}") from None


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """The Ed25519 private key in a file, in PEM or OpenSSH form."""
    library, ed25519, unreadable = _cryptography()
    content = _key_file("--sign", path)
    load = library.load_ssh_private_key if b"OPENSSH PRIVATE KEY" in content else library.load_pem_private_key
    try:
        key = load(content, password=None)
    except TypeError:
        rule = f"is encrypted: decrypt it first, with openssl pkey -in {path.name} -out plain.pem"
        raise InputError("--sign", str(path), rule) from None
    except unreadable:
        raise InputError("--sign", str(path), f"is not a private key in PEM form; make one with {_MAKE}") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise InputError("--sign", str(path), f"is not an Ed25519 key; make one with {_MAKE}")
    private: Ed25519PrivateKey = key
    return private


def read_public_key(path: Path) -> Ed25519PublicKey:
    """The Ed25519 public key in a file, in PEM or OpenSSH form."""
    library, ed25519, unreadable = _cryptography()
    content = _key_file("--key", path)
    if b"PRIVATE KEY" in content:
        rule = f"is a private key; make the public one with openssl pkey -in {path.name} -pubout -out public.pem"
        raise InputError("--key", str(path), rule)
    load = library.load_ssh_public_key if content.startswith(b"ssh-") else library.load_pem_public_key
    try:
        key = load(content)
    except unreadable:
        raise InputError("--key", str(path), "is not a public key in PEM or OpenSSH form") from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise InputError("--key", str(path), "is not an Ed25519 key")
    public: Ed25519PublicKey = key
    return public


def read_certificate(path: Path) -> Stored:
    """The content of a certificate's file; `InputError` if it is not one."""
    try:
        stored = json_value(path.read_bytes(), _without_repetition)
        if not isinstance(stored, dict) or _KEYS - set(stored):
            raise ValueError("it has not the keys of a certificate")
        canonical(stored)  # NaN, infinities and halves of characters have no canonical form
    except OSError as error:
        raise InputError("FILE", str(path), f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError("FILE", str(path), f"is not a certificate, or is damaged: {error}") from None
    if stored["format"] not in FORMATS:
        known = " and ".join(map(str, FORMATS))
        rule = f"is a certificate of format {stored['format']}; this version reads formats {known}"
        raise InputError("FILE", str(path), rule)
    return stored


def _without_repetition(pairs: list[tuple[str, Any]]) -> Stored:
    """A JSON object. A key given twice would be read differently by different programs."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def check_signature(stored: Stored, key: Ed25519PublicKey) -> None:
    """Raise `NotVerified` unless the key's owner signed exactly this certificate."""
    from cryptography.exceptions import InvalidSignature

    stated = stored.get("signature")
    if stated is None:
        raise NotVerified("the certificate is not signed; sign it with airdistill certify RUN --sign KEY")
    try:
        algorithm, signer, value = stated["algorithm"], stated["key"], base64.b64decode(stated["value"], validate=True)
    except (KeyError, TypeError, ValueError):
        raise NotVerified("the signature is damaged") from None
    if set(stated) != _SIGNATURE_KEYS:
        raise NotVerified("the signature is damaged: it must have algorithm, key and value, and nothing else")
    if algorithm != ALGORITHM:
        raise NotVerified(f"the signature is of an unknown kind, {algorithm}; only {ALGORITHM} is verified")
    try:
        key.verify(value, canonical(stored))
    except InvalidSignature:
        if signer != fingerprint(key):
            raise NotVerified(f"it was signed with another key: {signer}, not {fingerprint(key)}") from None
        raise NotVerified("it was changed after it was signed: the signature does not fit its content") from None
    # The signature does not cover what stands beside it, which a reader may take for the signer's.
    if signer != fingerprint(key):
        raise NotVerified(f"the key that it names is not the one that signed it, {fingerprint(key)}")
    _check_issue(stored)


def _check_issue(stored: Stored) -> None:
    """Raise `NotVerified` unless date and version, which no ledger confirms, are a date and a version."""
    for name, form, rule in _FORMS:
        if not (isinstance(stored[name], str) and re.fullmatch(form, stored[name])):
            raise NotVerified(f"{name} is {str(stored[name])!r}: must be {rule}")


def check_against_ledger(stored: Stored, given: Path) -> None:
    """Raise `NotVerified` unless the certificate is what follows from the ledger.

    The ledger's file is enough; its head is read if it lies beside it, because the digest of the certificate says what
    the head would say.
    """
    path = given / _LEDGER_FILE if given.is_dir() else given
    if not path.is_file():
        raise InputError("--ledger", str(given), f"is neither a ledger's file nor a folder with {_LEDGER_FILE}")
    try:
        ledger = Ledger.read(path, check_head=path.with_suffix(".head").exists())
    except LedgerError as error:
        raise NotVerified(str(error)) from None
    _check_same_ledger(stored, ledger)
    try:
        recomputed = certificate_of(
            ledger, stored["audit"], data_dependent=stored.get("data_dependent_epsilon")
        ).to_dict()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        what = f"{type(error).__name__}: {error}"
        raise NotVerified(f"ledger and audit are not such that a certificate can be made of them: {what}") from None
    difference = next(_differences(stored, recomputed), None)
    if difference is not None:
        by = stored["airdistill"]
        version = "" if by == __version__ else f" (made by airdistill {by}, recomputed by {__version__})"
        raise NotVerified(f"the ledger gives another certificate: {difference}{version}")


def _check_same_ledger(stored: Stored, ledger: Ledger) -> None:
    chain, lines = ledger.chain, stored["ledger_lines"]
    assert chain is not None
    if (
        type(lines) is not int
        or lines < 1
        or chain.num_lines < lines
        or chain.digest_at(lines) != stored["ledger_digest"]
    ):
        raise NotVerified(f"{chain.path}: is not the ledger of this certificate, whose digest is another")
    if chain.num_lines > lines:
        raise NotVerified(
            f"{chain.path}: has grown since: the certificate is of its first {lines} lines, and it has "
            f"{chain.num_lines}; ask for a new certificate"
        )


def _differences(mine: Any, theirs: Any, where: str = "") -> Iterator[str]:
    """Where two JSON values differ by more than rounding."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for name in {**mine, **theirs}:
            if where or name not in _NOT_COMPARED:
                yield from _differences(mine.get(name), theirs.get(name), f"{where}.{name}" if where else name)
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        for index, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            yield from _differences(one, other, f"{where}[{index}]")
    elif not _same(mine, theirs):
        yield f"{where} is {theirs!r}, and the certificate says {mine!r}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=_CLOSE)
    if isinstance(one, str) and isinstance(other, str):
        return one in (other, in_earlier_words(other))
    return type(one) is type(other) and bool(one == other)
