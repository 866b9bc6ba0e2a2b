"""Keys and certificates of one federation: a certificate authority, servers and nodes.

The private key of the authority is not stored.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOOPBACK = "127.0.0.1"
A_WEEK, A_YEAR = datetime.timedelta(days=7), datetime.timedelta(days=365)
CLOCK_SKEW = datetime.timedelta(minutes=5)


@dataclass(frozen=True)
class ServerFiles:
    """The files that a process needs as a TLS server on the loopback interface."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority for this machine and at most one other host; its private key is never written."""

    def __init__(self, folder: Path, host: str = LOOPBACK, lifetime: datetime.timedelta = A_WEEK) -> None:
        self._folder, self._host, self._lifetime = folder, host, lifetime
        self._key = ec.generate_private_key(ec.SECP384R1())
        self._name = _common_name("AirDistill authority of one federation")
        self.certificate = folder / "ca.crt"
        signed = self._builder(self._name, self._key.public_key(), authority=True).sign(self._key, hashes.SHA384())
        self.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def server(self, name: str) -> ServerFiles:
        """Make a key and a certificate for one server; no two processes share a key."""
        key = ec.generate_private_key(ec.SECP384R1())
        names = dict.fromkeys([_address("localhost"), _address(LOOPBACK), _address(self._host)])
        addresses = x509.SubjectAlternativeName(list(names))
        signed = (
            self._builder(_common_name(name), key.public_key(), authority=False)
            .add_extension(addresses, critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(self._key, hashes.SHA384())
        )
        files = ServerFiles(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        files.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        write_secret(files.key, _private_bytes(key, serialization.PrivateFormat.PKCS8))
        return files

    def _builder(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey, *, authority: bool
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(now + self._lifetime)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
            .add_extension(_usage(authority), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def _address(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def make_node_key(private_file: Path) -> bytes:
    """Write a node's private key in the format of a SuperNode (OpenSSH) and return the public key (PEM)."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(private_file, _private_bytes(key, serialization.PrivateFormat.OpenSSH))
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def as_ssh(public_key: bytes) -> bytes:
    """The public key in the format of `flwr supernode register`."""
    key = serialization.load_pem_public_key(public_key)
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) + b"\n"


def write_secret(file: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, from the first byte on."""
    file.touch(mode=0o600, exist_ok=False)
    file.write_bytes(content)


def _private_bytes(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
