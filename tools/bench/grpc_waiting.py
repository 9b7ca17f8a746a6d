"""Measures what gRPC clients cost that wait: `python -m tools.bench.grpc_waiting`.

Push consumers without messages: each has a connection with its Telemetry stream, one receive that waits for messages,
and a heartbeat every ten seconds, as stock 5.x clients do. Then a few connections hold many waiting receives, while
another one sends messages one by one, and its longest wait is printed.
"""

import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import click
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset, TrailersReceived

from compat_tests.clients.typed import connect, has_route, topic_request
from compat_tests.endpoints import exit_on_sigterm
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.server import eventually
from remoting.requests.offsets import GetMaxOffset
from tools.bench.usage import cpu_s, memory_mib
from tools.fuzz.grpc_messages import part, varint
from tools.fuzz.grpc_walks import SERVICE, grpc_prefix

TOPIC: Final = "BenchWaiting"
SENT_TOPIC: Final = "BenchSent"
QUEUES: Final = 8
GROUPS: Final = 50
"""Groups that the consumers belong to, in turn."""
HEARTBEAT_S: Final = 10.0
LONG_POLL_S: Final = 20
CONNECTIONS_OF_STREAMS: Final = 4
SENDS: Final = 2_000
SETTLE_S: Final = 5.0
CONNECTS_AT_A_TIME: Final = 50
BATCH: Final = 32
ANY_QUEUE: Final = 2**64 - 1
"""-1, as protobuf writes it."""
TAG: Final = 1
NORMAL: Final = 1
PUSH_CONSUMER: Final = 2


class GrpcConnection:
    """A connection of one client, which waits for the answers to its calls."""

    def __init__(self, stream: trio.SocketStream, client_id: str) -> None:
        self._stream = stream
        self._headers = [
            (":method", "POST"), (":scheme", "http"), (":authority", "bench"), ("content-type", "application/grpc"),
            ("te", "trailers"), ("x-mq-client-id", client_id), ("x-mq-language", "PYTHON"),
        ]  # fmt: skip
        self._h2 = H2Connection(H2Configuration(client_side=True))
        self._h2.initiate_connection()
        self._ends: dict[int, trio.Event] = {}
        self._sending = trio.Lock()
        self.failures = 0
        """Calls whose status of gRPC is not OK, or that were reset."""

    async def read(self) -> None:
        """Take what the server sends, until it ends the connection."""
        await self._flush()
        while data := await self._stream.receive_some(1 << 16):
            for event in self._h2.receive_data(data):
                self._take(event)
            await self._flush()

    def _take(self, event: Any) -> None:
        match event:
            case DataReceived():
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case ResponseReceived() | TrailersReceived():
                self.failures += dict(event.headers).get(b"grpc-status", b"0") != b"0"
            case StreamReset() | StreamEnded():
                self.failures += isinstance(event, StreamReset)
                if (ended := self._ends.pop(event.stream_id, None)) is not None:
                    ended.set()

    async def _flush(self) -> None:
        async with self._sending:
            if data := self._h2.data_to_send():
                await self._stream.send_all(data)

    async def start(self, method: str, request: bytes, *, end: bool = True) -> trio.Event:
        """Begin a call with one request; the event is set when the answer has ended."""
        number = self._h2.get_next_available_stream_id()
        ended = self._ends[number] = trio.Event()
        self._h2.send_headers(number, [(":path", SERVICE + method), *self._headers])
        self._h2.send_data(number, grpc_prefix(request), end_stream=end)
        await self._flush()
        return ended

    async def call(self, method: str, request: bytes) -> None:
        """Make a call, and wait for the end of its answer."""
        await (await self.start(method, request)).wait()


@asynccontextmanager
async def open_connection(address: str, client_id: str) -> AsyncIterator[GrpcConnection]:
    """Connect for the duration of the block."""
    host, _, port = address.rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    async with stream, trio.open_nursery() as nursery:
        connection = GrpcConnection(stream, client_id)
        nursery.start_soon(connection.read)
        yield connection
        nursery.cancel_scope.cancel()


def named(name: str) -> bytes:
    """Encode the name of a topic or group, a `Resource`."""
    return part(2, name.encode())


def number_field(number: int, value: int) -> bytes:
    """Encode a field of a number."""
    return varint(number << 3) + varint(value)


EXPRESSION: Final = number_field(1, TAG) + part(2, b"*")


def receive_request(group: str) -> bytes:
    """Encode the `ReceiveMessageRequest` of a push consumer that waits for messages of any queue."""
    queue = part(1, named(TOPIC)) + number_field(2, ANY_QUEUE)
    wait = number_field(1, LONG_POLL_S)
    fields = part(1, named(group)) + part(2, queue) + part(3, EXPRESSION) + number_field(4, BATCH)
    return fields + number_field(6, 1) + part(7, wait)


def telemetry(group: str) -> bytes:
    """Encode the `TelemetryCommand` with which a push consumer tells its settings."""
    entry = part(1, named(TOPIC)) + part(2, EXPRESSION)
    settings = number_field(1, PUSH_CONSUMER) + part(6, part(1, named(group)) + part(2, entry))
    return part(2, settings)


def send_request(number: int) -> bytes:
    """Encode a `SendMessageRequest` with one message."""
    system = part(3, b"%032X" % number) + number_field(6, NORMAL)
    return part(1, part(1, named(SENT_TOPIC)) + part(3, system) + part(4, b"x" * 128))


async def consume(address: str, number: int, limiter: trio.CapacityLimiter, failed: list[int]) -> None:
    """Be one push consumer until cancelled."""
    group = f"BenchWaiting-{number % GROUPS}"
    heartbeat = part(1, named(group)) + number_field(2, PUSH_CONSUMER)
    async with open_connection(address, f"bench-{number}") as connection, trio.open_nursery() as nursery:
        async with limiter:
            await connection.start("Telemetry", telemetry(group), end=False)
            await connection.call("Heartbeat", heartbeat)

        async def receive() -> None:
            while True:
                await connection.call("ReceiveMessage", receive_request(group))
                failed[0] += connection.failures
                connection.failures = 0

        nursery.start_soon(receive)
        while True:
            await trio.sleep(HEARTBEAT_S)
            await connection.call("Heartbeat", heartbeat)


async def measure_idle(address: str, pids: list[int], consumers: int, seconds: float) -> tuple[float, int]:
    """Return the share of a core that the server uses for idle push consumers, and how many of their calls failed."""
    failed = [0]
    limiter = trio.CapacityLimiter(CONNECTS_AT_A_TIME)
    async with trio.open_nursery() as nursery:
        for number in range(consumers):
            nursery.start_soon(consume, address, number, limiter, failed)
        await trio.sleep(SETTLE_S)
        begin_s, begin_cpu_s = trio.current_time(), cpu_s(pids)
        await trio.sleep(seconds)
        share = (cpu_s(pids) - begin_cpu_s) / (trio.current_time() - begin_s)
        nursery.cancel_scope.cancel()
    return share, failed[0]


async def measure_sends(address: str, streams: int) -> list[float]:
    """Return the times in seconds that sends of one client take while others hold that many waiting receives."""
    times: list[float] = []
    async with trio.open_nursery() as nursery:

        async def hold(number: int, count: int) -> None:
            async with open_connection(address, f"holder-{number}") as connection:
                for _ in range(count):
                    await connection.start("ReceiveMessage", receive_request(f"BenchHeld-{number}"))
                await trio.sleep_forever()

        for number in range(CONNECTIONS_OF_STREAMS):
            nursery.start_soon(hold, number, streams // CONNECTIONS_OF_STREAMS)
        await trio.sleep(SETTLE_S)
        async with open_connection(address, "sender") as sender:
            for number in range(SENDS):
                begin_s = time.perf_counter()
                await sender.call("SendMessage", send_request(number))
                times.append(time.perf_counter() - begin_s)
            if sender.failures:
                raise click.ClickException(f"{sender.failures} of {SENDS} sends failed")
        nursery.cancel_scope.cancel()
    return times


def stored_messages(broker: str) -> int:
    """Return how many messages the topic of the sends has."""
    with connect(broker) as client:
        return sum(
            client.ask(GetMaxOffset(topic=SENT_TOPIC, queue_id=number)).offset for number in range(QUEUES)
        )


@click.command()
@click.option(
    "--consumers", type=click.IntRange(1), default=500, show_default=True, help="Idle push consumers."
)
@click.option("--seconds", type=click.FloatRange(1), default=40.0, show_default=True, help="Time measured.")
@click.option("--streams", type=click.IntRange(0), default=2_000, show_default=True, help="Waiting receives.")
def main(consumers: int, seconds: float, streams: int) -> None:
    """Measure idle push consumers and many waiting receives at our server."""
    exit_on_sigterm()
    with OursEndpoint(serves_grpc=True) as server:
        assert server.grpc is not None
        for topic in (TOPIC, SENT_TOPIC):
            with connect(server.broker) as broker:
                broker.ask(topic_request(topic, QUEUES))
            with connect(server.namesrv) as namesrv:
                eventually(partial(has_route, namesrv, topic), 40)
        share, failed = trio.run(measure_idle, server.grpc, server.pids(), consumers, seconds)
        click.echo(f"{consumers} idle push consumers: {share:.1%} of a core, {failed} calls failed")
        click.echo(f"private memory with them: {memory_mib(server.pids(), 'RssAnon'):.0f} MiB")
        for waiting in (0, streams):
            before = stored_messages(server.broker)
            times = sorted(trio.run(measure_sends, server.grpc, waiting))
            if stored_messages(server.broker) - before != SENDS:
                raise click.ClickException("not every send was stored")
            click.echo(
                f"{waiting} waiting receives: a send takes {statistics.median(times) * 1e3:.2f} ms (median), "
                f"{times[len(times) * 99 // 100] * 1e3:.2f} ms (p99), {times[-1] * 1e3:.2f} ms (longest)"
            )
    sys.exit(0)


if __name__ == "__main__":
    main()
