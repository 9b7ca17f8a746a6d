import pytest

from gateway.config.tls import TlsConfig
from gateway.runtime.server_tls import TlsError, build_acceptor, build_opener
from remoting.certificates import CertificateAuthority
from remoting.transport import connect


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return CertificateAuthority.create(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority):
    files = authority.issue("server", ["localhost"], password="open sesame")
    return {
        "certificate": str(files.certificate),
        "private_key": str(files.key),
        "key_password": "open sesame",
    }


def test_the_default_accepts_both_kinds_and_connects_plainly():
    assert build_acceptor(TlsConfig(), 120) is not None
    assert build_opener(TlsConfig(), connect) is connect
    assert build_acceptor(TlsConfig(mode="disabled", certificate="missing.pem"), 120) is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"test_mode": False}, r"tls\.server\.certPath is not set, although tls\.test\.mode\.enable=false"),
        (
            {"client_certificates": "require"},
            r"tls\.server\.certPath is not set, although clients are verified",
        ),
        (
            {"certificate": "missing.pem", "test_mode": True},
            "No such file or directory.*missing.pem|missing.pem",
        ),
    ],
)
def test_settings_that_do_not_fit(settings, reason):
    with pytest.raises(TlsError, match=reason):
        build_acceptor(TlsConfig(**settings), 120)


def test_clients_are_verified_by_an_authority_only(server, authority):
    for settings in ({"client_certificates": "require"}, {"verify_clients": True}):
        with pytest.raises(TlsError, match=r"tls\.server\.trustCertPath is not set"):
            build_acceptor(TlsConfig(**server, **settings), 120)
        trusted = str(authority.files.certificate)
        build_acceptor(TlsConfig(**server, **settings, client_authority=trusted), 120)


def test_errors_name_the_files_and_not_the_password(server):
    with pytest.raises(TlsError, match=r"server\.pem") as refused:
        build_acceptor(TlsConfig(**{**server, "key_password": "guess"}), 120)
    assert "guess" not in str(refused.value)
    with pytest.raises(TlsError, match=r"TLS to namesrvs cannot be set up: .*missing\.pem"):
        build_opener(TlsConfig(use_client_tls=True, server_authority="missing.pem"), connect)


def test_secrets_are_not_shown():
    assert "open sesame" not in repr(TlsConfig(key_password="open sesame", client_key_password="open sesame"))
