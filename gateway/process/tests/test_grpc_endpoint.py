"""The connections of the gRPC front to broker processes, and to the other servers that their namesrv knows."""

from types import SimpleNamespace

import pytest
from trio.testing import trio_test

from gateway.config.process import ProcessConfig, ProxyConfig, ServeConfig
from gateway.config.tls import TlsConfig
from gateway.process import grpc_endpoint
from gateway.process.grpc_endpoint import open_by_origin, proxy_cluster
from gateway.runtime.supervise import TaskSupervisor
from toolkit.settings import SettingsError

OWN = ("mq.example.org", 10911)
MAPPED = ("127.0.0.1", 40911)
OTHER = ("10.0.0.7", 10911)
PLAIN = (False, True)


def describe_opener(tls, open_plain):
    """Return an opener that tells the settings of TLS besides the address, instead of a TLS connection."""

    async def describe(host, port):
        return (tls.use_client_tls, tls.verify_servers), await open_plain(host, port)

    return describe


def test_rules_for_addresses_that_are_none_are_an_error_of_the_setting():
    config = ServeConfig(
        process=ProcessConfig(grpc_broker_addresses="10.0.0.0/33"), proxy=ProxyConfig("127.0.0.1:9876", 1000)
    )
    with pytest.raises(SettingsError, match=r"grpcBrokerAddresses: '10\.0\.0\.0/33' is neither an address"):
        proxy_cluster(config, config.proxy, SimpleNamespace(reactor=None), TaskSupervisor("proxy"))


@pytest.mark.parametrize(
    ("tls", "own", "other"),
    [
        (TlsConfig(mode="permissive"), PLAIN, PLAIN),
        (TlsConfig(mode="enforcing"), (True, False), PLAIN),
        (TlsConfig(mode="enforcing", use_client_tls=True, verify_servers=True), (True, True), (True, True)),
    ],
)
@trio_test
async def test_only_certificates_of_the_own_processes_are_not_verified(monkeypatch, tls, own, other):
    monkeypatch.setattr(grpc_endpoint, "build_opener", describe_opener)

    async def open_plain(host, port):
        return host, port

    async def open_guarded(host, port):
        return "guarded", host, port

    open_any = open_by_origin(ServeConfig(tls=tls), {OWN: MAPPED}, open_plain, open_guarded)
    assert await open_any(*OWN) == (own, MAPPED)
    assert await open_any(*OTHER) == (other, ("guarded", *OTHER))
    assert await open_any(OTHER[0], OWN[1]) == (other, ("guarded", OTHER[0], OWN[1]))
