"""The store of one broker: appends, reads, finds and deletes messages.

Theory of operation
-------------------
`MessageStore` joins the parts of a store: `commit_log` (all messages), `queue_set` (consume queues), `index` (keys),
`checkpoint`, `recovery` and `retention`.

Appending writes the message into the commit log first and its 20-byte entry into the consume queue second, both into
memory maps. A message is readable as soon as its entry is written. Appending does not wait for the disk: `flush`
makes the log durable (group commit and the flush interval live in `gateway/broker`), and `write_checkpoint` makes log,
queues and index durable and then records up to where they are. The index is built later, in the
background (`build_index`); queries search the messages that it lacks (`unindexed_search`).

What a crash at each step leaves, and what recovery makes of it:

- a message whose size is still zero: the log ends before it;
- a message without its queue entry: recovery appends the entry;
- a queue entry or index entry beyond the checkpoint: recovery drops it and derives it from the log again;
- everything flushed, but the checkpoint not written: recovery reads more of the log than necessary.

A flush that fails is final, and the store takes no more messages: see `flush_guard`.

Threads: one thread appends and reads. `flush` and `write_checkpoint` may run in another thread at the same time; they
read only fields whose stale value is harmless (an end that is too low).
"""

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self

from storage.append import (
    Appended,
    BatchAppended,
    NewMessage,
    QueueWriter,
    append_many,
    append_message,
)
from storage.checkpoint import StoreCheckpoint
from storage.clock import Clock, SystemClock
from storage.commit_log import CommitLog
from storage.config import LIVE_SETTINGS, StoreConfig
from storage.consume_queue import ConsumeQueue
from storage.cut import finish_cut, forget_cut, progress_path
from storage.deleted_topics import DeletedTopics
from storage.dispatch import EntryDispatch
from storage.errors import FlushFailed, OffsetGap, StoreError, StoreFull
from storage.files import DiskFiles, Files
from storage.flush_guard import FlushGuard, forget_cached_files
from storage.index import MessageIndex
from storage.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from storage.offset_preserving_append import (
    OffsetPreservingResult,
    append_preserving_offset,
    check_not_diverged,
    last_store_timestamp,
    parse_stored_messages,
)
from storage.queue_ends import (
    QueueRanges,
    delete_queue_ends,
    encode_queue_ends,
    flush_queue_ends,
    queue_ends_path,
    read_queue_ends,
    replace_queue_ends,
    write_queue_ends,
)
from storage.queue_read import (
    BatchPredicate,
    MessagePredicate,
    ReadResult,
    ReadStatus,
    TagsPredicate,
    read_queue,
)
from storage.queue_set import CHECKED_PER_EXPIRY, QueueSet
from storage.recovery import REBUILDING, DurableState, Recovery
from storage.retention import Retention
from storage.rocksdb import refuse_rocksdb
from storage.time_search import Boundary, offset_by_time, store_timestamp_at
from storage.unindexed_search import find_unindexed

log = logging.getLogger(__name__)

MAX_COVERED_BACKLOG_BYTES = 256 << 20
"""Bytes of the log without index that a checkpoint takes into account: reading them again takes a few seconds."""
QUEUE_ENDS_INTERVAL_S = 10.0
PROBE_MARGIN_BYTES = 1024
"""Added to the body of a refused message: its header, topic and properties."""
_DEFAULT_STORE_HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")

_QUEUES_PER_TURN = 1000
"""Queues that are looked at in one turn: less than a millisecond."""


def _is_of_official_broker(abort: bytes | None) -> bool:
    """Tell whether the abort file, of which this is the content, is from an official broker that was killed.

    It is empty there, or since 5.0 holds the number of the process. This broker names the boot of the machine in it.
    """
    return abort is not None and (not abort or abort.isdigit())


def may_have_lost_power(files: Files, abort: bytes | None) -> bool:
    """Tell whether what was not flushed may be lost: the abort file, of this content, does not name this boot."""
    boot = files.boot_id().encode()
    return abort is not None and (not boot or abort != boot)


class MessageStore:
    """Commit log, consume queues, index and checkpoint of one broker, in the official file formats.

    Create one with `open`; the constructor alone does not recover. ``store_host`` is the packed address that stored
    messages name as their broker. ``crashed``: the last run did not close the store cleanly, so that messages which
    consumers have read may be lost, if they had not been flushed. ``flushes`` runs all flushes, until one fails.
    ``disk_full`` is set by `delete_expired`; while it is True the broker refuses messages. ``refusal`` is the reason of
    the last refusal for lack of room, None once there is room again for a message of that size (`probe_room`); smaller
    ones may be stored meanwhile. ``check_append``, if any, is called before each append, and may refuse it by raising
    StoreFull.
    """

    def __init__(self, config: StoreConfig, files: Files, clock: Clock) -> None:
        self.config = config
        self.files = files
        self.clock = clock
        self.store_host = _DEFAULT_STORE_HOST
        self.disk_full = False
        self.refusal: str | None = None
        self.check_append: Callable[[], None] | None = None
        self._refused_bytes = 0
        # The log's beginning, and all else on which the file of queue ends depends, when it was last written.
        self._queue_ends_state: tuple[int, object] = (-1, None)
        self._next_queue_ends_s = 0.0
        self.crashed = False
        # True if the process before was killed, in this boot: what it wrote is all there, flushed or not.
        self.was_killed = False
        self.commit_log = CommitLog(
            files, config.commit_log_path, config.commit_log_file_bytes, config.reserve_commit_log_bytes,
            after_roll=self._keep_within_bytes,
        )  # fmt: skip
        self._unlock_folder = files.lock(config.root + "/lock")
        try:
            forget_cached_files(config, files)
            finish_cut(config, files)
            self._checkpoint = StoreCheckpoint(files, config.checkpoint_path)
        except BaseException:
            self._unlock_folder()
            raise
        self.index = MessageIndex(
            files, config.index_path, self.commit_log, config.index_slots, config.index_entries, clock,
            config.max_keys_per_message, self._checkpoint.announce_index_end,
        )  # fmt: skip
        self._queue_set = QueueSet(config, files)
        self._queues = self._queue_set.by_key
        self._writers: Mapping[tuple[str, int], QueueWriter] = self._queues
        self._deleted_topics = DeletedTopics(files, config.root)
        self._retention = Retention(config, files, clock, self.commit_log, self.index, self._checkpoint)
        self._now_ms = clock.now_ms
        self._max_message_bytes = config.max_message_bytes
        self.flushes = FlushGuard(config, files, self.commit_log.refuse_appends)
        self._flush_lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()
        self._closed = False
        # Store timestamp, in ms, of the last message that has its queue entry; None where all have theirs at once.
        self.dispatched_until_ms: int | None = None

    @classmethod
    def open(cls, config: StoreConfig, files: Files | None = None, clock: Clock | None = None) -> Self:
        """Open or create the store in ``config.root``, and recover it if it was not closed cleanly.

        Raises StoreInUse while another process has it open, CorruptionError when durable messages are damaged,
        RocksDBStore for queues or tables in RocksDB, FlushFailed when the disk cannot be written.
        """
        files = files or DiskFiles()
        refuse_rocksdb(files, config.root)
        store = cls(config, files, clock or SystemClock())
        try:
            store.flushes.run(store._recover)
        except BaseException:
            store._release()
            raise
        return store

    def _recover(self) -> None:
        # The abort file names the boot in which the store was last opened. After another boot, or an unknown one, what
        # was not flushed may be lost; so it may be where a failed flush or a rebuild has replaced that name.
        last_boot = self.files.read_small(self.config.abort_path)
        self.crashed = crashed = last_boot is not None
        power_cut = may_have_lost_power(self.files, last_boot)
        self.was_killed = crashed and not power_cut
        if crashed:
            log.warning("store was not closed cleanly, recovering", extra={"root": self.config.root})
        checkpoint = self._checkpoint
        durable = DurableState(
            crashed,
            power_cut,
            checkpoint.safe_timestamp,
            # An official broker keeps there up to where replicas have the log. Entries may end before.
            0 if _is_of_official_broker(last_boot) else checkpoint.confirm_offset,
            confirmed_until=checkpoint.confirm_offset,
            rebuilding=(last_boot or b"").startswith(REBUILDING),
            queue_ranges=self._read_queue_ends(last_boot),
        )
        recovery = Recovery(
            self.config, self.files, self.commit_log, self._queue_set, durable, self._deleted_topics
        )
        recovery.run()
        self._take_over(recovery)
        # Only now is it known where the log ends: what was cut off will be written again, with other messages.
        # At a slave it comes again as it was: the messages of a topic that the master deleted are still to come.
        log_end = None if self.config.follows_master else self.max_physical_offset
        self._deleted_topics.settle(self.min_physical_offset, log_end)
        if self.config.message_index_enable:
            unchanged_before_ms = checkpoint.index_flushed_until if power_cut else None
            self.index.load(crashed=crashed, unchanged_before_ms=unchanged_before_ms)
        # The checkpoint before the abort file, which says until then that the checkpoint's word on queues is not true.
        if crashed or recovery.rebuilt:
            self.write_checkpoint()
        forget_cut(self.config, self.files)
        self._mark_open()
        data = {"root": self.config.root, "end": self.max_physical_offset, "queues": len(self._queues)}
        log.info("store opened", extra=data)

    def _take_over(self, recovery: Recovery) -> None:
        """Note what recovery has found out. Here nothing: all messages have their entries."""

    def _read_queue_ends(self, last_boot: bytes | None) -> QueueRanges:
        """Return the last ends of queues that were noted; nothing after a crash of an official broker."""
        if _is_of_official_broker(last_boot):
            return QueueRanges()
        # Without a time the checkpoint is lost: then it cannot say either that another broker has used the store.
        checkpoint_ms = self._checkpoint.log_timestamp or None if last_boot is None else None
        return read_queue_ends(self.files, self.config.root, checkpoint_ms)

    def _mark_open(self) -> None:
        """Write the abort file, which names this boot of the machine.

        `close` removes it; if it exists when the store is opened, the last run crashed.
        """
        try:
            self.files.write_small(self.config.abort_path, self.files.boot_id().encode())
        except StoreFull:
            # An empty file serves as well, and a store on a full disk can still be read.
            self.files.write_small(self.config.abort_path, b"")

    def _keep_within_bytes(self) -> None:
        self._retention.keep_within_bytes()

    @property
    def was_used(self) -> bool:
        """True if the store holds messages, or held some that have expired."""
        return self.commit_log.max_offset > self.commit_log.file_bytes * self.config.start_at_second_file

    def reconfigure(self, config: StoreConfig) -> None:
        """Apply changed `LIVE_SETTINGS`; all others stay as they were when the store was opened."""
        changed = {name: getattr(config, name) for name in LIVE_SETTINGS}
        self.config = self._retention.config = replace(self.config, **changed)
        self._max_message_bytes = self.config.max_message_bytes

    def append(self, message: NewMessage[Any]) -> Appended:
        """Store one message and make it readable; return (queue offset, physical offset, bytes, store timestamp in ms).

        Half messages and rolled back ones get no queue entry. The message is durable once a later `flush` has returned.
        Raises MessageIllegal, StoreFull; then nothing has changed.
        """
        if self.check_append is not None:
            self.check_append()
        topic, queue_id = message.topic, message.queue_id
        queue = self._writers.get((topic, queue_id)) or self._create_writer(topic, queue_id)
        try:
            return append_message(self.commit_log, queue, message, self._now_ms(), self._max_message_bytes)
        except StoreFull as error:
            self._note_refusal(error, len(message.body))
            raise

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
        """Store a batch body's messages; return (first queue offset, physical offsets, store timestamp in ms).

        ``properties_suffix`` is encoded properties that are appended to every message's own. Raises MessageIllegal or
        StoreFull, and then nothing has changed.
        """
        if self.check_append is not None:
            self.check_append()
        queue = self._writers.get((topic, queue_id)) or self._create_writer(topic, queue_id)
        try:
            return append_many(
                self.commit_log, queue, store_host or self.store_host, self._now_ms(), batch_body,
                sys_flag, born_timestamp,
                born_host, reconsume_times, self._max_message_bytes, properties_suffix,
            )  # fmt: skip
        except StoreFull as error:
            self._note_refusal(error, len(batch_body))
            raise

    def _create_writer(self, topic: str, queue_id: int) -> QueueWriter:
        """Return what appends write a queue's entries to, on their first one. Raises MessageIllegal, StoreFull."""
        return self._queue_set.create(topic, queue_id)

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
        """Append whole stored messages under the queue offsets they carry, from ``offset`` on.

        Messages that the queue already has are skipped. With ``reset`` a queue that ends before ``offset`` drops its
        entries and begins anew at ``offset``. Store host and physical offset become this broker's; for the store
        timestamp see `offset_preserving_append`.

        Raises MessageIllegal, OffsetGap or QueueDiverged, and then nothing has changed; or StoreFull, and then the
        messages that fitted are stored.
        """
        if self.check_append is not None:
            self.check_append()
        messages = parse_stored_messages(body, topic, queue_id, offset)
        queue = self._find_queue(topic, queue_id) or self._queue_set.create(topic, queue_id)
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
            try:
                time_ms = append_preserving_offset(self.commit_log, queue, host, message, stored, time_ms)
            except StoreFull as error:
                self._note_refusal(error, message.size)
                raise
        return OffsetPreservingResult(queue.next_offset, len(new), sum(message.size for message in new))

    def _find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue for reading, after hiding the entries of deleted messages; None if it was never written to."""
        queue = self._queues.get((topic, queue_id))
        if queue is not None and queue.expired_before < self.commit_log.first_base:
            queue.delete_before(self.commit_log.first_base)
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
        """Return messages of a queue from ``offset`` on, as slices of the commit log.

        ``predicate`` tests the tags code of the queue entry, ``message_predicate`` the whole stored message.
        ``batch_predicate`` selects the same messages as ``message_predicate``, many at once. None lets all pass.
        """
        queue = self._find_queue(topic, queue_id)
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
            self.clock.monotonic,
        )

    def read_tags_codes(self, topic: str, queue_id: int, start: int, end: int) -> list[int] | None:
        """Return the tag hashes of messages [start, end) of a queue; None if their entries are not all in one file."""
        queue = self._find_queue(topic, queue_id)
        if queue is None or start < queue.min_offset:
            return None
        if start == end:
            return []
        encoded = queue.read_entries(start, end - start)
        if len(encoded) < (end - start) * QUEUE_ENTRY_BYTES:
            return None
        return [code for _, _, code in QUEUE_ENTRY.iter_unpack(encoded)]

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first readable queue offset, inclusive; 0 for an unknown queue."""
        queue = self._find_queue(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last readable message; 0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.next_offset

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message will get; 0 for an unknown queue."""
        return self.max_offset(topic, queue_id)

    def message_at(self, physical_offset: int) -> memoryview | None:
        """Return the stored message that starts at a physical offset, not copied; None when none does."""
        return self.commit_log.message_at(physical_offset)

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Return True if a queue was ever written to."""
        return (topic, queue_id) in self._queues

    @property
    def queues_by_key(self) -> Mapping[tuple[str, int], QueueWriter]:
        """The queues by topic and queue id, for native code that appends to them in place of `append`."""
        return self._writers

    def queue_keys(self) -> Iterable[tuple[str, int]]:
        """Return topic and queue id of every queue that was ever written to."""
        return list(self._queues)

    def topics(self) -> set[str]:
        """Return the topics that have at least one queue."""
        return self._queue_set.topics()

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the queue offset for a store time, within [min, max]; see `time_search.offset_by_time`."""
        queue = self._find_queue(topic, queue_id)
        return 0 if queue is None else offset_by_time(self.commit_log, queue, timestamp_ms, boundary)

    def store_timestamp_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store timestamp in ms of the message at a queue offset; -1 when there is none."""
        queue = self._find_queue(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.next_offset:
            return -1
        return store_timestamp_at(self.commit_log, queue, offset)

    def earliest_store_timestamp(self, topic: str, queue_id: int) -> int:
        """Return the store timestamp in ms of the oldest message of a queue; -1 when the queue is empty."""
        return self.store_timestamp_at(topic, queue_id, self.min_offset(topic, queue_id))

    def physical_offset_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the physical offset of the message at a queue offset; like the official broker, 0 if there is none."""
        queue = self._find_queue(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.next_offset:
            return 0
        return queue.read_entry(offset)[0]

    def build_index(self, limit_messages: int = 1000, cost_in_python: int = 1) -> int:
        """Index at most ``limit_messages`` more messages; return the number read (`MessageIndex.index_messages`)."""
        if not self.config.message_index_enable:
            return 0
        return self.index.index_messages(limit_messages, cost_in_python)

    def query_in_slices(
        self, topic: str, key: str, max_messages: int, begin_ms: int, end_ms: int, key_type: str = ""
    ) -> Iterator[int | None]:
        """Yield the physical offsets that `query_by_key` returns, and None where other tasks may run.

        This does not wait for the index: messages that are not indexed yet are searched by `find_unindexed`.
        """
        limit = min(max_messages, self.config.max_query_messages)
        if not self.config.message_index_enable or limit <= 0:
            return
        indexed_until, count = self.index.next_offset, 0
        for physical_offset in find_unindexed(
            self.commit_log,
            indexed_until,
            topic,
            key,
            key_type,
            begin_ms,
            end_ms,
            self.config.max_keys_per_message,
        ):
            yield physical_offset
            if physical_offset is not None:
                count += 1
                if count == limit:
                    return
        yield from self.index.find_offsets_in_slices(
            topic, key, limit - count, begin_ms, end_ms, key_type, before=indexed_until
        )

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
        """Return physical offsets of messages that may carry a key or unique key, newest first.

        With ``catch_up`` the index is brought up to date first, which may take seconds. Hashes can collide: the caller
        compares the keys. See `MessageIndex.find_offsets`.
        """
        try:
            while catch_up and self.build_index(10_000):
                pass
        except StoreFull:
            # A full disk has no room for the index of what is stored; the messages themselves can be searched.
            offsets = self.query_in_slices(topic, key, max_messages, begin_ms, end_ms, key_type)
            return [offset for offset in offsets if offset is not None]
        limit = min(max_messages, self.config.max_query_messages)
        return self.index.find_offsets(topic, key, limit, begin_ms, end_ms, key_type)

    def skip_offsets(self, topic: str, queue_id: int, next_offset: int) -> None:
        """Give the next message of a queue at least this offset; holes stand for the lost messages before it.

        Raises StoreFull.
        """
        queue = self._find_queue(topic, queue_id) or self._queue_set.create(topic, queue_id)
        queue.append_holes(next_offset - queue.next_offset, max(0, self.commit_log.max_offset - 1))

    def delete_topic(self, topic: str) -> int:
        """Remove all queues of a topic; return their number. Its messages stay in the log until they expire.

        Raises StoreFull or OSError, and then nothing has changed. Source: DefaultMessageStore.deleteTopics, 5.4.0.
        """
        before = len(self._queues)
        list(self.delete_topic_in_slices(topic))
        return before - len(self._queues)

    def delete_topic_in_slices(self, topic: str) -> Generator[None, None, None]:
        """Remove all queues of a topic like `delete_topic`; other tasks may run at each yield.

        From the call to the last slice the topic refuses messages with StoreFull. The first slice waits for the disk,
        and may run in another thread. Closing the iterator after it deletes the rest.
        """
        return self._queue_set.delete_topic(topic, self._deletion_note(topic))

    def _deletion_note(self, topic: str) -> Callable[[], None]:
        """Return the function that records a deletion of a topic as of now. It blocks; raises StoreFull, OSError."""
        log_start, log_end = self.min_physical_offset, self.max_physical_offset
        return partial(self._deleted_topics.add, topic, log_start, log_end, self._now_ms())

    def announce_deletions(self, topics: Iterable[str]) -> None:
        """Record durably that topics are about to be deleted; blocks. Raises StoreFull, OSError. Thread safe."""
        self._deleted_topics.announce(topics)

    @property
    def announced_deletions(self) -> frozenset[str]:
        """Topics whose deletion was announced and not carried out, by this process or a killed one."""
        return self._deleted_topics.announced

    def forget_announced_deletions(self) -> None:
        """Forget the announcements of a killed process. Raises StoreFull, OSError."""
        self._deleted_topics.forget_announced()

    def is_for_deleted_topic(self, topic: str, physical_offset: int, store_timestamp: int) -> bool:
        """Return True if a message or record at a physical offset was stored for a topic that was deleted after that.

        Such a message may wait in a queue of another topic: delayed, for a timer or for the end of its transaction.
        """
        return self._deleted_topics.has(topic.encode(), physical_offset, store_timestamp)

    def may_have_deleted_messages(self, topic: str) -> bool:
        """Return True if a topic of this name was deleted, and the log may still have its messages."""
        return self._deleted_topics.may_concern(topic.encode(), self.min_physical_offset)

    def topic_deleted_ms(self, topic: str) -> int | None:
        """Return the wall time (ms) of the last deletion of a topic of this name; None if there is no note of one."""
        return self._deleted_topics.time_ms(topic)

    def delete_expired(self, manual: bool = False) -> int:
        """Remove expired files; return the number of commit log files removed. See `Retention.delete_expired`."""
        deleted = self.delete_expired_log_files(manual)
        for _ in self.hide_expired_entries():
            pass
        return deleted

    def hide_expired_entries(self) -> Iterator[None]:
        """Remove queue files and hide queue entries whose messages were deleted; other tasks may run at each yield.

        A store that is closed meanwhile removes no more: its files may have been opened again.
        """
        if self._closed:
            return
        for _ in self._queue_set.delete_before(self.commit_log.first_base):
            yield
            if self._closed:
                return

    def delete_expired_log_files(self, manual: bool = False, max_files: int | None = None) -> int:
        """Remove expired commit log files; return their number. `hide_expired_entries` should follow.

        Files that no checkpoint covers yet stay: `expiry_awaits_checkpoint`. So do all files once the store is closed.
        """
        if self._closed:
            return 0
        used_percent = self._retention.disk_used_percent()
        self._set_disk_full(self._retention.is_disk_full(used_percent))
        deleted = self._retention.delete_expired(used_percent, manual, max_files)
        self.probe_room()
        return deleted

    @property
    def expiry_awaits_checkpoint(self) -> bool:
        """True if the last call kept an expired log file until `write_checkpoint` covers its messages."""
        return self._retention.awaits_checkpoint and not self._closed

    @property
    def trouble(self) -> str | None:
        """The reason why messages are refused at present, as clients may see it; None while all are stored."""
        if self.flushes.failure is not None:
            return self.flushes.failure.reason
        if self.disk_full:
            return f"the disk is fuller than {self.config.disk_warning_percent} percent"
        return self.refusal

    def _note_refusal(self, error: StoreFull, size: int) -> None:
        """Record that a message was refused for lack of room; a failed flush has its own place in log and metrics."""
        if isinstance(error, FlushFailed):
            return
        if self.refusal is None:
            extra = {"bytes": size, "reason": str(error)}
            log.warning("no room for a message, refusing those of its size until there is", extra=extra)
        self._refused_bytes = size if self.refusal is None else max(size, self._refused_bytes)
        self.refusal = error.reason

    def probe_room(self) -> None:
        """Forget the last refusal if the disk has room again for a message of its size. Blocks for an allocation."""
        if self.refusal is None:
            return
        try:
            self.commit_log.probe_room(self._refused_bytes + PROBE_MARGIN_BYTES)
        except (StoreFull, OSError):
            return
        log.info("room for messages of the refused size again", extra={"bytes": self._refused_bytes})
        self.refusal = None

    def _set_disk_full(self, full: bool) -> None:
        if full and not self.disk_full:
            log.warning("disk full, refusing messages", extra={"path": self.config.commit_log_path})
        if self.disk_full and not full:
            log.info("disk has room again", extra={"path": self.config.commit_log_path})
        self.disk_full = full

    # -- replicas (`replica_log`) --

    @property
    def has_progress_of_cut(self) -> bool:
        """True after the log was cut, until `forget_progress_of_cut`: saved progress may be beyond its end."""
        return self.files.read_small(progress_path(self.config)) is not None

    def forget_progress_of_cut(self) -> None:
        """Record, durably, that all saved progress was limited to the ends of the queues. Raises OSError."""
        path = progress_path(self.config)
        self.files.delete(path)
        self.files.flush(path)

    def entry_dispatch(self) -> EntryDispatch:
        """Return the part that appends the queue entries of messages which a replica has received."""
        return EntryDispatch(self.config, self._queue_set, self._deleted_topics)

    @property
    def queue_removals(self) -> int:
        """Number that changes whenever queues were removed, or a deletion was noted."""
        return self._queue_set.removals + self._deleted_topics.deletions_begun

    def flush_queue_files_later(self, paths: list[str]) -> None:
        """Have the next checkpoint flush queue files in which entries were erased, and the deletion of queue files."""
        self._queue_set.note_changed_paths(paths)

    @contextmanager
    def forget_queue_ends(self) -> Iterator[None]:
        """Let a queue begin anew, within the context, at a lower offset than the file of queue ends says."""
        with self._deleted_topics.hold_queue_ends():
            self._deleted_topics.forget_queue_ends()
            self.flush_queue_files_later([queue_ends_path(self.config.root)])
            yield

    def queue_ends(self) -> dict[tuple[str, int], int]:
        """Return the offset that the next message of each queue gets, for `begin_empty_queues_at` of a replica."""
        return {(queue.topic, queue.queue_id): queue.next_offset for queue in self._queue_set.queues()}

    def ends_of_empty_queues(self) -> Iterator[tuple[str, int, int] | None]:
        """Yield topic, queue id and next offset of each queue whose messages have all expired.

        None is yielded in between, where other tasks may have their turn.
        """
        turn_cost = 0
        for queue in self._queue_set.queues():
            if self._queues.get((queue.topic, queue.queue_id)) is not queue:
                continue  # its topic was deleted meanwhile
            if queue.expired_before < self.commit_log.first_base:
                # As after opening the store: a queue without messages looks like one that has all of them.
                queue.delete_before(self.commit_log.first_base)
                turn_cost += CHECKED_PER_EXPIRY
            turn_cost += 1
            if 0 < queue.next_offset <= queue.min_offset:
                yield queue.topic, queue.queue_id, queue.next_offset
            if turn_cost >= _QUEUES_PER_TURN:
                turn_cost = 0
                yield None

    def begin_empty_queues_at(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Let queues without any message continue at these offsets, which the former master gave out; blocks.

        A replica that began in the middle of the log knows nothing of queues whose messages had all expired by then.
        Raises StoreFull.
        """
        for (topic, queue_id), end in ends.items():
            queue = self._find_queue(topic, queue_id)
            if self.may_have_deleted_messages(topic):
                continue  # it began anew, and the log tells where
            if end > 0 and (queue is None or queue.next_offset == 0):
                (queue or self._queue_set.create(topic, queue_id)).restart_at(end)

    def begin_log_at(self, physical_offset: int) -> None:
        """Let the log, which must be empty, begin at the start of a file, durably; blocks.

        Each step leaves an empty store: without confirm offset, without queues and notes of an earlier log, without log
        file, with the new first file. Raises StoreError if the log is not empty or no file can start there, StoreFull,
        FlushFailed.
        """
        log_file_bytes, first_base = self.commit_log.file_bytes, self.commit_log.first_base
        if self.commit_log.max_offset != first_base:
            raise StoreError(f"the log is not empty, it cannot begin at {physical_offset}")
        if physical_offset < 0 or physical_offset % log_file_bytes:
            raise StoreError(f"no log file of {log_file_bytes} bytes starts at {physical_offset}")
        if physical_offset != first_base:
            with self._checkpoint_lock, self._flush_lock:
                self.flushes.run(lambda: self._begin_log_at(physical_offset))

    def _begin_log_at(self, physical_offset: int) -> None:
        checkpoint, log_files = self._checkpoint, self.commit_log
        checkpoint.log_timestamp = checkpoint.queues_timestamp = checkpoint.confirm_offset = 0
        checkpoint.write()
        # Queues and index may hold entries of messages that had expired before.
        delete_queue_ends(self.files, self.config.root)
        paths = [queue_ends_path(self.config.root)]
        for queue in self._queue_set.queues():
            paths += self._queue_set.discard(queue)
        paths += self.index.begin_anew(physical_offset)
        self._deleted_topics.forget_after(-1)
        self.files.flush_many(paths)
        old_path = log_files.path(log_files.first_base)
        log_files.close_file(log_files.first_base)
        self.files.delete(old_path)
        self.files.flush(old_path)
        log_files.start_at(physical_offset, physical_offset)
        self.files.flush(log_files.path(physical_offset))

    def missing_deletions(self, notes: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Return those of a master's notes that `note_deletions` has to carry out here.

        Where the messages have all expired, only a queue may be left of the topic: a later topic of the name would
        continue where it ended.
        """
        log_start = self.min_physical_offset
        return {
            topic: note
            for topic, note in notes.items()
            if self._deleted_topics.deletion_of(topic) != note
            and (note[0] > log_start or self._has_queue_of_before(topic, note[0]))
        }

    def _has_queue_of_before(self, topic: str, log_end: int) -> bool:
        first_offsets = (queue.first_physical_offset() for queue in self._queue_set.queues_of(topic))
        return any(offset is not None and offset < log_end for offset in first_offsets)

    def note_deletions(self, notes: Mapping[str, tuple[int, int]]) -> Iterator[None]:
        """Delete the messages of topics before a physical offset, as the master did at a wall time (ms).

        The first slice waits for the disk, and may run in another thread; if it raises StoreFull or OSError, nothing
        has changed. Other tasks may run at each yield. May be repeated. A queue that began anew after the deletion
        stays.
        """
        added = {
            topic: note for topic, note in notes.items() if self._deleted_topics.deletion_of(topic) != note
        }
        if not added:
            return
        with self._deleted_topics.hold_queue_ends():
            self._deleted_topics.add_all(added, self.min_physical_offset)
            yield
            for topic in added:
                for queue in self._queue_set.queues_of(topic):
                    if self._deleted_topics.has_queue(queue, self.commit_log):
                        self._queue_set.note_changed_paths(self._queue_set.discard(queue))
                    yield

    @property
    def deletion_notes(self) -> dict[str, tuple[int, int]]:
        """End of the log and wall time (ms) of each topic's last deletion, for `note_deletions` of a replica."""
        return self._deleted_topics.notes()

    @property
    def durable_offset(self) -> int:
        """The physical offset below which everything is on the disk."""
        return self.commit_log.durable_offset

    @property
    def readable_until(self) -> int:
        """The physical offset below which all messages have their queue entries."""
        return self.commit_log.readable_until

    @property
    def min_physical_offset(self) -> int:
        """The first physical offset still stored."""
        return self.commit_log.first_base

    @property
    def max_physical_offset(self) -> int:
        """The physical offset the next message will get."""
        return self.commit_log.max_offset

    def flush(self) -> int:
        """Block until every message appended before the call is durable; return the physical offset at their end.

        Thread safe; another thread may append at the same time. Raises FlushFailed, and then every later call does.
        """
        with self._flush_lock:
            return self.flushes.run(self.commit_log.flush)

    def write_checkpoint(self) -> None:
        """Block until log, queues and index are on the disk, then record that in the checkpoint file.

        Thread safe. Does nothing once the store is being closed. Raises FlushFailed as `flush` does.
        """
        with self._checkpoint_lock:
            if not self._closed:
                self.flushes.run(self._write_checkpoint)

    def _write_checkpoint(self) -> None:
        # Read the time first: every message appended from here on has a later timestamp. So has every message that
        # gets its entry after the last one, as far as the clock of its master is not set back.
        until_ms = self._now_ms() - 1
        if self.dispatched_until_ms is not None:
            until_ms = min(until_ms, self.dispatched_until_ms)
        confirm_offset = self.commit_log.readable_until
        if not confirm_offset:
            # A confirm offset of 0 means that it is unknown, and would not limit what the time vouches for.
            until_ms = 0
        deletions_begun = self._deleted_topics.deletions_begun
        ends = [(queue, queue.next_offset) for queue in self._queue_set.queues()]
        deleted = self._queue_set.deleted_paths()
        self.flush()
        self._flush_queues([(queue, end) for queue, end in ends if queue.flushed_offset < end], deleted)
        self._queue_set.forget_deleted_paths(len(deleted))
        checkpoint = self._checkpoint
        checkpoint.index_flushed_until = self.index.flush()
        safe_ms = self._limit_to_indexed(until_ms, confirm_offset)
        checkpoint.log_timestamp = checkpoint.queues_timestamp = safe_ms
        checkpoint.confirm_offset = confirm_offset
        checkpoint.write()
        self._note_queue_ends(ends, deletions_begun)

    def _note_queue_ends(self, ends: list[tuple[ConsumeQueue, int]], deletions_begun: int) -> None:
        """Write the ends of queues if there are new ones, so that recovery notices a lost folder after a crash too.

        At once after messages have expired: the log does not tell any more how far their queues had come, and an idle
        broker writes no later checkpoint. Otherwise at most every `QUEUE_ENDS_INTERVAL_S`, because there may be
        thousands of queues. ``ends`` are on the disk. A store in memory is never recovered.
        """
        if self.config.retained_bytes:
            return
        now_s = self.clock.monotonic()
        log_start = self.commit_log.first_base
        if log_start == self._queue_ends_state[0] and now_s < self._next_queue_ends_s:
            return
        are_hidden = all(queue.expired_before >= log_start for queue, _ in ends)
        keys = {(queue.topic, queue.queue_id) for queue, end in ends if end}
        state = (log_start, (deletions_begun, are_hidden, keys))
        if state == self._queue_ends_state:
            return
        self._queue_ends_state, self._next_queue_ends_s = state, now_s + QUEUE_ENDS_INTERVAL_S
        content = encode_queue_ends(ends, log_start, self._checkpoint.log_timestamp)
        # A topic is deleted meanwhile, or a queue begins anew, without waiting for the disk here.
        self._deleted_topics.run_unless_deleted_since(
            deletions_begun, lambda: replace_queue_ends(self.files, self.config.root, content)
        )
        flush_queue_ends(self.files, self.config.root)

    def _limit_to_indexed(self, until_ms: int, confirm_offset: int) -> int:
        """Return the time up to which all messages below a physical offset are indexed, at most ``until_ms``.

        An official broker that recovers the store indexes only messages stored after the checkpoint's time, so the time
        does not run ahead of the index. But recovery reads the log from that time on, so the time is not held back for
        an index that lags by more than MAX_COVERED_BACKLOG_BYTES.
        """
        index = self.index
        backlog_bytes = confirm_offset - index.next_offset if self.config.message_index_enable else 0
        if 0 < backlog_bytes <= MAX_COVERED_BACKLOG_BYTES:
            return min(until_ms, index.indexed_until_ms)
        return until_ms

    def _flush_queues(self, ends: list[tuple[ConsumeQueue, int]], deleted: list[str]) -> None:
        self.files.flush_many([*(path for queue, _ in ends for path in queue.unflushed_paths()), *deleted])
        for queue, end in ends:
            queue.flushed_offset = end

    def close(self, clean: bool = True, index_messages: int = 200_000) -> None:
        """Close the store. With ``clean`` everything is flushed first and the next opening need not recover.

        An official broker that opens the store next does not index messages that it did not write itself, so the index
        is brought up to date here, by at most ``index_messages``. After a failed flush nothing is flushed any more, and
        the next opening recovers.
        """
        # A thread that is late with a checkpoint must not write into files that may be open again by then.
        with self._checkpoint_lock:
            if self._closed:
                return
            self._closed = True
        try:
            if clean and self.flushes.failure is None:
                self._index_remaining(index_messages)
                self.flushes.run(self._write_checkpoint)
                time_ms = self._checkpoint.log_timestamp
                log_start = self.commit_log.first_base
                last_ends = [(queue, queue.next_offset) for queue in self._queue_set.queues()]
                write_queue_ends(
                    self.files, self.config.root, encode_queue_ends(last_ends, log_start, time_ms)
                )
                self.files.delete(self.config.abort_path)
            elif clean:
                with suppress(FlushFailed):
                    self.flushes.check()
                log.error(
                    "a flush failed: the store is closed as it is, and the next start recovers it",
                    extra={"root": self.config.root},
                )
        finally:
            self._release()

    def _index_remaining(self, limit_messages: int) -> None:
        try:
            self.build_index(limit_messages)
        except StoreFull as error:  # the next opening continues from there
            log.warning("messages not indexed", extra={"reason": str(error)})

    def _release(self) -> None:
        self.index.close()
        self._queue_set.close()
        self.commit_log.close()
        self._checkpoint.close()
        self._unlock_folder()
