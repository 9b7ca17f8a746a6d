"""The gRPC server of one process: its methods, its connections, and its end.

Connections are accepted, limited and drained by `remoting.server.RemotingServer`, like those of the other ports.
"""

import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

import trio

from gateway.broker.topics.name_validation import group_name_error, topic_name_error
from gateway.grpc_front.clients import Clients
from gateway.grpc_front.cluster import ServedCluster
from gateway.grpc_front.framing import GrpcError, GrpcStatus, encode_status_text
from gateway.grpc_front.http2_connection import Http2Connection, StreamHandler
from gateway.grpc_front.http2_frames import Headers, encode_headers
from gateway.grpc_front.receiving import ReceiveMethods
from gateway.grpc_front.renewals import Renewals
from gateway.grpc_front.routes import RouteMethods
from gateway.grpc_front.rpc import Method, Rpc
from gateway.grpc_front.rpc_counts import RpcCounts, rpc_metrics
from gateway.grpc_front.sending import SendMethods
from gateway.grpc_front.telemetry import ClientMethods
from gateway.grpc_front.transactions import OpenTransactions, TransactionMethods
from gateway.runtime.metrics import Distribution, Metric
from remoting.limits import ConnectionLimits
from remoting.reactor import Reactor
from remoting.server import AcceptTransport, ConnectionType, RemotingServer, ServerLimits

log = logging.getLogger(__name__)

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
STOP_POLL_S: Final = 0.01
BuildCluster = Callable[[trio.Nursery], ServedCluster]
"""Returns the brokers that are served; the nursery lives as long as the front."""


class GrpcService:
    """Serves `MessagingService` in front of a cluster."""

    def __init__(
        self,
        limits: ConnectionLimits,
        server_limits: ServerLimits,
        *,
        max_streams: int,
        reactor: Reactor | None = None,
        accept_transport: AcceptTransport | None = None,
    ) -> None:
        self._max_drain_s = server_limits.max_drain_s
        self._methods: dict[str, Method] = {}
        self._cluster: ServedCluster | None = None
        self._running = RunningRpcs()
        self._counts: dict[str, RpcCounts] = {}
        self.server = RemotingServer(
            {},
            limits,
            server_limits,
            reactor=reactor,
            accept_transport=accept_transport,
            connection_type=cast(ConnectionType, partial(Http2Connection, self._open_stream, max_streams)),
        )

    async def run(
        self,
        listeners: list[socket.socket],
        build_cluster: BuildCluster,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until `stop` or cancelled; report when connections may come."""
        async with trio.open_nursery() as nursery:
            cluster = self._cluster = build_cluster(nursery)
            self._methods = {
                name: self._running.counting(verifying(loading(name, method, cluster), cluster))
                for name, method in build_methods(cluster).items()
            }
            self._counts = {name: RpcCounts() for name in self._methods}
            task_status.started()
            await self.server.serve(listeners)
            nursery.cancel_scope.cancel()

    def _open_stream(
        self, connection: Http2Connection, stream_id: int, headers: dict[str, str]
    ) -> StreamHandler | None:
        refusal = http_refusal(headers)
        if refusal is not None:
            connection.send_headers(stream_id, encode_headers(refusal), ends_stream=True)
            return None
        path = headers[":path"]
        name = path.removeprefix(SERVICE)
        method = self._methods.get(name)
        try:
            if method is None or not path.startswith(SERVICE):
                raise GrpcError(
                    GrpcStatus.UNIMPLEMENTED, f"{path[:128]} is not served: see the compatibility page"
                )
            rpc = Rpc(connection, stream_id, headers, method, self._counts[name])
        except GrpcError as error:
            connection.send_headers(stream_id, encode_headers(trailers_only(error)), ends_stream=True)
            return None
        if method.reads_stream:
            rpc.start()
        return rpc

    def metrics(self) -> Iterator[Metric | Distribution]:
        """Yield the metrics of all RPCs."""
        return rpc_metrics(self._counts)

    async def stop(self) -> None:
        """Send clients away, let RPCs end, and end `run`."""
        await stop_server(
            self.server, self._max_drain_s, lambda: self._running.count > 0, self._release_waiting
        )

    def _release_waiting(self) -> None:
        if self._cluster is not None:
            self._cluster.release_waiting()


async def stop_server(
    server: RemotingServer,
    max_drain_s: float,
    has_running_calls: Callable[[], bool],
    release_waiting: Callable[[], None] = lambda: None,
) -> None:
    """Send clients away, let calls end, and end a server of gRPC.

    ``release_waiting`` lets calls end that wait for something, which may be more than once.
    """
    server.stop_accepting()
    for connection in list(server.connections):
        cast(Http2Connection, connection).announce_end()
    with trio.move_on_after(max_drain_s):
        # Poll: an event would have to be set at the end of every call, only for the shutdown.
        while has_running_calls():
            release_waiting()
            await trio.sleep(STOP_POLL_S)
    await server.until_output_is_read()
    for connection in list(server.connections):
        connection.close("server stopped")  # Telemetry streams have no end of their own.
    await server.drain()


@dataclass(slots=True)
class RunningRpcs:
    """The number of RPCs in progress that have an end of their own."""

    count: int = 0

    def counting(self, method: Method) -> Method:
        """Return a method that counts its RPCs. Streams of clients are not counted: they end with their client."""
        if method.reads_stream:
            return method

        async def run(rpc: Rpc, request: Any) -> Any:
            self.count += 1
            try:
                return await method.run(rpc, request)
            finally:
                self.count -= 1

        return replace(method, run=run)


def verifying(method: Method, cluster: ServedCluster) -> Method:
    """Return a method that verifies the signature of an RPC before anything else is done for it.

    So no link to a broker opens for a sender who only claims to be somebody, and no refusal tells what exists.
    Telemetry, whose client learns of a refusal over its stream, verifies each of its settings (`clients.py`).
    """
    guards = cluster.guards
    if method.reads_stream or not guards:
        return method

    async def run(rpc: Rpc, request: Any) -> Any:
        await cluster.load_sender(rpc.sender)
        for accounts in guards:
            rpc.sender.credentials(accounts)
        return await method.run(rpc, request)

    return replace(method, run=run)


def loading(name: str, method: Method, cluster: ServedCluster) -> Method:
    """Return a method that first has the topics and the group loaded that its request is about."""
    if method.reads_stream or not cluster.loads_tables:
        return method

    async def run(rpc: Rpc, request: Any) -> Any:
        await cluster.load(*names_in(name, request))
        return await method.run(rpc, request)

    return replace(method, run=run)


def names_in(name: str, request: Any) -> tuple[list[str], str]:
    """Return the topics and the group that a request of this RPC names, each "" if it has none.

    Names that the RPC will refuse are left out.
    """
    topic, group = "", ""
    match name:
        case "SendMessage":
            topic = request.messages[0].topic.name if request.messages else ""
        case "ReceiveMessage":
            topic, group = request.message_queue.topic.name, request.group.name
        case "QueryAssignment":
            topic, group = request.topic.name, request.group.name
        case "Heartbeat" | "NotifyClientTermination":
            pass  # The client's settings name its topics.
        case _:
            topic = request.topic.name
    topics = [topic] if topic_name_error(topic) is None else []
    return topics, group if group_name_error(group) is None else ""


def build_methods(cluster: ServedCluster) -> dict[str, Method]:
    """Return the RPCs by name, and start what they need in the background."""
    transactions = OpenTransactions()
    clients = Clients(cluster, transactions)
    renewals = Renewals(cluster, clients)
    cluster.nursery.start_soon(renewals.run)
    return {
        **RouteMethods(cluster).methods(),
        **SendMethods(cluster, transactions).methods(),
        **TransactionMethods(cluster, transactions).methods(),
        **ReceiveMethods(cluster, clients, renewals).methods(),
        **ClientMethods(cluster, clients).methods(),
    }


def http_refusal(headers: dict[str, str]) -> Headers | None:
    """Return the answer to a request that is not gRPC; None for one that is."""
    if headers.get(":method") != "POST":
        return [(":status", "405"), ("allow", "POST")]
    if not headers.get("content-type", "").startswith("application/grpc"):
        return [(":status", "415"), ("accept", "application/grpc")]
    return None


def trailers_only(error: GrpcError) -> Headers:
    """Return the headers that end an RPC without an answer."""
    return [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", str(int(error.status))),
        ("grpc-message", encode_status_text(error.text)),
    ]
