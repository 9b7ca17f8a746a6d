"""Controllers whose etcd serves TLS and demands the certificates of its clients."""

from pathlib import Path

from acceptance.test_controller import require_etcd
from compat_tests.server import eventually
from remoting.certificates import CertificateAuthority
from tools.etcd_members import EtcdMembers, EtcdTls
from tools.official_controllers import free_port, leads
from tools.processes import Gateway

START_S = 60.0


def start_controller(directory: Path, settings: dict[str, str]) -> tuple[Gateway, str]:
    address = f"127.0.0.1:{free_port()}"
    arguments = ["--host", "127.0.0.1"]
    for name, value in {"controllerDLegerPeers": f"n0-{address}", **settings}.items():
        arguments += ["--set", f"{name}={value}"]
    return Gateway(directory, *arguments, command="controller"), address


def test_a_controller_leads_with_a_certificate_and_says_that_one_is_missing(tmp_path: Path) -> None:
    require_etcd()
    authority = CertificateAuthority.create(tmp_path)
    member = authority.issue("member", ["127.0.0.1"])
    certificate_files = authority.issue("controller")
    tls = EtcdTls(authority.files.certificate, member.certificate, member.key)
    with EtcdMembers(tmp_path, 1, tls=tls) as etcd:
        etcd_settings = {"controllerEtcd": etcd.urls[0], "controllerEtcdCa": str(authority.files.certificate)}
        bare_controller, _ = start_controller(
            tmp_path / "without", {**etcd_settings, "controllerDLegerGroup": "without"}
        )
        with bare_controller:
            eventually(
                lambda: bare_controller.lines(
                    "it demands the certificate of a client, signed by an authority"
                ),
                START_S,
            )
        certificate = {
            "controllerEtcdCert": str(certificate_files.certificate),
            "controllerEtcdKey": str(certificate_files.key),
        }
        controller, address = start_controller(tmp_path / "with", etcd_settings | certificate)
        with controller:
            eventually(lambda: leads(address), START_S)
            assert "Traceback" not in controller.output()
