"""A gRPC client of the tests' own, on a simulated cluster with a gRPC port."""

from types import SimpleNamespace
from typing import Any

import trio
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from trio.testing import memory_stream_pair

from gateway.grpc_front import messages as m
from gateway.grpc_front.broker_link import ServedHandlers
from gateway.grpc_front.framing import MessageReader, frame_message
from gateway.grpc_front.loading_cache import MAX_AGE_S
from gateway.grpc_front.remote_cluster import RemoteCluster
from gateway.grpc_front.served_brokers import LocalBroker, LocalCluster
from gateway.grpc_front.service import SERVICE, BuildCluster, GrpcService
from gateway.tests.cluster import NAMESRV, SMALL, Cluster, Node, settle
from remoting.acl import Credentials, make_signer
from remoting.limits import ConnectionLimits
from remoting.server import ServerLimits
from remoting.transport import StreamTransport

PORT = 8081
MAX_STREAMS = 20
MAX_DATA_BYTES = 16_384
IS_REMOTE = False
"""True while fronts reach brokers over connections, as `rmq-gateway proxy` does."""


class Stream:
    """An RPC as the client sees it."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self._reader = MessageReader("identity", 1 << 30)
        self.headers: dict[str, str] = {}
        self.answers: list[Any] = []
        self.reset = False
        self.ended = trio.Event()
        self.arrived = trio.Event()

    def take(self, data: bytes) -> None:
        self.answers += [self._answer.FromString(each) for each in self._reader.feed(data)]
        self.arrived.set()

    @property
    def status(self) -> int:
        return int(self.headers["grpc-status"])

    async def next(self) -> Any:
        """Wait for an answer, and take it."""
        while not self.answers:
            self.arrived = trio.Event()
            await self.arrived.wait()
        return self.answers.pop(0)


class Client:
    """One HTTP/2 connection with the headers of a 5.x client."""

    def __init__(self, front: "Front", client_id: str = "client-1", **metadata: str) -> None:
        here, there = memory_stream_pair()
        self.remote = ("10.1.0.7", 40_007)
        transport = StreamTransport(there, remote=self.remote, local=("10.0.1.1", PORT))
        front.cluster.nursery.start_soon(front.service.server.serve_transport, transport)
        self.transport = here
        self.metadata = {"x-mq-client-id": client_id, "x-mq-language": "PYTHON", **metadata}
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.streams: dict[int, Stream] = {}
        self.goodbye: ConnectionTerminated | None = None
        self.closed = trio.Event()
        self._sending = trio.Lock()
        front.cluster.nursery.start_soon(self._read)

    async def _read(self) -> None:
        try:
            await self.flush()
            held = bytearray()
            while data := await self.transport.receive_some(1 << 16):
                held += data
                # Frame by frame, because h2 takes nothing more behind GOAWAY in the same data.
                while len(held) >= 9 and len(held) >= (end := 9 + int.from_bytes(held[:3], "big")):
                    for event in self.h2.receive_data(bytes(held[:end])):
                        self._handle(event)
                    del held[:end]
                await self.flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.closed.set()
        for stream in self.streams.values():
            stream.ended.set()

    def _handle(self, event: Any) -> None:
        stream = self.streams.get(getattr(event, "stream_id", None) or 0)
        match event:
            case ResponseReceived() | TrailersReceived():
                stream.headers.update(event.headers)
            case DataReceived():
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                stream.take(event.data)
            case StreamEnded():
                stream.ended.set()
            case StreamReset():
                stream.reset = True
                stream.ended.set()
            case ConnectionTerminated():
                self.goodbye = event
                self.h2.state_machine.state = ConnectionState.CLIENT_OPEN  # What is open goes on.

    async def flush(self) -> None:
        async with self._sending:
            data = self.h2.data_to_send()
            if data:
                await self.transport.send_all(data)

    async def begin(self, method: str, answer: Any, **headers: str) -> int:
        """Open a stream, and return its number."""
        number = self.h2.get_next_available_stream_id()
        pairs = {
            ":method": "POST", ":scheme": "http", ":authority": "here", ":path": SERVICE + method,
            "content-type": "application/grpc", "te": "trailers", **self.metadata,
        }  # fmt: skip
        pairs.update({name.replace("_", "-"): value for name, value in headers.items()})
        self.streams[number] = Stream(answer)
        self.h2.send_headers(number, list(pairs.items()))
        await self.flush()
        return number

    async def send(self, number: int, data: bytes, *, end: bool = False) -> None:
        """Send a part of a request, small enough for the windows."""
        while data:
            room = min(self.h2.local_flow_control_window(number), MAX_DATA_BYTES)
            if room > 0:
                self.h2.send_data(number, data[:room])
                data = data[room:]
            else:
                await self.flush()
                await trio.sleep(0.01)
        if end:
            self.h2.end_stream(number)
        await self.flush()

    async def start(self, method: str, request: Any, answer: Any, **headers: str) -> Stream:
        """Begin an RPC with one request."""
        number = await self.begin(method, answer, **headers)
        await self.send(number, frame_message(request.SerializeToString()), end=True)
        return self.streams[number]

    async def call(self, method: str, request: Any, **headers: str) -> Any:
        """Return the only answer to a request."""
        answer = getattr(m, f"{method}Response")
        stream = await self.start(method, request, answer, **headers)
        await stream.ended.wait()
        assert stream.status == 0, stream.headers
        (only,) = stream.answers
        return only

    async def receive(self, topic: str = "orders", group: str = "GID", **more: Any) -> SimpleNamespace:
        """Return the status and the messages of a receive."""
        stream = await self.start_receive(topic, group, **more)
        await stream.ended.wait()
        return received(stream)

    async def start_receive(self, topic: str = "orders", group: str = "GID", **more: Any) -> Stream:
        request = receive_request(topic, group, **more)
        return await self.start("ReceiveMessage", request, m.ReceiveMessageResponse)

    async def tell_settings(self, settings: m.Settings) -> Stream:
        """Open the Telemetry stream, and return it after the answer to the settings, which stays in it."""
        number = await self.begin("Telemetry", m.TelemetryCommand)
        await self.send(number, frame_message(m.TelemetryCommand(settings=settings).SerializeToString()))
        stream = self.streams[number]
        with trio.move_on_after(10):
            while not stream.answers and not stream.ended.is_set():
                await trio.sleep(0.01)
        return stream


class Front:
    """A gRPC port in front of a broker and the namesrv of a simulated cluster."""

    def __init__(self, cluster: Cluster, service: GrpcService, broker: Node, namesrv: Node) -> None:
        self.cluster = cluster
        self.service = service
        self.address = broker.address
        self.broker = broker.broker
        self.broker_handlers = broker.service.handlers
        self.native_sends = broker.service.native_sends
        self.namesrv = namesrv

    def client(self, client_id: str = "client-1", **metadata: str) -> Client:
        return Client(self, client_id, **metadata)

    def create_topic(self, name: str = "orders", kind: str = "NORMAL", queues: int = 4) -> None:
        config = self.broker.topics.create_for_send(name, "TBW102", queues, 0)
        config.attributes["message.type"] = kind


async def open_front(
    cluster: Cluster, *, limits: ConnectionLimits | None = None, accounts: Any = None, **settings: Any
) -> Front:
    """Start a namesrv, a broker and the gRPC port."""
    namesrv = await cluster.namesrv()
    node = await cluster.add_broker(local=namesrv, accounts=accounts, **settings)
    service = GrpcService(limits or ConnectionLimits(), ServerLimits(), max_streams=MAX_STREAMS)
    build = (
        remote_cluster(cluster, accounts) if IS_REMOTE else local_cluster(cluster, node, namesrv, accounts)
    )
    cluster.nursery.start_soon(service.run, [], build)
    await settle()
    return Front(cluster, service, node, namesrv)


def local_cluster(cluster: Cluster, node: Node, namesrv: Node, accounts: Any) -> BuildCluster:
    return lambda nursery: LocalCluster(
        [local_broker(node)],
        ServedHandlers(namesrv.service.handlers, accounts),
        cluster.clock,
        nursery,
        lambda: node.broker.long_polls.answer_all(),
    )


def remote_cluster(cluster: Cluster, accounts: Any, **more: Any) -> BuildCluster:
    """Build the cluster that the namesrv of a simulated cluster knows, over connections to its servers."""
    sign = None if accounts is None else make_signer(Credentials("root", "super secret"))
    return lambda nursery: RemoteCluster(
        [NAMESRV],
        cluster.open_transport,
        cluster.clock,
        nursery,
        **{"sign": sign, "accounts": accounts, "max_message_bytes": SMALL["max_message_size_bytes"], **more},
    )


async def until_read_again(client: Client) -> None:
    """Wait until a front in front of brokers elsewhere has read again what it knows of topics and groups."""
    if IS_REMOTE:
        await trio.sleep(MAX_AGE_S)
        request = m.QueryAssignmentRequest(topic=m.Resource(name="orders"), group=m.Resource(name="GID"))
        await client.call("QueryAssignment", request)
        await settle()


def local_broker(node: Node) -> LocalBroker:
    service = node.service
    return LocalBroker(
        node.broker.config.broker_name,
        ServedHandlers(service.handlers, node.broker.accounts, service.end_batch, service.handle_open),
        lambda: node.broker.topics,
        lambda: node.broker.groups,
        lambda: node.broker.config.store.max_message_size_bytes,
    )


def message(topic: str = "orders", body: bytes = b"hello", **system: Any) -> m.Message:
    """Build a message; ``system`` are its system properties."""
    made = m.Message(topic=m.Resource(name=topic), body=body)
    made.system_properties.MergeFrom(
        m.SystemProperties(
            **{"message_id": "01" + body[:8].hex().upper(), "message_type": m.NORMAL, **system}
        )
    )
    return made


def send_request(*sent: m.Message) -> m.SendMessageRequest:
    return m.SendMessageRequest(messages=sent)


def receive_request(
    topic: str = "orders",
    group: str = "GID",
    *,
    expression: str = "*",
    invisible_s: int = 15,
    poll_s: int = 5,
    batch: int = 32,
    auto_renew: bool = False,
) -> m.ReceiveMessageRequest:
    request = m.ReceiveMessageRequest(
        group=m.Resource(name=group),
        message_queue=m.MessageQueue(topic=m.Resource(name=topic)),
        filter_expression=m.FilterExpression(type=m.TAG, expression=expression),
        batch_size=batch,
        auto_renew=auto_renew,
    )
    request.invisible_duration.seconds = invisible_s
    request.long_polling_timeout.seconds = poll_s
    return request


def received(stream: Stream) -> SimpleNamespace:
    kinds = [answer.WhichOneof("content") for answer in stream.answers]
    assert kinds[0] == "status"
    assert kinds[-1] == "delivery_timestamp"
    found = [answer.message for answer in stream.answers if answer.WhichOneof("content") == "message"]
    return SimpleNamespace(
        code=stream.answers[0].status.code, text=stream.answers[0].status.message, messages=found,
        bodies=[each.body for each in found], handles=[each.system_properties.receipt_handle for each in found],
    )  # fmt: skip


def producer_settings(*topics: str) -> m.Settings:
    named = [m.Resource(name=topic) for topic in topics]
    return m.Settings(client_type=m.PRODUCER, publishing=m.Publishing(topics=named))


def consumer_settings(topic: str = "orders", group: str = "GID", kind: int = m.PUSH_CONSUMER) -> m.Settings:
    entry = m.SubscriptionEntry(topic=m.Resource(name=topic), expression=m.FilterExpression(expression="*"))
    return m.Settings(
        client_type=kind, subscription=m.Subscription(group=m.Resource(name=group), subscriptions=[entry])
    )
