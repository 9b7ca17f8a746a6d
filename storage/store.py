"""A broker's store: the one object through which messages are appended, read, found and forgotten.

Not responsible for networks, threads' life, or for who may do what.
"""

import logging
import os
import threading
from collections.abc import Iterable
from typing import Self

from storage.append import Appended, BatchAppended, append_many, append_message
from storage.checkpoint import StoreCheckpoint
from storage.clock import Clock, SystemClock
from storage.commit_log import CommitLog
from storage.config import StoreConfig
from storage.consume_queue import ConsumeQueue, QueueFilePool
from storage.errors import MessageIllegal, OffsetGap, StoreFull
from storage.files import DiskFiles, Files
from storage.index import MessageIndex
from storage.offset_preserving_append import (
    OffsetPreservingResult,
    append_preserving_offset,
    check_not_diverged,
    last_store_timestamp,
    parse_stored_messages,
)
from storage.queue_read import (
    BatchPredicate,
    MessagePredicate,
    ReadResult,
    ReadStatus,
    TagsPredicate,
    read_queue,
)
from storage.recovery import Recovery
from storage.retention import clean, keep_within_bytes
from storage.time_search import Boundary, offset_by_time, store_timestamp_at

log = logging.getLogger(__name__)


class MessageStore:
    """Commit log, consume queues, index and checkpoint of one broker, in the official files.

    One thread appends and reads. `flush` and `checkpoint` may run in another at the same time.
    """

    def __init__(self, config: StoreConfig, files: Files, clock: Clock) -> None:
        self.config = config
        self.files = files
        self.clock = clock
        self.store_host = bytes((127, 0, 0, 1)) + (10911).to_bytes(
            4, "big"
        )  # the server sets its own address
        self.commit_log = CommitLog(
            files, config.commit_log_path, config.commit_log_file_bytes, config.reserve_commit_log_bytes
        )
        self.index = MessageIndex(
            files, config.index_path, self.commit_log, config.index_slots, config.index_entries, clock
        )
        self.disk_full = False  # the last `clean` found the disk nearly full: the broker refuses to store
        self._now_ms = clock.now_ms
        self._max_message_bytes = config.max_message_bytes
        self._pool = QueueFilePool(files, config.max_open_queue_files)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._flush_lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()
        self._lock = files.lock(config.root + "/lock")
        self._checkpoint = StoreCheckpoint(files, config.checkpoint_path)
        self._closed = False

    @classmethod
    def open(cls, config: StoreConfig, files: Files | None = None, clock: Clock | None = None) -> Self:
        """Opens or creates the store in `config.root` and recovers what an unclean end left behind.

        Raises StoreInUse while another process has it open, CorruptionError when durable messages are
        damaged.
        """
        store = cls(config, files or DiskFiles(), clock or SystemClock())
        try:
            store._recover()
        except BaseException:
            store._release()
            raise
        return store

    def _recover(self) -> None:
        crashed = self.files.size(self.config.abort_path) is not None
        if crashed:
            log.warning("the store was not closed in order, recovering", extra={"root": self.config.root})
        checkpoint = self._checkpoint
        recovery = Recovery(self, crashed, checkpoint.safe_timestamp, checkpoint.confirm_offset)
        recovery.run()
        if self.config.message_index_enable:
            self.index.load(checkpoint.index_timestamp if crashed else None, checkpoint.confirm_offset)
        if crashed or recovery.rebuilt:
            self.write_checkpoint()
        self.commit_log.after_roll = lambda: keep_within_bytes(self)
        self._mark_open()
        data = {"root": self.config.root, "end": self.max_physical_offset, "queues": len(self._queues)}
        log.info("store opened", extra=data)

    def _mark_open(self) -> None:
        try:
            self.files.write_small(self.config.abort_path, str(os.getpid()).encode())
        except StoreFull:
            # That it is there is what counts; on a full disk a store can still be read.
            self.files.write_small(self.config.abort_path, b"")

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes = b"",
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: bytes = b"\x7f\0\0\1\0\0\0\0",
        store_host: bytes | None = None,
        reconsume_times: int = 0,
        tags_code: int | None = None,
        prepared_transaction_offset: int = 0,
    ) -> Appended:
        """Stores one message and makes it readable: (queue offset, physical offset, bytes, store timestamp
        in ms).

        `born_host` is packed, address and 4-byte port, 8 or 20 bytes. Prepared and rolled back transaction
        messages
        get no place in the queue. Nothing is durable before `flush` has returned.
        Raises MessageIllegal, StoreFull; then nothing has changed.
        """
        queue = self._queues.get((topic, queue_id)) or self.create_queue(topic, queue_id)
        return append_message(
            self.commit_log, queue, store_host or self.store_host, self._now_ms(), body, properties,
            flag, sys_flag, born_timestamp,
            born_host, reconsume_times, tags_code, prepared_transaction_offset, self._max_message_bytes,
        )  # fmt: skip

    def append_batch(
        self,
        topic: str,
        queue_id: int,
        batch_body: bytes,
        *,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: bytes = b"\x7f\0\0\1\0\0\0\0",
        store_host: bytes | None = None,
        reconsume_times: int = 0,
        properties_suffix: bytes = b"",
    ) -> BatchAppended:
        """Stores the messages of a batch body: (first queue offset, physical offsets, store timestamp in ms).

        Raises MessageIllegal, StoreFull; then none was stored.
        """
        queue = self._queues.get((topic, queue_id)) or self.create_queue(topic, queue_id)
        return append_many(
            self.commit_log, queue, store_host or self.store_host, self._now_ms(), batch_body,
            sys_flag, born_timestamp,
            born_host, reconsume_times, self._max_message_bytes, properties_suffix,
        )  # fmt: skip

    def append_preserving_offsets(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        body: memoryview,
        *,
        store_host: bytes | None = None,
        reset: bool = False,
    ) -> OffsetPreservingResult:
        """Stores whole stored messages at the queue offsets they bring along, from ``offset`` on.

        Those the queue has are left out. With ``reset`` a queue that ends before ``offset`` begins there, and forgets
        what it had. Store host and physical offset become ours; for the store timestamp see `kept.append_kept`.
        Raises MessageIllegal, OffsetGap, QueueDiverged (then nothing has changed), StoreFull (then those before
        are stored).
        """
        messages = parse_stored_messages(body, topic, queue_id, offset)
        queue = self._queues.get((topic, queue_id)) or self.create_queue(topic, queue_id)
        new = [message for message in messages if message.queue_offset >= queue.next_offset]
        for message in messages[: len(messages) - len(new)]:
            check_not_diverged(self.commit_log, queue, message, body[message.physical_offset :])
        if new and offset > queue.next_offset:
            if not reset:
                raise OffsetGap(queue.next_offset, offset)
            queue.restart_at(offset)
        time_ms = last_store_timestamp(self.commit_log, queue) if new else 0
        for message in new:
            stored = body[message.physical_offset : message.physical_offset + message.size]
            host = store_host or self.store_host
            time_ms = append_preserving_offset(self.commit_log, queue, host, message, stored, time_ms)
        return OffsetPreservingResult(queue.next_offset, len(new), sum(message.size for message in new))

    def create_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, known from now on; its files come with its first entry. Raises MessageIllegal."""
        if not topic or "/" in topic or "\0" in topic or topic in (".", "..") or len(topic.encode()) > 255:
            raise MessageIllegal(f"the topic name cannot be a folder's name: {topic[:64]!r}")
        if not 0 <= queue_id <= 0x7FFFFFFF:
            raise MessageIllegal(f"queue id {queue_id} is out of range")
        directory = f"{self.config.consume_queue_path}/{topic}/{queue_id}"
        queue = ConsumeQueue(
            topic, queue_id, directory, self.config.consume_queue_file_entries,
            self.config.reserve_queue_bytes,
            self._pool, self.files,
        )  # fmt: skip
        self._queues[topic, queue_id] = queue
        return queue

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int = 1 << 30,
        predicate: TagsPredicate | None = None,
        message_predicate: MessagePredicate | None = None,
        batch_predicate: BatchPredicate | None = None,
    ) -> ReadResult:
        """Messages of a queue from `offset` on, as slices of the commit log.

        `predicate` sees the tags code in the queue entry, `message_predicate` the whole stored message;
        `many_predicate` says the same of many messages at once.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        return read_queue(
            self.commit_log,
            self.config,
            queue,
            offset,
            max_messages,
            max_bytes,
            predicate,
            message_predicate,
            batch_predicate,
        )

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First readable queue offset, inclusive; 0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset the next message will get, exclusive; 0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.next_offset

    def message_at(self, physical_offset: int) -> memoryview | None:
        """The stored message that starts at a physical offset, not copied; None when none does."""
        return self.commit_log.message_at(physical_offset)

    def queue_keys(self) -> Iterable[tuple[str, int]]:
        """(topic, queue id) of every queue that was ever written to."""
        return list(self._queues)

    def topics(self) -> set[str]:
        """Topics with at least one queue."""
        return {topic for topic, _ in self._queues}

    def all_queues(self) -> list[ConsumeQueue]:
        """The queues themselves, for this package."""
        return list(self._queues.values())

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Queue offset for a store time, within [min, max]; see time_search.offset_by_time."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else offset_by_time(self.commit_log, queue, timestamp_ms, boundary)

    def store_timestamp_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Store timestamp in ms of the message at a queue offset; -1 when there is none."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.next_offset:
            return -1
        return store_timestamp_at(self.commit_log, queue, offset)

    def earliest_store_timestamp(self, topic: str, queue_id: int) -> int:
        """Store timestamp in ms of the oldest message of a queue; -1 when it is empty."""
        return self.store_timestamp_at(topic, queue_id, self.min_offset(topic, queue_id))

    def physical_offset_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Where the message at a queue offset is in the commit log; 0 when there is none, as officially."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.next_offset:
            return 0
        return queue.read_entry(offset)[0]

    def build_index(self, limit_messages: int = 1000) -> int:
        """Indexes at most so many messages more; returns how many there were. For idle moments."""
        return self.index.index_messages(limit_messages) if self.config.message_index_enable else 0

    def query_by_key(
        self,
        topic: str,
        key: str,
        max_messages: int,
        begin_ms: int,
        end_ms: int,
        key_type: str = "",
        catch_up: bool = True,
    ) -> list[int]:
        """Physical offsets of messages that may carry a key or unique key, newest first; see
        MessageIndex.query.

        With `catch_up` brings the index up to date first, which may take seconds. Hashes can collide: the
        caller compares the keys.
        """
        while catch_up and self.build_index(10_000):
            pass
        limit = min(max_messages, self.config.max_query_messages)
        return self.index.find_offsets(topic, key, limit, begin_ms, end_ms, key_type)

    def delete_topic(self, topic: str) -> int:
        """Removes all queues of a topic; its messages stay in the log until they expire. Returns how many.

        Source: DefaultMessageStore.deleteTopics, 5.4.0.
        """
        keys = [key for key in self._queues if key[0] == topic]
        for key in keys:
            self._queues.pop(key).delete_files()
        if keys:
            self.files.delete_tree(f"{self.config.consume_queue_path}/{topic}")
            log.info("topic deleted", extra={"topic": topic})
        return len(keys)

    def delete_expired(self, manual: bool = False, max_files: int | None = None) -> int:
        """Removes expired files, at most so many; returns how many of the commit log; see retention.clean."""
        return clean(self, manual, max_files)

    @property
    def durable_offset(self) -> int:
        """Physical offset below which everything is on the disk."""
        return self.commit_log.durable_offset

    @property
    def min_physical_offset(self) -> int:
        """First physical offset still kept."""
        return self.commit_log.first_base

    @property
    def max_physical_offset(self) -> int:
        """Physical offset the next message will get."""
        return self.commit_log.max_offset

    def flush(self) -> int:
        """Blocks until every message appended before the call is durable; returns the offset they end at.

        Thread safe; appends go on meanwhile.
        """
        with self._flush_lock:
            return self.commit_log.flush()

    def write_checkpoint(self) -> None:
        """Blocks until log, queues and index are on the disk, then notes that in the checkpoint file.
        Thread safe."""
        with self._checkpoint_lock:
            # Taken first: whatever is appended from here on has this time or a later one.
            until_ms = self._now_ms() - 1
            queued = self.commit_log.max_offset
            marks = [(queue, queue.next_offset) for queue in self.all_queues()]
            self.flush()
            for queue, mark in marks:
                if queue.flushed_offset < mark:
                    for path in queue.unflushed_paths():
                        self.files.flush(path)
                    queue.flushed_offset = mark
            checkpoint = self._checkpoint
            checkpoint.index_timestamp = self.index.flush()
            checkpoint.log_timestamp = checkpoint.queues_timestamp = until_ms
            checkpoint.confirm_offset = queued
            checkpoint.write()

    def close(self, clean: bool = True, index_messages: int = 200_000) -> None:
        """Ends the store. With `clean` everything is flushed first and the next opening need not recover.

        The official broker does not index what it did not write itself, so the index is brought up to
        date, by at
        most `index_messages`.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if clean:
                self._index_rest(index_messages)
                self.write_checkpoint()
                self.files.delete(self.config.abort_path)
        finally:
            self._release()

    def _index_rest(self, limit_messages: int) -> None:
        try:
            self.build_index(limit_messages)
        except StoreFull as error:  # the next opening goes on from there
            log.warning("messages are not indexed", extra={"reason": str(error)})

    def _release(self) -> None:
        self.index.close()
        self._pool.close()
        self.commit_log.close()
        self._checkpoint.close()
        self._lock()
