"""Creates keys and certificates: a self-signed one for tests, and a development authority with those it signs.

`cryptography` takes 0.1 s to import, and only servers without a certificate and `rmq-gateway cert` need this module.
"""

import datetime
import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

MAX_CLOCK_SKEW: Final = datetime.timedelta(days=1)
"""A certificate becomes valid this long before it is created, for peers whose clock is slow."""


def self_signed_pem() -> bytes:
    """Return a key and its certificate, valid for ten years, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("rocketmq-gateway")
    certificate = _builder(name, name, key, days=3650).sign(key, hashes.SHA256())
    return _key_pem(key, None) + certificate.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A certificate and its private key, both as PEM files."""

    certificate: Path
    key: Path


class CertificateAuthority:
    """A certificate authority for development. The certificates that it signs are stored in its own folder."""

    def __init__(self, files: CertificateFiles) -> None:
        """Load an authority. Raises OSError or ValueError for files that cannot be read."""
        self.files = files
        self._certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{files.key}: not a key that `rmq-gateway cert` has created")
        self._key = key

    @classmethod
    def create(cls, directory: Path, name: str = "ca", *, days: int = 3650) -> "CertificateAuthority":
        """Create an authority as NAME.pem and NAME.key. Raises FileExistsError if there is one."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(f"{name} (rocketmq-gateway development)")
        signs = {"key_cert_sign": True, "crl_sign": True}
        other_usages = (
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        )
        certificate = (
            _builder(subject, subject, key, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(**dict.fromkeys(other_usages, False), **signs), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(_write_pair(directory, name, certificate, _key_pem(key, None)))

    def issue(
        self, name: str, hosts: Iterable[str] = (), *, days: int = 825, password: str | None = None
    ) -> CertificateFiles:
        """Sign a certificate for a server at ``hosts`` (names or addresses), or for a client called ``name``.

        Raises FileExistsError if there is one of that name.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._certificate.subject, key, days)
        if names := [_alternative_name(host) for host in hosts]:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._certificate.public_key())  # type: ignore[arg-type]
        builder = builder.add_extension(authority, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return _write_pair(self.files.certificate.parent, name, certificate, _key_pem(key, password))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return x509.CertificateBuilder(
        issuer,
        subject,
        key.public_key(),
        x509.random_serial_number(),
        now - MAX_CLOCK_SKEW,
        now + datetime.timedelta(days=days),
    )


def _key_pem(key: ec.EllipticCurvePrivateKey, password: str | None) -> bytes:
    encryption = (
        serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    )
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def _write_pair(directory: Path, name: str, certificate: x509.Certificate, key: bytes) -> CertificateFiles:
    files = CertificateFiles(directory / f"{name}.pem", directory / f"{name}.key")
    for file in (files.certificate, files.key):
        if file.exists():
            raise FileExistsError(f"{file} exists")
    _write_new(files.key, key, 0o600)
    _write_new(files.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return files


def _write_new(file: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as opened:
        opened.write(content)
