"""Waiting timer messages on the disk: timer wheel, timer log and checkpoint behind one interface.

`gateway/broker/delayed/timer_delivery.py` decides when messages are chained and delivered. One thread chains and
delivers;
`flush` may run in another at the same time.

Chaining a message takes two steps: append its record to the timer log, then let the wheel's slot point to the record.
The broker calls `save_progress` after each message, so a killed process loses and repeats nothing. After a power cut
the wheel is repaired from the log (`_repair_wheel`), and ``already_chained`` holds the messages after the checkpoint's
queue offset that the log already has, so that reading the timer topic again does not chain them twice.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Final

from codec.java_numbers import I32, I64
from codec.message import MIN_MESSAGE_BYTES, QUEUE_OFFSET_AT
from storage.errors import CorruptionError
from storage.layout import LONG, mapped_file_name
from storage.store import MessageStore
from storage.timer_checkpoint import TimerCheckpoint, TimerPosition, TimerProgress
from storage.timer_log import MAGIC_DELETE, MAGIC_PART, TimerLog, TimerRecord
from storage.timer_wheel import DEFAULT_WHEEL_SLOTS, TimerWheel, WheelSlot

log = logging.getLogger(__name__)

_BLANK_SLOTS: Final = 60
_NOT_DELIVERED: Final = (0, -1)
_MAX_CHECKPOINT_AGE_MS: Final = 60_000
"""Longest time between the checkpoint's own time and the last slot that it calls delivered, if both are true."""


@dataclass(frozen=True, slots=True)
class TimerStoreConfig:
    """Paths and sizes of the files. Only tests change ``wheel_slots``, which the official broker has fixed."""

    root: str
    config_path: str
    precision_ms: int = 1000
    log_file_bytes: int = 100 << 20
    wheel_slots: int = DEFAULT_WHEEL_SLOTS


class TimerStore:
    """Waiting messages by slot. Source: TimerMessageStore, 5.4.0.

    ``read_ms`` is the first slot that is not wholly delivered, ``queue_offset`` the next message of the timer topic
    to be chained; `save_progress` persists both. Slots ahead are also held in memory, by time and count.
    """

    def __init__(self, config: TimerStoreConfig, store: MessageStore, topic: str) -> None:
        files = store.files
        self._config = config
        self._store = store
        self._topic = topic
        self._wheel = TimerWheel(files, config.root + "/timerwheel", config.precision_ms, config.wheel_slots)
        self._log = TimerLog(files, config.root + "/timerlog", config.log_file_bytes)
        self._checkpoint = TimerCheckpoint(files, config.config_path + "/timercheck")
        self._times: list[int] = []
        self._counts: dict[int, int] = {}
        self._flushed: TimerProgress | None = None
        self.read_ms = 0
        self.queue_offset = 0
        self.delivered_up_to = _NOT_DELIVERED
        self.already_chained: set[int] = set()
        self._recover()

    @property
    def precision_ms(self) -> int:
        return self._config.precision_ms

    @property
    def is_slot_partly_delivered(self) -> bool:
        """True if a part of slot ``read_ms`` is delivered."""
        return self.delivered_up_to != _NOT_DELIVERED

    @property
    def wheel_span_ms(self) -> int:
        """The maximum distance of a slot from ``read_ms``. Source: TimerMessageStore.slotsTotal, 5.4.0."""
        return self._config.wheel_slots // 2 * self._config.precision_ms

    def slot_start_ms(self, time_ms: int) -> int:
        """Return the slot that holds a time."""
        return time_ms // self._config.precision_ms * self._config.precision_ms

    # -- opening -------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Read the checkpoint and make wheel and log agree. Source: TimerMessageStore.recover, 5.4.0.

        Deviations: ``already_chained`` receives the messages after the checkpoint's queue offset that the log already
        has, so that they are not chained twice.

        The checkpoint may say that slots are delivered which are more than a wheel ahead of the present time. If it
        was written at such a time, by a clock that was ahead, it is true: the slots are emptied, as they are while the
        broker runs (`go_back`). Otherwise a field is damaged, and what waits in the wheel is delivered, which may be
        once more. The official broker believes it in either case: it neither delivers the messages of these slots, nor
        those that are sent until that time.
        """
        position, progress = self._checkpoint.position, self._checkpoint.load_progress()
        has_progress = progress is not None
        start = position.log_position - (0 if has_progress else self._log.file_bytes)
        self._log.recover(start, position.log_position, self._is_message_stored)
        self._check_files(position)
        # Progress is saved without a flush of the logs, so a power cut can leave it ahead of them.
        if progress is not None and not self._logs_reach(progress):
            log.warning("timer progress lost, some timer messages may be delivered twice")
            progress = None
        if self._is_wheel_lost():
            log.warning("timer wheel is missing or damaged, rebuilding it from the timer log")
            self._wheel.clear()
            start = 0
        self._repair_wheel(start)
        self._restore_progress(position, progress)
        # Keep ``read_ms`` within one span of now, which is as far as the ring can tell slots apart: the broker may have
        # been off for longer, or the clock may have been set back.
        now_ms = self._store.clock.now_ms()
        oldest = self.slot_start_ms(now_ms) - self.wheel_span_ms + _BLANK_SLOTS * self.precision_ms
        if self.read_ms < oldest:
            self.read_ms, self.delivered_up_to = oldest, _NOT_DELIVERED
        elif self.read_ms > self.slot_start_ms(now_ms) + self.wheel_span_ms:
            log.warning("timers were delivered ahead of the present time", extra={"until_ms": self.read_ms})
            if self.read_ms - position.timestamp <= _MAX_CHECKPOINT_AGE_MS:
                self.go_back(self.slot_start_ms(now_ms))
            else:
                self.read_ms, self.delivered_up_to = self.slot_start_ms(now_ms), _NOT_DELIVERED
        self._load_slots()
        self._flushed = self._progress()

    def _is_message_stored(self, record: TimerRecord) -> bool:
        """Return False for a torn record, and for one of a message that the commit log lost.

        Another message will be stored at the lost one's physical offset, and would count as chained already.
        """
        end = record.physical_offset + record.size
        if (
            record.size < MIN_MESSAGE_BYTES
            or not 0 <= record.physical_offset <= end <= self._store.max_physical_offset
        ):
            return False
        try:
            message = self._store.message_at(record.physical_offset)
        except CorruptionError:
            return False
        # There is none where it expired, or where damage was replaced.
        return message is None or len(message) == record.size

    def _check_files(self, position: TimerPosition) -> None:
        """Raise CorruptionError if the timer log lacks records that were on the disk, and the wheel points to."""
        missing = range(self._log.end, position.log_position)
        if any(slot.last in missing for slot in self._wheel.used_slots()):
            root, check = self._config.root, f"{self._config.config_path}/timercheck"
            base = self._log.end - self._log.end % self._log.file_bytes
            raise CorruptionError(
                f"{root}/timerlog/{mapped_file_name(base)}",
                self._log.end - base,
                f"records are missing: {check} covers it up to {position.log_position}. Restore it, or delete "
                f"{root}/timerlog, {root}/timerwheel and {check}: timer messages are then scheduled again, and those "
                "of the last days may be delivered twice",
            )
        if self._log.end > self._log.first and not any(position.pack()):
            log.warning("timer checkpoint is missing or empty, timer messages may be delivered twice")

    def _is_wheel_lost(self) -> bool:
        """Return True if the timer log has records, and the wheel is empty or not a wheel."""
        is_empty = not any(True for _ in self._wheel.used_slots())
        return self._wheel.has_misplaced_slots or (is_empty and self._log.end > self._log.first)

    def _logs_reach(self, progress: TimerProgress) -> bool:
        return self._log.end >= progress.log_end and self._store.max_physical_offset >= progress.commit_end

    def _restore_progress(self, position: TimerPosition, progress: TimerProgress | None) -> None:
        mark = position.log_position
        if progress is not None:
            self.queue_offset, self.read_ms = progress.queue_offset, progress.read_ms
            self.delivered_up_to = (progress.due_ms, progress.position)
            mark = progress.log_end
        else:
            self.queue_offset = min(position.queue_offset, position.master_queue_offset)
            self.read_ms = position.read_ms
        last = None
        for record in self._log.records_from(mark):
            self.already_chained.add(record.physical_offset)
            last = record
        if last is not None and not any(position.pack()):
            self.queue_offset = self._queue_offset_of(last) + 1
        low = self._store.min_offset(self._topic, 0)
        # Not the readable end: a power cut may leave chained messages unconfirmed again, which must not come twice.
        high = self._store.next_queue_offset(self._topic, 0)
        self.queue_offset = min(max(self.queue_offset, low), high)

    def _queue_offset_of(self, record: TimerRecord) -> int:
        view = self._store.message_at(record.physical_offset)
        if view is None:
            return -1
        offset: int = LONG.unpack_from(view, QUEUE_OFFSET_AT)[0]
        return offset

    def _repair_wheel(self, start: int) -> None:
        """Make the wheel agree with the log, which may have lost records or have more of them.

        Slots and records differ only from ``start`` on. A slot of 32 bytes does not change at once, so the slot of the
        last record may be half the old one and half the new one if the process was killed.
        """
        start = max(start, 0)
        torn: dict[int, int] = {}
        for slot in self._wheel.used_slots():
            if slot.last >= start and not self._ends_with_own_record(slot):
                torn[slot.time_ms] = slot.first
                self._wheel.write_slot(WheelSlot(slot.time_ms, -1, -1, 0))
        last = None
        for record in self._log.records_from(min([start, *torn.values()])):
            self._relink(record)
            last = record
        if last is not None:
            self._recount_slot(self.slot_start_ms(last.slot_time_ms))

    def _ends_with_own_record(self, slot: WheelSlot) -> bool:
        record = self._log.record_at(slot.last)
        return record is not None and self.slot_start_ms(record.slot_time_ms) == slot.time_ms

    def _relink(self, record: TimerRecord) -> None:
        if record.magic & MAGIC_PART:
            return
        time_ms = self.slot_start_ms(record.slot_time_ms)
        slot = self._wheel.find_slot(time_ms)
        if slot is None or (slot.last < record.position and record.previous < 0):
            slot = WheelSlot(time_ms, -1, -1, 0)
        if slot.last < record.position:
            self._wheel.write_slot(_with_record(slot, record.position, record.magic))

    def _recount_slot(self, time_ms: int) -> None:
        """Count the messages of a slot by its chain."""
        slot = self._wheel.find_slot(time_ms)
        if slot is not None:
            messages = sum(
                -1 if record.magic & MAGIC_DELETE else 1 for record in self.pending_records(time_ms)
            )
            self._wheel.write_slot(slot._replace(messages=max(I32.low, min(messages, I32.high))))

    def _load_slots(self) -> None:
        last = self.read_ms + 2 * self.wheel_span_ms
        self._counts = {
            slot.time_ms: slot.messages
            for slot in self._wheel.used_slots()
            if self.read_ms <= slot.time_ms < last and slot.last >= 0
        }
        self._times = list(self._counts)
        heapify(self._times)

    # -- chaining and delivering ---------------------------------------------------------------------------

    def chain_message(
        self,
        slot_ms: int,
        *,
        magic: int,
        write_ms: int,
        physical_offset: int,
        size: int,
        topic_hash: int,
        due_ms: int,
    ) -> TimerRecord:
        """Chain a message into a slot not before ``read_ms``; return its record. Raises StoreFull."""
        slot = self._wheel.find_slot(slot_ms) or WheelSlot(slot_ms, -1, -1, 0)
        self._wheel.make_room(slot_ms)  # Reserve before the log says that the record exists.
        position = self._log.make_room()
        # The delay is a 32-bit field. A slot is further ahead only when the clock was set back by weeks.
        write_ms = max(write_ms, slot_ms - I32.high)
        delay_ms = slot_ms - write_ms
        record = TimerRecord(
            position, slot.last, magic, write_ms, delay_ms, physical_offset, size, topic_hash, due_ms
        )
        self._log.append(record)
        slot = _with_record(slot, position, magic)
        self._wheel.write_slot(slot)
        if slot_ms not in self._counts:
            heappush(self._times, slot_ms)
        self._counts[slot_ms] = slot.messages
        return record

    def next_slot_ms(self) -> int | None:
        """Return the first slot from ``read_ms`` on that holds messages; None when nothing waits."""
        return self._times[0] if self._times else None

    def pending_records(self, slot_ms: int) -> Iterator[TimerRecord]:
        """Yield a slot's undelivered records, newest first; slot ``read_ms`` may include delivered ones.

        Records with a ``due_ms`` of 0 are yielded too; the caller reads their time from the message.
        """
        slot = self._wheel.find_slot(slot_ms)
        return iter(()) if slot is None else self._log.chain_from(slot.last)

    def record_at(self, position: int) -> TimerRecord | None:
        """Return the record at a position of the timer log; None when the log does not hold it any more."""
        return self._log.record_at(position)

    def rewrite_slot(self, slot_ms: int, records: Sequence[TimerRecord]) -> None:
        """Replace all records of a slot, so that readers of the files find only these.

        The records are appended at the end of the log as a new chain. All but the last have MAGIC_PART, so recovery
        ignores them until the last one is there.

        Blocks until the deliveries of the slot's other messages and the new chain are on the disk. Otherwise a power
        cut could leave a slot without those messages and lose their deliveries, or leave a slot whose chain is lost:
        nothing leads from it to the old records. Raises StoreFull and FlushFailed.
        """
        self._store.flush()
        first = previous = -1
        for number, record in enumerate(records, 1):
            magic = record.magic | MAGIC_PART if number < len(records) else record.magic & ~MAGIC_PART
            position = self._log.make_room()
            self._log.append(record._replace(position=position, previous=previous, magic=magic))
            first, previous = position if first < 0 else first, position
        self._store.flushes.run(self._log.flush)
        self._wheel.write_slot(WheelSlot(slot_ms, first, previous, self._counts.get(slot_ms, 0)))

    def message_count(self, slot_ms: int) -> int:
        """Return the number of messages in a slot, cancelled ones left out."""
        return self._counts.get(slot_ms, 0)

    def slot_counts(self) -> list[tuple[int, int]]:
        """Return the time (ms) and the number of messages of every slot from ``read_ms`` on that holds any."""
        return list(self._counts.items())

    @property
    def waiting_messages(self) -> int:
        """Messages of all slots from ``read_ms`` on. Source: TimerMessageStore.getAllCongestNum, 5.4.0."""
        return sum(self._counts.values())

    def finish_slot(self, slot_ms: int) -> None:
        """Mark the first slot as wholly delivered."""
        if self._times and self._times[0] == slot_ms:
            heappop(self._times)
            del self._counts[slot_ms]
        self.advance_to(slot_ms + self.precision_ms)

    def advance_to(self, read_ms: int) -> None:
        """Move ``read_ms`` forward to a slot before which nothing waits."""
        if read_ms > self.read_ms:
            self.read_ms, self.delivered_up_to = read_ms, _NOT_DELIVERED

    def go_back(self, read_ms: int) -> None:
        """Move ``read_ms`` back to a slot, after the clock was set back. Raises StoreFull and FlushFailed.

        The slots between are delivered, but still in the wheel, where new messages would be chained to their records.
        They are emptied. Slot ``read_ms`` must not be partly delivered. Each step is on the disk before the next:

        1. All records: recovery relinks only those after the checkpoint's position, and so none of an emptied slot.
        2. The emptied slots: opened with the earlier ``read_ms``, a slot would be delivered again.
        3. The earlier ``read_ms``: opened with the later one, messages chained before it would be lost.
        """
        self._flush_now()
        for slot in list(self._wheel.used_slots()):
            if read_ms <= slot.time_ms < self.read_ms and slot.last >= 0:
                self._wheel.write_slot(WheelSlot(slot.time_ms, -1, -1, 0))
        self._store.flushes.run(self._wheel.flush)
        self.read_ms, self.delivered_up_to = read_ms, _NOT_DELIVERED
        self._flush_now()

    def _flush_now(self) -> None:
        position = self.take_unflushed_position()
        if position is not None:
            self.flush(position)

    def save_progress(self) -> None:
        """Make everything done so far survive the end of the process. Raises StoreFull."""
        self._checkpoint.save_progress(
            self.queue_offset,
            self.read_ms,
            *self.delivered_up_to,
            self._log.end,
            self._store.max_physical_offset,
        )

    def _progress(self) -> TimerProgress:
        return TimerProgress(
            self.queue_offset,
            self.read_ms,
            *self.delivered_up_to,
            self._log.end,
            self._store.max_physical_offset,
        )

    # -- flushing and deleting -----------------------------------------------------------------------------

    @property
    def position(self) -> TimerPosition:
        """The checkpoint as last written."""
        return self._checkpoint.position

    def take_unflushed_position(self) -> TimerPosition | None:
        """Return the position for `flush` to write next; None when nothing has changed since the last.

        Raises StoreFull; then the next call tries again.
        """
        progress, before = self._progress(), self._flushed
        if before is not None and progress[:5] == before[:5]:
            return None
        self._checkpoint.save_progress(*progress)
        self._flushed = progress
        return replace(
            self._checkpoint.position,
            read_ms=self.read_ms,
            queue_offset=self.queue_offset,
            master_queue_offset=self.queue_offset,
            log_position=self._log.end,
            timestamp=self._store.clock.now_ms(),
            counter=(self._checkpoint.position.counter + 1) & I64.high,
        )

    def flush(self, position: TimerPosition) -> None:
        """Block until the files hold what a position describes, then write the position.

        Thread safe. Raises FlushFailed; then the whole store takes no more messages.
        """
        self._store.flush()
        self._store.flushes.run(lambda: self._flush_files(position))

    def _flush_files(self, position: TimerPosition) -> None:
        self._log.flush()
        self._wheel.flush()
        self._checkpoint.write_position(position)

    def delete_expired_files(self) -> int:
        """Delete timer log files whose messages are all deleted from the commit log; return their number."""
        return self._log.delete_expired_files(self._store.min_physical_offset)

    def close(self) -> None:
        """Close the files. Flush the result of `take_unflushed_position` first."""
        for part in (self._wheel, self._log, self._checkpoint):
            part.close()


def begin_timer_files(store: MessageStore, config: TimerStoreConfig, read_ms: int, queue_offset: int) -> None:
    """Replace the timer files by empty ones: nothing waits, and the topic is to be read from an offset on.

    The counts of waiting messages, in ``timermetrics``, are those of the wheel, and go with it.

    Raises StoreFull, OSError, FlushFailed.
    """
    files, check, metrics = (
        store.files,
        config.config_path + "/timercheck",
        config.config_path + "/timermetrics",
    )
    for path in (config.root + "/timerwheel", check, metrics, metrics + ".bak"):
        files.delete(path)
    files.delete_tree(config.root + "/timerlog")
    checkpoint = TimerCheckpoint(files, check)
    try:
        position = TimerPosition(
            read_ms=read_ms // config.precision_ms * config.precision_ms,
            queue_offset=queue_offset,
            master_queue_offset=queue_offset,
            timestamp=store.clock.now_ms(),
        )
        store.flushes.run(lambda: checkpoint.write_position(position))
    finally:
        checkpoint.close()


def _with_record(slot: WheelSlot, position: int, magic: int) -> WheelSlot:
    """Return a slot with one more record. Source: TimerMessageStore.doEnqueue, 5.4.0."""
    first = position if slot.first < 0 else slot.first
    messages = slot.messages + (-1 if magic & MAGIC_DELETE else 1)
    return slot._replace(first=first, last=position, messages=max(I32.low, min(messages, I32.high)))
