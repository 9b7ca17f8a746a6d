"""Revives popped messages: those that are not acked in time go to the group's retry topic.

Problem: a popped message belongs to its consumer until its invisible time ends. The broker must remember every
outstanding pop, even after a crash, without any file besides the commit log.

1. Before a pop is answered, `Reviver` writes a checkpoint to a revive queue and keeps it in memory with a deadline.
2. For an ack it writes an ack record, and marks the message as acked in the checkpoint in memory. A pop without
   unacked messages is dropped from memory.
3. At the deadline it writes each unacked message to the retry topic, then one ack record for all of them.
4. An offset per revive queue, saved with the consumer offsets, says before which record no pop is outstanding. When
   the oldest checkpoint falls too far behind, it is written again, so that a start reads a bounded number of records.

Invariant: the outstanding pops in memory are the result of applying all records from the saved offset on. A start
applies them again. If the broker crashes after step 1, the messages stay invisible until their time ends. A crash
within step 3, between the retry messages and the ack record, revives the messages twice. Records that this broker did
not write, such as those of an official broker's timer, are applied when they arrive. Consumer offsets are saved later
than pop records are written, so a start also moves each group's offset past the pops whose records are newer than the
saved offsets (`SEEN_GROUP`).

Bounds: a record that cannot be used is skipped (`damaged_records.py`), and one pop holds at most 32 messages, so the
memory of a pop is bounded. At ``maxOutstandingPops`` the oldest pop is revived before its time; a consumer may then
see its messages twice, and none is lost. Acks of unknown pops leave nothing in memory.
"""

import logging
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from codec import properties as keys
from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from codec.hosts import pack_host
from codec.message import Message, decode_message
from codec.topics import RETRY_PREFIX
from gateway.broker.consumers.broker_tables import BrokerTables
from gateway.broker.messages.damaged_records import RecordKind, RecordLocation
from gateway.broker.messages.message_services import MessageServices
from gateway.broker.messages.message_writer import MessageAppender, MessageWriter, count_attempt
from gateway.broker.pop.checkpoint import AckRecord, PopCheckpoint, PopKey
from gateway.broker.pop.deadlines import Deadline, Deadlines
from gateway.broker.pop.receipts import REVIVE_GROUP, SEEN_GROUP, original_topic, pop_retry_topic
from gateway.broker.pop.revive_log import ReviveLog, ReviveRecord
from gateway.broker.waiting.long_poll import LongPolls
from gateway.config.process import BrokerConfig
from gateway.config.replication import Role
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from storage.append import NewMessage
from storage.errors import CorruptionError

log = logging.getLogger(__name__)

TIMED_ACKS_MS: Final = 3_000
"""Extra wait after a pop's time for acks that an official broker's timer still delivers.

Source: PopReviveService.mergeAndRevive waits for more than 2 s of later records, to the second.
"""
RETRY_QUEUES: Final = 1
POPS_PER_SLICE: Final = 256
"""Pops of a deleted topic that are dropped in one turn."""
KEYS_PER_SLICE: Final = 2000
"""Keys of offsets that came or went, and are taken in one turn."""
RECORDS_PER_SLICE: Final = 100
"""Records that are cut, and looked at in one turn."""
MAX_RECORDS_BEHIND: Final = 10_000
"""A checkpoint further from its queue's end, in records, is written again, so that a start reads no more than this."""
REPUT_INTERVALS_S: Final = (
    10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""Added invisible times of a message that the retry topic refused. Source: PopReviveService, 5.4.0."""


class OutstandingPop:
    """A pop with messages that are not acked."""

    __slots__ = ("checkpoint", "deadline", "record_offset")

    def __init__(self, checkpoint: PopCheckpoint, record_offset: int, deadline: Deadline) -> None:
        self.checkpoint = checkpoint
        self.record_offset = record_offset
        self.deadline = deadline


class ReviveQueue:
    """One revive queue: its outstanding pops, in the order of their records, and the number of records read.

    Records before ``saved_record`` are included in the saved offsets of groups.
    """

    __slots__ = ("committed", "next_record", "outstanding", "saved_record")

    def __init__(self, next_record: int, saved_record: int) -> None:
        self.outstanding: dict[PopKey, OutstandingPop] = {}
        self.next_record = next_record
        self.saved_record = saved_record
        self.committed = next_record - 1

    def done_offset(self) -> int:
        """Return the offset of the last record before which no pop is outstanding."""
        first = next(iter(self.outstanding.values()), None)
        return (self.next_record if first is None else first.record_offset) - 1


class ReviveProgress(NamedTuple):
    """Progress of a revive queue: records from the oldest outstanding pop on, and the age of that pop."""

    queue_id: int
    records_behind: int
    oldest_age_ms: int


class Reviver:
    """Outstanding pops. Source: PopReviveService and PopBufferMergeService, 5.4.0.

    Deviation: outstanding pops are in memory as well, so that messages are revived at their time, not seconds later,
    and the revive topic is not scanned. The offset saved for the revive group is that of the last record that is done.
    """

    def __init__(
        self,
        config: BrokerConfig,
        tables: BrokerTables,
        services: MessageServices,
        writer: MessageWriter,
        deadlines: Deadlines,
    ) -> None:
        self.config = config
        self._store = services.store
        self._clock = services.store.clock
        self._hosts = services.hosts
        self._damaged = services.damaged
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._appender: MessageAppender = writer
        self._deadlines = deadlines
        self.log = ReviveLog(config, services, writer)
        self._count = 0
        self._revived = services.stats.revived
        self._outstanding_counts: dict[tuple[str, str, int], int] = {}
        self.popped_keys: set[str] = set()
        """Keys, as topic@group, of the offsets that pops have moved; no more than there are offsets."""
        self._changed_keys: set[str] = set()
        self._offsets.add_removal_listener(self._forget_key)
        self._queues = [self._open_queue(queue_id) for queue_id in range(config.pop.revive_queue_num)]
        for queue_id in range(config.pop.revive_queue_num):
            self.catch_up(queue_id)

    def prune_popped_keys(self, earlier: Iterable[str] = ()) -> Set[str]:
        """Return the keys of offsets that pops have moved, now or ``earlier``, without those that are gone."""
        self.popped_keys.update(earlier)
        missing_keys = self.popped_keys - self._offsets.table.keys()
        self.popped_keys -= missing_keys
        self._changed_keys |= missing_keys
        return self.popped_keys

    def take_changed_keys(self) -> Iterator[tuple[Set[str], Set[str]]]:
        """Yield the keys that `popped_keys` has got since they were last taken, and those that it has lost, in slices.

        Other tasks may run at each yield: a topic with 100,000 groups may have been deleted. Keys that change after the
        first slice was asked for are for the next call, since pops may come as fast as they are taken. So are those
        that are not taken because the iterator is closed.
        """
        keys = iter(list(self._changed_keys))
        while changed_keys := set(islice(keys, KEYS_PER_SLICE)):
            self._changed_keys -= changed_keys
            # A message may be prolonged whose group has no offset, or has none any more.
            self.popped_keys -= changed_keys - self._offsets.table.keys()
            yield changed_keys & self.popped_keys, changed_keys - self.popped_keys

    def _forget_key(self, key: str) -> None:
        if key in self.popped_keys:
            self.popped_keys.remove(key)
            self._note_changed_key(key)

    def _note_changed_key(self, key: str) -> None:
        if self.config.role is Role.MASTER:  # A slave's are never taken: it remembers what its master says.
            self._changed_keys.add(key)

    def count_outstanding(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of messages of a queue that a group popped and that are neither acked nor revived."""
        return self._outstanding_counts.get((topic, group, queue_id), 0)

    def queue_progress(self) -> Iterator[ReviveProgress]:
        """Yield how far each revive queue is done."""
        now_ms = self._clock.now_ms()
        for queue_id, queue in enumerate(self._queues):
            oldest = next(iter(queue.outstanding), None)
            age_ms = 0 if oldest is None else max(0, now_ms - oldest.pop_time)
            yield ReviveProgress(queue_id, max(0, queue.next_record - 1 - queue.done_offset()), age_ms)

    def _adjust_count(self, key: PopKey, change: int) -> None:
        queue = key.topic, key.group, key.queue_id
        if change > 0:
            name = f"{key.topic}@{key.group}"
            if name not in self.popped_keys:
                self.popped_keys.add(name)
                self._note_changed_key(name)
        count = self._outstanding_counts.pop(queue, 0) + change
        if count:
            self._outstanding_counts[queue] = count

    def __len__(self) -> int:
        return self._count

    def _open_queue(self, queue_id: int) -> ReviveQueue:
        """Return a revive queue positioned at the first record that was not done when the broker stopped."""
        done = self._offsets.query_offset(REVIVE_GROUP, self.log.topic, queue_id)
        saved = self._offsets.query_offset(SEEN_GROUP, self.log.topic, queue_id)
        end = self.log.end_offset(queue_id)
        return ReviveQueue(min(max(done + 1, 0), end), min(max(0, saved), end))

    def watch_queues(self, long_polls: LongPolls) -> None:
        """Apply records that others write from now on, such as those of a timer that an official broker had set."""
        long_polls.watch_topic(self.log.topic, self._catch_up_steps)

    def _catch_up_steps(self, queue_id: int) -> Iterator[None]:
        yield
        try:
            self.catch_up(queue_id)
        except CorruptionError as error:  # This runs at the end of requests, which it must not fail.
            log.error("revive queue cannot be read", extra={"queue_id": queue_id, "reason": str(error)})

    # -- pops and acks --------------------------------------------------------------------------------------

    def record_pop(self, queue_id: int, checkpoint: PopCheckpoint, *, is_repeated: bool = False) -> None:
        """Record a pop, first in the revive topic. ``is_repeated``: of messages that were popped before.

        Raises RequestError when the topic refuses the record, or when a pop with the same key is outstanding.
        """
        if not 0 <= queue_id < len(self._queues):
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"there is no revive queue {queue_id}")
        if checkpoint.key in self._queues[queue_id].outstanding:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "a pop of the same messages at the same time is out"
            )
        # Step 1, before the pop is answered: with the answer the group's offset moves past the messages, and without
        # the record a crash would lose them.
        self._write_checkpoint(queue_id, checkpoint, is_repeated=is_repeated)
        self._limit_outstanding(self._queues[queue_id])

    def _write_checkpoint(self, queue_id: int, checkpoint: PopCheckpoint, *, is_repeated: bool) -> None:
        record_offset = self.log.write_record(queue_id, checkpoint, is_repeated=is_repeated)
        self._add_outstanding(queue_id, checkpoint, record_offset)
        self._rewrite_oldest(queue_id, self._queues[queue_id])

    def unused_key(self, queue_id: int, key: PopKey) -> PopKey:
        """Return the key; if an outstanding pop has the same key, raise its pop time until it is unique."""
        while 0 <= queue_id < len(self._queues) and key in self._queues[queue_id].outstanding:
            key = key._replace(pop_time=key.pop_time + 1)
        return key

    def record_acks(self, queue_id: int, acks: AckRecord, invisible_time: int) -> None:
        """Record acks, first in the revive topic. Acks of revived messages are ignored.

        The checkpoint of an unknown pop may still be with the timer, put there by an official broker that used the
        store before. Its acks go through the timer too. Raises RequestError when the revive topic refuses the record.
        """
        if not 0 <= queue_id < len(self._queues):
            return
        queue = self._queues[queue_id]
        pending = queue.outstanding.get(acks.key)
        if pending is None:
            due_ms = acks.key.pop_time + invisible_time
            if self.config.store.timer_wheel_enable and due_ms > self._clock.now_ms():
                self.log.write_timed_acks(queue_id, acks, due_ms)
            return
        # Step 2. Repeated acks get no record: it would change nothing, and a start would have to read it.
        unacked = set(pending.checkpoint.unacked_offsets())
        acks.offsets = [offset for offset in acks.offsets if offset in unacked]
        if acks.offsets:
            self._skip_own_record(queue, self.log.write_record(queue_id, acks))
            self._apply_acks(queue, acks)

    def _add_outstanding(
        self, queue_id: int, checkpoint: PopCheckpoint, record_offset: int, wait_ms: int = 0
    ) -> None:
        queue = self._queues[queue_id]
        # A checkpoint that was written again (step 4) is read twice by a start: the later record replaces the first.
        outstanding = self._pop_outstanding(queue, checkpoint.key)
        if outstanding is not None:
            self._deadlines.cancel(outstanding.deadline)
            self._adjust_count(checkpoint.key, -len(outstanding.checkpoint.unacked_offsets()))
        self._adjust_count(checkpoint.key, len(checkpoint.unacked_offsets()))
        due_ms = checkpoint.revive_time + wait_ms
        deadline = self._deadlines.schedule(due_ms, partial(self._revive_pop, queue_id, checkpoint.key))
        queue.outstanding[checkpoint.key] = OutstandingPop(checkpoint, record_offset, deadline)
        self._count += 1
        self._skip_own_record(queue, record_offset)

    def _pop_outstanding(self, queue: ReviveQueue, key: PopKey) -> OutstandingPop | None:
        outstanding = queue.outstanding.pop(key, None)
        self._count -= outstanding is not None
        return outstanding

    def _limit_outstanding(self, queue: ReviveQueue) -> None:
        """Revive the oldest pop when there are too many: of this queue, or of the longest one."""
        if self._count <= self.config.limits.max_outstanding_pops:
            return
        if len(queue.outstanding) < 2:
            # The only pop of this queue is the new one, which should not end at once.
            queue = max(self._queues, key=lambda candidate: len(candidate.outstanding))
        key, oldest = next(iter(queue.outstanding.items()))
        self._deadlines.cancel(oldest.deadline)
        self._revive_pop(self._queues.index(queue), key)

    @staticmethod
    def _skip_own_record(queue: ReviveQueue, record_offset: int) -> None:
        """Skip a record that this broker wrote, unless records of others that must be read come before it."""
        if record_offset == queue.next_record:
            queue.next_record += 1

    def _apply_acks(self, queue: ReviveQueue, acks: AckRecord) -> None:
        pending = queue.outstanding.get(acks.key)
        if pending is None:
            return
        self._adjust_count(acks.key, -sum(pending.checkpoint.mark_acked(offset) for offset in acks.offsets))
        if pending.checkpoint.is_done:
            self._deadlines.cancel(pending.deadline)
            self._pop_outstanding(queue, acks.key)

    def _rewrite_oldest(self, queue_id: int, queue: ReviveQueue) -> None:
        """Write the oldest checkpoint again when it is more than `MAX_RECORDS_BEHIND` records behind."""
        key, first = next(iter(queue.outstanding.items()))
        if queue.next_record - first.record_offset > MAX_RECORDS_BEHIND:
            with suppress(RequestError):  # The next pop tries again.
                first.record_offset = self.log.write_record(queue_id, first.checkpoint, is_repeated=True)
                # It goes to the end, because `done_offset` relies on the order of records.
                queue.outstanding[key] = queue.outstanding.pop(key)
                self._skip_own_record(queue, first.record_offset)

    def forget_topic(self, topic: str) -> Iterator[None]:
        """Drop the outstanding pops of a deleted topic in slices; other tasks may run at each yield.

        The pops are listed at the call: those of a topic that is created again meanwhile stay. Their records are
        skipped by the next start, because they were stored before the deletion (`_apply_record`).
        """
        pops = (
            [(queue, key) for queue in self._queues for key in queue.outstanding if key.topic == topic]
            if any(key[0] == topic for key in self._outstanding_counts)
            else []
        )
        return self._drop_pops(pops)

    def _drop_pops(self, pops: list[tuple[ReviveQueue, PopKey]]) -> Iterator[None]:
        for number, (queue, key) in enumerate(pops, 1):
            outstanding = self._pop_outstanding(queue, key)
            if outstanding is not None:
                self._deadlines.cancel(outstanding.deadline)
                self._adjust_count(key, -len(outstanding.checkpoint.unacked_offsets()))
            if number % POPS_PER_SLICE == 0:
                yield

    # -- reading records ----------------------------------------------------------------------------------

    def catch_up(self, queue_id: int) -> None:
        """Apply records that were not applied yet, after a start or when a timer delivered some."""
        queue, end = self._queues[queue_id], self.log.end_offset(queue_id)
        if queue.next_record >= end:
            return
        for record in self.log.read_records(queue_id, queue.next_record, end):
            # Set before as well, so that a record that fails is read again, and not those before it.
            queue.next_record = record.location.queue_offset
            self._apply_record(queue_id, queue, record)
            queue.next_record = record.location.queue_offset + 1
        queue.next_record = end  # Past expired and unusable records too.

    def _apply_record(self, queue_id: int, queue: ReviveQueue, record: ReviveRecord) -> None:
        content, location = record.content, record.location
        if isinstance(content, AckRecord):
            self._apply_acks(queue, content)
            return
        key = content.key
        if self._store.is_for_deleted_topic(key.topic, location.physical_offset, key.pop_time):
            return  # A topic of that name may exist again, and has other messages at these offsets.
        if content.end_offset > self._store.max_offset(content.key.topic, content.key.queue_id):
            # The queue has lost the messages, and will give their offsets to others.
            self._damaged.skip(
                RecordKind.POP_RECORD, location, "its messages are beyond the end of their queue"
            )
            return
        if location.queue_offset >= queue.saved_record and not record.is_repeated:
            # The pop moved the group's offset in memory, but the crash came before that was saved.
            self._advance_group(content)
        if content.offset_diffs and not content.is_done:
            # A checkpoint that comes from an official broker's timer is followed by its acks, some seconds later.
            wait_ms = TIMED_ACKS_MS if record.timed else 0
            self._add_outstanding(queue_id, content, location.queue_offset, wait_ms)
            self._limit_outstanding(queue)

    def _advance_group(self, checkpoint: PopCheckpoint) -> None:
        """Move a group's offset past a pop that was recorded after the last save of consumer offsets before a crash."""
        key = checkpoint.key
        exists = key.topic in self._topics and self._has_topic_and_group(key)
        if exists and self._offsets.query_offset(key.group, key.topic, key.queue_id) < checkpoint.end_offset:
            self._offsets.commit_offset(
                key.group, key.topic, key.queue_id, checkpoint.end_offset, by_broker=True
            )

    def undo_pops_from(self, physical_offset: int) -> Iterator[None]:
        """Move groups back to before the pops whose records a cut of the log at an offset will remove.

        Nobody could revive these messages. A repeated checkpoint, such as that of a message that a consumer held for
        longer, did not move its group: the first one is cut as well, or stays, and with it the message is revived.
        Others may run at each yield, but no pop.
        """
        starts: dict[tuple[str, str, int], int] = {}
        for queue_id in range(len(self._queues)):
            try:
                for number, record in enumerate(self.log.read_records_from(queue_id, physical_offset), 1):
                    if number % RECORDS_PER_SLICE == 0:
                        yield
                    if isinstance(record.content, PopCheckpoint) and not record.is_repeated:
                        key = record.content.key
                        queue = key.group, key.topic, key.queue_id
                        starts[queue] = min(key.start_offset, starts.get(queue, key.start_offset))
            except CorruptionError as error:  # What is cut is not worth that the broker stops.
                log.error("revive queue cannot be read", extra={"queue_id": queue_id, "reason": str(error)})
        for queue, start in starts.items():
            if start < self._offsets.query_offset(*queue):
                self._offsets.commit_offset(*queue, start, by_broker=True)

    # -- reviving -------------------------------------------------------------------------------------------

    def _revive_pop(self, queue_id: int, key: PopKey) -> None:
        queue = self._queues[queue_id]
        checkpoint = queue.outstanding[key].checkpoint
        # Step 3. Without its topic or group the pop is dropped: no consumer could get the retries.
        revived = (
            self._write_retries(queue_id, checkpoint)
            if self._has_topic_and_group(key)
            else checkpoint.unacked_offsets()
        )
        self._adjust_count(key, -sum(checkpoint.mark_acked(offset) for offset in revived))
        if not checkpoint.is_done:
            # The store refuses all writes, so the pop stays outstanding and is tried again.
            due_ms = self._clock.now_ms() + REPUT_INTERVALS_S[0] * 1000
            queue.outstanding[key].deadline = self._deadlines.schedule(
                due_ms, partial(self._revive_pop, queue_id, key)
            )
            return
        self._pop_outstanding(queue, key)
        # Without this record, a crash before the next save of offsets would revive the messages again.
        with suppress(RequestError):
            self._skip_own_record(queue, self.log.write_record(queue_id, AckRecord(key, revived)))

    def _has_topic_and_group(self, key: PopKey) -> bool:
        """Tell whether topic and group still exist. A group is created again where that is allowed."""
        if self._topics.get(original_topic(key.topic, key.group)) is None:
            return False
        try:
            return self._groups.find_or_create(key.group) is not None
        except RequestError:  # There are too many groups.
            return False

    def _write_retries(self, queue_id: int, checkpoint: PopCheckpoint) -> list[int]:
        """Write the unacked messages to the retry topic; return the offsets of those written, lost or postponed."""
        revived = []
        for offset in checkpoint.unacked_offsets():
            message = self._read_popped(checkpoint.key, offset)
            try:
                if message is not None:
                    self._write_retry(checkpoint.key, message)
            except RequestError as refused:
                extra = {"key": checkpoint.key, "offset": offset, "reason": refused.remark}
                log.warning("retry message refused by the store", extra=extra)
                # No later try can store an illegal message. After any other refusal it gets a checkpoint of its own;
                # where that is refused as well, the pop stays as it is, with the rest of its messages.
                if refused.code == ResponseCode.MESSAGE_ILLEGAL and message is not None:
                    location = RecordLocation.of_message(message)
                    self._damaged.skip(RecordKind.POPPED_MESSAGE, location, refused.remark)
                elif not self._postpone(queue_id, checkpoint, offset):
                    break
            revived.append(offset)
        log.info("unacked messages revived", extra={"key": checkpoint.key, "offsets": revived})
        return revived

    def _read_popped(self, key: PopKey, offset: int) -> Message | None:
        """Return the popped message; None when the store no longer has it, or it is damaged."""
        try:
            result = self._store.read(key.topic, key.queue_id, offset, 1)
            message = decode_message(result.chunks[0]) if result.chunks else None
        except (CorruptionError, MessageFormatError) as error:
            location = RecordLocation(key.topic, key.queue_id, offset, -1)
            self._damaged.skip(RecordKind.POPPED_MESSAGE, location, error)
            return None
        return message if message is not None and message.queue_offset == offset else None

    def _write_retry(self, key: PopKey, message: Message) -> None:
        """Write a message to the retry topic. Source: PopReviveService.reviveRetry, 5.4.0.

        Deviation: a message whose properties leave no room for more is written without them, so that it is not lost.
        """
        topic = key.topic
        if not topic.startswith(RETRY_PREFIX):
            topic = pop_retry_topic(topic, key.group, v2=self.config.pop.enable_retry_topic_v2)
        properties = dict(message.properties)
        if message.reconsume_times == 0 or keys.FIRST_POP_TIME not in properties:
            properties[keys.FIRST_POP_TIME] = str(key.pop_time)
        properties[keys.ORIGIN_GROUP] = key.group
        host = pack_host(self._hosts.own_address())
        again = NewMessage(
            topic,
            self._choose_retry_queue(topic, key, message),
            message.body,
            properties,
            message.flag,
            message.sys_flag,
            message.born_timestamp,
            host,
            host,
            count_attempt(message.reconsume_times),
        )
        try:
            self._appender.append(again)
        except RequestError as refused:
            if refused.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            self._appender.append(again.with_changes(properties=message.properties))
        self._revived[key.group, key.topic].count_messages(1, 0)

    def _choose_retry_queue(self, topic: str, key: PopKey, message: Message) -> int:
        """Return the queue of a retry topic, which is created when it is missing."""
        queues = RETRY_QUEUES
        separate = self.config.pop.use_separate_retry_queue
        if separate and (normal := self._topics.get(original_topic(topic, key.group))) is not None:
            queues = len(self._topics.queue_ids(normal.write_queue_nums))
        retry_topic = self._topics.get(topic)
        if retry_topic is None or (separate and retry_topic.write_queue_nums != queues):
            self._topics.update(
                [TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)],
                by_broker=True,
            )
            for queue_id in range(queues):
                # A group without an offset may begin at the queue's end, past the message that is stored next.
                if self._offsets.query_offset(key.group, topic, queue_id) < 0:
                    self._offsets.commit_offset(key.group, topic, queue_id, 0, by_broker=True)
        return message.queue_id if separate and message.queue_id < queues else 0

    def _postpone(self, queue_id: int, checkpoint: PopCheckpoint, offset: int) -> bool:
        """Give a message that cannot be revived a new checkpoint. Return False when that cannot be written either.

        Source: PopReviveService.rePutCK, 5.4.0.
        """
        times = checkpoint.postponements
        if times >= len(REPUT_INTERVALS_S) and self.config.pop.skip_when_ck_reput_reach_max_times:
            log.error(
                "popped message given up after too many refusals",
                extra={"key": checkpoint.key, "offset": offset},
            )
            return True
        longer_ms = REPUT_INTERVALS_S[min(times, len(REPUT_INTERVALS_S) - 1)] * 1000
        key = self.unused_key(queue_id, checkpoint.key._replace(start_offset=offset))
        invisible_time = checkpoint.revive_time + longer_ms - key.pop_time
        try:
            postponed = PopCheckpoint(key, invisible_time, [0], postponements=times + 1)
            self._write_checkpoint(queue_id, postponed, is_repeated=True)
        except RequestError:
            return False
        return True

    # -- saving ---------------------------------------------------------------------------------------

    def commit_offsets(self) -> None:
        """Commit the offsets of the revive queues to the table of consumer offsets."""
        for queue_id, queue in enumerate(self._queues):
            done = queue.done_offset()
            if done > queue.committed:
                queue.committed = done
                self._offsets.commit_offset(REVIVE_GROUP, self.log.topic, queue_id, done, by_broker=True)
            if queue.next_record > queue.saved_record:
                queue.saved_record = queue.next_record
                self._offsets.commit_offset(
                    SEEN_GROUP, self.log.topic, queue_id, queue.next_record, by_broker=True
                )
