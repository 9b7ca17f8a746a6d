"""Calls of a real etcd member that serves TLS and demands the certificates of its clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from gateway.config.controller import ControllerConfig
from gateway.controller.etcd_store import EtcdStore
from gateway.controller.service import build_store
from gateway.controller.store import ControllerMember, StoreUnavailable, Term
from gateway.runtime.server_tls import TlsError
from remoting.certificates import CertificateAuthority
from tools.etcd_members import EtcdMembers, EtcdTls, etcd_program

needs_etcd = pytest.mark.skipif(etcd_program() is None, reason="etcd is not installed")
HOST = "127.0.0.1"
TRIES = 200


class Files:
    """An authority with the certificates of a member and of a controller, and another authority with one."""

    def __init__(self, directory: Path) -> None:
        folders = directory / "own", directory / "other"
        for folder in folders:
            folder.mkdir()
        own, other = (CertificateAuthority.create(folder) for folder in folders)
        self.authority, self.other_authority = own.files.certificate, other.files.certificate
        self.member = own.issue("member", [HOST])
        self.client, self.other_client = own.issue("controller"), other.issue("controller")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def member(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tls = EtcdTls(files.authority, files.member.certificate, files.member.key)
    with EtcdMembers(tmp_path_factory.mktemp("etcd"), 1, tls=tls) as members:
        yield members.urls[0]


def begin_term(url: str, **settings: str | Path) -> Term | None:
    """Begin the term of a controller with these settings; a member that is only slow is asked again."""
    texts = {name: str(value) for name, value in settings.items()}
    config = ControllerConfig(etcd=url, lease_s=60, **texts)
    store = build_store(config, trio.to_thread.run_sync, lambda: 0.0, memory=False)
    assert isinstance(store, EtcdStore)

    async def begin() -> Term | None:
        for _ in range(TRIES):
            try:
                return await store.begin_term(ControllerMember("n0", "h:1"))
            except StoreUnavailable as problem:
                if "in time" not in str(problem):
                    raise
        raise AssertionError(f"no answer at {TRIES} tries")

    return trio.run(begin)


@needs_etcd
def test_a_controller_with_a_certificate_keeps_its_state_there(files: Files, member: str) -> None:
    term = begin_term(
        member,
        etcd_ca=files.authority,
        etcd_certificate=files.client.certificate,
        etcd_key=files.client.key,
    )
    assert term is not None


@needs_etcd
def test_what_is_wrong_with_the_certificates_is_said(files: Files, member: str) -> None:
    own = {"etcd_certificate": files.client.certificate, "etcd_key": files.client.key}
    other = {"etcd_certificate": files.other_client.certificate, "etcd_key": files.other_client.key}
    demands = "it demands the certificate of a client, .* set controllerEtcdCert and controllerEtcdKey"
    unknown = "certificate is not accepted: .*issuer certificate. Set controllerEtcdCa to the authority"
    with pytest.raises(StoreUnavailable, match=unknown):
        begin_term(member, etcd_ca=files.other_authority, **own)
    with pytest.raises(StoreUnavailable, match=unknown):
        begin_term(member, **own)
    with pytest.raises(StoreUnavailable, match=demands):
        begin_term(member, etcd_ca=files.authority)
    with pytest.raises(StoreUnavailable, match=demands):
        begin_term(member, etcd_ca=files.authority, **other)
    with pytest.raises(StoreUnavailable, match=r"not accepted: Hostname mismatch, [^;]*'localhost'\.\)$"):
        begin_term(member.replace(HOST, "localhost"), etcd_ca=files.authority, **own)


@needs_etcd
def test_a_wrong_scheme_is_said(files: Files, member: str, tmp_path: Path) -> None:
    with pytest.raises(
        StoreUnavailable, match=r"without an answer\. If it serves TLS, its address begins with https://"
    ):
        begin_term(member.replace("https", "http"))
    with EtcdMembers(tmp_path, 1) as plain:
        url = plain.urls[0].replace("http", "https")
        with pytest.raises(StoreUnavailable, match="If it serves no TLS, its address begins with http://"):
            begin_term(url, etcd_ca=files.authority)


def test_files_that_cannot_be_used_are_named(files: Files, tmp_path: Path) -> None:
    absent = tmp_path / "absent.pem"
    with pytest.raises(TlsError, match=r"TLS to etcd cannot be set up: .*absent\.pem"):
        begin_term("https://e:1", etcd_ca=absent)
    with pytest.raises(TlsError, match=r"(?i)key values mismatch .*controller\.pem"):
        begin_term(
            "https://e:1",
            etcd_certificate=files.client.certificate,
            etcd_key=files.other_client.key,
        )
