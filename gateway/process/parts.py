"""The parts that all services of one process share, and the ports that it opens."""

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from codec.hosts import format_host
from gateway.config.live import official_values
from gateway.config.process import BrokerConfig, ServeConfig
from gateway.process.access import ProcessAccess
from gateway.runtime.file_limit import within_file_limit
from gateway.runtime.metrics import Metric
from gateway.runtime.process import ListenError
from gateway.runtime.published_ports import find_default_gateway, show_loopback_to_host
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.server_tls import build_acceptor
from remoting.frame_connection import FrameConnection
from remoting.limits import ConnectionLimits
from remoting.reactor import Reactor
from remoting.server import AcceptTransport, ConnectionType, RemotingServer, ServerLimits, open_listeners
from remoting.tls_acceptor import TlsAcceptor
from storage.clock import Clock, SystemClock
from storage.files import Files

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 20_000


@dataclass(frozen=True, slots=True)
class ProcessParts:
    """The clock, the reactor (None where there is no epoll), the thread runner, TLS and the limits of one process."""

    host: str
    clock: Clock
    reactor: Reactor | None
    run_blocking: RunBlocking
    limits: ConnectionLimits
    server_limits: ServerLimits
    acceptor: TlsAcceptor | None
    access: ProcessAccess
    process_values: Mapping[str, str]
    """Settings of the process under their official keys, which brokers and namesrv list among theirs."""
    connection_type: ConnectionType = FrameConnection
    """The type of connections to clients: another one where tests inject faults."""
    opens_vip_port: bool = True
    files: Files | None = None
    """The files of all brokers; None for those on disk, or new ones in memory, as the configuration says."""

    @classmethod
    def build(
        cls,
        config: ServeConfig,
        run_blocking: RunBlocking,
        *,
        clock: Clock | None = None,
        connection_type: ConnectionType = FrameConnection,
        files: Files | None = None,
        opens_vip_port: bool = True,
    ) -> "ProcessParts":
        if config.process.published_ports:
            connection_type = show_loopback_to_host(find_default_gateway(), connection_type)
        return cls(
            host=config.host,
            clock=clock or SystemClock(),
            reactor=Reactor() if Reactor.is_available() else None,
            run_blocking=run_blocking,
            limits=config.limits.of_connection(),
            server_limits=ServerLimits(
                max_connections=within_file_limit(MAX_CONNECTIONS, share=2),
                max_connections_per_address=config.limits.connections_per_address,
                backlog=config.limits.backlog,
                max_output_bytes=config.limits.output_total_bytes,
                max_drain_s=float(config.limits.drain_s),
            ),
            access=ProcessAccess(config, run_blocking),
            acceptor=build_acceptor(config.tls, float(config.limits.idle_close_s)),
            process_values=official_values(config.limits, config.auth, config.process),
            connection_type=connection_type,
            files=files,
            opens_vip_port=opens_vip_port,
        )

    @property
    def accept_transport(self) -> AcceptTransport | None:
        """The function that adds TLS to accepted connections, if configured."""
        return None if self.acceptor is None else self.acceptor.accept

    def listen(self, port: int, setting: str) -> list[socket.socket]:
        """Open a port. Raises ListenError, which names the setting."""
        try:
            return open_listeners(self.host, port, self.server_limits.backlog)
        except (OSError, OverflowError) as error:
            raise ListenError(self.host, port, setting, error) from error

    def listen_vip(self, port: int) -> list[socket.socket]:
        """Open the second port that some clients use; without it the broker serves all others."""
        if not self.opens_vip_port:
            return []
        try:
            return open_listeners(self.host, port - 2, self.server_limits.backlog)
        except (OSError, OverflowError) as error:
            # The text of the error itself has the address as Python writes it.
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            log.warning("cannot open the VIP port", extra={"port": port - 2, "reason": reason})
            return []

    def listen_ha(self, config: BrokerConfig) -> list[socket.socket]:
        """Open the port for slaves: the configured one, or the one after ``listenPort``, or any free one.

        Only a configured port must be free (ListenError otherwise): most masters have no slaves, and those that have
        some are found through the port that they register.
        """
        if config.ha_listen_port:
            return self.listen(config.ha_listen_port, "haListenPort")
        port = config.listen_port + 1 if config.listen_port else 0
        try:
            return open_listeners(self.host, port, self.server_limits.backlog)
        except (OSError, OverflowError):
            listeners = self.listen(0, "haListenPort")
            extra = {"port": port, "used": listeners[0].getsockname()[1]}
            log.warning("port for slaves is taken, using another one", extra=extra)
            return listeners


def format_address(listener: socket.socket) -> str:
    """Return the host:port of a listener for the ready line; a listener on all addresses is shown as loopback."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(host, host)
    return format_host((host, port))


def connection_metrics(part: str, server: RemotingServer) -> Iterator[Metric]:
    """Yield the number of connections of a listener, and the memory that they hold."""
    labels = {"part": part}
    connections = tuple(server.connections)
    yield Metric("connections", len(connections), "open connections", "gauge", labels)
    unfinished = sum(connection.input_bytes for connection in connections)
    yield Metric("unfinished_frame_bytes", unfinished, "received bytes of unfinished frames", "gauge", labels)
    unread = sum(connection.output_bytes for connection in connections)
    yield Metric("unread_answer_bytes", unread, "bytes of answers that peers have not read", "gauge", labels)
