"""The connections of the gRPC port to the gateway's own ports."""

import pytest
import trio
from trio.testing import trio_test

from gateway.runtime.listener_tls import ListenTls
from gateway.shadow.grpc_listener import own_ports_opener
from gateway.shadow.proxy.settings import ListenSettings
from toolkit.settings import SettingsError


def opener(settings, *ports):
    """Return what opens connections to a gateway with these ports."""
    return own_ports_opener(settings, None, lambda port: port in ports)


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
@trio_test
async def test_ports_are_reached_here_whatever_host_clients_are_told(host):
    listeners = await trio.open_tcp_listeners(0, host=host)
    port = listeners[0].socket.getsockname()[1]
    transport = await opener(ListenSettings(host=host), port)("advertised.example", port)
    assert transport.remote == ("127.0.0.1", port)
    transport.close()
    for listener in listeners:
        await listener.aclose()


@trio_test
async def test_no_other_port_of_this_machine_is_reached():
    """Anybody may register one with a namesrv of the primary."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    open_own = opener(ListenSettings(), port + 1)
    with pytest.raises(OSError, match=f"advertised.example:{port} is not a port of this gateway"):
        await open_own("advertised.example", port)
    for listener in listeners:
        await listener.aclose()


def test_ports_that_demand_certificates_cannot_be_reached():
    tls = ListenTls(mode="enforcing", certificate="any.pem", client_required=True)
    with pytest.raises(SettingsError, match=r"listen\.grpc_port: .*listen\.tls\.client_required"):
        opener(ListenSettings(tls=tls))
    opener(ListenSettings(tls=ListenTls(mode="enforcing")))
