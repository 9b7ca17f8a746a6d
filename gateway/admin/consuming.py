"""Reads the queues of a topic by pulls, which leave no trace at the broker unless a group is given.

Each broker has a thread with one outstanding pull per queue; it hands the messages to the command, which prints them.
The queue between them is bounded, so a slow reader slows the pulls down.
"""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from codec.message import Message, iter_messages
from codec.topics import PERM_READ
from gateway.admin.errors import AdminError, NotReached, Refused
from remoting.blocking import BlockingClient
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.offsets import (
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from remoting.requests.pull import TOOLS_GROUP, PullMessage, PullMessageReply, read_only_pull

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
MAX_PULL_MESSAGES: Final = 32
SUSPEND_MS: Final = 5_000
"""Longest wait of one pull at the broker while messages are followed."""
MAX_WAITING_BATCHES: Final = 16
COMMIT_INTERVAL_S: Final = 5.0
RECONNECT_S: Final = 60.0
"""Longest time without an answer of a broker while messages are followed."""
RETRY_INTERVAL_S: Final = 0.5
STOP_TIMEOUT_S: Final = 1.0
"""Longest wait for a thread at the end; one that is connecting just then is not waited for."""
_POLL_S: Final = 0.2
_MAX_IDLE_PULLS: Final = 3
"""Pulls without progress before the end of a queue after which the rest of it counts as unreadable."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The messages to read: where each queue begins, which queues, and which messages of them."""

    start: str = EARLIEST
    start_ms: int | None = None
    end_ms: int | None = None
    """Only messages stored before this time are selected; a queue is read up to the first message after it."""
    start_offset: int | None = None
    queues: tuple[int, ...] = ()
    brokers: tuple[str, ...] = ()
    tags: str = "*"
    sql: str = ""
    group: str = ""
    follow: bool = False

    @property
    def expression(self) -> tuple[str, str]:
        """The type and text of the subscription."""
        return ("SQL92", self.sql) if self.sql else ("TAG", self.tags)


@dataclass(slots=True)
class QueuePosition:
    """The progress in one queue; ``end`` is the offset to stop before, None while messages are followed."""

    topic: str
    broker: str
    queue_id: int
    next_offset: int
    end: int | None
    idle_pulls: int = 0

    @property
    def is_done(self) -> bool:
        """True at the end of the queue."""
        return self.end is not None and (self.next_offset >= self.end or self.idle_pulls >= _MAX_IDLE_PULLS)

    def pull_request(self, options: ReadOptions, suspend_ms: int) -> PullMessage:
        """Return the next pull."""
        kind, text = options.expression
        return read_only_pull(
            self.topic,
            self.queue_id,
            self.next_offset,
            MAX_PULL_MESSAGES,
            wait_ms=suspend_ms,
            group=options.group or TOOLS_GROUP,
            subscription=text,
            expression_type=kind,
        )

    def accept(self, reply: PullMessageReply) -> list[Message]:
        """Return the messages of a reply that lie before the end, and move on."""
        before = self.next_offset
        messages = (
            list(iter_messages(reply.body)) if reply.code == ResponseCode.SUCCESS and reply.body else []
        )
        self.next_offset = max(reply.next_begin_offset, 0)
        self.idle_pulls = self.idle_pulls + 1 if self.next_offset <= before and not messages else 0
        return [message for message in messages if self.end is None or message.queue_offset < self.end]


@dataclass(frozen=True, slots=True)
class PulledMessages:
    """Messages of one queue, as they came with one answer."""

    broker: str
    messages: list[Message] = field(default_factory=list)


class TopicReader:
    """Reads a topic; use it as a context manager, which ends its threads."""

    def __init__(self, client: "AdminClient", topic: str, options: ReadOptions) -> None:
        """Find the queues and their beginnings. Raises NotFound, and AdminError if no queue can be read."""
        self._client = client
        self._options = options
        self._stopping = threading.Event()
        self._batches: queue.Queue[PulledMessages | AdminError | None] = queue.Queue(MAX_WAITING_BATCHES)
        self._connections: list[BlockingClient] = []
        self._threads: list[threading.Thread] = []
        self._answered_s: dict[str, float] = {}
        self._delivered: dict[tuple[str, int], int] = {}
        self._current: tuple[tuple[str, int], int] | None = None
        self._committed_s = time.monotonic()
        self._topic = topic
        self._wanted_tags = _tags_of(options)
        self.readers = find_queues(client, topic, options)

    def __enter__(self) -> "TopicReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the threads, which close their connections."""
        self._stopping.set()
        for connection in list(self._connections):
            connection.abort()
        for thread in self._threads:
            thread.join(STOP_TIMEOUT_S)

    @property
    def total(self) -> int:
        """The messages between beginning and end of all queues, filtered ones included."""
        return sum(
            max(0, reader.end - reader.next_offset) for reader in self.readers if reader.end is not None
        )

    def read(self) -> Iterator[tuple[Message, str]]:
        """Yield messages with the name of their broker; without end if they are followed. Raises AdminError."""
        by_broker: dict[str, list[QueuePosition]] = {}
        for reader in self.readers:
            if not reader.is_done:
                by_broker.setdefault(reader.broker, []).append(reader)
        for broker, readers in by_broker.items():
            thread = threading.Thread(target=self._run, args=(broker, readers), daemon=True)
            thread.start()
            self._threads.append(thread)
        running = len(by_broker)
        while running:
            try:
                # With a limit: on some systems a wait without one cannot be interrupted.
                batch = self._batches.get(timeout=_POLL_S)
            except queue.Empty:
                self._commit_if_due()
                continue
            if batch is None:
                running -= 1
            elif isinstance(batch, AdminError):
                raise batch
            else:
                for message in batch.messages:
                    queue_key = batch.broker, message.queue_id
                    if self._wanted_tags is None or (message.tags or "") in self._wanted_tags:
                        self._current = queue_key, message.queue_offset + 1
                        yield message, batch.broker
                    self._delivered[queue_key] = message.queue_offset + 1
                self._commit_if_due()

    # -- the threads ---------------------------------------------------------------------------------------------

    def _run(self, broker: str, readers: list[QueuePosition]) -> None:
        """Read the queues of a broker to their ends. While messages are followed, reconnect after a failure."""
        self._answered_s[broker] = time.monotonic()
        while True:
            try:
                with self._client.dial(self._client.master(broker)) as connection:
                    self._connections.append(connection)
                    self._pull(connection, broker, readers)
                return self._hand_over(None)
            except (AdminError, RemotingClosed, RemotingTimeout, OSError) as error:
                if self._stopping.is_set():
                    return None
                if not self._may_retry(broker, error):
                    return self._hand_over(_describe_end(broker, error))
            self._stopping.wait(RETRY_INTERVAL_S)

    def _may_retry(self, broker: str, error: Exception) -> bool:
        """Return True within RECONNECT_S for a failure that a restart of the broker, or its load, explains."""
        is_passing = not isinstance(error, AdminError) or isinstance(error, NotReached)
        if isinstance(error, Refused):
            is_passing = error.code in (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
        lasts_s = time.monotonic() - self._answered_s[broker]
        return self._options.follow and is_passing and lasts_s < RECONNECT_S

    def _pull(self, connection: BlockingClient, broker: str, readers: list[QueuePosition]) -> None:
        suspend_ms = SUSPEND_MS if self._options.follow else 0
        timeout_s = self._client.timeout_s + suspend_ms / 1000
        waiting = {self._start(connection, reader, suspend_ms): reader for reader in readers}
        while waiting and not self._stopping.is_set():
            answer = connection.receive_next_answer(timeout_s=timeout_s)
            reader = waiting.pop(answer.opaque, None)
            if reader is None:
                continue
            request = reader.pull_request(self._options, suspend_ms)
            try:
                messages = reader.accept(request.read_reply(answer))
                self._answered_s[broker] = time.monotonic()
            except RequestError as error:
                raise Refused(self._client.master(broker), request, error.code, error.remark) from None
            except MessageFormatError as error:
                raise AdminError(
                    f"broker {broker}, queue {reader.queue_id}: a message at offset {reader.next_offset} or after "
                    f'it cannot be read: {error}. Look for damage with "rmq-gateway store verify" at the broker.'
                ) from error
            if messages:
                self._hand_over(PulledMessages(broker, messages))
            if not reader.is_done:
                waiting[self._start(connection, reader, suspend_ms)] = reader

    def _start(self, connection: BlockingClient, reader: QueuePosition, suspend_ms: int) -> int:
        return connection.start_command(reader.pull_request(self._options, suspend_ms).to_command())

    def _hand_over(self, batch: PulledMessages | AdminError | None) -> None:
        while not self._stopping.is_set():
            try:
                self._batches.put(batch, timeout=_POLL_S)
            except queue.Full:
                continue
            return

    def finish_current(self) -> None:
        """Count the message that `read` yielded last as delivered, which it does itself only when it goes on."""
        if self._current is not None:
            queue_key, offset = self._current
            self._delivered[queue_key] = max(offset, self._delivered.get(queue_key, 0))

    # -- commits -------------------------------------------------------------------------------------------------

    def _commit_if_due(self) -> None:
        if time.monotonic() - self._committed_s >= COMMIT_INTERVAL_S:
            self.commit()

    def commit(self) -> None:
        """Commit what was delivered, if there is a group."""
        self._committed_s = time.monotonic()
        if not self._options.group:
            self._delivered.clear()
        for (broker, queue_id), offset in list(self._delivered.items()):
            self._client.ask_broker(
                broker,
                UpdateConsumerOffset(
                    consumer_group=self._options.group,
                    topic=self._topic,
                    queue_id=queue_id,
                    commit_offset=offset,
                ),
            )
            # Not before: Ctrl-C may interrupt this commit, and the one at the end makes up for it.
            del self._delivered[broker, queue_id]


def _describe_end(broker: str, error: Exception) -> AdminError:
    return error if isinstance(error, AdminError) else NotReached(f"broker {broker}: {error}. Try again.")


def _tags_of(options: ReadOptions) -> set[str] | None:
    """Return the tags to compare here, since brokers compare only their hash codes; None if all are selected."""
    tags = {tag.strip() for tag in options.tags.split("||")} - {""}
    return None if options.sql or not tags or "*" in tags else tags


def find_queues(client: "AdminClient", topic: str, options: ReadOptions) -> list[QueuePosition]:
    """Return the start position of each selected queue. Raises NotFound, and AdminError if no queue is selected."""
    readers: list[QueuePosition] = []
    for data in sorted(client.route(topic).queue_datas, key=lambda queue_data: queue_data.broker_name):
        if not data.perm & PERM_READ or data.broker_name not in client.masters:
            continue
        if options.brokers and data.broker_name not in options.brokers:
            continue
        chosen = [
            queue_id
            for queue_id in range(data.read_queue_nums)
            if not options.queues or queue_id in options.queues
        ]
        readers += _readers_of_broker(client, topic, data.broker_name, chosen, options)
    if not readers:
        raise AdminError(
            f'topic "{topic}" has no such readable queue; see "rmq-gateway topic describe {topic}"'
        )
    return readers


def _readers_of_broker(
    client: "AdminClient", topic: str, broker: str, queues: Sequence[int], options: ReadOptions
) -> list[QueuePosition]:
    address = client.master(broker)
    readers = []
    for queue_id in queues:
        low = client.ask(address, GetMinOffset(topic=topic, queue_id=queue_id)).offset
        high = client.ask(address, GetMaxOffset(topic=topic, queue_id=queue_id)).offset
        start = _committed_offset(client, address, topic, queue_id, options)
        if start is None:
            start = _chosen_offset(client, address, topic, queue_id, options, low, high)
        end = None if options.follow else _end_offset(client, address, topic, queue_id, options, high)
        readers.append(QueuePosition(topic, broker, queue_id, max(low, start), end))
    return readers


def _end_offset(
    client: "AdminClient", address: str, topic: str, queue_id: int, options: ReadOptions, high: int
) -> int:
    """Return the offset after all messages stored before `end_ms`; without that time ``high``.

    Brokers of 4.9 return the message that is nearest to a time, which may be the last one before it.
    """
    if options.end_ms is None:
        return high
    request = SearchOffsetByTimestamp(topic=topic, queue_id=queue_id, timestamp=options.end_ms)
    return min(high, client.ask(address, request).offset + 1)


def _committed_offset(
    client: "AdminClient", address: str, topic: str, queue_id: int, options: ReadOptions
) -> int | None:
    """Return the offset that the group has committed; None without a group, or if it has none there."""
    if not options.group:
        return None
    request = QueryConsumerOffset(
        consumer_group=options.group, topic=topic, queue_id=queue_id, set_zero_if_not_found=False
    )
    try:
        return client.ask(address, request).offset
    except Refused as refused:
        if refused.code != ResponseCode.QUERY_NOT_FOUND:
            raise
        return None


def _chosen_offset(
    client: "AdminClient", address: str, topic: str, queue_id: int, options: ReadOptions, low: int, high: int
) -> int:
    if options.start_offset is not None:
        return options.start_offset
    if options.start_ms is not None:
        request = SearchOffsetByTimestamp(topic=topic, queue_id=queue_id, timestamp=options.start_ms)
        return client.ask(address, request).offset
    return high if options.start == LATEST else low
