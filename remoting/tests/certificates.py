"""Helpers of tests: a certificate authority and the certificates it has signed, as PEM files."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Authority:
    """Signs certificates for 127.0.0.1 and localhost. ``file`` is its own certificate."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        own = _builder(self._name, self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        usage = dict.fromkeys(
            ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"), False
        )
        usage |= dict.fromkeys(("key_agreement", "encipher_only", "decipher_only"), False)
        usage |= dict.fromkeys(("key_cert_sign", "crl_sign"), True)
        own = own.add_extension(x509.KeyUsage(**usage), critical=True)
        own = own.add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False)
        self.file = self._write(f"{name}.pem", own.sign(self._key, hashes.SHA256()))

    def issue(self, name: str, *hosts: str, password: str | None = None) -> tuple[Path, Path]:
        """Return certificate file and key file for a name; ``hosts`` are this machine by default."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts or ("localhost",)]
        if not hosts:
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        builder = _builder(_name(name), self._name, key)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(authority, critical=False)
        certificate = self._write(f"{name}.pem", builder.sign(self._key, hashes.SHA256()))
        locked = (
            serialization.BestAvailableEncryption(password.encode())
            if password
            else serialization.NoEncryption()
        )
        file = self.directory / f"{name}.key"
        form = serialization.PrivateFormat.PKCS8
        file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
        return certificate, file

    def _write(self, name: str, certificate: x509.Certificate) -> Path:
        file = self.directory / name
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return file


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _builder(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return x509.CertificateBuilder(
        issuer,
        name,
        key.public_key(),
        x509.random_serial_number(),
        now - datetime.timedelta(days=1),
        now + datetime.timedelta(days=30),
    )
