"""The port for 5.x clients: gRPC in front of the gateway's own ports, so that their traffic is like any other.

Each call becomes requests that the front sends over connections to the gateway's listeners, as a stock client would.
So they are forwarded, mirrored, compared, captured and directed like those of remoting clients, and a consumer group
of both protocols is one group. The receipt handle of a message names the broker and the pop. If its group has moved to
the other cluster meanwhile, the acknowledgement is refused, and the message is delivered again when its time is over.

With credentials for the primary, senders are verified by its users, as by `rmq-gateway proxy`; without, calls pass
unsigned.

The library of gRPC is imported only if the port is open.
"""

import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from codec.hosts import format_host
from gateway.runtime.listener_tls import ListenTls
from gateway.runtime.metrics import Distribution, Metric
from gateway.runtime.process import ListenError
from gateway.shadow.clusters.cluster import Sign
from gateway.shadow.proxy.settings import ListenSettings
from remoting.limits import ConnectionLimits
from remoting.reactor import Reactor
from remoting.server import ServerLimits, open_listeners
from remoting.tls import client_context, tls_opener
from remoting.tls_acceptor import TlsAcceptor, TlsMode
from remoting.transport import Opener, Transport, connect
from storage.clock import Clock
from toolkit.settings import SettingsError

if TYPE_CHECKING:
    from gateway.grpc_front.cluster import ServedCluster

LOOPBACKS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class GrpcListener:
    """Serves 5.x clients in front of the ports of this gateway, which ``is_own_port`` knows.

    ``sign`` signs the front's own questions.
    """

    def __init__(
        self,
        settings: ListenSettings,
        clock: Clock,
        *,
        is_own_port: Callable[[int], bool],
        sign: Sign | None = None,
        acceptor: TlsAcceptor | None = None,
        reactor: Reactor | None = None,
    ) -> None:
        from gateway.grpc_front.service import GrpcService

        self._settings = settings
        self._clock = clock
        self._sign = sign
        self._opener = own_ports_opener(settings, reactor, is_own_port)
        self._service: GrpcService = GrpcService(
            ConnectionLimits(max_frame_bytes=settings.frame_bytes),
            ServerLimits(
                max_connections=settings.connections,
                max_connections_per_address=settings.connections_per_address,
                max_drain_s=settings.drain_s,
                connections_setting="listen.connections",
                connections_per_address_setting="listen.connections_per_address",
            ),
            max_streams=settings.grpc_streams,
            reactor=reactor,
            accept_transport=None if acceptor is None else acceptor.accept,
        )

    def start(self, nursery: trio.Nursery, namesrv_ports: Sequence[int]) -> int:
        """Open the port in front of these ports of the gateway, and return it. Raises ListenError."""
        settings = self._settings
        try:
            listeners = open_listeners(settings.host, settings.grpc_port)
        except OSError as error:
            raise ListenError(settings.host, settings.grpc_port, "listen.grpc_port", error) from error
        nursery.start_soon(self._service.run, listeners, partial(self._build_cluster, namesrv_ports))
        return _port_of(listeners)

    def _build_cluster(self, namesrv_ports: Sequence[int], nursery: trio.Nursery) -> "ServedCluster":
        from gateway.grpc_front.remote_cluster import RemoteCluster

        return RemoteCluster(
            [(self._settings.host, port) for port in namesrv_ports],
            self._opener,
            self._clock,
            nursery,
            sign=self._sign,
            asks_for_users=self._sign is not None,
        )

    def metrics(self) -> Iterator[Metric | Distribution]:
        """Yield the metrics of the calls."""
        return self._service.metrics()

    async def stop(self) -> None:
        """Send clients away, and let calls end."""
        await self._service.stop()


def own_ports_opener(
    settings: ListenSettings, reactor: Reactor | None, is_own_port: Callable[[int], bool]
) -> Opener:
    """Return what connects to ports of this gateway, by whatever host the primary's routes name them to clients.

    Any other port is refused: the routes are those of the primary, where anybody may have registered a broker, and this
    machine may have ports that are for itself only.
    """
    host = LOOPBACKS.get(settings.host, settings.host)
    open_plain = partial(connect, reactor=reactor)

    async def open_own(advertised_host: str, port: int) -> Transport:
        if not is_own_port(port):
            raise OSError(f"{format_host((advertised_host, port))} is not a port of this gateway")
        return await open_plain(host, port)

    tls: ListenTls = settings.tls
    if TlsMode(tls.mode) is not TlsMode.ENFORCING:
        return open_own
    if tls.client_required:
        raise SettingsError(
            "listen.grpc_port: the gRPC port reaches the gateway's other ports without a client's certificate, which "
            "listen.tls.client_required demands: set one of both only"
        )
    return tls_opener(client_context(verify=False), open_own)


def _port_of(listeners: list[socket.socket]) -> int:
    port: int = listeners[0].getsockname()[1]
    return port
