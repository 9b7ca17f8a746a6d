"""A Proxy of the tests' own, whose answers a test decides, and a gateway in front of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    PingAckReceived,
    PingReceived,
    RequestReceived,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes
from trio.testing import MockClock, memory_stream_pair

from gateway.grpc_front import messages as m
from gateway.grpc_front.framing import MessageReader, frame_message
from gateway.grpc_front.tests.world import Client
from gateway.shadow.clusters.endpoints import UpstreamTls
from gateway.shadow.grpc_forwarding.service import GrpcForwarder
from gateway.shadow.proxy.settings import ListenSettings
from remoting.transport import StreamTransport, Transport

PROXY_HOST, PROXY_PORT = "10.9.9.9", 8081
OK_HEAD = [(":status", "200"), ("content-type", "application/grpc")]
OK_TRAILERS = [("grpc-status", "0")]


def simulated(test: Callable[..., Any]) -> Callable[..., None]:
    """Run an async test on a clock that jumps to the next timeout when nothing else happens."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        trio.run(partial(test, **arguments), clock=MockClock(autojump_threshold=0))

    return run


class Call:
    """A call as the Proxy sees it."""

    def __init__(self, connection: "ProxySide", stream_id: int, headers: list[tuple[str, str]]) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.fields = headers
        self.headers = dict(headers)
        self.method = self.headers[":path"].rpartition("/")[2]
        self.data = bytearray()
        self.requests: list[bytes] = []
        self.is_complete = False
        self.reset: int | None = None
        self._reader = MessageReader(self.headers.get("grpc-encoding", "identity"), 1 << 30)

    def take(self, data: bytes) -> None:
        self.data += data
        self.requests += self._reader.feed(data)

    @property
    def request(self) -> Any:
        return getattr(m, f"{self.method}Request").FromString(self.requests[0])

    async def answer(self, *answers: Any, trailers: list[tuple[str, str]] = OK_TRAILERS) -> None:
        """Send a whole answer."""
        h2 = self.connection.h2
        h2.send_headers(self.stream_id, OK_HEAD)
        for answer in answers:
            await self.connection.send(self.stream_id, frame_message(answer.SerializeToString()))
        h2.send_headers(self.stream_id, trailers, end_stream=True)
        await self.connection.flush()


class ProxySide:
    """A connection to the fake Proxy. It acknowledges data only while ``reads`` is true."""

    def __init__(self, proxy: "FakeProxy", stream: trio.abc.Stream) -> None:
        self.proxy = proxy
        self.stream = stream
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.h2.initiate_connection()
        if proxy.max_streams:
            self.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: proxy.max_streams})
        self.calls: dict[int, Call] = {}
        self.closed = trio.Event()
        self.goodbye = False
        self.pings = 0
        self.unread_bytes = 0

    async def run(self) -> None:
        try:
            if not self.proxy.is_mute:
                await self.flush()
            while data := await self.stream.receive_some(1 << 16):
                for event in self.h2.receive_data(data):
                    self._handle(event)
                if not self.proxy.is_mute:
                    await self.flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.closed.set()

    def _handle(self, event: Any) -> None:
        call = self.calls.get(getattr(event, "stream_id", None) or 0)
        match event:
            case RequestReceived():
                self.calls[event.stream_id] = Call(self, event.stream_id, event.headers)
            case DataReceived():
                assert call is not None
                if self.proxy.reads:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                else:
                    self.unread_bytes += event.flow_controlled_length
                call.take(event.data)
            case StreamEnded():
                assert call is not None
                call.is_complete = True
                self.proxy.arrived(call)
            case StreamReset():
                if call is not None:
                    call.reset = event.error_code
            case ConnectionTerminated():
                self.goodbye = True
            case PingReceived():
                self.pings += 1
            case PingAckReceived():
                pass

    async def flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            await self.stream.send_all(data)

    async def send(self, stream_id: int, data: bytes) -> None:
        """Send data within the windows of the gateway."""
        while data:
            room = min(self.h2.local_flow_control_window(stream_id), 16_384)
            if room > 0:
                self.h2.send_data(stream_id, data[:room])
                data = data[room:]
            await self.flush()
            if room <= 0:
                await trio.sleep(0.01)

    async def close(self) -> None:
        await trio.aclose_forcefully(self.stream)


class FakeProxy:
    """Accepts connections of the gateway. ``answer`` is called in a task with each call that is complete."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.reads = True
        self.is_mute = False
        self.is_down = False
        self.max_streams = 0
        self.connections: list[ProxySide] = []
        self.answer: Callable[[Call], Any] | None = None
        self.dialled: list[tuple[str, int]] = []

    async def open(self, host: str, port: int) -> Transport:
        self.dialled.append((host, port))
        if self.is_down:
            raise ConnectionRefusedError("nobody listens")
        gateway_end, proxy_end = memory_stream_pair()
        side = ProxySide(self, proxy_end)
        self.connections.append(side)
        self.nursery.start_soon(side.run)
        return StreamTransport(gateway_end, remote=(host, port))

    def arrived(self, call: Call) -> None:
        if self.answer is not None:
            self.nursery.start_soon(self.answer, call)

    @property
    def calls(self) -> list[Call]:
        return [call for side in self.connections for call in side.calls.values()]

    async def call(self, number: int = 0) -> Call:
        """Wait for a call."""
        while len(self.calls) <= number:
            await trio.sleep(0.01)
        return self.calls[number]


class World:
    """A gateway in front of a fake Proxy."""

    def __init__(self, nursery: trio.Nursery, proxy: FakeProxy, forwarder: GrpcForwarder) -> None:
        self.nursery = nursery
        self.proxy = proxy
        self.forwarder = forwarder

    def client(self, client_id: str = "client-1", **metadata: str) -> Client:
        front = SimpleNamespace(
            cluster=SimpleNamespace(nursery=self.nursery),
            service=SimpleNamespace(server=self.forwarder.server),
        )
        return Client(front, client_id, **metadata)

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Return the plain metrics by name and labels' values."""
        return {
            (metric.name, *metric.labels.values()): metric.value
            for metric in self.forwarder.metrics()
            if hasattr(metric, "value")
        }


@asynccontextmanager
async def opened(capture: Any = None, **settings: Any) -> AsyncIterator[World]:
    """Start a gateway in front of a fake Proxy."""
    async with trio.open_nursery() as nursery:
        proxy = FakeProxy(nursery)
        listen = ListenSettings(
            grpc_port=0, grpc_forward_to=f"{PROXY_HOST}:{PROXY_PORT}", **{"drain_s": 1.0, **settings}
        )
        forwarder = GrpcForwarder(
            listen, UpstreamTls(), is_own_port=lambda _: False, capture=capture, open_plain=proxy.open
        )
        nursery.start_soon(forwarder.run, [])
        await trio.testing.wait_all_tasks_blocked()
        yield World(nursery, proxy, forwarder)
        nursery.cancel_scope.cancel()
