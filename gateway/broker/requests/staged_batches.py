"""Staged batches: messages that become visible together, when their writer publishes the batch.

Problem: a writer with many tasks (a Spark job) sends a batch over many connections, and after a failure sends parts of
it again. Consumers must see each message once, and no message of a batch that is never published.

1. Tasks stage parts. A part is a file outside the commit log, and on disk before the request is answered.
2. To publish, the broker checks that it has all parts, flushes the store, and writes an intent: the list of parts and
   the end offset (floor) of each queue.
3. The broker appends the parts to their queues and flushes.
4. It writes a mark with the batch's number, and deletes the intent and the parts.

Invariant: a batch with an intent is always completed, after the next start if need be. After a crash before the end of
step 2 nothing is published. After a crash in step 3 the broker reads the unique keys of the messages after the floors,
and appends only the missing messages. After a crash in step 4 the mark says that the batch is complete.

Permissions are checked in `processors/staged_batches.py`; the files live in `storage/staged_files.py`.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import trio

from codec.batch import encode_batch, split_batch
from codec.errors import MessageFormatError
from codec.java_numbers import I32, parse_java_integer
from codec.message import split_messages, stored_properties
from codec.properties import UNIQ_CLIENT_MESSAGE_ID_KEYIDX, find_property
from gateway.broker.messages.damaged_records import RecordKind, RecordLocation
from gateway.broker.messages.message_services import MessageServices
from gateway.broker.requests.send_handler import MAX_TURN_MESSAGES, SendHandler
from gateway.broker.statistics.stored_counts import MessageType
from gateway.broker.topics.topic_table import TopicTable
from gateway.runtime.run_blocking import RunBlocking
from storage.append import check_batch_in_slices
from storage.errors import MessageIllegal, StoreError, StoreFull
from storage.queue_read import ReadStatus
from storage.staged_files import PublishedMark, PublishIntent, StagedFiles, StagedPart

T = TypeVar("T")

log = logging.getLogger(__name__)

UNIQUE_KEY: Final = UNIQ_CLIENT_MESSAGE_ID_KEYIDX.encode()
RETRY_INTERVAL_S: Final = 5.0
_MESSAGES_PER_READ: Final = 256
HOUR_MS: Final = 3_600_000


class BatchIncomplete(Exception):
    """A batch that cannot be published because some of its parts are missing."""


class StagedBatches:
    """The staged batches of one broker. One batch of a writer is published at a time."""

    def __init__(
        self,
        files: StagedFiles,
        services: MessageServices,
        topics: TopicTable,
        send_handler: SendHandler,
        run_blocking: RunBlocking,
        max_bytes: int,
    ) -> None:
        self._files = files
        self._store = services.store
        self._long_polls = services.long_polls
        self._damaged = services.damaged
        self._put_stats = services.stats.stored
        self._topics = topics
        self._send_handler = send_handler
        self._run_blocking = run_blocking
        self._max_bytes = max_bytes
        self._writer_locks: dict[str, trio.Lock] = {}
        self._marks: dict[str, int] = {}
        self._part_locks: dict[str, trio.Lock] = {}
        self._topics_by_batch: dict[tuple[str, int], set[str]] = {}
        self._unfinished = trio.Event()
        self.staged_bytes = files.total_bytes()

    def last_published_batch(self, writer: str) -> int:
        """Return the number of the writer's last published batch, -1 for none."""
        if writer not in self._marks:
            mark = self._files.read_mark(writer)
            self._marks[writer] = -1 if mark is None else mark.batch
        return self._marks[writer]

    def topics_of(self, writer: str, batch: int) -> set[str]:
        """Return the topics of the parts of a batch that were staged since the start and are not published yet."""
        return self._topics_by_batch.get((writer, batch), set())

    async def stage_part(self, writer: str, batch: int, stage: str, number: int, part: StagedPart) -> None:
        """Store a part durably, unless its batch is published meanwhile. Raises StoreFull."""
        data = part.encode()
        # A sender that gave up waiting may send a part again while the first request is still being processed.
        part_name = f"{writer}/{batch}/{stage}/{number}"
        lock = self._part_locks.setdefault(part_name, trio.Lock())
        async with lock:
            more = len(data) - (self._files.part_bytes(writer, batch, stage, number) or 0)
            if self._store.disk_full or self.staged_bytes + more > self._max_bytes:
                raise StoreFull(
                    "nearly full" if self._store.disk_full else f"{self.staged_bytes} bytes are staged"
                )
            self.staged_bytes += more
            self._topics_by_batch.setdefault((writer, batch), set()).add(part.topic)
            try:
                await self._run_in_thread(lambda: self._files.write_part(writer, batch, stage, number, data))
            except StoreError:
                self.staged_bytes -= more
                raise
            except FileNotFoundError:
                # The end of a batch deletes all its files, also those that are being written.
                self.staged_bytes -= more
            finally:
                if not lock.statistics().tasks_waiting:
                    self._part_locks.pop(part_name, None)

    async def publish_batch(
        self, writer: str, batch: int, stages: list[tuple[str, int]], *, stream: bool
    ) -> int:
        """Publish a batch and return the number of appended messages, 0 when it was published before.

        Raises BatchIncomplete, StoreError.
        """
        async with self._lock_writer(writer):
            try:
                done = await self._finish_publishing(writer)
                if batch <= self.last_published_batch(writer):
                    return done
                await self._write_intent(writer, PublishIntent(batch, stages, stream))
                return await self._append_batch(writer, resumed=False)
            except (StoreError, trio.Cancelled):
                self._unfinished.set()
                raise

    async def run(self) -> None:
        """Complete batches whose intent was left by an earlier process or an interrupted request.

        The broker cannot rely on the writer to publish such a batch again.
        """
        while True:
            self._unfinished = trio.Event()
            for writer in self._files.list_writers():
                await self._finish_or_retry(writer)
            await self._unfinished.wait()
            await trio.sleep(RETRY_INTERVAL_S)

    @asynccontextmanager
    async def _lock_writer(self, writer: str) -> AsyncIterator[None]:
        """Let one task at a time publish for a writer. The lock is deleted when no task needs it."""
        lock = self._writer_locks.setdefault(writer, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._writer_locks.pop(writer, None)

    async def _finish_or_retry(self, writer: str) -> None:
        async with self._lock_writer(writer):
            try:
                await self._finish_publishing(writer)
            except StoreError as error:
                log.warning("staged batch could not be published, retrying", extra={"reason": str(error)})
                self._unfinished.set()

    async def remove_expired(self, reserved_hours: int) -> None:
        """Delete parts that were staged longer ago than the retention and never published."""
        before_ms = self._store.clock.now_ms() - reserved_hours * HOUR_MS
        self.staged_bytes -= self._files.delete_abandoned(before_ms)
        self._marks.clear()
        for writer, batch in list(self._topics_by_batch):
            if not self._files.has_parts(writer, batch):
                del self._topics_by_batch[writer, batch]

    # -- publishing -----------------------------------------------------------------------------------------------

    async def _finish_publishing(self, writer: str) -> int:
        """Append the missing messages of a batch with an intent, if there is one."""
        intent = self._files.read_intent(writer)
        if intent is None:
            return 0
        if intent.batch <= self.last_published_batch(writer):
            # The process was killed after the mark was written.
            self.staged_bytes -= self._files.finish_batch(
                writer, PublishedMark(self.last_published_batch(writer), intent.stream)
            )
            return 0
        return await self._append_batch(writer, resumed=True)

    async def _write_intent(self, writer: str, intent: PublishIntent) -> None:
        """Check that all parts of a batch are staged, then write its intent. Raises BatchIncomplete, StoreFull."""
        queues: set[tuple[str, int]] = set()
        for stage, number in _part_numbers(intent):
            data = await self._read_part(writer, intent.batch, stage, number)
            if data is None:
                raise BatchIncomplete(f"piece {number} of stage {stage} of batch {intent.batch} is not here")
            part = StagedPart.decode(data)
            queues.add((part.topic, part.queue_id))
        for topic, queue_id in sorted(queues):
            # Other producers append at the same time, so a floor may be too low, but never too high.
            intent.floors.setdefault(topic, {})[str(queue_id)] = self._store.max_offset(topic, queue_id)
        # Messages below the floors must survive a crash, or their queue offsets would be given to later messages.
        await self._run_in_thread(self._store.flush)
        await self._run_in_thread(lambda: self._files.write_intent(writer, intent))

    async def _append_batch(self, writer: str, *, resumed: bool) -> int:
        intent = self._files.read_intent(writer)
        assert intent is not None
        present_keys = await self._unique_keys_from(intent.floors) if resumed else frozenset[bytes]()
        appended = 0
        for stage, number in _part_numbers(intent):
            data = await self._read_part(writer, intent.batch, stage, number)
            if data is not None:
                appended += await self._append_part(StagedPart.decode(data), present_keys)
            await trio.lowlevel.checkpoint()
        await self._run_in_thread(self._store.flush)
        mark = PublishedMark(intent.batch, intent.stream)
        self.staged_bytes -= await self._run_in_thread(lambda: self._files.finish_batch(writer, mark))
        self._marks[writer] = intent.batch
        # The end of a batch deletes all parts of the writer up to it.
        for name, number in list(self._topics_by_batch):
            if name == writer and number <= intent.batch:
                del self._topics_by_batch[name, number]
        log.info(
            "staged batch published", extra={"writer": writer, "batch": intent.batch, "messages": appended}
        )
        return appended

    async def _append_part(self, part: StagedPart, present_keys: frozenset[bytes]) -> int:
        """Append the messages of a part that are not in the store yet.

        None is appended when the topic was deleted, or when the store can never hold them. Raises StoreFull.
        """
        if self._topics.get(part.topic) is None:
            return 0
        try:
            return await self._append_missing(part, present_keys)
        except (MessageIllegal, MessageFormatError) as error:
            # The batch has an intent, so it must be completed.
            location = RecordLocation(part.topic, part.queue_id, -1, -1)
            self._damaged.skip(RecordKind.STAGED_PART, location, error)
            return 0

    async def _append_missing(self, part: StagedPart, present_keys: frozenset[bytes]) -> int:
        """Append the missing messages of a part in slices, between which other tasks run."""
        body = part.body
        if present_keys:
            missing_entries = []
            for number, entry in enumerate(split_batch(body)):
                if find_property(entry[2], UNIQUE_KEY) not in present_keys:
                    missing_entries.append(entry)
                if number % MAX_TURN_MESSAGES == MAX_TURN_MESSAGES - 1:
                    await trio.lowlevel.checkpoint()
            body = encode_batch(missing_entries)
        if not body:
            return 0
        slices: list[tuple[int, int]] = []
        suffix, max_bytes = self._send_handler.own_properties_bytes, self._store.config.max_message_bytes
        for bounds in check_batch_in_slices(body, suffix, max_bytes, MAX_TURN_MESSAGES):
            if slices:
                await trio.lowlevel.checkpoint()
            slices.append(bounds)
        appended = 0
        for start, end in slices:
            if start:
                await trio.lowlevel.checkpoint()
            if self._topics.get(part.topic) is None:
                break  # deleted meanwhile
            if self._store.disk_full:
                raise StoreFull("nearly full")
            appended += self._append_slice(part, body[start:end])
        return appended

    def _append_slice(self, part: StagedPart, body: bytes) -> int:
        _, places, _ = self._store.append_batch(
            part.topic,
            part.queue_id,
            body,
            sys_flag=part.sys_flag,
            born_timestamp=part.born_timestamp,
            born_host=part.born_host,
            store_host=part.store_host,
            properties_suffix=self._send_handler.own_properties_bytes,
        )
        size = self._store.max_physical_offset - places[0]
        self._put_stats[part.topic].count_request(MessageType.NORMAL, size, len(places))
        self._long_polls.mark_grown(part.topic, part.queue_id)
        self._long_polls.answer_marked()
        return len(places)

    async def _unique_keys_from(self, floors: dict[str, dict[str, int]]) -> frozenset[bytes]:
        """Return the unique keys of all messages after the floors."""
        unique_keys: set[bytes] = set()
        for topic, queues in floors.items():
            for queue_id, floor in queues.items():
                for keys in self._read_unique_keys(topic, parse_java_integer(queue_id, I32), floor):
                    unique_keys |= keys
                    await trio.lowlevel.checkpoint()
        return frozenset(unique_keys)

    def _read_unique_keys(self, topic: str, queue_id: int, floor: int) -> Iterator[set[bytes]]:
        offset = max(floor, self._store.min_offset(topic, queue_id))
        end = self._store.max_offset(topic, queue_id)
        while offset < end:
            result = self._store.read(topic, queue_id, offset, _MESSAGES_PER_READ)
            if result.status is not ReadStatus.FOUND:
                return
            yield {_unique_key(message) for chunk in result.chunks for message in split_messages(chunk)}
            offset = result.next_offset

    async def _read_part(self, writer: str, batch: int, stage: str, number: int) -> bytes | None:
        return await self._run_in_thread(lambda: self._files.read_part(writer, batch, stage, number))

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        done: list[T] = []
        await self._run_blocking(lambda: done.append(work()))
        return done[0]


def _part_numbers(intent: PublishIntent) -> Iterator[tuple[str, int]]:
    for stage, count in intent.stages:
        for number in range(count):
            yield stage, number


def _unique_key(message: memoryview) -> bytes:
    return find_property(stored_properties(message), UNIQUE_KEY) or b""
