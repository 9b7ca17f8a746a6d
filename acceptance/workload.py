"""Producers and a consumer in threads that record what the broker acknowledged.

A case runs a `Workload`, stops or kills the broker, and checks with `assert_nothing_lost` that it still has every
acknowledged message at the acknowledged offset.
"""

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from codec.message import Message
from compat_tests.clients.typed import batch_request, messages, pull, send_request, topic_request
from compat_tests.server import split_address
from remoting.blocking import BlockingClient
from remoting.errors import RemotingClosed, RemotingTimeout
from remoting.requests.offsets import GetMaxOffset, GetMinOffset, QueryConsumerOffset, UpdateConsumerOffset

GROUP = "load_group"
BATCH = 8
_RUNS = itertools.count(1)
CONNECTION_ERRORS = (RemotingClosed, RemotingTimeout)


class Acknowledging(Protocol):
    """Whatever keeps the messages that a broker acknowledged, such as a `Workload`."""

    acknowledged: dict[tuple[str, int], dict[int, bytes]]


class Workload:
    """Producers of single, batched and delayed messages and a consumer, running until the broker is gone or `stop`.

    `acknowledged[topic, queue]` maps queue offsets to bodies, which are unique. Every thread ends by itself when its
    connection closes; a refusal makes `stop` fail. The consumer reads queue 0 of the single messages from `start` on.
    """

    def __init__(self, broker: str, name: str, *, delayed: bool = True, start: int = 0) -> None:
        self.broker = broker
        self._run_number = next(_RUNS)
        self.single, self.batch, self.late = (f"{name}_{kind}" for kind in ("single", "batch", "late"))
        self.acknowledged: dict[tuple[str, int], dict[int, bytes]] = defaultdict(dict)
        self.delayed: list[bytes] = []
        self.committed = [start]
        self.count = 0
        self.slowest_s = 0.0
        self._problems: list[BaseException] = []
        self._ending = threading.Event()
        self._lock = threading.Condition()
        work: list[Callable[[BlockingClient, int], None]] = [
            self._send,
            self._send,
            self._send_batch,
            self._consume,
        ]
        work += [self._send_delayed] if delayed else []
        self._threads = [
            threading.Thread(target=self._run, args=(function, number), daemon=True)
            for number, function in enumerate(work)
        ]

    def __enter__(self) -> Self:
        with BlockingClient(*split_address(self.broker), timeout_s=15) as client:
            for topic in (self.single, self.batch, self.late):
                client.ask(topic_request(topic, 4))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the threads. Raises an error of one of them, unless it was a lost connection."""
        self._ending.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        if self._problems:
            raise self._problems[0]

    def wait_for_more(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait until `count` more messages are acknowledged."""
        with self._lock:
            target = self.count + count
            assert self._lock.wait_for(lambda: self.count >= target or self._problems, timeout_s), "too slow"
        if self._problems:
            raise self._problems[0]

    def _run(self, function: Callable[[BlockingClient, int], None], number: int) -> None:
        try:
            with (
                suppress(*CONNECTION_ERRORS),
                BlockingClient(*split_address(self.broker), timeout_s=15) as client,
            ):
                serial = 0
                while not self._ending.is_set():
                    started = time.monotonic()
                    function(client, number * 1_000_000_000 + serial)
                    self.slowest_s = max(self.slowest_s, time.monotonic() - started)
                    serial += 1
        except BaseException as problem:  # noqa: BLE001 - it is raised again where the test waits
            self._problems.append(problem)

    def _count_acknowledged(self, count: int) -> None:
        with self._lock:
            self.count += count
            self._lock.notify_all()

    def _send(self, client: BlockingClient, serial: int) -> None:
        body = f"{self._run_number:04d} {serial:012d};".encode() * (1 + serial % 40)
        reply = client.ask(
            send_request(self.single, body, queue_id=serial % 4, properties={"UNIQ_KEY": f"{serial:032X}"})
        )
        self.acknowledged[self.single, reply.queue_id][reply.queue_offset] = body
        self._count_acknowledged(1)

    def _send_batch(self, client: BlockingClient, serial: int) -> None:
        bodies = [f"{self._run_number} {serial}-{number}".encode() for number in range(BATCH)]
        reply = client.ask(batch_request(self.batch, [(body, {}) for body in bodies], queue_id=serial % 4))
        for number, body in enumerate(bodies):
            self.acknowledged[self.batch, reply.queue_id][reply.queue_offset + number] = body
        self._count_acknowledged(BATCH)

    def _send_delayed(self, client: BlockingClient, serial: int) -> None:
        body = f"late {self._run_number} {serial}".encode()
        client.ask(send_request(self.late, body, queue_id=serial % 4, properties={"DELAY": "1"}))
        self.delayed.append(body)
        self._count_acknowledged(1)

    def _consume(self, client: BlockingClient, _: int) -> None:
        offset = self.committed[-1]
        reply = pull(client, self.single, offset, consumer_group=GROUP)
        if reply.code != 0:
            time.sleep(0.005)  # gives the producers time
            return
        client.ask(commit_request(self.single, reply.next_begin_offset))
        self.committed.append(reply.next_begin_offset)


def commit_request(topic: str, offset: int, queue_id: int = 0, group: str = GROUP) -> UpdateConsumerOffset:
    return UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)


def committed_offset(client: BlockingClient, topic: str, queue_id: int = 0, group: str = GROUP) -> int:
    request = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id)
    return client.ask(request).offset


def read_queue(client: BlockingClient, topic: str, queue_id: int = 0, start: int = 0) -> Iterator[Message]:
    """Yield the messages of a queue from `start` to its end; asserts that their offsets have no gaps."""
    end = client.ask(GetMaxOffset(topic=topic, queue_id=queue_id)).offset
    offset = max(start, client.ask(GetMinOffset(topic=topic, queue_id=queue_id)).offset)
    while offset < end:
        reply = pull(client, topic, offset, queue_id=queue_id, max_msg_nums=32)
        assert reply.code == 0, (topic, queue_id, offset, end, reply.code)
        for message in messages(reply):
            assert message.queue_offset == offset, (topic, queue_id, offset, message.queue_offset)
            yield message
            offset += 1
    assert offset >= end  # more may have come meanwhile


def assert_nothing_lost(client: BlockingClient, loads: Iterable[Acknowledging]) -> None:
    """Assert that a broker has every acknowledged message at its acknowledged offset, and no gaps between."""
    expected: dict[tuple[str, int], dict[int, bytes]] = defaultdict(dict)
    for load in loads:
        for queue, bodies in load.acknowledged.items():
            assert not expected[queue].keys() & bodies.keys(), "an acknowledged offset was given twice"
            expected[queue].update(bodies)
    for (topic, queue_id), bodies in expected.items():
        found = {message.queue_offset: message.body for message in read_queue(client, topic, queue_id)}
        lost = {offset for offset, body in bodies.items() if found.get(offset) != body}
        assert not lost, f"{topic}/{queue_id}: {len(lost)} of {len(bodies)} lost, e.g. {sorted(lost)[:5]}"


def missing_delayed(client: BlockingClient, load: Workload) -> set[bytes]:
    """Return the acknowledged delayed messages that are not in their topic yet."""
    found = Counter(
        message.body for queue_id in range(4) for message in read_queue(client, load.late, queue_id)
    )
    return set(load.delayed) - found.keys()
