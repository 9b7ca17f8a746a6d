"""The gRPC port of a gateway that passes calls on to the primary's Proxy.

Connections are accepted, limited and drained by `remoting.server.RemotingServer`, like those of the other ports. One
task looks after the deadlines of all calls, and after Proxies that have stopped answering.
"""

import logging
import math
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, cast

import trio

from codec.hosts import Host, format_host, parse_host
from gateway.grpc_front.framing import IDENTITY, GrpcError, parse_timeout
from gateway.grpc_front.http2_connection import Fields, checked_headers
from gateway.grpc_front.http2_frames import encode_fields, encode_headers
from gateway.grpc_front.routes import endpoints_of
from gateway.grpc_front.rpc_counts import RpcCounts, rpc_metrics
from gateway.grpc_front.service import SERVICE, http_refusal, stop_server
from gateway.runtime.metrics import Distribution, Metric
from gateway.runtime.process import ListenError
from gateway.shadow.clusters.endpoints import UpstreamTls, upstream_opener
from gateway.shadow.grpc_forwarding.captured_calls import CallCapture, CallRecorder
from gateway.shadow.grpc_forwarding.client_connection import PROXY_LOST, ClientConnection
from gateway.shadow.grpc_forwarding.endpoints import EndpointTranslation
from gateway.shadow.grpc_forwarding.forwarded_call import TELEMETRY, AnswerHalf, ForwardedCall, RequestHalf
from gateway.shadow.grpc_forwarding.proxy_connection import ProxyConnection
from gateway.shadow.grpc_forwarding.relay_connection import check_fields
from gateway.shadow.proxy.address_book import AUTO
from gateway.shadow.proxy.broker_check import is_local_host, unmap_host
from gateway.shadow.proxy.client_listener import MAX_CONCURRENT_DIALS, MAX_DIAL_WAITS
from gateway.shadow.proxy.settings import ListenSettings
from remoting.limits import ConnectionLimits
from remoting.reactor import Reactor
from remoting.server import ConnectionType, RemotingServer, ServerLimits, open_listeners
from remoting.tls_acceptor import TlsAcceptor
from remoting.transport import Opener, connect
from toolkit.settings import SettingsError

log = logging.getLogger(__name__)

METHODS: Final = (
    "QueryRoute",
    "Heartbeat",
    "SendMessage",
    "QueryAssignment",
    "ReceiveMessage",
    "AckMessage",
    "ForwardMessageToDeadLetterQueue",
    "PullMessage",
    "UpdateOffset",
    "GetOffset",
    "QueryOffset",
    "EndTransaction",
    TELEMETRY,
    "NotifyClientTermination",
    "ChangeInvisibleDuration",
    "RecallMessage",
    "SyncLiteSubscription",
)
OTHER_METHOD: Final = "other"
"""The name under which calls of all other methods are counted; the Proxy judges them."""
CHECK_INTERVAL_S: Final = 2.0
CONNECTIONS_PER_TURN: Final = 16
_REPLACED: Final = frozenset((b":scheme", b":authority"))


class GrpcForwarder:
    """Serves 5.x clients by the Proxy at ``listen.grpc_forward_to``.

    ``proxy_tls`` is that of the primary. ``is_own_port`` knows the gateway's other ports. ``capture`` records calls;
    None if nothing is captured.
    """

    def __init__(
        self,
        settings: ListenSettings,
        proxy_tls: UpstreamTls,
        *,
        is_own_port: Callable[[int], bool],
        capture: CallCapture | None = None,
        acceptor: TlsAcceptor | None = None,
        reactor: Reactor | None = None,
        open_plain: Opener | None = None,
    ) -> None:
        self._settings = settings
        self._proxy_address = parse_host(settings.grpc_forward_to)
        self._proxy_endpoints = endpoints_of(self._proxy_address)
        self._opener = upstream_opener(
            proxy_tls,
            open_plain or partial(connect, reactor=reactor),
            "primary.tls",
            application_protocols=("h2",),
        )
        self._replaced_headers = [
            (b":scheme", b"https" if proxy_tls.enabled else b"http"),
            (b":authority", format_host(self._proxy_address).encode()),
        ]
        self._is_own_port = is_own_port
        self._capture = capture
        self._long_work = trio.Lock()
        self._dial_turns = trio.Semaphore(MAX_CONCURRENT_DIALS)
        self._counts = {name: RpcCounts() for name in (*METHODS, OTHER_METHOD)}
        self._failed_connects = self._lost_connections = 0
        self._is_reachable = True
        self.server = RemotingServer(
            {},
            ConnectionLimits(
                max_frame_bytes=settings.frame_bytes, output_high_watermark_bytes=settings.buffered_bytes
            ),
            ServerLimits(
                max_connections=settings.connections,
                max_connections_per_address=settings.connections_per_address,
                max_input_bytes=settings.unfinished_total_bytes,
                max_output_bytes=settings.buffered_total_bytes,
                max_drain_s=settings.drain_s,
                connections_setting="listen.connections",
                connections_per_address_setting="listen.connections_per_address",
            ),
            reactor=reactor,
            accept_transport=None if acceptor is None else acceptor.accept,
            connection_type=cast(
                ConnectionType, partial(ClientConnection, self._dial, self._open_call, settings.grpc_streams)
            ),
        )

    async def start(self, nursery: trio.Nursery) -> int:
        """Open the port, and return it. Raises ListenError; SettingsError if the Proxy's address is a port of this
        gateway.
        """
        settings = self._settings
        try:
            listeners = open_listeners(settings.host, settings.grpc_port)
        except OSError as error:
            raise ListenError(settings.host, settings.grpc_port, "listen.grpc_port", error) from error
        port: int = listeners[0].getsockname()[1]
        try:
            await self._refuse_own_port(port)
        except SettingsError:
            for listener in listeners:
                listener.close()
            raise
        nursery.start_soon(self.run, listeners)
        return port

    async def _refuse_own_port(self, grpc_port: int) -> None:
        """Raise SettingsError for an address of this gateway: each connection to it would open the next one."""
        host, port = self._proxy_address
        if port != grpc_port and not self._is_own_port(port):
            return
        try:
            with trio.fail_after(self._settings.connect_s):
                entries = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, trio.TooSlowError):
            return
        if any(is_local_host(unmap_host(str(endpoint[0]))) for *_, endpoint in entries):
            raise SettingsError(
                f"listen.grpc_forward_to: {self._settings.grpc_forward_to} is a port of this gateway, which would "
                "connect to itself without end. Set the address of the primary's Proxy"
            )

    async def run(self, listeners: list[socket.socket]) -> None:
        """Serve until `stop` or cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._check_times)
            await self.server.serve(listeners)
            nursery.cancel_scope.cancel()

    async def _check_times(self) -> None:
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            now_s = trio.current_time()
            for number, connection in enumerate(list(self.server.connections)):
                cast(ClientConnection, connection).check_times(now_s)
                if number % CONNECTIONS_PER_TURN == CONNECTIONS_PER_TURN - 1:
                    await trio.lowlevel.checkpoint()

    # -- connections to the Proxy -------------------------------------------------------------------------------

    async def _dial(self, client: ClientConnection, nursery: trio.Nursery) -> ProxyConnection | None:
        """Open a connection to the Proxy when it is this client's turn; return None if there is none in time."""
        with trio.move_on_after(MAX_DIAL_WAITS * self._settings.connect_s):
            async with self._dial_turns:
                return await self._dial_now(client, nursery)
        self._note_unreachable("too many connections are being opened")
        return None

    async def _dial_now(self, client: ClientConnection, nursery: trio.Nursery) -> ProxyConnection | None:
        """Open a connection to the Proxy, and wait for its settings."""
        reason = f"no answer within {self._settings.connect_s:g} s"
        with trio.move_on_after(self._settings.connect_s):
            try:
                transport = await self._opener(*self._proxy_address)
            except OSError as error:
                self._note_unreachable(str(error))
                return None
            proxy = ProxyConnection(
                client.take_goodbye,
                partial(self._take_end, client),
                transport,
                {},
                nursery,
                client.limits,
                None,
                client.note_large_input,
                client.note_large_output,
            )
            nursery.start_soon(proxy.run)
            try:
                await proxy.greeted.wait()
            finally:
                if not proxy.greeted.is_set():
                    proxy.close("no settings")
            if not proxy.closed:
                if not self._is_reachable:
                    self._is_reachable = True
                    log.warning("the primary's Proxy is reachable again")
                return proxy
            reason = "it closed the connection"
        self._note_unreachable(reason)
        return None

    def _note_unreachable(self, reason: str) -> None:
        """Count a failed attempt; the first one after a success is logged."""
        self._failed_connects += 1
        if self._is_reachable:
            self._is_reachable = False
            extra = {"proxy": self._settings.grpc_forward_to, "reason": reason}
            log.warning("the primary's Proxy cannot be reached", extra=extra)

    def _take_end(self, client: ClientConnection, reason: str) -> None:
        """End a session whose connection to the Proxy has ended."""
        if client.partner is not None and not client.closed:
            self._lost_connections += 1
            client.leave(f"{PROXY_LOST}: {reason}", self._settings.linger_s)

    # -- calls --------------------------------------------------------------------------------------------------

    def _open_call(
        self, client: ClientConnection, proxy: ProxyConnection, stream_id: int, fields: Fields
    ) -> RequestHalf | None:
        """Open the stream of a call at the Proxy. Raises FrameError for headers that HTTP/2 forbids."""
        fields = list(fields)
        check_fields(fields)
        headers = checked_headers(fields)
        refusal = http_refusal(headers)
        if refusal is not None:
            client.send_headers(stream_id, encode_headers(refusal), ends_stream=True)
            return None
        method = headers[":path"].removeprefix(SERVICE)
        if method not in self._counts:
            method = OTHER_METHOD
        encoding = headers.get("grpc-encoding", IDENTITY)
        call = ForwardedCall(
            client,
            proxy,
            stream_id,
            method,
            self._counts[method],
            EndpointTranslation(self._proxy_endpoints, self._local_of(client)),
            encoding=encoding,
            deadline_s=_deadline_of(headers),
            recorder=self._recorder_for(client, method, encoding),
            long_work=self._long_work,
        )
        pseudo_fields = [field for field in fields if field[0].startswith(b":") and field[0] not in _REPLACED]
        plain_fields = [field for field in fields if not field[0].startswith(b":")]
        proxy.open_call(
            stream_id,
            encode_fields([*pseudo_fields, *self._replaced_headers, *plain_fields]),
            AnswerHalf(call),
        )
        return RequestHalf(call)

    def _local_of(self, client: ClientConnection) -> Host:
        """Return the gateway's address as a client is told, unless it names a better one itself."""
        host, port = client.local
        return (host if self._settings.advertise == AUTO else self._settings.advertise), port

    def _recorder_for(self, client: ClientConnection, method: str, encoding: str) -> CallRecorder | None:
        if self._capture is None:
            return None
        return self._capture.recorder_for(method, client.number, client.remote, encoding, client.spawn)

    # -- metrics and the end ------------------------------------------------------------------------------------

    def metrics(self) -> Iterator[Metric | Distribution]:
        """Yield the metrics of the calls, and of the connections to the Proxy."""
        yield from rpc_metrics(self._counts)
        yield Metric(
            "grpc_forward_connections",
            sum(
                cast(ClientConnection, connection).proxy is not None for connection in self.server.connections
            ),
            "connections to the primary's Proxy, one for each client",
            "gauge",
        )
        yield Metric(
            "grpc_forward_failed_connects_total",
            self._failed_connects,
            "attempts to connect to the primary's Proxy that failed; their clients were disconnected",
        )
        yield Metric(
            "grpc_forward_lost_connections_total",
            self._lost_connections,
            "connections that the primary's Proxy closed, or on which it stopped answering",
        )
        if self._capture is not None:
            yield Metric(
                "grpc_forward_not_captured_total",
                self._capture.not_captured,
                "calls and messages that could not be captured: too large, or not as the protocol allows",
            )

    async def stop(self) -> None:
        """Send clients away, let calls end, and end the server."""
        await stop_server(self.server, self._settings.drain_s, self._has_running_calls)

    def _has_running_calls(self) -> bool:
        return any(counts.running for method, counts in self._counts.items() if method != TELEMETRY)


def _deadline_of(headers: dict[str, str]) -> float:
    """Return the time at which a call ends; a timeout that cannot be read is left to the Proxy."""
    try:
        return trio.current_time() + parse_timeout(headers["grpc-timeout"])
    except (KeyError, GrpcError):
        return math.inf
