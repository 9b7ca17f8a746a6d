"""The HTTP port of a server: probes and metrics."""

import http.client
import json
import os
import socket
import ssl
import urllib.error
import urllib.request

import pytest
import trio

from gateway.config.process import ProcessConfig, TlsConfig
from gateway.http_server.errors import ConsoleError
from gateway.process import health_probe
from gateway.process.http_endpoint import Readiness, build_http_endpoint
from gateway.runtime.metrics import MetricRegistry
from gateway.runtime.supervise import TaskSupervisor
from remoting.certificates import CertificateAuthority
from remoting.tests.virtual import virtual
from remoting.tls import client_context
from toolkit.settings import SettingsError


def fail():
    raise OSError("no space left")


@virtual
async def test_a_task_of_a_broker_process_may_fail_as_well():
    async def find_troubles(excluded):
        return [] if excluded == "in-sync" else ["broker-a: in-sync"]

    readiness = Readiness(list, find_troubles)
    with pytest.raises(ConsoleError, match="broker processes are not ready: broker-a: in-sync"):
        await readiness.report({})
    assert await readiness.report({"exclude": "in-sync"}) == {"ready": True}


@virtual
async def test_a_process_is_ready_while_no_task_fails():
    tasks = TaskSupervisor("broker-a")
    readiness = Readiness(lambda: [tasks])
    assert await readiness.report({}) == {"ready": True}
    await tasks.attempt("save offsets", fail)
    with pytest.raises(
        ConsoleError, match=r"broker-a: save offsets .1 times in a row: OSError: no space left"
    ) as refused:
        await readiness.report({})
    assert refused.value.status == 503
    assert await readiness.report({"exclude": "save offsets"}) == {"ready": True}
    with pytest.raises(ConsoleError, match="save offsets"):
        await readiness.report({"exclude": "in-sync"})
    await tasks.attempt("save offsets", lambda: None)
    assert await readiness.report({}) == {"ready": True}
    readiness.is_stopping = True
    with pytest.raises(ConsoleError, match="stopping"):
        await readiness.report({})


def test_without_a_port_there_is_no_endpoint():
    assert build_http_endpoint(ProcessConfig(), TlsConfig(), MetricRegistry(), Readiness(list)) is None


def test_an_address_that_others_reach_needs_a_token():
    config = ProcessConfig(http_port=0, http_address="0.0.0.0")
    with pytest.raises(SettingsError, match=r"httpAddress=0.0.0.0 can be reached by others: set httpToken"):
        build_http_endpoint(config, TlsConfig(), MetricRegistry(), Readiness(list))


def test_probes_are_open_and_metrics_need_the_token():
    async def main():
        config = ProcessConfig(http_port=0, http_token="t0ken")
        endpoint = build_http_endpoint(config, TlsConfig(), MetricRegistry(), Readiness(list))
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(endpoint.run)

            def get(path, **headers):
                return trio.to_thread.run_sync(fetch, f"http://{host}:{port}{path}", headers)

            assert await get("/healthz") == (200, {"ok": True})
            assert await get("/readyz") == (200, {"ready": True})
            assert (await get("/metrics"))[0] == 401
            status, text = await get("/metrics", Authorization="Bearer t0ken")
            assert status == 200
            assert "rocketmq_gateway_console_evicted_connections_total 0.0" in text
            nursery.cancel_scope.cancel()

    trio.run(main)


@pytest.mark.parametrize("token", ["", "t0ken"])
def test_metrics_are_not_for_pages_under_a_name_of_their_own(token):
    """A web page may make its name resolve to this machine; probes reveal nothing and are asked for under any name."""

    async def main():
        config = ProcessConfig(
            http_port=0, http_token=token, http_hosts="metrics.example.org, other.example.org"
        )
        endpoint = build_http_endpoint(config, TlsConfig(), MetricRegistry(), Readiness(list))
        given = {"Authorization": f"Bearer {token}"} if token else {}
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(endpoint.run)

            async def status(path, **headers):
                url = f"http://{host}:{port}{path}"
                return (await trio.to_thread.run_sync(fetch, url, {**given, **headers}))[0]

            assert await status("/metrics") == 200
            assert await status("/metrics", Host="other.example.org:9881") == 200
            assert await status("/metrics", Host="evil.example") == 403
            assert await status("/metrics", Origin="http://evil.example") == 403
            assert await status("/healthz", Host="evil.example") == 200
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_endpoint_listens_on_loopback_by_default():
    endpoint = build_http_endpoint(ProcessConfig(http_port=0), TlsConfig(), MetricRegistry(), Readiness(list))
    assert endpoint.settings.host == "127.0.0.1"


@pytest.fixture
def authority(tmp_path):
    return CertificateAuthority.create(tmp_path)


def server_certificate(authority, name="server"):
    files = authority.issue(name, ["localhost", "127.0.0.1"])
    return TlsConfig(
        mode="disabled",  # of the other ports
        certificate=str(files.certificate),
        private_key=str(files.key),
        client_certificates="require",
        client_authority=str(authority.files.certificate),
    )


@pytest.mark.parametrize("mode", ["disabled", "permissive", "enforcing"])
def test_tls_in_each_mode(authority, mode, monkeypatch):
    """Clients verify the certificate of the server and need none of their own; the health check works in any mode."""

    async def main():
        config, tls = (
            ProcessConfig(http_port=0, http_token="t0ken", http_tls=mode),
            server_certificate(authority),
        )
        endpoint = build_http_endpoint(config, tls, MetricRegistry(), Readiness(list))
        trusting = client_context(ca_file=authority.files.certificate)
        async with trio.open_nursery() as nursery:
            _, port = await nursery.start(endpoint.run)

            async def served(scheme):
                url, token = f"{scheme}://localhost:{port}/metrics", {"Authorization": "Bearer t0ken"}
                try:
                    return (await trio.to_thread.run_sync(fetch, url, token, trusting))[0] == 200
                except (OSError, http.client.HTTPException):
                    return False

            assert await served("http") is (mode != "enforcing")
            if mode != "disabled":
                assert await served("https")
                assert await trio.to_thread.run_sync(chosen_protocol, trusting, port) == "http/1.1"
            for told in ("", mode):
                monkeypatch.setenv("RMQ_GATEWAY_HTTP_TLS", told)
                monkeypatch.setenv("RMQ_GATEWAY_HTTP_PORT", str(port))
                assert await trio.to_thread.run_sync(health_probe.main, []) == 0
            nursery.cancel_scope.cancel()

    trio.run(main)


def chosen_protocol(tls, port):
    """Return the protocol that the server chooses for a client that would rather speak HTTP/2, as curl does."""
    tls.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as sock,
        tls.wrap_socket(sock, server_hostname="localhost") as secure,
    ):
        return secure.selected_alpn_protocol()


def test_a_renewed_certificate_is_loaded(authority, monkeypatch):
    async def main():
        monkeypatch.setattr("gateway.http_server.server.RELOAD_INTERVAL_S", 0.01)
        config, tls = ProcessConfig(http_port=0, http_tls="enforcing"), server_certificate(authority)
        endpoint = build_http_endpoint(config, tls, MetricRegistry(), Readiness(list))
        async with trio.open_nursery() as nursery:
            _, port = await nursery.start(endpoint.run)

            async def shown():
                return await trio.to_thread.run_sync(ssl.get_server_certificate, ("127.0.0.1", port))

            before = await shown()
            renewed = server_certificate(authority, "renewed")
            os.replace(renewed.private_key, tls.private_key)
            os.replace(renewed.certificate, tls.certificate)
            with trio.fail_after(30):
                while await shown() == before:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_certificates_that_cannot_be_used_are_named():
    def build(mode="enforcing", **tls):
        config = ProcessConfig(http_port=0, http_tls=mode)
        return build_http_endpoint(config, TlsConfig(**tls), MetricRegistry(), Readiness(list))

    with pytest.raises(SettingsError, match=r"missing\.pem"):
        build(certificate="missing.pem")
    with pytest.raises(SettingsError, match=r"tls\.server\.certPath is not set"):
        build(test_mode=False)
    assert build("disabled", certificate="missing.pem") is not None
    assert build() is not None  # with a self-signed certificate


def fetch(url, headers, tls=None):
    try:
        asked = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(asked, timeout=30, context=tls) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read().decode()
    return status, json.loads(text) if text.startswith("{") else text
