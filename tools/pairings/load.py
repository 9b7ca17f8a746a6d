"""Clients that send numbered messages until the end of a pairing, through all faults, and note every answer.

`Senders` use our typed client. `StockSenders` drive stock Java clients, `GrpcTraffic` the stock client that speaks gRPC
through an official Proxy. Each sends a message again until it is stored, and only then the next one.
"""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from compat_tests.clients.command_driver import StockClientError
from compat_tests.clients.grpc_api import StockGrpcClient
from compat_tests.clients.java_api import JavaClient, JavaPushConsumer
from compat_tests.clients.typed import connect, send_request
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.errors import REQUEST_FAILURES
from remoting.requests.send import SendMessageReply
from tools.pairings.history import SendHistory
from tools.pairings.members import BROKER, QUEUES, TOPIC, members

GRPC_TOPIC: Final = "PairingGrpc"
ANSWER_TIMEOUT_S: Final = 4.0
RETRY_S: Final = 0.1
BODY_BYTES: Final = 700
DELIVERIES_AT_ONCE: Final = 5_000
STATUS_CODES: Final = {
    "SEND_OK": 0, "FLUSH_DISK_TIMEOUT": 10, "SLAVE_NOT_AVAILABLE": 11, "FLUSH_SLAVE_TIMEOUT": 12,
}  # fmt: skip

Send = Callable[[bytes, int], None]
"""Sends a body to a queue once and notes the answer; raises what its client raises."""


class SenderLoad:
    """Threads of senders that can be paused: then no request is under way."""

    def __init__(self) -> None:
        self._may_send, self._is_over = threading.Event(), threading.Event()
        self._busy: set[int] = set()
        self._threads: list[threading.Thread] = []

    def add(
        self, producer: int, send: Send, pause_s: float, close: Callable[[], None] = lambda: None
    ) -> None:
        """Start a sender, which waits until the load is resumed; `close` is called at its end."""

        def run() -> None:
            try:
                self._run(producer, send, pause_s)
            finally:
                close()

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, producer: int, send: Send, pause_s: float) -> None:
        for count in itertools.count():
            body = b"%d-%d " % (producer, count)
            body += b"x" * (BODY_BYTES - len(body))
            is_stored = False
            while not is_stored:
                if self._is_over.is_set():
                    return
                self._busy.add(producer)
                if self._may_send.is_set():
                    try:
                        send(body, producer % QUEUES)
                        is_stored = True
                    except (StockClientError, *REQUEST_FAILURES):
                        time.sleep(RETRY_S)
                self._busy.discard(producer)
                if not self._may_send.wait(RETRY_S):
                    continue
                time.sleep(pause_s)

    def pause(self) -> None:
        """Let requests that are under way end, and send no more."""
        self._may_send.clear()
        eventually(lambda: not self._busy, 60)
        time.sleep(2 * RETRY_S)
        eventually(lambda: not self._busy, 60)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send during the block, and pause after it."""
        self._may_send.set()
        try:
            yield
        finally:
            self.pause()

    def close(self) -> None:
        self._is_over.set()
        self._may_send.set()
        for thread in self._threads:
            thread.join(30)


def find_master(namesrv: str) -> str:
    """Return the address of the master that a namesrv names. Raises ConnectionError without one."""
    address = members(namesrv).get(0)
    if address is None:
        raise ConnectionError("no master is registered")
    return address


class TypedSender:
    """Sends with our own client to a broker, whose address is found before each connection.

    `note_reply` gets the body and the reply of each message before its answer is noted.
    """

    def __init__(
        self,
        find_address: Callable[[], str],
        history: SendHistory,
        note_reply: Callable[[bytes, SendMessageReply], None] = lambda body, reply: None,
    ) -> None:
        self._find_address, self._history, self._note_reply = find_address, history, note_reply
        self._connection: BlockingClient | None = None

    def send(self, body: bytes, queue_id: int) -> None:
        """Send a message once and note the answer. Raises one of REQUEST_FAILURES unless it says: stored."""
        if self._connection is None:
            self._connection = connect(self._find_address(), timeout_s=ANSWER_TIMEOUT_S)
        self._history.note_attempt(body, queue_id)
        try:
            reply = self._connection.ask(send_request(TOPIC, body, queue_id=queue_id))
        except REQUEST_FAILURES:
            self.close()
            raise
        self._note_reply(body, reply)
        self._history.note_answer(body, reply.queue_offset, reply.code)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*REQUEST_FAILURES):
                connection.close()


class JavaSender:
    """Sends with a stock Java client."""

    def __init__(self, client: JavaClient, name: str, history: SendHistory) -> None:
        self._client, self._name, self._history = client, name, history

    def send(self, body: bytes, queue_id: int) -> None:
        self._history.note_attempt(body, queue_id)
        answer = self._client.driver.call(
            "send", name=self._name, mode="queue", messages=[{"topic": TOPIC, "body": body.decode()}],
            queue={"topic": TOPIC, "broker": BROKER, "queue": queue_id},
        )[0]  # fmt: skip
        self._history.note_answer(body, answer["offset"], STATUS_CODES[answer["status"]])


@dataclass(frozen=True, slots=True)
class DeliveryCounts:
    """Numbers of messages: those that a consumer got, those that it lacks, and deliveries of those it had already."""

    received: int
    missing: int
    again: int

    def __str__(self) -> str:
        return f"{self.received:,} received, {self.missing} missing, {self.again} again"


def count_deliveries(promised: set[bytes], counts: Counter[bytes]) -> DeliveryCounts:
    return DeliveryCounts(len(counts), len(promised - counts.keys()), counts.total() - len(counts))


class GrpcTraffic:
    """Sends and consumes with the stock client that speaks gRPC; `acknowledged` bodies must be received.

    `note_times` gets begin and end of each accepted send.
    """

    def __init__(
        self,
        client: StockGrpcClient,
        group: str,
        note_times: Callable[[float, float], None] = lambda _begun_s, _ended_s: None,
    ) -> None:
        self._client, self._group, self._note_times = client, group, note_times
        self.acknowledged: set[bytes] = set()
        self.received: Counter[bytes] = Counter()

    @contextmanager
    def running(self, load: SenderLoad, producer: int, pause_s: float) -> Iterator[None]:
        """Receive during the block; send while the load runs."""
        with self._client.producer(GRPC_TOPIC, attempts=1) as sender:

            def send(body: bytes, _: int) -> None:
                begun_s = time.monotonic()
                sender.send({"topic": GRPC_TOPIC, "body": body.decode()})
                self.acknowledged.add(body)
                self._note_times(begun_s, time.monotonic())

            is_over = threading.Event()
            thread = threading.Thread(target=self._receive, args=(is_over,), daemon=True)
            thread.start()
            load.add(producer, send, pause_s)
            try:
                yield
            finally:
                is_over.set()
                thread.join(30)

    def _receive(self, is_over: threading.Event) -> None:
        with self._client.simple(self._group, GRPC_TOPIC) as consumer:
            while not is_over.is_set():
                try:
                    for message in consumer.receive(32, 10):
                        self.received[message["body"].encode()] += 1
                        consumer.ack(message)
                except StockClientError:
                    time.sleep(RETRY_S)


class JavaDeliveries:
    """Deliveries to a stock Java consumer, taken from it now and then: those of an hour outgrow its memory."""

    def __init__(self, consumer: JavaPushConsumer) -> None:
        self._consumer = consumer
        self.counts: Counter[bytes] = Counter()

    def take(self) -> None:
        while messages := self._consumer.take(DELIVERIES_AT_ONCE):
            self.counts.update(message["body"].encode() for message in messages)


def judge_consumers(
    promised: set[bytes], deliveries: Mapping[str, JavaDeliveries], grpc: GrpcTraffic | None, drain_s: float
) -> dict[str, DeliveryCounts]:
    """Wait until all consumers have what was promised, stock Java ones by version; return what each got."""
    counts: dict[str, DeliveryCounts] = {}
    for version, java_deliveries in deliveries.items():
        deadline_s = time.monotonic() + drain_s
        java_deliveries.take()
        while promised - java_deliveries.counts.keys() and time.monotonic() < deadline_s:
            time.sleep(1)
            java_deliveries.take()
        counts[f"Java {version}"] = count_deliveries(promised, java_deliveries.counts)
    if grpc is not None:
        with suppress(AssertionError):
            eventually(lambda: not grpc.acknowledged - grpc.received.keys(), drain_s)
        counts["gRPC"] = count_deliveries(grpc.acknowledged, grpc.received)
    return counts
