import ssl
import stat

import pytest

from remoting.certificates import CertificateAuthority, CertificateFiles
from remoting.tls import client_context, server_context


def test_keys_are_private_and_nothing_is_overwritten(tmp_path):
    authority = CertificateAuthority.create(tmp_path)
    files = authority.issue("server", ["localhost", "::1"])
    for key in (authority.files.key, files.key):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = files.key.read_bytes()
    with pytest.raises(FileExistsError, match=r"server\.pem"):
        authority.issue("server")
    with pytest.raises(FileExistsError, match=r"ca\.pem"):
        CertificateAuthority.create(tmp_path)
    assert files.key.read_bytes() == before


def test_an_authority_is_loaded_again(tmp_path):
    created = CertificateAuthority.create(tmp_path, "own")
    files = CertificateAuthority(created.files).issue("client")
    server_context(files.certificate, files.key, client_ca_file=created.files.certificate)
    context = client_context(
        ca_file=created.files.certificate, certificate_file=files.certificate, key_file=files.key
    )
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    with pytest.raises(ValueError, match=r"PEM|parse|load"):
        CertificateAuthority(CertificateFiles(created.files.key, created.files.certificate))
