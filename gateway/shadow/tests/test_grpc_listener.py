"""The connections of the gRPC port to the gateway's own ports."""

import pytest
import trio
from trio.testing import trio_test

from gateway.runtime.listener_tls import ListenTls
from gateway.shadow.grpc_listener import own_ports_opener
from gateway.shadow.proxy.settings import ListenSettings
from toolkit.settings import SettingsError


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
@trio_test
async def test_ports_are_reached_here_whatever_host_clients_are_told(host):
    listeners = await trio.open_tcp_listeners(0, host=host)
    port = listeners[0].socket.getsockname()[1]
    transport = await own_ports_opener(ListenSettings(host=host), None)("advertised.example", port)
    assert transport.remote == ("127.0.0.1", port)
    transport.close()
    for listener in listeners:
        await listener.aclose()


def test_ports_that_demand_certificates_cannot_be_reached():
    tls = ListenTls(mode="enforcing", certificate="any.pem", client_required=True)
    with pytest.raises(SettingsError, match=r"listen\.grpc_port: .*listen\.tls\.client_required"):
        own_ports_opener(ListenSettings(tls=tls), None)
    own_ports_opener(ListenSettings(tls=ListenTls(mode="enforcing")), None)
